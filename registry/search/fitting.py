"""The SQL of `fits:`: the organs that can be grafted into a base, and the models that have them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, String, and_, case, cast, false, func, not_, or_, select, tuple_
from sqlalchemy.orm import Session, aliased

from organs.registry.amounts import weight_change
from organs.registry.anatomy import OrganType
from organs.registry.catalog.cache import cached
from organs.registry.catalog.cursor import check_limit
from organs.registry.catalog.queries.model_lists import composed_among
from organs.registry.catalog.queries.relatives import changes_from, likenesses
from organs.registry.catalog.rows import among
from organs.registry.catalog.tables import Facet, ModelMetadata, ModelRow, OrganRow, Placement
from organs.registry.catalog.vocabulary import (
    FOREIGN_BEGINNING,
    FOREIGN_ENDING,
    MATRIX_DTYPES_REFUSED,
    ORGAN_TYPES,
    REACHABLE_STATES,
    VECTOR_DTYPES,
)
from organs.registry.entities.plan import FitCount, FittingModel, FittingModels
from organs.registry.search.language import Choice

ATTENTION_FACTS = (
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("rope.dimension_count", "attention.sliding_window"),
)
"""Metadata keys, without their architecture, by which a runtime cuts the matrices of attention into heads."""
EXPERT_FACTS = ("expert_count", "expert_used_count")
"""Metadata keys by which a runtime reads the experts and their router."""
FACTS = {OrganType.SKELETON.value: ATTENTION_FACTS, OrganType.ORGAN.value: EXPERT_FACTS}
"""The metadata that must be equal, by type. A key that both models lack counts as equal."""

NEVER_GRAFTED = OrganType.ADAPTER.value
"""The halves of an adapter are merged into the tensor that they adapt. They have no place in a base."""
NEVER_TAKEN = "F64"
"""A tensor type that is never accepted. Other types are accepted where the base has the same type."""

_NO_BLOCK = -1
"""The block number of organs outside the blocks: in SQL, NULL is not equal to NULL."""


@dataclass(frozen=True, slots=True)
class FitBase:
    """The facts about a base that a search for fitting organs needs."""

    id: int
    architecture: str
    tensors: int
    types: frozenset[str]
    """The types of its organs, without adapters."""
    slots: frozenset[str]
    """The slots of these organs."""
    strangers: Mapping[str, tuple[int, ...]]
    """By type, the visible models of the architecture whose facts differ. Their organs of this type do not fit."""

    def fits(self, entity: Any) -> ColumnElement[bool]:
        """Return the condition that placements of other models of the architecture can be grafted into the base."""
        organ, own_place, own_organ = aliased(OrganRow), aliased(Placement), aliased(OrganRow)
        shape = select(organ.shape).where(organ.id == entity.organ_id).correlate(entity).scalar_subquery()
        # This subquery does not depend on the tested placement, so it runs once in each statement.
        own_shapes = select(*_place(own_place), own_organ.shape).join(own_organ, own_organ.id == own_place.organ_id)
        own_shapes = own_shapes.where(own_place.model_id == self.id).correlate(None)
        return and_(
            entity.type != NEVER_GRAFTED,
            *(or_(entity.type != kind, not_(among(entity.model_id, ids))) for kind, ids in self.strangers.items()),
            tuple_(*_place(entity), shape).in_(own_shapes),
            denied(self.has(entity)),
            self._has_dtype_for(entity),
        )

    def has(self, entity: Any) -> ColumnElement[bool]:
        """Return the condition that the base has the same organ at the same place."""
        own_place = aliased(Placement)
        own_organs = select(*_place(own_place), own_place.organ_id).where(own_place.model_id == self.id)
        return tuple_(*_place(entity), entity.organ_id).in_(own_organs.correlate(None))

    def _has_dtype_for(self, entity: Any) -> ColumnElement[bool]:
        """Return the condition that a runtime accepts the dtype of placements with a place and a shape of the base."""
        organ, own_place = aliased(OrganRow), aliased(Placement)
        length = cast(organ.elements, String)
        # A shape is also a vector if all lengths but the first are 1.
        vector = select(or_(organ.shape == length, organ.shape.like(length + "x%"))).where(organ.id == entity.organ_id)
        same = select(*_place(own_place), own_place.dtype)
        same = same.where(own_place.model_id == self.id, own_place.dtype != NEVER_TAKEN)
        return and_(
            or_(
                entity.dtype.in_(sorted(VECTOR_DTYPES)),
                and_(
                    entity.dtype.not_in(sorted(MATRIX_DTYPES_REFUSED)),
                    not_(vector.correlate(entity).scalar_subquery()),
                ),
                tuple_(*_place(entity), entity.dtype).in_(same.correlate(None)),
            ),
            not_(entity.dtype.startswith(FOREIGN_BEGINNING, autoescape=True)),
            not_(entity.dtype.endswith(FOREIGN_ENDING, autoescape=True)),
        )


def _place(entity: Any) -> tuple[ColumnElement[Any], ...]:
    return entity.tower, entity.slot, func.coalesce(entity.block, _NO_BLOCK)


def denied(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the negation of `condition`, true also for NULL."""
    # For a plain NOT, SQLite must distinguish NULL from false: it then scans the list of an IN for each row.
    return case((condition, 1), else_=0) == 0


