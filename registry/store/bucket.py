"""Blobs as objects in a bucket of S3, Google Cloud Storage or Azure, through obstore (the extra `s3`).

A blob is written to a temporary local file, because its head is known last. Then it is uploaded under a new name, in
parts if it is large. It is read in pieces, each by one request. A local cache keeps pieces (`PieceCache`).

Obstore takes credentials and the address of the service from the environment variables of these services, such as
AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL. It signs requests and repeats those that failed.
"""

from __future__ import annotations

import logging
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

import xxhash

from organs.registry.digest import Digest
from organs.registry.errors import (
    BadSetting,
    CorruptBlob,
    MissingBlob,
    MissingExtra,
    OrganError,
    StoreError,
    StoreUnreachable,
    StoreUnwritable,
)
from organs.registry.recent import RecentValues
from organs.registry.store.backend import FileVersion, StrayFile, checked_name, is_physical, new_file_name
from organs.registry.store.files import PRIVATE_FOLDER, Buffer, Files, make_durable_folder, translating

if TYPE_CHECKING:
    from obstore.store import ObjectStore

EXTRA = "s3"
PIECE_BYTES = 4 * 1024 * 1024
"""Bytes of one request, and of one file of the cache."""
PIECES_KEPT = 4
"""Pieces of an open blob that stay in memory: its chunks have other bounds."""
PART_BYTES = 8 * 1024 * 1024
"""Bytes of one part of an upload. A smaller file is sent in one request, and is not written to the local disk."""
MARK = "organ-registry.json"
"""The object that a prepared bucket has."""
MARK_BYTES = b'{"form": "organ registry blobs 1"}\n'
CONNECT_SECONDS, REQUEST_SECONDS = 5, 60
RETRIES, RETRIES_SECONDS = 4, 10
"""Attempts after the first one, and the time after which there is no further one: requests wait meanwhile."""
UNREACHABLE = "the object store does not answer: try again later"
_TEXT_MAX = 200

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a bucket can do, as `BlobBucket.probe` found it."""

    reads_ranges: bool
    """Whether an answer to a range has just this range. The registry needs this."""
    states_sizes: bool
    """Whether a listing has the sizes of objects. The registry needs this."""
    creates_only: bool
    """Whether a conditional write is refused if the object exists. The registry does not need this."""


class BlobBucket:
    """The blob files in one bucket, below an optional folder. It implements `BlobBackend`; safe for threads.

    `lock` returns the context manager that excludes other sweeps and backups, on all machines. `spool` is the local
    folder for files that are being written, by default that of the system. `allows_http` permits unencrypted requests.
    """

    is_remote = True

    def __init__(
        self,
        url: str,
        cache: PieceCache | None = None,
        *,
        lock: Callable[[], AbstractContextManager[None]] = nullcontext,
        spool: Path | None = None,
        allows_http: bool = False,
    ) -> None:
        self.url = url
        self.files = Files()
        self._cache = cache
        self._lock = lock
        self.spool = spool
        self._allows_http = allows_http
        self._store = open_bucket(url, allows_http=allows_http)
        self._root: BlobBucket | None = None
        """The bucket with the mark, if this is a folder in it."""
        self._is_prepared = False

    def folder(self, name: str) -> BlobBucket:
        """Return the folder `name`, for files that are not blobs. `walk` of this bucket does not list them."""
        folder = copy(self)
        folder.url = f"{self.url}/{name}"
        folder._store = open_bucket(folder.url, allows_http=self._allows_http)
        folder._root = self
        return folder

    def prepare(self) -> None:
        """Write the mark of the registry, once in each process; raises StoreUnreachable, StoreUnwritable."""
        if self._root is not None:
            self._root.prepare()
            return
        if self._is_prepared:
            return
        if self.spool is not None:
            with translating(self.spool):
                make_durable_folder(self.files, self.spool)  # also its parents are private
        if not self.is_prepared():
            self._put(MARK, MARK_BYTES)
        self._is_prepared = True

    def is_prepared(self) -> bool:
        """Return whether the bucket has the mark of a registry."""
        if self._root is not None:
            return self._root.is_prepared()

        def has_mark() -> bool:
            with suppress(FileNotFoundError):
                self._store.head(MARK)
                return True
            return False

        try:
            return self._request(MARK, has_mark)
        except StoreError:
            return False

    def begin(self, digest: Digest, expected_bytes: int, front_bytes: int = 0) -> PendingObject:
        """Begin a file for the blob `digest`; raises StoreUnreachable, StoreUnwritable, DiskFull."""
        self.prepare()
        return PendingObject(self, digest, front_bytes)

    def open(self, file: str) -> StoredObject:
        """Open an object and read its first piece. Raises MissingBlob, CorruptBlob, StoreUnreachable."""
        return StoredObject(self, checked_name(file))

    def size_of(self, file: str) -> int | None:
        """Return the size of the object `file`; None if it does not exist. Raises StoreUnreachable."""
        if not is_physical(file):
            return None
        try:
            return int(self._request(file, lambda: self._store.head(file))["size"])
        except MissingBlob:
            return None

    def write(self, file: str, size_bytes: int, pieces: Iterator[Buffer]) -> None:
        """Write the whole object `file`."""
        pending = PendingObject(self, Digest(checked_name(file)[3:67]), 0, file)
        try:
            for piece in pieces:
                pending.append([piece])
            if pending.size_bytes != size_bytes:
                raise CorruptBlob(file, f"it ends at byte {pending.size_bytes}, {size_bytes} bytes are expected")
            pending.place()
        finally:
            pending.close()

    def remove(self, name: str) -> None:
        """Remove an object, if it still exists."""
        with suppress(MissingBlob):
            self._request(name, lambda: self._store.delete(checked_name(name)))

    def walk(self) -> Iterator[StrayFile]:
        """Yield every object with a physical name. Incomplete uploads in parts are not listed."""
        listing = iter(self._store.list(chunk_size=1000))
        while (chunk := self._listed(lambda: next(listing, None))) is not None:
            for entry in chunk:
                if is_physical(entry["path"]):
                    modified_at = entry["last_modified"].timestamp()
                    yield StrayFile(entry["path"], entry["path"], modified_at, entry["size"])

    def _listed(self, request: Callable[[], T]) -> T:
        try:
            return self._request("", request)
        except StoreUnreachable:  # the error of a listing is the same if the bucket is missing or refuses access
            self._request(MARK, lambda: self._store.head(MARK))
            raise

    def sweeping(self) -> AbstractContextManager[None]:
        """Exclude other sweeps and backups, on all machines; raises Busy."""
        return self._lock()

    def uncached(self) -> BlobBucket:
        """Return the same bucket without a cache; both use the same connections."""
        if self._cache is None:
            return self
        bucket = copy(self)
        bucket._cache = None
        return bucket

    def probe(self) -> Capabilities:
        """Write, read, list and remove a small object, and return what the service can do.

        Raises StoreUnreachable, also for a bucket that does not exist; StoreUnwritable.
        """
        from obstore.exceptions import AlreadyExistsError, BaseError

        name, data = new_file_name(Digest("00" * 32)), b"organ registry"
        self._put(name, data)
        try:
            part = self._request(name, lambda: bytes(self._store.get_range(name, start=6, length=3)))
            entries = self._listed(lambda: [entry for chunk in self._store.list(prefix="00") for entry in chunk])
            listed = {entry["path"]: entry["size"] for entry in entries}
            try:
                self._store.put(name, data, mode="create")
                creates_only = False
            except (BaseError, OSError) as error:  # others mean that it does not know conditional writes
                creates_only = isinstance(error, AlreadyExistsError)
            return Capabilities(part == data[6:9], listed.get(name) == len(data), creates_only)
        finally:
            self.remove(name)

    def read_piece(self, file: str, index: int) -> ObjectPiece:
        """Return the piece `index` of an object, from the cache if it has the piece."""
        if self._cache is not None:
            cached = self._cache.get(file, index)
            if cached is not None:
                return cached
        begin = index * PIECE_BYTES

        def read() -> ObjectPiece:
            result = self._store.get(file, options={"range": (begin, begin + PIECE_BYTES)})
            meta, data = result.meta, bytes(result.bytes())
            if len(data) != min(PIECE_BYTES, meta["size"] - begin) or result.range[0] != begin:
                raise StoreUnreachable(f"{file}: the object store sent other bytes than those that were requested")
            # Times of S3 are whole seconds, so the tag of the content is a part of the version.
            version = xxhash.xxh3_64_intdigest(f"{meta['last_modified'].isoformat()} {meta['e_tag']}".encode()) >> 1
            return ObjectPiece(data, meta["size"], version)

        try:
            piece = self._request(file, read)
        except StoreUnreachable as error:
            size_bytes = self.size_of(file)
            if size_bytes is not None and size_bytes <= begin:  # services refuse a range after the end
                raise CorruptBlob(file, f"it ends at byte {size_bytes}") from error
            raise
        if self._cache is not None:
            self._cache.put(file, index, piece)
        return piece

    def drop_piece(self, file: str, index: int) -> None:
        """Remove a piece from the cache."""
        if self._cache is not None:
            self._cache.drop(file, index)

    def put_file(self, name: str, file: tempfile.SpooledTemporaryFile[bytes] | BinaryIO, size_bytes: int) -> None:
        """Upload a local file, in parts if it is large, and check the size of the object."""
        file.seek(0)
        if size_bytes <= PART_BYTES:
            self._put(name, file.read())
        else:
            if isinstance(file, tempfile.SpooledTemporaryFile):
                file.rollover()
            self._request(name, lambda: self._store.put(name, file, use_multipart=True, chunk_size=PART_BYTES))
        stored_bytes = self.size_of(name)
        if stored_bytes != size_bytes:
            raise StoreUnreachable(f"{name}: {size_bytes} bytes were uploaded, the object store has {stored_bytes}")

    def _put(self, name: str, data: bytes) -> None:
        self._request(name, lambda: self._store.put(name, data, use_multipart=False))

    def _request(self, name: str, request: Callable[[], T]) -> T:
        """Return the result of `request`; errors of obstore become those of this program."""
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            return request()
        except FileNotFoundError as error:
            if name in ("", MARK) or not self.is_prepared():
                _log.warning("%s: no such bucket, or no registry was stored in it", self.url)
                raise StoreUnreachable(UNREACHABLE) from error
            raise MissingBlob(f"{name} is missing from the store") from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise StoreUnwritable(
                f"{self.url}: access is not allowed; set the credentials of the object store"
            ) from error
        except (BaseError, OSError, ValueError) as error:
            _log.warning("%s: %s", self.url, short_reason(str(error)))  # answers to clients do not name the bucket
            raise StoreUnreachable(UNREACHABLE) from error


def open_bucket(
    url: str,
    *,
    allows_http: bool,
    connect_seconds: float = CONNECT_SECONDS,
    request_seconds: float = REQUEST_SECONDS,
    retries: int = RETRIES,
    retry_seconds: float = RETRIES_SECONDS,
    purpose: str = "use object stores",
) -> ObjectStore:
    """Return the connections to a bucket. Nothing is requested yet. Raises MissingExtra, BadSetting."""
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise MissingExtra(f"{url}: to {purpose}, install this program with the extra {EXTRA!r}", EXTRA) from error
    try:
        return from_url(
            url,
            client_options={
                "connect_timeout": timedelta(seconds=connect_seconds),
                "timeout": timedelta(seconds=request_seconds),
                "allow_http": allows_http,
            },
            retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=retry_seconds)},
        )
    except (BaseError, ValueError) as error:
        raise BadSetting(f"{url}: {short_reason(str(error))}") from error


class PendingObject:
    """A file that is being written to a temporary local file. `place` uploads it."""

    def __init__(self, bucket: BlobBucket, digest: Digest, front_bytes: int, file: str | None = None) -> None:
        self.file = file or new_file_name(digest)
        self.size_bytes = front_bytes
        self._bucket = bucket
        self._is_uploaded = False
        folder = None if bucket.spool is None else str(bucket.spool)
        self._spool = tempfile.SpooledTemporaryFile(PART_BYTES, dir=folder)  # noqa: SIM115
        self._spool.seek(front_bytes)

    def append(self, pieces: Sequence[Buffer]) -> None:
        """Append `pieces`; raises DiskFull."""
        with translating((self._bucket.spool or Path(tempfile.gettempdir())) / "new"):
            for piece in pieces:
                self.size_bytes += self._spool.write(piece)

    def place(self, front: bytes = b"") -> str:
        """Write the front and upload the file; return its physical name. The service has stored it durably then."""
        with translating((self._bucket.spool or Path(tempfile.gettempdir())) / "new"):
            self._spool.seek(0)
            self._spool.write(front)
        self._is_uploaded = True
        self._bucket.put_file(self.file, self._spool, self.size_bytes)
        self.close()
        return self.file

    def discard(self) -> None:
        """Remove the temporary file, and the object if it was uploaded. Safe to call twice."""
        self.close()
        if self._is_uploaded:
            self._is_uploaded = False
            with suppress(OrganError):  # a sweep will remove it; the first error is more important
                self._bucket.remove(self.file)

    def close(self) -> None:
        """Remove the temporary file."""
        self._spool.close()


@dataclass(frozen=True, slots=True)
class ObjectPiece:
    """A piece of an object, with the size and a number for the version of the object."""

    data: bytes
    object_bytes: int
    version: int


class StoredObject:
    """An object that is read piece by piece; for reads from several threads."""

    def __init__(self, bucket: BlobBucket, file: str) -> None:
        self._bucket = bucket
        self._file = file
        self._pieces = RecentValues[int, ObjectPiece](PIECES_KEPT)
        first = self._piece(0)
        self.size_bytes = first.object_bytes
        self._version = first.version

    @property
    def version(self) -> FileVersion:
        """The name of the object and the number of its version."""
        return self._file, self._version

    def read_at(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`; raises CorruptBlob, MissingBlob, StoreUnreachable."""
        end = offset + size
        if end > self.size_bytes:
            raise CorruptBlob(self._file, f"it ends at byte {self.size_bytes}, {end} bytes are expected")
        parts = []
        for index in range(offset // PIECE_BYTES, -(-end // PIECE_BYTES)):
            begin = index * PIECE_BYTES
            piece = self._piece(index)
            if piece.object_bytes != self.size_bytes:
                raise CorruptBlob(self._file, "the object changed while it was read")
            parts.append(piece.data[max(0, offset - begin) : end - begin])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _piece(self, index: int) -> ObjectPiece:
        return self._pieces.get(index, lambda: self._bucket.read_piece(self._file, index))

    def drop_cached(self, offset: int, size: int) -> bool:
        """Drop the copies of these bytes in memory and in the cache, because they were found to be wrong."""
        for index in range(offset // PIECE_BYTES, -(-(offset + size) // PIECE_BYTES)):
            self._pieces.forget(index)
            self._bucket.drop_piece(self._file, index)
        return True

    def close(self) -> None:
        """Free the pieces in memory."""
        self._pieces.clear()


TRIMMED_TO = 0.9
"""The share of its size to which a full cache is trimmed."""
LOOKS = 16
"""How often a cache is trimmed while as many bytes are written as it may have."""
TOUCH_SECONDS = 60.0
"""The time after which the use of a piece is recorded again."""


class PieceCache:
    """Pieces of objects as files in a local folder, which several processes may share; safe for threads.

    It has about `limit_bytes`; the least recently used pieces are removed. A file has a checksum of its name, its size
    and its bytes. A file with a wrong checksum is removed, and the piece is requested again. Faults of the local disk
    never fail a read.
    """

    _HEAD = struct.Struct("<8sQQq")
    """Magic, checksum, size and version of the object."""
    _MAGIC = b"organpc1"

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._trimming = threading.Lock()
        self._written_bytes = limit_bytes
        """Bytes written since the folder was last trimmed; at first it is assumed to be full."""

    def get(self, file: str, index: int) -> ObjectPiece | None:
        """Return a piece; None if it is not in the cache."""
        path = self._path(file, index)
        try:
            with path.open("rb") as stream:
                content = stream.read(self._HEAD.size + PIECE_BYTES + 1)
                age_seconds = time.time() - os.fstat(stream.fileno()).st_mtime
        except OSError:
            return None
        piece = None
        if len(content) >= self._HEAD.size:
            magic, checksum, object_bytes, version = self._HEAD.unpack_from(content)
            found = ObjectPiece(content[self._HEAD.size :], object_bytes, version)
            if magic == self._MAGIC and checksum == self._checksum(file, index, found):
                piece = found
        if piece is None:
            with suppress(OSError):
                path.unlink()
        elif age_seconds > TOUCH_SECONDS:
            with suppress(OSError):
                os.utime(path)
        return piece

    def drop(self, file: str, index: int) -> None:
        """Remove a piece."""
        with suppress(OSError):
            self._path(file, index).unlink()

    def put(self, file: str, index: int, piece: ObjectPiece) -> None:
        """Add a piece."""
        path = self._path(file, index)
        with suppress(OSError):  # a full disk: the cache is only for speed
            if not self.folder.is_dir():
                make_durable_folder(Files(), self.folder)
            path.parent.mkdir(PRIVATE_FOLDER, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(prefix="new-", dir=path.parent)
            try:
                with os.fdopen(descriptor, "wb") as stream:
                    checksum = self._checksum(file, index, piece)
                    stream.write(self._HEAD.pack(self._MAGIC, checksum, piece.object_bytes, piece.version))
                    stream.write(piece.data)
                Path(temporary).replace(path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        self._written_bytes += len(piece.data)
        if self._written_bytes * LOOKS > self.limit_bytes and self._trimming.acquire(blocking=False):
            try:
                self._written_bytes = 0
                self._trim()
            finally:
                self._trimming.release()

    def _trim(self) -> None:
        """Remove the least recently used files until the folder has less than its limit."""
        entries = sorted(_cached_files(self.folder))
        total = sum(size for _, size, _ in entries)
        if total <= self.limit_bytes:
            return
        for _, size, path in entries:
            if total <= TRIMMED_TO * self.limit_bytes:
                break
            with suppress(OSError):
                path.unlink()
            total -= size

    def _path(self, file: str, index: int) -> Path:
        return self.folder / f"{file}.{index}"

    def _checksum(self, file: str, index: int, piece: ObjectPiece) -> int:
        hashed = xxhash.xxh3_64(f"{file} {index} {piece.object_bytes} {piece.version} ".encode())
        hashed.update(piece.data)
        return hashed.intdigest()


def cache_size_bytes(folder: Path) -> int:
    """Return the bytes of all files of the cache in `folder`. It reads the entries of all files."""
    return sum(size for _, size, _ in _cached_files(folder))


def _cached_files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield the time of the last use, the size and the path of each file of a cache."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with suppress(OSError):
                status = path.stat()
                yield status.st_mtime, status.st_size, path


def short_reason(text: str) -> str:
    """Return the reason in a message of obstore: its first line without the address, which can have a signature."""
    first = text.partition("\n")[0].rpartition(" - ")[2]
    return first.partition(": <")[0][:_TEXT_MAX]
