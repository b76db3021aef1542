"""The list of jobs, and one job with its progress and its result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import util

from flask import g, url_for
from sqlalchemy.orm import Session

from organs.ingest.jobs.extract import has_pack
from organs.registry.amounts import size_text
from organs.registry.catalog.queries.jobs import JobFile, active_jobs, file_of_job, job_by_id
from organs.registry.entities.job import Job
from organs.registry.names import MODEL_TEXT_MAX_LENGTH
from organs.registry.validation.llama import NOT_INSTALLED, PACKAGE
from organs.web.api import jobs as api
from organs.web.auth import ANY
from organs.web.pages.routes import Context, WebPage, list_links, paged, pages, writing_form
from organs.web.params import parsed_number
from organs.web.permissions import may_see_jobs, whose_jobs
from organs.web.render import VERDICT_MEANINGS
from organs.web.responses import model_address, organ_address, reading, registry, settings

VALIDATE, QUICK_LOOK = "validate", "quick-look"
"""The kinds of jobs that run a chimera."""
LINKS_MAX = 100
TEXT_MAX = 2000


@dataclass(frozen=True, slots=True)
class Link:
    """A link to a page or a file."""

    label: str
    address: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of the result of a job."""

    label: str
    text: str
    address: str | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference between new and recorded values of a measure."""

    number: str
    difference: float
    tensor: str


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The result of a job for its page."""

    facts: tuple[Fact, ...] = ()
    differences: tuple[Difference, ...] = ()
    links: tuple[Link, ...] = ()


def outcome(kind: str, result: Mapping[str, object]) -> JobOutcome:
    """Return the outcome of a job of that kind from its result."""
    facts: list[Fact] = []
    differences: list[Difference] = []
    if kind == VALIDATE:
        facts = _validation_facts(result)
    elif kind == QUICK_LOOK:
        facts = [*_chimera_fact(_text(result, "model")), Fact("measured", _text(result, "sentence"))]
    elif _lock(result):
        facts = _composition_facts(result)
    elif kind == "measure":
        facts, differences = _measurement_facts(result)
    elif kind == "report":
        facts = _report_facts(result)
    elif kind == "repack":
        facts = _repack_facts(result)
    linked = {fact.text for fact in facts if fact.address is not None} | {fact.address for fact in facts}
    links = [link for link in result_links(result) if not linked & {link.label, link.address}]
    return JobOutcome(tuple(facts), tuple(differences), tuple(links))


def result_links(result: Mapping[str, object]) -> list[Link]:
    """Return links to the models and organs in the members `model`, `models`, `organ` and `organs` of a result. Without
    the name of a model, there is a link to the chimera of its `lock`."""
    models = [name for name in _texts(result, "model") if _is_name(name)]
    organs = [digest for digest in _texts(result, "organ") if digest.isalnum()]
    locks = [digest for digest in (_lock(result), *_texts(result, "lock")) if digest.isalnum()]
    links = [Link("the chimera", url_for("pages.chimera", lock=digest)) for digest in locks if not models]
    links += [Link(name, model_address(name)) for name in models]
    links += [Link(digest[:12], organ_address(digest)) for digest in organs]
    return list({link.address: link for link in links}.values())[:LINKS_MAX]


def _validation_facts(result: Mapping[str, object]) -> list[Fact]:
    verdict, reason, name = (_text(result, key) for key in ("verdict", "reason", "model"))
    meaning = f": {VERDICT_MEANINGS[verdict]}" if verdict in VERDICT_MEANINGS else ""
    return [
        *([Fact("verdict", f"{verdict}{meaning}")] if verdict else []),
        *([Fact("reason", reason)] if reason else []),
        *_chimera_fact(name),
    ]


def _composition_facts(result: Mapping[str, object]) -> list[Fact]:
    size, created, look = result.get("size_bytes"), result.get("created"), result.get("quick_look")
    return [
        *_chimera_fact(_text(result, "model")),
        *([Fact("size", size_text(size))] if isinstance(size, int) else []),
        *([Fact("made", "earlier: the same recipe with the same organs already existed")] if created is False else []),
        *([Fact("quick look", f"job {look}", url_for("pages.job", job=look))] if type(look) is int else []),
    ]


def _measurement_facts(result: Mapping[str, object]) -> tuple[list[Fact], list[Difference]]:
    measured, differences = result.get("measured"), result.get("differences")
    name = _text(result, "model")
    facts = [Fact("model", name, model_address(name))] if _is_name(name) else []
    facts += [Fact("organs measured", f"{measured:,}")] if isinstance(measured, int) else []
    entries = differences.items() if isinstance(differences, dict) else ()
    return facts, [
        Difference(number.replace("_", " "), entry["difference"], entry["tensor"])
        for number, entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("difference"), float) and _text(entry, "tensor")
    ]


