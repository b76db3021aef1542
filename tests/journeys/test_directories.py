"""Out into a folder of organs and back: identical to the last byte if nothing was touched, a new model if it was."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from organs.ingest.directory.layout import FOLDERS
from organs.ingest.dissect import FREE_TENSORS
from organs.registry.anatomy import place_of
from organs.registry.digest import digest_of
from organs.registry.errors import BadDirectory
from organs.registry.gguf import TensorSpec, ValueType, dtype_by_name
from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand
from tests.gguf_files import array, file_bytes, tensor, text
from tests.ingest.directory_cases import (
    UP,
    UP_NAME,
    change_manifest,
    extract_directory,
    gguf_bytes_of,
    small_directory,
    write_manifest,
    write_organ,
)
from tests.journeys.odd_files import ARCHITECTURE, ODD_FILES
from tests.journeys.test_round_trip import ZOO_FILES
from tests.small_models import block_metadata, block_tensors, row_counts, small_model, tensors_of, weight_tensor


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


@pytest.mark.parametrize("case", ODD_FILES)
def test_any_file_is_extracted_and_assembled_unchanged(case: str, tmp_path: Path) -> None:
    path = tmp_path / "file.gguf"
    path.write_bytes(ODD_FILES[case]())
    extract_directory(path, tmp_path / "taken")
    assert gguf_bytes_of(tmp_path / "taken") == [path.read_bytes()]


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
    assert organ.done("ingest", tmp_path / "taken").out.startswith("local/taken@1: 10 tensors")
    assert organ.done("ingest", *shards).out == "local/taken@1: already registered, nothing added\n"
    organ.done("extract", "taken", "-o", tmp_path / "again")
    assert same_folders(tmp_path / "taken", tmp_path / "again")


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
    assert ended.out.startswith("local/taken@1: 10 tensors, ")
    said = "little.gguf is not the file that the folder was made from: edited tensors: blk.0.ffn_up.weight"
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
    assert flag == f"made from a folder of little.gguf with edited tensors: {UP_NAME}"
    assert flag in organ.done("report", "taken").out
    (tmp_path / "namesake").mkdir()
    (tmp_path / "namesake" / "little.gguf").write_bytes(small_model(seed=3))
    organ.done("ingest", tmp_path / "namesake" / "little.gguf", "--new-version")
    assert parents(organ, "taken") == [edge], "its bytes are meant, not its name"


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
    assert flag == f"made from a folder of {shards[0].name} with edited tensors: {UP_NAME}"


Edit = Callable[[Path], object]


def with_up(shape: tuple[int, ...], dtype: str) -> tuple[str, Edit, bytes]:
    """Return the row of EDITED in which one organ has another shape or type."""
    spec, data = weight_tensor(UP_NAME, shape, 3, dtype)
    expected = [(spec, data) if one.name == UP_NAME else (one, old) for one, old in block_tensors()]
    said = "another type or shape: blk.0.ffn_up.weight"
    return said, lambda folder: write_organ(folder / UP, spec, data), file_bytes(block_metadata(), expected)


GATE = weight_tensor("blk.0.ffn_gate.weight", (64, 128))
TAGS = array("general.tags", ValueType.STRING, [b"trained"])


def exchange_an_organ(folder: Path) -> None:
    def change(values: Any) -> None:
        entries = [entry for entry in values["tensors"] if entry["name"] != UP_NAME]
        values["tensors"] = [*entries, {"name": GATE[0].name, "file": "organs/mine.bin"}]

    (folder / UP).unlink()
    write_organ(folder / "organs" / "mine.bin", *GATE)
    change_manifest(folder, change)


def change_metadata(folder: Path) -> None:
    def change(values: Any) -> None:
        metadata = values["files"][0]["metadata"]
        metadata[1]["value"] = "Mine"
        metadata.append({"key": "general.tags", "type": "array of string", "value": ["trained"]})

    change_manifest(folder, change)


def drop_the_header(folder: Path) -> None:
    (folder / "header.bin").unlink()
    change_manifest(folder, lambda values: values["files"][0].pop("header"))


EDITED: dict[str, tuple[str, Edit, bytes]] = {
    "another type": with_up((64, 128), "F32"),
    "another shape": with_up((64, 64), "F16"),
    "another number of dimensions": with_up((64, 128, 1), "F16"),
    "other tensors": (
        "tensors were added, removed or moved",
        exchange_an_organ,
        file_bytes(block_metadata(), [*(one for one in block_tensors() if one[0].name != UP_NAME), GATE]),
    ),
    "other metadata": (
        "its metadata was changed in the manifest",
        change_metadata,
        file_bytes([*block_metadata("Mine"), TAGS], block_tensors()),
    ),
    "no header": ("the folder has no header", drop_the_header, small_model()),
}
"""What is edited, with the reason of the fresh header, and the file that the folder becomes."""


@pytest.mark.parametrize("case", EDITED)
def test_an_edited_folder_gets_a_fresh_header(case: str, taken: Path, organ: OrganCommand, tmp_path: Path) -> None:
    said, edit, expected = EDITED[case]
    edit(taken)
    ended = organ.done("assemble", taken, "-o", tmp_path / "edited.gguf")
    assert f"the header of little.gguf is rewritten: {said}" in ended.err
    assert (tmp_path / "edited.gguf").read_bytes() == expected
    organ.done("ingest", taken)
    assert organ.done("ingest", tmp_path / "edited.gguf").out.endswith("@1: already registered, nothing added\n")


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


@pytest.mark.parametrize(
    "manifest",
    [{"architecture": "llama", "model": "Theirs"}, {"model": {"architecture": "llama", "name": "Theirs"}}],
)
def test_architecture_and_model_of_other_tools_stand_in_for_missing_metadata(
    manifest: dict[str, Any], tmp_path: Path
) -> None:
    entries = [text("general.architecture", "llama"), text("general.name", "Theirs")]
    assert gguf_bytes_of(foreign(tmp_path / "a", manifest)) == [file_bytes(entries, FOREIGN_TENSORS)]


def grouped_manifests() -> dict[str, dict[str, Any]]:
    """Return manifests that group the tensors by category, or whose paths lead to no file of the folder, by form."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for spec, _ in FOREIGN_TENSORS:
        folder, stem = FOLDERS[place_of(spec.name).type], spec.name.removesuffix(".weight").replace(".", "_")
        groups.setdefault(folder, []).append({"name": spec.name, "file": f"{folder}/{stem}.bin", "z": 33.1})
    files = {folder: [entry["file"].partition("/")[2] for entry in entries] for folder, entries in groups.items()}
    maps = {folder: {entry["name"]: entry["file"] for entry in entries} for folder, entries in groups.items()}
    counted = {folder: {"count": len(entries), "tensors": entries} for folder, entries in groups.items()}
    items = [item for entries in groups.values() for item in entries]
    bare = {item["name"]: item["file"].rpartition("/")[2] for item in items}
    return {
        "lists": groups,
        "names": {folder: [entry["name"] for entry in entries] for folder, entries in groups.items()},
        "files": {"organs": files},
        "maps": {"tensors": maps},
        "categories": {"categories": groups, "skeleton": {"count": 4}},
        "anatomy": {"organs": {"count": 4}, "anatomy": groups},
        "counted": {"tensors": counted},
        "paths": {"tensors": [{"name": item["name"], "path": item["file"]} for item in items]},
        "bare files": {"tensors": [{"file": file} for file in bare.values()]},
        "stems": {"tensors": [{"name": file.removesuffix(".bin")} for file in bare.values()]},
        "no files, renamed": {"tensors": [{"name": name} for name in bare]},
        "only names, renamed": {"tensors": [*bare]},
        "another system, renamed": {"tensors": [{"name": name, "file": f"A\\organs\\{bare[name]}"} for name in bare]},
        "another root, renamed": {"tensors": {name: f"/srv/organs/A/{bare[name]}" for name in bare}},
        "another folder, renamed": {"tensors": {name: f"./organs/A/{bare[name]}" for name in bare}},
    }