def base_of(session: Session, model_id: int) -> FitBase | None:
    """Return the model `model_id` as a base; None if it states no architecture.

    Without an architecture, no organ is known to fit.
    """
    return cached(session, ("base", model_id), lambda: _read_base(session, model_id))


def _read_base(session: Session, model_id: int) -> FitBase | None:
    architecture, tensors = session.execute(
        select(ModelRow.architecture, ModelRow.tensors).where(ModelRow.id == model_id)
    ).one()
    if not architecture:
        return None
    statement = select(Placement.type, Placement.slot).distinct()
    statement = statement.where(Placement.model_id == model_id, Placement.type != NEVER_GRAFTED)
    places = session.execute(statement).all()
    strangers: dict[str, tuple[int, ...]] = {}
    for kind, facts in cached(session, ("facts", architecture), lambda: _read_facts(session, architecture)).items():
        own, others = facts.get(model_id), _models_of_architecture(session, architecture)
        if differing := tuple(other for other in others if other != model_id and facts.get(other) != own):
            strangers[kind] = differing
    return FitBase(
        id=model_id,
        architecture=architecture,
        tensors=tensors,
        types=frozenset(kind for kind, _ in places),
        slots=frozenset(slot for _, slot in places),
        strangers=strangers,
    )


def _models_of_architecture(session: Session, architecture: str) -> dict[int, int]:
    """Return the number of organs of each visible model that states `architecture`, oldest first."""

    def read() -> dict[int, int]:
        statement = select(ModelRow.id, ModelRow.tensors).where(
            ModelRow.state == "visible", ModelRow.architecture == architecture
        )
        return dict(session.execute(statement.order_by(ModelRow.id)).all())

    return cached(session, ("models of", architecture), read)


def _read_facts(session: Session, architecture: str) -> dict[str, dict[int, frozenset[tuple[str, str]]]]:
    """Return the facts that models of `architecture` state, by type and model; an array is represented by its size."""
    types = {f"{architecture}.{name}": kind for kind, names in FACTS.items() for name in names}
    reachable = select(ModelRow.id).where(ModelRow.state.in_(REACHABLE_STATES), ModelRow.architecture == architecture)
    statement = select(ModelMetadata.model_id, ModelMetadata.key, ModelMetadata.value)
    statement = statement.where(ModelMetadata.model_id.in_(reachable), ModelMetadata.key.in_(sorted(types)))
    facts: dict[str, dict[int, frozenset[tuple[str, str]]]] = {kind: {} for kind in FACTS}
    for model_id, key, value in session.execute(statement):
        by_model = facts[types[key]]
        by_model[model_id] = by_model.get(model_id, frozenset()) | {(key, value)}
    return facts


