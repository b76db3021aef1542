"""Tests of damaged and hostile organ directories: all faults are reported together, and nothing is left."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from organs.ingest.directory import opening
from organs.ingest.directory.manifest import MANIFEST_LIMITS, PADDINGS_MAX, REASONS_MAX, TENSORS_MAX
from organs.ingest.sources import directory_source, open_files
from organs.registry.errors import BadDirectory, BadInput
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand
from tests.ingest.directory_cases import (
    UP,
    UP_NAME,
    change_manifest,
    gguf_bytes_of,
    small_directory,
    write_manifest,
    write_organ,
)
from tests.random_files import BESIDE_FIXTURES
from tests.small_models import row_counts, small_model

Meddle = Callable[[Path], object]
F32 = dtype_by_name("F32")
OUTSIDE = b"a secret outside the folder"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outside.bin").write_bytes(OUTSIDE)
    return small_directory(tmp_path)


def in_tensor(key: str, value: Any) -> Meddle:
    """Set a field of the manifest entry of UP."""

    def change(values: Any) -> None:
        next(entry for entry in values["tensors"] if entry["name"] == UP_NAME)[key] = value

    return lambda folder: change_manifest(folder, change)


def in_file(key: str, value: Any) -> Meddle:
    return lambda folder: change_manifest(folder, lambda values: values["files"][0].update({key: value}))


def at_top(key: str, value: Any) -> Meddle:
    return lambda folder: change_manifest(folder, lambda values: values.update({key: value}))


def in_metadata(number: int, key: str, value: Any) -> Meddle:
    return lambda folder: change_manifest(
        folder, lambda values: values["files"][0]["metadata"][number].update({key: value})
    )


def manifest_bytes(data: bytes) -> Meddle:
    return lambda folder: (folder / "manifest.json").write_bytes(data)


def repeated(folder: Path) -> None:
    change_manifest(folder, lambda values: values["tensors"].append(values["tensors"][0]))


def repeated_entry(folder: Path) -> None:
    change_manifest(folder, lambda values: values["files"][0]["metadata"].append(values["files"][0]["metadata"][0]))


def two_of_one_name(folder: Path) -> None:
    change_manifest(folder, lambda values: values["files"].append(values["files"][0]))


def through_link(folder: Path) -> None:
    (folder / UP).unlink()
    (folder / UP).symlink_to(folder.parent / "outside.bin")


def through_linked_folder(folder: Path) -> None:
    (folder / "organs").rename(folder.parent / "elsewhere")
    (folder / "organs").symlink_to(folder.parent / "elsewhere")


def linked(name: str) -> Meddle:
    def meddle(folder: Path) -> None:
        (folder / name).rename(folder.parent / "real")
        (folder / name).symlink_to(folder.parent / "real")

    return meddle


def fifo(folder: Path) -> None:
    (folder / UP).unlink()
    os.mkfifo(folder / UP)


def a_socket(folder: Path) -> None:
    (folder / UP).unlink()
    here = Path.cwd()
    os.chdir(folder)  # the name of a socket has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(UP)
    os.chdir(here)


def one_byte_less(folder: Path) -> None:
    os.truncate(folder / UP, (folder / UP).stat().st_size - 1)


def another_name_inside(folder: Path) -> None:
    data = (folder / UP).read_bytes()
    (folder / UP).write_bytes(data.replace(b"blk.0.ffn_up.weight", b"blk.9.ffn_up.weight"))


def an_extra_organ(folder: Path) -> None:
    write_organ(folder / "organs" / "blk_7_ffn_up.bin", TensorSpec("blk.7.ffn_up.weight", (4,), F32), bytes(16))


def damaged_header(folder: Path) -> None:
    (folder / "header.bin").write_bytes(b"FUGG" + (folder / "header.bin").read_bytes()[4:])


def short_header(folder: Path) -> None:
    os.truncate(folder / "header.bin", 40)


def longer_header(folder: Path) -> None:
    with (folder / "header.bin").open("ab") as stream:
        stream.write(bytes(64))
    change_manifest(folder, lambda values: values["files"][0]["header"].update(size_bytes=manifest_header(values) + 8))


def manifest_header(values: Any) -> int:
    size: int = values["files"][0]["header"]["size_bytes"]
    return size


def padding_over_an_organ(folder: Path) -> None:
    padding = {"offset_bytes": 2_000, "kept": {"offset_bytes": 0, "size_bytes": 40}}
    in_file("padding", [padding])(folder)


def padding_behind_the_end(folder: Path) -> None:
    padding = {"offset_bytes": 10**9, "kept": {"offset_bytes": 0, "size_bytes": 40}}
    in_file("padding", [padding])(folder)


def huge(folder: Path) -> None:
    os.truncate(folder / "manifest.json", MANIFEST_LIMITS.size_bytes + 1)


CASES: dict[str, tuple[Meddle, str]] = {
    "up": (in_tensor("file", "../outside.bin"), "empty part, . or .."),
    "file of another kind": (in_tensor("file", ["a"]), "file: this is a list; it should be a text"),
    "another name": (in_tensor("name", "blk.9.ffn_up.weight"), "has the name 'blk.0.ffn_up.weight'"),
    "not there": (in_tensor("file", "organs/gone.bin"), "No such file"),
    "dtype unknown": (in_tensor("dtype", "F99"), "tensor type 'F99' is unknown"),
    "size negative": (
        in_tensor("size_bytes", -1),
        "size_bytes: this is the number -1; it should be a whole number from 0",
    ),
    "digest short": (in_tensor("sha256", "abc"), "sha256: not a SHA-256 digest"),
    "no tensors": (at_top("tensors", None), "no tensor map"),
    "too many tensors": (at_top("tensors", [{}] * (TENSORS_MAX + 1)), "at most 65,536 are read"),
    "repeated": (repeated, "appears 2 times in the manifest"),
    "version": (at_top("version", 2), "this program reads version 1"),
    "header file elsewhere": (at_top("header_file", "../x"), "it should be one of header.bin"),
    "no files": (at_top("files", []), "files: the list is empty"),
    "file name up": (in_file("name", "../x.gguf"), "not a plain name of a GGUF"),
    "two of one name": (two_of_one_name, "appears 2 times"),
    "file size short": (in_file("size_bytes", 5_000), "bytes short"),
    "file size long": (in_file("size_bytes", 10**9), "follow the last tensor"),
    "header too long": (in_file("header", {"offset_bytes": 0, "size_bytes": 2**62}), "manifest needs more"),
    "header elsewhere": (in_file("header", {"offset_bytes": 8, "size_bytes": 24}), "magic at byte 0"),
    "too many paddings": (in_file("padding", [{}] * (PADDINGS_MAX + 1)), "at most 65,537 are allowed"),
    "padding over a tensor": (padding_over_an_organ, "overlaps a tensor or other padding"),
    "padding behind the end": (padding_behind_the_end, "the file ends at"),
    "key of a number": (in_metadata(0, "key", 1), "metadata[0].key: this is the number 1; it should be a text"),
    "type unknown": (in_metadata(0, "type", "decimal"), "is not a type of a value"),
    "value that does not fit": (in_metadata(3, "value", 2**32), "out of the range of uint32"),
    "value of another kind": (in_metadata(3, "value", "2"), "not a valid uint32"),
    "key twice": (repeated_entry, "key: it appears twice"),
    "metadata plain and odd": (in_file("metadata", {"a": None}), "not a text, a number"),
    "link": (through_link, "a symbolic link"),
    "linked folder": (through_linked_folder, "Not a directory"),
    "linked manifest": (linked("manifest.json"), "a symbolic link"),
    "linked header": (linked("header.bin"), "a symbolic link"),
    "FIFO": (fifo, "not a regular file"),
    "socket": (a_socket, "not a regular file"),
    "one byte less": (one_byte_less, "takes 16384 bytes, but the file has 16383"),
    "another name inside": (another_name_inside, "has the name 'blk.9.ffn_up.weight'"),
    "extra": (an_extra_organ, "'organs/blk_7_ffn_up.bin' is not in the manifest"),
    "removed": (lambda folder: (folder / UP).unlink(), "No such file"),
    "no header": (lambda folder: (folder / "header.bin").unlink(), "header.bin: No such file"),
    "damaged header": (damaged_header, "magic at byte 0"),
    "short header": (short_header, "manifest needs more"),
    "longer header": (longer_header, "but the manifest states"),
    "an empty object": (manifest_bytes(b"{}"), "no tensor map"),
    "no UTF-8": (manifest_bytes(b'{"a": "\xff"}'), "not UTF-8"),
    "deep JSON": (manifest_bytes(b"[" * 100_000), "nested deeper"),
    "very many values": (manifest_bytes(b'{"tensors": [' + b"{}," * 2_000_000 + b"{}]}"), "bytes of memory; at most"),
    "a key twice": (manifest_bytes(b'{"tensors": [], "tensors": []}'), "is given twice"),
    "huge": (huge, "at most"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_or_damaged_folder_is_refused_and_leaves_nothing(case: str, folder: Path, tmp_path: Path) -> None:
    meddle, message = CASES[case]
    meddle(folder)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput) as caught:
        gguf_bytes_of(folder)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 4_000
    assert OUTSIDE.decode() not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", ["ingest", "ingest --dry-run", "assemble"])
def test_commands_refuse_a_hostile_folder_with_one_line_and_leave_nothing(
    command: str, folder: Path, registry: LocalRegistry, tmp_path: Path
) -> None:
    through_link(folder)
    before = sorted(folder.parent.glob("*"))
    output = ["-o", tmp_path / "o.gguf"] if command == "assemble" else []
    ended = OrganCommand(registry.settings.home)(*command.split(), folder, *output)
    assert (ended.status, ended.out, len(ended.err.splitlines())) == (1, "", 1)
    assert "a symbolic link" in ended.err
    assert sorted(folder.parent.glob("*")) == before
    assert set(row_counts(registry).values()) == {0}


def test_all_faults_are_reported_together(folder: Path) -> None:
    (folder / UP).unlink()
    norm = folder / "norm/output_norm.bin"
    norm.write_bytes(norm.read_bytes() + b"x")
    an_extra_organ(folder)
    short_header(folder)
    with pytest.raises(BadDirectory) as caught:
        gguf_bytes_of(folder)
    assert len(caught.value.errors) == 4
    for word in ("blk_0_ffn_up.bin", "output_norm.bin", "blk_7_ffn_up.bin", "header.bin"):
        assert any(word in fault.detail for fault in caught.value.errors)


def test_a_thousand_faults_are_reported_as_twenty_and_a_count(folder: Path) -> None:
    entries = [{"name": f"t{number}", "file": f"other/t{number}.bin"} for number in range(1_000)]
    write_manifest(folder, {"tensors": entries})
    with pytest.raises(BadDirectory) as caught:
        gguf_bytes_of(folder)
    assert len(caught.value.errors) == REASONS_MAX + 1
    assert caught.value.errors[-1].detail == f"and {1_000 - REASONS_MAX} more"


def test_files_that_are_not_organs_are_ignored(folder: Path) -> None:
    (folder / "README.md").write_text("notes")
    (folder / "organs" / "train.py").write_text("print()")
    (folder / ".DS_Store").write_bytes(b"\0")
    assert len(gguf_bytes_of(folder)) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(data=st.data())
@BESIDE_FIXTURES
def test_a_manifest_with_any_replaced_value_is_read_or_refused(data: st.DataObject, folder: Path) -> None:
    original = (folder / "manifest.json").read_bytes()
    values = json.loads(original)
    place: Any = values
    path = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=5))
    for index, step in enumerate(path):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = keys[step % len(keys)]
        if index == len(path) - 1 or not isinstance(place[key], dict | list):
            place[key] = data.draw(JSON)
            break
        place = place[key]
    write_manifest(folder, values)
    try:
        with ExitStack() as opened:
            for file in open_files(opened, directory_source(folder)):
                file.source.read_at(0, file.source.size_bytes)
    except BadInput:
        event("refused")
    finally:
        (folder / "manifest.json").write_bytes(original)


def test_headers_of_all_files_together_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = small_directory(tmp_path)

    def name_it_thrice(manifest: dict[str, Any]) -> None:
        (file,) = manifest["files"]
        manifest["files"] = [file, *({**file, "name": f"{number}.gguf"} for number in range(2))]

    header_bytes = (folder / "header.bin").stat().st_size
    monkeypatch.setattr(opening, "HEADERS_MAX_BYTES", 2 * header_bytes)
    assert gguf_bytes_of(folder) == [small_model()]
    change_manifest(folder, name_it_thrice)
    with pytest.raises(BadDirectory, match="the headers of all files take more than"):
        gguf_bytes_of(folder)
