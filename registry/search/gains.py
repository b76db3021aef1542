"""Gains: the settled results of validations, for the fields `gain` and `on` of searches, and the leaderboard of grafts.

A gain belongs to a chimera. It is attributed to a donor, and to the organs that it gave, only if the chimera has no
other donor and nothing was purified: otherwise the effects of the parts were not measured one by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import ColumnElement, Select, func, select, true, tuple_, union_all
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.cursor import check_limit, next_cursor, parse_cursor
from organs.registry.catalog.engine import batches
from organs.registry.catalog.queries.chimeras import gains_of_chimeras, strongest_verdicts, withdrawn_ancestors
from organs.registry.catalog.queries.relatives import changes_from, likenesses
from organs.registry.catalog.tables import Chimera, Gain, GainOrgan, Lineage, Model
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
        chimera = aliased(Model)
        conditions: list[ColumnElement[bool]] = [
            Gain.settled.is_(true()),
            Gain.model_id.in_(select(chimera.id).where(chimera.state == "visible")),
        ]
        if self.base_id is not None:
            conditions.append(Gain.base_model_id == self.base_id)
        for names, is_excluded in self.texts:
            conditions.append(Gain.text.not_in(names) if is_excluded else Gain.text.in_(names))
        return conditions

    def organs(self) -> Any:
        """Return a subquery of the organs with a gain: `id`, `percent`."""
        gains = select(GainOrgan.organ_id.label("id"), func.max(Gain.percent).label("percent"))
        gains = gains.join(Gain, Gain.model_id == GainOrgan.model_id).where(*self.conditions())
        return gains.group_by(GainOrgan.organ_id).subquery()

    def models(self) -> Any:
        """Return a subquery of the models with a gain, as a chimera or as the only donor: `id`, `percent`."""
        owned = union_all(
            *(
                select(owner.label("id"), Gain.percent).where(owner.is_not(None), *self.conditions())
                for owner in _OWNERS
            )
        ).subquery()
        return select(owned.c.id, func.max(owned.c.percent).label("percent")).group_by(owned.c.id).subquery()


def names_of_texts() -> Select[str]:
    """Return a SELECT of the names of the texts with a gain that searches find."""
    return select(Gain.text).where(*GainFilter().conditions())


_OWNERS = (Gain.model_id, Gain.donor_model_id)
_CHIMERA, _BASE = aliased(Model), aliased(Model)


def gains_of_organs(session: Session, gains: GainFilter, organ_ids: Collection[int]) -> dict[int, MeasuredGain]:
    """Return the largest gain of each of `organ_ids` that has one."""
    best: dict[int, MeasuredGain] = {}
    for batch in batches(sorted(organ_ids)):
        owned = select(GainOrgan.organ_id.label("owner"), Gain.id, Gain.percent)
        owned = owned.join(Gain, Gain.model_id == GainOrgan.model_id)
        best |= _best_gains(session, owned.where(GainOrgan.organ_id.in_(batch), *gains.conditions()))
    return best


def gains_of_models(session: Session, gains: GainFilter, model_ids: Collection[int]) -> dict[int, MeasuredGain]:
    """Return the largest gain of each of `model_ids` that has one, as a chimera or as the only donor."""
    owned = union_all(
        *(
            select(owner.label("owner"), Gain.id, Gain.percent).where(owner.in_(model_ids), *gains.conditions())
            for owner in _OWNERS
        )
    )
    return _best_gains(session, owned)


def _best_gains(session: Session, owned: Any) -> dict[int, MeasuredGain]:
    """Return the largest gain of each owner in `owned`, a SELECT of `owner`, `id` and `percent`."""
    rows = owned.subquery()
    rank = func.row_number().over(partition_by=rows.c.owner, order_by=(rows.c.percent.desc(), rows.c.id))
    ranked = select(rows.c.owner, rows.c.id, rank.label("rank")).subquery()
    statement = select(ranked.c.owner, Gain, _CHIMERA, _BASE).join(Gain, Gain.id == ranked.c.id)
    statement = statement.join(_CHIMERA, _CHIMERA.id == Gain.model_id).join(_BASE, _BASE.id == Gain.base_model_id)
    return {
        owner: MeasuredGain(**asdict(gain_entity(gain)), chimera=chimera.full_name, base=base.full_name)
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
    rank = func.row_number().over(partition_by=Gain.donor_model_id, order_by=(Gain.percent.desc(), Gain.id))
    ranked = select(Gain.id, rank.label("rank")).where(Gain.donor_model_id.in_(donor_ids), *conditions).subquery()
    best = select(Gain, _CHIMERA).join(_CHIMERA, _CHIMERA.id == Gain.model_id).join(ranked, ranked.c.id == Gain.id)
    found: dict[int, DonorGain] = {}
    for gain, chimera in session.execute(best.where(ranked.c.rank == 1)):
        losses = select(Gain).where(Gain.model_id == chimera.id, Gain.percent < 0.0, Gain.id != gain.id, *conditions)
        worst = session.scalars(losses.order_by(Gain.percent, Gain.id).limit(1)).first()
        assert gain.donor_model_id is not None
        found[gain.donor_model_id] = DonorGain(
            chimera.full_name, gain.grafted, gain_entity(gain), None if worst is None else gain_entity(worst)
        )
    return found


def gain_entity(gain: Gain) -> entities.Gain:
    """Return a row of gains as an entity."""
    return entities.Gain(
        text=gain.text, percent=gain.percent, margin=gain.margin, tokens=gain.tokens, settled=gain.settled
    )


RecipeReader = Callable[[Chimera], RecipeFile]
"""Returns the recipe of a chimera."""


def leaderboard(
    session: Session, gains: GainFilter, limit: int, after: str | None, read_recipe: RecipeReader
) -> Leaderboard:
    """Return the next `limit` validated chimeras after the cursor `after`, by their largest settled gain.

    Raises BadQuery.
    """
    check_limit(limit)
    key = f"leaderboard {gains.base_id} {gains.texts}"
    best = select(Gain.model_id.label("id"), func.max(Gain.percent).label("percent")).where(*gains.conditions())
    ranked = best.group_by(Gain.model_id).subquery()
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
    matching = select(Gain.id).where(Gain.model_id.in_(model_ids), *gains.conditions())
    matching_ids = set(session.scalars(matching))
    firsts = [own[0] for own in all_gains.values()]
    named = {end for gain in firsts for end in (gain.model_id, gain.base_model_id, gain.donor_model_id)} - {None}
    models = {model.id: model for model in session.scalars(select(Model).where(Model.id.in_(named)))}
    chimeras = {row.model_id: row for row in session.scalars(select(Chimera).where(Chimera.model_id.in_(model_ids)))}
    verdicts = strongest_verdicts(session, model_ids)
    withdrawn = withdrawn_ancestors(session, model_ids)
    unavailable = {model_id: [item.model.full_name for item in withdrawn.get(model_id, ())] for model_id in model_ids}
    parents = select(Lineage.child_model_id, Model).join(Model, Model.id == Lineage.parent_model_id)
    parents = parents.where(Lineage.child_model_id.in_(model_ids), Lineage.evidence == "recorded")
    for child_id, parent in session.execute(parents.where(Model.state != "visible").order_by(Lineage.id)):
        assert child_id is not None
        unavailable[child_id].append(parent.full_name)
    bases = {gain.base_model_id for gain in firsts}
    alike = {base_id: likenesses(session, base_id) for base_id in bases}
    changes = {base_id: changes_from(session, base_id) for base_id in bases}
    grafts = []
    for model_id in model_ids:
        own, verdict = all_gains[model_id], verdicts.get(model_id)
        first, chimera = own[0], chimeras[model_id]
        losses = [gain for gain in own if gain.settled and gain.percent < 0.0]
        donor = first.donor_model_id or 0
        grafts.append(
            MeasuredGraft(
                chimera=models[model_id].full_name,
                lock_id=Digest(chimera.lock_id),
                base=models[first.base_model_id].full_name,
                donors=tuple(json.loads(chimera.origins)["parents"][1:]),
                grafted=first.grafted,
                likeness=alike[first.base_model_id].get(donor),
                change=changes[first.base_model_id].get(donor),
                verdict=None if verdict is None else verdict.verdict,
                best=gain_entity(next(gain for gain in own if gain.id in matching_ids)),
                worst=gain_entity(losses[-1]) if losses else None,
                gains=tuple(map(gain_entity, own)),
                recipe=read_recipe(chimera),
                unavailable_parents=tuple(dict.fromkeys(unavailable[model_id])),
            )
        )
    return tuple(grafts)
