"""Tests of blobs in a bucket, in an object store in memory that fails, lies and is slow; and of their local cache."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.exceptions import GenericError, PermissionDeniedError, UnauthenticatedError

from organs.registry.digest import digest_of
from organs.registry.errors import (
    BadSetting,
    Busy,
    CorruptBlob,
    DiskFull,
    MissingBlob,
    MissingExtra,
    OrganError,
    StoreUnreachable,
    StoreUnwritable,
)
from organs.registry.local import LocalRegistry
from organs.registry.settings import Settings
from organs.registry.store import BlobStore, bucket
from organs.registry.store.backend import new_file_name
from organs.registry.store.bucket import (
    MARK,
    PART_BYTES,
    PIECE_BYTES,
    TOUCH_SECONDS,
    TRIMMED_TO,
    BlobBucket,
    ObjectPiece,
    PieceCache,
    open_bucket,
)
from organs.registry.upkeep import sweep, verify
from tests.faults.failing import EVERYTHING, add_unneeded_blobs, blob_rows, flip_bit, ingest_path, write_model
from tests.memory_bucket import Answer, MemoryService, failing, serve_from_memory, shifted, shortened
from tests.random_files import PATIENT
from tests.store.test_blobs import address

URL = "s3://organs/blobs"
MEBI = 1 << 20
UNREACHABLE = GenericError("Error performing GET https://s3.example/organs?X-Amz-Signature=5e - connection refused")


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> dict[str, MemoryService]:
    return serve_from_memory(monkeypatch)


@pytest.fixture
def place(services: dict[str, MemoryService], tmp_path: Path) -> BlobBucket:
    """A prepared bucket without a cache."""
    place = BlobBucket(URL, spool=tmp_path / "spool")
    place.prepare()
    services[URL].requests.clear()
    return place


@pytest.fixture
def service(place: BlobBucket, services: dict[str, MemoryService]) -> MemoryService:
    return services[URL]


@pytest.fixture
def cached(place: BlobBucket, tmp_path: Path) -> BlobBucket:
    """The same bucket with a cache in the folder `cache`."""
    return BlobBucket(URL, PieceCache(tmp_path / "cache", 100 * MEBI))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 1000 bytes."""
    monkeypatch.setattr(bucket, "PIECE_BYTES", 1000)


