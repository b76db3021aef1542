"""Tests of reproducible chimeras: one lock gives one file in any order of ingests and on any processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compose.reproducible_chimera import MODELS, make_chimera
from tests.transform.test_reproducible import OLD, ROOT


@pytest.mark.long
def test_two_registries_make_the_same_bytes_in_any_order_and_on_an_old_processor(tmp_path: Path) -> None:
    here = make_chimera(tmp_path / "here", [*MODELS])
    command = [sys.executable, "-m", "tests.compose.reproducible_chimera", str(tmp_path / "there"), *reversed(MODELS)]
    environment = {**os.environ, **OLD}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == here
    assert len(set(here)) == 12
