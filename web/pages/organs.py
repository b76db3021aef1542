"""Organs: the search with its columns, filters and histogram of θ, and the page of one organ."""

from __future__ import annotations

from flask import g, request, url_for
from msgspec import structs

from organs.registry.amounts import share_text
from organs.registry.anatomy import EXAMPLE_SLOTS, OrganType, type_name
from organs.registry.catalog.queries.organs import organ_detail
from organs.registry.catalog.vocabulary import BIN_DEGREES, THETA_MAX_DEGREES
from organs.registry.columns import for_people
from organs.registry.endpoints import organs as endpoints
from organs.registry.entities.organ import (
    COLUMNS,
    LIKENESS_TO_ORGAN,
    FacetCounts,
    Organ,
    OrganMeasurement,
    OrganPage,
    PlacedOrgan,
)
from organs.registry.errors import BadQuery, NotFound, TooSlow
from organs.registry.gguf import dtype_by_name
from organs.registry.gguf.quants import can_dequantize
from organs.registry.measures import MEASURES, THETA_SCORES
from organs.registry.search.language import ORGANS, Query, bounded, parse_query, short_text
from organs.registry.search.rows import search_organs
from organs.web.api.organs import searched_organs
from organs.web.pages.charts import weights_shown
from organs.web.pages.lists import (
    choice_filter,
    examples,
    list_address,
    query_context,
    saved_context,
)
from organs.web.pages.routes import Context, WebPage, paged, sheet_of
from organs.web.pages.steps import graft_address
from organs.web.params import requested
from organs.web.permissions import may_see_storage
from organs.web.render import caution_of
from organs.web.responses import plain_page, reading, searching, settings

FILTERS = {"type": "type", "slot": "slot", "dtype": "tensor type", "arch": "architecture", "license": "license"}
"""Headings of the filters beside the table, by field of queries, in their order."""
ENDPOINT = "pages.organs"
NORM = OrganType.NORM.value
FOLDED_SORTS = {
    kind.value: "-spectral" if kind in (OrganType.SKELETON, OrganType.EMBED) else "-theta"
    for kind in (OrganType.SKELETON, OrganType.EMBED, OrganType.NORM, OrganType.ADAPTER, OrganType.OTHER)
}
"""The types that the list leaves out when it begins, and the order of each. Vectors have no spectral signal."""
EXAMPLES = (
    "type:organ sort:-spectral",
    f"slot:{EXAMPLE_SLOTS[1]} theta>=35",
    "type:skeleton block:0-3",
    "unique:organ sort:size",
)

FOLDED = ("digest", "model", "dtype", "shape")
"""Columns that are in another one here."""


@paged("/organs", csv=True, api="organs")
def organs() -> WebPage:
    """Show the results of the query in `q`; `after` and `limit` page through them.

    Without `q`, the page begins with the feed-forward organs and folds the other types.
    """
    try:
        begins = "q" not in request.args and plain_page()
        values = requested(endpoints.organs, "q", "limit", "after")
        query = parse_query(ORGANS.start if begins else values["q"], ORGANS)
        page, counts = searched_organs(query, values["limit"], values["after"])
    except BadQuery as error:
        if not plain_page():
            raise
        context: Context = {"items": [], "notes": [], "filters": [], "bars": [], "terms": []}
        context |= saved_context() | {
            "text": request.args.get("q", ""),
            "problem": str(error),
            "examples": examples(ENDPOINT, EXAMPLES),
        }
        return WebPage("organs.html", context, status=400)
    return WebPage(
        "organs.html",
        lambda: _list_context(query, page, counts) | {"begins": begins, "facets": counts},
        sheet=lambda: sheet_of(COLUMNS, page),
        next=page.next,
    )


def _list_context(query: Query, page: OrganPage, counts: FacetCounts | None) -> Context:
    by_type = counts.fields.get("type", {}) if counts else {}
    filters = [
        choice_filter(ENDPOINT, query, name, title, counts.fields.get(name, {}), label=type_name)
        for name, title in FILTERS.items()
        if counts
    ]
    folded = [
        {"type": kind, "count": by_type[kind], "address": url_for(ENDPOINT, q=f"type:{kind} sort:{sort}")}
        for kind, sort in FOLDED_SORTS.items()
        if by_type.get(kind) and "q" not in request.args
    ]
    norms, without_norms = by_type.get(NORM, 0), None
    if not query.choices("type") and 0 < norms < sum(by_type.values()):
        others = parse_query(f"{short_text(query)} -type:{NORM}")
        without_norms = {"count": norms, "address": list_address(ENDPOINT, others)}
    limit, after = request.args.get("limit", ""), request.args.get("after", "")
    columns = [column for column in for_people(COLUMNS, page.items, query.wanted()) if column.name not in FOLDED]
    columns.sort(key=lambda column: column.name != "name")
    return query_context(ENDPOINT, query, columns, page) | {
        "filters": filters,
        "bars": _bars(query, counts) if counts else [],
        "examples": examples(ENDPOINT, EXAMPLES),
        "twin": list_address("pages.organs_json", query, limit=limit, after=after),
        "folded": folded,
        "without_norms": without_norms,
    }


