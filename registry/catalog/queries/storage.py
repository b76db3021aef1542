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
from sqlalchemy import CTE, ColumnElement, func, literal, select, union, union_all
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.engine import among
from organs.registry.catalog.tables import Blob, Expert, FilePart, Model, ModelFile, Organ, Placement
from organs.registry.catalog.vocabulary import STACK_CODEC
from organs.registry.digest import Digest
from organs.registry.entities.storage import (
    ModelStorage,
    OrganStorage,
    ParentModel,
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
    dtype = select(func.min(Organ.dtype)).where(Organ.blob_id == Blob.id).scalar_subquery().label("dtype")
    statement = select(Blob.codec, dtype, *_SIZES).where(_has_own_bytes()).group_by(Blob.codec, "dtype")
    sums = _summed(
        ((way_of(codec), name or _dtype_of(codec)), sizes) for codec, name, *sizes in session.execute(statement)
    )
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
    files = dict(session.execute(select(Model.id, Model.size_bytes)).all())
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
    sums = _summed((way_of(codec), sizes) for codec, *sizes in session.execute(statement))
    ways = [StoredWay(way=way, **asdict(_sizes(total))) for way, total in sums.items()]
    return ModelStorage(
        **asdict(_sizes(sum(column) for column in zip(*sums.values(), (0, 0, 0), strict=True))),
        ways=tuple(sorted(ways, key=lambda row: (-row.stored_bytes, row.way))),
        parents=_parent_models(session, blob_ids),
    )


def organ_storage(session: Session, blob_id: int) -> OrganStorage:
    """Return how the organ with the bytes of a blob is stored."""
    codec, parent_id = session.execute(select(Blob.codec, Blob.depends_on).where(Blob.id == blob_id)).one()
    children = select(func.count()).select_from(Blob).where(Blob.depends_on == blob_id)
    return OrganStorage(
        way=way_of(codec),
        parent=None if parent_id is None else _parent(session, parent_id),
        children=session.scalar(children) or 0,
    )


def _dtype_of(codec: str) -> str | None:
    """Return the tensor type of a blob that no organ has any more: a parent of others, or one that is swept soon."""
    name, dash, _ = codec.partition("-")
    return name.upper() if dash else None


def _has_own_bytes() -> ColumnElement[bool]:
    return Blob.codec != STACK_CODEC


def _summed(rows: Iterable[tuple[Key, Sequence[Any]]]) -> dict[Key, list[int]]:
    """Return the sums of the numbers of `_SIZES` in `rows`, by the key of each row."""
    sums: dict[Key, list[int]] = {}
    for key, sizes in rows:
        sums[key] = [total + int(size) for total, size in zip(sums.get(key, (0, 0, 0)), sizes, strict=True)]
    return sums


def _sizes(sums: Iterable[Any]) -> StoredSizes:
    parts, size, stored = (int(value or 0) for value in sums)
    return StoredSizes(parts=parts, size_bytes=size, stored_bytes=stored, saved_bytes=max(0, size - stored))


def _uses(model_ids: Collection[int] | None = None) -> list[Any]:
    """Return SELECTs of pairs of model and blob, of all models or some; a pair can occur several times."""
    return [
        _of_models(select(Placement.model_id, Organ.blob_id).join(Organ), Placement.model_id, model_ids),
        _of_models(select(Expert.model_id, Organ.blob_id).join(Organ), Expert.model_id, model_ids),
        _of_models(select(ModelFile.model_id, FilePart.blob_id).join(ModelFile), ModelFile.model_id, model_ids),
    ]


def _of_models(statement: Any, column: Any, model_ids: Collection[int] | None) -> Any:
    return statement if model_ids is None else statement.where(among(column, sorted(model_ids)))


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


def _parent_models(session: Session, blob_ids: Any) -> tuple[ParentModel, ...]:
    """Return the models with most parents of the blobs; each parent counts for the oldest model that has it."""
    child = aliased(Blob)
    wanted = (
        select(child.id, child.depends_on).where(child.id.in_(blob_ids), child.depends_on.is_not(None)).cte("wanted")
    )
    places = union_all(
        *(
            select(wanted.c.id, table.model_id)
            .join(Organ, Organ.blob_id == wanted.c.depends_on)
            .join(table, table.organ_id == Organ.id)
            for table in (Placement, Expert)
        )
    ).subquery()
    oldest = select(places.c.id, func.min(places.c.model_id).label("model_id")).group_by(places.c.id).subquery()
    count = func.count()
    statement = select(Model, count).join(oldest, oldest.c.model_id == Model.id).group_by(Model.id)
    rows = session.execute(statement.order_by(count.desc(), Model.id).limit(PARENTS_SHOWN))
    return tuple(ParentModel(name=model.full_name, organs=organs) for model, organs in rows)


def _parent(session: Session, blob_id: int) -> ParentOrgan:
    digest = Digest(session.scalar(select(Blob.digest).where(Blob.id == blob_id)) or "")
    placed = select(Model, Placement.name).join(Placement, Placement.model_id == Model.id)
    expert = select(Model, Placement.name).join(Expert, Expert.model_id == Model.id)
    expert = expert.join(Placement, Placement.id == Expert.placement_id)
    for statement, table in ((placed, Placement), (expert, Expert)):
        found = statement.join(Organ, Organ.id == table.organ_id).where(Organ.blob_id == blob_id)
        row = session.execute(found.order_by(Model.id, table.id).limit(1)).first()
        if row is not None:
            return ParentOrgan(digest=digest, model=row[0].full_name, name=row[1])
    return ParentOrgan(digest=digest, model=None, name=None)
