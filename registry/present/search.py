"""Searches as plain values."""

from __future__ import annotations

from dataclasses import fields

from organs.registry.catalog.search import FacetCounts, FoundOrgan, SearchPage
from organs.registry.present.values import Values


def search_values(page: SearchPage, counts: FacetCounts | None = None) -> Values:
    """A page of organs, with the counts beside it if they were asked for."""
    items = [{name: getattr(organ, name) for name in _FIELDS} | {"shape": list(organ.shape)} for organ in page.items]
    values: Values = {"items": items, "next": page.next, "notes": list(page.notes)}
    return values if counts is None else values | {"facets": facet_values(counts)}


def facet_values(counts: FacetCounts) -> Values:
    """Counts by field; the bins of θ as a list of lower edge and count, null for what has no θ."""
    return {
        "total": counts.total,
        "exact": counts.exact,
        "uncounted": list(counts.uncounted),
        "hurried": counts.hurried,
        **{name: dict(values) for name, values in counts.fields.items()},
        "theta": [{"from": lower, "count": count} for lower, count in counts.theta.items()],
    }


_FIELDS = tuple(field.name for field in fields(FoundOrgan))
"""`dataclasses.asdict` would copy every value, which took longer than the search."""
