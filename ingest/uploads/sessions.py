"""An upload from its opening to its end.

Every step works under the lock of the upload's file and looks at its row again when it has it. Bytes are on the disk
before the row counts them. A process that dies in between has sent nothing: the next chunk writes over what it left.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from sqlalchemy.orm import Session

from organs.ingest.uploads.spool import BytesLost, SpoolFile, spool_of
from organs.registry.catalog.clock import now
from organs.registry.catalog.queries.uploads import open_uploads, pieces_of_upload, upload_by_public_id
from organs.registry.catalog.register.uploads import (
    PACK_MAX_BYTES,
    PACK_PIECE_MAX_BYTES,
    PACK_PIECES_MAX,
    Pieces,
    add_upload,
    check_upload_allowed,
    complete_upload,
    note_received,
    remove_upload,
)
from organs.registry.catalog.tables import Upload
from organs.registry.digest import Digest
from organs.registry.errors import BadInput, Conflict
from organs.registry.registry import Registry

WRONG_PIECES_TOLD = 20


@dataclass(frozen=True, slots=True)
class Declared:
    """What somebody is going to send. Raises BadInput where that cannot be."""

    kind: str
    size_bytes: int
    digest: Digest | None = None
    """Of all of it; a piece must have it."""
    name: str | None = None
    pieces: Pieces = ()
    """Of a pack: the size and the digest of each, in order."""

    def __post_init__(self) -> None:
        if self.size_bytes < 1:
            raise BadInput("an upload has at least one byte")
        if self.kind == "piece" and self.digest is None:
            raise BadInput("a piece is declared with its digest")
        if (self.kind == "pack") != bool(self.pieces):
            raise BadInput("a pack, and nothing else, is declared with its pieces")
        if self.kind == "pack":
            _check_pack(self.size_bytes, self.pieces)

    @property
    def piece_rows(self) -> Pieces:
        """What will lie in it: of a piece, itself."""
        if self.kind == "piece":
            assert self.digest is not None
            return ((self.size_bytes, self.digest),)
        return self.pieces


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of an upload: from byte `begin` to before byte `end`, of `size_bytes` in all."""

    begin: int
    end: int
    size_bytes: int
    sha256: bytes | None = None
    """What its sender says its bytes hash to."""


class WrongOffset(Conflict):
    """A chunk that begins elsewhere than what has come ends; `upload` says where that is."""

    def __init__(self, upload: Upload) -> None:
        super().__init__(f"{upload.received_bytes:,} bytes have come: the next chunk begins there")
        self.upload = upload


def open_upload(registry: Registry, contributor_id: int, declared: Declared) -> Upload:
    """An upload for what is declared: the one that is open for just that already, else a new one.

    Raises OverQuota, TooMany, DiskFull, StoreUnwritable.
    """
    with registry.catalog.reading() as session:
        found = _same(registry, session, contributor_id, declared)
        if found is not None:
            return found
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


def look_up(registry: Registry, contributor_id: int, public_id: str) -> Upload:
    """The contributor's upload of that name; raises NotFound."""
    with registry.catalog.reading() as session:
        return upload_by_public_id(session, public_id, contributor_id, now())


def is_received(upload: Upload, chunk: Chunk) -> bool:
    """Whether the whole range of the chunk was received before, perhaps because its answer was lost.

    Raises WrongOffset where it does not begin where that ends, BadInput where it is of something else.
    """
    if chunk.size_bytes != upload.size_bytes:
        raise BadInput(f"the chunk is of {chunk.size_bytes:,} bytes in all, the upload has {upload.size_bytes:,}")
    if chunk.end <= upload.received_bytes:
        return True
    if chunk.begin != upload.received_bytes:
        raise WrongOffset(upload)
    return False


