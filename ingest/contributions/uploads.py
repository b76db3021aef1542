"""Uploads from opening to end, the removal of expired uploads, and their bytes, until a model is made of them.

The bytes are in a folder (`FolderSpool`) or in a bucket (`BucketSpool`). In a folder, an upload is one file. Its lock
excludes other processes of this machine.

In a bucket, each chunk is an object with a new name, and a row of `upload_chunks` names it. The row is written in the
transaction that counts the chunk as received, so that several machines can receive chunks of one upload: of two chunks
with the same offset, one is refused. Objects never change, so no lock is needed.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from organs.registry.catalog.engine import Catalog, database_now
from organs.registry.catalog.queries.submissions import (
    chunks_of_upload,
    expired_uploads,
    known_chunk_files,
    open_uploads,
    pieces_of_upload,
    upload_by_public_id,
    upload_names,
    uploads_within,
)
from organs.registry.catalog.register.submissions import (
    add_upload,
    check_upload_allowed,
    complete_upload,
    record_received,
    remove_expired_upload,
    remove_upload,
)
from organs.registry.catalog.rows import batches
from organs.registry.catalog.tables import UploadChunk, UploadRow
from organs.registry.digest import Digest
from organs.registry.entities.submission import UploadRequest
from organs.registry.errors import BadInput, Conflict, Count, DiskFull, MissingBlob, NotFound
from organs.registry.input_files import FileSource
from organs.registry.local import LocalRegistry
from organs.registry.recent import RecentValues
from organs.registry.store.backend import OpenBlob, PendingBlob, StrayFile
from organs.registry.store.files import Files, lock_file, make_durable_folder, translating
from organs.registry.upload_limits import PACK_MAX_BYTES, chunk_min_bytes

if TYPE_CHECKING:
    from organs.registry.store.bucket import BlobBucket

WRONG_PIECES_TOLD = 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of an upload of `size_bytes`: from byte `begin` up to byte `end`, which is not included."""

    begin: int
    end: int
    size_bytes: int
    sha256: bytes | None = None
    """The SHA-256 that the sender declares, or None."""


class WrongOffset(Conflict, code="wrong-offset", status=416):
    """A chunk of an upload does not begin where the received bytes end."""

    received_bytes: Count

    def __init__(self, upload: UploadRow) -> None:
        super().__init__(f"{upload.received_bytes:,} bytes were received: the next chunk must begin there")
        self.received_bytes = upload.received_bytes
        self.upload = upload


def check_request(wanted: UploadRequest) -> None:
    """Raise BadInput for an upload that can never be completed."""
    pieces = wanted.pieces or ()
    if wanted.kind == "piece" and wanted.digest is None:
        raise BadInput("declare a piece with its digest")
    if (wanted.kind == "pack") != bool(pieces):
        raise BadInput("declare pieces for a pack, and only for a pack")
    if wanted.kind == "pack" and wanted.size_bytes > PACK_MAX_BYTES:
        raise BadInput(f"a pack has at most {PACK_MAX_BYTES:,} bytes, not {wanted.size_bytes:,}")
    total = sum(piece.size_bytes for piece in pieces)
    if wanted.kind == "pack" and total != wanted.size_bytes:
        raise BadInput(f"the pieces have {total:,} bytes in total, but the pack is declared with {wanted.size_bytes:,}")


def open_upload(registry: LocalRegistry, contributor_id: int, wanted: UploadRequest) -> UploadRow:
    """Return the contributor's open upload of the same request, else a new one. `check_request` has passed `wanted`.

    Raises OverQuota, TooMany, DiskFull, StoreUnwritable.
    """
    spool = spool_of(registry)
    packed = [(piece.size_bytes, piece.digest) for piece in wanted.pieces or ()]
    # The only piece of an upload of kind `piece` is the whole upload.
    pieces = [(wanted.size_bytes, wanted.digest)] if wanted.kind == "piece" and wanted.digest else packed

    def check_allowed(session: Session, *, hold: bool) -> None:
        check_upload_allowed(
            session,
            contributor_id,
            wanted.size_bytes,
            len(packed),
            default_quota_bytes=registry.settings.quota_bytes,
            upload_max_bytes=registry.settings.upload_max_bytes,
            hold=hold,
        )

    def is_same(session: Session, upload: UploadRow) -> bool:
        return (
            (upload.kind, upload.size_bytes, upload.name) == (wanted.kind, wanted.size_bytes, wanted.name)
            and upload.digest == wanted.digest
            and spool.has(upload.public_id, upload.received_bytes)
            and [(size, digest) for _, size, digest in pieces_of_upload(session, upload.id)] == pieces
        )

    with registry.catalog.reading() as session:
        for upload in open_uploads(session, contributor_id, database_now(session)):
            if is_same(session, upload):
                return upload
        check_allowed(session, hold=False)
    name = spool.make(wanted.size_bytes)
    try:
        with registry.catalog.writing() as session:
            check_allowed(session, hold=True)
            return add_upload(
                session,
                contributor_id,
                name,
                kind=wanted.kind,
                size_bytes=wanted.size_bytes,
                digest=wanted.digest,
                name=wanted.name,
                pieces=pieces,
            )
    except BaseException:
        spool.remove(name)
        raise