def _repack_facts(result: Mapping[str, object]) -> list[Fact]:
    organs, repacked = result.get("organs"), result.get("repacked")
    before, after = result.get("before_bytes"), result.get("after_bytes")
    facts = [Fact("organs examined", f"{organs:,}")] if isinstance(organs, int) else []
    facts += [Fact("organs stored again", f"{repacked:,}")] if isinstance(repacked, int) else []
    if isinstance(before, int) and isinstance(after, int) and before:
        facts.append(Fact("their stored size", f"{size_text(before)} before, {size_text(after)} now"))
    if unneeded := result.get("unneeded_bytes"):
        facts += [Fact("not needed any more", size_text(unneeded))] if isinstance(unneeded, int) else []
    return facts


def _report_facts(result: Mapping[str, object]) -> list[Fact]:
    if "report" not in result:
        return []
    name = _text(result, "model")
    if not name:
        return [Fact("report", "on all models", url_for("pages.reports"))]
    return [Fact("report", f"on {name}", model_address(name, "pages.dissection"))] if _is_name(name) else []


def _chimera_fact(name: str) -> list[Fact]:
    return [Fact("chimera", name, model_address(name))] if _is_name(name) else []


def _is_name(text: str) -> bool:
    return 1 <= text.find("/") < len(text) - 1 and len(text) <= MODEL_TEXT_MAX_LENGTH


def _text(result: Mapping[str, object], name: str) -> str:
    """Return the member `name` if it is a short text, else an empty text."""
    text = result.get(name)
    return text if isinstance(text, str) and len(text) <= TEXT_MAX else ""


def _lock(result: Mapping[str, object]) -> str:
    """Return the lock of the new chimera. Jobs of earlier versions have it as `lock`."""
    return _text(result, "lock_id") or _text(result, "lock")


def _texts(result: Mapping[str, object], name: str) -> list[str]:
    """Return the short texts in the member `name` and in its plural."""
    single, plural = result.get(name), result.get(f"{name}s")
    texts = [single, *(plural if isinstance(plural, list) else [])]
    return [text for text in texts if isinstance(text, str) and len(text) <= MODEL_TEXT_MAX_LENGTH]


RESULT_SHOWN_CHARACTERS = 20_000
"""Characters of the result as JSON. The JSON of the page has the complete result."""


@paged(pages, "/jobs")
def jobs() -> WebPage:
    """Show the jobs that the user may see, newest first; `after` and `limit` page through them."""
    page = api.jobs()
    return WebPage(
        "jobs.html",
        {"items": page.items},
        extra=lambda: list_links(page.next) | {"is_active": any(job.is_active for job in page)},
        next=page.next,
        entity=page,
    )


@paged(pages, "/jobs/<job>")
def job(job: str) -> WebPage:
    """Show one job."""
    job_id, whose = parsed_number(job, "job"), whose_jobs()
    with reading(settings().search_seconds) as session:
        current = job_by_id(session, job_id, whose)
        file = file_of_job(session, job_id, whose)
    return WebPage("job.html", {"job": current}, extra=lambda: _page_context(current, file), entity=current)


@writing_form(pages, "/jobs/<job>/cancel", ANY)
def cancel(job: str) -> str:
    """Cancel a job, and show it again."""
    return url_for("pages.job", job=api.cancel(job).id)


def _page_context(job: Job, file: JobFile | None) -> Context:
    job_outcome = outcome(job.kind, job.result or {})
    text = "" if job.result is None else json.dumps(job.result, ensure_ascii=False, indent=2)
    return {
        "arguments": json.dumps(job.arguments, ensure_ascii=False, indent=2)[:RESULT_SHOWN_CHARACTERS],
        "result": job_outcome,
        "links": [*_file_links(job.id, file), *job_outcome.links],
        "result_text": text[:RESULT_SHOWN_CHARACTERS],
        "is_cut": len(text) > RESULT_SHOWN_CHARACTERS,
    }


def _file_links(job_id: int, file: JobFile | None) -> list[Link]:
    """Return a link to the file that the job wrote, if the file still exists."""
    if file is None:
        return []
    g.not_cached = True  # the file is removed without a change of the catalog
    if not has_pack(registry(), file):
        return []
    label = f"download {file.name}, {size_text(file.size_bytes)}"
    return [Link(label, url_for("artifacts.job_file", job=job_id, file=file.name))]


def active_validations(session: Session, name: str) -> list[Job]:
    """Return the queued and running validations and quick looks of this chimera, if the user may see them."""
    if not may_see_jobs():
        return []
    jobs = [job for kind in (QUICK_LOOK, VALIDATE) for job in active_jobs(session, kind, whose_jobs())]
    return [job for job in jobs if job.arguments.get("chimera") == name]


def missing_runtime() -> str | None:
    """Return the message about the package that validation needs; None if it is installed."""
    return None if util.find_spec(PACKAGE) else NOT_INSTALLED