def _bars(query: Query, counts: FacetCounts) -> list[Context]:
    """Return a bar for each interval of θ. Bars outside the query are paler."""
    low: float | None = None
    high: float | None = None
    for term in query.numbers("theta"):
        if len(term.ranges) == 1 and not term.negated:
            (interval,) = term.ranges
            low = interval.low if interval.low is not None else low
            high = interval.high if interval.high is not None else high
    by_bin = counts.theta_counts
    count_max = max((count for lower, count in by_bin.items() if lower is not None), default=0)
    bars = []
    for lower in range(0, THETA_MAX_DEGREES, BIN_DEGREES):
        count, upper = by_bin.get(lower, 0), lower + BIN_DEGREES
        end = float(upper) if upper < THETA_MAX_DEGREES else None
        is_chosen = low == lower and high == end
        bounds = (None, None) if is_chosen else (float(lower), end)
        bars.append(
            {
                "lower": lower,
                "upper": upper,
                "count": count,
                "height": count / count_max if count_max else 0.0,
                "chosen": is_chosen,
                "out": (low is not None and upper <= low) or (high is not None and lower >= high),
                "address": list_address(ENDPOINT, bounded(query, "theta", *bounds)),
            }
        )
    return bars


ALIKE_SHOWN = 8
FORMS = {"raw": "plain bytes (.raw)", "bin": "with name and shape (.bin)", "npy": "float32 for NumPy (.npy)"}
"""File formats for the download of an organ."""


@paged("/organs/<digest>", api="organ")
def organ(digest: str) -> WebPage:
    """Show the organ whose digest begins with `digest`."""
    with searching() as session:
        detail = organ_detail(session, digest, visible=True, shows_storage=may_see_storage())
    return WebPage("organ.html", structs.asdict(detail) | _similar_organs(detail) | _measurement_context(detail))


def _similar_organs(organ: Organ) -> Context:
    """Return the most similar organs of the same slot and shape; for an expert, the most similar experts."""
    is_expert = any(place.expert is not None for place in organ.places[:1])
    query = f"like:{organ.digest[:16]}{' expert>=0' if is_expert else ''}"
    alike: list[PlacedOrgan] = []
    note: str | None = None
    try:
        with reading(settings().counts_seconds) as session:
            page = search_organs(session, parse_query(f"{query} unique:organ"), ALIKE_SHOWN + 1)
        alike = [other for other in page if other.digest != organ.digest][:ALIKE_SHOWN]
        note = None if alike else "No other tensor has the same slot and shape."
    except BadQuery:
        note = "It has too few values to compare with other tensors."
    except NotFound:
        pass
    except TooSlow:
        g.not_cached = True  # the next request may be fast enough
        note = "Not shown: there are too many tensors to compare at once."
    return {"alike": alike, "alike_note": note, "alike_query": query}


def _measurement_context(organ: Organ) -> Context:
    values = {name: organ.measured(name) for name in MEASURES}
    first = next((measurement for measurement in organ.measurements if measurement.theta is not None), None)
    scores = [] if first is None else _theta_scores(first)
    formula = None
    if scores:
        texts = (f"{row['score'].name} {row['value']:.3f} (score {share_text(row['share'])})" for row in scores)
        formula = f"θ = 90° × the mean of three scores: {', '.join(texts)}."
    dtype = dtype_by_name(organ.dtype)
    is_offered = {"raw": True, "bin": not dtype.is_big_endian, "npy": can_dequantize(dtype)}
    return {
        "readings": [
            {"name": name, "value": value, "meaning": MEASURES[name]}
            for name, value in values.items()
            if value is not None
        ],
        "ingredients": scores,
        "theta_formula": formula,
        "warning": "" if first is None else caution_of(organ),
        "likeness_meaning": LIKENESS_TO_ORGAN,
        "graft": next(filter(None, map(graft_address, organ.places)), None),
        "weights": weights_shown(organ.digest, organ.dtype, organ.shape),
        "downloads": [
            {"label": label, "address": url_for("downloads.organ", digest=organ.digest, form=form)}
            for form, label in FORMS.items()
            if is_offered[form]
        ],
    }


def _theta_scores(reading: OrganMeasurement) -> list[Context]:
    """Return the scores whose mean gives θ, with their values. A score that the method did not measure is left out."""
    values = ((score, getattr(reading, score.name)) for score in THETA_SCORES)
    return [{"score": score, "value": value, "share": score.of(value)} for score, value in values if value is not None]
