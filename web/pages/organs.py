"""Organs: the search with its columns, filters and histogram of θ, and the page of one organ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flask import g, request, url_for
from msgspec import structs

from organs.registry.amounts import share_text
from organs.registry.anatomy import EXAMPLE_SLOTS, OrganType, type_name
from organs.registry.catalog.queries.organs import organ_detail
from organs.registry.catalog.vocabulary import (
    BIN_DEGREES,
    THETA_MAX_DEGREES,
)
from organs.registry.entities.gain import Gain
from organs.registry.entities.organ import FacetCounts, Measurement, Organ, OrganPage, PlacedOrgan
from organs.registry.entities.report import Cell
from organs.registry.errors import BadQuery, NotFound, TooSlow
from organs.registry.gguf import DType, dtype_by_name
from organs.registry.gguf.quants import can_dequantize
from organs.registry.measure.zmeasure import (
    COHERENCE_NOISE,
    COHERENCE_SIGNAL,
    ENTROPY_NOISE,
    ENTROPY_SIGNAL,
    KURTOSIS_NOISE,
    KURTOSIS_SIGNAL,
)
from organs.registry.measures import MEASURE_NAMES, MEASURES, Measure
from organs.registry.search.language import (
    GAIN,
    LIKENESS,
    ORGANS,
    Query,
    bounded,
    parse_query,
    short_text,
    sorted_by,
)
from organs.registry.search.rows import search_organs
from organs.web.pages.charts import weights_shown
from organs.web.pages.compose import graft_address
from organs.web.pages.facets import Filter, choice_filter, list_address, term_links
from organs.web.pages.routes import Context, Page, Sheet, paged, pages
from organs.web.params import (
    requested_after,
    requested_limit,
    requested_query,
)
from organs.web.permissions import may_see_storage
from organs.web.render import Meaning, caution_of
from organs.web.responses import plain_page, reading, registry, settings

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

LIKENESS_TO_ORGAN = Meaning(
    "likeness",
    "The correlation of the weights at the same positions: 1 for equal weights, about 0 for unrelated models.",
    "It is the same in both directions. Organs with reordered rows look unrelated.",
)
CHANGE_FROM_BASE = (
    "The energy of the difference from the organ of the base at the same place, as a share of their energy: 0 for "
    "equal weights, 1e-5 for a light fine-tune, 2 for unrelated models. Vectors have the change of the two models."
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table of organs or models. The template writes its table cells."""

    name: str
    """The name by which the template selects the content."""
    heading: str
    meaning: str = ""
    """The tooltip of the heading."""
    sort: str = ""
    """The word after `sort:` in queries; empty for a column that does not sort."""
    classes: str = "n"
    """CSS classes of the heading and of the table cells: `n` for numbers."""
    measure: Measure | None = None


ORGAN = Column("organ", "organ", classes="")
LIKENESS_COLUMN = Column(LIKENESS, LIKENESS_TO_ORGAN.label, LIKENESS_TO_ORGAN.meaning)
BASE_COLUMN = Column("change", "change", CHANGE_FROM_BASE, sort=LIKENESS)
GAIN_COLUMN = Column(
    GAIN, GAIN, "How much lower the perplexity of a validated chimera with this organ is than its base's.", sort=GAIN
)
TYPE = Column("type", "type, tensor type, shape", classes="hide-small")
SIZE = Column("size", "size", "Size of the organ in a GGUF file.", sort="size")
GAIN_COLUMNS = ("gain", "gain_margin", "gain_on")
_CSV_MEMBERS = (
    *(
        "digest",
        "model",
        "name",
        "type",
        "tower",
        "block",
        "slot",
        "expert",
        "dtype",
        "shape",
        "size_bytes",
        *MEASURE_NAMES,
    ),
    *("theta_caution", "architecture", "license", "nonfinite", "likeness", "change", "model_state"),
)
CSV_COLUMNS = (*_CSV_MEMBERS, *GAIN_COLUMNS)
"""Columns of lists of organs as CSV: members of `PlacedOrgan`, then its gain."""


