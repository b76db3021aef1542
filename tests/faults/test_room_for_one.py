"""Tests of shards that are removed when they are stored: the short form of `python -m tests.faults.room_for_one`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.folder
@pytest.mark.long
def test_kills_lose_no_shard_of_a_set_that_never_is_on_disk_together(tmp_path: Path) -> None:
    small = ("--shards", "4", "--megabytes", "1", "--kills", "3", "--folder", str(tmp_path))
    command = [sys.executable, "-m", "tests.faults.room_for_one", *small]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "nothing lost" in result.stdout
    assert "at most 1 shard on disk" in result.stdout
    assert "4 assembled shards are identical; llama.cpp loads the merged file" in result.stdout
    assert list(tmp_path.iterdir()) == []
