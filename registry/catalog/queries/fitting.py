"""The SQL of `fits:`: when an organ can be grafted into a base, and which models have such organs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, String, and_, bindparam, case, cast, false, func, not_, or_, select, tuple_
from sqlalchemy.orm import Session, aliased

from organs.registry.anatomy import OrganType
from organs.registry.catalog.cache import cached
from organs.registry.catalog.cursor import check_limit
from organs.registry.catalog.queries.relatives import likenesses
from organs.registry.catalog.search import Choice
from organs.registry.catalog.tables import (
    Facet,
    Model,
    ModelMetadata,
    Organ,
    Placement,
)
from organs.registry.catalog.vocabulary import MATRIX_DTYPES_REFUSED, ORGAN_TYPES, REACHABLE_STATES, VECTOR_DTYPES
from organs.registry.entities.plan import FitCount, FittingModel, FittingModels

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
    return cached(session, ("base", model_id), lambda: _read(session, model_id))


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

    return cached(session, ("models of", architecture), read)


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

    return cached(session, ("facts", architecture), read)


SAMPLED_MAX = 6000
"""Placements of an architecture that are looked at to learn how many fit: some tens of milliseconds."""
EXAMINED_MAX = 1000
"""Models that are looked through for those that fit."""
_AT_ONCE = 100
"""Models that one statement looks through; more where they have fewer organs together than the base has, because each
statement first reads all organs of the base."""
_OF_MODELS = "INDEXED BY ix_placements_model"
_SLOTS_LISTED_MAX = 100
"""A base with more different slots is narrowed by its architecture and types alone."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """Where organs of one type that fit are to be looked for."""

    share: float
    """Of the organs of the architecture, about how many are of that type and fit."""
    models: Mapping[int, int] | None = None
    """All models that have any, each with the number of its organs; None where many have and nobody counted."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """`fits:`, resolved: organs that fit any of `bases`, or with `negated` none of them."""

    text: str
    """The term in the query."""
    bases: tuple[Base, ...]
    prospects: Mapping[str, Prospect]
    """By type, over all bases. Types that are not there have nothing that fits."""
    negated: bool

    def condition(self, entity: Any) -> ColumnElement[bool]:
        """The same of the placements `entity`, in SQL."""
        fits = or_(false(), *(fits_base(base, entity) for base in self.bases))
        if self.negated:
            return denied(fits)
        few = [(kind, one.models) for kind, one in self.prospects.items() if one.models is not None]
        # By the index alone: where few models fit, the rows of the others are never looked at.
        return and_(*(or_(entity.type != kind, among(entity.model_id, ids)) for kind, ids in few), fits)

    def values(self, field: str) -> frozenset[str] | None:
        """Of `arch`, `type` or `slot` the values that what is asked for has; None where any may."""
        if self.negated:
            return None
        if field == "arch":
            return frozenset(base.architecture for base in self.bases)
        if field == "type":
            return frozenset(self.prospects)
        slots = frozenset(slot for base in self.bases for slot in base.slots)
        return slots if len(slots) <= _SLOTS_LISTED_MAX else None

    def share(self, types: Iterable[str]) -> float:
        """Of the architecture of the bases, about how much is of `types` and left."""
        return 1.0 if self.negated else sum(self.prospects[kind].share for kind in types if kind in self.prospects)

    def models(self, types: Iterable[str]) -> dict[int, int] | None:
        """All models that may have something of `types`, each with the number of its organs; None: nobody knows."""
        if self.negated:
            return None
        found: dict[int, int] = {}
        for one in (self.prospects[kind] for kind in types if kind in self.prospects):
            if one.models is None:
                return None
            found |= one.models
        return found


def fitting(session: Session, term: Choice, bases: Sequence[Base]) -> Fitting:
    """`term`, of which the names stand for `bases`."""
    prospects: dict[str, Prospect] = {}
    for base in bases:
        for kind, one in _prospects(session, base).items():
            known = prospects.get(kind)
            prospects[kind] = one if known is None else _either(known, one)
    return Fitting(str(term), tuple(bases), prospects, term.negated)


def fitting_models(session: Session, model: Model, limit: int = 50) -> FittingModels:
    """Return up to `limit` visible models with organs that fit `model`, with counts by type.

    Its relatives come first, then the newest. At most `EXAMINED_MAX` models are looked at. None fits a base that states
    no architecture. Raises BadQuery for a `limit` of a page that cannot be.
    """
    check_limit(limit)
    base = base_of(session, model.id)
    if base is None:
        return FittingModels(base=model.full_name, items=(), more=False)
    known = [one.models for one in _prospects(session, base).values()]
    anywhere = models_of_architecture(session, base.architecture)
    able = anywhere if None in known else {model_id for models in known for model_id in models or ()}
    newest = [model_id for model_id in reversed(anywhere) if model_id in able and model_id != base.id]
    alike = likenesses(session, base.id)
    newest.sort(key=lambda model_id: -alike.get(model_id, -1.0))
    found: list[FittingModel] = []
    looked_at = min(len(newest), EXAMINED_MAX)
    for some in _batches(newest[:looked_at], anywhere, base):
        found += _fitting_among(session, base, some, alike)
        if len(found) > limit:
            break
    more = len(found) > limit or looked_at < len(newest)
    return FittingModels(base=model.full_name, items=tuple(found[:limit]), more=more)


def _either(one: Prospect, other: Prospect) -> Prospect:
    """What fits one of two bases."""
    models = None if one.models is None or other.models is None else {**one.models, **other.models}
    return Prospect(max(one.share, other.share), models)


def _prospects(session: Session, base: Base) -> dict[str, Prospect]:
    """By type, how many organs fit `base`: from a sample of models, and of what is rare there from all models."""
    return cached(session, ("prospects", base.id), lambda: _look(session, base))


def _look(session: Session, base: Base) -> dict[str, Prospect]:
    tensors = models_of_architecture(session, base.architecture)
    others = [model_id for model_id in tensors if model_id != base.id]
    everything = sum(tensors[model_id] for model_id in others)
    step = max(1, -(-everything // SAMPLED_MAX))
    found: dict[str, Prospect] = {}
    if step > 1:
        sample = others[::step]
        looked_at = max(1, sum(tensors[model_id] for model_id in sample))
        seen = _with_fits(session, base, sample, base.types)
        found = {kind: Prospect(sum(fits.values()) / looked_at) for kind, fits in seen.items()}
    unseen = base.types - found.keys()
    of_no_strangers = [one for one in others if any(one not in base.strangers.get(kind, ()) for kind in unseen)]
    for kind, fits in _in_steps(session, base, of_no_strangers, unseen, tensors).items():
        found[kind] = Prospect(sum(fits.values()) / everything, {one: tensors[one] for one in fits})
    return found


def _batches(ids: Iterable[int], tensors: Mapping[int, int], base: Base) -> Iterator[list[int]]:
    """The models `ids` in parts of at least `_AT_ONCE`, which have at least as many organs as `base` together."""
    batch: list[int] = []
    organs = 0
    for model_id in ids:
        batch.append(model_id)
        organs += tensors[model_id]
        if len(batch) >= _AT_ONCE and organs >= base.tensors:
            yield batch
            batch, organs = [], 0
    if batch:
        yield batch


def _in_steps(
    session: Session, base: Base, ids: Sequence[int], types: Collection[str], tensors: Mapping[int, int]
) -> dict[str, dict[int, int]]:
    """What `_with_fits` finds; each step is remembered, so that a request that the time limit stopped gets further when
    it is repeated."""
    found: dict[str, dict[int, int]] = {}
    for some in _batches(ids, tensors, base):
        key = ("fits", base.id, frozenset(types), some[0])
        for kind, fits in cached(session, key, partial(_with_fits, session, base, some, types)).items():
            found.setdefault(kind, {}).update(fits)
    return found


def _with_fits(session: Session, base: Base, ids: Sequence[int], types: Collection[str]) -> dict[str, dict[int, int]]:
    """By type, those of the models `ids` that have anything which fits, and how much."""
    statement = (
        select(Placement.type, Placement.model_id, func.count())
        .with_hint(Placement, _OF_MODELS, "sqlite")
        .where(among(Placement.model_id, ids), Placement.type.in_(sorted(types)))
        .where(has_a_shape_of(base, Placement), fits_place(base, Placement))
        .group_by(Placement.type, Placement.model_id)
    )
    found: dict[str, dict[int, int]] = {}
    for kind, model_id, count in session.execute(statement):
        found.setdefault(kind, {})[model_id] = count
    return found


def _fitting_among(session: Session, base: Base, ids: Sequence[int], alike: Mapping[int, float]) -> list[FittingModel]:
    """Those of the models `ids` that have anything which fits, in that order."""
    counts = _counts(session, base, ids)
    fits = [model_id for model_id in ids if any(one.fitting for one in counts.get(model_id, {}).values())]
    rows = session.execute(select(Model.id, Model.namespace, Model.name, Model.version).where(Model.id.in_(fits)))
    names = {model_id: f"{namespace}/{name}@{version}" for model_id, namespace, name, version in rows}
    return [
        FittingModel(
            model=names[one],
            likeness=alike.get(one),
            types={kind: counts[one][kind] for kind in ORGAN_TYPES if kind in counts[one]},
        )
        for one in fits
    ]


def _counts(session: Session, base: Base, ids: Sequence[int]) -> dict[int, dict[str, FitCount]]:
    """By model and type, how the organs of the models `ids` do in `base`."""
    tests = fits_place(base, Placement), is_equal(base, Placement)
    fits, equal = (func.sum(case((one, 1), else_=0)) for one in tests)
    statement = (
        select(Placement.model_id, Placement.type, fits, equal, func.count())
        .with_hint(Placement, _OF_MODELS, "sqlite")
        .where(among(Placement.model_id, ids))
        .group_by(Placement.model_id, Placement.type)
    )
    found: dict[int, dict[str, FitCount]] = {}
    for model_id, kind, fitting_count, equal_count, total in session.execute(statement):
        found.setdefault(model_id, {})[kind] = FitCount(int(fitting_count), int(equal_count), total)
    return found
