"""Gains: the settled results of validations, for the fields `gain` and `on` of searches, and the leaderboard of grafts.

A gain belongs to a chimera. It is attributed to a donor, and to the organs that it gave, only if the chimera has no
other donor and nothing was purified: otherwise the effects of the parts were not measured one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select, true, tuple_, union_all
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.cursor import check_limit, next_cursor, parse_cursor
from organs.registry.catalog.queries.chimeras import (
    gains_of_chimeras,
    stored_origins,
    strongest_verdicts,
    withdrawn_ancestors,
)
from organs.registry.catalog.queries.relatives import changes_from, likenesses
from organs.registry.catalog.rows import batches, entity_of, first
from organs.registry.catalog.tables import ChimeraRow, GainOrgan, GainRow, Lineage, ModelRow
from organs.registry.digest import Digest
from organs.registry.entities import gain as entities
from organs.registry.entities.gain import Leaderboard, MeasuredGain, MeasuredGraft
from organs.registry.entities.plan import RecipeFile
from organs.registry.search.language import Bounds


@dataclass(frozen=True, slots=True)
class GainFilter:
    """The gains that a search is about, and its bounds on them. The gain of an organ or a model is its largest one."""

    texts: tuple[tuple[tuple[str, ...], bool], ...] = ()
    """For each term `on:`, the names of texts, and whether these are excluded."""
    base_id: int | None = None
    """Only gains over this base; None for any base."""
    terms: tuple[Bounds, ...] = ()
    """The bounds."""
    is_order: bool = False
    """Whether results are sorted by their gain."""

    @property
    def needs_gain(self) -> bool:
        """Whether only what has a gain can match: also without bounds, and in an order by gain."""
        return self.is_order or not self.terms or any(term.absent is term.negated for term in self.terms)

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the conditions on `Gain`: settled, of a visible chimera, over the base, on the texts."""
        chimera = aliased(ModelRow)
        conditions: list[ColumnElement[bool]] = [
            GainRow.settled.is_(true()),
            GainRow.model_id.in_(select(chimera.id).where(chimera.state == "visible")),
        ]
        if self.base_id is not None:
            conditions.append(GainRow.base_model_id == self.base_id)
        for names, is_excluded in self.texts:
            conditions.append(GainRow.text.not_in(names) if is_excluded else GainRow.text.in_(names))
        return conditions

    def organs(self) -> Any:
        """Return a subquery of the organs with a gain: `id`, `percent`."""
        gains = select(GainOrgan.organ_id.label("id"), func.max(GainRow.percent).label("percent"))
        gains = gains.join(GainRow, GainRow.model_id == GainOrgan.model_id).where(*self.conditions())
        return gains.group_by(GainOrgan.organ_id).subquery()

    def models(self) -> Any:
        """Return a subquery of the models with a gain, as a chimera or as the only donor: `id`, `percent`."""
        owned = union_all(
            *(
                select(owner.label("id"), GainRow.percent).where(owner.is_not(None), *self.conditions())
                for owner in _OWNERS
            )
        ).subquery()
        return select(owned.c.id, func.max(owned.c.percent).label("percent")).group_by(owned.c.id).subquery()


def names_of_texts() -> Select[str]:
    """Return a SELECT of the names of the texts with a gain that searches find."""
    return select(GainRow.text).where(*GainFilter().conditions())


_OWNERS = (GainRow.model_id, GainRow.donor_model_id)
_CHIMERA, _BASE = aliased(ModelRow), aliased(ModelRow)


def gains_of_organs(session: Session, gains: GainFilter, organ_ids: Collection[int]) -> dict[int, MeasuredGain]:
    """Return the largest gain of each of `organ_ids` that has one."""
    best: dict[int, MeasuredGain] = {}
    owned = select(GainOrgan.organ_id.label("owner"), GainRow.id, GainRow.percent)
    owned = owned.join(GainRow, GainRow.model_id == GainOrgan.model_id).where(*gains.conditions())
    for batch in batches(sorted(organ_ids)):
        best |= _best_gains(session, owned.where(GainOrgan.organ_id.in_(batch)))
    return best


def gains_of_models(session: Session, gains: GainFilter, model_ids: Collection[int]) -> dict[int, MeasuredGain]:
    """Return the largest gain of each of `model_ids` that has one, as a chimera or as the only donor."""
    owned = union_all(
        *(
            select(owner.label("owner"), GainRow.id, GainRow.percent).where(owner.in_(model_ids), *gains.conditions())
            for owner in _OWNERS
        )
    )
    return _best_gains(session, owned)


def _best_gains(session: Session, owned: Any) -> dict[int, MeasuredGain]:
    """Return the largest gain of each owner in `owned`, a SELECT of `owner`, `id` and `percent`."""
    rows = owned.subquery()
    rank = func.row_number().over(partition_by=rows.c.owner, order_by=(rows.c.percent.desc(), rows.c.id))
    ranked = select(rows.c.owner, rows.c.id, rank.label("rank")).subquery()
    statement = select(ranked.c.owner, GainRow, _CHIMERA, _BASE).join(GainRow, GainRow.id == ranked.c.id)
    statement = statement.join(_CHIMERA, _CHIMERA.id == GainRow.model_id).join(_BASE, _BASE.id == GainRow.base_model_id)
    return {
        owner: entity_of(MeasuredGain, gain, chimera=chimera.full_name, base=base.full_name)
        for owner, gain, chimera, base in session.execute(statement.where(ranked.c.rank == 1))
    }


@dataclass(frozen=True, slots=True)
class DonorGain:
    """What a donor gave in the chimera that gained most over a base: the chimera, its best result, its worst one."""

    chimera: str
    grafted: str
    best: entities.Gain
    worst: entities.Gain | None
    """The largest settled loss; None without one."""


