"""Search: a page of organs, with facets and a histogram of θ that narrow it."""

from __future__ import annotations

from dataclasses import asdict, fields

from flask import g, request, url_for

from organs.registry.anatomy import EXAMPLE_SLOTS
from organs.registry.catalog.bins import BIN_DEGREES, THETA_MAX_DEGREES
from organs.registry.catalog.search import ORGANS, FacetCounts, FoundOrgan, Query, SearchPage
from organs.registry.catalog.search.refine import bounded, has_choice, short_text, sorted_by, toggled_texts, without
from organs.registry.errors import BadQuery
from organs.registry.present.meanings import MEANINGS
from organs.registry.present.search import search_values
from organs.registry.present.values import Values
from organs.web.answers import Page, Sheet, paged, plain_page, registry, settings
from organs.web.asked import asked_after, asked_limit, asked_query
from organs.web.links import query_address, with_parameters
from organs.web.pages.blueprint import pages

FACETS = {"type": "type", "slot": "slot", "dtype": "format", "arch": "architecture", "license": "licence"}
"""Field and heading, in the order in which they are shown."""
FACET_VALUES_OPEN = 8
"""Values of a facet that are shown at once; the others unfold."""
SORTS = {"theta": "θ", "spectral": "spectral", "rank": "stable rank", "z": "|Z|", "size": "size"}
EXAMPLES = (
    "type:organ sort:-spectral",
    f"slot:{EXAMPLE_SLOTS[1]} theta>=35",
    "type:skeleton block:0-3",
    "unique:organ sort:size",
)


@paged(pages, "/organs", csv=True)
def organs() -> Page:
    """What the query in `q` finds; `after` and `limit` page through it."""
    try:
        query, limit, after = asked_query(ORGANS), asked_limit(), asked_after()
        told = settings()
        found, counts = registry().search_page(
            query, limit=limit, after=after, search_seconds=told.search_seconds, counts_seconds=told.counts_seconds
        )
    except BadQuery as error:
        if not plain_page():
            raise
        return _refused(error)
    g.unkept = counts is not None and counts.hurried  # the next one who asks may have more luck
    values = {"query": str(query)} | search_values(found, counts)
    return Page(
        "organs.html",
        values,
        extra=lambda: _links(query, found, counts),
        sheet=lambda: _sheet(found),
        next=found.next,
    )


def _refused(error: BadQuery) -> Page:
    """The page with the query as it was typed, and what is wrong with it."""
    typed = request.args.get("q", "")
    extra = {"text": typed, "problem": str(error), "examples": _examples(), "facets_shown": [], "bars": [], "terms": []}
    return Page("organs.html", {"items": [], "notes": [], "next": None}, extra=lambda: extra, status=400)


def _links(query: Query, found: SearchPage, counts: FacetCounts | None) -> Values:
    following = found.next and query_address(
        "pages.organs", query, after=found.next, limit=request.args.get("limit", "")
    )
    return {
        "text": short_text(query),
        "terms": [_term_link(query, part) for part in (*query.terms, *query.words)]
        + [_term_link(query, f"-{word}") for word in query.excluded_words],
        "facets_shown": [_facet(query, name, counts) for name in FACETS] if counts else [],
        "bars": _bars(query, counts) if counts else [],
        "heads": {name: _head(query, name) for name in SORTS},
        "following": following,
        "first": query_address("pages.organs", query) if request.args.get("after") else None,
        "examples": _examples(),
        "csv": query_address("pages.organs_csv", query, limit="1000"),
        "is_alike": query.like is not None,
    }


def _term_link(query: Query, part: object) -> Values:
    return {"text": str(part), "address": query_address("pages.organs", without(query, part))}


def _facet(query: Query, name: str, counts: FacetCounts) -> Values:
    counted = counts.fields.get(name, {})
    path = url_for("pages.organs")
    texts = toggled_texts(query, name, counted)
    values = [
        {
            "value": value,
            "count": count,
            "chosen": has_choice(query, name, value),
            "address": with_parameters(path, {"q": texts[value]}),
        }
        for value, count in counted.items()
    ]
    return {
        "name": name,
        "heading": FACETS[name],
        "open": values[:FACET_VALUES_OPEN],
        "more": values[FACET_VALUES_OPEN:],
    }


def _bars(query: Query, counts: FacetCounts) -> list[Values]:
    """A bar for each bin of θ, those that the query leaves out paler."""
    most = max((count for lower, count in counts.theta.items() if lower is not None), default=0)
    low, high = _theta_bounds(query)
    bars = []
    for lower in range(0, THETA_MAX_DEGREES, BIN_DEGREES):
        count = counts.theta.get(lower, 0)
        upper = lower + BIN_DEGREES
        chosen = low == lower and high == (upper if upper < THETA_MAX_DEGREES else None)
        bounds = (None, None) if chosen else (float(lower), float(upper) if upper < THETA_MAX_DEGREES else None)
        bars.append(
            {
                "lower": lower,
                "upper": upper,
                "count": count,
                "height": count / most if most else 0.0,
                "chosen": chosen,
                "out": (low is not None and upper <= low) or (high is not None and lower >= high),
                "address": query_address("pages.organs", bounded(query, "theta", *bounds)),
            }
        )
    return bars


def _theta_bounds(query: Query) -> tuple[float | None, float | None]:
    """What single bounds on θ leave; a query with lists of ranges shows none."""
    low: float | None = None
    high: float | None = None
    for term in query.numbers("theta"):
        if len(term.intervals) == 1 and not term.negated:
            (interval,) = term.intervals
            low = interval.low if interval.low is not None else low
            high = interval.high if interval.high is not None else high
    return low, high


def _head(query: Query, name: str) -> Values:
    chosen = query.like is None and query.sort.field == name
    order = ("descending" if query.sort.descending else "ascending") if chosen else None
    meaning = next((MEANINGS[key].what for key in _MEANT.get(name, ()) if key in MEANINGS), "")
    return {
        "label": SORTS[name],
        "order": order,
        "meaning": meaning,
        "address": query_address("pages.organs", sorted_by(query, name)),
    }


def _examples() -> list[Values]:
    return [{"text": text, "address": url_for("pages.organs", q=text)} for text in EXAMPLES]


def _sheet(found: SearchPage) -> Sheet:
    keys = [field.name for field in fields(FoundOrgan)]
    rows = [{**asdict(organ), "shape": "x".join(map(str, organ.shape))} for organ in found]
    return Sheet(keys, [[row[key] for key in keys] for row in rows])


_MEANT = {
    "theta": ("theta",),
    "spectral": ("spectral_signal",),
    "rank": ("stable_rank",),
    "z": ("magnitude",),
    "size": ("size_bytes",),
}
