"""Chimeras: the list as a gallery with small pictures, and what the page of a model shows if it is a chimera."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flask import Response, redirect, request, url_for

from organs.registry.amounts import NO_VALUE, gain_text, perplexity_text
from organs.registry.anatomy import OrganType, type_name
from organs.registry.catalog.queries.chimeras import chimeras_by_lock
from organs.registry.compose.chimeras import chimera_page
from organs.registry.endpoints import chimeras as endpoints
from organs.registry.endpoints.declaration import whole_number
from organs.registry.entities.chimera import GAINED, NEWEST, Chimera, ChimeraPage, ChimeraSummary
from organs.registry.entities.finding import WITHDRAWN_CODES, Severity
from organs.registry.entities.job import Job
from organs.registry.entities.validation import RunReport, TextVerdict, Verdict, VerdictReport, divergence_cells
from organs.registry.errors import BadInput
from organs.registry.validation.verdict import TIME_OVER
from organs.web.pages.anatomy import LegendLine, legend, marks, with_marks
from organs.web.pages.jobs import QUICK_LOOK, VALIDATE, active_validations, missing_runtime
from organs.web.pages.routes import Context, Sheet, WebPage, list_links, paged, sheet_of, writing_form
from organs.web.params import requested
from organs.web.permissions import queue_job
from organs.web.render import donor_class
from organs.web.responses import model_address, plain_page, searching, with_parameters

COLUMNS = ("name", "parents", "lock_id", "verdict", "size_bytes", "mean_theta", "created_at")
"""Columns of the list as CSV, before the gains."""
ORDERS = {GAINED: "largest gain", NEWEST: "newest"}
CARDS = 24
UNDECIDED = "undecided"
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


VALIDATION_MINUTES = (10, 30, 60)
"""The times for a validation that the page offers."""
LOOK_MINUTES, LOOK_MINUTES_MAX = 5, 60
"""Those of a quick look: where it is not known what one takes, and the longest."""
HOPELESS_MINUTES = 16 * LOOK_MINUTES_MAX
"""A quick look that needs more is not offered: it would not start."""


@writing_form("/chimeras/<lock>/validate")
def validate(lock: str) -> str:
    """Queue a validation, unless one is active already, and show where the model's page follows it."""
    return _queued(VALIDATE, lock, lambda minutes: {"minutes": minutes})


@writing_form("/chimeras/<lock>/quick-look")
def quick_look(lock: str) -> str:
    """Queue a quick look, unless one is active already, and show where the model's page follows it."""
    return _queued(QUICK_LOOK, lock, lambda minutes: {"seconds": 60.0 * minutes})


def _queued(kind: str, lock: str, limits: Callable[[int], dict[str, float]]) -> str:
    """Queue a job of that kind for the minutes in the form, if it has any; return the address that shows it."""
    text = request.form.get("minutes", "").strip()
    minutes = whole_number(text, 1, LOOK_MINUTES_MAX) if text else None
    if text and minutes is None:
        raise BadInput(f"{text[:20]!r} is not a number of minutes from 1 to {LOOK_MINUTES_MAX}")
    with searching() as session:
        name = chimeras_by_lock(session, lock)[0].full_name
        is_active = any(job.kind == kind for job in active_validations(session, name))
    if not is_active:
        queue_job(kind, {"chimera": name, **({} if minutes is None else limits(minutes))})
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
        "why_open": "" if measured is None else why_open(measured),
        "look_offer": look_offer(chimera),
        "minutes_offers": VALIDATION_MINUTES,
        "minutes_offered": minutes_offered(report),
        "warnings": [finding for finding in findings if finding.severity is not Severity.INFO],
        "notes": [finding for finding in findings if finding.severity is Severity.INFO],
        "computed_shown": chimera.computed[:COMPUTED_SHOWN],
        "texts": [
            {"label": name, "address": url_for("artifacts.chimera_text", lock=chimera.lock_id, text=name)}
            for name in TEXTS
        ],
        "missing_runtime": missing_runtime(),
    }


def look_offer(chimera: Chimera) -> int | None:
    """Return the minutes of the quick look that the page offers: 0 for a first one, None for none."""
    look = chimera.quick_look
    if look is None:
        return None if chimera.verdicts else 0
    needed = look.minutes_needed
    if needed is None and look.failure is None and any(text.ratio_margin is None for text in look.texts):
        needed = LOOK_MINUTES  # an earlier version did not say what it takes
    return None if needed is None or needed > HOPELESS_MINUTES else min(needed, LOOK_MINUTES_MAX)


def minutes_offered(report: VerdictReport | None) -> int:
    """Return the minutes that are offered first for a validation: more than the last one took."""
    last = 0.0 if report is None or report.seconds is None else report.seconds / 60.0
    return next((minutes for minutes in VALIDATION_MINUTES if minutes > 1.1 * last), VALIDATION_MINUTES[-1])


def why_open(verdict: Verdict) -> str:
    """Return in a short sentence why a verdict is undecided; nothing for others."""
    report = verdict.report
    if verdict.verdict != UNDECIDED or report is None:
        return ""
    open_texts = [text for text in report.texts if text.counts and text.verdict == UNDECIDED]
    if not open_texts or not report.reason.startswith(TIME_OVER):
        return report.reason
    windows = _range([text.windows or 0 for text in open_texts])
    counts = [text.window_count for text in open_texts if text.window_count is not None]
    of_all = f" of {_range(counts)}" if counts else ""
    each = " of each text" if len(open_texts) > 1 else f" of {open_texts[0].name}"
    return f"The time was over after {windows}{of_all} windows{each}: not enough to tell."


def _range(counts: Sequence[int]) -> str:
    """Return the smallest and the largest of these numbers: `3`, `2 to 3`."""
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


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
    state: str = ""
    """What the short table says beside the change: the verdict; of a text that is not decided, how much was scored."""


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
            text.change,
            text.verdict,
            text.counts,
            text.recovered,
            text.tokens or 0,
            divergence_cells(text),
            _state_of(text),
        )
        for text in report.scored_texts
    ]


def _state_of(text: TextVerdict) -> str:
    if not text.counts:
        return "not counted"
    if text.verdict != UNDECIDED or text.windows is None:
        return text.verdict or NO_VALUE
    return f"{text.windows} {'windows' if text.window_count is None else f'of {text.window_count} windows'}"


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
