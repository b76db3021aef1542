"""Uploads from opening to end, and the removal of expired uploads. Their bytes are in a spool (`spool`)."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from sqlalchemy.orm import Session

from organs.ingest.contributions.spool import BytesLost, Spool, UploadWriter, spool_of
from organs.registry.catalog.clock import database_now
from organs.registry.catalog.queries.submissions import (
    chunks_of_upload,
    expired_uploads,
    open_uploads,
    pieces_of_upload,
    upload_by_public_id,
    uploads_within,
)
from organs.registry.catalog.register.uploads import (
    Pieces,
    add_upload,
    check_upload_allowed,
    complete_upload,
    record_received,
    remove_expired_upload,
    remove_upload,
)
from organs.registry.catalog.tables import Upload
from organs.registry.digest import Digest
from organs.registry.errors import BadInput, Conflict, Count
from organs.registry.local import LocalRegistry
from organs.registry.upload_limits import PACK_MAX_BYTES, PACK_PIECE_MAX_BYTES, PACK_PIECES_MAX, chunk_min_bytes

WRONG_PIECES_TOLD = 20


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration of an upload. Raises BadInput for an impossible declaration."""

    kind: str
    size_bytes: int
    digest: Digest | None = None
    """SHA-256 of all bytes; required for a piece."""
    name: str | None = None
    pieces: Pieces = ()
    """The size and the digest of each piece of a pack, in order."""

    def __post_init__(self) -> None:
        if self.size_bytes < 1:
            raise BadInput("an upload must have at least one byte")
        if self.kind == "piece" and self.digest is None:
            raise BadInput("declare a piece with its digest")
        if (self.kind == "pack") != bool(self.pieces):
            raise BadInput("declare pieces for a pack, and only for a pack")
        if self.kind == "pack":
            _check_pack(self.size_bytes, self.pieces)

    @property
    def piece_rows(self) -> Pieces:
        """Return the rows of its pieces; an upload of kind `piece` has one row."""
        if self.kind == "piece":
            assert self.digest is not None
            return ((self.size_bytes, self.digest),)
        return self.pieces


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

    def __init__(self, upload: Upload) -> None:
        super().__init__(f"{upload.received_bytes:,} bytes were received: the next chunk must begin there")
        self.received_bytes = upload.received_bytes
        self.upload = upload


def open_upload(registry: LocalRegistry, contributor_id: int, declared: Declared) -> Upload:
    """Return the open upload with the same declaration, else a new one.

    Raises OverQuota, TooMany, DiskFull, StoreUnwritable.
    """
    with registry.catalog.reading() as session:
        existing = _find_same(registry, session, contributor_id, declared)
        if existing is not None:
            return existing
        _check_allowed(registry, session, contributor_id, declared, hold=False)
    spool = spool_of(registry)
    name = spool.make(declared.size_bytes)
    try:
        with registry.catalog.writing() as session:
            _check_allowed(registry, session, contributor_id, declared, hold=True)
            return add_upload(
                session,
                contributor_id,
                name,
                kind=declared.kind,
                size_bytes=declared.size_bytes,
                digest=declared.digest,
                name=declared.name,
                pieces=declared.piece_rows,
            )
    except BaseException:
        spool.remove(name)
        raise


def look_up(registry: LocalRegistry, contributor_id: int, public_id: str) -> Upload:
    """Return the contributor's upload with that id; raises NotFound."""
    with registry.catalog.reading() as session:
        return upload_by_public_id(session, public_id, contributor_id, database_now(session))


def is_received(upload: Upload, chunk: Chunk) -> bool:
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
) -> Upload:
    """Store a chunk with the bytes of `pieces`; it is durable on return.

    A chunk that was received before is compared with the stored bytes. Raises NotFound, Conflict while another client
    uses the upload and for a repeated chunk with other bytes, WrongOffset, BadInput for bytes that differ from the
    declaration, DiskFull, StoreError, and the errors of `pieces`: then the upload is unchanged.
    """
    with _locked(registry, contributor_id, public_id) as (upload, file):
        assert file is not None
        if is_received(upload, chunk):
            _compare(file, chunk, pieces)
            return upload
        try:
            _write(file, chunk, pieces)
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


def finish(registry: LocalRegistry, contributor_id: int, public_id: str, digest: Digest | None = None) -> Upload:
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
        assert file is not None
        problem = _check_pieces(registry, upload, file, digest or _declared_digest(upload))
        with registry.catalog.writing() as session:
            is_completed = complete_upload(session, upload.id, problem)
        upload = look_up(registry, contributor_id, public_id)
        if not is_completed and upload.state != "complete":  # another machine may have finished it
            raise Conflict("the upload has ended meanwhile")
        return upload


def cancel(registry: LocalRegistry, contributor_id: int, public_id: str) -> Upload:
    """Remove an upload and its bytes, finished or not, and return it. Raises NotFound, Conflict while another client
    uses it.
    """
    with _locked(registry, contributor_id, public_id, allow_lost=True) as (upload, _file):
        _forget(registry, spool_of(registry), upload.id, public_id, remove_upload)
        return upload


@contextmanager
def _locked(
    registry: LocalRegistry, contributor_id: int, public_id: str, *, allow_lost: bool = False
) -> Iterator[tuple[Upload, UploadWriter | None]]:
    """Lock and yield the row and the file; with `allow_lost`, no file if it is lost."""
    look_up(registry, contributor_id, public_id)  # raises NotFound before a lock is taken
    with ExitStack() as stack:
        file = None
        try:
            file = stack.enter_context(spool_of(registry).locked(public_id))
        except BytesLost:
            if not allow_lost:
                raise
        yield look_up(registry, contributor_id, public_id), file


