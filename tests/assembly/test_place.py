"""Tests of placing a planned file: complete, checked and durable, or the old file stays."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from organs.registry.assembly import (
    FilePlan,
    place_file,
    plan_model,
)
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.digest import Digest, digest_of
from organs.registry.errors import CorruptBlob, DiskFull, MissingBlob, OrganError, StoreError, StoreUnwritable
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests.faults.failing import SteppedFiles
from tests.gguf_files import file_bytes
from tests.small_models import ingest_file, weight_tensor


@pytest.fixture
def data() -> bytes:
    return file_bytes([], [weight_tensor(f"blk.{block}.ffn_up.weight", (256, 200)) for block in range(3)])


@pytest.fixture
def plan(registry: LocalRegistry, tmp_path: Path, data: bytes) -> FilePlan:
    (tmp_path / "a.gguf").write_bytes(data)
    ingest_file(registry, tmp_path / "a.gguf")
    with registry.catalog.reading() as session:
        (planned,) = plan_model(session, model_by_name(session, parse_model_name("a")))
    return planned


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def test_the_placed_file_has_its_digest(registry: LocalRegistry, plan: FilePlan, out: Path, data: bytes) -> None:
    seen: list[int] = []
    assert place_file(registry.blobs, plan, out / "b.gguf", seen.append) == digest_of(data)
    assert (out / "b.gguf").read_bytes() == data
    assert sum(seen) == len(data)
    assert [path.name for path in out.iterdir()] == ["b.gguf"]


def test_a_link_is_replaced_and_not_written_through(registry: LocalRegistry, plan: FilePlan, out: Path) -> None:
    (out / "precious").write_bytes(b"precious")
    (out / "b.gguf").symlink_to(out / "precious")
    place_file(registry.blobs, plan, out / "b.gguf")
    assert (out / "precious").read_bytes() == b"precious"
    assert not (out / "b.gguf").is_symlink()


def test_a_file_name_may_have_the_maximum_length(registry: LocalRegistry, plan: FilePlan, out: Path) -> None:
    path = out / ("x" * 250 + ".gguf")
    place_file(registry.blobs, plan, path)
    assert path.is_file()


@pytest.mark.parametrize(
    ("fail_at", "error_number", "expected"),
    [
        ("create", errno.EACCES, StoreUnwritable),
        ("write_at", errno.ENOSPC, DiskFull),
        ("write_at", errno.EIO, StoreError),
        ("sync", errno.EIO, StoreError),
        ("rename", errno.EACCES, StoreUnwritable),
    ],
)
def test_a_failing_system_call_leaves_only_the_old_file(
    fail_at: str, error_number: int, expected: type[OrganError], registry: LocalRegistry, plan: FilePlan, out: Path
) -> None:
    def fail(_number: int, name: str) -> None:
        if name.removesuffix("_direct") == fail_at:
            raise OSError(error_number, os.strerror(error_number))

    (out / "b.gguf").write_bytes(b"old")
    with pytest.raises(expected):
        place_file(registry.blobs, plan, out / "b.gguf", files=SteppedFiles(fail))
    assert [path.name for path in out.iterdir()] == ["b.gguf"]
    assert (out / "b.gguf").read_bytes() == b"old"


def corrupt(path: Path) -> None:
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


@pytest.mark.folder
@pytest.mark.parametrize(("damage", "expected"), [(corrupt, CorruptBlob), (Path.unlink, MissingBlob)])
def test_a_faulty_blob_leaves_only_the_old_file(
    damage: Callable[[Path], None], expected: type[OrganError], registry: LocalRegistry, plan: FilePlan, out: Path
) -> None:
    (out / "b.gguf").write_bytes(b"old")
    damage(sorted(registry.settings.blobs.glob("??/*"))[-1])
    with pytest.raises(expected):
        place_file(registry.blobs, plan, out / "b.gguf")
    assert [path.name for path in out.iterdir()] == ["b.gguf"]
    assert (out / "b.gguf").read_bytes() == b"old"


def test_a_file_with_another_digest_is_not_placed(
    registry: LocalRegistry, plan: FilePlan, out: Path, data: bytes
) -> None:
    wrong = replace(plan, sha256=Digest("ab" * 32))
    with pytest.raises(CorruptBlob, match=f"would be {digest_of(data)}"):
        place_file(registry.blobs, wrong, out / "b.gguf")
    assert list(out.iterdir()) == []
