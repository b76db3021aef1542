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
from organs.registry.catalog.engine import among
from organs.registry.catalog.queries.model_lists import composed_among
from organs.registry.catalog.queries.relatives import changes_from, likenesses
from organs.registry.catalog.tables import (
    Facet,
    Model,
    ModelMetadata,
    Organ,
    Placement,
)
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
_Facts = frozenset[tuple[str, str]]
_NO_FACTS: _Facts = frozenset()


@dataclass(frozen=True, slots=True)
class Base:
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


def base_of(session: Session, model_id: int) -> Base | None:
    """Return the model `model_id` as a base; None if it states no architecture.

    Without an architecture, no organ is known to fit.
    """
    return cached(session, ("base", model_id), lambda: _read_base(session, model_id))


def fits_base(base: Base, entity: Any) -> ColumnElement[bool]:
    """Return the condition that the placements `entity` can be grafted into `base` and are not its own organs."""
    facets = select(Facet.id).where(Facet.architecture == base.architecture)
    return and_(entity.facet_id.in_(facets), entity.model_id != base.id, fits_place(base, entity))


def fits_place(base: Base, entity: Any) -> ColumnElement[bool]:
    """Return the condition of `fits_base` for placements of other models that are known to have the architecture."""
    organ, own_place, own_organ = aliased(Organ), aliased(Placement), aliased(Organ)
    shape = select(organ.shape).where(organ.id == entity.organ_id).correlate(entity).scalar_subquery()
    # This subquery does not depend on the tested placement, so it runs once in each statement.
    own_shapes = select(*_place(own_place), own_organ.shape).join(own_organ, own_organ.id == own_place.organ_id)
    own_shapes = own_shapes.where(own_place.model_id == base.id).correlate(None)
    return and_(
        entity.type != NEVER_GRAFTED,
        *(or_(entity.type != kind, not_(among(entity.model_id, ids))) for kind, ids in base.strangers.items()),
        tuple_(*_place(entity), shape).in_(own_shapes),
        denied(is_equal(base, entity)),
        _has_dtype_for(base, entity),
    )


def has_a_shape_of(base: Base, entity: Any) -> ColumnElement[bool]:
    """Return the condition that any organ of `base` has the shape of the placement.

    This test is faster than `fits_place`, which compares the shape at the same place.
    """
    organ, own_place, own_organ = aliased(Organ), aliased(Placement), aliased(Organ)
    shape = select(organ.shape).where(organ.id == entity.organ_id).correlate(entity).scalar_subquery()
    shapes = (
        select(own_organ.shape).join(own_place, own_place.organ_id == own_organ.id).where(own_place.model_id == base.id)
    )
    return shape.in_(shapes.correlate(None))


def is_equal(base: Base, entity: Any) -> ColumnElement[bool]:
    """Return the condition that `base` has the same organ at the same place."""
    own_place = aliased(Placement)
    own_organs = select(*_place(own_place), own_place.organ_id).where(own_place.model_id == base.id)
    return tuple_(*_place(entity), entity.organ_id).in_(own_organs.correlate(None))


def _has_dtype_for(base: Base, entity: Any) -> ColumnElement[bool]:
    """Return the condition that a runtime accepts the dtype of placements with a place and a shape of `base`."""
    organ, own_place = aliased(Organ), aliased(Placement)
    length = cast(organ.elements, String)
    # A shape is also a vector if all lengths but the first are 1.
    vector = select(or_(organ.shape == length, organ.shape.like(length + "x%"))).where(organ.id == entity.organ_id)
    same = select(*_place(own_place), own_place.dtype).where(
        own_place.model_id == base.id, own_place.dtype != NEVER_TAKEN
    )
    accepted = or_(
        entity.dtype.in_(sorted(VECTOR_DTYPES)),
        and_(entity.dtype.not_in(sorted(MATRIX_DTYPES_REFUSED)), not_(vector.correlate(entity).scalar_subquery())),
        tuple_(*_place(entity), entity.dtype).in_(same.correlate(None)),
    )
    is_foreign = or_(
        entity.dtype.startswith(FOREIGN_BEGINNING, autoescape=True),
        entity.dtype.endswith(FOREIGN_ENDING, autoescape=True),
    )
    return and_(accepted, not_(is_foreign))


