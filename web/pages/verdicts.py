"""What a runtime showed of a chimera, and validations under way."""

from __future__ import annotations

from importlib import util

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.jobs import active_jobs
from organs.registry.entities.job import Job
from organs.registry.present.values import Values
from organs.registry.validation.llama import NOT_INSTALLED, PACKAGE
from organs.registry.validation.verdict import (
    change_text,
    lengths_text,
)
from organs.web.permissions import (
    may_see_jobs,
    whose_jobs,
)

MEANINGS = {
    "gains": "it runs, and is better than its base on a text",
    "coherent": "it runs, and is about as good as its base",
    "degraded": "it runs, clearly worse than its base",
    "inert": "it runs, but the graft carries nothing",
    "undecided": "the grafted blocks are too weak to tell",
    "broken": "it does not load, or babbles",
}


def verdict_meaning(verdict: str) -> str:
    """A verdict in a few words."""
    return MEANINGS[verdict]


def scored(report: Values) -> Values:
    """`texts`, the names of what was scored, and `rows`: base, donors, chimera and control with a score for each.

    What could not be run has `failure`, in words, and no scores. `differences` has for each text how far the chimera
    is from its base, with the standard error of that, or None; a report of before that was measured has none at all.
    """
    control = report["control"]
    readings = [
        ("base", report["base"]),
        *(("donor", one) for one in report["donors"]),
        ("chimera", report["chimera"]),
        *((("control", control),) if control is not None else ()),
    ]
    texts = [text["name"] for text in report["texts"]]
    return {
        "texts": texts,
        "rows": [_row(role, reading, texts) for role, reading in readings],
        "differences": [_difference(text) for text in report["texts"]],
        "controlled": control is not None,
        "recovered": [text["recovered"] for text in report["texts"]],
        "remarks": [one for one in (report["control_remark"], report.get("tokens_remark")) if one],
        "lengths": lengths_text([(text["name"], text.get("tokens")) for text in report["texts"]], report["tokens"]),
        "written": report["chimera"]["written"],
    }


def _row(role: str, reading: Values, texts: list[str]) -> Values:
    by_text = {score["text"]: score for score in reading["scores"]}
    failure = reading["failure"]
    return {
        "role": role,
        "name": reading["name"],
        "scores": [_score(by_text.get(text)) for text in texts],
        "failure": None if failure is None else failure["reason"],
    }


def _difference(text: Values) -> str | None:
    ratio, error = text["ratio"], text.get("ratio_error")
    return None if ratio is None or error is None else change_text(ratio, error)


def _score(score: Values | None) -> str:
    """A perplexity with its standard error."""
    if score is None or score["perplexity"] is None:
        return "–"
    error = score["standard_error"]
    return _number(score["perplexity"]) + (f" ± {_number(error)}" if error is not None else "")


def _number(value: float) -> str:
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}" if value < 1e9 else f"{value:.1e}"


KIND = "validate"


def under_way(session: Session, name: str) -> list[Job]:
    """Return the jobs that wait or run to validate the chimera of that name, as far as the user may see them."""
    jobs = active_jobs(session, KIND, whose_jobs()) if may_see_jobs() else ()
    return [job for job in jobs if job.arguments.get("chimera") == name]


def missing_runtime() -> str | None:
    """What to install before anything can be validated here; None where nothing is missing."""
    return None if util.find_spec(PACKAGE) else NOT_INSTALLED
