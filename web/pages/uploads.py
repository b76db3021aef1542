"""Uploading in the browser: uploads, the findings of a submission, its description, and publishing."""

from __future__ import annotations

from collections.abc import Sequence

from flask import request, url_for
from sqlalchemy.orm import Session

from organs.ingest.contributions.findings import MUST_ACCEPT
from organs.ingest.contributions.manifest import (
    FIELDS,
    BadManifest,
    parse_accepted,
    parse_stated_metadata,
)
from organs.ingest.contributions.submissions import files_of, whole_uploads
from organs.registry.catalog.engine import database_now
from organs.registry.catalog.queries.administration import submission_review
from organs.registry.catalog.queries.submissions import (
    UNDER_WAY,
    SubmissionWithJob,
    finished_files,
    open_submissions,
    open_uploads,
    upload_entity,
)
from organs.registry.catalog.tables import UploadRow
from organs.registry.endpoints.declaration import ROOT
from organs.registry.entities.submission import SubmissionMetadata
from organs.registry.errors import BadInput, BadName, NotComposable
from organs.web.api import accounts, submissions, uploads
from organs.web.api.uploads import current_contributor_id
from organs.web.auth import UPLOAD, identity, need
from organs.web.pages.routes import Context, WebPage, paged, writing_form
from organs.web.params import parsed_number
from organs.web.permissions import may_write
from organs.web.responses import reading, searching

SHOWN = 20
"""Number of submissions on the upload page. The account page lists all of them."""


@paged("/upload")
def upload() -> WebPage:
    """Show the upload form, with the user's unfinished uploads and submissions."""
    values: Context = {"namespace": None, "uploads": [], "finished": [], "waiting": []}
    addresses = {
        "api": request.script_root + ROOT,
        "submissions": f"{request.script_root}/submissions",
        "login": url_for("pages.login", next=url_for("pages.upload")),
    }
    if not may_write(UPLOAD):
        return WebPage("upload.html", {**values, **addresses, "quota": None, "is_local": False}, body=values)
    user, owner_id = need(UPLOAD), current_contributor_id()
    with reading() as session:
        unfinished = open_uploads(session, owner_id, database_now(session))
        open_files = [upload for upload in unfinished if upload.kind == "file"]
        unused = _unused_uploads(session, owner_id)
        listed, finished = ([upload_entity(row) for row in rows] for rows in (open_files, unused))
    waiting = submissions.own_submissions(SHOWN).items
    values = {"namespace": user.name, "uploads": listed, "finished": finished, "waiting": waiting}
    quota = None if user.is_local else accounts.account().quota  # the local user has no quota
    return WebPage("upload.html", {**values, **addresses, "quota": quota, "is_local": user.is_local}, body=values)


@paged("/submissions/<submission>")
def submission(submission: str) -> WebPage:
    """Show a submission: progress, findings, and the form to publish it. Administrators see all submissions."""
    row = submissions.shown_submission(parsed_number(submission, "submission"))
    shown = row.entity()
    proposed = shown.proposed
    stated = {name: "" if proposed is None else getattr(proposed, name) or "" for name in FIELDS}
    stated |= {"name": shown.name, "tags": ", ".join(proposed.tags if proposed is not None else ())}
    return WebPage("submission.html", lambda: _review_context(row, stated), body=shown)


@writing_form("/submissions/<submission>/publish")
def publish_submission(submission: str) -> str | WebPage:
    """Publish a submission with the metadata of the form. On an error, show the form again with its values."""
    number = parsed_number(submission, "submission")
    try:
        name = request.form.get("name", "").strip()
        accepted = parse_accepted(request.form.getlist("accept"))
        submissions.publish(number, _stated_metadata(number), name or None, accepted)
    except BadManifest as error:
        return _form_with_problems(number, [sentence for _, sentence in error.reasons])
    except (BadInput, BadName, NotComposable) as error:
        return _form_with_problems(number, [str(error)])
    return url_for("pages.submission", submission=submission)


@writing_form("/submissions/<submission>/withdraw")
def withdraw_submission(submission: str) -> str:
    """Withdraw a submission, and show it again."""
    submissions.withdraw_submission(parsed_number(submission, "submission"))
    return url_for("pages.submission", submission=submission)


@writing_form("/uploads/<upload>/cancel")
def cancel_upload(upload: str) -> str:
    """Remove an unfinished or finished upload."""
    uploads.cancel_upload(upload)
    return url_for("pages.upload")


def _unused_uploads(session: Session, owner_id: int) -> list[UploadRow]:
    """Return the complete uploads that no submission uses."""
    files = finished_files(session, owner_id, database_now(session))
    waiting = open_submissions(session, owner_id, UNDER_WAY) if files else ()
    used = {upload for submission in waiting for upload in whole_uploads(files_of(submission))}
    return [file for file in files if file.public_id not in used]


def _stated_metadata(number: int) -> SubmissionMetadata:
    """Return the metadata in the form, without empty fields. Raises BadManifest.

    A license that equals the proposed license is also left out: it comes from the header of the file, and a header may
    contain any text.
    """
    values: Context = {name: request.form.get(name, "").strip() or None for name in FIELDS}
    proposed = submissions.own_submission(number).entity().proposed
    if values["license"] == ((proposed and proposed.license) or "").strip():
        values["license"] = None
    if values["tags"] is not None:
        values["tags"] = [tag.strip() for tag in values["tags"].split(",") if tag.strip()]
    if values["description"] is not None:
        values["description"] = values["description"].replace("\r\n", "\n")
    return parse_stated_metadata({name: value for name, value in values.items() if value is not None})


def _form_with_problems(number: int, problems: Sequence[str]) -> WebPage:
    row = submissions.own_submission(number)
    stated = {name: request.form.get(name, "") for name in ("name", *FIELDS)}
    return WebPage("submission.html", _review_context(row, stated, problems), status=400)


def _review_context(submission: SubmissionWithJob, stated: Context, problems: Sequence[str] = ()) -> Context:
    """Return a submission, with the sender if it is another account, the findings to accept, the metadata of the model,
    and the form with the `stated` values and its `problems`."""
    sender, row = None if submission.contributor == identity().name else submission.contributor, submission.row
    shown = submission.entity()
    context: Context = {
        "submission": shown,
        "sender": sender,
        "created": None,
        "is_kept": False,
        "findings_to_accept": [finding for finding in shown.findings if finding.code in MUST_ACCEPT],
        "stated": stated,
        "problems": problems,
    }
    with searching() as session:
        if submission.model is not None and submission.model.state != "removed":
            context["created"] = submission_review(session, row.id).model
        if row.state == "withdrawn" and sender is None:
            files = _unused_uploads(session, row.contributor_id)
            context["is_kept"] = any(file.created_at <= row.created_at for file in files)
    return context
