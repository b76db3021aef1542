"""What the threads of an ingest tell its coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from organs.ingest.hashing import FileDigests, HashedPiece
from organs.registry.catalog.queries.blobs import BlobRow
from organs.registry.measure import Measurement
from organs.registry.store import StoredBlob


@dataclass(frozen=True, slots=True)
class Hashed:
    """A piece's digest is known."""

    file_index: int
    hashed: HashedPiece


@dataclass(frozen=True, slots=True)
class FileDone:
    """A file has been read to its end."""

    file_index: int
    digests: FileDigests


@dataclass(frozen=True, slots=True)
class Stored:
    """A blob is durable."""

    blob: StoredBlob


@dataclass(frozen=True, slots=True)
class Checked:
    """What the store had of a piece was read again."""

    hashed: HashedPiece
    row: BlobRow
    intact: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """An organ has been measured."""

    hashed: HashedPiece
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class Failed:
    """A thread gave up."""

    error: BaseException


Event = Hashed | FileDone | Stored | Checked | Measured | Failed
