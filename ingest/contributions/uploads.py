"""Uploads from opening to end, their files in the spool, and the removal of expired uploads."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.submissions import (
    expired_uploads,
    open_uploads,
    pieces_of_upload,
    upload_by_public_id,
    upload_names,
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
from organs.registry.catalog.tables import Upload, now
from organs.registry.digest import Digest
from organs.registry.errors import BadInput, Conflict, Count, DiskFull, NotFound
from organs.registry.local import LocalRegistry
from organs.registry.store.files import Files, make_durable_folder, translated
from organs.registry.upload_limits import PACK_MAX_BYTES, PACK_PIECE_MAX_BYTES, PACK_PIECES_MAX

FREE_MARGIN_BYTES = 64 * 1024 * 1024
"""Free space that uploads leave on the disk."""
READ_BYTES = 1024 * 1024

_NAME = re.compile(r"[0-9A-Za-z_-]{22}", re.ASCII)


class BytesLost(Conflict, code="bytes-lost"):
    """The received bytes of an upload are lost. Remove the upload and start again."""

    def __init__(self) -> None:
        super().__init__("the bytes of this upload are lost: remove it and start again")


@dataclass(frozen=True, slots=True)
class SpooledFile:
    """A file of the spool, for the cleanup."""

    name: str
    modified_at: float
    size_bytes: int


class Spool:
    """The folder that holds the files of uploads."""

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self.root = root
        self._files = files or Files()

    def make(self, expected_bytes: int) -> str:
        """Create an empty file with a new name; both are durable on return.

        Raises DiskFull if there is no space for `expected_bytes`, StoreUnwritable; then there is no file.
        """
        name = secrets.token_urlsafe(16)  # 128 random bits, 22 characters
        path = self.path(name)
        try:
            self._make_folder()
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

        Raises Conflict if it is locked, BytesLost if it does not exist, StoreError.
        """
        path = self.path(name)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise BytesLost from error
        except OSError as error:
            raise translated(error, path) from error
        try:
            _lock(descriptor, path)
            yield SpoolFile(self._files, path, descriptor)
        finally:
            os.close(descriptor)  # this releases the lock

    def has(self, name: str, size_bytes: int) -> bool:
        """Return whether the file exists with at least `size_bytes` bytes."""
        try:
            return self.path(name).stat().st_size >= size_bytes
        except OSError:
            return False

    def remove(self, name: str) -> None:
        """Remove the file if it exists."""
        path = self.path(name)
        try:
            self._files.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise translated(error, path) from error

    def path(self, name: str) -> Path:
        """Return the path of the file; raises NotFound for a name that the spool cannot have."""
        if not _NAME.fullmatch(name):
            raise NotFound(f"there is no upload {name[:40]!r}")
        return self.root / name

    def walk(self) -> Iterator[SpooledFile]:
        """Yield all files of the spool. Files can appear and disappear meanwhile."""
        try:
            entries = list(os.scandir(self.root))
        except FileNotFoundError:
            return
        for entry in entries:
            with suppress(FileNotFoundError):
                if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    yield SpooledFile(entry.name, status.st_mtime, status.st_size)

    def _make_folder(self) -> None:
        if not self.root.is_dir():
            make_durable_folder(self._files, self.root)


class SpoolFile:
    """A file of the spool whose lock is held."""

    def __init__(self, files: Files, path: Path, descriptor: int) -> None:
        self._files = files
        self._path = path
        self._descriptor = descriptor

    def write(self, data: bytes, offset_bytes: int) -> None:
        """Write `data` at an offset; raises DiskFull, StoreError. It is durable only after `sync`."""
        try:
            self._files.write_at(self._descriptor, [data], offset_bytes)
        except OSError as error:
            raise translated(error, self._path) from error

    def sync(self) -> None:
        """Write all data to the disk; raises DiskFull, StoreError."""
        try:
            self._files.sync(self._descriptor)
        except OSError as error:
            raise translated(error, self._path) from error

    def read(self, offset_bytes: int, size_bytes: int) -> Iterator[bytes]:
        """Yield the bytes of a range in order, at most READ_BYTES at a time; fewer at the end of the file.

        Raises StoreError.
        """
        end = offset_bytes + size_bytes
        while offset_bytes < end:
            try:
                data = self._files.read_at(self._descriptor, offset_bytes, min(READ_BYTES, end - offset_bytes))
            except OSError as error:
                raise translated(error, self._path) from error
            if not data:
                return
            yield data
            offset_bytes += len(data)


