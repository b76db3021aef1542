"""Jobs: how far each is, and what came of it."""

from __future__ import annotations

import json

from flask import g, request, url_for

from organs.ingest.jobs.extract import pack_file
from organs.registry.catalog.queries.jobs import job_by_id, newest_jobs
from organs.registry.catalog.register.jobs import cancel_job
from organs.registry.names import MODEL_TEXT_MAX_LENGTH
from organs.registry.present.chimeras import lock_of_name
from organs.registry.present.jobs import ACTIVE, PACK, job_result, job_values, jobs_values
from organs.registry.present.text import size_text
from organs.registry.present.values import Values
from organs.web.auth import ANY
from organs.web.forms import writing_form
from organs.web.links import model_address, organ_address, with_parameters
from organs.web.pages.blueprint import pages
from organs.web.pages.verdicts import MEANINGS
from organs.web.params import (
    asked_after,
    asked_limit,
    parsed_job,
)
from organs.web.permissions import whose_jobs
from organs.web.responses import (
    Page,
    paged,
    reading,
    registry,
    settings,
)

LINKS_MAX = 100
TEXT_MAX = 2000


def outcome(kind: str, result: Values, lock: str | None = None) -> Values:
    """`facts` (label, text, address), `differences` and `links` of the result of a job of that kind.

    `lock` is that of the chimera which the result speaks of, where it is known otherwise.
    """
    facts: list[Values] = []
    differences: list[Values] = []
    if kind == "validate":
        facts = _validated(result, lock)
    elif _text(result, "lock"):
        facts = _composed(result)
    elif kind == "measure":
        facts, differences = _measured(result)
    elif kind == "report":
        facts = _reported(result)
    said = {fact["text"] for fact in facts if fact["address"] is not None} | {fact["address"] for fact in facts}
    links = [link for link in result_links(result) if not said & {link["label"], link["address"]}]
    return {"facts": facts, "differences": differences, "links": links}


def result_links(result: Values) -> list[Values]:
    """The pages of the models and organs that a result names, under `model`, `models`, `organ` and `organs`; and of the
    chimera whose `lock` it has."""
    models = [name for name in _texts(result, "model") if _is_name(name)]
    organs = [digest for digest in _texts(result, "organ") if digest.isalnum()]
    locks = [digest for digest in _texts(result, "lock") if digest.isalnum()]
    links = [{"label": "the chimera", "address": url_for("pages.chimera", lock=digest)} for digest in locks]
    links += [{"label": name, "address": model_address(name)} for name in models]
    links += [{"label": digest[:12], "address": organ_address(digest)} for digest in organs]
    return list({link["address"]: link for link in links}.values())[:LINKS_MAX]


def _validated(result: Values, lock: str | None) -> list[Values]:
    verdict, reason, name = (_text(result, key) for key in ("verdict", "reason", "model"))
    meaning = f": {MEANINGS[verdict]}" if verdict in MEANINGS else ""
    return [
        *([_fact("verdict", f"{verdict}{meaning}")] if verdict else []),
        *([_fact("reason", reason)] if reason else []),
        *_chimera(name, lock),
    ]


def _composed(result: Values) -> list[Values]:
    size, created = result.get("size_bytes"), result.get("created")
    return [
        *_chimera(_text(result, "model"), _text(result, "lock")),
        *([_fact("size", size_text(size))] if isinstance(size, int) else []),
        *([_fact("made", "before: the same recipe and organs stood here already")] if created is False else []),
    ]


def _measured(result: Values) -> tuple[list[Values], list[Values]]:
    measured, found = result.get("measured"), result.get("differences")
    name = _text(result, "model")
    facts = [_fact("model", name, model_address(name))] if _is_name(name) else []
    facts += [_fact("organs measured", f"{measured:,}")] if isinstance(measured, int) else []
    known = found.items() if isinstance(found, dict) else ()
    return facts, [
        {"number": number.replace("_", " "), "difference": one["difference"], "tensor": one["tensor"]}
        for number, one in known
        if isinstance(one, dict) and isinstance(one.get("difference"), float) and _text(one, "tensor")
    ]


def _reported(result: Values) -> list[Values]:
    if "report" not in result:
        return []
    name = _text(result, "model")
    if not name:
        return [_fact("report", "on all models", url_for("pages.reports"))]
    return [_fact("report", f"on {name}", model_address(name, "pages.dissection"))] if _is_name(name) else []


