"""The list of jobs, and one job with its progress and its result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import util
from statistics import median

from flask import Response, current_app, g, request, url_for
from msgspec import ValidationError, convert
from sqlalchemy.orm import Session

from organs.ingest.jobs.packs import has_pack
from organs.registry.amounts import size_text
from organs.registry.catalog.queries.jobs import (
    JobFile,
    active_jobs,
    file_of_job,
    job_by_id,
    newest_jobs_of_kind,
)
from organs.registry.endpoints import jobs as endpoints
from organs.registry.entities.base import prepared
from organs.registry.entities.job import Job, QuantizationJobResult
from organs.registry.entities.sizes import MINUTES_MAX, QuantizationRequest
from organs.registry.entities.validation import QuickLook
from organs.registry.errors import TooLittleTime
from organs.registry.names import MODEL_TEXT_MAX_LENGTH
from organs.registry.validation.llama import NOT_INSTALLED, PACKAGE
from organs.web.api import jobs as api
from organs.web.auth import ANY
from organs.web.pages.routes import Context, WebPage, list_page, paged, writing_form
from organs.web.params import parsed_number, requested
from organs.web.permissions import log_in_first, may_see_jobs, whose_jobs
from organs.web.render import VERDICT_MEANINGS
from organs.web.responses import model_address, organ_address, plain_page, registry, searching

VALIDATE, QUICK_LOOK = "validate", "quick-look"
"""The kinds of jobs that run a chimera."""
QUANTIZE, EVOLVE = "quantize", "evolve"
TWICE_FIELD = "twice"
"""The field of the form for a size that accepts that weights are rounded twice."""
LINKS_MAX = 100
TEXT_MAX = 2000


@dataclass(frozen=True, slots=True)
class JobLink:
    """A link to a page or a file."""

    label: str
    address: str


@dataclass(frozen=True, slots=True)
class JobFact:
    """A line of the result of a job."""

    label: str
    text: str
    address: str | None = None


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The result of a job for its page."""

    facts: Sequence[JobFact] = ()
    differences: Sequence[tuple[str, float, str]] = ()
    """Measures with the largest difference between new and recorded values, and the tensor with this difference."""
    links: Sequence[JobLink] = ()


def outcome(kind: str, result: Mapping[str, object]) -> JobOutcome:
    """Return the outcome of a job of that kind from its result."""
    name, lock = _text(result, "model"), _text(result, "lock_id") or _text(result, "lock")
    is_name = _is_name(name)
    chimera = [JobFact("chimera", name, model_address(name))] if is_name else []
    facts: list[JobFact] = []
    differences: list[tuple[str, float, str]] = []
    if kind == VALIDATE:
        verdict = _text(result, "verdict")
        meaning = f"{verdict}: {VERDICT_MEANINGS[verdict]}" if verdict in VERDICT_MEANINGS else verdict
        stated = {"verdict": meaning, "reason": _text(result, "reason")}
        facts = [*(JobFact(label, text) for label, text in stated.items() if text), *chimera]
    elif kind == QUANTIZE:
        facts = _size_facts(result)
    elif kind == EVOLVE:
        facts = [*chimera] if is_name else [JobFact("chimera", "none: no trial was good enough")]
    elif kind == QUICK_LOOK:
        facts = [*chimera, JobFact("measured", _text(result, "sentence"))]
    elif lock:
        facts = [*chimera, *_composition_facts(result)]
    elif kind == "measure":
        facts = [JobFact("model", name, model_address(name))] if is_name else []
        if (measured := _number(result, "measured")) is not None:
            facts.append(JobFact("tensors measured", f"{measured:,}"))
        found = result.get("differences")
        differences = [
            (measure.replace("_", " "), entry["difference"], entry["tensor"])
            for measure, entry in (found.items() if isinstance(found, dict) else ())
            if isinstance(entry, dict) and isinstance(entry.get("difference"), float) and _text(entry, "tensor")
        ]
    elif kind == "report" and "report" in result:
        if is_name:
            facts = [JobFact("report", f"on {name}", model_address(name, "pages.dissection"))]
        elif not name:
            facts = [JobFact("report", "on all models", url_for("pages.reports"))]
    elif kind == "repack":
        facts = _repack_facts(result)
    linked = {fact.text for fact in facts if fact.address is not None} | {fact.address for fact in facts}
    links = [link for link in result_links(result) if not linked & {link.label, link.address}]
    return JobOutcome(facts, differences, links)


def result_links(result: Mapping[str, object]) -> list[JobLink]:
    """Return links to the models and organs in the members `model`, `models`, `organ` and `organs` of a result. Without
    the name of a model, there is a link to the chimera of its `lock`."""
    models = [name for name in _texts(result, "model") if _is_name(name)]
    organs = [digest for digest in _texts(result, "organ") if digest.isalnum()]
    locks = [digest for digest in (_text(result, "lock_id"), *_texts(result, "lock")) if digest.isalnum()]
    links = [JobLink("the chimera", url_for("pages.chimera", lock=digest)) for digest in locks if not models]
    links += [JobLink(name, model_address(name)) for name in models]
    links += [JobLink(digest[:12], organ_address(digest)) for digest in organs]
    return list({link.address: link for link in links}.values())[:LINKS_MAX]


