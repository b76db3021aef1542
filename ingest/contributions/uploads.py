"""Uploads from opening to end, and the removal of expired uploads. Their bytes are in a spool (`spool`)."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from sqlalchemy.orm import Session

from organs.ingest.contributions.spool import BytesLost, ChunkedUpload, SpoolFile, spool_of
from organs.registry.catalog.engine import database_now
from organs.registry.catalog.queries.submissions import (
    chunks_of_upload,
    expired_uploads,
    open_uploads,
    pieces_of_upload,
    upload_by_public_id,
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
from organs.registry.catalog.tables import UploadRow
from organs.registry.digest import Digest
from organs.registry.entities.submission import UploadRequest
from organs.registry.errors import BadInput, Conflict, Count
from organs.registry.local import LocalRegistry
from organs.registry.upload_limits import PACK_MAX_BYTES, chunk_min_bytes

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
    public_ids: Collection[str] = (),
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
