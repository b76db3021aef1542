"""Tests of reproducible computation: equal bytes on every processor; other processors are simulated in subprocesses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.transform.print_digests import digests

ROOT = Path(__file__).resolve().parents[2]

LOOPS = import_module("numpy._core._multiarray_umath")
MODERN = [name for name in LOOPS.__cpu_dispatch__ if LOOPS.__cpu_features__.get(name)]
"""The processor features that numpy uses beyond its minimum."""

OLD = {
    # The matrix products, the loops of numpy, and the sines of the C library, as on a processor of 2005.
    "OPENBLAS_CORETYPE": "Prescott",
    "NPY_DISABLE_CPU_FEATURES": " ".join(MODERN),
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F,-AVX2_Usable,-FMA_Usable",
}
MIDDLE_AGED = {
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": " ".join(name for name in MODERN if "512" in name or name == "X86_V4"),
}


@pytest.fixture(scope="module")
def here() -> dict[str, str]:
    return digests()


@pytest.mark.parametrize("processor", [OLD, MIDDLE_AGED], ids=["old", "middle-aged"])
def test_an_older_processor_computes_the_same_bytes(here: dict[str, str], processor: dict[str, str]) -> None:
    environment = {**os.environ, **{name: value for name, value in processor.items() if value}}
    command = [sys.executable, "-m", "tests.transform.print_digests"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    simulated = json.loads(done.stdout)
    assert {name: digest for name, digest in simulated.items() if digest != here[name]} == {}
    assert simulated.keys() == here.keys()


def test_every_result_is_different(here: dict[str, str]) -> None:
    # This ensures that each digest depends on its computation.
    assert len(set(here.values())) == len(here)