def _composition_facts(result: Mapping[str, object]) -> list[JobFact]:
    size, look = _number(result, "size_bytes"), _number(result, "quick_look")
    facts = [] if size is None else [JobFact("size", size_text(size))]
    if result.get("created") is False:
        facts.append(JobFact("made", "earlier: the same recipe with the same tensors already existed"))
    if look is not None:
        facts.append(JobFact("quick look", f"job {look}", url_for("pages.job", job=look)))
    return facts


def _size_facts(result: Mapping[str, object]) -> list[JobFact]:
    """Return the facts of a model that was made for a size, beside the plain mix of the nearest size."""
    try:
        sized = convert(result, prepared(QuantizationJobResult))
    except ValidationError:  # of another version
        return []
    address = model_address(sized.source)
    facts = [
        JobFact("model", sized.chimera.model, model_address(sized.chimera.model)),
        JobFact("source", sized.source, f"{address}#sizes"),
        JobFact("size", f"{size_text(sized.point.size_bytes)}, {sized.point.bits:.2f} bits a weight"),
        JobFact("divergence", sized.point.divergence_text),
    ]
    if sized.plain is not None:
        plain = f"{sized.plain.divergence_text} with {size_text(sized.plain.size_bytes)}"
        facts.append(JobFact(f"plain {sized.plain.label}", plain))
    return facts


def _repack_facts(result: Mapping[str, object]) -> list[JobFact]:
    facts = []
    for label, name in (("tensors examined", "organs"), ("tensors stored again", "repacked")):
        if (count := _number(result, name)) is not None:
            facts.append(JobFact(label, f"{count:,}"))
    before, after = _number(result, "before_bytes"), _number(result, "after_bytes")
    if before and after is not None:
        facts.append(JobFact("their stored size", f"{size_text(before)} before, {size_text(after)} now"))
    if unneeded := _number(result, "unneeded_bytes"):
        facts.append(JobFact("not needed any more", size_text(unneeded)))
    return facts


def _is_name(text: str) -> bool:
    return 1 <= text.find("/") < len(text) - 1 and len(text) <= MODEL_TEXT_MAX_LENGTH


def _text(result: Mapping[str, object], name: str) -> str:
    """Return the member `name` if it is a short text, else an empty text."""
    text = result.get(name)
    return text if isinstance(text, str) and len(text) <= TEXT_MAX else ""


def _number(result: Mapping[str, object], name: str) -> int | None:
    number = result.get(name)
    return number if type(number) is int else None


def _texts(result: Mapping[str, object], name: str) -> list[str]:
    """Return the short texts in the member `name` and in its plural."""
    single, plural = result.get(name), result.get(f"{name}s")
    texts = [single, *(plural if isinstance(plural, list) else [])]
    return [text for text in texts if isinstance(text, str) and len(text) <= MODEL_TEXT_MAX_LENGTH]


RESULT_SHOWN_CHARACTERS = 20_000
"""Characters of the result as JSON. The JSON of the page has the complete result."""


@paged("/jobs")
def jobs() -> WebPage:
    """Show the jobs that the user may see, newest first; `after` and `limit` page through them."""
    log_in_first()
    page = api.jobs(**requested(endpoints.jobs))
    return list_page("jobs.html", page, extra={"is_active": any(job.is_active for job in page)})


def subject_of(job: Job) -> JobFact | None:
    """Return what a job works on, with a link: a model, the base of a recipe, or a submission."""
    for label in ("chimera", "model"):
        if _is_name(name := _text(job.arguments, label)):
            return JobFact("model", name, model_address(name))
    recipe = job.arguments.get("recipe")
    if isinstance(recipe, dict) and _is_name(name := _text(recipe, "base")):
        return JobFact("base", name, model_address(name))
    evolution = _number(job.arguments, "evolution")
    if evolution is not None:
        return JobFact("see", f"evolution {evolution}", url_for("pages.evolution", evolution=evolution))
    submission = _text(job.arguments, "submission")
    if submission.isascii() and submission.isalnum():
        return JobFact("submission", submission, url_for("pages.submission", submission=submission))
    return None


def state_of(job: Job) -> str:
    """Return the state of a job for people: a quick look that ran no model was not started."""
    if job.kind == QUICK_LOOK and job.state == "finished":
        with suppress(ValidationError):  # of another version
            look = job.result_as(QuickLook)
            return job.state if look.is_started else look.word
    return job.state


EARLIER_MAX = 20
"""Earlier jobs that say how long one takes."""
OPENS = "opens"
"""The parameter of a page of a job that opens its result when the job has finished: `model`."""


