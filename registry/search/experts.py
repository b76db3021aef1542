"""Searches for single experts of stacks, and the experts of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from organs.registry.anatomy import Slot
from organs.registry.catalog.cursor import Cursor
from organs.registry.catalog.engine import among
from organs.registry.catalog.queries.organs import (
    expert_rows,
    model_experts,
    organs_by_prefix,
    placed_expert,
)
from organs.registry.catalog.tables import Expert, Fingerprint, Organ
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.errors import BadQuery
from organs.registry.search.language import EXPERT, LIKENESS, Query, Sort
from organs.registry.search.plan import (
    GATHER_MAX,
    RANKINGS,
    Narrowed,
    Ranked,
    after_cursor,
    matches,
    placement_condition,
    ranges_after,
    sorted_after,
)

COMPARED_MAX = 20_000
"""The most experts that one search compares."""


def ranked_experts(
    session: Session, narrowed: Narrowed, query: Query, after: Cursor | None, limit: int
) -> tuple[list[Ranked], list[str]]:
    """Return the next `limit` experts of a query after `after`, as sort value and id, and notes for people.

    The order is total: experts without a value come last, and equal values are ordered by id.
    """
    if query.like is not None or query.sort.field == LIKENESS or narrowed.likeness:
        compared, notes = _compared(session, narrowed, query)
        return after_cursor(compared, query.sort, after)[:limit], notes
    driver = driver_of_experts(session, narrowed)
    if driver is not None or query.unique:
        return _all_sorted(session, narrowed, query, driver, after, limit), []
    return _in_order(session, narrowed, query.sort, after, limit), []


def driver_of_experts(session: Session, narrowed: Narrowed) -> str | None:
    """Return the index that narrows the experts most, if it leaves few enough to sort; else None."""
    filters: dict[str, list[ColumnElement[bool]]] = {}
    if narrowed.models is not None:
        filters["model"] = [narrowed.models.condition(Expert.model_id)]
    numbers = [term for term in narrowed.numbers if term.field == EXPERT and not term.negated]
    if numbers:
        filters["expert"] = [placement_condition(term, Expert) for term in numbers]
    counts = {}
    for name, conditions in filters.items():
        matching = experts_by_index(select(Expert.id).where(Expert.visible, *conditions), name)
        rows = matching.limit(GATHER_MAX + 1).subquery()
        counts[name] = session.scalar(select(func.count()).select_from(rows)) or 0
    best = min(counts, key=lambda name: counts[name], default=None)
    return best if best is not None and counts[best] <= GATHER_MAX else None


def experts_by_index(rows: Any, name: str) -> Any:
    """Return `rows` of experts, read through their index `name`."""
    # SQLite has no statistics on a new catalog and would guess.
    return rows.with_hint(Expert, f"INDEXED BY ix_experts_{name}", "sqlite")


def _all_sorted(
    session: Session, narrowed: Narrowed, query: Query, driver: str | None, after: Cursor | None, limit: int
) -> list[Ranked]:
    """Return the page of all matches, read through the index `driver` and then sorted."""
    column = getattr(Expert, RANKINGS[query.sort.field])
    # An organ has the same measures at all places, so its first place represents it.
    first = func.min(Expert.id) if query.unique else Expert.id
    matching = select(column.label("value"), first.label("id")).where(Expert.visible, *matches(narrowed, Expert))
    matching = matching if driver is None else experts_by_index(matching, driver)
    matched = (matching.group_by(Expert.organ_id, column) if query.unique else matching).subquery()
    return [tuple(row) for row in session.execute(sorted_after(matched, query.sort, after, limit))]


def _in_order(session: Session, narrowed: Narrowed, sort: Sort, after: Cursor | None, limit: int) -> list[Ranked]:
    """Return the page by reading the index of the ranking in its order."""
    measure = RANKINGS[sort.field]
    column = getattr(Expert, measure)
    order = (column.desc(), Expert.id.desc()) if sort.descending else (column, Expert.id)
    rows = experts_by_index(select(column, Expert.id).where(Expert.visible), measure).order_by(*order)
    results: list[Ranked] = []
    for conditions in ranges_after(narrowed, Expert, sort, after):
        found = session.execute(rows.where(*conditions).limit(limit - len(results)))
        results += [tuple(row) for row in found]
        if len(results) == limit:
            break
    return results


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An expert to compare, with its sort value."""

    id: int
    organ_id: int
    place: tuple[Slot, int]
    shape: str
    fingerprint: bytes
    value: float | None