GROUPED = grouped_manifests()


@pytest.mark.parametrize("form", GROUPED)
def test_a_manifest_grouped_by_category_is_read(form: str, tmp_path: Path) -> None:
    folder, made, original = small_directory(tmp_path), tmp_path / "made.gguf", tmp_path / "original.gguf"
    (folder / "header.bin").unlink()
    write_manifest(folder, {"version": 1, "metadata": PLAIN, **GROUPED[form]})
    if "renamed" in form:
        (folder / UP).rename(folder / "organs" / "renamed.bin")
    original.write_bytes(small_model())
    (data,) = gguf_bytes_of(folder)
    made.write_bytes(data)
    assert tensors_of(made) == tensors_of(original)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tensors": {"skeleton": {"count": 4}, "norm": {"count": 5}}}, "skeleton lists no tensors: the name or the"),
        ({"tensors": {"embed": ["../../x.bin"]}}, "'../../x.bin': no tensor file has this tensor"),
        (
            {"tensors": [{"name": "output.weight", "file": "/etc/passwd"}]},
            "output.weight: no tensor file has this tensor; its path in the manifest is '/etc/passwd'",
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
    fields: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = small_directory(tmp_path)
    shutil.copy(folder / "embed" / "token_embd.bin", folder / "embed" / "copy.bin")
    write_manifest(folder, {"metadata": PLAIN, **fields})
    with pytest.raises(BadDirectory, match=re.escape(reason)):
        gguf_bytes_of(folder)


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