@paged("/jobs/<job>")
def job(job: str) -> WebPage | Response:
    """Show one job; with `opens=model`, the page of the model that it has made, when it has finished."""
    log_in_first()
    job_id, whose = parsed_number(job, "job"), whose_jobs()
    opens = request.args.get(OPENS) == "model"
    with searching() as session:
        current = job_by_id(session, job_id, whose)
        file = file_of_job(session, job_id, whose)
        seconds = _usual_seconds(session, current) if opens and current.is_active else None
    made = _text(current.result or {}, "model")
    if opens and plain_page() and current.state == "finished" and _is_name(made):
        return current_app.response_class(status=303, headers={"Location": model_address(made)}, mimetype="text/plain")
    return WebPage(
        "job.html", lambda: _page_context(current, file) | {"opens": opens, "usual_seconds": seconds}, body=current
    )


@writing_form("/jobs/<job>/cancel", ANY)
def cancel(job: str) -> str:
    """Cancel a job, and show it again, or the evolution that it did."""
    cancelled = api.cancel(parsed_number(job, "job"))
    evolution = _number(cancelled.arguments, "evolution")
    if evolution is not None:
        return url_for("pages.evolution", evolution=evolution)
    return url_for("pages.job", job=cancelled.id)


def _usual_seconds(session: Session, job: Job) -> float | None:
    """Return how long the last jobs of this kind with the same base took; None if there was none."""
    earlier = newest_jobs_of_kind(session, job.kind, EARLIER_MAX, whose_jobs())
    times = [
        (one.finished_at - one.started_at).total_seconds()
        for one in earlier
        if one.state == "finished" and one.finished_at and one.started_at and _base(one) == _base(job)
    ]
    return median(times) if times else None


def _base(job: Job) -> object:
    recipe = job.arguments.get("recipe")
    return recipe.get("base") if isinstance(recipe, dict) else None


def _page_context(job: Job, file: JobFile | None) -> Context:
    job_outcome = outcome(job.kind, job.result or {})
    text = "" if job.result is None else json.dumps(job.result, ensure_ascii=False, indent=2)
    links = list(job_outcome.links)
    if file is not None:
        g.not_cached = True  # the file is removed without a change of the catalog
        if has_pack(registry(), file):
            label = f"download {file.name}, {size_text(file.size_bytes)}"
            links.insert(0, JobLink(label, url_for("artifacts.job_file", job=job.id, file=file.name)))
    return {
        "job": job,
        "made_name": _made_name(job),
        "size_form": size_form_address(job),
        "arguments": json.dumps(job.arguments, ensure_ascii=False, indent=2)[:RESULT_SHOWN_CHARACTERS],
        "result": job_outcome,
        "state": state_of(job),
        "subject": subject_of(job),
        "links": links,
        "result_text": text[:RESULT_SHOWN_CHARACTERS],
        "is_cut": len(text) > RESULT_SHOWN_CHARACTERS,
    }


def minutes_needed(job: Job) -> int | None:
    """Return how many minutes a job for a size needs that failed because it had too few; None for another job."""
    problem = job.problem or {}
    needed = problem.get("minutes")
    is_short = job.kind == QUANTIZE and problem.get("code") == TooLittleTime.code
    return needed if is_short and type(needed) is int else None


def size_form_address(job: Job) -> tuple[int, str] | None:
    """Return the `minutes_needed`, and the address of the form with all that the job wanted; None if the form does not
    take as many minutes, or nothing shows that they were too few."""
    needed = minutes_needed(job)
    if needed is None or needed > MINUTES_MAX:
        return None
    try:
        wanted = convert(job.arguments, QuantizationRequest)
    except ValidationError:
        return None
    values = {"minutes": f"{needed}"} | ({TWICE_FIELD: "on"} if wanted.accept else {})
    if wanted.memory_bytes is not None:
        values |= {"memory": f"{wanted.memory_bytes / 1e9:g}"}
        values |= {"context": f"{wanted.context}"} if wanted.context is not None else {}
    elif wanted.size_bytes is not None:
        values |= {"size": f"{wanted.size_bytes / 1e6:.10g} MB"}
    else:
        values |= {"size": f"{wanted.bits:g} bits" if wanted.bits is not None else wanted.like or ""}
    return needed, f"{model_address(wanted.model, **values)}#make-size"


def _made_name(job: Job) -> str:
    """Return the name of the chimera that a job makes; empty if it is not known yet."""
    recipe = job.arguments.get("recipe")
    named = _text(recipe, "name") if isinstance(recipe, dict) else ""
    return named or _text(job.arguments, "proposed_name")


def active_validations(session: Session, name: str) -> list[Job]:
    """Return the queued and running validations and quick looks of this chimera, if the user may see them."""
    if not may_see_jobs():
        return []
    jobs = [job for kind in (QUICK_LOOK, VALIDATE) for job in active_jobs(session, kind, whose_jobs())]
    return [job for job in jobs if job.arguments.get("chimera") == name]


def missing_runtime() -> str | None:
    """Return the message about the package that validation needs; None if it is installed."""
    return None if util.find_spec(PACKAGE) else NOT_INSTALLED
