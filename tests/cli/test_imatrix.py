"""`organ imatrix`."""

from __future__ import annotations

from pathlib import Path

import pytest

from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand
from tests.small_models import ingest_file
from tests.validation.changed_models import A


@pytest.fixture
def organ(tmp_path: Path) -> OrganCommand:
    with LocalRegistry.open(tmp_path / "home") as registry:
        ingest_file(registry, A, "me/zoo")
    return OrganCommand(tmp_path / "home")


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text("\n".join(f"The file {number} is opened for reading if it exists." for number in range(60)))
    return path


def test_the_matrix_of_a_registered_model_is_registered_with_its_model(
    organ: OrganCommand, notes: Path, tmp_path: Path
) -> None:
    ended = organ.done("imatrix", "me/zoo", "--text", notes, "-o", tmp_path / "i.gguf")
    assert ended.lines[0].startswith("The inputs of 29 weights of me/zoo@1, over ")
    assert ended.lines[-1] == "local/zoo-imatrix@1: registered"
    assert "chunks of 256 tokens: about " in ended.err
    shown = organ.done("show", "zoo-imatrix", "--json").values
    assert (shown["kind"], shown["title"]) == ("imatrix", "zoo importance matrix")
    assert [(edge["model"], edge["relation"]) for edge in shown["lineage"]] == [("me/zoo@1", "relative")]
    assert (tmp_path / "i.gguf").is_file()


def test_the_matrix_of_a_file_is_written_or_registered_under_a_name(
    organ: OrganCommand, notes: Path, tmp_path: Path
) -> None:
    target = tmp_path / "i.gguf"
    values = organ.done("imatrix", A, "--text", notes, "--minutes", 1, "-o", target, "--json").values
    assert (values["file"], values["model"], values["texts"]) == (str(target), None, ["notes"])
    assert values["size_bytes"] == target.stat().st_size
    assert organ("imatrix", A, "--text", notes, "-o", target).status == 1
    assert organ.done("imatrix", A, "--text", notes, "--name", "me/inputs", "-q").lines == ["me/inputs@1"]
