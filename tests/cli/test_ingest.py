"""`organ ingest`."""

from __future__ import annotations

import json
import os
import re
from itertools import product
from pathlib import Path

import pytest

from organs.registry.local import LocalRegistry
from tests.card_images import POINTS
from tests.cli.in_process import OrganCommand
from tests.cli.pseudo_terminal import on_a_pseudo_terminal
from tests.client.scripted_server import Answer, ReceivedRequest, scripted_server
from tests.client.test_ranges import part
from tests.small_models import row_counts, small_model, small_shards

FIELDS = {"file", "model", "organs", "new", "error"}


def test_a_model_is_reported_in_one_line_with_the_files_that_are_not_gguf(
    organ: OrganCommand, model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "downloaded"
    folder.mkdir()
    (folder / "UPPER.GGUF").write_bytes(model.read_bytes())
    for name in ("config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        (folder / name).touch()
    ended = organ.done("ingest", folder)
    assert re.fullmatch(r"local/UPPER@1: 10 tensors, .* new, stored in .*\n", ended.out)
    skipped = "skipped 3 files that are not GGUF, 2 of them safetensors. Convert a safetensors model first"
    assert ended.err.startswith(skipped)
    quiet = organ.done("ingest", "--name", "mine/first", "-q", folder)
    assert (quiet.out, quiet.err) == ("mine/first@1\n", "")


def test_the_readme_of_a_folder_is_the_card_of_a_new_model_until_another_is_chosen(
    organ: OrganCommand, model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "downloaded"
    folder.mkdir()
    (folder / "weaver.gguf").write_bytes(model.read_bytes())
    (folder / "README.md").write_text("---\ntags: [yarn]\n---\n# Weaver\n\n|a|b|\n|-|-|\n|1|2|")
    (tmp_path / "other.md").write_text("# Other\n\n![a](a.png) ![b](b.png) ![c](c.png)")
    (tmp_path / "a.png").write_bytes(POINTS)
    (tmp_path / "b.png").write_text("<svg/>")

    def card() -> tuple[str, list[str]]:
        shown = json.loads(organ.done("show", "weaver", "--json").out)
        assert [image["name"] for image in shown["images"]] == ["a.png"] * shown["description"].startswith("# Other")
        return shown["description"][:7], shown["tags"]

    assert f"note: its card is {folder / 'README.md'}" in organ.done("ingest", folder).err
    assert card() == ("# Weave", ["yarn"])
    for _ in ("another card", "the same card again"):
        notes = organ.done("ingest", folder / "weaver.gguf", "--card", tmp_path / "other.md").err
        assert "an image of its card is not shown: c.png: No such file or directory" in notes
        assert "an image of its card is not shown: b.png is no PNG, JPEG, WebP or GIF image" in notes
    organ.done("ingest", folder)
    assert card() == ("# Other", ["yarn"])
    assert "--card is for one model" in organ("ingest", folder, model, "--card", tmp_path / "other.md").err


def test_a_bad_file_is_named_and_the_others_are_ingested(organ: OrganCommand, model: Path, tmp_path: Path) -> None:
    (tmp_path / "a-bad.gguf").write_bytes(b"rubbish")
    ended = organ("ingest", tmp_path / "a-bad.gguf", model)
    assert (ended.status, ended.out.partition(":")[0]) == (1, "local/little@1")
    assert ended.err.startswith(f"organ: {tmp_path / 'a-bad.gguf'}: magic at byte 0")
    ended = organ("ingest", "--json", tmp_path / "a-bad.gguf", model)
    bad, good = map(json.loads, ended.lines)
    assert (ended.status, ended.err) == (1, "")
    assert bad.keys() >= FIELDS
    assert good.keys() >= FIELDS | {"digest", "created", "size_bytes", "stored_bytes", "seconds", "stages", "flags"}
    assert (bad["file"], bad["model"], bad["organs"], bad["new"]) == (str(tmp_path / "a-bad.gguf"), None, None, None)
    assert bad["error"].startswith(f"{tmp_path / 'a-bad.gguf'}: magic at byte 0")
    assert (good["file"], good["model"], good["organs"], good["error"]) == (str(model), "local/little@1", 10, None)


def test_organ_directories_in_subfolders_are_ingested_and_a_bad_one_is_named(
    organ: OrganCommand, model: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    bad = tree / "deep" / "bad"
    bad.mkdir(parents=True)
    (bad / "manifest.json").write_text('{"format": "organ-directory"}')
    organ.done("extract", model, "-o", tree / "deep" / "good")
    (tree / "deep" / "plain.gguf").write_bytes(small_model(seed=1))
    model.write_bytes(small_model(seed=2))
    organ.done("extract", model, "-o", tree / "other")
    ended = organ("ingest", tree, "-q")
    assert (ended.status, ended.lines) == (1, ["local/good@1", "local/plain@1", "local/other@1"])
    assert ended.err.startswith(f"organ: {bad}")


def test_a_dry_run_previews_the_result_and_stores_nothing(
    organ: OrganCommand, model: Path, registry: LocalRegistry, tmp_path: Path
) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"rubbish")
    before = row_counts(registry)
    ended = organ("ingest", "--dry-run", model, tmp_path / "bad.gguf")
    assert ended.status == 1
    assert ended.out == f"{model}: would be local/little, 10 tensors, {model.stat().st_size / 1000:.1f} kB\n"
    assert ended.err.startswith(f"organ: {tmp_path / 'bad.gguf'}: ")
    good, bad = map(json.loads, organ("ingest", "--dry-run", "--json", model, tmp_path / "bad.gguf").lines)
    assert good.keys() & bad.keys() >= FIELDS
    assert (good["model"], good["organs"], good["size_bytes"]) == ("local/little", 10, model.stat().st_size)
    paths = [tmp_path / name for name in small_shards()]
    for path, data in list(zip(paths, small_shards().values(), strict=True))[:3]:
        path.write_bytes(data)
    assert "would be local/m, 3 of 4 shards, " in organ.done("ingest", "--dry-run", paths[0]).out
    assert row_counts(registry) == before
    assert not registry.settings.blobs.exists()


def test_a_dry_run_says_what_an_ingest_would_do_about_a_taken_name(
    filled: OrganCommand, model: Path, stranger: Path
) -> None:
    assert filled.done("ingest", "--dry-run", model).out.endswith(" kB, probably stored already\n")
    for options in ([], ["--json"]):
        assert filled("ingest", "--dry-run", *options, stranger) == filled("ingest", *options, stranger)
    assert "would be local/little@2, " in filled.done("ingest", "--dry-run", "--new-version", stranger).out


def test_every_command_says_what_to_do_about_an_incomplete_model(organ: OrganCommand, tmp_path: Path) -> None:
    name, data = list(small_shards().items())[1]
    (tmp_path / name).write_bytes(data)
    organ.done("ingest", tmp_path / name)
    for arguments in (["show", "m"], ["assemble", "m", "-o", tmp_path / "m.gguf"], ["report", "m"], ["measure", "m"]):
        ended = organ(*arguments)
        said = " ".join((ended.out + ended.err).removeprefix("organ: ").split())
        assert said == (
            "local/m@1 is incomplete: 1 of 4 shards; missing 1, 3, 4 "
            "organ ingest adds the missing shards; organ admin remove MODEL --reason TEXT -y removes the model"
        )


def test_a_hostile_file_name_is_printed_without_control_characters(organ: OrganCommand, tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path / "in") + "/\x1b[31mred\x1b]0;x\x07two\nlines\u202ex\u200b".encode()))
    path = path.with_name(f"{path.name}\udcff.gguf")
    path.parent.mkdir()
    forms: tuple[list[str], ...] = ([], ["--json"], ["-q"], ["--dry-run"], ["--dry-run", "--json"])
    for data, options in product((small_model(), b"rubbish"), forms):
        path.write_bytes(data)
        ended = organ("ingest", path.parent, *options)
        assert ended.status == (1 if data == b"rubbish" else 0)
        for printed in (ended.out, ended.err):
            assert not set(printed) & set("\x1b\x07\u202e\u200b\udcff")
            assert len(printed.splitlines()) <= 1
        if "--json" in options:
            assert os.fsencode(json.loads(ended.out)["file"]) == os.fsencode(path)


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """Another model in a file of the name of the first."""
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "little.gguf"
    path.write_bytes(small_model(blocks=3))
    return path


def test_another_file_under_a_taken_name_is_refused_without_a_terminal(filled: OrganCommand, stranger: Path) -> None:
    ended = filled("ingest", stranger)
    assert (ended.status, ended.out) == (5, "")
    assert ended.err == (
        f"organ: {stranger}: the name local/little is taken by local/little@1, which is another file; give "
        "--new-version to add it as version 2, or --name for another name\n"
    )
    assert filled("ingest", "-q", "--name", "local/other", stranger).out == "local/other@1\n"
    assert filled.done("ingest", "-q", "--new-version", stranger).out == "local/other@1\n", "the same bytes"


@pytest.mark.parametrize(("answer", "added"), [("y", True), ("", False)])
def test_on_a_terminal_the_command_asks_whether_this_is_a_new_version(
    filled: OrganCommand, stranger: Path, answer: str, added: bool
) -> None:
    ended = on_a_pseudo_terminal(filled.home, "ingest", stranger, typed=f"{answer}\n", out_is_piped=True)
    assert "The name local/little is taken by another file, local/little@1." in ended.err
    assert (ended.status, "local/little@2: " in ended.out) == (0 if added else 5, added)


def test_stored_files_are_removed_and_named(organ: OrganCommand, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in small_shards()]
    for path, data in zip(paths, small_shards().values(), strict=True):
        path.write_bytes(data)
    ended = organ.done("ingest", "--delete-after", paths[0])
    assert ended.out.startswith("local/m@1: 19 tensors, ")
    assert [line for line in ended.err.splitlines() if "removed" in line] == [f"  removed: {path}" for path in paths]
    assert not any(path.exists() for path in paths)
    paths[0].write_bytes(small_shards()[paths[0].name])
    again = organ.done("ingest", "--delete-after", "--json", paths[0])
    assert (again.values["created"], again.values["removed"]) == (False, [str(paths[0])])


def test_a_file_that_cannot_be_removed_gives_the_exit_status_1(
    organ: OrganCommand, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("organs.ingest.removal.os.unlink", refuse)
    ended = organ("ingest", "--delete-after", model)
    assert ended.status == 1
    assert ended.out.startswith("local/little@1: 10 tensors, ")
    assert f"organ: {model}: it is stored, but cannot be removed: Permission denied\n" in ended.err
    assert model.exists()


def test_a_model_in_a_hub_is_ingested_shard_by_shard(organ: OrganCommand, tmp_path: Path) -> None:
    shards = small_shards()

    def script(request: ReceivedRequest) -> Answer:
        name = request.path.rpartition("/")[2]
        if "/api/models/big/moe/revision/" in request.path:
            siblings = [{"rfilename": file} for file in shards]
            return Answer(200, json.dumps({"id": "big/moe", "sha": "c" * 40, "siblings": siblings}).encode())
        return part(request, shards[name])

    with scripted_server(script) as server:
        environment = {"HF_ENDPOINT": server.url}
        second = tmp_path / list(shards)[1]
        second.write_bytes(shards[second.name])
        organ.done("ingest", second, "--name", "big/m")
        preview = organ("ingest", "--dry-run", "hf://big/moe", environment=environment)
        assert ": would be big/m, 19 tensors, " in preview.lines[0]
        assert preview.lines[2].startswith(f"  {second.name}: ")
        assert preview.lines[2].endswith(", stored already")
        assert preview.lines[5].startswith("  would fetch 3 of 4 files, ")
        ended = organ("ingest", "hf://big/moe", environment=environment)
        assert ended.out.startswith("big/m@1: 19 tensors, ")
        assert "downloaded" in ended.err
        again = organ("ingest", "hf://big/moe", environment=environment)
        assert again.out == "big/m@1: already registered, nothing added\n"
