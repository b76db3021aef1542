"""Tests of the scripts in `examples/`, run as a newcomer runs them; their output agrees with the facts of the zoo."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from organs.registry import LocalRegistry

pytestmark = [pytest.mark.long, pytest.mark.sqlite]  # an example that is given a folder opens an SQLite database in it

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LINES_MAX = 60


def run(name: str, *arguments: Path, folder: Path) -> str:
    """Return the output of an example; `folder` is its temporary folder, which it leaves empty."""
    folder.mkdir()
    place = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "TMPDIR": str(folder)}
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, env=place, cwd=folder.parent, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(folder.iterdir()) == []
    return done.stdout


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder of a new registry, into which the first example ingests the zoo, and its output."""
    folder = tmp_path_factory.mktemp("examples")
    return folder / "home", run("find_and_rank.py", folder / "home", folder=folder / "temporary")


@pytest.fixture
def home(ranked: tuple[Path, str]) -> Path:
    return ranked[0]


def test_find_and_rank_ingests_the_zoo_into_an_empty_registry(ranked: tuple[Path, str]) -> None:
    printed = ranked[1].splitlines()
    angles = [float(line.split("°")[0]) for line in printed[1:6]]
    assert angles == sorted(angles, reverse=True)
    assert all(35 < angle < 40 for angle in angles)
    assert "Tensors by type: {'skeleton': 144, 'organ': 108, 'norm': 81, 'adapter': 56, 'embed': 10}" in printed
    begin = next(number for number, line in enumerate(printed) if line.startswith("Most similar to "))
    alike = [float(line.split()[0]) for line in printed[begin + 1 : begin + 6]]
    assert (alike[0], alike) == (1.0, sorted(alike, reverse=True))


def test_compose_a_chimera_accepts_a_warning_and_makes_the_same_file_twice(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.gguf"
    printed = run("compose_a_chimera.py", home, file, folder=tmp_path / "temporary")
    assert "With the fine-tune: can be made\nWith an unrelated model: cannot be made yet\n" in printed
    assert re.search(r"^  warn   unrelated-lineage ", printed, re.MULTILINE)
    assert "\n('unrelated-lineage',) " in printed
    assert "\nThe same lock and the same bytes: True\n" in printed
    assert "local/Zoo-B-2M-v1.0-Q8_0@1" in printed.splitlines()[-1]
    with LocalRegistry.open(home) as registry:
        chimera = registry.model("two-donors")
        assert f"Made local/two-donors@1, sha256:{registry.assemble(chimera.name, tmp_path / 'again.gguf')}" in printed
    assert file.read_bytes() == (tmp_path / "again.gguf").read_bytes()


def test_a_chimera_by_query_prints_the_measures_before_and_after(home: Path, tmp_path: Path) -> None:
    printed = run("chimera_by_query.py", home, folder=tmp_path / "temporary")
    assert printed.startswith("base: Zoo-A-2M-v1.0-F16\nname: by-query\ngrafts:\n")
    lines = re.findall(r"^  θ +([\d.]+)° -> +([\d.]+)°  (\S+) +(.+)$", printed, re.MULTILINE)
    assert len(lines) == 14
    assert ("blk.0.ffn_up.weight", "grafted, adapter") in {(name, act) for _, _, name, act in lines}
    with LocalRegistry.open(home) as registry:
        before, after = registry.model("Zoo-A-2M-v1.0-F16"), registry.model("by-query")
        for first, then, name, _ in lines:
            assert (first, then) == tuple(f"{model.organ(name).theta or 0:.1f}" for model in (before, after))


def test_the_examples_are_short() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    assert len(lengths) >= 4
    assert {name: length for name, length in lengths.items() if length >= LINES_MAX} == {}
