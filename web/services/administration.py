"""Services for administrators. Callers must check the scope `admin` first, for example by `check_admin`."""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus

from flask import abort, redirect, request, url_for
from msgspec import UNSET, structs

from organs.ingest.contributions.submissions import (
    approve_submission,
    refuse_submission,
)
from organs.registry.catalog.queries.accounts import (
    account_token,
    contributor_account,
    contributor_by_name,
    token_by_public_id,
)
from organs.registry.catalog.queries.administration import (
    model_in_any_state,
    removal_of,
    submission_review,
)
from organs.registry.catalog.register.accounts import add_contributor, create_token, set_contributor_state, set_quota
from organs.registry.catalog.register.model_changes import remove_model
from organs.registry.catalog.vocabulary import SCOPES
from organs.registry.entities.account import ContributorAccount, ContributorChangeRequest, CreatedToken
from organs.registry.entities.administration import Removal
from organs.registry.entities.submission import Decision
from organs.registry.errors import BadInput, NotFound
from organs.registry.names import parse_model_name
from organs.web.auth import (
    ADMIN,
    identity,
    need,
)
from organs.web.permissions import ONLY_READS
from organs.web.rate_limits import NEW_TOKENS, rates
from organs.web.responses import (
    plain_page,
    reading,
    registry,
    settings,
)

ID_MAX = 2**63 - 1
FIRST_SCOPES = tuple(scope for scope in SCOPES if scope != ADMIN)
"""The scopes of the first token of a contributor who is added on a page."""
FIRST_LABEL = "first token"


def check_admin() -> None:
    """Allow the current page only for administrators.

    Redirects a user without an account to the log-in, and answers 404 to users without the scope.
    """
    if settings().read_only:
        abort(404, ONLY_READS)
    client = identity()
    if client.may(ADMIN):
        return
    if client.name is not None:
        abort(404)  # the same message as for an address that does not exist
    if plain_page():
        abort(redirect(url_for("pages.login", next=request.script_root + request.path), HTTPStatus.SEE_OTHER))
    need(ADMIN)


def approve(submission: str) -> Decision:
    """Publish the submission with that number. Raises NotFound, and Conflict if it does not wait for a decision."""
    submission_id = parsed_submission(submission)
    approve_submission(registry(), submission_id, _administrator())
    return _decided(submission_id)


def refuse(submission: str, reason: str) -> Decision:
    """Refuse the submission with that number. Raises as `approve`, and BadValue for an empty reason."""
    submission_id = parsed_submission(submission)
    refuse_submission(registry(), submission_id, reason, _administrator())
    return _decided(submission_id)


def decided(submission: str) -> Decision | None:
    """Return the decision about the submission with that number; None if it is undecided or does not exist."""
    try:
        decision = _decided(parsed_submission(submission))
    except NotFound:
        return None
    return decision if decision.state in ("published", "refused") else None


def remove(name: str, reason: str) -> Removal:
    """Remove a model, and return what was removed. Raises NotFound, BadName, BadValue for an empty reason."""
    with registry().catalog.writing() as session:
        model = model_in_any_state(session, parse_model_name(name))
        removal = removal_of(session, model)
        remove_model(session, model, reason, _administrator())
        return structs.replace(removal, state=model.state, reason=model.state_reason)


def add(name: str, quota_bytes: int | None) -> ContributorAccount:
    """Add a contributor without a token, and return the account. Raises BadName, BadInput."""
    with registry().catalog.writing() as session:
        contributor = add_contributor(session, name, _administrator(), quota_bytes)
        return contributor_account(session, contributor, registry().settings.quota_bytes)


def add_with_token(name: str, scopes: Collection[str], days: int | None) -> CreatedToken:
    """Add a contributor with a first token, and return the token with its text, which is not stored.

    Raises BadName; BadInput for a name that exists, and for scopes other than FIRST_SCOPES: a token with the scope
    `admin` is created on the registry's machine only. Raises TooMany.
    """
    if not scopes or not set(scopes) <= set(FIRST_SCOPES):
        raise BadInput(f"a first token has one or more of the scopes {', '.join(FIRST_SCOPES)}")
    rates().hit(NEW_TOKENS, _administrator())
    with registry().catalog.writing() as session:
        contributor = add_contributor(session, name, _administrator())
        created = create_token(session, contributor.id, scopes, FIRST_LABEL, days, _administrator())
        token = account_token(session, token_by_public_id(session, created.public_id))
        return CreatedToken(**structs.asdict(token), token=created.text)


def change(contributor: str, changes: ContributorChangeRequest) -> ContributorAccount:
    """Change the state of a contributor, the quota, or both. Raises NotFound, NotAllowed for `local`."""
    with registry().catalog.writing() as session:
        name = contributor_by_name(session, contributor).name
        if changes.state is not UNSET:
            set_contributor_state(session, name, changes.state, _administrator())
        if changes.quota is not UNSET:
            set_quota(session, name, changes.quota, _administrator())
        row = contributor_by_name(session, name)
        return contributor_account(session, row, registry().settings.quota_bytes)


def parsed_submission(text: str) -> int:
    """Return the number of a submission from the text in a URL. Raises NotFound for an invalid number."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and 1 <= int(text) <= ID_MAX):
        raise NotFound(f"{text[:40]!r} is not the number of a submission")
    return int(text)


def _decided(submission_id: int) -> Decision:
    with reading(settings().search_seconds) as session:
        review = submission_review(session, submission_id)
    model = review.model
    return Decision(
        id=review.id,
        name=review.name,
        state=review.state,
        model=None if model is None else model.name,
        address=f"/models/{model.name}" if model is not None and model.state == "visible" else None,
        reason=review.reason,
    )


def _administrator() -> str:
    """Return the name of the current user, for the records."""
    name = identity().name
    assert name is not None, "the user has no account"
    return name