def sample(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng([size, seed]).bytes(size)


def put_object(place: BlobBucket, data: bytes) -> str:
    """Store the bytes of a file themselves; return its name."""
    pending = place.begin(digest_of(data), len(data))
    pending.append([data])
    return pending.place()


def read_all(place: BlobBucket, file: str) -> bytes:
    with closing(place.open(file)) as stored:
        return stored.read_at(0, stored.size_bytes)


@pytest.mark.parametrize("size", [MEBI, PART_BYTES + MEBI])
def test_nothing_is_sent_before_a_file_is_complete(size: int, place: BlobBucket, service: MemoryService) -> None:
    for ends in ("placed", "discarded"):
        pending = place.begin(digest_of(b""), size)
        pending.append([sample(size)])
        assert not service.requests
        if ends == "discarded":
            pending.discard()
            assert not service.requests, "so nothing needs to be removed"
        else:
            assert service.requests["put", pending.place()] == 1
            service.requests.clear()


@pytest.mark.parametrize("size", [MEBI, PART_BYTES + MEBI])
def test_a_failed_upload_leaves_no_object(size: int, place: BlobBucket, service: MemoryService) -> None:
    service.before = failing(UNREACHABLE, "put")
    with pytest.raises(StoreUnreachable):
        BlobStore(place).put(sample(size))
    assert service.names() == []
    assert sum(count for (kind, _), count in service.requests.items() if kind == "delete") == 1


def test_an_upload_whose_answer_is_lost_is_removed(place: BlobBucket, service: MemoryService) -> None:
    seen: list[str] = []

    def lose_answer(kind: str, _name: str) -> None:
        if kind == "put":
            seen.extend(service.names())
            raise UNREACHABLE

    service.after = lose_answer
    with pytest.raises(StoreUnreachable):
        BlobStore(place).put(sample(MEBI))
    assert len(seen) == 1, "the object was there"
    assert service.names() == []


def test_an_object_of_another_size_than_the_upload_is_refused(place: BlobBucket, service: MemoryService) -> None:
    def truncate(kind: str, name: str) -> None:
        if kind == "put":
            service.objects.put(name, service.stored(name)[:-1])

    service.after = truncate
    with pytest.raises(StoreUnreachable, match="were uploaded, the object store has"):
        BlobStore(place).put(sample(MEBI))
    assert service.names() == []


def test_a_sweep_removes_what_a_failed_upload_left(
    place: BlobBucket, service: MemoryService, registry: LocalRegistry
) -> None:
    store = BlobStore(place)
    kept = store.put(sample(MEBI, seed=1))
    add_unneeded_blobs(registry, kept)
    service.after = failing(UNREACHABLE, "put")
    service.before = failing(UNREACHABLE, "delete")
    with pytest.raises(StoreUnreachable):
        store.put(sample(MEBI))
    assert len(service.names()) == 2
    service.before = service.after = lambda _kind, _name: None
    assert sweep(registry.catalog, store, dry_run=False).stray_files == 0, "an ingest may still record it"
    report = sweep(registry.catalog, store, grace=timedelta(), dry_run=False)
    assert (report.stray_files, service.names()) == (1, [kept.file])


def test_a_full_local_disk_is_reported(
    place: BlobBucket, service: MemoryService, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = place.begin(digest_of(b""), MEBI)

    def write(_self: object, _data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "write", write)
    with pytest.raises(DiskFull, match="spool is full"):
        pending.append([b"data"])
    with pytest.raises(DiskFull, match="spool is full"):
        pending.place(b"front")
    pending.discard()
    assert service.names() == []


def test_a_spool_that_cannot_be_created_is_reported(services: dict[str, MemoryService], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OrganError, match="file/spool"):
        BlobBucket(URL, spool=tmp_path / "file" / "spool").prepare()
    assert not services[URL].requests


@settings(PATIENT, max_examples=40)
@given(st.data())
def test_any_range_equals_that_of_the_file(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        serve_from_memory(monkeypatch)
        monkeypatch.setattr(bucket, "PIECE_BYTES", 100)
        place = BlobBucket(URL)
        plain = sample(data.draw(st.sampled_from([1, 99, 100, 101, 650])))
        stored = place.open(put_object(place, plain))
        assert stored.size_bytes == len(plain)
        for _ in range(5):
            begin = data.draw(st.integers(0, len(plain)))
            end = data.draw(st.integers(begin, len(plain)))
            assert stored.read_at(begin, end - begin) == plain[begin:end]
        with pytest.raises(CorruptBlob, match=f"it ends at byte {len(plain)}"):
            stored.read_at(data.draw(st.integers(0, len(plain))), len(plain) + 1)


@pytest.mark.usefixtures("small_pieces")
def test_only_the_pieces_of_a_range_are_requested(place: BlobBucket, service: MemoryService) -> None:
    data = sample(5500)
    file = put_object(place, data)
    stored = place.open(file)
    assert service.requests["get", file] == 1
    assert stored.read_at(3990, 20) == data[3990:4010]
    assert service.requests["get", file] == 3
    assert stored.read_at(10, 20) + stored.read_at(4500, 20) == data[10:30] + data[4500:4520]
    assert service.requests["get", file] == 3, "the last pieces stay in memory"
    for begin in (1000, 2000, 5000, 0):
        stored.read_at(begin, 1)
    assert service.requests["get", file] == 7, "but not all of them"


@pytest.mark.usefixtures("small_pieces")
def test_an_object_that_is_removed_while_it_is_read_is_a_missing_blob(place: BlobBucket) -> None:
    file = put_object(place, sample(2500))
    stored = place.open(file)
    place.remove(file)
    with pytest.raises(MissingBlob):
        stored.read_at(2000, 10)


def test_in_a_bucket_without_the_mark_no_blob_counts_as_missing(place: BlobBucket, service: MemoryService) -> None:
    store = BlobStore(place)
    blob = store.put(sample(MEBI))
    assert blob.file is not None
    service.objects.delete([blob.file, MARK])
    with pytest.raises(StoreUnreachable, match="does not answer") as raised:
        store.open(address(blob))
    assert raised.value.status == 503
    with pytest.raises(StoreUnreachable):
        place.size_of(blob.file)
    assert not place.is_prepared()


SILENT, NOT_ALLOWED = "the object store does not answer: try again later", "access is not allowed; set the credentials"


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (UNREACHABLE, StoreUnreachable, SILENT),
        (OSError("connection reset"), StoreUnreachable, SILENT),
        (ValueError("not a size"), StoreUnreachable, SILENT),
        (PermissionDeniedError("403"), StoreUnwritable, NOT_ALLOWED),
        (UnauthenticatedError("401"), StoreUnwritable, NOT_ALLOWED),
    ],
)
def test_every_request_reports_a_service_that_does_not_answer_or_refuses(
    error: Exception, kind: type[OrganError], sentence: str, place: BlobBucket, service: MemoryService
) -> None:
    file = put_object(place, b"data")
    service.before = failing(error, "get", "head", "put", "delete", "list")
    for request in (
        lambda: place.open(file),
        lambda: place.size_of(file),
        lambda: put_object(place, b"more"),
        lambda: place.write(file, 4, iter([b"more"])),
        lambda: place.remove(file),
        lambda: list(place.walk()),
        lambda: BlobBucket(URL).prepare(),
        place.probe,
    ):
        with pytest.raises(kind, match=sentence) as raised:
            request()
        assert "Signature" not in str(raised.value)
    service.before = lambda _kind, _name: None
    assert read_all(place, file) == b"data"


def test_an_object_that_is_gone_may_be_removed(place: BlobBucket, service: MemoryService) -> None:
    service.before = failing(FileNotFoundError("404"), "delete")
    place.remove(new_file_name(digest_of(b"gone")))


def test_the_reason_of_a_service_is_logged_and_not_part_of_the_error(
    place: BlobBucket, service: MemoryService, caplog: pytest.LogCaptureFixture
) -> None:
    answer = "Error performing GET http://s3/organs?list-type=2 in 2ms - Server returned non-2xx status code: 500: <X"
    service.before = failing(GenericError(answer), "list")
    with pytest.raises(StoreUnreachable, match=r"\Athe object store does not answer: try again later\Z"):
        list(place.walk())
    assert "s3://organs/blobs: Server returned non-2xx status code: 500" in caplog.text


def test_a_bucket_is_prepared_once_by_each_process(services: dict[str, MemoryService]) -> None:
    first, second = BlobBucket(URL), BlobBucket(URL)
    assert not first.is_prepared()
    first.prepare()
    first.prepare()
    second.prepare()
    assert second.is_prepared()
    assert services[URL].requests["put", MARK] == 1
    assert services[URL].names() == []


def test_objects_with_other_names_are_not_listed(place: BlobBucket, service: MemoryService) -> None:
    file = put_object(place, b"data")
    for name in ("other", "ab/other", f"{file}.tmp", f"folder/{file}"):
        service.objects.put(name, b"")
    assert [stray.name for stray in place.walk()] == [file]


def test_a_listing_that_breaks_off_is_never_taken_for_a_complete_one(place: BlobBucket, service: MemoryService) -> None:
    put_object(place, b"data")
    service.before = failing(UNREACHABLE, "list page")
    with pytest.raises(StoreUnreachable):
        list(place.walk())


@pytest.mark.parametrize("change", [shortened, shifted])
def test_an_answer_with_other_bytes_is_refused_and_not_cached(
    change: Callable[[Answer], Answer], cached: BlobBucket, service: MemoryService, tmp_path: Path
) -> None:
    file = put_object(cached, b"data")
    service.change = change
    with pytest.raises(StoreUnreachable, match="other bytes than those that were requested"):
        cached.open(file)
    service.change = lambda answer: answer
    assert read_all(cached, file) == b"data"


@pytest.mark.usefixtures("small_pieces")
def test_an_object_that_was_cut_or_replaced_is_corrupt(place: BlobBucket, service: MemoryService) -> None:
    file = put_object(place, sample(2500))
    for changed in (b"", sample(10), sample(2400)):
        stored = place.open(file)
        service.objects.put(file, changed)
        with pytest.raises(CorruptBlob):
            stored.read_at(2000, 10)
        service.objects.put(file, sample(2500))
    service.objects.put(file, b"")
    with pytest.raises(CorruptBlob, match="it ends at byte 0"):
        place.open(file)


def test_only_one_sweep_at_a_time_holds_the_lock(services: dict[str, MemoryService], registry: LocalRegistry) -> None:
    settings = Settings(registry.settings.home, registry.settings.database_url, registry.settings.blobs, bucket=URL)
    first, second = (LocalRegistry(settings, registry.catalog) for _ in range(2))
    with first.blobs.backend.sweeping(), pytest.raises(Busy):
        sweep(registry.catalog, second.blobs, dry_run=False)
    assert sweep(registry.catalog, second.blobs, dry_run=False).stray_files == 0


def test_a_damaged_object_is_found_although_the_cache_has_its_bytes(
    cached: BlobBucket, service: MemoryService, registry: LocalRegistry, tmp_path: Path
) -> None:
    opened = LocalRegistry(registry.settings, registry.catalog, BlobStore(cached))
    ingest_path(opened, write_model(tmp_path / "little.gguf"))
    assert verify(opened.catalog, opened.blobs, read_data=EVERYTHING).faults == []
    file = service.names()[0]
    sound = read_all(cached, file)
    service.objects.put(file, flip_bit(sound, 8 * len(sound) - 1))
    assert read_all(cached, file) == sound
    assert read_all(cached.uncached(), file) != sound
    (fault,) = verify(opened.catalog, opened.blobs, read_data=EVERYTHING).faults
    assert fault.digest == file[3:67]
    service.objects.put(file, b"")
    (fault,) = verify(opened.catalog, opened.blobs, repair=True).faults
    assert fault.digest == file[3:67]
    set_aside = [row.digest for row in blob_rows(opened) if row.is_set_aside]
    assert set_aside == [fault.digest], "an empty object is wrong, not unreachable"


@pytest.mark.parametrize("place_of_damage", ["head", "chunk"])
def test_wrong_bytes_in_the_cache_are_read_again_from_the_bucket(
    place_of_damage: str, cached: BlobBucket, service: MemoryService
) -> None:
    store = BlobStore(cached)
    plain = sample(300_000)
    blob = address(store.put(plain))
    assert blob.file is not None
    sound = service.stored(blob.file)
    bit = 8 * 20 if place_of_damage == "head" else 8 * len(sound) - 1
    service.objects.put(blob.file, flip_bit(sound, bit))  # damaged on the way, or restored later
    with pytest.raises(CorruptBlob):
        store.open(blob).read()
    service.objects.put(blob.file, sound)
    with store.open(blob) as reader:
        assert reader.read() == plain
    service.before = failing(UNREACHABLE, "get", "head", "list")
    with store.open(blob) as reader:
        assert reader.read() == plain, "the cache has the right bytes now"


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda piece: piece[:-1],
    "cut to a part of the head": lambda piece: piece[:10],
    "empty": lambda _piece: b"",
    "longer": lambda piece: piece + b"x",
    "damaged data": lambda piece: flip_bit(piece, 8 * len(piece) - 5),
    "damaged head": lambda piece: flip_bit(piece, 8 * 17),
    "a foreign file": lambda _piece: b"organpc1" + bytes(1000),
}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.usefixtures("small_pieces")
def test_a_wrong_file_of_the_cache_is_dropped_and_its_piece_is_requested_again(
    harm: str, cached: BlobBucket, service: MemoryService, tmp_path: Path
) -> None:
    data = sample(1900)
    file = put_object(cached, data)
    piece = tmp_path / "cache" / f"{file}.0"
    assert read_all(cached, file) == data
    right, requested = piece.read_bytes(), service.requests["get", file]
    piece.write_bytes(HARMS[harm](right))
    assert read_all(cached, file) == data
    assert service.requests["get", file] - requested == 1
    assert piece.read_bytes() == right


