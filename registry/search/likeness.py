"""Rank the matches of a search by likeness.

There are two kinds: `like:` compares matches with one organ, `likeness` with the organs of a base at the same places.
Both are computed from fingerprints for at most `COMPARED_MAX` matches; there is no index of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Integer, cast, null, or_, select, true
from sqlalchemy.orm import Session

from organs.registry.catalog.cursor import Ranked
from organs.registry.catalog.queries.organs import organs_by_prefix, places_of_organ, shape_of
from organs.registry.catalog.queries.relatives import changes_from, kin_of, likenesses
from organs.registry.catalog.rows import among
from organs.registry.catalog.tables import Expert, Fingerprint, ModelRow, OrganRow, Placement
from organs.registry.errors import BadQuery
from organs.registry.search.filters import RANKINGS, Filters
from organs.registry.search.fitting import batches_of_models
from organs.registry.search.language import GAIN, LIKENESS, Query
from organs.registry.search.plan import SearchPlan, by_index, driven, plan_of

COMPARED_MAX = 20_000
"""The most placements that are compared. With `like:`, those of the same block come first; with a base, its kin."""
COMPARED_MODELS_TENSORS_MAX = 200_000
"""The most tensors of all models among which a search with a base looks for placements to compare. It takes about a
second."""
COMPARED_BATCH_TENSORS = 5000
"""The tensors of the models that one statement reads."""


Place = tuple[str, int | None, str, int | None]
"""Tower, block, slot, and the number of an expert."""


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A placement or an expert that is compared with the base."""

    id: int
    organ_id: int
    model_id: int
    place: Place
    shape: str
    fingerprint: bytes | None
    values: tuple[Any, ...]
    """The values of more columns."""


def ranked_by_likeness(
    session: Session, query: Query, filters: Filters, on_compared: Callable[[int], None] | None = None
) -> tuple[list[Ranked], list[str]]:
    """Return all matches of a query with `like:`, or with a filter or a sort by likeness, and notes for people.

    `on_compared` is called with the number of organs that are compared with the base. Raises NotFound; Ambiguous;
    BadQuery for an organ without a fingerprint.
    """
    noun = "experts" if filters.table is Expert else "tensors"
    rows: list[tuple[float | None, int, int]]
    if query.like is not None:
        rows, is_complete = _alike(session, filters, query.like)
        of_its_kind = noun if filters.table is Expert else f"{noun} of its slot and shape"
        note = f"only the first {COMPARED_MAX} {of_its_kind} were compared: narrow the query"
    else:
        columns: tuple[Any, ...] = ()
        if query.sort.field == GAIN and filters.gains is not None:
            gained = filters.gains.organs()
            columns = (select(gained.c.percent).where(gained.c.id == Placement.organ_id).scalar_subquery(),)
        elif query.sort.field != LIKENESS:
            columns = (getattr(filters.table, RANKINGS[query.sort.field]),)
        compared, is_complete = compare_with_base(session, filters, columns, on_compared)
        rows = [(row.values[0] if columns else likeness, row.id, row.organ_id) for row, likeness in compared]
        note = f"only {COMPARED_MAX} {noun} were compared with the base, those of its kin first: narrow the query"
    if query.unique:
        firsts: dict[int, int] = {}
        for _, row_id, organ_id in rows:
            firsts[organ_id] = min(row_id, firsts.get(organ_id, row_id))
        rows = [row for row in rows if firsts[row[2]] == row[1]]
    return [(value, row_id) for value, row_id, _ in rows], [] if is_complete else [note]


