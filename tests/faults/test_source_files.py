"""Tests of source files that change while they are read, or are larger than memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import select

from organs.registry.catalog.tables import Ingest
from organs.registry.digest import digest_of
from organs.registry.errors import BadGguf, BadSource
from organs.registry.gguf import TensorSpec, dtype_by_name, encode_header
from organs.registry.local import LocalRegistry
from tests import postgres
from tests.faults.failing import (
    SteppedCatalog,
    act_at_step,
    assert_no_orphans,
    ingest_path,
    model_bytes,
    model_names,
    verify_all,
    write_model,
)
from tests.small_models import assemble_model

ROOT = Path(__file__).resolve().parents[2]
MEBI, GIBI = 1 << 20, 1 << 30
MEMORY_MAX_KIB = 400 * 1024
"""The limit of resident memory of an ingest of any file; the libraries alone use about 100 MB."""
MEASURED = (
    "import resource, subprocess, sys; status = subprocess.call(sys.argv[1:]);"
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(status)"
)
"""Runs a command and prints its peak memory, in a new process, because the peak of a child begins with its parent's."""


@pytest.mark.folder
@pytest.mark.parametrize("change", ["append", "shorten", "remove"])
def test_a_file_that_changes_while_it_is_read_is_refused_and_nothing_is_stored(
    change: str, registry: LocalRegistry, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "little.gguf")
    size, changed = path.stat().st_size, []

    def change_once(_size_bytes: int) -> None:
        if not changed:
            changed.append(change)
            if change == "remove":
                path.unlink()
            else:
                os.truncate(path, size + 4 if change == "append" else size - 1)

    with pytest.raises(BadSource, match=r"little\.gguf"):
        ingest_path(registry, path, change_once)
    assert changed
    assert model_names(registry) == []
    assert_no_orphans(registry)
    with registry.catalog.reading() as session:
        (ingest,) = session.scalars(select(Ingest))
        assert (ingest.state, ingest.model_id) == ("failed", None)
    path.write_bytes(model_bytes())
    assert ingest_path(registry, path).created
    assert verify_all(registry).faults == []


def test_a_change_with_the_old_time_is_refused_or_ingested_completely(registry: LocalRegistry, tmp_path: Path) -> None:
    outcomes = set()
    for step in range(1, 11):
        path = write_model(tmp_path / "little.gguf", seed=step)
        status = path.stat()

        def rewrite(path: Path = path, status: os.stat_result = status, step: int = step) -> None:
            path.write_bytes(model_bytes(seed=100 + step))
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

        watched = LocalRegistry(
            registry.settings, SteppedCatalog(registry.catalog, act_at_step(step, rewrite)), registry.blobs
        )
        known = len(model_names(registry))
        try:
            report = ingest_path(watched, path)
        except (BadSource, BadGguf):
            assert len(model_names(registry)) == known
            outcomes.add("refused")
        else:
            (back,) = assemble_model(registry, report.model, tmp_path / "back")
            assert digest_of(back.read_bytes()) == report.digest
            outcomes.add("taken")
        assert verify_all(registry).faults == []
    assert "taken" in outcomes, "before the first and after the last byte is read, nothing is wrong"


@pytest.mark.parametrize("size_bytes", [256 * MEBI, pytest.param(16 * GIBI, marks=pytest.mark.slow)])
def test_a_sparse_file_takes_bounded_memory_and_is_stored_once(size_bytes: int, tmp_path: Path) -> None:
    path, home = tmp_path / "zeros.gguf", tmp_path / "home"
    tensors = [zeros(f"blk.{index}.ffn_up.weight", size_bytes // 4) for index in range(4)]
    with path.open("wb") as stream:
        header = stream.write(encode_header([], tensors))
        stream.truncate(header + 4 * (size_bytes // 4))
    assert path.stat().st_blocks * 512 < MEBI
    command = [sys.executable, "-m", "organs.cli", "--home", str(home), "ingest", "--json", str(path)]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *command],
        cwd=ROOT,
        env=os.environ | postgres.environment(home),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer, peak_kib = done.stdout.splitlines()
    report = json.loads(answer)
    assert int(peak_kib) < MEMORY_MAX_KIB
    assert report["new_blobs"] == 2, "one for the zeros, one for the header"
    assert report["known_bytes"] == size_bytes // 4 * 3
    assert sum(file.stat().st_size for file in (home / "blobs").rglob("*")) < size_bytes / 500


def zeros(name: str, size_bytes: int) -> TensorSpec:
    return TensorSpec(name, (4096, size_bytes // 8192), dtype_by_name("F16"))
