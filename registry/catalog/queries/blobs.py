"""Blobs: their rows, the blobs that they need and that need them, and what uses them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, select
from sqlalchemy.orm import Session, aliased

from organs.registry.amounts import plural_text
from organs.registry.catalog.queries.relatives import blobs_in_models
from organs.registry.catalog.rows import batches, count, rows_among
from organs.registry.catalog.tables import (
    Blob,
    BlobLease,
    BlobPart,
    CardImageRow,
    Expert,
    FilePart,
    Ingest,
    InlineBlob,
    ModelFileRow,
    ModelRow,
    OrganRow,
    Placement,
)
from organs.registry.catalog.vocabulary import STACK_CODEC
from organs.registry.digest import Digest

DEPTH_MAX = 2
"""The most references from a blob to a blob that is stored alone."""
FILES_AT_ONCE = 5000
NAMES_MAX = 20
"""The most places of a blob in a text, for each kind of place."""


@dataclass(frozen=True, slots=True)
class KnownBlob:
    """The row of a blob as plain values; `inline` has the stored bytes of a small blob.

    A stack (`registry.store`) has the `parts`, and no stored bytes of its own.
    """

    id: int
    digest: Digest
    size_bytes: int
    stored_bytes: int
    codec: str
    codec_version: int
    file: str | None
    state: str
    inline: bytes | None
    parent_id: int | None = None
    parts: tuple[KnownBlob, ...] = ()
    """The parts of a stack, in order."""
    parent: KnownBlob | None = None
    """The blob to which the stored bytes are the difference (`registry.store`)."""

    @property
    def lineage(self) -> tuple[KnownBlob, ...]:
        """The blob, its parent, and the parent of this."""
        return (self, *(() if self.parent is None else self.parent.lineage))

    @property
    def depth(self) -> int:
        """The number of references to a blob that is stored alone."""
        return len(self.lineage) - 1

    @property
    def is_set_aside(self) -> bool:
        """Whether its bytes were wrong or missing when they were last read."""
        return self.state == "corrupt"


def blobs_by_digest(session: Session, digests: Iterable[str]) -> dict[Digest, KnownBlob]:
    """Return the rows of `digests` in any state; digests without a row are left out."""
    return {row.digest: row for row in _blobs_among(session, Blob.digest, digests)}


def blobs_by_id(session: Session, ids: Iterable[int]) -> dict[int, KnownBlob]:
    """Return the rows of `ids`."""
    return {row.id: row for row in _blobs_among(session, Blob.id, ids)}


def _blobs_among(session: Session, column: Any, values: Iterable[Any]) -> Iterator[KnownBlob]:
    for batch in batches(sorted(set(values))):
        yield from _blob_rows(session, _blobs().where(column.in_(batch)))


def blob_sizes(session: Session, digests: Iterable[str]) -> dict[Digest, int]:
    """Return the plain sizes in bytes of the intact blobs of `digests`; the others are left out."""
    statement = select(Blob.digest, Blob.size_bytes).where(Blob.state == "present")
    return {Digest(digest): size for digest, size in rows_among(session, statement, Blob.digest, digests)}


_PARENT = -Blob.depends_on
"""The parent in a condition, with a minus that keeps SQLite from its index, where most blobs are under NULL."""
PAGES_OF_BLOBS = (
    (Blob.codec == STACK_CODEC, 16),
    (and_(Blob.codec != STACK_CODEC, _PARENT.is_(None)), 500),
    (_PARENT.is_not(None), 500),
)
"""Stacks, blobs with stored bytes and no parent, blobs with a parent; and how many to read at once. A stack can have
thousands of parts."""


def blobs_after(session: Session, digest: str, condition: ColumnElement[bool], limit: int) -> list[KnownBlob]:
    """Return the next rows after `digest` that meet the condition, in the order of digests."""
    statement = _blobs().where(Blob.digest > digest, condition)
    return list(_blob_rows(session, statement.order_by(Blob.digest).limit(limit)))


def heights_of_blobs(session: Session, blob_ids: Collection[int], *, outside_only: bool = False) -> dict[int, int]:
    """Return the length of the longest chain of references that ends at each blob, at most DEPTH_MAX.

    With `outside_only`, references from one of the blobs to another do not count.
    """
    heights = dict.fromkeys(blob_ids, 0)
    above = {blob_id: blob_id for blob_id in blob_ids}  # each blob of a level, with the blob that its chain ends at
    for height in range(1, DEPTH_MAX + 1):
        above = {
            child: above[parent]
            for child, parent in _children_of(session, above)
            if not outside_only or child not in heights or parent not in heights
        }
        heights.update(dict.fromkeys(above.values(), height))
    return heights


def _children_of(session: Session, blob_ids: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield each blob that needs one of the blobs to decode it, with that blob."""
    statement = select(Blob.id, Blob.depends_on)
    for child, parent in rows_among(session, statement, Blob.depends_on, blob_ids):
        assert parent is not None, "it is among the ids"
        yield child, parent


