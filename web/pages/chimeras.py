"""Chimeras: the list as a gallery with small pictures, and what the page of a model shows if it is a chimera."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flask import Response, redirect, request, url_for

from organs.registry.amounts import NO_VALUE, change_text, gain_text, perplexity_text
from organs.registry.anatomy import OrganType, type_name
from organs.registry.catalog.queries.chimeras import chimeras_by_lock
from organs.registry.compose.chimeras import chimera_page
from organs.registry.endpoints import chimeras as endpoints
from organs.registry.entities.chimera import GAINED, NEWEST, Chimera, ChimeraPage, ChimeraSummary
from organs.registry.entities.finding import WITHDRAWN_CODES, Severity
from organs.registry.entities.job import Job
from organs.registry.entities.validation import RunReport, TextVerdict, VerdictReport, divergence_cells
from organs.web.pages.anatomy import LegendLine, legend, marks, with_marks
from organs.web.pages.jobs import VALIDATE, active_validations, missing_runtime
from organs.web.pages.routes import Context, Sheet, WebPage, list_links, paged, sheet_of, writing_form
from organs.web.params import requested
from organs.web.permissions import queue_job
from organs.web.render import donor_class
from organs.web.responses import model_address, plain_page, searching, with_parameters

COLUMNS = ("name", "parents", "lock_id", "verdict", "size_bytes", "mean_theta", "created_at")
"""Columns of the list as CSV, before the gains."""
ORDERS = {GAINED: "largest gain", NEWEST: "newest"}
CARDS = 24
GAINS_SHOWN = 5


@paged("/chimeras", csv=True, api="chimeras")
def chimeras() -> WebPage:
    """Show the models that were composed here, by gain or by age; `after` and `limit` page through them."""
    values = requested(endpoints.chimeras, limit=CARDS, order=GAINED if plain_page() else NEWEST)
    order = values["order"]
    with searching() as session:
        page = chimera_page(session, **values)
    return WebPage("chimeras.html", lambda: _gallery(page, order), sheet=lambda: _sheet(page), next=page.next)


def _gallery(page: ChimeraPage, order: str) -> Context:
    path, limit = url_for("pages.chimeras"), request.args.get("limit", "")
    cards = []
    for chimera in page:
        gains = sorted(chimera.gains, key=lambda gain: not gain.settled)
        shown = sorted(gains[:GAINS_SHOWN], key=lambda gain: -gain.percent)
        donors = donor_lines(chimera)
        spoken = "; ".join(f"{line.words} from {line.model}" for line in donors) or "no other parts"
        card = {"chimera": chimera, "strip": strip(chimera), "words": spoken, "donors": donors}
        cards.append(card | {"gains": shown, "gains_left_out": max(0, len(gains) - GAINS_SHOWN)})
    return {
        "chimeras": page.items,
        "cards": cards,
        "orders": [
            {"label": label, "chosen": name == order, "address": with_parameters(path, {"order": name}, limit=limit)}
            for name, label in ORDERS.items()
        ],
        "csv": with_parameters(url_for("pages.chimeras_csv"), {"order": order}, limit="1000"),
        "twin": with_parameters(url_for("pages.chimeras_json"), {"order": order}, limit=limit),
        **list_links(page.next, "order"),
    }


def _sheet(page: ChimeraPage) -> Sheet:
    gains = [
        "; ".join(f"{gain_text(gain.percent, gain.margin)} {gain.text}" for gain in chimera.gains) for chimera in page
    ]
    rows = sheet_of(COLUMNS, page).rows
    return Sheet((*COLUMNS, "gains"), [[*row, text] for row, text in zip(rows, gains, strict=True)])


COMPUTED_SHOWN = 60
"""Computed organs that the page lists; the JSON has all of them."""
TEXTS = ("recipe.yaml", "lock.json", "card.md", "Modelfile")


@paged("/chimeras/<lock>", api="chimera")
def chimera(lock: str) -> Response:
    """Redirect to the page of the model, with the parameters of the request."""
    with searching() as session:
        name = chimeras_by_lock(session, lock)[0].full_name
    answer = redirect(with_parameters(model_address(name), request.args.to_dict()))
    assert isinstance(answer, Response)
    return answer


@writing_form("/chimeras/<lock>/validate")
def validate(lock: str) -> str:
    """Queue a validation, unless one is active already, and show the model's page, which links to the job."""
    with searching() as session:
        name = chimeras_by_lock(session, lock)[0].full_name
        is_active = any(job.kind == VALIDATE for job in active_validations(session, name))
    if not is_active:
        queue_job(VALIDATE, {"chimera": name})
    return f"{model_address(name)}#verdict"


def former_blocks(chimera: Chimera | None) -> dict[int, int]:
    """Return the numbers that blocks of a chimera had before they were placed where they are."""
    parts = () if chimera is None else chimera.parts
    return {part.block: part.from_block for part in parts if part.block is not None and part.from_block is not None}


def donor_marks(chimera: Chimera | None) -> dict[str, LegendLine]:
    """Return the line of the legend of donors for each changed organ, by its name."""
    return {} if chimera is None else marks(chimera.parts, legend(chimera.parts, chimera.parents[0].model))


