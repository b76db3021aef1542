"""Where the pieces of a manifest lie: among what its contributor has sent, and in the store.

Of the store only what anybody may be told of, and what is of the contributor's own models: everything else counts as
absent, so that nobody learns what is kept for others by naming its digest, nor gets at it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session

from ingest.submissions.manifest import BadManifest, Manifest, Reason, WantedFile
from registry.catalog.clock import now
from registry.catalog.queries.blobs import blob_sizes
from registry.catalog.queries.uploads import SentPiece, finished_upload, known_digests, pieces_of
from registry.digest import Digest
from registry.errors import Conflict, NotFound

MISSING_SHOWN_MAX = 19


@dataclass(frozen=True, slots=True)
class InSpool:
    """Bytes of an upload's file, from an offset on."""

    path: Path
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class InStore:
    """A whole blob."""

    digest: Digest


@dataclass(frozen=True, slots=True)
class LocatedPiece:
    """`size_bytes` bytes at an offset of the file, and where they lie."""

    offset_bytes: int
    size_bytes: int
    at: InSpool | InStore


@dataclass(frozen=True, slots=True)
class LocatedFile:
    """A file that can be read: pieces in rising order, zeros between them."""

    name: str
    size_bytes: int
    sha256: Digest | None
    """What its bytes must have, where it is known beforehand."""
    pieces: tuple[LocatedPiece, ...]


@dataclass(frozen=True, slots=True)
class _Known:
    spool: Path
    sent: Mapping[Digest, SentPiece]
    stored: Mapping[Digest, int]
    """Sizes in bytes."""

    def at(self, digest: Digest, size_bytes: int) -> InSpool | InStore | None:
        """Where a piece lies, if it is here and of that size."""
        sent = self.sent.get(digest)
        if sent is not None and sent.size_bytes == size_bytes:
            return InSpool(self.spool / sent.file, sent.offset_bytes)
        return InStore(digest) if self.stored.get(digest) == size_bytes else None


def locate(session: Session, contributor_id: int, spool: Path, manifest: Manifest) -> list[LocatedFile]:
    """Where the files of `manifest` lie; raises BadManifest with the pieces that are not here, or not of that size."""
    digests = manifest.digests()
    sent = pieces_of(session, contributor_id, digests)
    shared = known_digests(session, contributor_id, digests - sent.keys(), now())
    known = _Known(spool, sent, blob_sizes(session, shared))
    missing: list[Reason] = []
    files = []
    for number, file in enumerate(manifest.files):
        where = f"files[{number}]"
        if file.upload is not None:
            found = _whole(session, contributor_id, spool, file, where, missing)
        else:
            found = _put_together(known, file, where, missing)
        if found is not None:
            files.append(found)
    if missing:
        more = len(missing) - MISSING_SHOWN_MAX
        raise BadManifest([*missing[:MISSING_SHOWN_MAX], *([("", f"and {more:,} more")] if more > 0 else [])])
    return files


def _whole(
    session: Session, contributor_id: int, spool: Path, file: WantedFile, where: str, missing: list[Reason]
) -> LocatedFile | None:
    assert file.upload is not None
    try:
        upload = finished_upload(session, file.upload, contributor_id)
    except (NotFound, Conflict) as error:
        missing.append((f"{where}.upload", str(error)))
        return None
    digest = None if upload.digest is None else Digest(upload.digest)
    at = InSpool(spool / upload.public_id, 0)
    return LocatedFile(file.name, upload.size_bytes, digest, (LocatedPiece(0, upload.size_bytes, at),))


def _put_together(known: _Known, file: WantedFile, where: str, missing: list[Reason]) -> LocatedFile | None:
    pieces = []
    for number, piece in enumerate(file.pieces):
        at = known.at(piece.digest, piece.size_bytes)
        if at is None:
            missing.append((f"{where}.pieces[{number}]", f"these bytes are not here, send them first: {piece.digest}"))
        else:
            pieces.append(LocatedPiece(piece.offset_bytes, piece.size_bytes, at))
    whole = len(pieces) == len(file.pieces)
    return LocatedFile(file.name, file.size_bytes, file.sha256, tuple(pieces)) if whole else None
