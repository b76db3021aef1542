"""A query made narrower, wider or sorted otherwise: what a click on a facet, a bar or a column's head means. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from organs.registry.catalog.search.fields import ORGANS, Vocabulary
from organs.registry.catalog.search.terms import Choice, Interval, Numbers, Query, Sort


def short_text(query: Query, vocabulary: Vocabulary = ORGANS) -> str:
    """The query's text as people would type it: without the sort that it would have anyway."""
    return query.text(unless_sorted=vocabulary.default_sort)


def toggled_texts(query: Query, field: str, values: Iterable[str], vocabulary: Vocabulary = ORGANS) -> dict[str, str]:
    """By value the short text of the query with it among the choices of `field`, or without where it stands already."""
    chosen = [one for term in query.choices(field) if not term.negated for one in term.values]
    terms = [str(term) for term in query.terms if not _chooses(term, field)]
    behind = query.behind_terms(vocabulary.default_sort)
    found = {}
    for value in values:
        left = [one for one in chosen if one.casefold() != value.casefold()]
        kept = left if len(left) < len(chosen) else [*chosen, value]
        choice = [str(Choice(field, tuple(kept)))] if kept else []
        found[value] = " ".join([*sorted([*terms, *choice]), *behind])
    return found


def has_choice(query: Query, field: str, value: str) -> bool:
    """Whether `value` is among what the query chooses in `field`."""
    chosen = {one.casefold() for term in query.choices(field) if not term.negated for one in term.values}
    return value.casefold() in chosen


def bounded(query: Query, field: str, low: float | None, high: float | None) -> Query:
    """With the number `field` from `low` up to but without `high`, instead of all that was said of it."""
    terms = [term for term in query.terms if term.field != field]
    if low is not None:
        terms.append(Numbers(field, (Interval(low),)))
    if high is not None:
        terms.append(Numbers(field, (Interval(high=high, high_open=True),)))
    return replace(query, terms=tuple(terms))


def without(query: Query, part: object) -> Query:
    """Without the term `part`, or without the word that it is."""
    return replace(
        query,
        terms=tuple(term for term in query.terms if term != part),
        words=tuple(word for word in query.words if word != part),
        excluded_words=tuple(word for word in query.excluded_words if f"-{word}" != part),
    )


def sorted_by(query: Query, field: str) -> Query:
    """Sorted by `field`, the largest first; the other way round where it is so already."""
    descending = not (query.sort.field == field and query.sort.descending)
    return replace(query, sort=Sort(field, descending), like=None)


def _chooses(term: object, field: str) -> bool:
    return isinstance(term, Choice) and term.field == field and not term.negated