def _chimera(name: str, lock: str | None) -> list[Values]:
    """The chimera of that name: its page, where its lock is known, else that of the model."""
    if not _is_name(name):
        return []
    is_digest = lock is not None and lock.isalnum()
    return [_fact("chimera", name, url_for("pages.chimera", lock=lock) if is_digest else model_address(name))]


def _fact(label: str, text: str, address: str | None = None) -> Values:
    return {"label": label, "text": text, "address": address}


def _is_name(text: str) -> bool:
    return 1 <= text.find("/") < len(text) - 1 and len(text) <= MODEL_TEXT_MAX_LENGTH


def _text(result: Values, name: str) -> str:
    """What stands under `name`, if it is short text; else nothing."""
    text = result.get(name)
    return text if isinstance(text, str) and len(text) <= TEXT_MAX else ""


def _texts(result: Values, name: str) -> list[str]:
    """What stands under `name` and its plural, as far as it is short text."""
    one, many = result.get(name), result.get(f"{name}s")
    found = [one, *(many if isinstance(many, list) else [])]
    return [text for text in found if isinstance(text, str) and len(text) <= MODEL_TEXT_MAX_LENGTH]


VALIDATE = "validate"
RESULT_SHOWN_CHARACTERS = 20_000
"""Of a result as JSON; all of it is in the page's twin."""


@paged(pages, "/jobs")
def jobs() -> Page:
    """The jobs that who asks may see, newest first; `after` and `limit` page through them."""
    whose, limit, after = whose_jobs(), asked_limit(), asked_after()
    with reading(settings().search_seconds) as session:
        values = jobs_values(newest_jobs(session, limit, after, whose))
    return Page("jobs.html", values, extra=lambda: _around(values), next=values["next"])


@paged(pages, "/jobs/<job>")
def job(job: str) -> Page:
    """The job of that number."""
    whose = whose_jobs()
    with reading(settings().search_seconds) as session:
        row, contributor = job_by_id(session, parsed_job(job), whose)
        values, pack = job_values(row, contributor), (job_result(row) or {}).get(PACK)
        lock = lock_of_name(session, (values["result"] or {}).get("model")) if values["kind"] == VALIDATE else None
    return Page("job.html", values, extra=lambda: _shown(values, lock, pack))


@writing_form(pages, "/jobs/<job>/cancel", ANY)
def cancel(job: str) -> str:
    """Cancel it, and show it again: for whoever sees it."""
    job_id, whose = parsed_job(job), whose_jobs()
    with registry().catalog.writing() as session:
        cancel_job(session, job_id, whose)
    return url_for("pages.job", job=job_id)


def _around(values: Values) -> Values:
    path, limit = url_for("pages.jobs"), request.args.get("limit", "")
    return {
        "is_active": any(one["state"] in ACTIVE for one in values["items"]),
        "following": values["next"] and with_parameters(path, {"after": values["next"]}, limit=limit),
        "first": with_parameters(path, {}, limit=limit) if request.args.get("after") else None,
    }


def _shown(values: Values, lock: str | None, pack: object) -> Values:
    result = values["result"]
    came = outcome(values["kind"], result or {}, lock)
    text = "" if result is None else json.dumps(result, ensure_ascii=False, indent=2)
    return {
        "is_active": values["state"] in ACTIVE,
        "asked": json.dumps(values["arguments"], ensure_ascii=False, indent=2)[:RESULT_SHOWN_CHARACTERS],
        "came": came,
        "links": [*_file_links(values["id"], pack, result or {}), *came["links"]],
        "result_text": text[:RESULT_SHOWN_CHARACTERS],
        "is_cut": len(text) > RESULT_SHOWN_CHARACTERS,
    }


def _file_links(job_id: int, pack: object, result: Values) -> list[Values]:
    """What the job has left to be downloaded, as long as it is there."""
    if pack is None:
        return []
    g.unkept = True  # it goes without a word to the catalog
    path = pack_file(registry().settings.home, pack, result.get("file"))
    if path is None:
        return []
    label = f"download {path.name}, {size_text(path.stat().st_size)}"
    return [{"label": label, "address": url_for("made.job_file", job=job_id, file=path.name)}]
