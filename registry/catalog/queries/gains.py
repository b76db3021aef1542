"""Gains: the settled results of validations, for the fields `gain` and `on` of searches, and the leaderboard of grafts.

A gain belongs to a chimera. It is attributed to a donor, and to the organs that it gave, only if the chimera has no
other donor and nothing was purified: otherwise the effects of the parts were not measured one by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, func, or_, select, true, tuple_
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.cursor import Cursor, check_limit, cursor_text, parse_cursor
from organs.registry.catalog.engine import batches
from organs.registry.catalog.queries.chimeras import strongest_verdicts, withdrawn_ancestors
from organs.registry.catalog.queries.relatives import likenesses
from organs.registry.catalog.search import GAIN, Choice, Numbers, Query
from organs.registry.catalog.tables import Chimera, Gain, GainOrgan, Model
from organs.registry.catalog.vocabulary import TEXT_GROUPS
from organs.registry.digest import Digest
from organs.registry.entities import gain as entities
from organs.registry.entities.gain import Leaderboard, MeasuredGain, MeasuredGraft
from organs.registry.entities.plan import RecipeFile


def expanded(choice: Choice) -> Choice:
    """Return a term `on:` with the names of texts instead of names of groups."""
    names = (name for value in choice.values for name in TEXT_GROUPS.get(value.casefold(), (value,)))
    return Choice(choice.field, tuple(dict.fromkeys(names)), choice.negated)


def names_of_texts() -> Select[str]:
    """Return a SELECT of the names of all texts with a gain."""
    return select(Gain.text)


@dataclass(frozen=True, slots=True)
class GainFilter:
    """The gains that a search is about, and its bounds on them. The gain of an organ or a model is its largest one."""

    texts: tuple[tuple[tuple[str, ...], bool], ...] = ()
    """For each term `on:`, the names of texts, and whether these are excluded."""
    base_id: int | None = None
    """Only gains over this base; None for any base."""
    terms: tuple[Numbers, ...] = ()
    """The bounds."""
    is_order: bool = False
    """Whether results are sorted by their gain."""

    @property
    def needs_gain(self) -> bool:
        """Whether only what has a gain can match: also without bounds, and in an order by gain."""
        return self.is_order or not self.terms or any(term.absent is term.negated for term in self.terms)

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the conditions on `Gain`."""
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

    def of_organ(self, entity: Any) -> ColumnElement[float | None]:
        """Return the gain of the organ at each row of `entity`, placements; NULL without one."""
        gain = select(func.max(Gain.percent)).join(GainOrgan, GainOrgan.model_id == Gain.model_id)
        gain = gain.where(GainOrgan.organ_id == entity.organ_id, *self.conditions())
        return gain.correlate(entity).scalar_subquery()

    def of_model(self) -> ColumnElement[float | None]:
        """Return the gain of each row of `Model`, as a chimera or as the only donor; NULL without one."""
        gain = select(func.max(Gain.percent)).where(_belongs_to(Model.id), *self.conditions())
        return gain.correlate(Model).scalar_subquery()

    def organs(self) -> Select[int]:
        """Return a SELECT of the organs with a gain."""
        chimeras = select(Gain.model_id).where(*self.conditions())
        return select(GainOrgan.organ_id).where(GainOrgan.model_id.in_(chimeras)).distinct()


def _belongs_to(model_id: Any) -> ColumnElement[bool]:
    return or_(Gain.model_id == model_id, Gain.donor_model_id == model_id)


def gain_filter(query: Query, base_id: int | None, choices: Sequence[Choice]) -> GainFilter:
    """Return the filter of a query; `choices` are its terms `on:` with names of texts that exist."""
    texts = tuple((choice.values, choice.negated) for choice in choices)
    return GainFilter(texts, base_id, tuple(query.numbers(GAIN)), is_order=query.sort.field == GAIN)


def gains_of_organs(session: Session, gains: GainFilter, organ_ids: Collection[int]) -> dict[int, MeasuredGain]:
    """Return the largest gain of each of `organ_ids` that has one."""
    best: dict[int, MeasuredGain] = {}
    for batch in batches(sorted(organ_ids)):
        statement = select(GainOrgan.organ_id, Gain, *_ENDS).join(Gain, Gain.model_id == GainOrgan.model_id)
        statement = _with_ends(statement).where(GainOrgan.organ_id.in_(batch), *gains.conditions())
        for organ_id, gain, chimera, base in session.execute(statement.order_by(Gain.percent.desc(), Gain.id)):
            best.setdefault(organ_id, _measured(gain, chimera, base))
    return best