def parents_in_no_model(session: Session, children: Mapping[int, KnownBlob]) -> dict[int, KnownBlob]:
    """Return the parents and grandparents of these blobs that no model has, and that no other blob of a model needs."""
    above = {row.id: row for child in children.values() for row in child.lineage[1:] if row.id not in children}
    unused = above.keys() - blobs_in_models(session, above)
    dependants = {blob_id: blob_id for blob_id in unused}  # each with the one of `unused` that it depends on
    needed: set[int] = set()
    for _ in range(DEPTH_MAX):
        pairs = _children_of(session, dependants)
        dependants = {child: dependants[parent] for child, parent in pairs if child not in children}
        needed.update(dependants[child] for child in blobs_in_models(session, dependants))
    return {blob_id: above[blob_id] for blob_id in unused - needed}


def known_files(session: Session) -> set[str]:
    """Return the names of all files that rows point at."""
    return {file for file in session.scalars(select(Blob.file)) if file is not None}


def files_after(session: Session, blob_id: int) -> Sequence[tuple[int, str, int]]:
    """Return the next blobs with a file after `blob_id`, in the order of ids: id, name of the file, stored bytes."""
    stored = select(Blob.id, Blob.file, Blob.stored_bytes).where(Blob.id > blob_id, Blob.file.is_not(None))
    rows = session.execute(stored.order_by(Blob.id).limit(FILES_AT_ONCE))
    return [(number, file or "", size) for number, file, size in rows]


def unneeded_blobs(
    session: Session, states: Collection[str], untouched_since: datetime, now: datetime
) -> Sequence[Blob]:
    """Return blobs in `states` without references and leases that no writer has used since `untouched_since`."""
    unused = unneeded(now).where(Blob.state.in_(states), Blob.touched_at < untouched_since)
    return session.scalars(unused).all()


UNDOOMED = ("present", "corrupt")
"""The states of blobs that no sweep has doomed."""


def unneeded(now: datetime) -> Select[Blob]:
    """Return a SELECT of blobs without references, and without a lease of a running ingest.

    It has one anti-join for each kind of reference. Each reads an index.
    """
    dependent = aliased(Blob)
    return select(Blob).where(
        ~select(OrganRow.id).where(OrganRow.blob_id == Blob.id).exists(),
        ~select(FilePart.file_id).where(FilePart.blob_id == Blob.id).exists(),
        ~select(CardImageRow.model_id).where(CardImageRow.blob_id == Blob.id).exists(),
        ~select(dependent.id).where(dependent.depends_on == Blob.id).exists(),
        ~select(BlobPart.blob_id).where(BlobPart.part_id == Blob.id).exists(),
        Blob.id.not_in(leased(now)),
    )


def leased(now: datetime) -> Select[int]:
    """Return a SELECT of the blobs that running ingests need."""
    statement = select(BlobLease.blob_id).join(Ingest, Ingest.id == BlobLease.ingest_id)
    return statement.where(Ingest.state == "running", Ingest.lease_expires_at > now)


def oldest_living_ingest(session: Session, now: datetime) -> datetime | None:
    """Return when the oldest running ingest with a valid lease began; None if there is none."""
    oldest = select(func.min(Ingest.started_at)).where(Ingest.state == "running", Ingest.lease_expires_at > now)
    return session.scalar(oldest)