def _check_pack(size_bytes: int, pieces: Pieces) -> None:
    if len(pieces) > PACK_PIECES_MAX:
        raise BadInput(f"a pack has at most {PACK_PIECES_MAX:,} pieces, not {len(pieces):,}")
    bad_sizes = [size for size, _ in pieces if not 0 < size <= PACK_PIECE_MAX_BYTES]
    if bad_sizes:
        raise BadInput(f"a piece of a pack has 1 to {PACK_PIECE_MAX_BYTES:,} bytes, not {bad_sizes[0]:,}")
    if size_bytes > PACK_MAX_BYTES:
        raise BadInput(f"a pack has at most {PACK_MAX_BYTES:,} bytes, not {size_bytes:,}")
    total = sum(size for size, _ in pieces)
    if total != size_bytes:
        raise BadInput(f"the pieces have {total:,} bytes in total, but the pack is declared with {size_bytes:,}")


def _find_same(registry: LocalRegistry, session: Session, contributor_id: int, declared: Declared) -> Upload | None:
    """Return an open upload with the same declaration whose file exists, or None."""
    spool = spool_of(registry)
    for upload in open_uploads(session, contributor_id, database_now(session)):
        is_same = (upload.kind, upload.size_bytes, upload.name) == (declared.kind, declared.size_bytes, declared.name)
        if not is_same or upload.digest != declared.digest or not spool.has(upload.public_id, upload.received_bytes):
            continue
        rows = pieces_of_upload(session, upload.id)
        if tuple((size, digest) for _, size, digest in rows) == tuple(declared.piece_rows):
            return upload
    return None


def _check_allowed(
    registry: LocalRegistry, session: Session, contributor_id: int, declared: Declared, *, hold: bool
) -> None:
    settings = registry.settings
    check_upload_allowed(
        session,
        contributor_id,
        declared.size_bytes,
        len(declared.pieces),
        default_quota_bytes=settings.quota_bytes,
        upload_max_bytes=settings.upload_max_bytes,
        hold=hold,
    )


def _compare(file: UploadWriter, chunk: Chunk, pieces: Iterable[bytes]) -> None:
    """Compare a repeated chunk with the stored bytes. Raises Conflict if they differ, BadInput as `_write` does."""
    offset = chunk.begin
    for piece in pieces:
        if offset + len(piece) > chunk.end:
            raise BadInput(f"the chunk has more than the {chunk.end - chunk.begin:,} bytes that it declares")
        if b"".join(file.read(offset, len(piece))) != piece:
            raise Conflict(f"other bytes were received before for {chunk.begin:,} to {chunk.end - 1:,}")
        offset += len(piece)
    if offset < chunk.end:
        raise BadInput(f"the chunk ends after {offset - chunk.begin:,} of {chunk.end - chunk.begin:,} bytes")


def _write(file: UploadWriter, chunk: Chunk, pieces: Iterable[bytes]) -> None:
    """Write the bytes from `chunk.begin` on, not more than the chunk has."""
    offset, hashed = chunk.begin, hashlib.sha256()
    for piece in pieces:
        if offset + len(piece) > chunk.end:
            raise BadInput(f"the chunk has more than the {chunk.end - chunk.begin:,} bytes that it declares")
        if chunk.sha256 is not None:
            hashed.update(piece)
        file.write(piece, offset)
        offset += len(piece)
    if offset < chunk.end:
        raise BadInput(f"the chunk ends after {offset - chunk.begin:,} of {chunk.end - chunk.begin:,} bytes")
    if chunk.sha256 is not None and hashed.digest() != chunk.sha256:
        actual = base64.b64encode(hashed.digest()).decode("ascii")
        raise BadInput(f"the chunk has another digest than it declares: sha-256=:{actual}:")


def _declared_digest(upload: Upload) -> Digest | None:
    return None if upload.digest is None else Digest(upload.digest)


def _check_pieces(registry: LocalRegistry, upload: Upload, file: UploadWriter, expected: Digest | None) -> Digest:
    """Return the digest of all bytes, read in small portions; raises BadInput for a wrong piece."""
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
    _remove_strays(registry, report, dry_run)
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
    spool = spool_of(registry)
    return [name for upload_id, name in uploads if _remove(registry, spool, upload_id, name, remove)]


def _remove(registry: LocalRegistry, spool: Spool, upload_id: int, name: str, remove: RemoveRow) -> bool:
    try:
        with spool.locked(name):
            return _forget(registry, spool, upload_id, name, remove)
    except BytesLost:
        return _forget(registry, spool, upload_id, name, remove)
    except Conflict:
        return False


def _forget(registry: LocalRegistry, spool: Spool, upload_id: int, name: str, remove: RemoveRow) -> bool:
    """Remove the row, then the bytes: a crash in between leaves a stray file, not a row without a file."""
    with registry.catalog.writing() as session:
        _, chunks = chunks_of_upload(session, name)
        is_gone = remove(session, upload_id)
    if is_gone:
        spool.remove(name, chunks)
    return is_gone


def _remove_strays(registry: LocalRegistry, report: TidyReport, dry_run: bool) -> None:
    spool = spool_of(registry)
    for file in list(spool.strays(time.time() - STRAY_AFTER_SECONDS)):
        if not dry_run:
            spool.remove_stray(file.name)
        report.stray_files += 1
        report.removed_bytes += file.size_bytes
