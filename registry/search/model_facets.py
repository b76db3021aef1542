"""Counts of models by facet: how many models each filter of a list would leave.

The values of all visible models are kept in memory until the catalog changes, so a count reads no more than ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.cache import cached
from organs.registry.catalog.queries.model_lists import is_composed
from organs.registry.catalog.tables import Contributor, Lineage, Model, ModelTag
from organs.registry.catalog.vocabulary import CHIMERA, PARTIAL, REACHABLE_STATES
from organs.registry.entities.organ import FacetCounts
from organs.registry.search.language import ABSENT, MADE_FROM, QUANT, TAG, Query
from organs.registry.search.rows import match_models

MODEL_FACETS = ("kind", "arch", "license", QUANT, MADE_FROM, TAG, "by")
"""The fields that are counted by value."""
SIZES = (0, 100_000_000, 1_000_000_000, 4_000_000_000, 10_000_000_000, 40_000_000_000)
"""The lower bounds of the classes of models by their number of parameters."""
PARAMS = "params"
COUNTED_MAX = 20_000
"""The most models that are counted, the newest. Their values take about 400 bytes each."""
VALUES_MAX = 60
"""The most values of one field in the counts: those with the largest counts."""
MULTIPLE = frozenset({TAG, MADE_FROM})
"""Fields of which a model can have several values."""


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of visible models, by model and field."""

    by_field: Mapping[str, Mapping[int, Sequence[str]]]
    parameters: Mapping[int, int]
    is_complete: bool
    """Whether these are all visible models."""

    @property
    def ids(self) -> Collection[int]:
        return self.parameters.keys()


def model_counts(session: Session, query: Query) -> FacetCounts:
    """Return how many models of `query` have each value of each facet; classes of size are counted as `params`.

    The counts of a field ignore the filters on that field. They are exact for up to COUNTED_MAX models; with more
    models, only the newest are counted.
    """
    key = ("model counts", frozenset(query.terms), query.words, query.excluded_words, query.mentions_gains)
    return cached(session, key, lambda: _count(session, query))


def size_class(parameters: int) -> int:
    """Return the lower bound of the class of a model with this number of parameters."""
    return max(lower for lower in SIZES if lower <= parameters)


def _count(session: Session, query: Query) -> FacetCounts:
    values = cached(session, "values of models", lambda: _read(session))
    own = [term for term in query.terms if term.field in MODEL_FACETS or term.field == PARAMS]
    others = replace(query, terms=tuple(term for term in query.terms if term not in own))
    remaining = set(values.ids)
    if others.terms or others.words or others.excluded_words or others.mentions_gains:
        remaining &= _ids(session, others)
    matching = {term: _ids(session, _only(query, term)) for term in own}
    fields = {}
    for name in (*MODEL_FACETS, PARAMS):
        ids = remaining.intersection(*(found for term, found in matching.items() if term.field != name))
        fields[name] = _by_size(values, ids) if name == PARAMS else _by_value(values.by_field[name], ids)
    return FacetCounts(
        total=len(remaining.intersection(*matching.values())),
        fields=fields,
        theta=(),
        exact=values.is_complete,
        uncounted=(),
        hurried=False,
    )


def _only(query: Query, term: object) -> Query:
    """Return a query with the single term `term`."""
    only = tuple(own for own in query.terms if own is term)
    return replace(query, terms=only, words=(), excluded_words=(), base=None, sort=replace(query.sort, field="new"))


def _ids(session: Session, query: Query) -> set[int]:
    statement = match_models(session, query).statement.with_only_columns(Model.id).order_by(Model.id.desc())
    return set(session.scalars(statement.limit(COUNTED_MAX + 1)))


def _by_size(values: _Values, ids: Collection[int]) -> dict[str, int]:
    counts = Counter(size_class(values.parameters[model_id]) for model_id in ids)
    return {str(lower): counts[lower] for lower in SIZES if counts[lower]}


def _by_value(values: Mapping[int, Sequence[str]], ids: Collection[int]) -> dict[str, int]:
    """Return the counts by value, the largest first; models without a value come last, as `none`.

    Values that differ only in case count as one, because queries ignore case.
    """
    counts: Counter[str] = Counter()
    spellings: dict[str, str] = {}
    for model_id in sorted(ids):
        folded = {value.casefold(): value for value in values.get(model_id) or (ABSENT,)}
        counts.update(folded.keys())
        for key, value in folded.items():
            spellings.setdefault(key, value)
    ordered = sorted(counts.items(), key=lambda item: (item[0] == ABSENT, -item[1], item[0]))
    return {spellings[key]: count for key, count in ordered[:VALUES_MAX]}


def _read(session: Session) -> _Values:
    columns = (Model.id, Model.kind, Model.complete, Model.architecture, Model.license, Model.quantisation)
    statement = select(*columns, Contributor.name, is_composed(), Model.parameters)
    statement = statement.join(Contributor, Contributor.id == Model.contributor_id)
    statement = statement.where(Model.state == "visible").order_by(Model.id.desc()).limit(COUNTED_MAX + 1)
    rows = session.execute(statement).all()
    by_field: dict[str, dict[int, Sequence[str]]] = {name: {} for name in MODEL_FACETS}
    for model_id, kind, complete, architecture, license_, quantisation, contributor, composed, _ in rows[:COUNTED_MAX]:
        shown_kind = PARTIAL if not complete else CHIMERA if composed else kind
        values = (shown_kind, architecture, license_, quantisation, contributor)
        for name, value in zip(("kind", "arch", "license", QUANT, "by"), values, strict=True):
            by_field[name][model_id] = (value,) if value else ()
    least = min((row[0] for row in rows), default=0)
    by_field[TAG], by_field[MADE_FROM] = _tags(session, least), _parents(session, least)
    return _Values(by_field, {row[0]: row[-1] for row in rows[:COUNTED_MAX]}, len(rows) <= COUNTED_MAX)


def _tags(session: Session, least: int) -> dict[int, Sequence[str]]:
    tags: dict[int, list[str]] = {}
    for model_id, tag in session.execute(select(ModelTag.model_id, ModelTag.tag).where(ModelTag.model_id >= least)):
        tags.setdefault(model_id, []).append(tag)
    return dict(tags)


def _parents(session: Session, least: int) -> dict[int, Sequence[str]]:
    """Return the names, without versions, of the models that each model was made from."""
    parent = aliased(Model)
    statement = select(Lineage.child_model_id, parent.namespace, parent.name).distinct()
    statement = statement.join(parent, parent.id == Lineage.parent_model_id)
    statement = statement.where(Lineage.child_model_id >= least, Lineage.evidence != "measured")
    parents: dict[int, list[str]] = {}
    for child, namespace, name in session.execute(statement.where(parent.state.in_(REACHABLE_STATES))):
        parents.setdefault(child or 0, []).append(f"{namespace}/{name}")
    return dict(parents)
