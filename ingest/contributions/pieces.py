"""The places of the pieces of a manifest, and files that are read from these pieces without writing them.

A piece is in one of the contributor's uploads, or in the store. In the store, only public blobs and those of the
contributor's own models are used. All others count as absent, so that a digest in a request does not reveal whether the
registry has its bytes.

Reading needs little memory: files and blobs are opened when they are needed, the least recently used is closed, and
only the last decoded chunk is kept. Bytes of blobs are compared with their checksums.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sqlalchemy.orm import Session

from organs.ingest.contributions.manifest import (
    BadManifest,
    Manifest,
    Reason,
    WantedFile,
)
from organs.ingest.contributions.spool import BytesLost, UploadReader, spool_of
from organs.ingest.files import (
    ComposedFile,
    Section,
)
from organs.registry.catalog.clock import database_now
from organs.registry.catalog.queries.organs import (
    blob_sizes,
    blobs_by_digest,
)
from organs.registry.catalog.queries.submissions import (
    StoredPiece,
    finished_upload,
    known_digests,
    pieces_of,
)
from organs.registry.digest import Digest
from organs.registry.errors import BadSource, Conflict, CorruptBlob, MissingBlob, NotFound
from organs.registry.local import LocalRegistry
from organs.registry.store import PlainChunk, PlainReader

MISSING_SHOWN_MAX = 19
OPEN_FILES_MAX = 16
"""Limit of open uploads, and of open blobs: a process may have a few hundred descriptors."""


@dataclass(frozen=True, slots=True)
class InUpload:
    """Bytes of an upload, from an offset on."""

    name: str
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class InStore:
    """A whole blob."""

    digest: Digest


@dataclass(frozen=True, slots=True)
class LocatedPiece:
    """`size_bytes` bytes at an offset of the file, and the place where they are stored."""

    offset_bytes: int
    size_bytes: int
    at: InUpload | InStore


@dataclass(frozen=True, slots=True)
class LocatedFile:
    """A file whose pieces are all present, in rising order, with zeros between them."""

    name: str
    size_bytes: int
    sha256: Digest | None
    """The digest that its sender declared, if any."""
    pieces: tuple[LocatedPiece, ...]


def locate(session: Session, contributor_id: int, manifest: Manifest) -> list[LocatedFile]:
    """Return the files of `manifest` with the places of their pieces.

    Raises BadManifest with every piece that is absent or has another size.
    """
    digests = manifest.digests()
    sent = pieces_of(session, contributor_id, digests)
    shared = known_digests(session, contributor_id, digests - sent.keys(), database_now(session))
    known = _KnownPieces(sent, blob_sizes(session, shared))
    missing: list[Reason] = []
    files = []
    for number, file in enumerate(manifest.files):
        where = f"files[{number}]"
        if file.upload is not None:
            located = _locate_upload(session, contributor_id, file, where, missing)
        else:
            located = _locate_pieces(known, file, where, missing)
        if located is not None:
            files.append(located)
    if missing:
        more = len(missing) - MISSING_SHOWN_MAX
        raise BadManifest([*missing[:MISSING_SHOWN_MAX], *([("", f"and {more:,} more")] if more > 0 else [])])
    return files


class Sources:
    """The open uploads and blobs of one submission. A context manager; threads take turns to read."""

    def __init__(self, registry: LocalRegistry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._spool = spool_of(registry)
        self._uploads: OrderedDict[str, UploadReader] = OrderedDict()
        self._blobs: OrderedDict[str, PlainReader] = OrderedDict()
        self._buffer = bytearray()
        self._decoded_chunk: tuple[Digest, PlainChunk] | None = None
        """The chunk whose plain bytes the buffer holds."""

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            opened: list[UploadReader | PlainReader] = [*self._uploads.values(), *self._blobs.values()]
            for reader in opened:
                reader.close()
            self._uploads.clear()
            self._blobs.clear()

    def read_into(self, buffer: memoryview, at: InUpload | InStore, offset: int) -> None:
        """Fill `buffer` from `offset` of a piece. Raises BadSource, CorruptBlob, MissingBlob."""
        with self._lock:
            if isinstance(at, InUpload):
                self._read_upload(buffer, at.name, at.offset_bytes + offset)
            else:
                self._read_blob(buffer, at.digest, offset)

    def _read_upload(self, buffer: memoryview, name: str, offset: int) -> None:
        try:
            self._open_upload(name).read_into(buffer, offset)
        except (BadSource, BytesLost) as error:
            raise BadSource("an upload of this submission was removed; send it again") from error

    def _open_upload(self, name: str) -> UploadReader:
        upload = self._uploads.get(name) or self._spool.open(name)
        _keep_latest(self._uploads, name, upload)
        return upload

    def _open_blob(self, digest: Digest) -> PlainReader:
        reader = self._blobs.get(digest)
        if reader is None:
            with self._registry.catalog.reading() as session:
                row = blobs_by_digest(session, (digest,)).get(digest)
            if row is None:
                raise MissingBlob(f"{digest[:12]} is no longer in the store; send it again")
            try:
                reader = self._registry.blobs.open(row)
            except CorruptBlob as error:
                raise MissingBlob(f"{digest[:12]} is damaged in the store; send it again") from error
        _keep_latest(self._blobs, digest, reader)
        return reader

    def _read_blob(self, buffer: memoryview, digest: Digest, offset: int) -> None:
        reader = self._open_blob(digest)
        end = offset + len(buffer)
        for chunk in _overlapping(reader.chunks, offset, end):
            chunk_begin = chunk.plain_offset_bytes
            begin, stop = max(offset, chunk_begin), min(end, chunk_begin + chunk.plain_size_bytes)
            target = buffer[begin - offset : stop - offset]
            if len(target) == chunk.plain_size_bytes and self._decoded_chunk != (digest, chunk):
                reader.read_chunk(chunk, target)
            else:
                target[:] = self._decode(reader, digest, chunk)[begin - chunk_begin : stop - chunk_begin]

    def _decode(self, reader: PlainReader, digest: Digest, chunk: PlainChunk) -> memoryview:
        if len(self._buffer) < chunk.plain_size_bytes:
            self._buffer = bytearray(chunk.plain_size_bytes)
        view = memoryview(self._buffer)[: chunk.plain_size_bytes]
        if self._decoded_chunk != (digest, chunk):
            self._decoded_chunk = None
            reader.read_chunk(chunk, view)
            self._decoded_chunk = digest, chunk
        return view


R = TypeVar("R", UploadReader, PlainReader)


def _keep_latest(opened: OrderedDict[str, R], key: str, reader: R) -> None:
    """Keep `reader` as the last used one, and close the least recently used one if there are too many."""
    opened[key] = reader
    opened.move_to_end(key)
    if len(opened) > OPEN_FILES_MAX:
        opened.popitem(last=False)[1].close()


def composed_file(sources: Sources, file: LocatedFile) -> ComposedFile:
    """Return one file of a submission, readable while `sources` are open. Its path is its bare name."""
    sections = [Section(piece.offset_bytes, piece.size_bytes, _PieceBytes(sources, piece.at)) for piece in file.pieces]
    return ComposedFile(Path(file.name), file.size_bytes, sections, file.sha256)


@dataclass(frozen=True, slots=True)
class _KnownPieces:
    sent: Mapping[Digest, StoredPiece]
    stored: Mapping[Digest, int]
    """Sizes in bytes."""

    def at(self, digest: Digest, size_bytes: int) -> InUpload | InStore | None:
        """Return where a piece is, or None when it is absent or has another size."""
        sent = self.sent.get(digest)
        if sent is not None and sent.size_bytes == size_bytes:
            return InUpload(sent.upload, sent.offset_bytes)
        return InStore(digest) if self.stored.get(digest) == size_bytes else None


@dataclass(frozen=True, slots=True)
class _PieceBytes:
    """The bytes at one place (`ingest.files.Bytes`)."""

    sources: Sources
    at: InUpload | InStore

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.sources.read_into(buffer, self.at, offset)

    def check_unchanged(self) -> None:
        """Do nothing: finished uploads and blobs do not change."""


def _locate_upload(
    session: Session, contributor_id: int, file: WantedFile, where: str, missing: list[Reason]
) -> LocatedFile | None:
    assert file.upload is not None
    try:
        upload = finished_upload(session, file.upload, contributor_id)
    except (NotFound, Conflict) as error:
        missing.append((f"{where}.upload", str(error)))
        return None
    digest = None if upload.digest is None else Digest(upload.digest)
    at = InUpload(upload.public_id, 0)
    return LocatedFile(file.name, upload.size_bytes, digest, (LocatedPiece(0, upload.size_bytes, at),))


def _locate_pieces(known: _KnownPieces, file: WantedFile, where: str, missing: list[Reason]) -> LocatedFile | None:
    pieces = []
    for number, piece in enumerate(file.pieces):
        at = known.at(piece.digest, piece.size_bytes)
        if at is None:
            missing.append(
                (
                    f"{where}.pieces[{number}]",
                    f"the registry does not have these bytes; send them first: {piece.digest}",
                )
            )
        else:
            pieces.append(LocatedPiece(piece.offset_bytes, piece.size_bytes, at))
    is_whole = len(pieces) == len(file.pieces)
    return LocatedFile(file.name, file.size_bytes, file.sha256, tuple(pieces)) if is_whole else None


def _overlapping(chunks: Sequence[PlainChunk], offset: int, end: int) -> Sequence[PlainChunk]:
    """Return the chunks that hold these bytes."""
    if not chunks or offset >= end:
        return ()
    first, last = (bisect_right(chunks, place, key=_begin_of) - 1 for place in (offset, end - 1))
    return chunks[first : last + 1]


def _begin_of(chunk: PlainChunk) -> int:
    return chunk.plain_offset_bytes
