"""How organs are stored: sums by encoding and by model, and the parents of organs.

A blob belongs to a model by a placement, by an expert or by a part of its files. A stack has no stored bytes of its
own: its experts count instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec.structs import asdict
from sqlalchemy import CTE, ColumnElement, case, func, literal, select, union, union_all
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.queries.chimeras import is_composed, is_mixed
from organs.registry.catalog.rows import among, batches, count
from organs.registry.catalog.tables import (
    Blob,
    CardImageRow,
    Expert,
    FilePart,
    ModelFileRow,
    ModelRow,
    OrganRow,
    Placement,
)
from organs.registry.catalog.vocabulary import STACK_CODEC
from organs.registry.digest import Digest
from organs.registry.entities.storage import (
    ModelStorage,
    OrganStorage,
    ParentHolder,
    ParentOrgan,
    StoredEncoding,
    StoredSizes,
    StoredWay,
    Way,
)

PARENTS_SHOWN = 3
Key = TypeVar("Key", bound=Hashable)
_SIZES = (func.count(), func.sum(Blob.size_bytes), func.sum(Blob.stored_bytes))


def way_of(codec: str) -> Way:
    """Return how blobs with this codec are stored."""
    if codec == STACK_CODEC:
        return Way.EXPERTS
    if codec.endswith("-delta"):
        return Way.DIFFERENCE
    return Way.DERIVED if "-from-" in codec else Way.ALONE


def stored_encodings(session: Session) -> list[StoredEncoding]:
    """Return the sums over all blobs by way and tensor type, the largest stored size first."""
    dtype = select(func.min(OrganRow.dtype)).where(OrganRow.blob_id == Blob.id).scalar_subquery().label("dtype")
    statement = select(Blob.codec, dtype, *_SIZES).where(_has_own_bytes()).group_by(Blob.codec, "dtype")
    sums: dict[tuple[Way, str | None], list[int]] = {}
    for codec, name, *sizes in session.execute(statement):
        if name is None:  # no organ has the blob any more: it is a parent of others, or is swept soon
            name = codec.partition("-")[0].upper() if "-" in codec else None
        _add_sizes(sums, (way_of(codec), name), sizes)
    rows = [StoredEncoding(way=way, dtype=name, **asdict(_sizes(total))) for (way, name), total in sums.items()]
    return sorted(rows, key=lambda row: (-row.stored_bytes, row.way, row.dtype or ""))


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The sizes of a model in the store."""

    files_bytes: int
    stored: StoredSizes
    own_bytes: int
    """Stored bytes that no other model has or depends on."""


@dataclass(slots=True)
class SizesByModel:
    """The sizes of all models with organs, by id, and sums over the blobs that they need, each counted once."""

    models: dict[int, ModelSizes]
    plain_bytes: int = 0
    """The plain bytes of the models' blobs."""
    alone_saved_bytes: int = 0
    """The difference of plain and stored bytes of those that are stored alone."""
    kept_bytes: int = 0
    """The stored bytes of parents that no model has any more."""
    needed_bytes: int = 0
    """The stored bytes of all of these blobs."""


def sizes_by_model(session: Session) -> SizesByModel:
    """Return the sizes of all models with blobs; it reads all placements."""
    uses = union(*_uses()).subquery()
    summed = select(uses.c.model_id, *_SIZES).join(Blob, Blob.id == uses.c.blob_id).where(_has_own_bytes())
    sums = {row[0]: _sizes(row[1:]) for row in session.execute(summed.group_by(uses.c.model_id))}
    needed = _needed()
    groups = (
        needed.c.first_model,
        (needed.c.first_model == needed.c.last_model).label("is_own"),
        needed.c.is_parent_only,
        Blob.depends_on.is_(None).label("is_alone"),
    )
    summed = select(*groups, func.sum(Blob.size_bytes), func.sum(Blob.stored_bytes))
    summed = summed.join(Blob, Blob.id == needed.c.blob_id).where(_has_own_bytes()).group_by(*groups)
    own, sizes = Counter[int](), SizesByModel({})
    for model_id, is_own, is_parent_only, is_alone, plain_bytes, stored_bytes in session.execute(summed):
        sizes.needed_bytes += int(stored_bytes)
        if is_parent_only:
            sizes.kept_bytes += int(stored_bytes)
        else:
            sizes.plain_bytes += int(plain_bytes)
            sizes.alone_saved_bytes += int(plain_bytes) - int(stored_bytes) if is_alone else 0
        if is_own:
            own[model_id] += int(stored_bytes)
    files = dict(session.execute(select(ModelRow.id, ModelRow.size_bytes)).all())
    for model_id, stored in sums.items():
        sizes.models[model_id] = ModelSizes(files[model_id], stored, own[model_id])  # placements have a model
    return sizes


