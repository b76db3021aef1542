"""Evolutions: the list with the form for a new one, an evolution with its trials, a trial, and the charts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from flask import Response, g, request, url_for
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.evolutions import ended_trials, evolution_summary
from organs.registry.catalog.queries.jobs import job_by_id, job_of_evolution, newest_jobs_of_kind
from organs.registry.compose.recipe import recipe_file, recipe_of, recipe_yaml
from organs.registry.endpoints import evolutions as endpoints
from organs.registry.endpoints.declaration import whole_number
from organs.registry.entities.evolution import TRIAL_COLUMNS, Evolution, EvolutionPage, EvolutionSummary, EvolutionTrial
from organs.registry.entities.job import EVOLUTION_MINUTES_MAX, EvolutionRequest, Job
from organs.registry.entities.plan import RecipeFile
from organs.registry.errors import BadInput, BadRecipe, MissingExtra, NotComposable, NotFound
from organs.registry.evolving.search import (
    CHECK,
    OVER,
    RESULT,
    SEARCH,
    TEXTS_DEFAULT,
    WITHOUT_PARTS,
    has_worker,
    standing_of,
)
from organs.registry.evolving.space import MINUTES
from organs.registry.validation.runtime import NoRuntime
from organs.registry.validation.texts import CHAT, KINDS
from organs.web.api import evolutions as api
from organs.web.charts import evolutions as charts
from organs.web.error_pages import sentence_of, status_of
from organs.web.pages.charts import svg_answer
from organs.web.pages.jobs import missing_runtime
from organs.web.pages.routes import UNKNOWN_MODEL, Context, WebPage, list_page, paged, pages, sheet_of, writing_form
from organs.web.pages.steps import recipe_address
from organs.web.params import parsed_number, requested
from organs.web.permissions import log_in_first, queue_job, whose_jobs
from organs.web.responses import conditional, json_answer, searching
from organs.web.security import ADDRESS_MAX_LENGTH

PHASES = {
    SEARCH: "trying chimeras",
    CHECK: "measuring the best ones again, on further windows",
    WITHOUT_PARTS: "leaving out the parts of the best one in turns",
    RESULT: "making the best one, and measuring it on parts of the texts that no trial used",
    OVER: "",
}
TRIALS_SHOWN = 20
"""Trials that the page lists; with `all=1`, ALL_SHOWN."""
ALL_SHOWN = 2000
RELOADED_EACH = 5
"""The page is loaded again after so many further trials, so that it can be read between."""
JOBS_SEARCHED = 100
"""The newest jobs among which the last one of an evolution is searched."""
DONORS_MAX_LENGTH = 2000
CSV_COLUMNS = ("number", "role", "of_number", "state", "change", "is_allowed", "is_stopped", "same_as", "seconds")


@paged("/evolutions")
def evolutions() -> WebPage:
    """Show the evolutions that the user may see, newest first, with a form for a new one; `base` fills it in."""
    log_in_first()
    page = api.evolutions(**requested(endpoints.evolutions))
    base = request.args.get("base", "").strip()
    filled = {"base": base, "donors": f"kin:{base}" if base else "", "texts": TEXTS_DEFAULT, "minutes": f"{MINUTES:g}"}
    return _list(page, filled)


def _list(page: EvolutionPage, filled: Context, problem: str = "", status: int = 200) -> WebPage:
    extra = {
        "filled": filled,
        "problem": problem,
        "kinds": KINDS,
        "minutes_max": int(EVOLUTION_MINUTES_MAX),
        "missing_runtime": missing_runtime(),
    }
    return replace(list_page("evolutions.html", page, extra=extra), status=status)


@writing_form("/evolutions")
def begin_evolution() -> str | WebPage:
    """Begin the evolution of the form, and show it; show the form again with what is wrong."""
    form = request.form
    donors = [line.strip() for line in form.get("donors", "")[:DONORS_MAX_LENGTH].splitlines() if line.strip()]
    base, texts = form.get("base", "").strip(), [kind for kind in KINDS if kind in form.getlist("text")]
    filled = {"base": base, "donors": "\n".join(donors), "texts": texts, "minutes": form.get("minutes", "")[:10]}
    try:
        minutes = whole_number(form.get("minutes", "").strip(), 1, int(EVOLUTION_MINUTES_MAX))
        if minutes is None:
            raise BadInput(f"the minutes are a whole number from 1 to {EVOLUTION_MINUTES_MAX:g}")
        if not base:
            raise BadInput("name the base: the model that is to become better")
        if not [text for text in texts if text != CHAT]:
            raise BadInput("choose a text on which it is to become better")
        space = {"base": base, "donors": donors, "texts": texts, "minutes": minutes}
        job = queue_job("evolve", EvolutionRequest(space=space))
    except (*UNKNOWN_MODEL, BadInput, BadRecipe, NotComposable, NoRuntime, MissingExtra) as error:
        return _list(api.evolutions(limit=50, after=None), filled, sentence_of(error), status_of(error))
    with searching() as session:
        number = job_by_id(session, job).arguments["evolution"]
    return url_for("pages.evolution", evolution=number)


@paged("/evolutions/<evolution>", csv=True)
def evolution(evolution: str) -> WebPage:
    """Show one evolution; with `all=1`, all of its trials; with `remove=1`, the form that removes it."""
    log_in_first()
    number = parsed_number(evolution, "evolution")
    found = api.shown_evolution(number)
    with searching() as session:
        job, is_worked_on = _work_on(session, found)
    return WebPage(
        "evolution.html",
        lambda: _context(found, job, is_worked_on),
        sheet=lambda: sheet_of(CSV_COLUMNS, found.history),
        body=found.with_few_choices(),
    )


def _work_on(session: Session, found: EvolutionSummary) -> tuple[Job | None, bool]:
    """Return the job that does an evolution, and whether this or another process does its trials."""
    if found.state != "running":
        return None, False
    job = job_of_evolution(session, found.id)
    return job, job is not None or has_worker(session, found.id)


def _context(found: Evolution, job: Job | None, is_worked_on: bool) -> Context:
    with searching() as session:
        stage = _stage(session, found, job, is_worked_on)
        failure = "" if found.is_over or is_worked_on else _last_failure(session, found.id)
    shown = found.tried[: ALL_SHOWN if request.args.get("all") == "1" else TRIALS_SHOWN]
    worst = max((abs(part.change) for part in found.parts), default=0.0) or 1.0
    pair = _texts_of_front(found)
    return {
        "evolution": found,
        "phase": PHASES.get(found.phase, ""),
        "job": job,
        "is_worked_on": is_worked_on,
        "failure": failure,
        "stage": stage,
        "follow": url_for("pages.evolution_progress", evolution=found.id),
        "best": found.best,
        "verdict": found.verdict,
        "verdict_rows": [
            (text.name, text.change, text.verdict or "") for text in (found.verdict.texts if found.verdict else ())
        ],
        "recipe": "" if found.recipe is None else recipe_yaml(recipe_of(found.recipe)),
        "compose": None if found.recipe is None else _compose_address(found.recipe),
        "chart": url_for("pages.evolution_chart", evolution=found.id) if found.tried else None,
        "chart_size": (charts.TRIALS_WIDTH, charts.TRIALS_HEIGHT),
        "front": url_for("pages.front_chart", evolution=found.id, x=pair[0], y=pair[1]) if pair else None,
        "front_size": (charts.FRONT_WIDTH, charts.FRONT_HEIGHT),
        "pair": pair,
        "pairs": _pairs(found) if pair else [],
        "parts_found": [(part, abs(part.change) / worst) for part in found.parts],
        "trials": shown,
        "left_out": len(found.tried) - len(shown),
        "failed": [trial for trial in found.history if trial.state in ("failed", "set_aside")],
        "texts_of": next(column.text for column in TRIAL_COLUMNS if column.name == "texts"),
        "csv": url_for("pages.evolution_csv", evolution=found.id),
        "asks_to_remove": request.args.get("remove") == "1",
    }


def _last_failure(session: Session, number: int) -> str:
    """Return why the last job of an evolution failed; empty if it did not."""
    jobs = newest_jobs_of_kind(session, "evolve", JOBS_SEARCHED, whose_jobs())
    last = next((job for job in jobs if job.arguments.get("evolution") == number), None)
    return last.note if last is not None and last.state == "failed" else ""


def _compose_address(recipe: RecipeFile) -> str | None:
    """Return the address of the composing page with the steps of a recipe; None if it is too long for an address."""
    address = recipe_address(recipe)
    return address if len(address) < ADDRESS_MAX_LENGTH else None


def _stage(session: Session, found: EvolutionSummary, job: Job | None, is_worked_on: bool) -> str:
    """Return a word that changes when the page should be loaded again."""
    worker = job.state if job else "another" if is_worked_on else "none"
    return f"{found.state}-{worker}-{ended_trials(session, found.id) // RELOADED_EACH}"


@pages.get("/evolutions/<evolution>/progress.json")
def evolution_progress(evolution: str) -> Response:
    """Send how far an evolution is, for the script of its page."""
    number, whose = parsed_number(evolution, "evolution"), whose_jobs()
    g.not_cached = True
    with searching() as session:
        found = evolution_summary(session, number, whose)
        job, is_worked_on = _work_on(session, found)
        values = {"id": number, "state": _stage(session, found, job, is_worked_on)}
    if job is not None and job.state == "running":
        values |= {"progress": job.progress, "note": job.note}
    else:
        values |= {"progress": api.shown_evolution(number).share, "note": ""}
    return conditional(json_answer(values))


@pages.get("/evolutions/<evolution>/trials.svg")
def evolution_chart(evolution: str) -> Response:
    """Send the chart of the trials."""
    found = api.shown_evolution(parsed_number(evolution, "evolution"))
    points = [
        charts.TrialPoint(trial.number, trial.change or 0.0, trial.is_allowed and not trial.is_stopped)
        for trial in sorted(found.tried, key=lambda one: one.number)
    ]
    if not points:
        raise NotFound("no trial is done yet")
    return svg_answer(charts.trials_chart(points))


@pages.get("/evolutions/<evolution>/front.svg")
def front_chart(evolution: str) -> Response:
    """Send the chart of the texts `x` and `y`, with the trials of the front."""
    found = api.shown_evolution(parsed_number(evolution, "evolution"))
    pair = _texts_of_front(found)
    if pair is None:
        raise NotFound("there is no front: the goal is the mean, or no trial is done yet")
    front = set(found.front)
    points = [
        charts.FrontPoint(trial.number, *values, trial.number in front)
        for trial in found.tried
        if not trial.is_stopped and (values := _percents(trial, pair)) is not None
    ]
    if not points:
        raise NotFound("no trial is done yet")
    return svg_answer(charts.front_chart(points, *pair, is_joined=len(found.texts) == 2))


def _texts_of_front(found: Evolution) -> tuple[str, str] | None:
    """Return the two texts that the request names, by default the first two; None without a front."""
    if not found.front or len(found.texts) < 2:
        return None
    across, up = (request.args.get(name, "") for name in ("x", "y"))
    is_known = across in found.texts and up in found.texts and across != up
    return (across, up) if is_known else (found.texts[0], found.texts[1])


def _pairs(found: Evolution) -> list[Context]:
    """Return the links to the other pairs of texts, if there are more than two."""
    texts = found.texts if len(found.texts) > 2 else ()
    return [
        {"label": f"{up} against {across}", "address": url_for("pages.evolution", evolution=found.id, x=across, y=up)}
        for place, across in enumerate(texts)
        for up in texts[place + 1 :]
    ]


def _percents(trial: EvolutionTrial, pair: Iterable[str]) -> tuple[float, float] | None:
    ratios = {text.text: text.ratio for text in trial.texts}
    across, up = (ratios.get(name) for name in pair)
    return None if across is None or up is None else (100.0 * (across - 1.0), 100.0 * (up - 1.0))


@paged("/evolutions/<evolution>/trials/<trial>")
def trial_recipe(evolution: str, trial: str) -> WebPage:
    """Show a trial: its changes, and its recipe."""
    log_in_first()
    number, place = parsed_number(evolution, "evolution"), parsed_number(trial, "trial")
    found = api.shown_evolution(number)
    shown = next((one for one in found.history if one.number == place), None)
    if shown is None:
        raise NotFound(f"evolution {number} has no trial {place}")
    with searching() as session:
        recipe = recipe_file(standing_of(session, number).recipe(place))
    return WebPage(
        "evolution_trial.html",
        lambda: {
            "evolution": found,
            "trial": shown,
            "recipe": recipe_yaml(recipe_of(recipe)),
            "compose": _compose_address(recipe),
            "choice": found.labelled(shown),
            "is_best": found.best is not None and found.best.number == place,
        },
        body=recipe,
    )


@writing_form("/evolutions/<evolution>/continue")
def continue_evolution(evolution: str) -> str:
    """Continue an evolution that no process works on, and show it."""
    number = parsed_number(evolution, "evolution")
    api.continued(number)
    return url_for("pages.evolution", evolution=number)


@writing_form("/evolutions/<evolution>/remove")
def remove_evolution(evolution: str) -> str:
    """Remove an evolution that nothing works on, and show the others."""
    api.remove_evolution(parsed_number(evolution, "evolution"))
    return url_for("pages.evolutions")
