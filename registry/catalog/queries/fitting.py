"""What fits a base, counted by model and type: for the plan of a search by `fits:`, and for who composes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, and_, case, false, func, or_, select
from sqlalchemy.orm import Session

from organs.registry.catalog.memory import remembered
from organs.registry.catalog.queries.bases import (
    Base,
    among,
    base_of,
    denied,
    fits_base,
    fits_place,
    has_a_shape_of,
    is_equal,
    models_of_architecture,
)
from organs.registry.catalog.search import Choice
from organs.registry.catalog.search.cursor import check_limit
from organs.registry.catalog.tables import Lineage, Model, Placement
from organs.registry.catalog.vocabulary import ORGAN_TYPES

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


@dataclass(frozen=True, slots=True)
class TypeFit:
    """How many organs of one type a model has, how many of them fit, and how many the base has itself at that place."""

    fitting: int
    equal: int
    total: int

    @property
    def whole(self) -> bool:
        """Whether nothing of the type stands in the way."""
        return self.fitting + self.equal == self.total


@dataclass(frozen=True, slots=True)
class FittingModel:
    """A model that has something which fits."""

    name: str
    """`namespace/name@version`."""
    types: Mapping[str, TypeFit]
    """In the order of the vocabulary, all types that it has."""
    alike: float | None = None
    """The mean correlation of its matrices with the base's; None of strangers, whose organs fit by shape alone."""


@dataclass(frozen=True, slots=True)
class FittingModels:
    """What may be grafted into a base."""

    items: tuple[FittingModel, ...]
    """Relatives first, the most alike before the others; then strangers, newest first."""
    more: bool
    """Whether others fit too, or were not looked at."""


def fitting(session: Session, term: Choice, bases: Sequence[Base]) -> Fitting:
    """`term`, of which the names stand for `bases`."""
    prospects: dict[str, Prospect] = {}
    for base in bases:
        for kind, one in _prospects(session, base).items():
            known = prospects.get(kind)
            prospects[kind] = one if known is None else _either(known, one)
    return Fitting(str(term), tuple(bases), prospects, term.negated)


def fitting_models(session: Session, base_model_id: int, limit: int = 50) -> FittingModels:
    """Up to `limit` visible models that have organs which fit the model `base_model_id`, with counts by type.

    Its relatives come first, then the newest. At most `EXAMINED_MAX` models are looked at. None fits a base that states
    no architecture. Raises BadQuery for a `limit` of a page that cannot be.
    """
    check_limit(limit)
    base = base_of(session, base_model_id)
    if base is None:
        return FittingModels((), more=False)
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
    return FittingModels(tuple(found[:limit]), more=len(found) > limit or looked_at < len(newest))


def likenesses(session: Session, model_id: int) -> dict[int, float]:
    """How alike a model is to each of its measured relatives, by their ids."""
    ends = (Lineage.child_model_id, Lineage.parent_model_id)
    statement = select(*ends, Lineage.score).where(
        Lineage.evidence == "measured", Lineage.score.is_not(None), or_(*(end == model_id for end in ends))
    )
    found = ((parent if child == model_id else child, score) for child, parent, score in session.execute(statement))
    return {other: score for other, score in found if other is not None and score is not None}


def _either(one: Prospect, other: Prospect) -> Prospect:
    """What fits one of two bases."""
    models = None if one.models is None or other.models is None else {**one.models, **other.models}
    return Prospect(max(one.share, other.share), models)


def _prospects(session: Session, base: Base) -> dict[str, Prospect]:
    """By type, how many organs fit `base`: from a sample of models, and of what is rare there from all models."""
    return remembered(session, ("prospects", base.id), lambda: _look(session, base))


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
        for kind, fits in remembered(session, key, partial(_with_fits, session, base, some, types)).items():
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
            names[one], {kind: counts[one][kind] for kind in ORGAN_TYPES if kind in counts[one]}, alike.get(one)
        )
        for one in fits
    ]


def _counts(session: Session, base: Base, ids: Sequence[int]) -> dict[int, dict[str, TypeFit]]:
    """By model and type, how the organs of the models `ids` do in `base`."""
    tests = fits_place(base, Placement), is_equal(base, Placement)
    fits, equal = (func.sum(case((one, 1), else_=0)) for one in tests)
    statement = (
        select(Placement.model_id, Placement.type, fits, equal, func.count())
        .with_hint(Placement, _OF_MODELS, "sqlite")
        .where(among(Placement.model_id, ids))
        .group_by(Placement.model_id, Placement.type)
    )
    found: dict[int, dict[str, TypeFit]] = {}
    for model_id, kind, fitting_count, equal_count, total in session.execute(statement):
        found.setdefault(model_id, {})[kind] = TypeFit(int(fitting_count), int(equal_count), total)
    return found
