"""Searches of models: pages of all matches, and pages with the quantisations of a model folded into one line."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import case, false, func, literal, select, true, tuple_
from sqlalchemy.orm import Session

from organs.registry.catalog.cursor import PageEnd, check_limit, cursor_text, next_cursor, parse_cursor
from organs.registry.catalog.queries.chimeras import is_composed
from organs.registry.catalog.queries.model_lists import model_summaries
from organs.registry.catalog.queries.model_names import incomplete_models
from organs.registry.catalog.queries.relatives import changes_from, likeness_to
from organs.registry.catalog.rows import batches
from organs.registry.catalog.tables import ModelRow
from organs.registry.catalog.vocabulary import CHIMERA, PARTIAL
from organs.registry.entities.model import FoldedModel, FoldedModelPage, ModelPage, ModelSummary, Quantisation
from organs.registry.search.filters import Names, nonfinite_condition, number_condition
from organs.registry.search.gains import GainFilter, gains_of_models
from organs.registry.search.language import GAIN, LIKENESS, MADE_FROM, QUANT, TAG, Query, Sort
from organs.registry.search.rows import page_of

_COLUMNS: dict[str, Any] = {
    "new": ModelRow.id,  # ids follow the order of registration
    "theta": ModelRow.mean_theta,
    "signal": ModelRow.mean_signal,
    "params": ModelRow.parameters,
    "tensors": ModelRow.tensors,
    "size": ModelRow.size_bytes,
    "downloads": ModelRow.downloads,
    "grafts": ModelRow.grafts,
}


@dataclass(frozen=True, slots=True)
class ModelMatches:
    """A resolved query for models: all matches, without an order."""

    text: str
    """The text of the query in cursors."""
    statement: Any
    """A SELECT of model, sort value, and likeness to the base."""
    column: Any
    """The sort value."""
    sort: Sort
    gains: GainFilter | None
    is_filtered: bool
    notes: tuple[str, ...]
    base_id: int | None = None

    def rows(self, session: Session, limit: int, after: PageEnd | None = None) -> list[Any]:
        """Return the next `limit` rows after the cursor. Models without a sort value come last."""
        return list(session.execute(page_of(self.statement, self.column, ModelRow.id, self.sort, after, limit)).all())

    def summaries(self, session: Session, rows: Sequence[Any]) -> tuple[ModelSummary, ...]:
        """Return `rows` as lines of a list."""
        models = [model for model, _, _ in rows]
        return model_summaries(
            session,
            models,
            likeness={model.id: alike for model, _, alike in rows},
            changes={} if self.base_id is None else changes_from(session, self.base_id) | {self.base_id: 0.0},
            gains={} if self.gains is None else gains_of_models(session, self.gains, [model.id for model in models]),
        )


def match_models(session: Session, query: Query, *, ranked: bool = False) -> ModelMatches:
    """Resolve a query for visible models; `ranked` as in `search_models`."""
    names = Names(session, [])
    base_id = names.base_id(query)
    likeness: Any = literal(None) if base_id is None else likeness_to(base_id)
    gains = names.gains(query, base_id)
    gained = None if gains is None else gains.models()
    numbers = {**_COLUMNS, LIKENESS: likeness, GAIN: literal(None) if gained is None else gained.c.percent}
    conditions = names.model_conditions(query)
    kind = case((ModelRow.complete.is_(false()), PARTIAL), (is_composed(), CHIMERA), else_=ModelRow.kind)
    texts: dict[str, Any] = {"arch": ModelRow.architecture, "license": ModelRow.license, QUANT: ModelRow.quantisation}
    for name, column in {"kind": kind, **texts}.items():
        for choice in query.choices(name):
            values = choice.values
            if name != "kind":
                values = names.values(choice, select(column).where(ModelRow.state == "visible"))
            text: Any = func.coalesce(column, "")
            conditions.append(text.not_in(values) if choice.negated else text.in_(values))
    conditions += [names.tag_condition(choice) for choice in query.choices(TAG)]
    conditions += [names.made_from_condition(choice) for choice in query.choices(MADE_FROM)]
    conditions += [nonfinite_condition(choice, ModelRow.nonfinite_tensors) for choice in query.choices("nonfinite")]
    conditions += [number_condition(term, numbers[term.field]) for name in numbers for term in query.numbers(name)]
    conditions += [ModelRow.complete.is_(true()), ModelRow.kind == "model", ~is_composed()] if ranked else []
    if gains is not None and gains.needs_gain:
        conditions.append(numbers[GAIN].is_not(None))
    statement = select(ModelRow, numbers[query.sort.field], likeness).where(ModelRow.state == "visible", *conditions)
    if gained is not None:
        statement = statement.outerjoin(gained, gained.c.id == ModelRow.id)
    return ModelMatches(
        text=f"{'ranked ' if ranked else ''}{query}",
        statement=statement,
        column=numbers[query.sort.field],
        sort=query.sort,
        gains=gains,
        is_filtered=bool(conditions),
        notes=tuple(names.notes),
        base_id=base_id,
    )


def search_models(
    session: Session, query: Query, limit: int, after: str | None = None, *, ranked: bool = False
) -> ModelPage:
    """Return the next `limit` visible models of `query` after the cursor `after`. Those without a sort value come last.

    With `ranked`, only complete models are returned, without adapters, vocabularies and chimeras. The first page of all
    models has a note for each of the newest incomplete models. Raises BadQuery.
    """
    check_limit(limit)
    matches = match_models(session, query, ranked=ranked)
    rows = matches.rows(session, limit + 1, None if after is None else parse_cursor(matches.text, after))
    page = rows[:limit]
    notes = matches.notes
    if not (after or ranked or matches.is_filtered):
        notes += tuple(map(str, incomplete_models(session)))
    return ModelPage(
        items=matches.summaries(session, page),
        next=next_cursor(matches.text, [(value, model.id) for model, value, _ in rows], limit),
        notes=notes,
    )


FOLDED_ROWS_MAX = 4000
"""The most models that are read for a page of folded models."""
FOLDED_SHOWN = 40
"""The most quantisations and versions that are listed with a model."""
TAGS_SHOWN = 8
"""The most tags of a model in a list."""


def folded_models(session: Session, query: Query, limit: int, after: str | None = None) -> FoldedModelPage:
    """Return the next `limit` models of `query` as `search_models` does, with quantisations and versions folded.

    The models of a namespace whose names differ only in their quantisation are one item, at the place of the first.
    A page is shorter if `FOLDED_ROWS_MAX` models have been read for it. Raises BadQuery.
    """
    check_limit(limit)
    matches = match_models(session, query)
    cursor = None if after is None else parse_cursor(matches.text, after)
    firsts: list[Any] = []
    groups: dict[tuple[str, str], list[Any]] = {}
    examined, is_complete = 0, False
    while len(firsts) <= limit and examined < FOLDED_ROWS_MAX and not is_complete:
        rows = matches.rows(session, 2 * limit + 1, cursor)
        is_complete = len(rows) <= 2 * limit
        examined += len(rows)
        groups |= _same_models(session, matches, {_stem_key(row) for row in rows} - groups.keys())
        firsts += [row for row in rows if groups[_stem_key(row)][0][0].id == row[0].id]
        cursor = PageEnd(rows[-1][1], rows[-1][0].id) if rows else None
    page = firsts[:limit]
    if len(firsts) > limit:
        cursor = PageEnd(page[-1][1], page[-1][0].id)
    elif is_complete:
        cursor = None
    shown = {row[0].id: row for first in page for row in groups[_stem_key(first)][: FOLDED_SHOWN + 1]}
    by_id = dict(zip(shown, matches.summaries(session, list(shown.values())), strict=True))
    items = []
    for first, _, _ in page:
        others = [model for model, _, _ in groups[first.namespace, first.stem][1:]]
        quantisations = [
            Quantisation(model=by_id[other.id], label=_label(other, is_version=other.name == first.name))
            for other in sorted(others[:FOLDED_SHOWN], key=lambda model: (model.size_bytes, model.id))
        ]
        item = FoldedModel(
            model=by_id[first.id],
            title=first.stem,
            tags=first.tags[:TAGS_SHOWN],
            others=tuple(quantisations),
            label=_label(first, is_version=False),
            left_out=max(0, len(others) - FOLDED_SHOWN),
        )
        items.append(item)
    notes = matches.notes
    if after is None and not matches.is_filtered:
        notes += tuple(map(str, incomplete_models(session)))
    return FoldedModelPage(items=tuple(items), next=cursor_text(matches.text, cursor) if cursor else None, notes=notes)


def _stem_key(row: Any) -> tuple[str, str]:
    return row[0].namespace, row[0].stem


def _same_models(
    session: Session, matches: ModelMatches, keys: Collection[tuple[str, str]]
) -> dict[tuple[str, str], list[Any]]:
    """Return the matches with the namespaces and stems `keys`, in the order of the query."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for batch in batches(sorted(keys)):
        conditions = tuple_(ModelRow.namespace, ModelRow.stem).in_(batch)
        for row in replace(matches, statement=matches.statement.where(conditions)).rows(session, FOLDED_ROWS_MAX):
            groups.setdefault(_stem_key(row), []).append(row)
    return groups


def _label(model: ModelRow, *, is_version: bool) -> str:
    """Return the quantisation or the version, which tells `model` from others with the same stem."""
    return f"version {model.version}" if is_version else model.quantisation or "no quantisation"
