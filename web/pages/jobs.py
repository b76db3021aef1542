"""Jobs: what takes longer than a request, how far it is, what came of it."""

from __future__ import annotations

import json

from flask import g, request, url_for

from ingest.jobs.packs import pack_file
from registry.catalog.queries.jobs import job_by_id, newest_jobs
from registry.catalog.register.jobs import cancel_job
from registry.present.jobs import ACTIVE, job_values, jobs_values
from registry.present.text import size_text
from registry.present.values import Values
from web.answers import Page, paged, reading, registry, settings
from web.asked import asked_after, asked_limit, parsed_job
from web.forms import writing_form
from web.links import model_address, organ_address, with_parameters
from web.pages.blueprint import pages

LINKS_MAX = 100
RESULT_SHOWN_CHARACTERS = 20_000
"""Of a result as JSON; all of it is in the page's twin."""
NAME_MAX = 210


@paged(pages, "/jobs")
def jobs() -> Page:
    """The jobs, newest first; `after` and `limit` page through them."""
    limit, after = asked_limit(), asked_after()
    with reading(settings().search_seconds) as session:
        values = jobs_values(newest_jobs(session, limit, after))
    return Page("jobs.html", values, extra=lambda: _around(values), next=values["next"])


@paged(pages, "/jobs/<job>")
def job(job: str) -> Page:
    """The job of that number."""
    with reading(settings().search_seconds) as session:
        values = job_values(*job_by_id(session, parsed_job(job)))
    return Page("job.html", values, extra=lambda: _shown(values))


@writing_form(pages, "/jobs/<job>/cancel")
def cancel(job: str) -> str:
    """Cancel it, and show it again."""
    job_id = parsed_job(job)
    with registry().catalog.writing() as session:
        cancel_job(session, job_id)
    return url_for("pages.job", job=job_id)


def _around(values: Values) -> Values:
    path, limit = url_for("pages.jobs"), request.args.get("limit", "")
    return {
        "is_active": any(one["state"] in ACTIVE for one in values["items"]),
        "following": values["next"] and with_parameters(path, {"after": values["next"]}, limit=limit),
        "first": with_parameters(path, {}, limit=limit) if request.args.get("after") else None,
    }


def _shown(values: Values) -> Values:
    result = values["result"]
    text = "" if result is None else json.dumps(result, ensure_ascii=False, indent=2)
    return {
        "is_active": values["state"] in ACTIVE,
        "asked": json.dumps(values["arguments"], ensure_ascii=False, indent=2)[:RESULT_SHOWN_CHARACTERS],
        "links": [*result_links(result or {}), *_file_links(values["id"], result or {})],
        "result_text": text[:RESULT_SHOWN_CHARACTERS],
        "is_cut": len(text) > RESULT_SHOWN_CHARACTERS,
    }


def result_links(result: Values) -> list[Values]:
    """The pages of the models and organs that a result names, under `model`, `models`, `organ` and `organs`; and of the
    chimera whose `lock` it has."""
    models = [name for name in _texts(result, "model") if 1 <= name.find("/") < len(name) - 1]
    organs = [digest for digest in _texts(result, "organ") if digest.isalnum()]
    locks = [digest for digest in _texts(result, "lock") if digest.isalnum()]
    links = [{"label": "the chimera", "address": url_for("pages.chimera", lock=digest)} for digest in locks]
    links += [{"label": name, "address": model_address(name)} for name in models]
    links += [{"label": digest[:12], "address": organ_address(digest)} for digest in organs]
    return links[:LINKS_MAX]


def _file_links(job_id: int, result: Values) -> list[Values]:
    """What the job has left to be downloaded, as long as it is there."""
    if "pack" not in result:
        return []
    g.unkept = True  # it goes without a word to the catalog
    path = pack_file(registry().settings.home, result["pack"], result.get("file"))
    if path is None:
        return []
    label = f"download {path.name}, {size_text(path.stat().st_size)}"
    return [{"label": label, "address": url_for("made.job_file", job=job_id, file=path.name)}]


def _texts(result: Values, name: str) -> list[str]:
    """What stands under `name` and its plural, as far as it is short text."""
    one, many = result.get(name), result.get(f"{name}s")
    found = [one, *(many if isinstance(many, list) else [])]
    return [text for text in found if isinstance(text, str) and len(text) <= NAME_MAX]
