"""Tests of organ directories: names, files of tensors, and the writing of the folder."""

from __future__ import annotations

import errno
import gc
import os
import struct
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from organs.ingest.directory.layout import (
    HEAD_MAX_BYTES,
    encode_head,
    organ_files,
    parse_head,
    path_segments,
    safe_file_name,
)
from organs.ingest.directory.opening import OPEN_FILES_MAX, Folder, VirtualFile, is_organ_directory, open_directory
from organs.ingest.sources import directory_source, open_files
from organs.ingest.transplant import place_virtual
from organs.registry.digest import digest_of
from organs.registry.errors import BadSource, StoreError
from organs.registry.gguf import TensorSpec, dtype_by_name
from tests.faults.failing import failing_once
from tests.gguf_files import file_bytes, tensor, text
from tests.ingest.directory_cases import UP, UP_NAME, extract_directory, gguf_bytes_of, manifest_of, small_directory
from tests.random_files import PATIENT
from tests.small_models import small_model

F32 = dtype_by_name("F32")
NAMES = st.lists(st.text("abAB._-/\\:.conCON0 *weight", min_size=1, max_size=63), unique=True, max_size=30)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return small_directory(tmp_path)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("blk.0.ffn_gate.weight", "organs/blk_0_ffn_gate.bin"),
        ("blk.0.attn_q.bias", "skeleton/blk_0_attn_q_bias.bin"),
        ("token_embd.weight", "embed/token_embd.bin"),
        ("output_norm.weight", "norm/output_norm.bin"),
        ("blk.1.ffn_up.weight.lora_a", "adapter/blk_1_ffn_up_weight_lora_a.bin"),
        ("quelque-chose", "other/quelque-chose.bin"),
        ("../../etc/passwd", "other/______etc_passwd.bin"),
        ("C:\\x", "other/C__x.bin"),
        ("CON", f"other/CON-{digest_of(b'CON')[:8]}.bin"),
        ("lpt1.weight", f"other/lpt1-{digest_of(b'lpt1.weight')[:8]}.bin"),
        (".weight", f"other/-{digest_of(b'.weight')[:8]}.bin"),
    ],
)
def test_the_file_of_a_tensor_has_its_name(name: str, file: str) -> None:
    assert organ_files([name]) == [file]


def test_colliding_names_get_digits_of_their_digest() -> None:
    names = ["x.y", "x_y", "X.Y", "x.y.weight"]
    suffixes = [digest_of(name.encode())[:8] for name in names]
    assert organ_files(names) == [
        "other/x_y.bin",
        f"other/x_y-{suffixes[1]}.bin",
        f"other/X_Y-{suffixes[2]}.bin",
        f"other/x_y-{suffixes[3]}.bin",
    ]


def test_a_name_that_collides_with_a_suffixed_name_gets_more_digits() -> None:
    taken = f"x_y-{digest_of(b'x_y')[:8]}"
    assert len({file.lower() for file in organ_files(["x.y", taken, "x_y"])}) == 3


@given(NAMES)
@PATIENT
def test_every_file_name_is_unique_and_allowed_on_every_system(names: list[str]) -> None:
    files = organ_files(names)
    assert len({file.lower() for file in files}) == len(names)
    for file in files:
        assert len(path_segments(file)) == 2
        assert len(file) < 100


@pytest.mark.parametrize(
    "path",
    [
        *("", "/etc/passwd", "../x", "a/../x", "a//x", "./x", "a/", "a\\x", "C:x", "C:/x", "a\0b", "a\nb", "a\u202eb"),
        *(
            "\udcff",
            "con",
            "NUL.bin",
            "a/Com1.x.bin",
            "a.",
            "a ",
            "a/" * 8 + "x",
            "x" * 201,
            "é" * 101,
            "x" * 600,
            "a?",
        ),
        *("lpt9 .bin", "aux"),
    ],
)
def test_a_path_out_of_its_folder_or_to_a_device_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        path_segments(path)


@pytest.mark.parametrize(
    "name", ["\udcff.gguf", "a\nb.gguf", "con.gguf", "x" * 250 + ".gguf", "a\u202eb.gguf", "d1", ".."]
)
def test_a_bad_name_of_a_gguf_is_corrected(name: str) -> None:
    safe = safe_file_name(name)
    assert path_segments(safe) == (safe,)
    assert safe.endswith(".gguf")


