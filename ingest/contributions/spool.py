"""The bytes of uploads, until a model is made of them: in a folder (`FolderSpool`) or in a bucket (`BucketSpool`).

In a folder, an upload is one file. Its lock excludes other processes of this machine.

In a bucket, each chunk is an object with a new name, and a row of `upload_chunks` names it. The row is written in the
transaction that counts the chunk as received, so that several machines can receive chunks of one upload: of two chunks
with the same offset, one is refused. Objects never change, so no lock is needed.
"""

from __future__ import annotations

import os
import re
import secrets
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from organs.ingest.files import FileSource
from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.submissions import chunks_of_upload, known_chunk_files, upload_names
from organs.registry.catalog.rows import batches
from organs.registry.catalog.tables import UploadChunk
from organs.registry.digest import Digest
from organs.registry.errors import Conflict, DiskFull, MissingBlob, NotFound
from organs.registry.local import LocalRegistry
from organs.registry.store.backend import OpenBlob, PendingBlob, StrayFile
from organs.registry.store.files import Files, lock_file, make_durable_folder, translated

if TYPE_CHECKING:
    from organs.registry.store.bucket import BlobBucket

FREE_MARGIN_BYTES = 64 * 1024 * 1024
"""Free space that uploads leave on the disk."""
READ_BYTES = 1024 * 1024
OPEN_CHUNKS_MAX = 4
"""Chunks of an upload whose last bytes stay in memory while it is read."""
IN_USE = "another client uses this upload now: try again later"
OBJECTS = "uploads"
"""The folder of the chunks in the bucket."""

_NAME = re.compile(r"[0-9A-Za-z_-]{22}", re.ASCII)


class BytesLost(Conflict, code="bytes-lost"):
    """The received bytes of an upload are lost. Remove the upload and start again."""

    def __init__(self) -> None:
        super().__init__("the bytes of this upload are lost: remove it and start again")


def spool_of(registry: LocalRegistry) -> FolderSpool | BucketSpool:
    """Return the spool of the registry. It is in the bucket if the blobs are, so that all machines can use it."""
    bucket = registry.object_folder(OBJECTS)
    if bucket is None:
        return FolderSpool(registry.settings.uploads, registry.catalog, registry.blobs.backend.files)
    return BucketSpool(bucket, registry.catalog)


class FolderSpool:
    """A folder with a file for each upload. The name of an upload is its public id."""

    def __init__(self, root: Path, catalog: Catalog, files: Files | None = None) -> None:
        self.root = root
        self._catalog = catalog
        self._files = files or Files()

    def make(self, expected_bytes: int) -> str:
        """Create an empty file with a new name; both are durable on return.

        Raises DiskFull if there is no space for `expected_bytes`, StoreUnwritable; then there is no file.
        """
        name = _new_name()
        path = self.path(name)
        try:
            if not self.root.is_dir():
                make_durable_folder(self._files, self.root)
            free = self._files.free_bytes(self.root)
            if free < expected_bytes + FREE_MARGIN_BYTES:
                raise DiskFull(f"the disk of {self.root} has {free / 1e6:.1f} MB free")
            self._files.close(self._files.create(path))
            self._files.sync_folder(self.root)
        except OSError as error:
            with suppress(OSError):
                os.unlink(path)
            raise translated(error, path) from error
        return name

    @contextmanager
    def locked(self, name: str) -> Iterator[SpoolFile]:
        """Lock the file of that name until the end of the block.

        Raises Conflict if it is locked, BytesLost if it does not exist, NotFound for a name that cannot exist,
        StoreError.
        """
        path = self.path(name)
        with _translating(path):
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError as error:
                raise BytesLost from error
        try:
            lock_file(descriptor, path, Conflict(IN_USE))
            yield SpoolFile(self._files, path, descriptor)
        finally:
            os.close(descriptor)  # this releases the lock

    def open(self, name: str) -> FileSource:
        """Open a file for reading; raises BadSource if it does not exist."""
        return FileSource(self.path(name))

    def has(self, name: str, size_bytes: int) -> bool:
        """Return whether the file exists with at least `size_bytes` bytes."""
        try:
            return self.path(name).stat().st_size >= size_bytes
        except OSError:
            return False

    def remove(self, name: str, chunks: Sequence[UploadChunk] = ()) -> None:
        """Remove the file if it exists. It has no `chunks`."""
        path = self.path(name)
        with _translating(path), suppress(FileNotFoundError):
            self._files.unlink(path)

    def path(self, name: str) -> Path:
        """Return the path of the file; raises NotFound for a name that the spool cannot have."""
        return self.root / _checked_name(name)

    def walk(self) -> Iterator[StrayFile]:
        """Yield all files of the spool. Files can appear and disappear meanwhile."""
        try:
            entries = list(os.scandir(self.root))
        except FileNotFoundError:
            return
        for entry in entries:
            with suppress(FileNotFoundError):
                if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    yield StrayFile(entry.name, entry.name, status.st_mtime, status.st_size)

    def strays(self, modified_before: float) -> Iterator[StrayFile]:
        """Yield old files without a row."""
        old = [file for file in self.walk() if file.modified_at < modified_before]
        if old:
            with self._catalog.reading() as session:
                known = upload_names(session)
            yield from (file for file in old if file.name not in known)

    def remove_stray(self, name: str) -> None:
        """Remove a file of `strays`."""
        self.remove(name)


