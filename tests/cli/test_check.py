"""`organ check`: will llama.cpp load these files?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.checks import ZOO, Whole
from tests.cli.in_process import OrganCommand
from tests.cli.test_scan import EMPTY
from tests.gguf_files import text
from tests.ingest.tool_layouts import ollama_layer, ollama_manifest

SOUND = ZOO / "Zoo-A-2M-v1.0-F16.gguf"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with a sound model, one with a remark, one that does not load, and one that is no model."""
    folder = tmp_path / "files"
    folder.mkdir()
    data = SOUND.read_bytes()
    (folder / "cut.gguf").write_bytes(data[:100_000])
    (folder / "remark.gguf").write_bytes(Whole.of(SOUND).variant([text("tokenizer.chat_template", "{{ broken ")]))
    (folder / "sound.gguf").write_bytes(data)
    (folder / "vector.gguf").write_bytes(
        Whole.of(SOUND).variant([text("general.architecture", "controlvector")], tensors=lambda _: None)
    )
    return folder


def test_each_file_has_a_line_and_its_findings_without_a_registry(files: Path, tmp_path: Path) -> None:
    (tmp_path / "in the way").write_text("a file")
    organ = OrganCommand(tmp_path / "in the way" / "home")
    ended = organ("check", files)
    assert (ended.status, ended.err) == (1, "")
    firsts = {
        line.split(": ", 1)[0].rpartition("/")[2]: line.split(": ", 1)[1] for line in ended.lines if line[0] != " "
    }
    assert firsts == {
        "cut.gguf": "does not load: truncated",
        "remark.gguf": "loads, with remarks",
        "sound.gguf": "loads",
        "vector.gguf": "no language model, but of the kind control-vector",
    }
    words = " ".join(ended.out.split())
    assert "refuse truncated: " in words
    assert "4000320 bytes short: 4100320 are announced mend: fetch it again: hf download REPOSITORY cut.gguf" in words
    assert "warn template-broken: the chat template cannot be read: unexpected end of template" in words
    ended = OrganCommand(tmp_path / "home")("check", "tinny", "sha256:12345678")
    assert (ended.status, ended.out.count("nothing to check: no such file or folder")) == (1, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["files", "in the way"]


def test_registered_models_and_models_of_tools_are_checked_by_their_names(
    organ: OrganCommand, files: Path, tmp_path: Path
) -> None:
    ollama = tmp_path / "user" / ".ollama" / "models"
    layers = [ollama_layer(ollama, "model", (files / f"{name}.gguf").read_bytes()) for name in ("remark", "cut")]
    for name, layer in zip(("tiny", "cut"), layers, strict=True):
        ollama_manifest(ollama, f"registry.ollama.ai/library/{name}/latest", layer)
    place = EMPTY | {"HOME": str(tmp_path / "user")}
    assert organ("ingest", "--ollama", environment=place).status == 1
    ended = organ("check", "tiny", "library/tinny", files / "sound.gguf", environment=place)
    assert (ended.status, [line for line in ended.lines if line[0] != " "]) == (
        1,
        ["library/tiny@1: loads, with remarks", f"{files / 'sound.gguf'}: loads"],
    )
    assert ended.err == (
        "organ: library/tinny: no such file or folder, and no model is registered as library/tinny; did you mean "
        "library/tiny?\n"
    )
    of_tool = organ("check", "--ollama", "--json", environment=place)
    found = {one["name"]: one for one in map(json.loads, of_tool.lines)}
    assert {name: one["loads"] for name, one in found.items()} == {"library/tiny": True, "library/cut": False}
    (stored,) = map(json.loads, organ("check", "--json", "tiny").lines)
    assert stored["findings"] == found["library/tiny"]["findings"]
    assert organ("check", "--lmstudio", environment=place).status == 1


def test_the_status_is_0_if_all_files_load(organ: OrganCommand, files: Path) -> None:
    assert organ("check", files / "sound.gguf", files / "remark.gguf").status == 0
    ended = organ("check", "-q", files / "sound.gguf", files / "cut.gguf", files / "remark.gguf")
    assert (ended.status, ended.lines) == (1, [f"{files / 'cut.gguf'}: does not load: truncated"])
    ended = organ("check", files / "nothing.gguf", files / "sound.gguf", files)
    assert (ended.status, ended.lines[0]) == (1, f"{files / 'nothing.gguf'}: does not load: unreadable")
    assert sum(line.endswith("sound.gguf: loads") for line in ended.lines) == 1


def test_programs_get_a_line_of_json_for_each_model(organ: OrganCommand, files: Path) -> None:
    lines = [json.loads(line) for line in organ("check", "--json", files).lines]
    assert [(line["loads"], line["kind"]) for line in lines] == [
        (False, "model"),
        (True, "model"),
        (True, "model"),
        (True, "control-vector"),
    ]
    (finding,) = lines[1]["findings"]
    assert (finding["severity"], finding["code"]) == ("warn", "template-broken")
    assert finding["mend"].startswith("a recipe with metadata: {tokenizer.chat_template: TEXT}")


def test_without_the_weights_their_values_are_not_tested(organ: OrganCommand, tmp_path: Path) -> None:
    zoo = Whole.of(SOUND)
    name = "blk.1.ffn_down.weight"
    size = next(tensor.size_bytes for tensor in zoo.header.tensors if tensor.name == name)
    (tmp_path / "nan.gguf").write_bytes(zoo.variant(values={name: b"\xff\x7f" * (size // 2)}))
    assert organ.done("check", "--quick", tmp_path / "nan.gguf").lines == [f"{tmp_path / 'nan.gguf'}: loads"]
    assert "non-finite-weights" in organ.done("check", tmp_path / "nan.gguf").out
