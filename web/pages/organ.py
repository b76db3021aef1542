"""Organs: the search with facets and a histogram of θ, and the page of one organ."""

from __future__ import annotations

from dataclasses import asdict, fields

from flask import g, request, url_for

from organs.registry.anatomy import EXAMPLE_SLOTS
from organs.registry.catalog.queries.search import search_organs
from organs.registry.catalog.search import ORGANS, FacetCounts, FoundOrgan, Query, SearchPage, parse_query
from organs.registry.catalog.search.parse import (
    bounded,
    has_choice,
    short_text,
    sorted_by,
    toggled_texts,
    without,
)
from organs.registry.catalog.vocabulary import (
    BIN_DEGREES,
    THETA_MAX_DEGREES,
)
from organs.registry.errors import BadQuery, NotFound, TooSlow
from organs.registry.gguf import dtype_by_name
from organs.registry.gguf.quants import can_dequantize
from organs.registry.present.meanings import MEANINGS, theta_ingredients, theta_sentence
from organs.registry.present.organs import organ_page
from organs.registry.present.search import search_values
from organs.registry.present.values import Values
from organs.web.links import query_address, with_parameters
from organs.web.pages.blueprint import pages
from organs.web.pages.charts import weights_shown
from organs.web.pages.compose import graft_address
from organs.web.params import (
    asked_after,
    asked_limit,
    asked_query,
)
from organs.web.render import caution_of
from organs.web.responses import (
    Page,
    Sheet,
    paged,
    plain_page,
    reading,
    registry,
    settings,
)

ALIKE_SHOWN = 8
FORMS = {"raw": "plain bytes (.raw)", "bin": "with its name and shape (.bin)", "npy": "as float32 for NumPy (.npy)"}
"""What an organ can be downloaded as."""


@paged(pages, "/organs/<digest>")
def organ(digest: str) -> Page:
    """The organ whose digest begins with `digest`."""
    with reading(settings().search_seconds) as session:
        values = organ_page(session, digest, visible=True)
    values |= _alike(values["digest"])
    return Page("organ.html", values, extra=lambda: _explained(values))


def _alike(digest: str) -> Values:
    """The organs of the same slot and shape whose weights are most alike, itself left out."""
    try:
        with reading(settings().counts_seconds) as session:
            page = search_organs(session, parse_query(f"like:{digest} unique:organ"), ALIKE_SHOWN + 1)
    except BadQuery:
        return {"alike": [], "alike_note": "It has too few values to be compared with others."}
    except NotFound:
        return {"alike": [], "alike_note": None}
    except TooSlow:
        g.unkept = True  # the next one who asks may have more luck
        return {"alike": [], "alike_note": "Not looked for: there are too many to compare at once."}
    others = [item for item in search_values(page)["items"] if item["digest"] != digest][:ALIKE_SHOWN]
    return {"alike": others, "alike_note": None if others else "No other organ of its slot and shape is here."}


def _explained(values: Values) -> Values:
    readings = {name: value for one in values["measurements"] for name, value in one.items() if name in MEANINGS}
    first: Values = next((one for one in values["measurements"] if one.get("theta") is not None), {})
    return {
        "readings": [
            {"name": name, "value": readings[name], "meaning": meaning}
            for name, meaning in MEANINGS.items()
            if name in readings
        ],
        "ingredients": theta_ingredients(first),
        "made_of": theta_sentence(first),
        "warning": caution_of(values) if first else "",
        "likeness_meaning": MEANINGS["likeness"],
        "graft": next(filter(None, map(graft_address, values["places"])), None),
        "weights": weights_shown(values["digest"], values["dtype"], values["shape"]),
        "downloads": [
            {"label": label, "address": url_for("downloads.organ", digest=values["digest"], form=form)}
            for form, label in FORMS.items()
            if form != "npy" or can_dequantize(dtype_by_name(values["dtype"]))
        ],
    }


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
