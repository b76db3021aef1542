"""Chimeras: the leaderboard, and one chimera with its parts, prediction, verdicts and commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from flask import request, url_for
from msgspec.structs import asdict

from organs.registry.amounts import change_text, perplexity_text
from organs.registry.catalog.queries.chimeras import chimeras_by_lock
from organs.registry.catalog.queries.models import model_by_text
from organs.registry.catalog.queries.organs import organs_of_model
from organs.registry.catalog.search import on_term
from organs.registry.catalog.vocabulary import TEXT_GROUPS
from organs.registry.compose.chimeras import chimera_by_lock
from organs.registry.compose.chimeras import leaderboard as leaderboard_page
from organs.registry.entities.chimera import Chimera
from organs.registry.entities.finding import Severity
from organs.registry.entities.gain import Leaderboard, MeasuredGraft
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.entities.verdict import RunReport, TextScore, TextVerdict, VerdictReport
from organs.registry.errors import Ambiguous, BadDigest, BadName, BadQuery, NotFound
from organs.registry.validation.texts import KINDS
from organs.web.error_pages import status_of
from organs.web.pages.anatomy import (
    READINGS,
    acts_text,
    anatomy,
    changes,
    legend,
    marked,
    marks,
    with_marks,
)
from organs.web.pages.compose import recipe_address
from organs.web.pages.jobs import VALIDATE, active_validations, missing_runtime
from organs.web.pages.lineage import offered_names
from organs.web.pages.models import pull_lines
from organs.web.pages.organs import gain_cells
from organs.web.pages.routes import Context, Page, Sheet, paged, pages, writing_form
from organs.web.params import (
    requested_after,
    requested_choice,
    requested_gains,
    requested_limit,
)
from organs.web.permissions import queue_job
from organs.web.responses import model_address, plain_page, reading, settings, with_parameters

READINGS_HERE = ("theta", "spectral", "size", "change")
COMPUTED_SHOWN = 60
"""Computed organs that the page lists; the JSON has all of them."""
TEXTS = ("recipe.yaml", "lock.json", "card.md", "Modelfile")


@paged(pages, "/chimeras/<lock>", api="chimera")
def chimera(lock: str) -> Page:
    """Show the chimera whose lock has a digest that begins with `lock`; `by` chooses what colours its grid."""
    by = requested_choice("by", READINGS_HERE)
    with reading(settings().search_seconds) as session:
        entity = chimera_by_lock(session, lock)
        organs = organs_of_model(session, chimeras_by_lock(session, lock)[0])
        jobs = active_validations(session, entity.model)
    return Page("chimera.html", asdict(entity), extra=lambda: _page_context(entity, organs, by) | {"jobs": jobs})


@writing_form(pages, "/chimeras/<lock>/validate")
def validate(lock: str) -> str:
    """Queue a validation and show its job. If one is active already, show that job."""
    with reading(settings().search_seconds) as session:
        name = chimeras_by_lock(session, lock)[0].full_name
        active = active_validations(session, name)
    job_id = active[0].id if active else queue_job(VALIDATE, {"chimera": name})
    return url_for("pages.job", job=job_id)


LEADERBOARD_COLUMNS = (
    *("chimera", "lock_id", "base", "donors", "grafted", "likeness", "verdict"),
    *("gain", "gain_margin", "gain_on", "loss", "loss_margin", "loss_on"),
)
"""Columns of the leaderboard as CSV."""


@paged(pages, "/leaderboard", csv=True, api="leaderboard")
def leaderboard() -> Page:
    """Show the validated chimeras of the base in `base`, or of all, by their largest gain on the texts in `on`."""
    base, on = requested_gains()
    limit, after = requested_limit(), requested_after()
    try:
        with reading(settings().search_seconds) as session:
            row = None if base is None else model_by_text(session, base)
            page = leaderboard_page(session, row, on, limit, after)
            name = None if row is None else row.full_name
    except (NotFound, BadName, BadDigest, Ambiguous, BadQuery) as error:
        if not plain_page():
            raise
        problem, status = str(error).rstrip("?.") + ".", status_of(error)
        return Page("leaderboard.html", {"items": []}, extra=lambda: _board_context((), None, problem), status=status)
    return Page(
        "leaderboard.html",
        {"items": page.items, "notes": page.notes},
        extra=lambda: _board_context(page.items, name, None, page.next),
        sheet=lambda: _board_sheet(page),
        next=page.next,
    )


def _board_context(
    grafts: Sequence[MeasuredGraft], base: str | None, problem: str | None, following: str | None = None
) -> Context:
    requested = {name: request.args.get(name, "").strip() for name in ("base", "on", "limit")}
    path, chosen = url_for("pages.leaderboard"), {name: text for name, text in requested.items() if text}
    on = [] if problem or not requested["on"] else [str(on_term(requested["on"]))]
    search_text = " ".join(["type:organ", *([f"fits:{base}"] if base else []), *on, "sort:-gain"])
    return {
        "base": base,
        "problem": problem,
        "requested": (requested["base"], requested["on"]),
        "names": offered_names(),
        "texts": [*TEXT_GROUPS, *KINDS],
        "recipes": {graft.lock_id: recipe_address(graft.recipe) for graft in grafts},
        "following": following and with_parameters(path, chosen | {"after": following}),
        "first": with_parameters(path, chosen) if request.args.get("after") else None,
        "search": url_for("pages.organs", q=search_text),
        "search_text": search_text,
        "compose": url_for("pages.compose", base=base),
        "csv": with_parameters(url_for("pages.leaderboard_csv"), chosen | {"limit": "1000"}),
    }


def _board_sheet(page: Leaderboard) -> Sheet:
    rows = [
        [
            *(graft.chimera, graft.lock_id, graft.base, " ".join(graft.donors), graft.grafted),
            *(graft.likeness, graft.verdict, *gain_cells(graft.best), *gain_cells(graft.worst)),
        ]
        for graft in page
    ]
    return Sheet(LEADERBOARD_COLUMNS, rows)


def _page_context(chimera: Chimera, organs: Sequence[PlacedOrgan], by: str) -> Context:
    lines = legend(chimera.parts, chimera.parents[0].model)
    organ_changes = changes(organs, chimera.parts) if by == "change" else {}
    grid = anatomy(organs, by, organ_changes)
    measured = chimera.verdicts[0] if chimera.verdicts else None
    report = None if measured is None else measured.report
    return {
        "parts_count": len(chimera.parts),
        "by_label": READINGS[by],
        "choices": [_reading_choice(chimera, name, by) for name in READINGS_HERE],
        "grid": marked(grid, marks(chimera.parts, lines)),
        "donors": lines,
        "changes_shown": with_marks(chimera.changes, lines),
        "acts_text": acts_text,
        "measured": measured,
        "report": report,
        "runs": [] if report is None else runs_of(report),
        "rows": [] if report is None else text_rows(report),
        "warnings": [finding for finding in chimera.findings if finding.severity is not Severity.INFO],
        "notes": [finding for finding in chimera.findings if finding.severity is Severity.INFO],
        "computed_shown": chimera.computed[:COMPUTED_SHOWN],
        "file_address": model_address(chimera.model, "downloads.model"),
        "texts": [_text_link(chimera, name) for name in TEXTS],
        "commands": _commands(chimera),
        "lineage_address": url_for("pages.lineage", model=chimera.model),
        "missing_runtime": missing_runtime(),
    }


def _reading_choice(chimera: Chimera, name: str, by: str) -> Context:
    address = with_parameters(
        url_for("pages.chimera", lock=chimera.lock_id), {"by": name} if name != READINGS_HERE[0] else {}
    )
    return {"label": READINGS[name], "chosen": name == by, "address": address}


def _text_link(chimera: Chimera, name: str) -> Context:
    return {"label": name, "address": url_for("artifacts.chimera_text", lock=chimera.lock_id, text=name)}


def _commands(chimera: Chimera) -> list[Context]:
    """Return the commands with their purposes. Download comes first: the other commands use its file name."""
    name = chimera.model.partition("/")[2].partition("@")[0]
    modelfile = url_for("artifacts.chimera_text", lock=chimera.lock_id, text="Modelfile", _external=True)
    get, pull = pull_lines(chimera.model, chimera.file.name)
    ollama = f"ollama create {shlex.quote(name.lower())} -f Modelfile"
    return [
        {"label": "Download the file", "line": get},
        {"label": "Run it with llama.cpp", "line": chimera.llama_cli},
        {
            "label": "Import it into Ollama",
            "line": f"curl -fL -o Modelfile '{modelfile}'\n{ollama}",
        },
        {"label": "Download it with Hugging Face tools", "line": pull},
        {"label": "Write the file on the registry's machine", "line": chimera.assemble},
        {"label": "Make it in Python, from the recipe", "line": chimera.python.rstrip()},
    ]


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
    """Return a row for each text."""
    runs = [{score.text: score for score in run.scores} for _, run in runs_of(report)]
    return [
        TextRow(
            text.name,
            [_perplexity(scores.get(text.name)) for scores in runs],
            _change(text),
            text.verdict,
            text.counts,
            text.recovered,
            text.tokens or 0,
        )
        for text in report.texts
    ]


def _change(text: TextVerdict) -> str:
    """Return the change of the chimera against its base; reports of earlier versions have only a standard error."""
    margin = text.ratio_margin if text.ratio_margin is not None else text.ratio_error
    return "–" if text.ratio is None or margin is None else change_text(text.ratio, margin)


def _perplexity(score: TextScore | None) -> str:
    return "–" if score is None or score.perplexity is None else perplexity_text(score.perplexity)