def look_up(registry: LocalRegistry, contributor_id: int, public_id: str) -> UploadRow:
    """Return the contributor's upload with that id; raises NotFound."""
    with registry.catalog.reading() as session:
        return upload_by_public_id(session, public_id, contributor_id, database_now(session))


def is_received(upload: UploadRow, chunk: Chunk) -> bool:
    """Return whether the whole chunk was received before, for example if the client did not get the answer.

    Raises WrongOffset if it does not begin at the end of the received bytes, BadInput for another total size and for a
    chunk that is too small.
    """
    if chunk.size_bytes != upload.size_bytes:
        raise BadInput(
            f"the chunk states a total of {chunk.size_bytes:,} bytes, but the upload has {upload.size_bytes:,}"
        )
    if chunk.end <= upload.received_bytes:
        return True
    if chunk.begin != upload.received_bytes:
        raise WrongOffset(upload)
    least_bytes = chunk_min_bytes(upload.size_bytes)
    if chunk.end - chunk.begin < least_bytes and chunk.end < upload.size_bytes:
        raise BadInput(f"a chunk of this upload has at least {least_bytes:,} bytes, except the last one")
    return False


def receive(
    registry: LocalRegistry, contributor_id: int, public_id: str, chunk: Chunk, pieces: Iterable[bytes]
) -> UploadRow:
    """Store a chunk with the bytes of `pieces`; it is durable on return.

    A chunk that was received before is compared with the stored bytes. Raises NotFound, Conflict while another client
    uses the upload and for a repeated chunk with other bytes, WrongOffset, BadInput for bytes that differ from the
    declaration, DiskFull, StoreError, and the errors of `pieces`: then the upload is unchanged.
    """
    with _locked(registry, contributor_id, public_id) as (upload, file):
        if is_received(upload, chunk):
            for offset, piece in _within(chunk, pieces):
                if b"".join(file.read(offset, len(piece))) != piece:
                    raise Conflict(f"other bytes were received before for {chunk.begin:,} to {chunk.end - 1:,}")
            return upload
        try:
            hashed = hashlib.sha256()
            for offset, piece in _within(chunk, pieces):
                if chunk.sha256 is not None:
                    hashed.update(piece)
                file.write(piece, offset)
            if chunk.sha256 is not None and hashed.digest() != chunk.sha256:
                actual = base64.b64encode(hashed.digest()).decode("ascii")
                raise BadInput(f"the chunk has another digest than it declares: sha-256=:{actual}:")
            stored = file.sync()
        except BaseException:
            file.discard()
            raise
        # If this transaction fails, it may have been committed: then the stored bytes are needed.
        with registry.catalog.writing() as session:
            is_recorded = record_received(session, upload.id, chunk.begin, chunk.end, stored)
        if not is_recorded:
            file.discard()
            raise Conflict("another client uses this upload, or it has ended: look it up again")
        return look_up(registry, contributor_id, public_id)


def finish(registry: LocalRegistry, contributor_id: int, public_id: str, digest: Digest | None = None) -> UploadRow:
    """Finish an upload: read it again, and compare it with the declared digests and with `digest`.

    A finished upload is returned unchanged. Raises NotFound, Conflict while another client uses it, BadInput for
    missing or wrong bytes: then the upload stays open until it is removed or expires.
    """
    with _locked(registry, contributor_id, public_id) as (upload, file):
        if digest is not None and upload.digest is not None and digest != upload.digest:
            raise BadInput(f"the upload was declared with the SHA-256 {upload.digest}, but finished with {digest}")
        if upload.state == "complete":
            return upload
        if upload.received_bytes < upload.size_bytes:
            raise BadInput(
                f"{upload.received_bytes:,} of {upload.size_bytes:,} bytes were received: send the rest first"
            )
        actual = _checked_digest(registry, upload, file, digest or upload.digest)
        with registry.catalog.writing() as session:
            is_completed = complete_upload(session, upload.id, actual)
        upload = look_up(registry, contributor_id, public_id)
        if not is_completed and upload.state != "complete":  # another machine may have finished it
            raise Conflict("the upload has ended meanwhile")
        return upload