def _compared(session: Session, narrowed: Narrowed, query: Query) -> tuple[list[Ranked], list[str]]:
    """Return the matches with their likeness, or with the value that they are sorted by, and notes.

    Only experts with a fingerprint are compared: with one organ (`like:`), or with the base's expert of the same number
    at the same place.
    """
    is_sort = query.like is not None or query.sort.field == LIKENESS
    column = None if is_sort else getattr(Expert, RANKINGS[query.sort.field])
    if query.like is not None:
        candidates, alike = _like(session, narrowed, query.like)
    else:
        candidates = _candidates(session, narrowed, column, ())
        alike = _likeness_to_base(session, narrowed.base_id, candidates)
    notes = [f"only the first {COMPARED_MAX} experts were compared: narrow the query"]
    notes = notes if len(candidates) > COMPARED_MAX else []
    rows: list[Ranked] = []
    seen: set[int] = set()
    for candidate in sorted(candidates[:COMPARED_MAX], key=lambda candidate: candidate.id):
        likeness = alike.get(candidate.id)
        is_repeated = query.unique and candidate.organ_id in seen
        if is_repeated or (query.like is not None and likeness is None):
            continue
        if all(term.holds(likeness) for term in narrowed.likeness):
            seen.add(candidate.organ_id)
            rows.append((likeness if is_sort else candidate.value, candidate.id))
    return rows, notes


def _candidates(
    session: Session, narrowed: Narrowed, column: Any, where: Sequence[ColumnElement[bool]]
) -> list[_Candidate]:
    place = (Expert.tower, Expert.block, Expert.slot, Expert.expert)
    value = Expert.theta if column is None else column
    statement = (
        select(Expert.id, Expert.organ_id, *place, Organ.shape, Fingerprint.values, value)
        .join(Organ, Organ.id == Expert.organ_id)
        .join(Fingerprint, Fingerprint.organ_id == Expert.organ_id)
        .where(Expert.visible, *matches(narrowed, Expert), *where)
        .order_by(Expert.id)
        .limit(COMPARED_MAX + 1)
    )
    driver = driver_of_experts(session, narrowed)
    return [
        _Candidate(row_id, organ_id, ((tower, block, slot), expert), shape, fingerprint, number)
        for row_id, organ_id, tower, block, slot, expert, shape, fingerprint, number in session.execute(
            statement if driver is None else experts_by_index(statement, driver)
        )
    ]


def _like(session: Session, narrowed: Narrowed, prefix: str) -> tuple[list[_Candidate], dict[int, float | None]]:
    """Return the experts with the shape of the organ `prefix`, and the likeness of each to it."""
    from organs.registry.lineage import correlations  # imports numpy, which most searches do not need

    organ, _ = organs_by_prefix(session, prefix, visible=True)[0]
    own = session.get(Fingerprint, organ.id)
    if own is None:
        reason = "this organ has no fingerprint: it has fewer than 256 values, or a dtype that cannot be read"
        raise BadQuery(f"like:{prefix}", reason)
    candidates = _candidates(session, narrowed, None, [Organ.shape == organ.shape])
    values = correlations(own.values, [candidate.fingerprint for candidate in candidates])
    return candidates, dict(zip((candidate.id for candidate in candidates), values, strict=True))


def _likeness_to_base(
    session: Session, base_id: int | None, candidates: Sequence[_Candidate]
) -> dict[int, float | None]:
    """Return the likeness of each expert to the base's expert at the same place, where both can be compared."""
    from organs.registry.lineage import paired_correlations  # imports numpy, which most searches do not need

    if base_id is None:
        return {}
    places = {candidate.place[0] for candidate in candidates}
    numbers = {candidate.place[1] for candidate in candidates}
    own = {(expert.place, expert.number): expert for expert in model_experts(session, base_id, places, numbers)}
    pairs: dict[int, tuple[bytes, bytes]] = {}
    alike: dict[int, float | None] = {}
    for candidate in candidates:
        expert = own.get(candidate.place)
        if expert is None or expert.shape != candidate.shape or expert.fingerprint is None:
            continue
        if expert.organ_id == candidate.organ_id:
            alike[candidate.id] = 1.0
        else:
            pairs[candidate.id] = (expert.fingerprint, candidate.fingerprint)
    return alike | dict(zip(pairs, paired_correlations(list(pairs.values())), strict=True))


def load_experts(session: Session, ids: Sequence[int], likeness: Mapping[int, float | None]) -> tuple[PlacedOrgan, ...]:
    """Return the experts `ids`, in that order."""
    statement = expert_rows().where(among(Expert.id, ids))
    organs = {
        expert.id: placed_expert(expert, *row, likeness=likeness.get(expert.id))
        for expert, *row in session.execute(statement)
    }
    return tuple(organs[row_id] for row_id in ids)