@pytest.mark.usefixtures("small_pieces")
def test_a_piece_of_another_place_or_object_is_not_taken(cached: BlobBucket, tmp_path: Path) -> None:
    data, other = sample(1900), sample(1900, seed=1)
    file, second = put_object(cached, data), put_object(cached, other)
    read_all(cached, file), read_all(cached, second)
    first = tmp_path / "cache" / f"{file}.0"
    for wrong in (f"{file}.1", f"{second}.0"):
        (tmp_path / "cache" / wrong).write_bytes(first.read_bytes())
    assert (read_all(cached, file), read_all(cached, second)) == (data, other)


def test_a_file_or_a_folder_in_the_place_of_the_cache_never_fails_a_read(
    place: BlobBucket, service: MemoryService, tmp_path: Path
) -> None:
    file = put_object(place, b"data")
    (tmp_path / "file").write_bytes(b"kept")
    (tmp_path / "folders" / f"{file}.0").mkdir(parents=True)
    for folder in ("file", "folders"):
        cached = BlobBucket(URL, PieceCache(tmp_path / folder, 100 * MEBI))
        assert read_all(cached, file) == read_all(cached, file) == b"data"
    assert service.requests["get", file] == 4
    assert (tmp_path / "file").read_bytes() == b"kept"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("call", ["mkdir", "replace", "unlink", "mkstemp"])
