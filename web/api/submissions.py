"""Submissions: models made of uploaded or stored pieces; they are checked, published or withdrawn.

Pages of a session call the same functions.
"""

from __future__ import annotations

from flask import request

from organs.ingest.contributions import submissions as services
from organs.ingest.contributions.manifest import parse_accepted, parse_manifest, parse_stated_metadata
from organs.ingest.contributions.submissions import settle_abandoned
from organs.registry.catalog.queries.submissions import (
    SubmissionWithJob,
    is_any_abandoned,
    known_contributor_id,
    submission_by_id,
    submissions_page,
)
from organs.registry.endpoints import submissions as endpoints
from organs.registry.endpoints.declaration import Values
from organs.registry.entities.submission import (
    Submission,
    SubmissionMetadata,
    SubmissionPage,
)
from organs.registry.errors import BadInput, BadName, NotAllowed
from organs.registry.names import parse_new_name
from organs.registry.upload_limits import SUBMISSION_MAX_BYTES
from organs.web.api.operation import serves
from organs.web.api.uploads import current_contributor_id, receiving
from organs.web.auth import ADMIN, UPLOAD, identity, need
from organs.web.rate_limits import take_turn
from organs.web.responses import reading, registry, searching, settings

NOBODY = 0
"""An id that no contributor has. It is used for `local` in a registry without contributors."""


def _receive_manifest() -> None:
    """Read the body, which may be large, while one of the places for uploads is held."""
    request.max_content_length = SUBMISSION_MAX_BYTES
    with receiving(current_contributor_id()):
        request.get_data()  # it is kept for the reader of the body
        take_turn()


@serves(endpoints.submit_model, receive=_receive_manifest)
def submit_model(namespace: str, name: str, body: Values) -> Submission:
    wanted = parse_manifest(body)
    account = need(UPLOAD)
    if not account.owns(namespace):
        raise NotAllowed(f"{namespace[:96]} is not your namespace: use {account.name}/{name[:96]}")
    _check_plain(name)
    full_name = parse_new_name(f"{namespace if account.is_local else account.name}/{name}")
    return own_submission(services.submit(registry(), account.name or "", full_name, wanted)).entity()


@serves(endpoints.submissions)
def submissions(limit: int, after: str | None) -> SubmissionPage:
    return own_submissions(limit, after)


def own_submissions(limit: int, after: str | None = None) -> SubmissionPage:
    """Return a page of the user's submissions, newest first. Raises BadQuery."""
    owner_id = _owner_id()
    with searching() as session:
        return submissions_page(session, limit, after, contributor_id=owner_id)


@serves(endpoints.submission)
def submission(submission: int) -> Submission:
    return own_submission(submission).entity()


def own_submission(submission_id: int) -> SubmissionWithJob:
    """Return a submission of the user. Raises NotFound, also for submissions of others."""
    owner_id = _owner_id()
    with searching() as session:
        return submission_by_id(session, submission_id, owner_id)


def shown_submission(submission_id: int) -> SubmissionWithJob:
    """Return a submission that the user may see; administrators see all submissions. Raises NotFound."""
    if not identity().may(ADMIN) or settings().read_only:
        return own_submission(submission_id)
    with searching() as session:
        return submission_by_id(session, submission_id)


@serves(endpoints.publish_submission)
def publish_submission(submission: int, body: Values) -> Submission:
    stated = parse_stated_metadata(body.get("metadata"))
    accepted, name = parse_accepted(body.get("accept")), body.get("name")
    if name is not None and not isinstance(name, str):
        raise BadInput("name must be a text")
    return publish(submission, stated, name, accepted).entity()


def publish(
    submission_id: int, metadata: SubmissionMetadata, name: str | None = None, accepted: tuple[str, ...] = ()
) -> SubmissionWithJob:
    """Publish a checked submission of the user, under `name` in their namespace if a name is given."""
    if name is not None:
        _check_plain(name)
    services.publish(registry(), need(UPLOAD).name or "", submission_id, metadata, name, accepted)
    return own_submission(submission_id)


@serves(endpoints.withdraw_submission)
def withdraw_submission(submission: int) -> Submission:
    services.withdraw(registry(), need(UPLOAD).name or "", submission)
    return own_submission(submission).entity()


def _check_plain(name: str) -> None:
    """Raise BadName if `name` is not a model's name without namespace and version."""
    if "/" in name or "@" in name:
        raise BadName(f"{name[:100]!r} is not a valid name: give it without namespace and version")
    parse_new_name(f"namespace/{name}")


def _owner_id() -> int:
    """Return the contributor id of the user. Settles submissions whose job was interrupted first."""
    account = need(UPLOAD)
    with reading() as session:
        has_abandoned = is_any_abandoned(session)
    if has_abandoned and not settings().read_only:
        settle_abandoned(registry())
    if account.account is not None:
        return account.account.contributor_id
    with reading() as session:
        return known_contributor_id(session, account.name or "") or NOBODY