def sizes_of_models(session: Session, model_ids: Collection[int]) -> StoredSizes:
    """Return the sizes of the blobs of a group of models, each counted once."""
    blob_ids = select(union(*_uses(model_ids)).subquery().c.blob_id)
    return _sizes(session.execute(select(*_SIZES).where(Blob.id.in_(blob_ids), _has_own_bytes())).one())


def model_storage(session: Session, model_id: int) -> ModelStorage:
    """Return how the organs of a model are stored, and the models with most of their parents."""
    blob_ids = select(union(*_uses([model_id])).subquery().c.blob_id)
    statement = select(Blob.codec, *_SIZES).where(Blob.id.in_(blob_ids), _has_own_bytes()).group_by(Blob.codec)
    sums: dict[Way, list[int]] = {}
    for codec, *sizes in session.execute(statement):
        _add_sizes(sums, way_of(codec), sizes)
    ways = [StoredWay(way=way, **asdict(_sizes(total))) for way, total in sums.items()]
    return ModelStorage(
        **asdict(_sizes(sum(column) for column in zip(*sums.values(), (0, 0, 0), strict=True))),
        ways=tuple(sorted(ways, key=lambda row: (-row.stored_bytes, row.way))),
        parents=_parent_models(session, blob_ids),
    )


def organ_storage(session: Session, blob_id: int) -> OrganStorage:
    """Return how the organ with the bytes of a blob is stored."""
    codec, parent_id = session.execute(select(Blob.codec, Blob.depends_on).where(Blob.id == blob_id)).one()
    parent = None
    if parent_id is not None:
        digest = Digest(session.scalars(select(Blob.digest).where(Blob.id == parent_id)).one())
        parent = ParentOrgan(digest=digest, model=None, name=None)
        placed = select(ModelRow, Placement.name).join(Placement, Placement.model_id == ModelRow.id)
        for statement, table in (
            (placed.join(Expert, Expert.placement_id == Placement.id), Expert),
            (placed, Placement),
        ):
            found = statement.join(OrganRow, OrganRow.id == table.organ_id).where(OrganRow.blob_id == parent_id)
            row = session.execute(found.order_by(ModelRow.id, table.id).limit(1)).first()
            if row is not None:  # the place of a whole tensor counts more than that of an expert
                parent = ParentOrgan(digest=digest, model=row[0].full_name, name=row[1])
    children = count(session, Blob, Blob.depends_on == blob_id)
    return OrganStorage(way=way_of(codec), parent=parent, children=children)


def _has_own_bytes() -> ColumnElement[bool]:
    return Blob.codec != STACK_CODEC


def _add_sizes(sums: dict[Key, list[int]], key: Key, sizes: Sequence[Any]) -> None:
    """Add the numbers of `_SIZES` to those of `key`."""
    sums[key] = [total + int(size) for total, size in zip(sums.get(key, (0, 0, 0)), sizes, strict=True)]


def _sizes(sums: Iterable[Any]) -> StoredSizes:
    parts, size, stored = (int(value or 0) for value in sums)
    return StoredSizes(parts=parts, size_bytes=size, stored_bytes=stored, saved_bytes=max(0, size - stored))


def _uses(model_ids: Collection[int] | None = None) -> list[Any]:
    """Return SELECTs of pairs of model and blob, of all models or some; a pair can occur several times."""
    uses: tuple[tuple[Any, Any], ...] = (
        (select(Placement.model_id, OrganRow.blob_id).join(OrganRow), Placement.model_id),
        (select(Expert.model_id, OrganRow.blob_id).join(OrganRow), Expert.model_id),
        (select(ModelFileRow.model_id, FilePart.blob_id).join(ModelFileRow), ModelFileRow.model_id),
        (select(CardImageRow.model_id, CardImageRow.blob_id), CardImageRow.model_id),
    )
    if model_ids is None:
        return [statement for statement, _ in uses]
    return [statement.where(among(column, sorted(model_ids))) for statement, column in uses]