def _alike(session: Session, filters: Filters, prefix: str) -> tuple[list[tuple[float | None, int, int]], bool]:
    """Return likeness, id and organ id of the matches that can be compared with the organ `prefix`, and whether all.

    Organs of the same slot and shape can be compared, and all experts of the shape. Constant organs have no likeness.
    """
    from organs.registry.similarity import correlations  # imports numpy, which most searches do not need

    organ, _ = organs_by_prefix(session, prefix, visible=True)[0]
    own = session.get(Fingerprint, organ.id)
    if own is None:
        reason = "this tensor has no fingerprint: it has fewer than 256 values, or a dtype that cannot be read"
        raise BadQuery(f"like:{prefix}", reason)
    table = filters.table
    statement: Any = select(table.id, table.organ_id, Fingerprint.values).join(OrganRow, OrganRow.id == table.organ_id)
    statement = statement.join(Fingerprint, Fingerprint.organ_id == table.organ_id)
    statement = statement.where(OrganRow.shape == organ.shape)
    plan = plan_of(session, filters, None, COMPARED_MAX) if table is Expert else SearchPlan(None, None)
    parts: list[Any] = [true()]
    if table is Placement:
        places = [placement for placement, _ in places_of_organ(session, organ.id)]
        slots = sorted({place.slot for place in places})
        statement = by_index(statement, table, "place").where(table.slot.in_(slots))
        same_block = table.block.in_({place.block for place in places if place.block is not None})
        parts = [same_block, table.block.is_(None) | ~same_block]
    if plan.driver is None:
        statement = statement.where(table.visible, *filters.conditions())
    else:
        statement = driven(session, statement, plan, filters)
    rows: list[Any] = []
    for part in parts:
        if len(rows) <= COMPARED_MAX:
            rows += session.execute(statement.where(part).limit(COMPARED_MAX + 1 - len(rows)))
    compared = rows[:COMPARED_MAX]
    organs = {organ_id: values for _, organ_id, values in compared}
    alike = dict(zip(organs, correlations(own.values, list(organs.values())), strict=True))
    found = [(value, row_id, organ_id) for row_id, organ_id, _ in compared if (value := alike[organ_id]) is not None]
    return found, len(rows) <= COMPARED_MAX


def compare_with_base(
    session: Session, filters: Filters, columns: Sequence[Any], on_compared: Callable[[int], None] | None = None
) -> tuple[list[tuple[ComparedRow, float | None]], bool]:
    """Return the matches with the values of `columns` and their likeness, and whether all matches were compared."""
    if filters.base_id is None:
        return [], True
    rows, is_complete = _rows_to_compare(session, filters, columns)
    if on_compared is not None:
        on_compared(len(rows))
    alike = _likenesses_to_base(session, filters.base_id, _organs_of_base(session, filters, rows), rows)
    compared = list(zip(rows, alike, strict=True))
    return [own for own in compared if all(term.holds(own[1]) for term in filters.likeness)], is_complete


def likeness_and_change(
    session: Session, filters: Filters, base_id: int, ids: Sequence[int]
) -> tuple[dict[int, float | None], dict[int, float | None]]:
    """Return the likeness of the rows `ids` to the organs of the base at the same places, and their change from them.

    Both are by id. They are None for an organ that cannot be compared.
    """
    from organs.registry.similarity import changes  # imports numpy, which most searches do not need

    rows = _read_compared(session, _select_compared(filters.table).where(among(filters.table.id, ids)))
    own = _organs_of_base(session, filters, rows)
    alike = _likenesses_to_base(session, base_id, own, rows)
    changed = _values_to_base(own, rows, changes_from(session, base_id) | {base_id: 0.0}, 0.0, changes)
    found = [row.id for row in rows]
    return dict(zip(found, alike, strict=True)), dict(zip(found, changed, strict=True))


def _rows_to_compare(session: Session, filters: Filters, columns: Sequence[Any]) -> tuple[list[ComparedRow], bool]:
    """Return the matches without the filters by likeness, with the values of `columns`, and whether these are all.

    If no index leaves few matches, the models that may have some are read: kin of the base first, by their likeness,
    then the newest.
    """
    assert filters.base_id is not None
    plan = plan_of(session, filters, None, COMPARED_MAX)
    statement = _select_compared(filters.table, columns)
    if plan.driver is not None:
        found = _read_compared(session, driven(session, statement, plan, filters).limit(COMPARED_MAX + 1))
        return found[:COMPARED_MAX], len(found) <= COMPARED_MAX
    if plan.types == ():
        return [], True
    statement = statement.where(filters.table.visible, *filters.conditions())
    models = select(ModelRow.id, ModelRow.tensors).where(ModelRow.state == "visible")
    if filters.models is not None:
        models = models.where(filters.models.condition(ModelRow.id))
    if plan.types is not None:
        statement = statement.where(filters.table.type.in_(plan.types))
        for term in filters.fits:
            if (architectures := term.values("arch")) is not None:
                models = models.where(ModelRow.architecture.in_(sorted(architectures)))
            if (few := term.models(plan.types)) is not None:
                models = models.where(among(ModelRow.id, few))
    alike = likenesses(session, filters.base_id)
    kin = kin_of(session, filters.base_id)
    tensors = dict(session.execute(models).all())
    order = sorted(tensors, key=lambda model_id: (model_id not in kin, -alike.get(model_id, -1.0), -model_id))
    rows: list[ComparedRow] = []
    examined = 0
    for batch in batches_of_models(order, tensors, COMPARED_BATCH_TENSORS):
        if len(rows) > COMPARED_MAX or examined >= COMPARED_MODELS_TENSORS_MAX:
            return rows[:COMPARED_MAX], False
        examined += sum(tensors[model_id] for model_id in batch)
        of_models = by_index(statement.where(among(filters.table.model_id, batch)), filters.table, "model")
        rows += _read_compared(session, of_models.limit(COMPARED_MAX + 1 - len(rows)))
    return rows[:COMPARED_MAX], len(rows) <= COMPARED_MAX


