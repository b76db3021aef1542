"""`organ extract`, and what `organ assemble` and `organ ingest` say of a folder of organs."""

from __future__ import annotations

from pathlib import Path

import pytest

from organs.registry.digest import digest_of
from tests.cli.in_process import OrganCommand
from tests.small_models import small_model


def test_a_file_is_extracted_without_a_registry(model: Path, tmp_path: Path) -> None:
    nowhere = OrganCommand(tmp_path / "nowhere")
    digest, size = digest_of(small_model()), model.stat().st_size
    ended = nowhere.done("extract", model, "-o", tmp_path / "out")
    assert ended.lines == [
        f"{tmp_path / 'out'}: 10 tensors, {size / 1000:.1f} kB",
        f"  little.gguf: {size / 1000:.1f} kB, sha256:{digest}",
    ]
    assert ended.err == ""
    (item,) = nowhere.done("extract", model, "-o", tmp_path / "a", "--json").values["items"]
    assert item == {
        "directory": str(tmp_path / "a"),
        "tensors": 10,
        "size_bytes": size,
        "files": [{"name": "little.gguf", "size_bytes": size, "sha256": digest}],
    }
    assert nowhere.done("extract", model, "-o", tmp_path / "b", "-q").out == f"{tmp_path / 'b'}\n"
    assert not (tmp_path / "nowhere").exists()


def test_a_model_name_wins_over_a_folder_and_the_current_folder_can_be_assembled(
    filled: OrganCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    filled.done("extract", "little", "-o", "little/")
    filled.done("extract", "little", "-o", "again")
    monkeypatch.chdir("again")
    filled.done("assemble", ".", "-o", tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == small_model()
    assert filled.done("ingest", "--dry-run", "-q", ".").out == "local/little@1\n"


def test_each_model_of_a_folder_gets_its_own_folder_and_a_bad_file_the_status_1(tmp_path: Path) -> None:
    models, out = tmp_path / "models", tmp_path / "out"
    (models / "more").mkdir(parents=True)
    files = {"little": "little.gguf", "little-2": "more/little.gguf", "other": "more/other.gguf"}
    for seed, file in enumerate(files.values()):
        (models / file).write_bytes(small_model(seed=seed))
    (models / "bad.gguf").write_bytes(b"rubbish")
    nowhere = OrganCommand(tmp_path / "nowhere")
    ended = nowhere("extract", models, "-o", out, "-q")
    assert (ended.status, ended.lines) == (1, [str(out / name) for name in files])
    assert "bad.gguf: magic at byte 0" in ended.err
    for name, file in files.items():
        nowhere.done("assemble", out / name, "-o", tmp_path / "back.gguf", "--force")
        assert (tmp_path / "back.gguf").read_bytes() == (models / file).read_bytes()
    again = nowhere("extract", models, "-o", out)
    assert f"{out}/little: already exists; --force replaces it" in again.err
    values = nowhere("extract", models, "-o", out, "--force", "--json").values
    assert [item["directory"] for item in values["items"]] == [str(out / name) for name in files]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("file", "exists, and is not a folder"),
        ("file/out", "exists, and is not a folder"),
        ("organs", "this is an organ directory"),
    ],
)
def test_a_place_that_cannot_take_folders_is_refused_and_stays_unchanged(
    target: str, said: str, organ: OrganCommand, model: Path, tmp_path: Path
) -> None:
    organ.done("extract", model, "-o", tmp_path / "organs")
    (tmp_path / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    ended = organ("extract", model.parent, "-o", tmp_path / target)
    assert (ended.status, ended.out) == (1, "")
    assert said in ended.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_is_assembled_and_planned_like_a_model(organ: OrganCommand, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    organ.done("extract", model, "-o", folder)
    ended = organ.done("assemble", folder, "-o", tmp_path / "x.gguf", "--dry-run")
    assert ended.out.endswith("would be compared with the original file\n")
    (item,) = organ.done("assemble", folder, "-o", folder, "--json").values["items"]
    assert (item["file"], item["proof"]) == (str(folder / "little.gguf"), "identical")
    assert item["sha256"] == digest_of(small_model())
    ended = organ.done("ingest", "--dry-run", folder)
    assert ended.out.startswith(f"{folder}: would be local/out, 10 tensors, ")


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_hostile_names_are_printed_without_control_characters(
    option: list[str], organ: OrganCommand, tmp_path: Path
) -> None:
    path = tmp_path / "\x1b[31m\u202e.gguf"
    path.write_bytes(small_model())
    extracted = organ.done("extract", path, "-o", tmp_path / "a\x1b[2J", *option)
    assembled = organ.done("assemble", tmp_path / "a\x1b[2J", "-o", tmp_path / "b.gguf", *option)
    assert not set(extracted.out + assembled.out + assembled.err) & set("\x1b\u202e")
