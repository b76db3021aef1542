"""Tests of what both places for the files of blobs promise, a folder and a bucket: see `BlobBackend`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from organs.registry.digest import digest_of
from organs.registry.errors import CorruptBlob, MissingBlob
from organs.registry.store import BlobStore
from organs.registry.store.backend import BlobBackend, PendingBlob, is_physical, new_file_name
from organs.registry.store.blobs import INLINE_MAX_BYTES
from organs.registry.store.bucket import MARK, PART_BYTES, BlobBucket
from organs.registry.store.codec import CHUNK_TARGET_BYTES
from organs.registry.store.files import Files
from organs.registry.store.folder import BlobFolder
from tests.memory_bucket import serve_from_memory
from tests.store.test_blobs import address

MEBI = 1 << 20
DIGEST = digest_of(b"a blob")
SIZES = [5, MEBI, PART_BYTES + MEBI]
"""A bucket gets a file of more than PART_BYTES in several parts."""


@pytest.fixture(params=["folder", "bucket"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BlobBackend:
    place: BlobBackend = BlobFolder(tmp_path / "blobs")
    if request.param == "bucket":
        serve_from_memory(monkeypatch)
        place = BlobBucket("s3://organs/blobs", spool=tmp_path / "spool")
    place.prepare()
    return place


def sample(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def begin(backend: BlobBackend, data: bytes) -> PendingBlob:
    """Begin the file of a blob whose first five bytes are written last."""
    pending = backend.begin(digest_of(data), len(data), front_bytes=5)
    for start in range(5, len(data), MEBI // 4):
        pending.append([data[start : start + MEBI // 4]])
    return pending


def put(backend: BlobBackend, data: bytes) -> str:
    """Write a file and return its name."""
    return begin(backend, data).place(data[:5])


def read(backend: BlobBackend, file: str) -> bytes:
    with closing(backend.open(file)) as stored:
        return stored.read_at(0, stored.size_bytes)


def files(backend: BlobBackend) -> list[str]:
    """Return the names of the complete files."""
    return sorted(stray.file for stray in backend.walk() if stray.file is not None)


@pytest.mark.parametrize(
    "size",
    [
        *(0, 1, 1000, INLINE_MAX_BYTES, INLINE_MAX_BYTES + 1, CHUNK_TARGET_BYTES - 1, CHUNK_TARGET_BYTES),
        *(CHUNK_TARGET_BYTES + 1, 2 * CHUNK_TARGET_BYTES + 12_345, PART_BYTES + MEBI + 7),
    ],
)
def test_bytes_of_every_size_read_back(size: int, backend: BlobBackend) -> None:
    store, data = BlobStore(backend), sample(size)
    blob = store.put(data)
    assert (blob.digest, blob.size_bytes) == (digest_of(data), size)
    assert (blob.inline is None) == (blob.file is not None) == (size > INLINE_MAX_BYTES)
    assert blob.stored_bytes == (backend.size_of(blob.file) if blob.file else len(blob.inline or b""))
    assert files(backend) == ([blob.file] if blob.file else [])
    with store.open(address(blob)) as reader:
        assert reader.read() == data
        assert b"".join(map(bytes, reader.stream())) == data
        reader.verify()


@pytest.mark.parametrize("size", SIZES)
def test_a_file_gets_its_name_only_when_it_is_complete(size: int, backend: BlobBackend) -> None:
    data = sample(size)
    pending = begin(backend, data)
    assert files(backend) == []
    file = pending.place(data[:5])
    assert files(backend) == [file]
    assert read(backend, file) == data


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_placed", [False, True])
def test_a_discarded_file_leaves_nothing(is_placed: bool, size: int, backend: BlobBackend, tmp_path: Path) -> None:
    pending = begin(backend, sample(size))
    if is_placed:
        pending.place(bytes(5))
    pending.discard()
    pending.discard()
    assert list(backend.walk()) == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_equal_bytes_get_a_new_name_each_time(backend: BlobBackend) -> None:
    names = {put(backend, b"a blob") for _ in range(20)}
    assert len(names) == 20
    assert all(is_physical(name) and name.startswith(f"{DIGEST[:2]}/{DIGEST}.") for name in names)


@pytest.mark.parametrize(
    "name",
    [
        *("", "tmp", "sweep.lock", MARK, "others/object", "../ab"),
        f"../{DIGEST[:2]}/{DIGEST}.0123456789abcdef",
        f"{DIGEST[:2]}/../../etc/passwd",
        f"/{DIGEST[:2]}/{DIGEST}.0123456789abcdef",
        f"{DIGEST[:2]}/{DIGEST}",
        f"{DIGEST[:2]}/{DIGEST}.",
        f"{DIGEST[:2]}/{DIGEST}.0123456789abcde",
        f"{DIGEST[:2]}/{DIGEST}.0123456789abcdef0",
        f"{DIGEST[:2]}/{DIGEST}.0123456789abcdef\n",
        f"{DIGEST[:2]}/{DIGEST[:-1]}.0123456789abcdef",
        f"{DIGEST[:2]}/{DIGEST}0.0123456789abcdef",
        f"{DIGEST[:2]}/{DIGEST.upper()}.0123456789abcdef",
        f"{DIGEST[:2]}/{DIGEST[:-1]}\uff10.0123456789abcdef",
        f"00/{DIGEST}.0123456789abcdef",
        f"{DIGEST[:2]}/{DIGEST}.0123456789abcdef\0",
    ],
)
def test_a_foreign_name_is_never_touched(name: str, backend: BlobBackend) -> None:
    for touch in (backend.open, backend.remove, lambda name: backend.write(name, 1, iter([b"x"]))):
        with pytest.raises(CorruptBlob, match="not a name of a file of the store"):
            touch(name)
    assert backend.size_of(name) is None
    assert backend.is_prepared()


def test_an_absent_file_is_missing_and_may_be_removed_again(backend: BlobBackend) -> None:
    file = put(backend, b"a blob")
    assert backend.size_of(file) == 6
    backend.remove(file)
    with pytest.raises(MissingBlob, match=DIGEST):
        backend.open(file)
    assert backend.size_of(file) is None
    backend.remove(file)


def test_a_read_beyond_the_end_is_corrupt(backend: BlobBackend) -> None:
    with closing(backend.open(put(backend, b"a blob"))) as stored:
        assert stored.read_at(1, 4) == b" blo"
        with pytest.raises(CorruptBlob, match=r"ends at byte 6, \d+ bytes are expected"):
            stored.read_at(4, 3)
        stored.close()


def test_complete_files_are_listed_with_size_and_time(backend: BlobBackend) -> None:
    began = time.time()
    expected = {put(backend, bytes(size)): size for size in (5, 6, 7)}
    found = list(backend.walk())
    assert {stray.file: stray.size_bytes for stray in found} == expected
    assert all(stray.name == stray.file and abs(stray.modified_at - began) < 60 for stray in found)


def test_a_whole_file_is_replaced_and_its_version_changes(backend: BlobBackend) -> None:
    data = sample(PART_BYTES + 9)
    file = new_file_name(digest_of(data))
    backend.write(file, 9, iter([b"other ", b"one"]))
    assert read(backend, file) == b"other one"
    for _ in range(8):  # some of these files are written within one tick of the system's clock
        before = backend.open(file).version
        assert backend.open(file).version == before
        backend.write(file, 9, iter([b"other two"]))
        assert backend.open(file).version != before
    backend.write(file, len(data), (data[start : start + MEBI] for start in range(0, len(data), MEBI)))
    assert read(backend, file) == data


class RecordedFiles(Files):
    """The real calls, with the names of those that make a file durable or give it its name."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def sync(self, descriptor: int) -> None:
        self.calls.append("sync")
        super().sync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self.calls.append("rename")
        super().rename(source, target)

    def sync_folder(self, path: Path) -> None:
        self.calls.append("sync folder")
        super().sync_folder(path)


def test_a_file_in_a_folder_is_durable_before_it_gets_its_name(tmp_path: Path) -> None:
    data, recorded = sample(9), RecordedFiles()
    file = new_file_name(digest_of(data))
    first, second = (BlobFolder(tmp_path / name, recorded) for name in ("first", "second"))
    first.prepare()
    second.prepare()
    for place in (lambda: first.write(file, 9, iter([data])), lambda: second.copy_from(first, file, 9)):
        recorded.calls.clear()
        place()
        named = recorded.calls.index("rename")
        assert ("sync" in recorded.calls[:named], recorded.calls[named + 1 :]) == (True, ["sync folder"])


def test_a_failed_replacement_leaves_the_older_file(backend: BlobBackend) -> None:
    def failing() -> Iterator[bytes]:
        yield b"ne"
        raise MissingBlob(DIGEST)

    file = put(backend, b"older")
    with pytest.raises(CorruptBlob, match="it ends at byte 4, 5 bytes are expected"):
        backend.write(file, 5, iter([b"ne", b"we"]))
    with pytest.raises(MissingBlob):
        backend.write(file, 5, failing())
    assert read(backend, file) == b"older"
    assert files(backend) == [file]