def cancel(registry: LocalRegistry, contributor_id: int, public_id: str) -> UploadRow:
    """Remove an upload and its bytes, finished or not, and return it. Raises NotFound, Conflict while another client
    uses it.
    """
    upload = look_up(registry, contributor_id, public_id)
    _remove(registry, upload.id, public_id, remove_upload)
    return upload


@contextmanager
def _locked(
    registry: LocalRegistry, contributor_id: int, public_id: str
) -> Iterator[tuple[UploadRow, SpoolFile | ChunkedUpload]]:
    look_up(registry, contributor_id, public_id)  # raises NotFound before a lock is taken
    with spool_of(registry).locked(public_id) as file:
        yield look_up(registry, contributor_id, public_id), file


def _within(chunk: Chunk, pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield `pieces` with their offsets in the upload. Raises BadInput if they have not the size of the chunk."""
    offset = chunk.begin
    for piece in pieces:
        if offset + len(piece) > chunk.end:
            raise BadInput(f"the chunk has more than the {chunk.end - chunk.begin:,} bytes that it declares")
        yield offset, piece
        offset += len(piece)
    if offset < chunk.end:
        raise BadInput(f"the chunk ends after {offset - chunk.begin:,} of {chunk.end - chunk.begin:,} bytes")


def _checked_digest(
    registry: LocalRegistry, upload: UploadRow, file: SpoolFile | ChunkedUpload, expected: str | None
) -> Digest:
    """Return the digest of all bytes, read in small portions; raises BadInput if it or that of a piece is wrong."""
    spans: list[tuple[int, int, Digest | None]] = [(0, upload.size_bytes, None)]
    if upload.kind == "pack":
        with registry.catalog.reading() as session:
            spans = [*pieces_of_upload(session, upload.id)]
    total_hash, wrong_offsets = hashlib.sha256(), list[int]()
    for offset, size, digest in spans:
        piece_hash = hashlib.sha256()
        for data in file.read(offset, size):
            total_hash.update(data)
            if digest is not None:
                piece_hash.update(data)
        if digest is not None and piece_hash.hexdigest() != digest:
            wrong_offsets.append(offset)
    if expected is not None and total_hash.hexdigest() != expected:
        raise BadInput(f"its bytes have the digest {total_hash.hexdigest()}, not {expected}")
    if wrong_offsets:
        offsets = ", ".join(f"{offset:,}" for offset in wrong_offsets[:WRONG_PIECES_TOLD])
        raise BadInput(f"{len(wrong_offsets)} of its pieces have other digests than declared: those at byte {offsets}")
    return Digest(total_hash.hexdigest())


STRAY_AFTER_SECONDS = 3600.0
"""Age from which a file without a row is removed: the row of a newer file may not be written yet."""
AT_ONCE = 500

RemoveRow = Callable[[Session, int], bool]
"""Removes the row of an upload by its id; returns False if it must stay."""


@dataclass(slots=True)
class TidyReport:
    """Removed uploads and files; with `dry_run`, those that would be removed."""

    expired_uploads: int = 0
    stray_files: int = 0
    removed_bytes: int = 0


def tidy_uploads(registry: LocalRegistry, *, dry_run: bool = False) -> TidyReport:
    """Remove expired uploads, and files of the spool without a row. Uploads in use are kept."""
    report, after_id = TidyReport(), 0
    while True:
        with registry.catalog.reading() as session:
            expired = expired_uploads(session, database_now(session), after_id, AT_ONCE)
        if not expired:
            break
        after_id = expired[-1][0]
        received_bytes = {name: size_bytes for _, name, size_bytes in expired}
        uploads = [(upload_id, name) for upload_id, name, _ in expired]
        names = list(received_bytes) if dry_run else _remove_all(registry, uploads, remove_expired_upload)
        report.expired_uploads += len(names)
        report.removed_bytes += sum(received_bytes[name] for name in names)
    spool = spool_of(registry)
    for file in list(spool.strays(time.time() - STRAY_AFTER_SECONDS)):
        if not dry_run:
            spool.remove_stray(file.name)
        report.stray_files += 1
        report.removed_bytes += file.size_bytes
    return report


def forget_uploads(
    registry: LocalRegistry,
    contributor_id: int,
    digests: Collection[str],
    public_ids: Collection[str],
    remove: RemoveRow = remove_upload,
) -> int:
    """Remove the contributor's finished uploads whose pieces are all in `digests`, and the uploads with `public_ids`.

    Return the number of removed uploads. Digests of pieces that another model needs must be left out; `remove` checks
    again in the removing transaction, and keeps an upload by returning False.
    """
    with registry.catalog.reading() as session:
        uploads = uploads_within(session, contributor_id, digests, public_ids)
    return len(_remove_all(registry, uploads, remove))


def _remove_all(registry: LocalRegistry, uploads: Sequence[tuple[int, str]], remove: RemoveRow) -> list[str]:
    """Remove `uploads`, ids and names, except those in use and those that `remove` keeps; return the removed names."""
    removed = []
    for upload_id, name in uploads:
        with suppress(Conflict):
            if _remove(registry, upload_id, name, remove):
                removed.append(name)
    return removed


def _remove(registry: LocalRegistry, upload_id: int, name: str, remove: RemoveRow) -> bool:
    """Remove an upload; return whether `remove` did. Raises Conflict while another client uses it.

    The row is removed before the bytes: a crash in between leaves a stray file, not a row without a file.
    """
    spool = spool_of(registry)
    with ExitStack() as lock:
        with suppress(BytesLost):
            lock.enter_context(spool.locked(name))
        with registry.catalog.writing() as session:
            _, chunks = chunks_of_upload(session, name)
            is_gone = remove(session, upload_id)
        if is_gone:
            spool.remove(name, chunks)
    return is_gone


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


@dataclass(frozen=True, slots=True)
class FolderSpool:
    """A folder with a file for each upload. The name of an upload is its public id."""

    root: Path
    catalog: Catalog
    files: Files = field(default_factory=Files)

    def make(self, expected_bytes: int) -> str:
        """Create an empty file with a new name; both are durable on return.

        Raises DiskFull if there is no space for `expected_bytes`, StoreUnwritable; then there is no file.
        """
        name = _new_name()
        path = self.path(name)
        with translating(path):
            try:
                if not self.root.is_dir():
                    make_durable_folder(self.files, self.root)
                free = self.files.free_bytes(self.root)
                if free < expected_bytes + FREE_MARGIN_BYTES:
                    raise DiskFull(f"the disk of {self.root} has {free / 1e6:.1f} MB free")
                self.files.close(self.files.create(path))
                self.files.sync_folder(self.root)
            except OSError:
                with suppress(OSError):
                    os.unlink(path)
                raise
        return name

    @contextmanager
    def locked(self, name: str) -> Iterator[SpoolFile]:
        """Lock the file of that name until the end of the block.

        Raises Conflict if it is locked, BytesLost if it does not exist, NotFound for a name that cannot exist,
        StoreError.
        """
        path = self.path(name)
        with translating(path):
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError as error:
                raise BytesLost from error
        try:
            lock_file(descriptor, path, Conflict(IN_USE))
            yield SpoolFile(self.files, path, descriptor)
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
        with translating(path), suppress(FileNotFoundError):
            self.files.unlink(path)

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
            with self.catalog.reading() as session:
                known = upload_names(session)
            yield from (file for file in old if file.name not in known)

    def remove_stray(self, name: str) -> None:
        """Remove a file of `strays`."""
        self.remove(name)


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A file of a folder whose lock is held."""

    files: Files
    path: Path
    descriptor: int

    def write(self, data: bytes, offset_bytes: int) -> None:
        """Write `data` at an offset; raises DiskFull, StoreError. It is durable only after `sync`."""
        with translating(self.path):
            self.files.write_at(self.descriptor, [data], offset_bytes)

    def sync(self) -> None:
        """Write all data to the disk; raises DiskFull, StoreError. There is no new object whose name is needed."""
        with translating(self.path):
            self.files.sync(self.descriptor)

    def discard(self) -> None:
        """Do nothing: the next chunk overwrites bytes that are not counted as received."""

    def read(self, offset_bytes: int, size_bytes: int) -> Iterator[bytes]:
        """Yield the bytes of a range in order, at most READ_BYTES at a time; fewer at the end of the file.

        Raises StoreError.
        """
        end = offset_bytes + size_bytes
        while offset_bytes < end:
            with translating(self.path):
                data = self.files.read_at(self.descriptor, offset_bytes, min(READ_BYTES, end - offset_bytes))
            if not data:
                return
            yield data
            offset_bytes += len(data)


@dataclass(frozen=True, slots=True)
class BucketSpool:
    """A folder of a bucket with an object for each chunk. The rows of the chunks are in the catalog."""

    bucket: BlobBucket
    catalog: Catalog

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
        return ChunkedUpload(self.bucket, chunks)

    def has(self, name: str, size_bytes: int) -> bool:
        """Return whether the received chunks are in this bucket and have at least `size_bytes` bytes."""
        chunks = self._chunks(name)
        return chunks is not None and sum(chunk.size_bytes for chunk in chunks) >= size_bytes

    def remove(self, name: str, chunks: Sequence[UploadChunk] = ()) -> None:
        """Remove the objects of an upload; those that cannot be removed now are strays."""
        _checked_name(name)
        for chunk in chunks:
            self.bucket.remove(chunk.file)

    def strays(self, modified_before: float) -> Iterator[StrayFile]:
        """Yield old objects without a row."""
        old = [found for found in self.bucket.walk() if found.modified_at < modified_before]
        for batch in batches(old):
            with self.catalog.reading() as session:
                known = known_chunk_files(session, [found.name for found in batch])
            yield from (found for found in batch if found.name not in known)

    def remove_stray(self, name: str) -> None:
        """Remove an object of `strays`."""
        self.bucket.remove(name)

    def _chunks(self, name: str) -> Sequence[UploadChunk] | None:
        """Return the chunks of an upload in order; None if they are not all of its received bytes."""
        with self.catalog.reading() as session:
            received_bytes, chunks = chunks_of_upload(session, _checked_name(name))
        return chunks if sum(chunk.size_bytes for chunk in chunks) == received_bytes else None


@dataclass(slots=True)
class ChunkedUpload:
    """The chunks of an upload in a bucket, in order. One thread uses it."""

    bucket: BlobBucket
    chunks: Sequence[UploadChunk]
    opened: RecentValues[int, OpenBlob] = field(
        default_factory=lambda: RecentValues(OPEN_CHUNKS_MAX, methodcaller("close"))
    )
    pending: PendingBlob | None = None
    end_bytes: int = 0
    """The end of the bytes that were written."""

    def write(self, data: bytes, offset_bytes: int) -> None:
        """Append `data` to the new chunk; raises DiskFull, StoreError."""
        if self.pending is None:
            name = Digest(secrets.token_hex(32))  # the digest of the chunk is not known yet, and a name needs none
            self.pending, self.end_bytes = self.bucket.begin(name, 0), offset_bytes
        assert offset_bytes == self.end_bytes
        self.pending.append([data])
        self.end_bytes += len(data)

    def sync(self) -> str | None:
        """Upload the new chunk and return the name of its object."""
        return None if self.pending is None else self.pending.place()

    def discard(self) -> None:
        """Remove the new chunk."""
        if self.pending is not None:
            self.pending.discard()

    def read(self, offset_bytes: int, size_bytes: int) -> Iterator[bytes]:
        """Yield the bytes of a range; raises BytesLost, StoreError, and Conflict for bytes that arrived meanwhile."""
        end = offset_bytes + size_bytes
        if end > (self.chunks[-1].end_bytes if self.chunks else 0):
            raise Conflict(IN_USE)
        while offset_bytes < end:
            index = bisect_right(self.chunks, offset_bytes, key=lambda chunk: chunk.offset_bytes) - 1
            chunk = self.chunks[index]
            size = min(READ_BYTES, end - offset_bytes, chunk.end_bytes - offset_bytes)
            try:
                opened = self.opened.get(index, partial(self.bucket.open, chunk.file))
                data = opened.read_at(offset_bytes - chunk.offset_bytes, size)
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
        self.opened.clear()


def _new_name() -> str:
    return secrets.token_urlsafe(16)  # 128 random bits, 22 characters


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise NotFound(f"there is no upload {name[:40]!r}")
    return name