def _select_compared(table: Any, columns: Sequence[Any] = ()) -> Any:
    """Return a SELECT of the members of ComparedRow."""
    number = Expert.expert if table is Expert else cast(null(), Integer)
    place = (table.tower, table.block, table.slot, number)
    statement = select(table.id, table.organ_id, table.model_id, *place, OrganRow.shape, Fingerprint.values, *columns)
    statement = statement.join(OrganRow, OrganRow.id == table.organ_id)
    return statement.outerjoin(Fingerprint, Fingerprint.organ_id == table.organ_id)


def _read_compared(session: Session, statement: Any) -> list[ComparedRow]:
    return [
        ComparedRow(row_id, organ_id, model_id, (tower, block, slot, number), shape, fingerprint, tuple(values))
        for row_id, organ_id, model_id, tower, block, slot, number, shape, fingerprint, *values in session.execute(
            statement
        )
    ]


def _organs_of_base(session: Session, filters: Filters, rows: Sequence[ComparedRow]) -> dict[Place, ComparedRow]:
    """Return the organs of the base by their places, at least those at the places of `rows`."""
    table, base_id = filters.table, filters.base_id
    statement = _select_compared(table).where(table.model_id == base_id).order_by(table.id)
    if table is Expert:  # a model has up to 70,000 experts
        blocks = sorted({block for _, block, _, _ in (row.place for row in rows) if block is not None})
        stacks = select(Placement.id).where(Placement.model_id == base_id)
        stacks = stacks.where(Placement.slot.in_(sorted({row.place[2] for row in rows})))
        stacks = stacks.where(or_(Placement.block.in_(blocks), Placement.block.is_(None)))
        stacks = by_index(stacks, Placement, "model")
        statement = statement.where(Expert.placement_id.in_(stacks))
        statement = statement.where(among(Expert.expert, sorted({row.place[3] or 0 for row in rows})))
    return {row.place: row for row in _read_compared(session, by_index(statement, table, "model"))}


def _likenesses_to_base(
    session: Session, base_id: int, own: Mapping[Place, ComparedRow], rows: Sequence[ComparedRow]
) -> list[float | None]:
    """Return the likeness of each row to the organ of the base at the same place.

    It is the correlation of two matrices of one shape, 1 for equal ones. An organ that cannot be compared (a vector, a
    constant, an organ without a fingerprint) has the measured likeness of the two models. The result is None if that
    was not measured, and if the base has no organ of the same shape at the place.
    """
    from organs.registry.similarity import paired_correlations  # imports numpy, which most searches do not need

    return _values_to_base(own, rows, likenesses(session, base_id) | {base_id: 1.0}, 1.0, paired_correlations)


def _values_to_base(
    own: Mapping[Place, ComparedRow],
    rows: Sequence[ComparedRow],
    models: Mapping[int, float],
    equal: float,
    values_of: Callable[[Sequence[tuple[bytes, bytes]]], Sequence[float | None]],
) -> list[float | None]:
    """Return a value of each row and the organ of `own` at the same place: `equal` if their bytes are the same.

    `values_of` computes it from pairs of fingerprints; organs that cannot be compared have the value of their model.
    """
    from organs.registry.similarity import is_constant

    varied = {
        place
        for place, organ in own.items()
        if sum(length > 1 for length in shape_of(organ.shape)) > 1
        and not (organ.fingerprint is not None and is_constant(organ.fingerprint))
    }
    values: list[float | None] = []
    pairs: dict[tuple[int, int], tuple[bytes, bytes]] = {}
    keys: list[tuple[int, int] | None] = []
    for row in rows:
        organ, key, value = own.get(row.place), None, None
        if organ is not None and organ.shape == row.shape:
            value = models.get(row.model_id)
            if row.place in varied:
                if organ.organ_id == row.organ_id:
                    value = equal
                elif organ.fingerprint is not None and row.fingerprint is not None:
                    key = (organ.organ_id, row.organ_id)
                    pairs[key] = (organ.fingerprint, row.fingerprint)
        values.append(value)
        keys.append(key)
    computed = dict(zip(pairs, values_of(list(pairs.values())), strict=True))
    return [
        value if key is None or (found := computed[key]) is None else found
        for value, key in zip(values, keys, strict=True)
    ]