def gain_cells(gain: Gain | None) -> list[Cell]:
    """Return a gain in percent, its margin and its text, for GAIN_COLUMNS; empty cells without a gain."""
    return [None, None, None] if gain is None else [gain.percent, gain.margin, gain.text]


def columns(query: Query) -> list[Column]:
    """Return the columns of the table.

    A search with `like:` has a column for the likeness, with a base for the change, and about gains for the gain.
    The measures are the one that sorts, and those that lists show; their headings come from `registry.measures`.
    """
    is_alike = query.like is not None
    sort = None if is_alike else query.sort.field
    shown = [measure for measure in MEASURES.values() if measure.shown or measure.field == sort]
    measures = sorted(shown, key=lambda measure: measure.field != sort)
    return [
        ORGAN,
        *([LIKENESS_COLUMN] if is_alike else [BASE_COLUMN] if query.base is not None else []),
        *([GAIN_COLUMN] if query.mentions_gains else []),
        TYPE,
        *(_measure_column(entry, is_first=place == 0) for place, entry in enumerate(measures)),
        SIZE,
    ]


def _measure_column(entry: Measure, *, is_first: bool) -> Column:
    classes = "n" if is_first else "n hide-small"
    return Column(entry.name, entry.label, entry.meaning, sort=entry.field, classes=classes, measure=entry)