def test_a_full_or_read_only_cache_never_fails_a_read(
    call: str, number: int, cached: BlobBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    file, other = put_object(cached, b"data"), put_object(cached, b"other")
    assert read_all(cached, other) == b"other"
    piece = tmp_path / "cache" / f"{other}.0"
    piece.write_bytes(HARMS["damaged data"](piece.read_bytes()))
    monkeypatch.setattr(tempfile if call == "mkstemp" else Path, call, refuse)
    assert read_all(cached, file) == b"data"
    assert read_all(cached, other) == b"other"
    left = [path for path in (tmp_path / "cache").rglob("new-*") if path.is_file()]
    assert left == [] or call == "unlink"


def cache_of(folder: Path, pieces: int, cache: PieceCache, *, size: int = 1000) -> list[str]:
    """Add pieces of `size` bytes, each used a minute after the one before; return their files."""
    files = []
    for number in range(pieces):
        file = new_file_name(digest_of(b"%d" % number))
        cache.put(file, 0, ObjectPiece(sample(size, number), size, 0))
        used = time.time() - 60 * (pieces - number)
        if (folder / f"{file}.0").exists():
            os.utime(folder / f"{file}.0", (used, used))
        files.append(file)
    return files


def cached_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_cache_stays_below_its_limit_and_drops_what_was_not_used_for_the_longest_time(tmp_path: Path) -> None:
    cache = PieceCache(tmp_path, 10_500)
    files = cache_of(tmp_path, 30, cache)
    assert cached_bytes(tmp_path) <= 10_500
    present = [cache.get(file, 0) is not None for file in files]
    assert present == sorted(present), "the last ones stay"
    assert sum(present) >= 9


def test_the_use_of_a_piece_keeps_it(tmp_path: Path) -> None:
    cache = PieceCache(tmp_path, 10_500)
    files = cache_of(tmp_path, 9, cache)
    assert cached_bytes(tmp_path) < 10_500 < cached_bytes(tmp_path) + 2 * 1000
    oldest = time.time() - 20 * TOUCH_SECONDS
    for file in files:
        os.utime(tmp_path / f"{file}.0", (oldest, oldest))
    assert cache.get(files[0], 0) is not None
    for number in (100, 101):
        cache.put(new_file_name(digest_of(b"%d" % number)), 0, ObjectPiece(sample(1000, number), 1000, 0))
    assert cache.get(files[0], 0) is not None
    assert sum(cache.get(file, 0) is None for file in files) >= 1
    assert cached_bytes(tmp_path) <= 10_500


def test_a_cache_that_a_former_process_filled_is_trimmed_by_the_first_new_piece(tmp_path: Path) -> None:
    cache_of(tmp_path, 30, PieceCache(tmp_path, 1_000_000))
    assert cached_bytes(tmp_path) > 30_000
    PieceCache(tmp_path, 10_500).put(new_file_name(digest_of(b"new")), 0, ObjectPiece(b"new", 3, 0))
    assert cached_bytes(tmp_path) <= TRIMMED_TO * 10_500


def test_two_caches_trim_one_folder_at_the_same_time(tmp_path: Path) -> None:
    def fill(number: int) -> int:
        cache, right = PieceCache(tmp_path, 20_000), 0
        for index in range(60):
            file, data = new_file_name(digest_of(b"%d" % index)), sample(1000, number * 1000 + index)
            cache.put(file, 0, ObjectPiece(data, 1000, 0))
            piece = cache.get(file, 0)
            assert piece is None or piece.data == data
            right += piece is not None
        return right

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(fill, range(4))) > 0
    assert 0 < cached_bytes(tmp_path) <= 1.5 * 20_000


