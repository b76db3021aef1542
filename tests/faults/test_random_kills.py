"""Tests of kills at random moments: the short form of `python -m tests.faults.random_kills`."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from organs.registry.catalog.tables import Ingest
from organs.registry.local import LocalRegistry
from tests.faults.failing import Crash, SteppedFiles, ingest_path, model_names, verify_all, with_files, write_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize(("module", "models"), [("random_kills", 2), ("repack_kills", 6)])
def test_kills_at_random_moments_lose_nothing(module: str, models: int) -> None:
    command = [sys.executable, "-m", f"tests.faults.{module}", "--kills", "8", "--seed", "122", "--models", str(models)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert re.match(r"8 kills \(.*\), \d+ more came too late; \d+ models .* nothing lost; \d+ s\n", result.stdout)


def test_a_killed_ingest_does_not_block_the_next(registry: LocalRegistry, tmp_path: Path) -> None:
    path = write_model(tmp_path / "little.gguf")

    def die(_number: int, name: str) -> None:
        if name == "rename":
            raise Crash

    dead = with_files(registry, SteppedFiles(die))
    for _ in range(3):
        with registry.catalog.writing() as session:  # a killed ingest leaves this: its row is still running
            session.add(_running())
    try:
        ingest_path(dead, path)
    except Crash:
        assert model_names(registry) == []
    assert ingest_path(registry, path).created
    assert verify_all(registry).faults == []


def _running() -> Ingest:
    present = datetime.now(UTC)
    later = present + timedelta(hours=1)
    return Ingest(source="killed", state="running", started_at=present, lease_expires_at=later)