def gains_of_donors(session: Session, base_id: int, donor_ids: Collection[int]) -> dict[int, DonorGain]:
    """Return the best measured graft of each of `donor_ids` on the model `base_id`, if it was the only donor of one."""
    conditions = GainFilter(base_id=base_id).conditions()
    rank = func.row_number().over(partition_by=GainRow.donor_model_id, order_by=(GainRow.percent.desc(), GainRow.id))
    ranked = select(GainRow.id, rank.label("rank")).where(GainRow.donor_model_id.in_(donor_ids), *conditions).subquery()
    best = (
        select(GainRow, _CHIMERA)
        .join(_CHIMERA, _CHIMERA.id == GainRow.model_id)
        .join(ranked, ranked.c.id == GainRow.id)
    )
    found: dict[int, DonorGain] = {}
    for gain, chimera in session.execute(best.where(ranked.c.rank == 1)):
        losses = select(GainRow).where(
            GainRow.model_id == chimera.id, GainRow.percent < 0.0, GainRow.id != gain.id, *conditions
        )
        worst = first(session, losses.order_by(GainRow.percent, GainRow.id))
        assert gain.donor_model_id is not None
        found[gain.donor_model_id] = DonorGain(
            chimera.full_name,
            gain.grafted,
            entity_of(entities.Gain, gain),
            None if worst is None else entity_of(entities.Gain, worst),
        )
    return found


RecipeReader = Callable[[ChimeraRow], RecipeFile]
"""Returns the recipe of a chimera."""


def leaderboard(
    session: Session, gains: GainFilter, limit: int, after: str | None, read_recipe: RecipeReader
) -> Leaderboard:
    """Return the next `limit` validated chimeras after the cursor `after`, by their largest settled gain.

    Raises BadQuery.
    """
    check_limit(limit)
    key = f"leaderboard {gains.base_id} {gains.texts}"
    best = select(GainRow.model_id.label("id"), func.max(GainRow.percent).label("percent")).where(*gains.conditions())
    ranked = best.group_by(GainRow.model_id).subquery()
    statement = select(ranked.c.percent, ranked.c.id)
    if after is not None:
        cursor = parse_cursor(key, after, missing=False)
        statement = statement.where(tuple_(ranked.c.percent, ranked.c.id) < tuple_(cursor.value, cursor.id))
    statement = statement.order_by(ranked.c.percent.desc(), ranked.c.id.desc()).limit(limit + 1)
    rows = [(percent, model_id) for percent, model_id in session.execute(statement)]
    items = _measured_grafts(session, gains, [model_id for _, model_id in rows[:limit]], read_recipe)
    return Leaderboard(items=items, next=next_cursor(key, rows, limit))


def _measured_grafts(
    session: Session, gains: GainFilter, model_ids: Sequence[int], read_recipe: RecipeReader
) -> tuple[MeasuredGraft, ...]:
    """Return the chimeras `model_ids` with their gains, in that order."""
    if not model_ids:
        return ()
    all_gains = gains_of_chimeras(session, model_ids)
    matching = select(GainRow.id).where(GainRow.model_id.in_(model_ids), *gains.conditions())
    matching_ids = set(session.scalars(matching))
    firsts = [own[0] for own in all_gains.values()]
    named = {end for gain in firsts for end in (gain.model_id, gain.base_model_id, gain.donor_model_id)} - {None}
    models = {model.id: model for model in session.scalars(select(ModelRow).where(ModelRow.id.in_(named)))}
    chimeras = {
        row.model_id: row for row in session.scalars(select(ChimeraRow).where(ChimeraRow.model_id.in_(model_ids)))
    }
    verdicts = strongest_verdicts(session, model_ids)
    withdrawn = withdrawn_ancestors(session, model_ids)
    unavailable = {model_id: [item.model.full_name for item in withdrawn.get(model_id, ())] for model_id in model_ids}
    parents = select(Lineage.child_model_id, ModelRow).join(ModelRow, ModelRow.id == Lineage.parent_model_id)
    parents = parents.where(Lineage.child_model_id.in_(model_ids), Lineage.evidence == "recorded")
    for child_id, parent in session.execute(parents.where(ModelRow.state != "visible").order_by(Lineage.id)):
        assert child_id is not None
        unavailable[child_id].append(parent.full_name)
    bases = {gain.base_model_id for gain in firsts}
    alike = {base_id: likenesses(session, base_id) for base_id in bases}
    changes = {base_id: changes_from(session, base_id) for base_id in bases}
    grafts = []
    for model_id in model_ids:
        largest, chimera, verdict = all_gains[model_id][0], chimeras[model_id], verdicts.get(model_id)
        own = {gain.id: entity_of(entities.Gain, gain) for gain in all_gains[model_id]}  # the largest first
        losses = [gain for gain in own.values() if gain.settled and gain.percent < 0.0]
        donor = largest.donor_model_id or 0
        grafts.append(
            MeasuredGraft(
                chimera=models[model_id].full_name,
                lock_id=Digest(chimera.lock_id),
                base=models[largest.base_model_id].full_name,
                donors=stored_origins(chimera).parents[1:],
                grafted=largest.grafted,
                likeness=alike[largest.base_model_id].get(donor),
                change=changes[largest.base_model_id].get(donor),
                verdict=None if verdict is None else verdict.verdict,
                best=next(gain for gain_id, gain in own.items() if gain_id in matching_ids),
                worst=losses[-1] if losses else None,
                gains=tuple(own.values()),
                recipe=read_recipe(chimera),
                unavailable_parents=tuple(dict.fromkeys(unavailable[model_id])),
            )
        )
    return tuple(grafts)
