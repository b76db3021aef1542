"""The places of the pieces of a submission, and files that are read from these pieces without writing them.

A piece is in one of the contributor's uploads, or in the store. In the store, only public blobs and those of the
contributor's own models are used. All others count as absent, so that a digest in a request does not reveal whether the
registry has its bytes.

Reading needs little memory: files and blobs are opened when they are needed, the least recently used is closed, and
only the last decoded chunk is kept. Bytes of blobs are compared with their checksums.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from pathlib import Path

from sqlalchemy.orm import Session

from organs.ingest.contributions.manifest import BadManifest
from organs.ingest.contributions.uploads import BytesLost, ChunkedUpload, spool_of
from organs.registry.catalog.engine import database_now
from organs.registry.catalog.queries.blobs import blob_sizes, blobs_by_digest
from organs.registry.catalog.queries.submissions import StoredPiece, finished_upload, known_digests, pieces_of
from organs.registry.digest import Digest
from organs.registry.documents import Reason
from organs.registry.entities.submission import SubmissionFile
from organs.registry.errors import BadSource, Conflict, CorruptBlob, MissingBlob, NotFound
from organs.registry.input_files import ComposedFile, FileSource, Section
from organs.registry.local import LocalRegistry
from organs.registry.recent import RecentValues
from organs.registry.store import PlainReader, RangeReader

MISSING_SHOWN_MAX = 19
OPEN_FILES_MAX = 16
"""Limit of open uploads, and of open blobs: a process may have a few hundred descriptors."""

Place = StoredPiece | Digest
"""Bytes in an upload, or a whole blob."""


@dataclass(frozen=True, slots=True)
class LocatedFile:
    """A file whose pieces are all present, in rising order, with zeros between them."""

    name: str
    size_bytes: int
    sha256: Digest | None
    """The digest that its sender declared, if any."""
    pieces: tuple[tuple[int, int, Place], ...]
    """The offset in the file, the size and the place of each piece."""


def locate(session: Session, contributor_id: int, files: Sequence[SubmissionFile]) -> list[LocatedFile]:
    """Return `files` with the places of their pieces.

    Raises BadManifest with every piece that is absent or has another size.
    """
    digests = digests_of(files)
    sent = pieces_of(session, contributor_id, digests)
    shared = known_digests(session, contributor_id, digests - sent.keys(), database_now(session))
    stored_bytes = blob_sizes(session, shared)
    missing: list[Reason] = []
    located = []
    for number, file in enumerate(files):
        where = f"files[{number}]"
        if file.upload is not None:
            try:
                upload = finished_upload(session, file.upload, contributor_id)
            except (NotFound, Conflict) as error:
                missing.append((f"{where}.upload", str(error)))
                continue
            digest = None if upload.digest is None else Digest(upload.digest)
            whole = StoredPiece(upload.public_id, 0, upload.size_bytes)
            located.append(LocatedFile(file.name, upload.size_bytes, digest, ((0, upload.size_bytes, whole),)))
            continue
        pieces: list[tuple[int, int, Place]] = []
        for index, piece in enumerate(file.pieces or ()):
            in_upload = sent.get(piece.digest)
            if in_upload is not None and in_upload.size_bytes == piece.size_bytes:
                pieces.append((piece.offset, piece.size_bytes, in_upload))
            elif stored_bytes.get(piece.digest) == piece.size_bytes:
                pieces.append((piece.offset, piece.size_bytes, piece.digest))
            else:
                sentence = f"the registry does not have these bytes; send them first: {piece.digest}"
                missing.append((f"{where}.pieces[{index}]", sentence))
        assert file.size_bytes is not None
        located.append(LocatedFile(file.name, file.size_bytes, file.sha256, tuple(pieces)))
    if missing:
        more = len(missing) - MISSING_SHOWN_MAX
        raise BadManifest([*missing[:MISSING_SHOWN_MAX], *([("", f"and {more:,} more")] if more > 0 else [])])
    return located


def digests_of(files: Sequence[SubmissionFile]) -> set[Digest]:
    """Return the digests of all pieces of `files`."""
    return {piece.digest for file in files for piece in file.pieces or ()}


class Sources:
    """The open uploads and blobs of one submission. A context manager; threads take turns to read."""

    def __init__(self, registry: LocalRegistry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._spool = spool_of(registry)
        self._uploads = RecentValues[str, FileSource | ChunkedUpload](OPEN_FILES_MAX, methodcaller("close"))
        self._blobs = RecentValues[Digest, PlainReader](OPEN_FILES_MAX, methodcaller("close"))
        self._decoding: tuple[Digest, RangeReader] | None = None
        """The blob that was read last; its reader holds the last decoded chunk."""

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._uploads.clear()
            self._blobs.clear()

    def file(self, file: LocatedFile) -> ComposedFile:
        """Return one file of a submission, readable until the end of the block. Its path is its bare name."""
        sections = [Section(offset, size, _PlacedBytes(self, place)) for offset, size, place in file.pieces]
        return ComposedFile(Path(file.name), file.size_bytes, sections, file.sha256)

    def read_into(self, buffer: memoryview, place: Place, offset: int) -> None:
        """Fill `buffer` from `offset` of a piece. Raises BadSource, CorruptBlob, MissingBlob."""
        with self._lock:
            if not isinstance(place, StoredPiece):
                if self._decoding is None or self._decoding[0] != place:
                    self._decoding = place, RangeReader(self._blobs.get(place, partial(self._open_blob, place)))
                buffer[:] = self._decoding[1].read(offset, len(buffer))
                return
            try:
                upload = self._uploads.get(place.upload, partial(self._spool.open, place.upload))
                upload.read_into(buffer, place.offset_bytes + offset)
            except (BadSource, BytesLost) as error:
                raise BadSource("an upload of this submission was removed; send it again") from error

    def _open_blob(self, digest: Digest) -> PlainReader:
        with self._registry.catalog.reading() as session:
            row = blobs_by_digest(session, (digest,)).get(digest)
        if row is None:
            raise MissingBlob(f"{digest[:12]} is no longer in the store; send it again")
        try:
            return self._registry.blobs.open(row)
        except CorruptBlob as error:
            raise MissingBlob(f"{digest[:12]} is damaged in the store; send it again") from error


@dataclass(frozen=True, slots=True)
class _PlacedBytes:
    """The bytes at one place (`registry.input_files.Bytes`)."""

    sources: Sources
    place: Place

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.sources.read_into(buffer, self.place, offset)

    def check_unchanged(self) -> None:
        """Do nothing: finished uploads and blobs do not change."""
