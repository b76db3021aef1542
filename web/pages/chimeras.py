"""Chimeras: the list as a gallery, and what the page of a model shows if it is a chimera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flask import Response, redirect, request, url_for

from organs.registry.amounts import NO_VALUE, change_text, gain_text, perplexity_text
from organs.registry.catalog.queries.chimeras import GAINED, NEWEST, chimeras_by_lock
from organs.registry.compose.chimeras import chimera_page
from organs.registry.entities.chimera import Chimera, ChimeraPage
from organs.registry.entities.finding import WITHDRAWN_CODES, Severity
from organs.registry.entities.job import Job
from organs.registry.entities.verdict import RunReport, TextVerdict, VerdictReport
from organs.web.charts.strips import donor_lines, strip
from organs.web.pages.anatomy import LegendLine, legend, marks, with_marks
from organs.web.pages.jobs import VALIDATE, active_validations, missing_runtime
from organs.web.pages.routes import Context, Sheet, WebPage, list_links, paged, sheet_of, writing_form
from organs.web.params import requested_choice, requested_page
from organs.web.permissions import queue_job
from organs.web.responses import model_address, plain_page, searching, with_parameters

COLUMNS = ("name", "parents", "lock_id", "verdict", "size_bytes", "mean_theta", "created_at")
"""Columns of the list as CSV, before the gains."""
ORDERS = {GAINED: "largest gain", NEWEST: "newest"}
CARDS = 24
GAINS_SHOWN = 5


@paged("/chimeras", csv=True, api="chimeras")
def chimeras() -> WebPage:
    """Show the models that were composed here, by gain or by age; `after` and `limit` page through them."""
    orders = tuple(ORDERS) if plain_page() else (NEWEST, GAINED)
    order = requested_choice("order", orders)
    with searching() as session:
        page = chimera_page(session, *requested_page(CARDS), order=order)
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
        "look_rows": [] if chimera.quick_look is None else [text.cells for text in chimera.quick_look.texts],
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
        )
        for text in report.scored_texts
    ]


def change_of(text: TextVerdict) -> str:
    """Return the change of the chimera against its base; reports of earlier versions have only a standard error."""
    margin = text.ratio_margin if text.ratio_margin is not None else text.ratio_error
    return NO_VALUE if text.ratio is None or margin is None else change_text(text.ratio, margin)
