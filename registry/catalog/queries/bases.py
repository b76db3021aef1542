"""Models as bases, for `fits:`: which organs can be grafted into one, as a condition on placements.

An organ fits where the base has one of the same shape at the same tower, block and slot, in a model of the same
architecture, and a runtime takes its dtype there. Where equal shapes may mean different things, the facts that decide
it must be equal too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, String, and_, bindparam, case, cast, func, not_, or_, select, tuple_
from sqlalchemy.orm import Session, aliased

from organs.registry.anatomy import OrganType
from organs.registry.catalog.memory import remembered
from organs.registry.catalog.tables import Facet, Model, ModelMetadata, Organ, Placement
from organs.registry.catalog.vocabulary import MATRIX_DTYPES_REFUSED, REACHABLE_STATES, VECTOR_DTYPES

ATTENTION_FACTS = (
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("rope.dimension_count", "attention.sliding_window"),
)
"""Metadata, without the architecture before it, by which a runtime cuts attention's matrices into heads."""
EXPERT_FACTS = ("expert_count", "expert_used_count")
"""And by which it reads the experts and their router."""
FACTS = {OrganType.SKELETON.value: ATTENTION_FACTS, OrganType.ORGAN.value: EXPERT_FACTS}
"""By type, what must be equal; what neither model states is equal."""

NEVER_GRAFTED = OrganType.ADAPTER.value
"""An adapter's halves are merged into what they adapt; as organs they have no place in a base."""
NEVER_TAKEN = "F64"
"""Even where the base has it; of the others that is its own matter."""

_NO_BLOCK = -1
"""For what stands outside the blocks: NULL equals nothing in SQL."""
_Facts = frozenset[tuple[str, str]]
_NO_FACTS: _Facts = frozenset()


@dataclass(frozen=True, slots=True)
class Base:
    """A model that receives, as much of it as searches need."""

    id: int
    architecture: str
    tensors: int
    types: frozenset[str]
    """Of its organs; adapters left out."""
    slots: frozenset[str]
    """Of those."""
    strangers: Mapping[str, tuple[int, ...]]
    """By type, the visible models of its architecture that state other facts: none of their organs of it fits."""


def base_of(session: Session, model_id: int) -> Base | None:
    """The model `model_id` as a base; None where it states no architecture, for then nothing is known to fit."""
    return remembered(session, ("base", model_id), lambda: _read(session, model_id))


def fits_base(base: Base, entity: Any) -> ColumnElement[bool]:
    """Whether the placements `entity` can be grafted into `base`, and are not what it has there already."""
    facets = select(Facet.id).where(Facet.architecture == base.architecture)
    return and_(entity.facet_id.in_(facets), entity.model_id != base.id, fits_place(base, entity))


def fits_place(base: Base, entity: Any) -> ColumnElement[bool]:
    """The same of placements of other models, of which it is known that they are of its architecture."""
    organ, own, own_organ = aliased(Organ), aliased(Placement), aliased(Organ)
    shape = select(organ.shape).where(organ.id == entity.organ_id).correlate(entity).scalar_subquery()
    # It has nothing to do with the placement that is tested, so it is made once a statement.
    shaped = select(*_place(own), own_organ.shape).join(own_organ, own_organ.id == own.organ_id)
    shaped = shaped.where(own.model_id == base.id).correlate(None)
    return and_(
        entity.type != NEVER_GRAFTED,
        *(or_(entity.type != kind, not_(among(entity.model_id, ids))) for kind, ids in base.strangers.items()),
        tuple_(*_place(entity), shape).in_(shaped),
        denied(is_equal(base, entity)),
        _has_dtype_for(base, entity),
    )


def has_a_shape_of(base: Base, entity: Any) -> ColumnElement[bool]:
    """Whether the placements `entity` have a shape that `base` has anywhere: sooner looked up than its place."""
    organ, own, own_organ = aliased(Organ), aliased(Placement), aliased(Organ)
    shape = select(organ.shape).where(organ.id == entity.organ_id).correlate(entity).scalar_subquery()
    shapes = select(own_organ.shape).join(own, own.organ_id == own_organ.id).where(own.model_id == base.id)
    return shape.in_(shapes.correlate(None))


