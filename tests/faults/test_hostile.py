"""The short forms of the suites of `tests/faults/hostile`, which `make` runs in full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.web.live_server import ROOT

SHORT = [
    pytest.param("room-for-one --shards 3 --megabytes 1 --kills 2", marks=pytest.mark.folder, id="room-for-one"),
    pytest.param("kills --kills 8 --seed 122 --models 2", marks=[pytest.mark.slow, pytest.mark.sqlite], id="kills"),
    pytest.param(
        "kills --families --kills 8 --seed 122 --models 6",
        marks=[pytest.mark.slow, pytest.mark.sqlite],
        id="kills in families",
    ),
    pytest.param(
        "evolve-kills --rounds 1 --trials 5", marks=[pytest.mark.slow, pytest.mark.sqlite], id="kills of evolutions"
    ),
]


@pytest.mark.parametrize("words", SHORT)
def test_a_short_form_finds_no_fault_and_leaves_nothing_behind(words: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.faults.hostile", *words.split(), "--folder", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert ", 0 faults\n" in result.stdout
    assert list(tmp_path.iterdir()) == []