def organ_rows(organs: Iterable[PlacedOrgan]) -> list[list[Cell]]:
    """Return the rows of a CSV with CSV_COLUMNS."""
    rows = []
    for organ in organs:
        values: Context = structs.asdict(organ) | {"shape": "x".join(map(str, organ.shape))}
        rows.append([*(values[name] for name in _CSV_MEMBERS), *gain_cells(organ.gain)])
    return rows


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading above the results of a query, for `parts.heading`."""

    column: Column
    order: str | None
    """`ascending` or `descending` if the results are sorted by this column."""
    address: str
    """The results sorted by this column; empty if it does not sort."""


def heading(query: Query, column: Column, address: str) -> Heading:
    """Return the heading of a column above the results of `query`; `address` sorts by it."""
    chosen = bool(column.sort) and query.like is None and query.sort.field == column.sort
    is_descending = query.sort.descending is not (column.sort == LIKENESS)  # shown as the change, which falls then
    order = "descending" if is_descending else "ascending"
    return Heading(column, order if chosen else None, address)


@paged(pages, "/organs", csv=True, api="organs")
def organs() -> Page:
    """Show the results of the query in `q`; `after` and `limit` page through them.

    Without `q`, the page begins with the feed-forward organs and folds the other types.
    """
    try:
        begins = "q" not in request.args and plain_page()
        query = parse_query(ORGANS.start) if begins else requested_query(ORGANS)
        limit, after = requested_limit(), requested_after()
        limits = settings()
        page, counts = registry().search_page(
            query, limit=limit, after=after, search_seconds=limits.search_seconds, counts_seconds=limits.counts_seconds
        )
    except BadQuery as error:
        if not plain_page():
            raise
        return _error_page(error)
    g.not_cached = counts is not None and counts.hurried  # the next request may be fast enough
    return Page(
        "organs.html",
        {"query": str(query), "items": page.items, "notes": page.notes, "facets": counts},
        extra=lambda: _list_context(query, page, counts) | {"begins": begins},
        sheet=lambda: _sheet(page),
        next=page.next,
    )


def _error_page(error: BadQuery) -> Page:
    """Show the query as it was typed, with its error."""
    typed = request.args.get("q", "")
    extra: Context = {
        "text": typed,
        "problem": str(error),
        "examples": _examples(),
        "filters": [],
        "bars": [],
        "terms": [],
    }
    return Page("organs.html", {"items": [], "notes": [], "next": None}, extra=lambda: extra, status=400)


def _list_context(query: Query, page: OrganPage, counts: FacetCounts | None) -> Context:
    limit = request.args.get("limit", "")
    by_type = counts.fields.get("type", {}) if counts else {}
    return {
        "text": short_text(query),
        "terms": term_links(ENDPOINT, query),
        "filters": _filters(query, counts) if counts else [],
        "bars": _bars(query, counts) if counts else [],
        "headings": [heading(query, column, _sort_address(query, column)) for column in columns(query)],
        "following": page.next and list_address(ENDPOINT, query, after=page.next, limit=limit),
        "first": list_address(ENDPOINT, query) if request.args.get("after") else None,
        "examples": _examples(),
        "csv": list_address("pages.organs_csv", query, limit="1000"),
        "twin": list_address("pages.organs_json", query, limit=limit, after=request.args.get("after", "")),
        "folded": _folded_types(by_type) if "q" not in request.args else [],
        "without_norms": _without_norms(query, by_type),
    }


def _filters(query: Query, counts: FacetCounts) -> list[Filter]:
    return [
        choice_filter(ENDPOINT, query, name, title, counts.fields.get(name, {}), label=type_name)
        for name, title in FILTERS.items()
    ]


def _folded_types(by_type: Mapping[str, int]) -> list[Context]:
    """Return the types that the list leaves out when it begins, each with its number and the list of its organs."""
    return [
        {"type": kind, "count": count, "address": url_for(ENDPOINT, q=f"type:{kind} sort:{FOLDED_SORTS[kind]}")}
        for kind in FOLDED_SORTS
        if (count := by_type.get(kind))
    ]


def _without_norms(query: Query, by_type: Mapping[str, int]) -> Context | None:
    """Return the number of norms in the list and the list without them; None if the query selects types."""
    norms = by_type.get(NORM, 0)
    if query.choices("type") or not 0 < norms < sum(by_type.values()):
        return None
    folded = parse_query(f"{short_text(query)} -type:{NORM}")
    return {"count": norms, "address": list_address(ENDPOINT, folded)}


def _sort_address(query: Query, column: Column) -> str:
    return list_address(ENDPOINT, sorted_by(query, column.sort)) if column.sort else ""


def _bars(query: Query, counts: FacetCounts) -> list[Context]:
    """Return a bar for each interval of θ. Bars outside the query are paler."""
    by_bin = counts.theta_counts
    count_max = max((count for lower, count in by_bin.items() if lower is not None), default=0)
    low, high = _theta_bounds(query)
    bars = []
    for lower in range(0, THETA_MAX_DEGREES, BIN_DEGREES):
        count = by_bin.get(lower, 0)
        upper = lower + BIN_DEGREES
        chosen = low == lower and high == (upper if upper < THETA_MAX_DEGREES else None)
        bounds = (None, None) if chosen else (float(lower), float(upper) if upper < THETA_MAX_DEGREES else None)
        bars.append(
            {
                "lower": lower,
                "upper": upper,
                "count": count,
                "height": count / count_max if count_max else 0.0,
                "chosen": chosen,
                "out": (low is not None and upper <= low) or (high is not None and lower >= high),
                "address": list_address(ENDPOINT, bounded(query, "theta", *bounds)),
            }
        )
    return bars


def _theta_bounds(query: Query) -> tuple[float | None, float | None]:
    """Return the bounds of θ in the query. A bound is None if it is not set; lists of ranges are ignored."""
    low: float | None = None
    high: float | None = None
    for term in query.numbers("theta"):
        if len(term.ranges) == 1 and not term.negated:
            (interval,) = term.ranges
            low = interval.low if interval.low is not None else low
            high = interval.high if interval.high is not None else high
    return low, high


def _examples() -> list[Context]:
    return [{"text": text, "address": url_for("pages.organs", q=text)} for text in EXAMPLES]


def _sheet(page: OrganPage) -> Sheet:
    return Sheet(CSV_COLUMNS, organ_rows(page.items))


ALIKE_SHOWN = 8
FORMS = {"raw": "plain bytes (.raw)", "bin": "with name and shape (.bin)", "npy": "float32 for NumPy (.npy)"}
"""File formats for the download of an organ."""


@paged(pages, "/organs/<digest>", api="organ")
def organ(digest: str) -> Page:
    """Show the organ whose digest begins with `digest`."""
    with reading(settings().search_seconds) as session:
        detail = organ_detail(session, digest, visible=True, shows_storage=may_see_storage())
    return Page(
        "organ.html",
        structs.asdict(detail),
        extra=lambda: _similar_organs(detail) | _measurement_context(detail),
    )


def _similar_organs(organ: Organ) -> Context:
    """Return the most similar organs of the same slot and shape; for an expert, the most similar experts."""
    is_expert = any(place.expert is not None for place in organ.places[:1])
    query = f"like:{organ.digest[:16]}{' expert>=0' if is_expert else ''}"
    similar = _search_similar(organ.digest, query)
    return similar | {"alike_query": query}


def _search_similar(digest: str, query: str) -> Context:
    try:
        with reading(settings().counts_seconds) as session:
            page = search_organs(session, parse_query(f"{query} unique:organ"), ALIKE_SHOWN + 1)
    except BadQuery:
        return {"alike": [], "alike_note": "It has too few values to compare with other organs."}
    except NotFound:
        return {"alike": [], "alike_note": None}
    except TooSlow:
        g.not_cached = True  # the next request may be fast enough
        return {"alike": [], "alike_note": "Not shown: there are too many organs to compare at once."}
    others = [organ for organ in page if organ.digest != digest][:ALIKE_SHOWN]
    return {"alike": others, "alike_note": None if others else "No other organ has the same slot and shape."}


def _measurement_context(organ: Organ) -> Context:
    values = {name: organ.measured(name) for name in MEASURES}
    first = next((measurement for measurement in organ.measurements if measurement.theta is not None), None)
    return {
        "readings": [
            {"name": name, "value": value, "meaning": MEASURES[name]}
            for name, value in values.items()
            if value is not None
        ],
        "ingredients": [] if first is None else theta_ingredients(first),
        "theta_formula": None if first is None else theta_sentence(first),
        "warning": "" if first is None else caution_of(organ),
        "likeness_meaning": LIKENESS_TO_ORGAN,
        "graft": next(filter(None, map(graft_address, organ.places)), None),
        "weights": weights_shown(organ.digest, organ.dtype, organ.shape),
        "downloads": [
            {"label": label, "address": url_for("downloads.organ", digest=organ.digest, form=form)}
            for form, label in FORMS.items()
            if _is_offered(form, dtype_by_name(organ.dtype))
        ],
    }


def _is_offered(form: str, dtype: DType) -> bool:
    """Return whether an organ of `dtype` can be downloaded in this form."""
    return can_dequantize(dtype) if form == "npy" else form == "raw" or not dtype.is_big_endian


@dataclass(frozen=True, slots=True)
class Ingredient:
    """One of the three scores whose mean gives θ, with the values that count as noise and as signal."""

    name: str
    words: str
    value: float
    score: float
    """0 to 1."""
    noise: float
    signal: float


_SCORES = (
    ("entropy", "how evenly the values fill their range", ENTROPY_NOISE, ENTROPY_SIGNAL),
    ("kurtosis", "how heavy the tails are, compared with a Gaussian", KURTOSIS_NOISE, KURTOSIS_SIGNAL),
    ("coherence", "how unevenly the sorted values are spaced", COHERENCE_NOISE, COHERENCE_SIGNAL),
)
"""Name, words, and the values that count as noise and as signal: docs/numbers.md."""


def theta_ingredients(reading: Measurement) -> list[Ingredient]:
    """Return the scores whose mean gives θ. A score that the method did not measure is left out."""
    ingredients = []
    for name, words, noise, signal in _SCORES:
        value = getattr(reading, name)
        if value is None:
            continue
        size = abs(value) if name == "kurtosis" else value
        score = min(max((size - noise) / (signal - noise), 0.0), 1.0)
        ingredients.append(Ingredient(name, words, value, score, noise, signal))
    return ingredients


def theta_sentence(reading: Measurement) -> str | None:
    """Return a sentence with the scores of θ; None without scores or θ."""
    parts = [
        f"{ingredient.name} {ingredient.value:.3f} (score {share_text(ingredient.score)})"
        for ingredient in theta_ingredients(reading)
    ]
    if not parts or reading.theta is None:
        return None
    return f"θ = 90° × the mean of three scores: {', '.join(parts)}."
