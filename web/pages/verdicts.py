"""Results of validations, and validations in progress."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import util

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.jobs import active_jobs
from organs.registry.entities.job import Job
from organs.registry.entities.verdict import RunReport, TextScore, VerdictReport
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
    "gains": "runs, and is better than its base on at least one text",
    "coherent": "runs about as well as its base",
    "degraded": "runs, but clearly worse than its base",
    "inert": "runs, but the grafted parts contribute nothing",
    "undecided": "the grafted blocks have too little effect to tell",
    "broken": "does not load, or produces garbage",
}


def verdict_meaning(verdict: str) -> str:
    """Return the meaning of a verdict, in a few words."""
    return MEANINGS[verdict]


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """A model that was run: its role, its scores as texts, or why it failed."""

    role: str
    name: str
    scores: list[str]
    failure: str | None


def score_rows(report: VerdictReport) -> list[ScoreRow]:
    """Return base, donors, chimera and control, with a score for each text."""
    runs = [
        ("base", report.base),
        *(("donor", one) for one in report.donors),
        ("chimera", report.chimera),
        *((("control", report.control),) if report.control is not None else ()),
    ]
    return [_row(role, run, [text.name for text in report.texts]) for role, run in runs]


def differences(report: VerdictReport) -> list[str | None]:
    """Return for each text how far the chimera is from its base; None where that was not measured."""
    return [
        None if text.ratio is None or text.ratio_error is None else change_text(text.ratio, text.ratio_error)
        for text in report.texts
    ]


def scored_lengths(report: VerdictReport) -> str:
    """Return how many tokens of each text were scored, in words."""
    return lengths_text([(text.name, text.tokens) for text in report.texts], report.tokens)


def _row(role: str, run: RunReport, texts: list[str]) -> ScoreRow:
    by_text = {score.text: score for score in run.scores}
    failure = None if run.failure is None else run.failure.reason
    return ScoreRow(role, run.name, [_score(by_text.get(text)) for text in texts], failure)


def _score(score: TextScore | None) -> str:
    """Return a perplexity with its standard error."""
    if score is None or score.perplexity is None:
        return "–"
    error = score.standard_error
    return _number(score.perplexity) + (f" ± {_number(error)}" if error is not None else "")


def _number(value: float) -> str:
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}" if value < 1e9 else f"{value:.1e}"


KIND = "validate"


def under_way(session: Session, name: str) -> list[Job]:
    """Return the jobs that wait or run to validate the chimera of that name, if the user may see them."""
    jobs = active_jobs(session, KIND, whose_jobs()) if may_see_jobs() else ()
    return [job for job in jobs if job.arguments.get("chimera") == name]


def missing_runtime() -> str | None:
    """Return what to install before anything can be validated here; None if nothing is missing."""
    return None if util.find_spec(PACKAGE) else NOT_INSTALLED