def _lock(descriptor: int, path: Path) -> None:
    """Take the lock of an open file. Every opening has its own lock, so it also works between threads."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Conflict("another client uses this upload now: try again later") from error
    except OSError as error:
        raise translated(error, path) from error


def spool_of(registry: LocalRegistry) -> Spool:
    """Return the spool of the registry."""
    return Spool(registry.settings.uploads, registry.blobs.backend.files)


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
        return upload_by_public_id(session, public_id, contributor_id, now())


def is_received(upload: Upload, chunk: Chunk) -> bool:
    """Return whether the whole chunk was received before, for example if the client did not get the answer.

    Raises WrongOffset if it does not begin at the end of the received bytes, BadInput for another total size.
    """
    if chunk.size_bytes != upload.size_bytes:
        raise BadInput(
            f"the chunk states a total of {chunk.size_bytes:,} bytes, but the upload has {upload.size_bytes:,}"
        )
    if chunk.end <= upload.received_bytes:
        return True
    if chunk.begin != upload.received_bytes:
        raise WrongOffset(upload)
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
        _write(file, chunk, pieces)
        file.sync()
        with registry.catalog.writing() as session:
            if not record_received(session, upload.id, chunk.begin, chunk.end):
                raise Conflict("the upload has ended meanwhile")
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
            if not complete_upload(session, upload.id, problem):
                raise Conflict("the upload has ended meanwhile")
        return look_up(registry, contributor_id, public_id)


def cancel(registry: LocalRegistry, contributor_id: int, public_id: str) -> Upload:
    """Remove an upload and its bytes, finished or not, and return it. Raises NotFound, Conflict while another client
    uses it.
    """
    with _locked(registry, contributor_id, public_id, allow_lost=True) as (upload, _file):
        with registry.catalog.writing() as session:
            remove_upload(session, upload.id)
        spool_of(registry).remove(public_id)
        return upload


@contextmanager
def _locked(
    registry: LocalRegistry, contributor_id: int, public_id: str, *, allow_lost: bool = False
) -> Iterator[tuple[Upload, SpoolFile | None]]:
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
    for upload in open_uploads(session, contributor_id, now()):
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


def _compare(file: SpoolFile, chunk: Chunk, pieces: Iterable[bytes]) -> None:
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


def _write(file: SpoolFile, chunk: Chunk, pieces: Iterable[bytes]) -> None:
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


def _check_pieces(registry: LocalRegistry, upload: Upload, file: SpoolFile, expected: Digest | None) -> Digest:
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
    sizes = {file.name: file.size_bytes for file in spool_of(registry).walk()}
    while True:
        with registry.catalog.reading() as session:
            expired = expired_uploads(session, now(), after_id, AT_ONCE)
        if not expired:
            break
        after_id = expired[-1][0]
        for name in [name for _, name in expired] if dry_run else _remove_all(registry, expired, remove_expired_upload):
            report.expired_uploads += 1
            report.removed_bytes += sizes.get(name, 0)
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
    """Remove the row, then the file: a crash in between leaves a stray file, not a row without a file."""
    with registry.catalog.writing() as session:
        is_gone = remove(session, upload_id)
    if is_gone:
        spool.remove(name)
    return is_gone


def _remove_strays(registry: LocalRegistry, report: TidyReport, dry_run: bool) -> None:
    spool, limit = spool_of(registry), time.time() - STRAY_AFTER_SECONDS
    old = [file for file in spool.walk() if file.modified_at < limit]
    if not old:
        return
    with registry.catalog.reading() as session:
        known = upload_names(session)
    for file in old:
        if file.name not in known:
            if not dry_run:
                spool.remove(file.name)
            report.stray_files += 1
            report.removed_bytes += file.size_bytes
