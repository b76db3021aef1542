"""Where bytes are stored, and which of them anybody needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.tables import (
    Blob,
    BlobLease,
    FilePart,
    Ingest,
    InlineBlob,
    Model,
    ModelFile,
    Organ,
    Placement,
)
from organs.registry.catalog.upsert import batches
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.digest import Digest

NAMES_MAX = 20
"""Places of a blob that are listed for people, of each kind."""


@dataclass(frozen=True, slots=True)
class BlobRow:
    """A blob's row as plain values; `inline` has the stored bytes of a small blob."""

    id: int
    digest: Digest
    size_bytes: int
    stored_bytes: int
    codec: str
    codec_version: int
    file: str | None
    state: str
    inline: bytes | None

    @property
    def is_set_aside(self) -> bool:
        """Whether its bytes were found wrong or missing when they were last read."""
        return self.state == "corrupt"


def blobs_by_digest(session: Session, digests: Iterable[str]) -> dict[Digest, BlobRow]:
    """The rows of `digests`, whatever their state; those without a row are left out."""
    found: dict[Digest, BlobRow] = {}
    for batch in batches(sorted(set(digests))):
        for row in _rows(session, _blob_rows().where(Blob.digest.in_(batch))):
            found[row.digest] = row
    return found


def blobs_by_id(session: Session, ids: Iterable[int]) -> dict[int, BlobRow]:
    """The rows of `ids`."""
    found: dict[int, BlobRow] = {}
    for batch in batches(sorted(set(ids))):
        for row in _rows(session, _blob_rows().where(Blob.id.in_(batch))):
            found[row.id] = row
    return found


def blob_sizes(session: Session, digests: Iterable[str]) -> dict[Digest, int]:
    """Plain sizes in bytes of the blobs of `digests` that are intact; the others are left out."""
    found: dict[Digest, int] = {}
    for batch in batches(sorted(set(digests))):
        statement = select(Blob.digest, Blob.size_bytes).where(Blob.digest.in_(batch), Blob.state == "present")
        found.update((Digest(digest), size) for digest, size in session.execute(statement))
    return found


def blobs_after(session: Session, digest: str, limit: int = 500) -> list[BlobRow]:
    """The next rows in the order of digests, behind `digest`."""
    return list(_rows(session, _blob_rows().where(Blob.digest > digest).order_by(Blob.digest).limit(limit)))


def known_files(session: Session) -> set[str]:
    """The physical names that rows point at."""
    return {file for file in session.scalars(select(Blob.file)) if file is not None}


def unneeded_blobs(session: Session, state: str, untouched_since: datetime, now: datetime) -> Sequence[Blob]:
    """Blobs in `state` that nothing refers to, no living ingest leases, and nobody touched since."""
    return session.scalars(unneeded(now).where(Blob.state == state, Blob.touched_at < untouched_since)).all()


def unneeded(now: datetime) -> Select[Blob]:
    """SELECT of the blobs that nothing refers to: one anti-join a kind of reference, each answered by an index."""
    leased = select(BlobLease.blob_id).join(Ingest).where(Ingest.state == "running", Ingest.lease_expires_at > now)
    dependent = aliased(Blob)
    return select(Blob).where(
        ~select(Organ.id).where(Organ.blob_id == Blob.id).exists(),
        ~select(FilePart.file_id).where(FilePart.blob_id == Blob.id).exists(),
        ~select(dependent.id).where(dependent.depends_on == Blob.id).exists(),
        Blob.id.not_in(leased),
    )


def oldest_living_ingest(session: Session, now: datetime) -> datetime | None:
    """When the oldest of the ingests began that run and have kept their lease; None when there is none."""
    living = select(func.min(Ingest.started_at)).where(Ingest.state == "running", Ingest.lease_expires_at > now)
    return session.scalar(living)


def reachable_digests(session: Session, digests: Iterable[str]) -> set[Digest]:
    """Which of `digests` are organs of visible or yanked models: what anybody may be told. Others count as absent."""
    found: set[Digest] = set()
    for batch in batches(sorted(set(digests))):
        placed = select(Placement.id).join(Model, Model.id == Placement.model_id)
        placed = placed.where(Placement.organ_id == Organ.id, Model.state.in_(REACHABLE_STATES))
        statement = select(Blob.digest).join(Organ, Organ.blob_id == Blob.id)
        statement = statement.where(Blob.digest.in_(batch), placed.exists())
        found.update(Digest(digest) for digest in session.scalars(statement))
    return found


def names_of_blob(session: Session, blob_id: int) -> list[str]:
    """Where a blob is needed, for people: `namespace/name@version: tensor`, and the files that have it elsewhere.

    Elsewhere is the header, a metadata array, or padding that is not zero.
    """
    tensors = (
        select(Model.namespace, Model.name, Model.version, Placement.name)
        .join(Placement, Placement.model_id == Model.id)
        .join(Organ, Organ.id == Placement.organ_id)
        .where(Organ.blob_id == blob_id)
        .order_by(Model.id, Placement.position)
        .limit(NAMES_MAX)
    )
    having = select(FilePart.file_id).where(FilePart.blob_id == blob_id)  # by its index, not file by file
    files = (
        select(Model.namespace, Model.name, Model.version, ModelFile.name)
        .join(ModelFile, ModelFile.model_id == Model.id)
        .where(ModelFile.id.in_(having))
        .order_by(Model.id, ModelFile.position)
        .limit(NAMES_MAX)
    )
    return [
        *(f"{owner}/{name}@{version}: {tensor}" for owner, name, version, tensor in session.execute(tensors)),
        *(f"{owner}/{name}@{version}: header of {file}" for owner, name, version, file in session.execute(files)),
    ]


def _blob_rows() -> Select[*tuple[Any, ...]]:
    """Columns, not objects: an ingest asks this for every organ."""
    columns = (Blob.id, Blob.digest, Blob.size_bytes, Blob.stored_bytes, Blob.codec, Blob.codec_version)
    statement = select(*columns, Blob.file, Blob.state, InlineBlob.stored)
    return statement.outerjoin(InlineBlob, InlineBlob.blob_id == Blob.id)


def _rows(session: Session, statement: Select[*tuple[Any, ...]]) -> Iterator[BlobRow]:
    for row in session.execute(statement):
        yield BlobRow(*row)