class SpoolFile:
    """A file of a folder whose lock is held."""

    def __init__(self, files: Files, path: Path, descriptor: int) -> None:
        self._files = files
        self._path = path
        self._descriptor = descriptor

    def write(self, data: bytes, offset_bytes: int) -> None:
        """Write `data` at an offset; raises DiskFull, StoreError. It is durable only after `sync`."""
        with _translating(self._path):
            self._files.write_at(self._descriptor, [data], offset_bytes)

    def sync(self) -> None:
        """Write all data to the disk; raises DiskFull, StoreError. There is no new object whose name is needed."""
        with _translating(self._path):
            self._files.sync(self._descriptor)

    def discard(self) -> None:
        """Do nothing: the next chunk overwrites bytes that are not counted as received."""

    def read(self, offset_bytes: int, size_bytes: int) -> Iterator[bytes]:
        """Yield the bytes of a range in order, at most READ_BYTES at a time; fewer at the end of the file.

        Raises StoreError.
        """
        end = offset_bytes + size_bytes
        while offset_bytes < end:
            with _translating(self._path):
                data = self._files.read_at(self._descriptor, offset_bytes, min(READ_BYTES, end - offset_bytes))
            if not data:
                return
            yield data
            offset_bytes += len(data)


class BucketSpool:
    """A folder of a bucket with an object for each chunk. The rows of the chunks are in the catalog."""

    def __init__(self, bucket: BlobBucket, catalog: Catalog) -> None:
        self._bucket = bucket
        self._catalog = catalog

    def make(self, _expected_bytes: int) -> str:
        """Return a new name. A bucket has no known limit."""
        return _new_name()

    @contextmanager
    def locked(self, name: str) -> Iterator[ChunkedUpload]:
        """Open an upload. Nothing is locked: see the beginning of this module."""
        upload = self.open(name)
        try:
            yield upload
        finally:
            upload.close()

    def open(self, name: str) -> ChunkedUpload:
        """Open an upload; raises BytesLost if its received bytes are not in this bucket."""
        chunks = self._chunks(name)
        if chunks is None:
            raise BytesLost
        return ChunkedUpload(self._bucket, chunks)

    def has(self, name: str, size_bytes: int) -> bool:
        """Return whether the received chunks are in this bucket and have at least `size_bytes` bytes."""
        chunks = self._chunks(name)
        return chunks is not None and sum(chunk.size_bytes for chunk in chunks) >= size_bytes

    def remove(self, name: str, chunks: Sequence[UploadChunk] = ()) -> None:
        """Remove the objects of an upload; those that cannot be removed now are strays."""
        _checked_name(name)
        for chunk in chunks:
            self._bucket.remove(chunk.file)

    def strays(self, modified_before: float) -> Iterator[StrayFile]:
        """Yield old objects without a row."""
        old = [found for found in self._bucket.walk() if found.modified_at < modified_before]
        for batch in batches(old):
            with self._catalog.reading() as session:
                known = known_chunk_files(session, [found.name for found in batch])
            yield from (found for found in batch if found.name not in known)

    def remove_stray(self, name: str) -> None:
        """Remove an object of `strays`."""
        self._bucket.remove(name)

    def _chunks(self, name: str) -> Sequence[UploadChunk] | None:
        """Return the chunks of an upload in order; None if they are not all of its received bytes."""
        with self._catalog.reading() as session:
            received_bytes, chunks = chunks_of_upload(session, _checked_name(name))
        return chunks if sum(chunk.size_bytes for chunk in chunks) == received_bytes else None