@pytest.mark.usefixtures("small_pieces")
def test_threads_that_read_one_object_request_each_piece_once(place: BlobBucket, service: MemoryService) -> None:
    data = sample(3900)
    file = put_object(place, data)
    stored, together = place.open(file), threading.Barrier(6)
    service.before = lambda _kind, _name: time.sleep(0.01)

    def read(number: int) -> bytes:
        together.wait()
        return stored.read_at(number, len(data) - number)

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(read, range(6))) == [data[number:] for number in range(6)]
    assert service.requests["get", file] == 4


def test_a_piece_that_failed_is_requested_again(place: BlobBucket, service: MemoryService) -> None:
    file = put_object(place, sample(PIECE_BYTES + 9))
    stored = place.open(file)
    service.before = failing(UNREACHABLE, "get")
    with pytest.raises(StoreUnreachable):
        stored.read_at(PIECE_BYTES, 9)
    service.before = lambda _kind, _name: None
    assert stored.read_at(PIECE_BYTES, 9) == sample(PIECE_BYTES + 9)[-9:]


def test_a_probe_finds_what_a_service_can_do_and_leaves_nothing(place: BlobBucket, service: MemoryService) -> None:
    found = place.probe()
    assert (found.reads_ranges, found.states_sizes, found.creates_only) == (True, True, True)
    service.knows_conditions = False
    assert not place.probe().creates_only
    service.change = lambda answer: replace(answer, data=b"organ registry")
    assert not place.probe().reads_ranges
    service.before = failing(UNREACHABLE, "list")
    with pytest.raises(StoreUnreachable):
        place.probe()
    assert service.names() == []


def test_a_service_that_overwrites_in_spite_of_the_condition_is_found(
    place: BlobBucket, service: MemoryService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        MemoryService, "put", lambda self, name, data, **_options: self.objects.put(name, data, use_multipart=False)
    )
    assert not place.probe().creates_only


def test_opening_a_bucket_makes_no_request_and_refuses_bad_addresses() -> None:
    BlobBucket("s3://there-is-no-such-bucket/folder")
    with pytest.raises(BadSetting, match="xyz://bucket: "):
        open_bucket("xyz://bucket", allows_http=False)


def test_without_the_extra_its_name_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(MissingExtra, match="install this program with the extra 's3'") as raised:
        BlobBucket(URL)
    assert raised.value.extra == "s3"
