"""Out into a folder of organs and back: identical to the last byte if nothing was touched, a new model if it was."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from organs.ingest.directory.layout import FOLDERS
from organs.ingest.dissect import FREE_TENSORS
from organs.registry.anatomy import place_of
from organs.registry.digest import digest_of
from organs.registry.gguf import TensorSpec, ValueType, dtype_by_name
from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand
from tests.gguf_files import array, file_bytes, tensor, text
from tests.ingest.directory_cases import UP, UP_NAME, change_manifest, manifest_of, write_manifest, write_organ
from tests.journeys.odd_files import ARCHITECTURE, LARGE, ODD_FILES
from tests.journeys.test_round_trip import ZOO_FILES
from tests.small_models import block_metadata, block_tensors, row_counts, small_model, token_array, weight_tensor


@pytest.fixture
def organ(registry: LocalRegistry) -> OrganCommand:
    return OrganCommand(registry.settings.home)


def same_folders(one: Path, other: Path) -> bool:
    """Whether two folders hold the same files with the same bytes."""

    def contents(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    return contents(one) == contents(other)


def there_and_back(organ: OrganCommand, path: Path, folder: Path) -> None:
    """From a file and from the registry, by way of a folder, back to the file."""
    whole = path.read_bytes()
    taken = folder / "taken"
    ended = organ.done("extract", path, "-o", taken)
    assert f"sha256:{digest_of(whole)}" in ended.out
    ended = organ.done("assemble", taken, "-o", folder / "from-folder.gguf")
    assert (folder / "from-folder.gguf").read_bytes() == whole
    assert "the original file, byte for byte" in ended.out
    assert ended.err == ""
    values = json.loads(organ.done("ingest", "--json", taken).out)
    assert (values["model"], values["digest"], values["notes"]) == ("local/taken@1", digest_of(whole), [])
    organ.done("assemble", "taken", "-o", folder / "from-registry.gguf")
    assert (folder / "from-registry.gguf").read_bytes() == whole
    assert organ.done("ingest", path).out == "local/taken@1: already registered, nothing added\n"
    organ.done("extract", "taken", "-o", folder / "again")
    assert same_folders(taken, folder / "again")


@pytest.mark.long
@pytest.mark.parametrize("path", ZOO_FILES, ids=lambda path: path.stem)
def test_every_model_of_the_zoo_is_extracted_and_assembled_unchanged(
    path: Path, organ: OrganCommand, tmp_path: Path
) -> None:
    there_and_back(organ, path, tmp_path)


@pytest.mark.parametrize("case", [case for case in ODD_FILES if case not in LARGE])
def test_any_file_is_extracted_and_assembled_unchanged(case: str, organ: OrganCommand, tmp_path: Path) -> None:
    path = tmp_path / "file.gguf"
    path.write_bytes(ODD_FILES[case]())
    there_and_back(organ, path, tmp_path)


@pytest.mark.slow
def test_the_maximum_number_of_tensors_is_extracted_and_assembled_unchanged(
    organ: OrganCommand, tmp_path: Path
) -> None:
    path = tmp_path / "many.gguf"
    small = [tensor(f"blk.{n}.ffn_up.weight", (9,)) for n in range(FREE_TENSORS)]
    path.write_bytes(file_bytes([ARCHITECTURE], small))
    there_and_back(organ, path, tmp_path)


@pytest.fixture
def shards(organ: OrganCommand, tmp_path: Path) -> list[Path]:
    (tmp_path / "model.gguf").write_bytes(small_model())
    organ.done("ingest", tmp_path / "model.gguf")
    (tmp_path / "shards").mkdir()
    organ.done("assemble", "model", "--shards", "30k", "-o", tmp_path / "shards" / "cut.gguf")
    return sorted((tmp_path / "shards").iterdir())


def test_a_split_set_is_extracted_and_assembled_into_the_same_shards(
    shards: list[Path], organ: OrganCommand, tmp_path: Path
) -> None:
    ended = organ.done("extract", shards[2], "-o", tmp_path / "taken")
    assert len(ended.lines) == 1 + len(shards) > 3
    organ.done("assemble", tmp_path / "taken", "-o", tmp_path / "back")
    assert same_folders(tmp_path / "shards", tmp_path / "back")
    organ.done("assemble", tmp_path / "taken", "-o", tmp_path / "back" / "named.gguf")
    named = sorted((tmp_path / "back").glob("named-*.gguf"))
    assert [path.read_bytes() for path in named] == [path.read_bytes() for path in shards]
    assert organ.done("ingest", tmp_path / "taken").out.startswith("local/taken@1: 10 organs")
    assert organ.done("ingest", *shards).out == "local/taken@1: already registered, nothing added\n"
    organ.done("extract", "taken", "-o", tmp_path / "again")
    assert same_folders(tmp_path / "taken", tmp_path / "again")


def test_a_shard_taken_out_of_the_folder_makes_it_an_incomplete_set(
    shards: list[Path], organ: OrganCommand, tmp_path: Path
) -> None:
    organ.done("extract", shards[0], "-o", tmp_path / "taken")

    def cut(values: Any) -> None:
        gone = len(values["files"]) - 1
        values["files"].pop()
        values["tensors"] = [entry for entry in values["tensors"] if entry["gguf"] != gone]

    last = [entry["file"] for entry in manifest_of(tmp_path / "taken")["tensors"] if entry["gguf"] == len(shards) - 1]
    for name in last:
        (tmp_path / "taken" / name).unlink()
    change_manifest(tmp_path / "taken", cut)
    ended = organ("ingest", tmp_path / "taken")
    assert ended.status == 1
    assert "shards missing" in ended.err


@pytest.fixture
def taken(organ: OrganCommand, tmp_path: Path) -> Path:
    """A little model, registered, and taken apart into a folder."""
    (tmp_path / "little.gguf").write_bytes(small_model())
    organ.done("ingest", tmp_path / "little.gguf")
    organ.done("extract", tmp_path / "little.gguf", "-o", tmp_path / "taken")
    return tmp_path / "taken"


def test_a_trained_organ_makes_another_model_and_is_named(
    taken: OrganCommand, organ: OrganCommand, tmp_path: Path, registry: LocalRegistry
) -> None:
    before = row_counts(registry)
    spec, data = weight_tensor(UP_NAME, (64, 128), seed=7)
    write_organ(taken / UP, spec, data)
    ended = organ.done("ingest", taken)
    assert ended.out.startswith("local/taken@1: 10 organs, ")
    said = "little.gguf is not the file that the folder was made from: edited organs: blk.0.ffn_up.weight"
    found, stated = digest_of(data), digest_of({one.name: old for one, old in block_tensors()}[UP_NAME])
    wrong = f"{UP}: the SHA-256 of its values is {found}, but the manifest states {stated}"
    assert ended.err == f"  note: {said}\n  note: {wrong}\n"
    after = row_counts(registry)
    assert (after["organs"], after["blobs"]) == (before["organs"] + 1, before["blobs"] + 1), "its header is known"
    ended = organ.done("assemble", taken, "-o", tmp_path / "edited.gguf")
    assert ended.out.endswith("is a new file\n")
    assert ended.err == f"  note: {said}\n  note: {wrong}\n"
    expected = [(spec, data) if one.name == UP_NAME else (one, old) for one, old in block_tensors()]
    assert (tmp_path / "edited.gguf").read_bytes() == file_bytes(block_metadata(), expected)
    organ.done("assemble", "taken", "-o", tmp_path / "registered.gguf")
    assert (tmp_path / "registered.gguf").read_bytes() == (tmp_path / "edited.gguf").read_bytes()


def test_a_digest_that_does_not_match_is_reported_where_the_manifest_states_no_digest_of_the_whole(
    taken: Path, organ: OrganCommand
) -> None:
    manifest = json.loads((taken / "manifest.json").read_text())
    entry = next(one for one in manifest["tensors"] if one["name"] == UP_NAME)
    stated, entry["sha256"] = entry["sha256"], "0" * 64
    for file in manifest["files"]:
        del file["sha256"]
    (taken / "manifest.json").write_text(json.dumps(manifest))
    ended = organ.done("ingest", taken)
    assert f"note: {UP}: the SHA-256 of its values is {stated}, but the manifest states {'0' * 64}" in ended.err


def parents(organ: OrganCommand, model: str) -> list[tuple[str, str, str, str]]:
    """The recorded parents of a model: their names and texts, relations, evidence."""
    edges = organ.done("show", model, "--json").values["lineage"]
    return [
        (edge["model"], edge["text"], edge["relation"], edge["evidence"])
        for edge in edges
        if edge["direction"] == "parent"
    ]


def test_a_model_of_edited_organs_is_a_child_of_the_extracted_model(
    taken: Path, organ: OrganCommand, tmp_path: Path
) -> None:
    write_organ(taken / UP, *weight_tensor(UP_NAME, (64, 128), seed=7))
    organ.done("ingest", taken)
    edge = ("local/little@1", "little.gguf", "grafted", "recorded")
    assert parents(organ, "taken") == [edge]
    (flag,) = organ.done("show", "taken", "--json").values["flags"]
    assert flag == f"made from a folder of little.gguf with edited organs: {UP_NAME}"
    assert flag in organ.done("report", "taken").out
    (tmp_path / "namesake").mkdir()
    (tmp_path / "namesake" / "little.gguf").write_bytes(small_model(seed=3))
    organ.done("ingest", tmp_path / "namesake" / "little.gguf", "--new-version")
    assert parents(organ, "taken") == [edge], "its bytes are meant, not its name"
    organ.done("extract", "taken", "-o", tmp_path / "same")
    organ.done("ingest", tmp_path / "same", "--name", "mine/same")
    assert parents(organ, "mine/same") == [], "a folder that was not edited is no child"


def test_an_edited_folder_is_a_child_only_of_what_is_registered(
    shards: list[Path], taken: Path, organ: OrganCommand, tmp_path: Path
) -> None:
    change_manifest(taken, lambda values: values["files"][0]["metadata"][1].update(value="Mine"))
    organ.done("ingest", taken, "--name", "edited")
    assert parents(organ, "edited") == [("local/model@1", "little.gguf", "relative", "recorded")], "the same bytes"
    flags = organ.done("show", "edited", "--json").values["flags"]
    assert flags == ["made from a folder of little.gguf that was edited"]
    organ.done("extract", shards[0], "-o", tmp_path / "cut")
    write_organ(tmp_path / "cut" / UP, *weight_tensor(UP_NAME, (64, 128), seed=7))
    organ.done("ingest", tmp_path / "cut", "--name", "orphan")
    assert parents(organ, "orphan") == []
    (flag,) = organ.done("show", "orphan", "--json").values["flags"]
    assert flag == f"made from a folder of {shards[0].name} with edited organs: {UP_NAME}"
    organ.done("ingest", shards[0], "--name", "local/cut")
    write_organ(tmp_path / "cut" / UP, *weight_tensor(UP_NAME, (64, 128), seed=8))
    organ.done("ingest", tmp_path / "cut", "--name", "child")
    assert parents(organ, "child") == [("local/cut@1", shards[0].name, "grafted", "recorded")]


@pytest.mark.parametrize(("dtype", "shape"), [("F32", (64, 128)), ("F16", (64, 64)), ("F16", (64, 128, 1))])
def test_an_organ_of_another_type_or_shape_gets_a_fresh_header(
    dtype: str, shape: tuple[int, ...], taken: Path, organ: OrganCommand, tmp_path: Path
) -> None:
    spec, data = weight_tensor(UP_NAME, shape, 3, dtype)
    write_organ(taken / UP, spec, data)
    ended = organ.done("ingest", taken)
    assert "the header of little.gguf is rewritten: another type or shape: blk.0.ffn_up.weight" in ended.err
    ended = organ.done("assemble", taken, "-o", tmp_path / "edited.gguf")
    expected = [(spec, data) if one.name == UP_NAME else (one, old) for one, old in block_tensors()]
    assert (tmp_path / "edited.gguf").read_bytes() == file_bytes(block_metadata(), expected)
    assert organ.done("ingest", tmp_path / "edited.gguf").out == "local/taken@1: already registered, nothing added\n"


def test_a_removed_or_added_organ_makes_a_fresh_header(taken: Path, organ: OrganCommand, tmp_path: Path) -> None:
    (taken / UP).unlink()
    spec, data = weight_tensor("blk.0.ffn_gate.weight", (64, 128))
    write_organ(taken / "organs" / "mine.bin", spec, data)

    def change(values: Any) -> None:
        entries = [entry for entry in values["tensors"] if entry["name"] != UP_NAME]
        values["tensors"] = [*entries, {"name": spec.name, "file": "organs/mine.bin"}]

    change_manifest(taken, change)
    assert "tensors were added, removed or moved" in organ.done("ingest", taken).err
    organ.done("assemble", taken, "-o", tmp_path / "edited.gguf")
    kept = [(one, old) for one, old in block_tensors() if one.name != UP_NAME]
    assert (tmp_path / "edited.gguf").read_bytes() == file_bytes(block_metadata(), [*kept, (spec, data)])


def test_changed_metadata_of_the_manifest_are_written(taken: Path, organ: OrganCommand, tmp_path: Path) -> None:
    def change(values: Any) -> None:
        metadata = values["files"][0]["metadata"]
        metadata[1]["value"] = "Mine"
        metadata.append({"key": "general.tags", "type": "array of string", "value": ["trained"]})

    change_manifest(taken, change)
    assert "its metadata was changed in the manifest" in organ.done("ingest", taken).err
    organ.done("assemble", taken, "-o", tmp_path / "edited.gguf")
    entries = [*block_metadata("Mine"), array("general.tags", ValueType.STRING, [b"trained"])]
    assert (tmp_path / "edited.gguf").read_bytes() == file_bytes(entries, block_tensors())


def test_a_missing_header_is_made_from_the_metadata_of_the_manifest(
    taken: Path, organ: OrganCommand, tmp_path: Path
) -> None:
    (taken / "header.bin").unlink()
    change_manifest(taken, lambda values: values["files"][0].pop("header"))
    ended = organ.done("assemble", taken, "-o", tmp_path / "fresh.gguf")
    assert "rewritten: the folder has no header" in ended.err
    assert (tmp_path / "fresh.gguf").read_bytes() == small_model(), "our own writer made the original"
    assert "the original file" in ended.out


def test_the_digest_in_a_manifest_is_not_trusted(taken: Path, organ: OrganCommand) -> None:
    change_manifest(taken, lambda values: values["files"][0].update(sha256="0" * 64))
    ended = organ.done("ingest", taken)
    assert ended.out == "local/little@1: already registered, nothing added\n"
    assert "is not the file that the folder was made from: the folder was edited" in ended.err


FOREIGN_TENSORS = block_tensors()


def foreign(folder: Path, manifest: dict[str, Any], key: str = "tensors", form: str = "list") -> Path:
    """A folder as other tools write it: organ files, and a manifest without header bytes."""
    entries: list[dict[str, Any]] = []
    for number, (spec, data) in enumerate(FOREIGN_TENSORS):
        file = f"organs/t{number}.bin"
        write_organ(folder / file, spec, data)
        entries.append({"name": spec.name, "file": file, "dtype": 1, "shape": "?", "z": {"theta": 33.1}, "size": None})
    forms: dict[str, Any] = {
        "list": entries,
        "object": {entry["name"]: {**entry, "name": None} | {"name": entry["name"]} for entry in entries},
        "names": {entry["name"]: entry["file"] for entry in entries},
    }
    write_manifest(folder, {**manifest, key: forms[form], "z_measures": {"mean": 33.0}, "version": "v5"})
    return folder


PLAIN = {
    "general.architecture": "llama",
    "general.name": "Little",
    "general.license": "apache-2.0",
    "llama.block_count": 2,
}


@pytest.mark.parametrize(
    ("manifest", "key", "form"),
    [
        ({"metadata": PLAIN}, "tensors", "list"),
        ({"metadata": PLAIN, "architecture": "other"}, "tensor_map", "object"),
        ({"metadata": PLAIN, "model": {"name": "other"}}, "organs", "names"),
        ({"metadata": PLAIN | {"odd": None}, "files": 7}, "tensors", "list"),
    ],
)
def test_a_manifest_of_other_tools_gets_a_fresh_header(
    manifest: dict[str, Any], key: str, form: str, organ: OrganCommand, tmp_path: Path
) -> None:
    folder = foreign(tmp_path / "foreign", manifest, key, form)
    ended = organ.done("assemble", folder, "-o", tmp_path / "made.gguf")
    assert (tmp_path / "made.gguf").read_bytes() == small_model()
    assert "the header of foreign.gguf is rewritten: the folder has no header" in ended.err
    assert ("omitted: metadata 'odd'" in ended.err) == ("odd" in manifest["metadata"])
    assert organ.done("ingest", folder).out.startswith("local/foreign@1: 10 organs")
    reader = gguf.GGUFReader(tmp_path / "made.gguf")
    assert [str(one.name) for one in reader.tensors] == [spec.name for spec, _ in FOREIGN_TENSORS]


def test_architecture_and_model_of_other_tools_stand_in_for_missing_metadata(
    organ: OrganCommand, tmp_path: Path
) -> None:
    foreign(tmp_path / "a", {"architecture": "llama", "model": "Theirs"})
    foreign(tmp_path / "b", {"model": {"architecture": "llama", "name": "Theirs"}})
    for name in ("a", "b"):
        organ.done("assemble", tmp_path / name, "-o", tmp_path / f"{name}.gguf")
    expected = file_bytes([text("general.architecture", "llama"), text("general.name", "Theirs")], FOREIGN_TENSORS)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes() == expected


def by_category(form: str) -> dict[str, Any]:
    """Return the fields of a manifest that groups the tensors by category, in one of the forms of the original."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for spec, _ in FOREIGN_TENSORS:
        folder, stem = FOLDERS[place_of(spec.name).type], spec.name.removesuffix(".weight").replace(".", "_")
        groups.setdefault(folder, []).append({"name": spec.name, "file": f"{folder}/{stem}.bin", "z": 33.1})
    names = {folder: [entry["name"] for entry in entries] for folder, entries in groups.items()}
    files = {folder: [entry["file"].partition("/")[2] for entry in entries] for folder, entries in groups.items()}
    maps = {folder: {entry["name"]: entry["file"] for entry in entries} for folder, entries in groups.items()}
    return {
        "lists": groups,
        "names": names,
        "files": {"organs": files},
        "maps": {"tensors": maps},
        "categories": {"categories": groups, "skeleton": {"count": 4}},
        "anatomy": {"organs": {"count": 4}, "anatomy": groups},
        "paths": {"tensors": [{"name": item["name"], "path": item["file"]} for own in groups.values() for item in own]},
        "counted": {"tensors": {key: {"count": len(group), "tensors": group} for key, group in groups.items()}},
        **without_paths([item for own in groups.values() for item in own]),
    }[form]