class ChunkedUpload:
    """The chunks of an upload in a bucket, in order. One thread uses it."""

    def __init__(self, bucket: BlobBucket, chunks: Sequence[UploadChunk]) -> None:
        self._bucket = bucket
        self._chunks = chunks
        self._open: OrderedDict[int, OpenBlob] = OrderedDict()
        self._pending: PendingBlob | None = None
        self._end_bytes = 0
        """The end of the bytes that were written."""

    def write(self, data: bytes, offset_bytes: int) -> None:
        """Append `data` to the new chunk; raises DiskFull, StoreError."""
        if self._pending is None:
            name = Digest(secrets.token_hex(32))  # the digest of the chunk is not known yet, and a name needs none
            self._pending, self._end_bytes = self._bucket.begin(name, 0), offset_bytes
        assert offset_bytes == self._end_bytes
        self._pending.append([data])
        self._end_bytes += len(data)

    def sync(self) -> str | None:
        """Upload the new chunk and return the name of its object."""
        return None if self._pending is None else self._pending.place()

    def discard(self) -> None:
        """Remove the new chunk."""
        if self._pending is not None:
            self._pending.discard()

    def read(self, offset_bytes: int, size_bytes: int) -> Iterator[bytes]:
        """Yield the bytes of a range; raises BytesLost, StoreError, and Conflict for bytes that arrived meanwhile."""
        end = offset_bytes + size_bytes
        if end > (self._chunks[-1].end_bytes if self._chunks else 0):
            raise Conflict(IN_USE)
        while offset_bytes < end:
            index = bisect_right(self._chunks, offset_bytes, key=lambda chunk: chunk.offset_bytes) - 1
            chunk = self._chunks[index]
            size = min(READ_BYTES, end - offset_bytes, chunk.end_bytes - offset_bytes)
            try:
                data = self._opened(index).read_at(offset_bytes - chunk.offset_bytes, size)
            except MissingBlob as error:
                raise BytesLost from error
            yield data
            offset_bytes += len(data)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset`; raises BytesLost, StoreError."""
        filled = 0
        for data in self.read(offset, len(buffer)):
            buffer[filled : filled + len(data)] = data
            filled += len(data)

    def close(self) -> None:
        """Close the chunks that were read."""
        while self._open:
            self._open.popitem()[1].close()

    def _opened(self, index: int) -> OpenBlob:
        if index not in self._open:
            self._open[index] = self._bucket.open(self._chunks[index].file)
            if len(self._open) > OPEN_CHUNKS_MAX:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(index)
        return self._open[index]


@contextmanager
def _translating(path: Path) -> Iterator[None]:
    """Raise errors of the disk as DiskFull or StoreError."""
    try:
        yield
    except OSError as error:
        raise translated(error, path) from error


def _new_name() -> str:
    return secrets.token_urlsafe(16)  # 128 random bits, 22 characters


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise NotFound(f"there is no upload {name[:40]!r}")
    return name