def test_the_head_is_laid_out_as_documented() -> None:
    spec = TensorSpec("a.b", (5, 2), dtype_by_name("F16"))
    assert encode_head(spec) == b"\3\0\0\0a.b\2\0\0\0" + struct.pack("<QQ", 5, 2) + b"\1\0\0\0"


@given(st.binary(max_size=120), st.integers(0, 2**40))
@PATIENT
def test_any_bytes_are_a_valid_head_or_refused_with_a_reason(data: bytes, size: int) -> None:
    try:
        spec, begin = parse_head(data, size)
    except ValueError:
        event("refused")
    else:
        assert size == begin + spec.size_bytes


def test_a_truncated_head_is_refused() -> None:
    head = encode_head(TensorSpec("a.b", (5, 2), F32))
    for size in range(len(head)):
        with pytest.raises(ValueError, match="ends"):
            parse_head(head[:size], size)


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "said"),
    [
        (b"", (1,), 0, "it must have 1 to 127"),
        (b"x" * 128, (1,), 0, "it must have 1 to 127"),
        (b"a\xff", (1,), 0, "printable ASCII"),
        (b"a", (1,) * 5, 0, "dimensions"),
        (b"a", (0,), 0, "dimension is 0"),
        (b"a", (2**62, 2**62), 0, "more elements"),
        (b"a", (2**62,), 0, "larger than any file"),
        (b"a", (31,), 2, "not a multiple"),
        (b"a", (2,), 0, "takes 8 bytes, but the file has 4"),
    ],
)
def test_an_invalid_head_is_refused(name: bytes, shape: tuple[int, ...], dtype: int, said: str) -> None:
    head = struct.pack("<I", len(name)) + name + struct.pack(f"<I{len(shape)}QI", len(shape), *shape, dtype)
    with pytest.raises(ValueError, match=said):
        parse_head(head + bytes(4), len(head) + 4)


def test_the_folder_has_the_documented_files(folder: Path) -> None:
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    manifest = manifest_of(folder)
    assert files == {"manifest.json", "header.bin", *(entry["file"] for entry in manifest["tensors"])}
    assert (manifest["format"], manifest["version"], manifest["architecture"]) == ("organ-directory", 1, "llama")
    model = small_model()
    assert manifest["files"][0]["sha256"] == digest_of(model)
    for entry in manifest["tensors"]:
        data = (folder / entry["file"]).read_bytes()
        spec, begin = parse_head(data[:HEAD_MAX_BYTES], len(data))
        assert (spec.name, list(spec.shape), spec.dtype.name) == (entry["name"], entry["shape"], entry["dtype"])
        assert digest_of(data[begin:]) == entry["sha256"]
        assert model[entry["offset_bytes"] :][: entry["size_bytes"]] == data[begin:]
    (up,) = [entry for entry in manifest["tensors"] if entry["name"] == UP_NAME]
    assert (up["file"], up["type"], up["tower"], up["block"], up["slot"]) == (UP, "organ", "text", 0, "ffn_up")
    assert 25 < up["measures"]["theta"] < 45, "Gaussian weights"


def test_the_number_of_open_files_is_limited(tmp_path: Path) -> None:
    many = file_bytes([], [tensor(f"blk.{number}.ffn_up.weight") for number in range(3 * OPEN_FILES_MAX)])
    (tmp_path / "many.gguf").write_bytes(many)
    extract_directory(tmp_path / "many.gguf", tmp_path / "many")
    gc.collect()  # closes what other tests left open
    before = len(os.listdir("/proc/self/fd"))
    with ExitStack() as opened:
        (file,) = open_files(opened, directory_source(tmp_path / "many"))
        assert file.source.read_at(0, len(many)) == many
        assert len(os.listdir("/proc/self/fd")) <= before + OPEN_FILES_MAX + 2
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_virtual_file_is_read_at_any_offset(folder: Path) -> None:
    model = small_model()
    with Folder(folder) as opened:
        (file,) = open_directory(opened)
        assert (file.size_bytes, file.path) == (len(model), folder / "little.gguf")
        for begin in range(0, len(model), 977):
            for size in (0, 1, 31, 4096, len(model) - begin):
                part = model[begin : begin + size]
                assert file.read_at(begin, len(part)) == part
        with pytest.raises(BadSource, match=f"ends at byte {len(model)}"):
            file.read_at(len(model) - 1, 2)
        with pytest.raises(BadSource, match="ends at byte"):
            file.read_into(memoryview(bytearray(2)), len(model) - 1)