def receive(registry: Registry, contributor_id: int, public_id: str, chunk: Chunk, pieces: Iterable[bytes]) -> Upload:
    """Store a chunk, whose bytes come in `pieces`; it is durable when this returns.

    A chunk that was received before is compared with the stored bytes. Raises NotFound, Conflict while another client
    is at it and for a repeated chunk with other bytes, WrongOffset, BadInput for other bytes than the chunk declares,
    DiskFull, StoreError: then the upload is as it was. What `pieces` raises goes through, likewise.
    """
    with _held(registry, contributor_id, public_id) as (upload, file):
        assert file is not None
        if is_received(upload, chunk):
            _compare(file, chunk, pieces)
            return upload
        _write(file, chunk, pieces)
        file.sync()
        with registry.catalog.writing() as session:
            if not note_received(session, upload.id, chunk.begin, chunk.end):
                raise Conflict("the upload has ended meanwhile")
        return look_up(registry, contributor_id, public_id)


def finish(registry: Registry, contributor_id: int, public_id: str, digest: Digest | None = None) -> Upload:
    """All has been sent: read it again, and hold it against the digests that were declared, and against `digest`.

    One that is finished already is answered as it is. Raises NotFound, Conflict while another client is at it, BadInput
    where something is missing or wrong: then the upload stays open, to be looked at, removed, or to expire.
    """
    with _held(registry, contributor_id, public_id) as (upload, file):
        if digest is not None and upload.digest is not None and digest != upload.digest:
            raise BadInput(f"it was declared as {upload.digest}, and is finished as {digest}")
        if upload.state == "complete":
            return upload
        if upload.received_bytes < upload.size_bytes:
            raise BadInput(f"{upload.received_bytes:,} of {upload.size_bytes:,} bytes have come: send the rest first")
        assert file is not None
        found = _checked(registry, upload, file, digest or _declared_digest(upload))
        with registry.catalog.writing() as session:
            if not complete_upload(session, upload.id, found):
                raise Conflict("the upload has ended meanwhile")
        return look_up(registry, contributor_id, public_id)


def cancel(registry: Registry, contributor_id: int, public_id: str) -> Upload:
    """Forget an upload and its bytes, finished or not; what it was. Raises NotFound, Conflict while another client is
    at it.
    """
    with _held(registry, contributor_id, public_id, lost_too=True) as (upload, _file):
        with registry.catalog.writing() as session:
            remove_upload(session, upload.id)
        spool_of(registry).remove(public_id)
        return upload


@contextmanager
def _held(
    registry: Registry, contributor_id: int, public_id: str, *, lost_too: bool = False
) -> Iterator[tuple[Upload, SpoolFile | None]]:
    """The row and the file, for this client alone; with `lost_too`, no file where it is lost."""
    look_up(registry, contributor_id, public_id)  # what is not there, or is another's, has no lock
    with ExitStack() as stack:
        file = None
        try:
            file = stack.enter_context(spool_of(registry).locked(public_id))
        except BytesLost:
            if not lost_too:
                raise
        yield look_up(registry, contributor_id, public_id), file


def _check_pack(size_bytes: int, pieces: Pieces) -> None:
    if len(pieces) > PACK_PIECES_MAX:
        raise BadInput(f"a pack has at most {PACK_PIECES_MAX:,} pieces, not {len(pieces):,}")
    large = [size for size, _ in pieces if not 0 < size < PACK_PIECE_MAX_BYTES]
    if large:
        raise BadInput(f"a piece of a pack has 1 to {PACK_PIECE_MAX_BYTES - 1:,} bytes, not {large[0]:,}")
    if size_bytes > PACK_MAX_BYTES:
        raise BadInput(f"a pack has at most {PACK_MAX_BYTES:,} bytes, not {size_bytes:,}")
    together = sum(size for size, _ in pieces)
    if together != size_bytes:
        raise BadInput(f"the pieces have {together:,} bytes together, the pack is declared with {size_bytes:,}")