def is_equal(base: Base, entity: Any) -> ColumnElement[bool]:
    """Whether the placements `entity` are of the very organ that `base` has at that place."""
    own = aliased(Placement)
    taken = select(*_place(own), own.organ_id).where(own.model_id == base.id)
    return tuple_(*_place(entity), entity.organ_id).in_(taken.correlate(None))


def _has_dtype_for(base: Base, entity: Any) -> ColumnElement[bool]:
    """Whether a runtime takes the dtype of the placements `entity`, which have a place and a shape of `base`."""
    organ, own = aliased(Organ), aliased(Placement)
    length = cast(organ.elements, String)
    # Lengths of 1 behind the first make no matrix.
    vector = select(or_(organ.shape == length, organ.shape.like(length + "x%"))).where(organ.id == entity.organ_id)
    same = select(*_place(own), own.dtype).where(own.model_id == base.id, own.dtype != NEVER_TAKEN)
    return or_(
        entity.dtype.in_(sorted(VECTOR_DTYPES)),
        and_(entity.dtype.not_in(sorted(MATRIX_DTYPES_REFUSED)), not_(vector.correlate(entity).scalar_subquery())),
        tuple_(*_place(entity), entity.dtype).in_(same.correlate(None)),
    )


def _place(entity: Any) -> tuple[ColumnElement[Any], ...]:
    return entity.tower, entity.slot, func.coalesce(entity.block, _NO_BLOCK)


def denied(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether `condition` does not hold."""
    # A plain NOT asks SQLite to tell NULL from false, and for each row it then walks through all that IN looks up.
    return case((condition, 1), else_=0) == 0


def among(column: Any, ids: Iterable[int]) -> ColumnElement[bool]:
    """Whether `column` is one of `ids`, which may be thousands: they stand in the statement, for it has few places for
    values."""
    return column.in_(bindparam(None, list(ids), unique=True, expanding=True, literal_execute=True))  # type: ignore[no-any-return]


def models_of_architecture(session: Session, architecture: str) -> dict[int, int]:
    """The visible models that state `architecture`, oldest first, each with the number of its organs."""

    def read() -> dict[int, int]:
        statement = select(Model.id, Model.tensors).where(Model.state == "visible", Model.architecture == architecture)
        return dict(session.execute(statement.order_by(Model.id)).all())

    return remembered(session, ("models of", architecture), read)


def _read(session: Session, model_id: int) -> Base | None:
    architecture, tensors = session.execute(select(Model.architecture, Model.tensors).where(Model.id == model_id)).one()
    if not architecture:
        return None
    held = select(Placement.type, Placement.slot).where(Placement.model_id == model_id, Placement.type != NEVER_GRAFTED)
    places = session.execute(held.distinct()).all()
    facts = _stated(session, architecture)
    others = [other for other in models_of_architecture(session, architecture) if other != model_id]
    strangers = {}
    for kind, of_models in facts.items():
        mine = of_models.get(model_id, _NO_FACTS)
        strangers[kind] = tuple(other for other in others if of_models.get(other, _NO_FACTS) != mine)
    return Base(
        id=model_id,
        architecture=architecture,
        tensors=tensors,
        types=frozenset(kind for kind, _ in places),
        slots=frozenset(slot for _, slot in places),
        strangers={kind: ids for kind, ids in strangers.items() if ids},
    )


def _stated(session: Session, architecture: str) -> dict[str, dict[int, _Facts]]:
    """By type and model, the facts that models of `architecture` state; arrays stand there by their size."""

    def read() -> dict[str, dict[int, _Facts]]:
        types = {f"{architecture}.{name}": kind for kind, names in FACTS.items() for name in names}
        shown = select(Model.id).where(Model.state.in_(REACHABLE_STATES), Model.architecture == architecture)
        statement = select(ModelMetadata.model_id, ModelMetadata.key, ModelMetadata.value).where(
            ModelMetadata.model_id.in_(shown), ModelMetadata.key.in_(sorted(types))
        )
        found: dict[str, dict[int, _Facts]] = {kind: {} for kind in FACTS}
        for model_id, key, value in session.execute(statement):
            of_models = found[types[key]]
            of_models[model_id] = of_models.get(model_id, _NO_FACTS) | {(key, value)}
        return found

    return remembered(session, ("facts", architecture), read)
