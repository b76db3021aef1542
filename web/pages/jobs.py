"""Jobs: what takes longer than a request, how far it is, what came of it."""

from __future__ import annotations

import json

from flask import g, request, url_for

from organs.ingest.jobs.packs import pack_file
from organs.registry.catalog.queries.jobs import job_by_id, newest_jobs
from organs.registry.catalog.register.jobs import cancel_job
from organs.registry.present.chimeras import lock_of_name
from organs.registry.present.jobs import ACTIVE, PACK, job_result, job_values, jobs_values
from organs.registry.present.text import size_text
from organs.registry.present.values import Values
from organs.web.answers import Page, paged, reading, registry, settings
from organs.web.asked import asked_after, asked_limit, parsed_job
from organs.web.forms import writing_form
from organs.web.identity import ANY
from organs.web.links import with_parameters
from organs.web.pages.blueprint import pages
from organs.web.pages.outcomes import outcome
from organs.web.writing import whose_jobs

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