def without_paths(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return manifests whose paths lead to no file of the folder, by form."""
    return {
        "no files": {"tensors": [{"name": item["name"]} for item in entries]},
        "only names": {"tensors": [item["name"] for item in entries]},
        "another system": {"tensors": [item | {"file": "A\\" + item["file"].replace("/", "\\")} for item in entries]},
        "another root": {"tensors": {item["name"]: f"/srv/organs/A/{item['file']}" for item in entries}},
        "another folder": {"tensors": {item["name"]: f"./organs/A/{item['file']}" for item in entries}},
        "bare files": {"tensors": [{"file": item["file"].rpartition("/")[2]} for item in entries]},
        "stems": {"tensors": [{"name": item["file"].rpartition("/")[2].removesuffix(".bin")} for item in entries]},
    }


FORMS = ("lists", "names", "files", "maps", "categories", "anatomy", "paths", "counted", *without_paths([]))


@pytest.mark.parametrize("form", FORMS)
def test_a_manifest_grouped_by_category_is_read(form: str, organ: OrganCommand, tmp_path: Path) -> None:
    (tmp_path / "little.gguf").write_bytes(small_model())
    folder = tmp_path / "grouped"
    organ.done("extract", tmp_path / "little.gguf", "-o", folder)
    (folder / "header.bin").unlink()
    write_manifest(folder, {"version": 1, "metadata": PLAIN, **by_category(form)})
    if form in ("no files", "only names", "another system", "another root", "another folder"):
        (folder / "organs" / "blk_0_ffn_up.bin").rename(folder / "organs" / "renamed.bin")
    organ.done("assemble", folder, "-o", tmp_path / "made.gguf")
    made, original = gguf.GGUFReader(tmp_path / "made.gguf"), gguf.GGUFReader(tmp_path / "little.gguf")
    tensors = [{str(one.name): bytes(one.data) for one in reader.tensors} for reader in (made, original)]
    assert tensors[0] == tensors[1]
    assert organ.done("ingest", folder).out.startswith("local/grouped@1: 10 organs")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tensors": {"skeleton": {"count": 4}, "norm": {"count": 5}}}, "skeleton lists no tensors: the name or the"),
        ({"tensors": {"embed": ["../../x.bin"]}}, "'../../x.bin': no organ file has this tensor"),
        (
            {"tensors": [{"name": "output.weight", "file": "/etc/passwd"}]},
            "output.weight: no organ file has this tensor; its path in the manifest is '/etc/passwd'",
        ),
        (
            {"tensors": ["token_embd.weight"]},
            "token_embd.weight: embed/copy.bin and embed/token_embd.bin have this tensor, and the manifest does not",
        ),
        ({"tensors": {"embed": [7]}}, "embed[0]: it is neither an object, nor the name or the file"),
        ({"skeleton": [{"dtype": 1}]}, "skeleton[0]: it has neither a name nor a file"),
        ({"embed": ["token_embd.weight", "token_embd.weight"]}, "'token_embd.weight' appears 2 times"),
        ({"embed": ["token_embd.bin", "copy.bin"]}, "has the name 'token_embd.weight', as another file"),
        ({"skeleton": {"count": 4}}, "has no tensor map"),
        ({"organs": {"count": 4}}, "has no tensor map"),
        ({"embed": ["token_embd.weight"]}, "'norm/output_norm.bin' is not in the manifest"),
    ],
)
def test_a_grouped_manifest_that_lacks_something_is_refused_with_the_reason(
    fields: dict[str, Any], reason: str, organ: OrganCommand, tmp_path: Path
) -> None:
    (tmp_path / "little.gguf").write_bytes(small_model())
    folder = tmp_path / "grouped"
    organ.done("extract", tmp_path / "little.gguf", "-o", folder)
    shutil.copy(folder / "embed" / "token_embd.bin", folder / "embed" / "copy.bin")
    write_manifest(folder, {"metadata": PLAIN, **fields})
    ended = organ("assemble", folder, "-o", tmp_path / "made.gguf")
    assert (ended.status, ended.out) == (1, "")
    assert reason in ended.err
    assert not (tmp_path / "made.gguf").exists()


def test_a_manifest_of_other_tools_without_an_architecture_is_noted(organ: OrganCommand, tmp_path: Path) -> None:
    folder = foreign(tmp_path / "foreign", {})
    assert "has no general.architecture" in organ.done("assemble", folder, "-o", tmp_path / "made.gguf").err


def test_the_reference_reads_the_output_of_a_script(organ: OrganCommand, tmp_path: Path) -> None:
    values = np.arange(64, dtype=np.float32).reshape(2, 32)
    write_organ(
        tmp_path / "mine/embed/a.bin", TensorSpec("token_embd.weight", (32, 2), dtype_by_name("F32")), values.tobytes()
    )
    metadata = {"general.architecture": "llama", "general.alignment": 128, "llama.rope.freq_base": 10_000, "x": [1, 2]}
    tensors = [{"name": "token_embd.weight", "file": "embed/a.bin"}]
    write_manifest(
        tmp_path / "mine", {"format": "organ-directory", "version": 1, "metadata": metadata, "tensors": tensors}
    )
    organ.done("assemble", tmp_path / "mine", "-o", tmp_path / "mine.gguf")
    reader = gguf.GGUFReader(tmp_path / "mine.gguf")
    assert {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")} == metadata
    assert reader.tensors[0].data.reshape(2, 32).tolist() == values.tolist()
    assert reader.fields["llama.rope.freq_base"].types[0] is gguf.GGUFValueType.FLOAT32


def test_a_tree_of_folders_and_files_is_ingested_completely(taken: Path, organ: OrganCommand, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    shutil.move(taken, tree / "one")
    foreign(tree / "deep" / "two", {"metadata": PLAIN | {"general.name": "Two"}})
    (tree / "three.gguf").write_bytes(small_model(seed=3))
    (tree / "bad").mkdir()
    (tree / "bad" / "manifest.json").write_text('{"format": "organ-directory", "version": 9}')
    ended = organ("ingest", "-q", tree)
    assert ended.status == 1
    assert sorted(ended.lines) == ["local/little@1", "local/three@1", "local/two@1"]
    assert "this program reads version 1" in ended.err


@pytest.mark.folder
def test_a_registered_organ_that_is_corrupt_is_not_extracted(
    organ: OrganCommand, registry: LocalRegistry, tmp_path: Path
) -> None:
    data = file_bytes([ARCHITECTURE], [weight_tensor(f"blk.{block}.ffn_up.weight", (256, 200)) for block in range(3)])
    (tmp_path / "large.gguf").write_bytes(data)
    organ.done("ingest", tmp_path / "large.gguf")
    path = max(registry.settings.blobs.glob("??/*"), key=lambda found: found.stat().st_size)
    path.chmod(0o644)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    ended = organ("extract", "large", "-o", tmp_path / "out")
    assert (ended.status, ended.out) == (7, "")
    assert ended.err.startswith("organ: corrupt blob of blk.")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "large.gguf"]


def test_a_vocabulary_that_crashes_loaders_is_not_assembled_from_a_folder(organ: OrganCommand, tmp_path: Path) -> None:
    tokens = [token_array([b"a", b"<0x-1>"]), array("tokenizer.ggml.token_type", ValueType.INT32, [1, 6])]
    (tmp_path / "bad.gguf").write_bytes(file_bytes([ARCHITECTURE, *tokens], [tensor("a")]))
    organ.done("extract", tmp_path / "bad.gguf", "-o", tmp_path / "bad")
    ended = organ("assemble", tmp_path / "bad", "-o", tmp_path / "out.gguf")
    assert ended.status == 5
    assert "cannot be assembled" in ended.err
    organ.done("ingest", tmp_path / "bad")
    assert organ("extract", "bad", "-o", tmp_path / "again").status == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "bad.gguf", "home"]
