"""What administrators do, as pages and the API ask for it. Who is none gets no further than `admitted` or a scope."""

from __future__ import annotations

from http import HTTPStatus

from flask import abort, redirect, request, url_for

from organs.ingest.contributions.submissions import (
    approve_submission,
    refuse_submission,
)
from organs.registry.catalog.queries.accounts import contributor_by_name
from organs.registry.catalog.queries.administration import submission_by_id
from organs.registry.catalog.queries.removing import model_in_any_state, removal_of
from organs.registry.catalog.register.accounts import add_contributor, set_contributor_state, set_quota
from organs.registry.catalog.register.states import remove_model
from organs.registry.errors import NotFound
from organs.registry.names import parse_model_name
from organs.registry.present.accounts import contributor_account_values
from organs.registry.present.administration import decision_values, removal_values
from organs.registry.present.values import Values
from organs.web.auth import (
    ADMIN,
    identity,
    need,
)
from organs.web.permissions import ONLY_READS
from organs.web.responses import (
    plain_page,
    reading,
    registry,
    settings,
)

ID_MAX = 2**63 - 1
LEAVE = object()
"""A quota that is not to be changed; None is what the server gives to everybody."""


def admitted() -> None:
    """Let an administrator see a page: anybody is asked to log in, and for everybody else there is no such page."""
    if settings().read_only:
        abort(404, ONLY_READS)
    found = identity()
    if found.may(ADMIN):
        return
    if found.name is not None:
        abort(404)  # in the words for an address that there is not
    if plain_page():
        abort(redirect(url_for("pages.login", next=request.script_root + request.path), HTTPStatus.SEE_OTHER))
    need(ADMIN)


def approve(submission: str) -> Values:
    """Publish what waits under that number; what became of it. Raises NotFound, Conflict for what does not wait."""
    submission_id = parsed_submission(submission)
    approve_submission(registry(), submission_id, _by())
    return _decided(submission_id)


def refuse(submission: str, reason: str) -> Values:
    """Refuse it; what became of it. Raises the same, and BadValue for a reason that says nothing."""
    submission_id = parsed_submission(submission)
    refuse_submission(registry(), submission_id, reason, _by())
    return _decided(submission_id)


def decided(submission: str) -> Values | None:
    """What was decided of the submission of that number; None where there is none, or nothing was."""
    try:
        values = _decided(parsed_submission(submission))
    except NotFound:
        return None
    return values if values["state"] in ("published", "refused") else None


def remove(name: str, reason: str) -> Values:
    """Remove it; what went. Raises NotFound, BadName, BadValue for a reason that says nothing and what is gone."""
    with registry().catalog.writing() as session:
        model = model_in_any_state(session, parse_model_name(name))
        going = removal_of(session, model)
        remove_model(session, model, reason, _by())
        return removal_values(model, going)


def add(name: str, quota_bytes: int | None) -> Values:
    """A new contributor, who has no token yet. Raises BadName, BadInput."""
    with registry().catalog.writing() as session:
        found = add_contributor(session, name, _by(), quota_bytes)
        return contributor_account_values(session, found, registry().settings.quota_bytes)


def change(contributor: str, state: str | None = None, quota_bytes: object = LEAVE) -> Values:
    """Another state, another quota, or both. Raises NotFound, NotAllowed for `local`."""
    with registry().catalog.writing() as session:
        name = contributor_by_name(session, contributor).name
        if state is not None:
            set_contributor_state(session, name, state, _by())
        if quota_bytes is not LEAVE:
            assert quota_bytes is None or isinstance(quota_bytes, int)
            set_quota(session, name, quota_bytes, _by())
        found = contributor_by_name(session, name)
        return contributor_account_values(session, found, registry().settings.quota_bytes)


def parsed_submission(text: str) -> int:
    """The number of a submission that stands in an address; raises NotFound for what is none."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and 1 <= int(text) <= ID_MAX):
        raise NotFound(f"{text[:40]!r} is no number of a submission")
    return int(text)


def _decided(submission_id: int) -> Values:
    with reading(settings().search_seconds) as session:
        return decision_values(*submission_by_id(session, submission_id))


def _by() -> str:
    name = identity().name
    assert name is not None, "nobody in particular was let in"
    return name
