"""Tests of blob files in a folder: visible only when complete and durable; an error leaves nothing."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from organs.registry.digest import Digest, digest_of
from organs.registry.errors import Busy, DiskFull, StoreError, StoreUnwritable
from organs.registry.store.files import Files
from organs.registry.store.folder import FREE_MARGIN_BYTES, BlobFolder, StoredFile
from tests.faults.failing import SteppedFiles, failing_from, failing_once

DATA = b"the stored bytes of a blob"
DIGEST = digest_of(DATA)
FIRST_WRITE_CALLS = 15
"""The number of calls for a first blob, with folders; `test_bytes_are_made_durable...` lists them."""


@pytest.fixture
def store(tmp_path: Path) -> BlobFolder:
    return BlobFolder(tmp_path / "blobs")


def written(store: BlobFolder, data: bytes = DATA, digest: Digest = DIGEST) -> str:
    """Write a blob file into the store and return its physical name."""
    pending = store.begin(digest, len(data))
    try:
        pending.append([data[:5], data[5:]])
        return pending.place()
    except BaseException:
        pending.discard()
        raise


def names(store: BlobFolder) -> list[str]:
    """Return the names of all files below the root."""
    return sorted(str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file())


def test_a_placed_file_has_its_digest_a_nonce_and_mode_0400(store: BlobFolder) -> None:
    file = written(store)
    assert file.startswith(f"{DIGEST[:2]}/{DIGEST}.")
    assert store.path(file).read_bytes() == DATA
    assert store.path(file).stat().st_mode & 0o777 == 0o400
    assert names(store) == [file]


def test_bytes_are_made_durable_before_names(tmp_path: Path) -> None:
    called: list[str] = []
    store = BlobFolder(tmp_path / "blobs", SteppedFiles(lambda _number, name: called.append(name)))
    written(store)
    root = ["sync_folder", "make_folder", "sync_folder"]  # parents before their contents
    begun = [*root, "make_folder", "free_bytes", "create_direct"]
    first = [*begun, "write_at", "truncate", "make_read_only", "sync"]
    assert called == [*first, "make_folder", "sync_folder", "rename", "sync_folder", "close"]
    called.clear()
    written(store)
    assert called == [*first[4:], "rename", "sync_folder", "close"], "folders that are there are durable already"


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EIO, StoreError), (errno.ENOSPC, DiskFull), (errno.EROFS, StoreUnwritable)]
)
def test_a_failure_of_any_call_is_reported_and_leaves_nothing_or_files_for_the_sweep(
    number: int, kind: type[StoreError], tmp_path: Path
) -> None:
    for at in range(1, FIRST_WRITE_CALLS + 1):
        store = BlobFolder(tmp_path / f"{at}", failing_once(at, number))
        with pytest.raises(StoreError) as caught:
            written(store)
        assert type(caught.value) is kind
        assert names(store) == []
        broken = BlobFolder(tmp_path / f"broken {at}", failing_from(at, number))
        with pytest.raises(kind):
            written(broken)
        assert [stray.name for stray in broken.walk()] == names(broken), "the sweep finds what is left"
    lucky = BlobFolder(tmp_path / "lucky", failing_once(FIRST_WRITE_CALLS + 1, number))
    assert lucky.path(written(lucky)).read_bytes() == DATA


def test_a_file_too_large_for_the_disk_is_refused(tmp_path: Path) -> None:
    class Small(Files):
        def free_bytes(self, path: Path) -> int:
            return FREE_MARGIN_BYTES + 100

    store = BlobFolder(tmp_path, Small())
    store.begin(DIGEST, 100).discard()
    with pytest.raises(DiskFull, match=f"has {FREE_MARGIN_BYTES / 1e6:.1f} MB free: 0.0 MB and a reserve"):
        store.begin(DIGEST, 101)
    assert names(store) == []


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_read_error_is_reported(at: int, store: BlobFolder) -> None:
    file = written(store)

    def read() -> bytes:
        opened: StoredFile = BlobFolder(store.root, files).open(file)
        try:
            return opened.read_at(0, 5)
        finally:
            opened.close()

    files = failing_once(at, errno.EIO)
    with pytest.raises(StoreError, match="Input/output error"):
        read()
    assert read() == DATA[:5]


def test_the_walk_finds_files_and_temporaries_and_nothing_else(store: BlobFolder) -> None:
    assert list(store.walk()) == []
    file, pending = written(store), store.begin(DIGEST, 5)
    (store.root / DIGEST[:2] / "notes.txt").write_text("not the store's")
    (store.root / DIGEST[:2] / f"{DIGEST}.ffffffffffffffff").mkdir()
    (store.root / "sweep.lock").touch()
    (store.root / "link").symlink_to(store.root / DIGEST[:2])
    strays = {stray.file: stray for stray in store.walk()}
    assert set(strays) == {file, None}
    assert strays[file].size_bytes == len(DATA)
    assert strays[None].name.startswith("tmp/")
    assert strays[file].modified_at == store.path(file).stat().st_mtime
    pending.discard()


def test_files_may_disappear_during_a_walk(store: BlobFolder) -> None:
    pending = [store.begin(DIGEST, 5) for _ in range(3)]
    walk = store.walk()
    first = next(walk)
    for pending_file in pending:
        pending_file.discard()
    assert list(walk) == []
    assert first.file is None


def test_a_folder_in_place_of_a_file_is_not_removed(store: BlobFolder) -> None:
    file = written(store)
    path = store.path(file)
    path.unlink()
    path.mkdir()
    store.remove(file)
    assert path.is_dir()


def test_two_sweeps_cannot_run_at_the_same_time(store: BlobFolder) -> None:
    with store.sweeping():
        with pytest.raises(Busy, match="another sweep"), BlobFolder(store.root).sweeping():
            pass
        with pytest.raises(Busy), store.sweeping():
            pass
    with store.sweeping():
        assert (store.root / "sweep.lock").exists()


def test_the_lock_of_a_killed_sweep_is_released(store: BlobFolder) -> None:
    script = (
        "import pathlib, sys, time; from organs.registry.store.folder import BlobFolder\n"
        "with BlobFolder(pathlib.Path(sys.argv[1])).sweeping(): print(flush=True); time.sleep(600)"
    )
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen([sys.executable, "-c", script, store.root], cwd=root, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"\n"
        with pytest.raises(Busy), store.sweeping():
            pass
        other.kill()
        other.wait()
        with store.sweeping():
            assert names(store) == ["sweep.lock"]


def test_a_file_that_cannot_be_removed_is_reported_unless_it_is_discarded(tmp_path: Path) -> None:
    def refuse(_number: int, call: str) -> None:
        if call == "unlink":
            raise PermissionError(errno.EACCES, "not for you")

    store = BlobFolder(tmp_path / "blobs", SteppedFiles(refuse))
    store.begin(DIGEST, 5).discard()  # the sweep handles it
    with pytest.raises(StoreUnwritable, match="not for you"):
        store.remove(next(store.walk()).name)


@pytest.fixture
def unwritable(tmp_path: Path) -> Iterator[BlobFolder]:
    """Return a store whose root cannot be a folder."""
    (tmp_path / "blobs").write_bytes(b"a file")
    yield BlobFolder(tmp_path / "blobs")
    assert (tmp_path / "blobs").read_bytes() == b"a file"


def test_a_root_that_is_not_a_folder_is_reported_by_every_operation(unwritable: BlobFolder) -> None:
    with pytest.raises(StoreError):
        unwritable.begin(DIGEST, 5)
    with pytest.raises(StoreError), unwritable.sweeping():
        pass
    with pytest.raises(StoreError):
        unwritable.open(f"{DIGEST[:2]}/{DIGEST}.0123456789abcdef")
    assert list(unwritable.walk()) == []