def gains_of_models(session: Session, gains: GainFilter, model_ids: Collection[int]) -> dict[int, MeasuredGain]:
    """Return the largest gain of each of `model_ids` that has one, as a chimera or as the only donor."""
    best: dict[int, MeasuredGain] = {}
    statement = _with_ends(select(Gain, *_ENDS))
    statement = statement.where(or_(Gain.model_id.in_(model_ids), Gain.donor_model_id.in_(model_ids)))
    statement = statement.where(*gains.conditions()).order_by(Gain.percent.desc(), Gain.id)
    for gain, chimera, base in session.execute(statement):
        for model_id in (gain.model_id, gain.donor_model_id):
            if model_id in model_ids:
                best.setdefault(model_id, _measured(gain, chimera, base))
    return best


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
    gains: dict[int, list[tuple[Gain, Model]]] = {}
    statement = select(Gain, _CHIMERA).join(_CHIMERA, _CHIMERA.id == Gain.model_id)
    statement = statement.where(Gain.donor_model_id.in_(donor_ids), *GainFilter(base_id=base_id).conditions())
    for gain, chimera in session.execute(statement.order_by(Gain.percent.desc(), Gain.id)):
        assert gain.donor_model_id is not None
        gains.setdefault(gain.donor_model_id, []).append((gain, chimera))
    found = {}
    for donor_id, rows in gains.items():
        first, chimera = rows[0]
        last = [gain for gain, _ in rows if gain.model_id == first.model_id][-1]
        worst = _gain(last) if last.percent < 0.0 and last is not first else None
        found[donor_id] = DonorGain(chimera.full_name, first.grafted, _gain(first), worst)
    return found


_CHIMERA, _BASE = aliased(Model), aliased(Model)
_ENDS = (_CHIMERA, _BASE)


def _with_ends(statement: Any) -> Any:
    return statement.join(_CHIMERA, _CHIMERA.id == Gain.model_id).join(_BASE, _BASE.id == Gain.base_model_id)


def _measured(gain: Gain, chimera: Model, base: Model) -> MeasuredGain:
    return MeasuredGain(
        text=gain.text,
        percent=gain.percent,
        margin=gain.margin,
        tokens=gain.tokens,
        settled=gain.settled,
        chimera=chimera.full_name,
        base=base.full_name,
    )


def _gain(gain: Gain) -> entities.Gain:
    return entities.Gain(
        text=gain.text, percent=gain.percent, margin=gain.margin, tokens=gain.tokens, settled=gain.settled
    )


RecipeReader = Callable[[str], RecipeFile]
"""Reads a stored recipe."""


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
    last = Cursor(*rows[limit - 1]) if len(rows) > limit else None
    return Leaderboard(items=items, next=cursor_text(key, last) if last else None)


def _measured_grafts(
    session: Session, gains: GainFilter, model_ids: Sequence[int], read_recipe: RecipeReader
) -> tuple[MeasuredGraft, ...]:
    """Return the chimeras `model_ids` with their gains, in that order."""
    if not model_ids:
        return ()
    statement = select(Gain).where(Gain.model_id.in_(model_ids)).order_by(Gain.percent.desc(), Gain.id)
    all_gains: dict[int, list[Gain]] = {}
    for gain in session.scalars(statement):
        all_gains.setdefault(gain.model_id, []).append(gain)
    matching = select(Gain.id).where(Gain.model_id.in_(model_ids), *gains.conditions())
    matching_ids = set(session.scalars(matching))
    models = {model.id: model for model in session.scalars(select(Model).where(Model.id.in_(_model_ids(all_gains))))}
    chimeras = {row.model_id: row for row in session.scalars(select(Chimera).where(Chimera.model_id.in_(model_ids)))}
    verdicts = strongest_verdicts(session, model_ids)
    withdrawn = withdrawn_ancestors(session, model_ids)
    alike = {base_id: likenesses(session, base_id) for base_id in {own[0].base_model_id for own in all_gains.values()}}
    grafts = []
    for model_id in model_ids:
        own, verdict = all_gains[model_id], verdicts.get(model_id)
        first, chimera = own[0], chimeras[model_id]
        losses = [gain for gain in own if gain.settled and gain.percent < 0.0]
        likeness = None if first.donor_model_id is None else alike[first.base_model_id].get(first.donor_model_id)
        grafts.append(
            MeasuredGraft(
                chimera=models[model_id].full_name,
                lock_id=Digest(chimera.lock_id),
                base=models[first.base_model_id].full_name,
                donors=tuple(json.loads(chimera.origins)["parents"][1:]),
                grafted=first.grafted,
                likeness=likeness,
                verdict=None if verdict is None else verdict.verdict,
                best=_gain(next(gain for gain in own if gain.id in matching_ids)),
                worst=_gain(losses[-1]) if losses else None,
                gains=tuple(map(_gain, own)),
                recipe=read_recipe(chimera.recipe),
                withdrawn_parents=tuple(item.model.full_name for item in withdrawn.get(model_id, ())),
            )
        )
    return tuple(grafts)


def _model_ids(gains: Mapping[int, Sequence[Gain]]) -> set[int]:
    """Return the ids of the chimeras of `gains`, of their bases and of their donors."""
    ids = {(gain.model_id, gain.base_model_id, gain.donor_model_id) for own in gains.values() for gain in own[:1]}
    return {model_id for row in ids for model_id in row if model_id is not None}