def _place(entity: Any) -> tuple[ColumnElement[Any], ...]:
    return entity.tower, entity.slot, func.coalesce(entity.block, _NO_BLOCK)


def denied(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the negation of `condition`, true also for NULL."""
    # For a plain NOT, SQLite must distinguish NULL from false: it then scans the list of an IN for each row.
    return case((condition, 1), else_=0) == 0


def models_of_architecture(session: Session, architecture: str) -> dict[int, int]:
    """Return the number of organs of each visible model that states `architecture`, oldest first."""

    def read() -> dict[int, int]:
        statement = select(Model.id, Model.tensors).where(Model.state == "visible", Model.architecture == architecture)
        return dict(session.execute(statement.order_by(Model.id)).all())

    return cached(session, ("models of", architecture), read)


def _read_base(session: Session, model_id: int) -> Base | None:
    architecture, tensors = session.execute(select(Model.architecture, Model.tensors).where(Model.id == model_id)).one()
    if not architecture:
        return None
    statement = select(Placement.type, Placement.slot).where(
        Placement.model_id == model_id, Placement.type != NEVER_GRAFTED
    )
    places = session.execute(statement.distinct()).all()
    facts = _stated_facts(session, architecture)
    other_ids = [other for other in models_of_architecture(session, architecture) if other != model_id]
    strangers = {}
    for kind, facts_by_model in facts.items():
        own_facts = facts_by_model.get(model_id, _NO_FACTS)
        strangers[kind] = tuple(other for other in other_ids if facts_by_model.get(other, _NO_FACTS) != own_facts)
    return Base(
        id=model_id,
        architecture=architecture,
        tensors=tensors,
        types=frozenset(kind for kind, _ in places),
        slots=frozenset(slot for _, slot in places),
        strangers={kind: ids for kind, ids in strangers.items() if ids},
    )


def _stated_facts(session: Session, architecture: str) -> dict[str, dict[int, _Facts]]:
    """Return the facts that models of `architecture` state, by type and model; an array is represented by its size."""

    def read() -> dict[str, dict[int, _Facts]]:
        types = {f"{architecture}.{name}": kind for kind, names in FACTS.items() for name in names}
        reachable = select(Model.id).where(Model.state.in_(REACHABLE_STATES), Model.architecture == architecture)
        statement = select(ModelMetadata.model_id, ModelMetadata.key, ModelMetadata.value).where(
            ModelMetadata.model_id.in_(reachable), ModelMetadata.key.in_(sorted(types))
        )
        facts: dict[str, dict[int, _Facts]] = {kind: {} for kind in FACTS}
        for model_id, key, value in session.execute(statement):
            facts_by_model = facts[types[key]]
            facts_by_model[model_id] = facts_by_model.get(model_id, _NO_FACTS) | {(key, value)}
        return facts

    return cached(session, ("facts", architecture), read)


SAMPLED_MAX = 6000
"""The number of placements of an architecture that are sampled to estimate how many fit. This takes some tens of
milliseconds."""
EXAMINED_MAX = 1000
"""The most models that are searched for organs that fit."""
_BATCH_MODELS = 100
"""The least number of models that one statement searches. If these have fewer organs than the base, more models are
added, because each statement first reads all organs of the base."""
_BY_MODEL = "INDEXED BY ix_placements_model"
_SLOTS_LISTED_MAX = 100
"""A search for a base with more slots is narrowed only by architecture and type."""


SAME_LIKENESS = 0.999999
"""The least likeness of two models whose organs are compared one by one, to find that they are the same model."""
SAME_MAX = 20
"""The most models that are listed as the same model as a base."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """Where to search for the organs of one type that fit."""

    share: float
    """The estimated share of the organs of the architecture that have this type and fit."""
    models: Mapping[int, int] | None = None
    """The models with fitting organs, with the number of all organs of each. None if there are too many models
    to count."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """A resolved `fits:` term. It matches organs that fit any of `bases`; with `negated`, those that fit none."""

    text: str
    """The term in the query."""
    bases: tuple[Base, ...]
    prospects: Mapping[str, Prospect]
    """By type, for all bases together. No organ of a type without an entry fits."""
    negated: bool

    def condition(self, entity: Any) -> ColumnElement[bool]:
        """Return the term as a condition on the placements `entity`."""
        fits = or_(false(), *(fits_base(base, entity) for base in self.bases))
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
        return slots if len(slots) <= _SLOTS_LISTED_MAX else None

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


def fitting(session: Session, term: Choice, bases: Sequence[Base]) -> Fitting:
    """Return the resolved `term`; `bases` are the models that it names."""
    prospects: dict[str, Prospect] = {}
    for base in bases:
        for kind, prospect in _prospects(session, base).items():
            earlier = prospects.get(kind)
            prospects[kind] = prospect if earlier is None else _either(earlier, prospect)
    return Fitting(str(term), tuple(bases), prospects, term.negated)


def fitting_models(session: Session, model: Model, limit: int = 50) -> FittingModels:
    """Return up to `limit` visible models with organs that fit `model`, with counts by type.

    Models with the same organs come first, marked as `same`, then relatives of `model`, then the newest models. Among
    the relatives, chimeras come last: most of them have organs of `model` and of models that are listed anyway. At most
    `EXAMINED_MAX` models are examined. The result is empty for a base that states no architecture. Raises BadQuery for
    an invalid `limit`.
    """
    check_limit(limit)
    base = base_of(session, model.id)
    if base is None:
        return FittingModels(base=model.full_name, items=(), more=False)
    tensors = models_of_architecture(session, base.architecture)
    model_sets = [prospect.models for prospect in _prospects(session, base).values()]
    possible = tensors if None in model_sets else {model_id for models in model_sets for model_id in models or ()}
    candidates = [model_id for model_id in reversed(tensors) if model_id in possible and model_id != base.id]
    likeness, change = likenesses(session, base.id), changes_from(session, base.id)
    composed = composed_among(session, [model_id for model_id in candidates if model_id in likeness])
    nearest = {other: weight_change(change.get(other), value) for other, value in likeness.items()}
    candidates.sort(key=lambda other: (other not in nearest, other in composed, nearest.get(other, 0.0)))
    own_types = _own_types(session, model.id)
    items = [
        FittingModel(model=name, likeness=1.0, change=0.0, types=own_types, same=True)
        for name in same_models(session, model)
    ]
    examined = min(len(candidates), EXAMINED_MAX)
    for batch in _batches(candidates[:examined], tensors, base):
        items += _read_fitting(session, base, batch, likeness, change)
        if len(items) > limit:
            break
    more = len(items) > limit or examined < len(candidates)
    return FittingModels(base=model.full_name, items=tuple(items[:limit]), more=more)


def _own_types(session: Session, model_id: int) -> dict[str, FitCount]:
    """Return the counts by type of a model with the same organs as the model `model_id`."""
    statement = select(Placement.type, func.count()).where(Placement.model_id == model_id).group_by(Placement.type)
    counts = dict(session.execute(statement).all())
    return {kind: FitCount(0, counts[kind], counts[kind]) for kind in ORGAN_TYPES if kind in counts}


def same_models(session: Session, model: Model) -> tuple[str, ...]:
    """Return the names of other visible models with the same organs as `model` at all places, oldest first.

    Files with other metadata are the same model too.
    """
    return cached(session, ("same models", model.id), lambda: _read_same(session, model))


def _read_same(session: Session, model: Model) -> tuple[str, ...]:
    alike = [other for other, likeness in likenesses(session, model.id).items() if likeness >= SAME_LIKENESS]
    own, other = aliased(Placement), aliased(Placement)
    differing = select(other.id).where(
        other.model_id == Model.id,
        tuple_(*_place(other), other.organ_id).not_in(
            select(*_place(own), own.organ_id).where(own.model_id == model.id)
        ),
    )
    statement = select(Model.namespace, Model.name, Model.version).where(
        or_(among(Model.id, alike), Model.digest == model.digest),
        *(Model.id != model.id, Model.state == "visible", Model.tensors == model.tensors, ~differing.exists()),
    )
    rows = session.execute(statement.order_by(Model.id).limit(SAME_MAX))
    return tuple(f"{namespace}/{name}@{version}" for namespace, name, version in rows)


def _either(first: Prospect, second: Prospect) -> Prospect:
    """Return the prospect of organs that fit at least one of two bases."""
    models = None if first.models is None or second.models is None else {**first.models, **second.models}
    return Prospect(max(first.share, second.share), models)


def _prospects(session: Session, base: Base) -> dict[str, Prospect]:
    """Return how many organs fit `base`, by type: estimated from a sample, or from all models for rare types."""
    return cached(session, ("prospects", base.id), lambda: _estimate(session, base))


def _estimate(session: Session, base: Base) -> dict[str, Prospect]:
    tensors = models_of_architecture(session, base.architecture)
    other_ids = [model_id for model_id in tensors if model_id != base.id]
    total = sum(tensors[model_id] for model_id in other_ids)
    step = max(1, -(-total // SAMPLED_MAX))
    prospects: dict[str, Prospect] = {}
    if step > 1:
        sample = other_ids[::step]
        sampled = max(1, sum(tensors[model_id] for model_id in sample))
        by_type = _count_fits(session, base, sample, base.types)
        prospects = {kind: Prospect(sum(fits.values()) / sampled) for kind, fits in by_type.items()}
    rare = base.types - prospects.keys()
    possible = [
        model_id for model_id in other_ids if any(model_id not in base.strangers.get(kind, ()) for kind in rare)
    ]
    for kind, fits in _count_fits_in_steps(session, base, possible, rare, tensors).items():
        prospects[kind] = Prospect(sum(fits.values()) / total, {model_id: tensors[model_id] for model_id in fits})
    return prospects


def _batches(ids: Iterable[int], tensors: Mapping[int, int], base: Base) -> Iterator[list[int]]:
    """Yield `ids` in parts of at least `_BATCH_MODELS` models, with together at least as many organs as `base`."""
    batch: list[int] = []
    organs = 0
    for model_id in ids:
        batch.append(model_id)
        organs += tensors[model_id]
        if len(batch) >= _BATCH_MODELS and organs >= base.tensors:
            yield batch
            batch, organs = [], 0
    if batch:
        yield batch


def _count_fits_in_steps(
    session: Session, base: Base, ids: Sequence[int], types: Collection[str], tensors: Mapping[int, int]
) -> dict[str, dict[int, int]]:
    """Return the result of `_count_fits`, computed in cached steps.

    A request that was stopped by the time limit gets further when it is repeated.
    """
    by_type: dict[str, dict[int, int]] = {}
    for batch in _batches(ids, tensors, base):
        key = ("fits", base.id, frozenset(types), batch[0])
        for kind, fits in cached(session, key, partial(_count_fits, session, base, batch, types)).items():
            by_type.setdefault(kind, {}).update(fits)
    return by_type


def _count_fits(session: Session, base: Base, ids: Sequence[int], types: Collection[str]) -> dict[str, dict[int, int]]:
    """Return the number of fitting organs, by type and model; models without fitting organs are left out."""
    statement = (
        select(Placement.type, Placement.model_id, func.count())
        .with_hint(Placement, _BY_MODEL, "sqlite")
        .where(among(Placement.model_id, ids), Placement.type.in_(sorted(types)))
        .where(has_a_shape_of(base, Placement), fits_place(base, Placement))
        .group_by(Placement.type, Placement.model_id)
    )
    by_type: dict[str, dict[int, int]] = {}
    for kind, model_id, count in session.execute(statement):
        by_type.setdefault(kind, {})[model_id] = count
    return by_type


def _read_fitting(
    session: Session, base: Base, ids: Sequence[int], likeness: Mapping[int, float], change: Mapping[int, float]
) -> list[FittingModel]:
    """Return the models of `ids` that have fitting organs, in the order of `ids`."""
    counts = _counts(session, base, ids)
    fits = [model_id for model_id in ids if any(count.fitting for count in counts.get(model_id, {}).values())]
    rows = session.execute(select(Model.id, Model.namespace, Model.name, Model.version).where(Model.id.in_(fits)))
    names = {model_id: f"{namespace}/{name}@{version}" for model_id, namespace, name, version in rows}
    return [
        FittingModel(
            model=names[model_id],
            likeness=likeness.get(model_id),
            change=change.get(model_id),
            types={kind: counts[model_id][kind] for kind in ORGAN_TYPES if kind in counts[model_id]},
        )
        for model_id in fits
    ]


def _counts(session: Session, base: Base, ids: Sequence[int]) -> dict[int, dict[str, FitCount]]:
    """Return how many organs of the models `ids` fit `base` and how many are equal, by model and type."""
    tests = fits_place(base, Placement), is_equal(base, Placement)
    fits, equal = (func.sum(case((test, 1), else_=0)) for test in tests)
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