def virtual(opened: Folder) -> VirtualFile:
    (file,) = open_directory(opened)
    return file


@pytest.mark.parametrize("name", [UP, "header.bin", "manifest.json"])
@pytest.mark.parametrize("how", ["written", "replaced", "removed"])
def test_a_file_that_changes_while_it_is_read_is_detected(name: str, how: str, folder: Path) -> None:
    path = folder / name
    with Folder(folder) as opened:
        file = virtual(opened)
        file.check_unchanged()
        if how == "written":
            with path.open("ab") as stream:
                stream.write(b"x")
        else:
            data = path.read_bytes()
            path.unlink()
            if how == "replaced":
                path.with_name("other").write_bytes(data)
                path.with_name("other").rename(path)
        with pytest.raises(BadSource, match="while it was read"):
            file.check_unchanged()
        target = folder.parent / "out.gguf"
        with pytest.raises(BadSource):
            place_virtual(file, target)
        assert [found.name for found in folder.parent.iterdir()] == ["little"]


def test_an_empty_folder_is_filled_and_any_other_existing_path_is_not_changed(tmp_path: Path) -> None:
    source = tmp_path / "a.gguf"
    source.write_bytes(small_model())
    empty, mine, project, link, file = (tmp_path / name for name in ("empty", "mine", "project", "link", "file"))
    for folder in (empty, mine, project / "other"):
        folder.mkdir(parents=True)
    (mine / "letter.txt").write_text("dear")
    (project / "other" / "thesis.txt").write_text("years")
    (project / "manifest.json").write_text('{"name": "a web application"}')
    link.symlink_to(empty)
    file.write_text("x")
    before = sorted(tmp_path.rglob("*"))
    for target, message in (
        (mine, "other content"),
        (project, "other content"),
        (link, "not a folder"),
        (file, "not a folder"),
        (mine / "a/b", "no such"),
    ):
        for force in (False, True):
            with pytest.raises(BadSource, match=message):
                extract_directory(source, target, force=force)
    assert sorted(tmp_path.rglob("*")) == before
    extract_directory(source, empty)
    assert is_organ_directory(empty)


def calls_of_an_extraction(source: Path, target: Path) -> int:
    files = failing_once(0, errno.EIO)
    extract_directory(source, target, files=files)
    return files.calls


def test_a_disk_failure_at_any_call_leaves_nothing_or_everything(tmp_path: Path) -> None:
    source = tmp_path / "a.gguf"
    source.write_bytes(file_bytes([text("general.architecture", "llama")], [tensor("a"), tensor("b")]))
    calls = calls_of_an_extraction(source, tmp_path / "whole")
    assert calls > 20
    gc.collect()  # closes what other tests left open
    before = set(os.listdir("/proc/self/fd"))
    for at in range(1, calls + 1):
        target = tmp_path / "out"
        with pytest.raises(StoreError):
            extract_directory(source, target, files=failing_once(at, errno.EIO))
        left = {path.name for path in tmp_path.iterdir()} - {"a.gguf", "whole", "out"}
        assert left == set()
        if target.exists():  # placed; only the last sync of its folder failed
            assert gguf_bytes_of(target) == [source.read_bytes()]
            extract_directory(source, target, force=True)
            for path in sorted(target.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            target.rmdir()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_an_extraction_of_a_file_that_changes_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "a.gguf"
    source.write_bytes(small_model())
    done: list[int] = []

    def meddle(size: int) -> None:
        if not done:
            os.utime(source, ns=(0, 0))
        done.append(size)

    with pytest.raises(BadSource):
        extract_directory(source, tmp_path / "out", progress=meddle)
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]
    assert sum(done) == source.stat().st_size


def test_files_added_to_the_target_during_the_extraction_are_not_changed(tmp_path: Path) -> None:
    source, target = tmp_path / "a.gguf", tmp_path / "out"
    source.write_bytes(small_model())
    target.mkdir()
    for force in (False, True):
        with pytest.raises(BadSource, match="other content"):
            extract_directory(
                source, target, force=force, progress=lambda _: (target / "letter.txt").write_text("dear")
            )
        assert [path.name for path in target.iterdir()] == ["letter.txt"]
        (target / "letter.txt").unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "out"]