def _same(registry: Registry, session: Session, contributor_id: int, declared: Declared) -> Upload | None:
    """An upload that is under way for just what is declared, and has its bytes."""
    spool = spool_of(registry)
    for upload in open_uploads(session, contributor_id, now()):
        is_same = (upload.kind, upload.size_bytes, upload.name) == (declared.kind, declared.size_bytes, declared.name)
        if not is_same or upload.digest != declared.digest or not spool.has(upload.public_id, upload.received_bytes):
            continue
        rows = pieces_of_upload(session, upload.id)
        if tuple((size, digest) for _, size, digest in rows) == tuple(declared.piece_rows):
            return upload
    return None


def _check_allowed(
    registry: Registry, session: Session, contributor_id: int, declared: Declared, *, hold: bool
) -> None:
    settings = registry.settings
    check_upload_allowed(
        session,
        contributor_id,
        declared.size_bytes,
        len(declared.pieces),
        default_quota_bytes=settings.quota_bytes,
        most_bytes=settings.upload_max_bytes,
        hold=hold,
    )


def _compare(file: SpoolFile, chunk: Chunk, pieces: Iterable[bytes]) -> None:
    """Compare a repeated chunk with the stored bytes. Raises Conflict where they differ, BadInput as `_write` does."""
    place = chunk.begin
    for piece in pieces:
        if place + len(piece) > chunk.end:
            raise BadInput(f"the chunk has more than the {chunk.end - chunk.begin:,} bytes that it declares")
        if b"".join(file.read(place, len(piece))) != piece:
            raise Conflict(f"other bytes were received before for {chunk.begin:,} to {chunk.end - 1:,}")
        place += len(piece)
    if place < chunk.end:
        raise BadInput(f"the chunk ends after {place - chunk.begin:,} of {chunk.end - chunk.begin:,} bytes")


def _write(file: SpoolFile, chunk: Chunk, pieces: Iterable[bytes]) -> None:
    """Write what comes from `chunk.begin` on, no more than belongs to the chunk."""
    place, hashed = chunk.begin, hashlib.sha256()
    for piece in pieces:
        if place + len(piece) > chunk.end:
            raise BadInput(f"the chunk has more than the {chunk.end - chunk.begin:,} bytes that it declares")
        if chunk.sha256 is not None:
            hashed.update(piece)
        file.write(piece, place)
        place += len(piece)
    if place < chunk.end:
        raise BadInput(f"the chunk ends after {place - chunk.begin:,} of {chunk.end - chunk.begin:,} bytes")
    if chunk.sha256 is not None and hashed.digest() != chunk.sha256:
        is_of = base64.b64encode(hashed.digest()).decode("ascii")
        raise BadInput(f"the chunk has another digest than it declares: sha-256=:{is_of}:")


def _declared_digest(upload: Upload) -> Digest | None:
    return None if upload.digest is None else Digest(upload.digest)


def _checked(registry: Registry, upload: Upload, file: SpoolFile, wanted: Digest | None) -> Digest:
    """The digest of all bytes, which are read in little portions; raises BadInput where one is not as declared."""
    spans: list[tuple[int, int, Digest | None]] = [(0, upload.size_bytes, None)]
    if upload.kind == "pack":
        with registry.catalog.reading() as session:
            spans = [*pieces_of_upload(session, upload.id)]
    whole, wrong = hashlib.sha256(), list[int]()
    for offset, size, digest in spans:
        single = hashlib.sha256()
        for data in file.read(offset, size):
            whole.update(data)
            if digest is not None:
                single.update(data)
        if digest is not None and single.hexdigest() != digest:
            wrong.append(offset)
    if wanted is not None and whole.hexdigest() != wanted:
        raise BadInput(f"its bytes have the digest {whole.hexdigest()}, not {wanted}")
    if wrong:
        told = ", ".join(f"{offset:,}" for offset in wrong[:WRONG_PIECES_TOLD])
        raise BadInput(f"{len(wrong)} of its pieces have other digests than declared: those at byte {told}")
    return Digest(whole.hexdigest())
