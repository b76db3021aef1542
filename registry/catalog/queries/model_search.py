"""Models by the query language: words, architecture, licence, contributor, means; in pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, case, false, func, or_, select, true, tuple_
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.bounds import number_condition
from organs.registry.catalog.queries.models import composed_among, is_composed
from organs.registry.catalog.queries.narrow import known_values, model_conditions, nonfinite_condition
from organs.registry.catalog.search import FoundModel, ModelsPage, Query, Sort
from organs.registry.catalog.search.cursor import Cursor, check_limit, cursor_text, parse_cursor
from organs.registry.catalog.search.fields import CHIMERA, PARTIAL
from organs.registry.catalog.tables import Model
from organs.registry.digest import Digest

_COLUMNS: dict[str, Any] = {
    "new": Model.id,  # ids are given in the order of registration
    "theta": Model.mean_theta,
    "signal": Model.mean_signal,
    "params": Model.parameters,
    "tensors": Model.tensors,
    "size": Model.size_bytes,
    "downloads": Model.downloads,
    "grafts": Model.grafts,
}


@dataclass(frozen=True, slots=True)
class ModelPage:
    """One page of models."""

    items: tuple[Model, ...]
    next: str | None
    notes: tuple[str, ...]
    composed: frozenset[int] = frozenset()
    """Ids of those that were composed here."""


def search_models(
    session: Session, query: Query, limit: int, after: str | None = None, *, ranked: bool = False
) -> ModelPage:
    """The next `limit` visible models that `query` finds behind `after`; those without the sort's value last.

    With `ranked` only what is compared in rankings: complete models, no adapters and no vocabularies. Raises BadQuery.
    """
    check_limit(limit)
    text = f"{'ranked ' if ranked else ''}{query}"
    notes: list[str] = []
    conditions = [*model_conditions(session, query, notes), *_choices(session, query, notes)]
    conditions += [nonfinite_condition(choice, Model.nonfinite_tensors) for choice in query.choices("nonfinite")]
    conditions += [number_condition(term, _COLUMNS[term.field]) for name in _COLUMNS for term in query.numbers(name)]
    conditions += [Model.complete.is_(true()), Model.kind == "model", ~is_composed()] if ranked else []
    statement = select(Model).where(Model.state == "visible", *conditions)
    column = _COLUMNS[query.sort.field]
    if after is not None:
        statement = _behind(statement, column, query.sort, parse_cursor(text, after))
    order = (column.desc(), Model.id.desc()) if query.sort.descending else (column, Model.id)
    rows = session.scalars(statement.order_by(column.is_(None), *order).limit(limit + 1)).all()
    shown = tuple(rows[:limit])
    place = Cursor(getattr(shown[-1], column.key), shown[-1].id) if len(rows) > limit else None
    composed = composed_among(session, [model.id for model in shown])
    return ModelPage(shown, cursor_text(text, place) if place else None, tuple(notes), composed)


def found_models(page: ModelPage) -> ModelsPage:
    """The page as plain values."""
    items = tuple(
        FoundModel(
            name=model.full_name,
            title=model.title,
            kind=shown_kind(model, page.composed),
            architecture=model.architecture,
            license=model.license,
            parameters=model.parameters,
            tensors=model.tensors,
            size_bytes=model.size_bytes,
            mean_theta=model.mean_theta,
            mean_signal=model.mean_signal,
            digest=Digest(model.digest),
            created_at=model.created_at,
            nonfinite_tensors=model.nonfinite_tensors,
        )
        for model in page.items
    )
    return ModelsPage(items, page.next, page.notes)


def shown_kind(model: Model, composed: frozenset[int]) -> str:
    """A model's kind as people are told it."""
    if not model.complete:
        return PARTIAL
    return CHIMERA if model.id in composed else model.kind


def _choices(session: Session, query: Query, notes: list[str]) -> Sequence[ColumnElement[bool]]:
    def shown(column: Any) -> Select[Any]:
        return select(column).where(Model.state == "visible")

    conditions: list[ColumnElement[bool]] = []
    kind = case((Model.complete.is_(false()), PARTIAL), (is_composed(), CHIMERA), else_=Model.kind)
    for name, column in (("kind", kind), ("arch", Model.architecture), ("license", Model.license)):
        for choice in query.choices(name):
            values = choice.values if name == "kind" else known_values(session, choice, shown(column), notes)
            stated: Any = func.coalesce(column, "")
            conditions.append(stated.not_in(values) if choice.negated else stated.in_(values))
    return conditions


def _behind(statement: Select[Model], column: Any, sort: Sort, after: Cursor) -> Select[Model]:
    step = Model.id < after.id if sort.descending else Model.id > after.id
    if after.value is None:
        return statement.where(column.is_(None), step)
    here, there = tuple_(column, Model.id), tuple_(after.value, after.id)
    return statement.where(or_(here < there if sort.descending else here > there, column.is_(None)))
