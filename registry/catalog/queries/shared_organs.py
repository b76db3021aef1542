"""Organs that models have in common.

One model may have the same organ at 50,000 places, and one organ may be in 10,000 models. A join of placements with
placements then costs the product of both. So every query here first reduces a model to its different organs, and then
looks each of them up in `ix_placements_organ` (organ, visible, model), which needs one seek for "is it in another
model", and one seek a model for "which models".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.tables import Chimera, Model, ModelMetadata, Organ, Placement
from organs.registry.catalog.upsert import batches
from organs.registry.lineage import Slot

PROBED_MAX = 64
"""Organs of a model by which models that share them are looked for."""
OLDEST_MAX = 100
"""Models that are looked at for each of these organs, the oldest first."""
COUNTED_MAX = 8
"""Models of which all shared organs are counted, those with most of the probed organs first."""
PAIRS_MAX = 100_000
"""Pairs of an organ and another model that has it, which are read to count the models that share organs with one."""
IN_COMMON_MAX = 200_000
"""Places of other models that have the same organ as one model there."""

_BY_ORGAN = "INDEXED BY ix_placements_organ"
_BY_MODEL = "INDEXED BY ix_placements_model"


@dataclass(frozen=True, slots=True)
class SharedWith:
    """Another model, and how many different organs it has in common with the one that was asked about."""

    model: Model
    shared: int


@dataclass(frozen=True, slots=True)
class Shared:
    """The different organs of a model, and those of them that visible other models have too."""

    organs: int
    size_bytes: int
    shared_organs: int
    shared_bytes: int
    other_models: int
    """Other visible models that have one of the organs or more."""
    is_least: bool
    """Whether there may be more such models: counting stopped after PAIRS_MAX pairs of an organ and a model."""


@dataclass(frozen=True, slots=True)
class OrganCounts:
    """How many different organs a model has."""

    different: int = 0
    new: int = 0
    """Those that no other model has which is visible or yanked."""


def organs_placed_by(session: Session, model_id: int) -> Sequence[int]:
    """Return the ids of the different organs of a model, in order."""
    statement = select(Placement.organ_id).with_hint(Placement, _BY_MODEL, "sqlite")
    return sorted(set(session.scalars(statement.where(Placement.model_id == model_id))))


def organs_without_place(session: Session, organ_ids: Iterable[int], but: int | None = None) -> list[int]:
    """Return those of `organ_ids` that no model has, whatever its state; the model `but` does not count."""
    found: list[int] = []
    for batch in batches(sorted(set(organ_ids))):
        unplaced = (~_has_place(True, but), ~_has_place(False, but))
        found += session.scalars(select(Organ.id).where(Organ.id.in_(batch), *unplaced).order_by(Organ.id))
    return found


def count_unseen(session: Session, organ_ids: Iterable[int]) -> int:
    """Return how many of the different `organ_ids` no visible model has; called before a new model has rows."""
    count = func.count(Organ.id)
    different = batches(sorted(set(organ_ids)))
    return sum(session.scalar(select(count).where(Organ.id.in_(one), ~_has_place(True))) or 0 for one in different)


def models_with_most_organs_of(session: Session, model: Model, lock_key: str) -> tuple[int, list[SharedWith]]:
    """Return the number of different organs of `model`, and the visible models of others that share most of them.

    Models with as many shared organs are ordered by age, the oldest first. Chimeras, composed here or with a lock under
    `lock_key` in their header, are left out, because their organs are those of other models.

    The search is bounded whatever the catalog holds: it looks for PROBED_MAX organs spread over the model, in the
    OLDEST_MAX oldest models that have each, and counts the organs of the COUNTED_MAX best. A model that has half of the
    organs is missed only if more than OLDEST_MAX older models have the same organs.
    """
    own = organs_placed_by(session, model.id)
    hits: Counter[int] = Counter()
    for organ_id in own[:: max(1, -(-len(own) // PROBED_MAX))]:
        hits.update(other for _, other in _models_with(session, (organ_id,), model.id, OLDEST_MAX))
    candidates = _not_composed_by_others(session, hits, model, lock_key)
    candidates.sort(key=lambda one: (-hits[one.id], one.id))
    mine = set(own)
    found = [
        SharedWith(one, len(mine.intersection(organs_placed_by(session, one.id)))) for one in candidates[:COUNTED_MAX]
    ]
    return len(own), sorted(found, key=lambda one: (-one.shared, one.model.id))


def shared_of(session: Session, model_id: int) -> Shared:
    """Return what a model shares with other visible models, each organ counted once."""
    rows = select(Placement.organ_id, Placement.size_bytes).with_hint(Placement, _BY_MODEL, "sqlite")
    sizes = {row.organ_id: row.size_bytes for row in session.execute(rows.where(Placement.model_id == model_id))}
    shared: set[int] = set()
    models: set[int] = set()
    left = PAIRS_MAX
    for batch in batches(sorted(sizes)):
        shared.update(_in_other_models(session, batch, model_id))
        pairs = _models_with(session, batch, model_id, left) if left else []
        models.update(other for _, other in pairs)
        left -= len(pairs)
    return Shared(
        organs=len(sizes),
        size_bytes=sum(sizes.values()),
        shared_organs=len(shared),
        shared_bytes=sum(sizes[organ_id] for organ_id in shared),
        other_models=len(models),
        is_least=left == 0,
    )


def organ_counts(session: Session, model_ids: Collection[int]) -> dict[int, OrganCounts]:
    """Return how many different organs each of the models has, and how many of them are new.

    Models without organs are left out. Organs of models that are neither visible nor yanked count as absent.
    """
    found = {}
    for model_id in sorted(set(model_ids)):
        own = organs_placed_by(session, model_id)
        if own:
            known = sum(len(_in_shown_models(session, batch, model_id)) for batch in batches(own))
            found[model_id] = OrganCounts(len(own), len(own) - known)
    return found


def models_in_common(session: Session, model_id: int) -> dict[Slot, set[str]]:
    """Return, for places of a model, the full names of the other visible models that have the very same organ there.

    At most IN_COMMON_MAX pairs of a place and a model are read.
    """
    own, other = aliased(Placement), aliased(Placement)
    same = and_(other.slot == own.slot, other.tower == own.tower, other.organ_id == own.organ_id)
    found: dict[Slot, set[str]] = {}
    # Two queries, because only an equality of two columns is answered by an index, and NULL is equal to nothing.
    for same_block in (other.block == own.block, and_(own.block.is_(None), other.block.is_(None))):
        statement = (
            select(own.tower, own.block, own.slot, Model.namespace, Model.name, Model.version)
            .with_hint(own, _BY_MODEL, "sqlite")
            .with_hint(other, "INDEXED BY ix_placements_place", "sqlite")
            .join(other, and_(same, same_block))
            .join(Model, Model.id == other.model_id)
            .where(own.model_id == model_id, other.model_id != model_id, other.visible)
            .limit(IN_COMMON_MAX)
        )
        for tower, block, slot, namespace, name, version in session.execute(statement):
            found.setdefault((tower, block, slot), set()).add(f"{namespace}/{name}@{version}")
    return found


def _not_composed_by_others(session: Session, model_ids: Collection[int], model: Model, lock_key: str) -> list[Model]:
    """Those of the models that are in another namespace than `model` and are no chimeras."""
    composed = select(Chimera.model_id).where(Chimera.model_id == Model.id)
    locked = select(ModelMetadata.model_id).where(ModelMetadata.model_id == Model.id, ModelMetadata.key == lock_key)
    found: list[Model] = []
    for batch in batches(sorted(model_ids)):
        statement = select(Model).where(Model.id.in_(batch), func.lower(Model.namespace) != model.namespace.lower())
        found += session.scalars(statement.where(~composed.exists(), ~locked.exists()))
    return found


def _models_with(
    session: Session, organ_ids: Collection[int], but: int, limit: int, *, visible: bool = True
) -> Sequence[tuple[int, int]]:
    """At most `limit` pairs of an organ and a model other than `but` that has it; each pair once, the oldest first.

    The query skips through the index: from one model straight to the next, over all places of the first.
    """
    place = aliased(Placement)
    next_model = select(func.min(place.model_id)).with_hint(place, _BY_ORGAN, "sqlite")
    next_model = next_model.where(place.visible if visible else ~place.visible)
    first = next_model.where(place.organ_id == Organ.id).correlate(Organ).scalar_subquery()
    pairs = (
        select(Organ.id.label("organ_id"), first.label("model_id")).where(Organ.id.in_(organ_ids)).cte(recursive=True)
    )
    following = next_model.where(place.organ_id == pairs.c.organ_id, place.model_id > pairs.c.model_id)
    further = select(pairs.c.organ_id, following.correlate(pairs).scalar_subquery())
    pairs = pairs.union_all(further.where(pairs.c.model_id.is_not(None)))
    others = select(pairs.c.organ_id, pairs.c.model_id).where(pairs.c.model_id != but)
    return [(organ_id, other) for organ_id, other in session.execute(others.limit(limit))]


def _in_other_models(session: Session, organ_ids: Sequence[int], model_id: int) -> Sequence[int]:
    """Those of the organs that another visible model has."""
    statement = select(Organ.id).where(Organ.id.in_(organ_ids), _has_place(True, model_id))
    return session.scalars(statement).all()


def _has_place(visible: bool, but: int | None = None) -> ColumnElement[bool]:
    """Whether the Organ of the statement around it has a visible, or a hidden, place in any model other than `but`."""
    place = aliased(Placement)
    places = select(place.id).with_hint(place, _BY_ORGAN, "sqlite")
    places = places.where(place.organ_id == Organ.id, place.visible if visible else ~place.visible)
    if but is None:
        return places.exists()
    # Two ranges of the index instead of `<>`, which would walk over all places of the model itself.
    return or_(places.where(place.model_id < but).exists(), places.where(place.model_id > but).exists())


def _in_shown_models(session: Session, organ_ids: Sequence[int], model_id: int) -> set[int]:
    """Those of the organs that another visible or yanked model has."""
    found = set(_in_other_models(session, organ_ids, model_id))
    left = [organ_id for organ_id in organ_ids if organ_id not in found]
    hidden = _models_with(session, left, model_id, PAIRS_MAX, visible=False)
    yanked: set[int] = set()
    for batch in batches(sorted({other for _, other in hidden})):
        yanked.update(session.scalars(select(Model.id).where(Model.id.in_(batch), Model.state == "yanked")))
    return found | {organ_id for organ_id, other in hidden if other in yanked}