def names_of_blob(session: Session, blob_id: int) -> list[str]:
    """Return the uses of a blob as text: `namespace/name@version: tensor`, files that use it outside of tensors, and
    cards of which it is an image.

    Outside of tensors, a file uses blobs for its header, metadata arrays, and padding that is not zero. For a blob that
    no model has any more, return how many others it is the parent of.
    """
    places = select(ModelRow, Placement.name).join(Placement, Placement.model_id == ModelRow.id)
    tensors = places.join(OrganRow, OrganRow.id == Placement.organ_id).order_by(ModelRow.id, Placement.position)
    experts = (
        places.add_columns(Expert.expert)
        .join(Expert, Expert.placement_id == Placement.id)
        .join(OrganRow, OrganRow.id == Expert.organ_id)
        .order_by(ModelRow.id, Placement.position, Expert.expert)
    )
    file_ids = select(FilePart.file_id).where(FilePart.blob_id == blob_id)  # reads the index of parts by blob
    files = select(ModelRow, ModelFileRow.name).join(ModelFileRow, ModelFileRow.model_id == ModelRow.id)
    files = files.where(ModelFileRow.id.in_(file_ids)).order_by(ModelRow.id, ModelFileRow.position)
    is_own = OrganRow.blob_id == blob_id
    names = []
    for model, tensor in session.execute(tensors.where(is_own).limit(NAMES_MAX)):
        names.append(f"{model.full_name}: {tensor}")
    for model, tensor, expert in session.execute(experts.where(is_own).limit(NAMES_MAX)):
        names.append(f"{model.full_name}: {tensor}, expert {expert}")
    names += [f"{model.full_name}: header of {file}" for model, file in session.execute(files.limit(NAMES_MAX))]
    images = select(ModelRow, CardImageRow.name).join(CardImageRow, CardImageRow.model_id == ModelRow.id)
    images = images.where(CardImageRow.blob_id == blob_id).order_by(ModelRow.id, CardImageRow.name)
    names += [
        f"{model.full_name}: image {name} of its card" for model, name in session.execute(images.limit(NAMES_MAX))
    ]
    if not names and (children := count(session, Blob, Blob.depends_on == blob_id)):
        names.append(f"{plural_text(children, 'tensor', 'tensors')} of other models; no model has it any more")
    return names


def _blobs() -> Select[*tuple[Any, ...]]:
    """Return a SELECT of columns instead of objects: an ingest runs it for every organ."""
    columns = (Blob.id, Blob.digest, Blob.size_bytes, Blob.stored_bytes, Blob.codec, Blob.codec_version)
    statement = select(*columns, Blob.file, Blob.state, InlineBlob.stored, Blob.depends_on)
    return statement.outerjoin(InlineBlob, InlineBlob.blob_id == Blob.id)


def _blob_rows(session: Session, statement: Select[*tuple[Any, ...]]) -> Iterator[KnownBlob]:
    rows = [KnownBlob(*values) for values in session.execute(statement)]
    parts: dict[int, list[KnownBlob]] = {}
    for batch in batches(sorted(row.id for row in rows if row.codec == STACK_CODEC)):
        stacks = _blobs().add_columns(BlobPart.blob_id).join(BlobPart, BlobPart.part_id == Blob.id)
        stacks = stacks.where(BlobPart.blob_id.in_(batch)).order_by(BlobPart.blob_id, BlobPart.position)
        found = [(KnownBlob(*v), stack_id) for *v, stack_id in session.execute(stacks)]
        complete = _with_parents(session, [row for row, _ in found])  # a part of several stacks is one object
        for row, stack_id in found:
            parts.setdefault(stack_id, []).append(complete[row.id])
    own = _with_parents(session, [row for row in rows if row.codec != STACK_CODEC])
    for row in rows:
        yield replace(row, parts=tuple(parts[row.id])) if row.codec == STACK_CODEC else own[row.id]


def _with_parents(session: Session, rows: Sequence[KnownBlob], depth: int = DEPTH_MAX) -> dict[int, KnownBlob]:
    """Return `rows` by id, with their parents and the parents of these."""
    ids = {row.parent_id for row in rows if row.parent_id is not None} if depth else ()
    found = [KnownBlob(*values) for values in rows_among(session, _blobs(), Blob.id, ids)] if ids else []
    parents = _with_parents(session, found, depth - 1) if found else {}
    return {row.id: row if row.parent_id is None else replace(row, parent=parents.get(row.parent_id)) for row in rows}