def chimera_context(chimera: Chimera | None, jobs: Sequence[Job]) -> Context:
    """Return what the page shows of a model as a chimera."""
    if chimera is None:
        return {"chimera": None}
    lines = legend(chimera.parts, chimera.parents[0].model)
    measured = chimera.verdicts[0] if chimera.verdicts else None
    report = None if measured is None else measured.report
    findings = [finding for finding in chimera.findings if finding.code not in WITHDRAWN_CODES]
    return {
        "chimera": chimera,
        "jobs": jobs,
        "donors": lines,
        "changes_shown": with_marks(chimera.changes, lines),
        "measured": measured,
        "report": report,
        "look_rows": [] if chimera.quick_look is None else chimera.quick_look.rows,
        "runs": [] if report is None else runs_of(report),
        "rows": [] if report is None else text_rows(report),
        "warnings": [finding for finding in findings if finding.severity is not Severity.INFO],
        "notes": [finding for finding in findings if finding.severity is Severity.INFO],
        "computed_shown": chimera.computed[:COMPUTED_SHOWN],
        "texts": [
            {"label": name, "address": url_for("artifacts.chimera_text", lock=chimera.lock_id, text=name)}
            for name in TEXTS
        ],
        "missing_runtime": missing_runtime(),
    }


@dataclass(frozen=True, slots=True)
class TextRow:
    """The scores on one text: a perplexity for each model that ran, and the comparison of the chimera with its base."""

    text: str
    perplexities: list[str]
    change: str
    verdict: str
    counts: bool
    recovered: float | None
    tokens: int
    divergence: dict[str, str]
    """That of a quantisation from its source, by headings."""


def runs_of(report: VerdictReport) -> list[tuple[str, RunReport]]:
    """Return the models that ran, with their roles."""
    return [
        ("base", report.base),
        ("chimera", report.chimera),
        *((("control", report.control),) if report.control is not None else ()),
        *(("donor", run) for run in report.donors),
    ]


def text_rows(report: VerdictReport) -> list[TextRow]:
    """Return a row for each text that was scored."""
    runs = [{score.text: score.perplexity for score in run.scores} for _, run in runs_of(report)]
    return [
        TextRow(
            text.name,
            [
                NO_VALUE if (perplexity := perplexities.get(text.name)) is None else perplexity_text(perplexity)
                for perplexities in runs
            ],
            change_of(text),
            text.verdict,
            text.counts,
            text.recovered,
            text.tokens or 0,
            divergence_cells(text),
        )
        for text in report.scored_texts
    ]


def change_of(text: TextVerdict) -> str:
    """Return the change of the chimera against its base; reports of earlier versions have only a standard error."""
    margin = text.ratio_margin if text.ratio_margin is not None else text.ratio_error
    return NO_VALUE if text.ratio is None or margin is None else change_text(text.ratio, margin)


BLOCK, GAP = 10, 2
"""Units of a block, and between rows."""
CAP_SHARE = 20
"""The column for organs outside the blocks is one part in so many of the width of the blocks."""
ROWS = {OrganType.SKELETON.value: 14, OrganType.NORM.value: 4, OrganType.ORGAN.value: 20}
"""Units of the row of each type, from top to bottom. Types without a row are in the first column."""
BLOCKS_MAX = 200
"""Blocks with lines between them."""


@dataclass(frozen=True, slots=True)
class Strip:
    """The picture, in units: rectangles of the base, rectangles of donors, and the lines between blocks."""

    width: float
    height: int
    ground: tuple[Rectangle, ...]
    parts: tuple[Rectangle, ...]
    lines: str
    """The path of the lines."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A rectangle with the class of its colour."""

    x: float
    y: int
    width: float
    height: int
    tone: str = ""


@dataclass(frozen=True, slots=True)
class DonorLine:
    """A model that gave parts, with the class of its colour and its parts in words."""

    model: str
    tone: str
    words: str


def donor_tone(parents: Sequence[str], model: str) -> str:
    """Return the class of the colour of a parent. The base has a colour only where its own organs were changed."""
    place = parents.index(model) if model in parents else 0
    return donor_class(place - 1) if place else "own-change"


def strip(chimera: ChimeraSummary) -> Strip:
    """Return the picture of a chimera."""
    long = BLOCK * max(chimera.blocks, 1)
    cap, left = long / CAP_SHARE, long / CAP_SHARE * 1.3
    tops: dict[str, tuple[int, int]] = {}
    y = 0
    for kind, height in ROWS.items():
        tops[kind] = (y, height)
        y += height + GAP
    height = y - GAP
    ground = [Rectangle(0, 0, cap, height)]
    ground += [Rectangle(left, top, long, tall) for top, tall in tops.values()]
    parts: list[Rectangle] = []
    for part in chimera.parts:
        tone = donor_tone(chimera.parents, part.model)
        inside = [block for block in part.blocks if block is not None]
        if part.type not in tops or len(inside) < len(part.blocks):
            parts.append(Rectangle(0, 0, cap, height, tone))
        top, tall = tops.get(part.type, (0, height))
        parts += [
            Rectangle(left + BLOCK * first, top, BLOCK * (last - first + 1), tall, tone) for first, last in runs(inside)
        ]
    edges = range(1, chimera.blocks) if chimera.blocks <= BLOCKS_MAX else ()
    lines = "".join(f"M{left + BLOCK * block:g} 0v{height}" for block in edges)
    return Strip(left + long, height, tuple(ground), tuple(parts), lines)


def donor_lines(chimera: ChimeraSummary) -> list[DonorLine]:
    """Return the models that gave parts, in the order of the recipe."""
    words: dict[str, list[str]] = {}
    for part in chimera.parts:
        inside = runs(block for block in part.blocks if block is not None)
        numbers = ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in inside)
        words.setdefault(part.model, []).append(f"{type_name(part.type)} {numbers}".strip())
    return [
        DonorLine(model, donor_tone(chimera.parents, model), "; ".join(words[model]))
        for model in chimera.parents
        if model in words
    ]


def runs(blocks: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last block of each run of neighbours."""
    found: list[tuple[int, int]] = []
    for block in sorted(blocks):
        if found and found[-1][1] == block - 1:
            found[-1] = (found[-1][0], block)
        else:
            found.append((block, block))
    return found