def _needed() -> CTE:
    """Return the blobs that models have, and their parents, with the first and the last id of the models.

    `is_parent_only` is 1 for a parent that no model has any more. Two references at most lead to a blob that is stored
    alone.
    """
    uses = union_all(*_uses()).subquery()
    first, last = func.min(uses.c.model_id), func.max(uses.c.model_id)
    own = select(uses.c.blob_id, first.label("first"), last.label("last")).group_by(uses.c.blob_id).cte("own")
    child, parent = aliased(Blob), aliased(Blob)
    ends = (own.c.first, own.c.last)
    parents = select(child.depends_on, *ends, literal(1)).join(child, child.id == own.c.blob_id)
    above = select(parent.depends_on, *ends, literal(1)).join(child, child.id == own.c.blob_id)
    every = union_all(
        select(own.c.blob_id, *ends, literal(0).label("is_parent")),
        parents.where(child.depends_on.is_not(None)),
        above.join(parent, parent.id == child.depends_on).where(parent.depends_on.is_not(None)),
    ).subquery()
    return (
        select(
            every.c.blob_id,
            func.min(every.c.first).label("first_model"),
            func.max(every.c.last).label("last_model"),
            func.min(every.c.is_parent).label("is_parent_only"),
        )
        .group_by(every.c.blob_id)
        .cte("needed")
    )


def _parent_models(session: Session, blob_ids: Any) -> tuple[ParentHolder, ...]:
    """Return the models with most parents of the blobs; each parent counts for the oldest model that has it."""
    child = aliased(Blob)
    wanted = (
        select(child.id, child.depends_on).where(child.id.in_(blob_ids), child.depends_on.is_not(None)).cte("wanted")
    )
    places = union_all(
        *(
            select(wanted.c.id, table.model_id)
            .join(OrganRow, OrganRow.blob_id == wanted.c.depends_on)
            .join(table, table.organ_id == OrganRow.id)
            for table in (Placement, Expert)
        )
    ).subquery()
    oldest = select(places.c.id, func.min(places.c.model_id).label("model_id")).group_by(places.c.id).subquery()
    number = func.count()
    statement = select(ModelRow, number).join(oldest, oldest.c.model_id == ModelRow.id).group_by(ModelRow.id)
    rows = session.execute(statement.order_by(number.desc(), ModelRow.id).limit(PARENTS_SHOWN))
    return tuple(ParentHolder(name=model.full_name, organs=organs) for model, organs in rows)


@dataclass(frozen=True, slots=True)
class GroupSize:
    """The sums over the visible models of a group."""

    models: int
    chimeras: int
    size_bytes: int
    tensors: int


def group_size(session: Session, model_ids: Collection[int]) -> GroupSize:
    """Return the sums over the visible models among `model_ids`."""
    models = chimeras = size_bytes = tensors = 0
    for batch in batches(sorted(model_ids)):
        composed = func.sum(case((is_mixed(), 1), else_=0))
        statement = select(func.count(), composed, func.sum(ModelRow.size_bytes), func.sum(ModelRow.tensors))
        row = session.execute(statement.where(ModelRow.id.in_(batch), ModelRow.state == "visible")).one()
        models += row[0]
        chimeras += int(row[1] or 0)
        size_bytes += int(row[2] or 0)
        tensors += int(row[3] or 0)
    return GroupSize(models, chimeras, size_bytes, tensors)


def shared_organ_bytes(session: Session, model_ids: Collection[int]) -> int:
    """Return the bytes of equal organs of visible models beyond the first of each; it reads all of their placements."""
    shared, known = 0, set[int]()
    for batch in batches(sorted(model_ids)):
        statement = select(Placement.organ_id, func.max(Placement.size_bytes), func.count())
        statement = statement.where(Placement.model_id.in_(batch), Placement.visible).group_by(Placement.organ_id)
        for organ_id, size, places in session.execute(statement):
            shared += size * (places if organ_id in known else places - 1)
            known.add(organ_id)
    return shared


def duplicate_models(session: Session) -> GroupSize:
    """Return the sums over the visible models whose files an older model has too, under another name or version."""
    count = func.count()
    extra = (count - 1).label("extra")
    repeated = select(extra, func.max(ModelRow.size_bytes).label("size"), func.max(ModelRow.tensors).label("tensors"))
    repeated = repeated.where(ModelRow.state == "visible").group_by(ModelRow.digest).having(count > 1)
    rows = repeated.subquery()
    sums = (func.sum(rows.c.extra), func.sum(rows.c.extra * rows.c.size), func.sum(rows.c.extra * rows.c.tensors))
    models, size_bytes, tensors = session.execute(select(*sums)).one()
    return GroupSize(int(models or 0), 0, int(size_bytes or 0), int(tensors or 0))


def newest_outside(session: Session, model_ids: Collection[int], limit: int) -> Sequence[ModelRow]:
    """Return the newest of the last `limit` visible models that are not among `model_ids` and not composed here."""
    statement = (
        select(ModelRow).where(ModelRow.state == "visible", ~is_composed()).order_by(ModelRow.id.desc()).limit(limit)
    )
    return [model for model in session.scalars(statement) if model.id not in model_ids]