SLOTS_LISTED_MAX = 100
"""A search for a base with more slots is narrowed only by architecture and type."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """Where to search for the organs of one type that fit."""

    share: float
    """The estimated share of the organs of the architecture that have this type and fit."""
    models: Mapping[int, int] | None = None
    """The models with fitting organs, with the number of all organs of each. None if there are too many models
    to count."""


@dataclass(frozen=True, slots=True)
class FitFilter:
    """A resolved `fits:` term. It matches organs that fit any of `bases`; with `negated`, those that fit none."""

    text: str
    """The term in the query."""
    bases: tuple[FitBase, ...]
    prospects: Mapping[str, Prospect]
    """By type, for all bases together. No organ of a type without an entry fits."""
    negated: bool

    def condition(self, entity: Any) -> ColumnElement[bool]:
        """Return the term as a condition on the placements `entity`."""
        fits: ColumnElement[bool] = false()
        for base in self.bases:
            facets = select(Facet.id).where(Facet.architecture == base.architecture)
            # The organs of the base itself are excluded.
            fits = or_(fits, and_(entity.facet_id.in_(facets), entity.model_id != base.id, base.fits(entity)))
        if self.negated:
            return denied(fits)
        few = [(kind, prospect.models) for kind, prospect in self.prospects.items() if prospect.models is not None]
        # If few models fit, the index alone rejects the rows of the others.
        return and_(*(or_(entity.type != kind, among(entity.model_id, ids)) for kind, ids in few), fits)

    def values(self, field: str) -> frozenset[str] | None:
        """Return the values that matches can have in the field `arch`, `type` or `slot`; None for any value."""
        if self.negated:
            return None
        if field == "arch":
            return frozenset(base.architecture for base in self.bases)
        if field == "type":
            return frozenset(self.prospects)
        slots = frozenset(slot for base in self.bases for slot in base.slots)
        return slots if len(slots) <= SLOTS_LISTED_MAX else None

    def share(self, types: Iterable[str]) -> float:
        """Return the estimated share of the organs of the architecture that have one of `types` and match."""
        return 1.0 if self.negated else sum(self.prospects[kind].share for kind in types if kind in self.prospects)

    def models(self, types: Iterable[str]) -> dict[int, int] | None:
        """Return the models that may have matches of `types`, with the numbers of their organs; None if unknown."""
        if self.negated:
            return None
        models: dict[int, int] = {}
        for prospect in (self.prospects[kind] for kind in types if kind in self.prospects):
            if prospect.models is None:
                return None
            models |= prospect.models
        return models


def fitting(session: Session, term: Choice, bases: Sequence[FitBase]) -> FitFilter:
    """Return the resolved `term`; `bases` are the models that it names."""
    prospects: dict[str, Prospect] = {}
    for base in bases:
        for kind, prospect in _prospects(session, base).items():
            other = prospects.get(kind, prospect)  # of an earlier base: an organ fits at least one of them
            few = None if other.models is None or prospect.models is None else {**other.models, **prospect.models}
            prospects[kind] = Prospect(max(other.share, prospect.share), few)
    return FitFilter(str(term), tuple(bases), prospects, term.negated)


SAMPLED_MAX = 6000
"""The number of placements of an architecture that are sampled to estimate how many fit. This takes some tens of
milliseconds."""
BATCH_MODELS = 100
"""The least number of models that one statement searches. If these have fewer organs than the base, more models are
added, because each statement first reads all organs of the base."""
_BY_MODEL = "INDEXED BY ix_placements_model"


def _prospects(session: Session, base: FitBase) -> dict[str, Prospect]:
    """Return how many organs fit `base`, by type: estimated from a sample, or from all models for rare types."""
    return cached(session, ("prospects", base.id), lambda: _estimate(session, base))


def _estimate(session: Session, base: FitBase) -> dict[str, Prospect]:
    tensors = _models_of_architecture(session, base.architecture)
    other_ids = [model_id for model_id in tensors if model_id != base.id]
    total = sum(tensors[model_id] for model_id in other_ids)
    step = max(1, -(-total // SAMPLED_MAX))
    prospects: dict[str, Prospect] = {}
    if step > 1:
        sample = other_ids[::step]
        sampled = max(1, sum(tensors[model_id] for model_id in sample))
        by_type = _count_fits(session, base, sample, base.types)
        prospects = {kind: Prospect(sum(fits.values()) / sampled) for kind, fits in by_type.items()}
    rare = base.types.difference(prospects)
    possible = [
        model_id for model_id in other_ids if any(model_id not in base.strangers.get(kind, ()) for kind in rare)
    ]
    found: dict[str, dict[int, int]] = {}
    for batch in batches_of_models(possible, tensors, base.tensors, BATCH_MODELS):
        # Each batch is cached, so that a request that was stopped by the time limit gets further when it is repeated.
        key = ("fits", base.id, rare, batch[0])
        for kind, fits in cached(session, key, partial(_count_fits, session, base, batch, rare)).items():
            found.setdefault(kind, {}).update(fits)
    for kind, fits in found.items():
        prospects[kind] = Prospect(sum(fits.values()) / total, {model_id: tensors[model_id] for model_id in fits})
    return prospects


def batches_of_models(
    ids: Iterable[int], tensors: Mapping[int, int], tensors_min: int, models_min: int = 1
) -> Iterator[list[int]]:
    """Yield `ids` in parts of at least `models_min` models, with together at least `tensors_min` tensors."""
    batch: list[int] = []
    total = 0
    for model_id in ids:
        batch.append(model_id)
        total += tensors[model_id]
        if len(batch) >= models_min and total >= tensors_min:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def _count_fits(
    session: Session, base: FitBase, ids: Sequence[int], types: Collection[str]
) -> dict[str, dict[int, int]]:
    """Return the number of fitting organs, by type and model; models without fitting organs are left out."""
    organ, own_place, own_organ = aliased(OrganRow), aliased(Placement), aliased(OrganRow)
    # A comparison with the shapes of all organs of the base is faster than `fits`, which compares at the same place.
    shape = select(organ.shape).where(organ.id == Placement.organ_id).correlate(Placement).scalar_subquery()
    own_shapes = select(own_organ.shape).join(own_place, own_place.organ_id == own_organ.id)
    own_shapes = own_shapes.where(own_place.model_id == base.id).correlate(None)
    statement = (
        select(Placement.type, Placement.model_id, func.count())
        .with_hint(Placement, _BY_MODEL, "sqlite")
        .where(among(Placement.model_id, ids), Placement.type.in_(sorted(types)))
        .where(shape.in_(own_shapes), base.fits(Placement))
        .group_by(Placement.type, Placement.model_id)
    )
    by_type: dict[str, dict[int, int]] = {}
    for kind, model_id, count in session.execute(statement):
        by_type.setdefault(kind, {})[model_id] = count
    return by_type


EXAMINED_MAX = 1000
"""The most models that are searched for organs that fit."""


def fitting_models(
    session: Session, model: ModelRow, limit: int = 50, only: Collection[int] | None = None
) -> FittingModels:
    """Return up to `limit` visible models with organs that fit `model`, with counts by type. `only` has the ids of the
    models to examine; None means all.

    Models with the same organs come first, marked as `same`, then relatives of `model`, then the newest models. Among
    the relatives, chimeras come last: most of them have organs of `model` and of models that are listed anyway. At most
    `EXAMINED_MAX` models are examined. The result is empty for a base that states no architecture. Raises BadQuery for
    an invalid `limit`.
    """
    check_limit(limit)
    base = base_of(session, model.id)
    if base is None:
        return FittingModels(base=model.full_name, items=(), more=False)
    tensors = _models_of_architecture(session, base.architecture)
    model_sets = [prospect.models for prospect in _prospects(session, base).values()]
    possible = tensors if None in model_sets else {model_id for models in model_sets for model_id in models or ()}
    candidates = [model_id for model_id in reversed(tensors) if model_id in possible and model_id != base.id]
    if only is not None:
        candidates = [model_id for model_id in candidates if model_id in only]
    likeness, change = likenesses(session, base.id), changes_from(session, base.id)
    composed = composed_among(session, [model_id for model_id in candidates if model_id in likeness])
    nearest = {other: weight_change(change.get(other), value) for other, value in likeness.items()}
    candidates.sort(key=lambda other: (other not in nearest, other in composed, nearest.get(other, 0.0)))
    own = select(Placement.type, func.count()).where(Placement.model_id == model.id).group_by(Placement.type)
    counted = dict(session.execute(own).all())
    own_types = {kind: FitCount(0, counted[kind], counted[kind]) for kind in ORGAN_TYPES if kind in counted}
    items = [
        FittingModel(model=name, likeness=1.0, change=0.0, types=own_types, same=True)
        for name in (same_models(session, model) if only is None else ())
    ]
    examined = min(len(candidates), EXAMINED_MAX)
    for batch in batches_of_models(candidates[:examined], tensors, base.tensors, BATCH_MODELS):
        counts = _counts(session, base, batch)
        fits = [other for other in batch if any(count.fitting for count in counts.get(other, {}).values())]
        rows = session.execute(
            select(ModelRow.id, ModelRow.namespace, ModelRow.name, ModelRow.version).where(ModelRow.id.in_(fits))
        )
        names = {model_id: f"{namespace}/{name}@{version}" for model_id, namespace, name, version in rows}
        for other in fits:
            types = {kind: counts[other][kind] for kind in ORGAN_TYPES if kind in counts[other]}
            item = FittingModel(model=names[other], likeness=likeness.get(other), change=change.get(other), types=types)
            items.append(item)
        if len(items) > limit:
            break
    more = len(items) > limit or examined < len(candidates)
    return FittingModels(base=model.full_name, items=tuple(items[:limit]), more=more)


def _counts(session: Session, base: FitBase, ids: Sequence[int]) -> dict[int, dict[str, FitCount]]:
    """Return how many organs of the models `ids` fit `base` and how many are equal, by model and type."""
    fits, equal = (func.sum(case((test, 1), else_=0)) for test in (base.fits(Placement), base.has(Placement)))
    statement = (
        select(Placement.model_id, Placement.type, fits, equal, func.count())
        .with_hint(Placement, _BY_MODEL, "sqlite")
        .where(among(Placement.model_id, ids))
        .group_by(Placement.model_id, Placement.type)
    )
    counts: dict[int, dict[str, FitCount]] = {}
    for model_id, kind, fitting_count, equal_count, total in session.execute(statement):
        counts.setdefault(model_id, {})[kind] = FitCount(int(fitting_count), int(equal_count), total)
    return counts


SAME_LIKENESS = 0.999999
"""The least likeness of two models whose organs are compared one by one, to find that they are the same model."""
SAME_MAX = 20
"""The most models that are listed as the same model as a base."""


def same_models(session: Session, model: ModelRow) -> tuple[str, ...]:
    """Return the names of other visible models with the same organs as `model` at all places, oldest first.

    Files with other metadata are the same model too.
    """

    def read() -> tuple[str, ...]:
        alike = [other for other, likeness in likenesses(session, model.id).items() if likeness >= SAME_LIKENESS]
        own, other = aliased(Placement), aliased(Placement)
        own_organs = select(*_place(own), own.organ_id).where(own.model_id == model.id)
        differing = select(other.id).where(other.model_id == ModelRow.id)
        differing = differing.where(tuple_(*_place(other), other.organ_id).not_in(own_organs))
        statement = select(ModelRow.namespace, ModelRow.name, ModelRow.version).where(
            or_(among(ModelRow.id, alike), ModelRow.digest == model.digest),
            *(
                ModelRow.id != model.id,
                ModelRow.state == "visible",
                ModelRow.tensors == model.tensors,
                ~differing.exists(),
            ),
        )
        rows = session.execute(statement.order_by(ModelRow.id).limit(SAME_MAX))
        return tuple(f"{namespace}/{name}@{version}" for namespace, name, version in rows)

    return cached(session, ("same models", model.id), read)
