"""Administration: reviews, removals, the event log, contributors, storage. All operations need the scope `admin`.

Pages call the same functions, after `web.permissions.check_admin`.
"""

from __future__ import annotations

from collections.abc import Collection

from flask import g
from msgspec import UNSET, structs

from organs.ingest.contributions import submissions
from organs.registry.catalog.queries.accounts import (
    account_token,
    contributor_account,
    contributor_by_name,
    token_by_public_id,
)
from organs.registry.catalog.queries.administration import (
    admin_overview,
    all_contributors,
    model_in_any_state,
    removal_of,
    waiting_submissions,
)
from organs.registry.catalog.queries.events import newest_events
from organs.registry.catalog.queries.fleet import fleet_run, fleet_runs
from organs.registry.catalog.queries.submissions import submission_by_id
from organs.registry.catalog.register import accounts, model_changes
from organs.registry.catalog.vocabulary import ADMIN, CONTRIBUTOR_STATES, SCOPES
from organs.registry.endpoints import administration as endpoints
from organs.registry.entities.account import (
    ContributorAccount,
    ContributorAccountPage,
    ContributorChangeRequest,
    CreatedToken,
    NewContributorRequest,
)
from organs.registry.entities.fleet import FleetRun, FleetRunPage
from organs.registry.entities.published import Removal, RemovalRequest
from organs.registry.entities.server import AdminOverview, EventPage, ServerHealth
from organs.registry.entities.storage import Storage
from organs.registry.entities.submission import RefusalRequest, Submission, SubmissionReviewPage
from organs.registry.errors import BadInput, BadRequest
from organs.registry.names import parse_model_name
from organs.registry.relatives import relinking_children
from organs.registry.relatives.storage import storage as stored
from organs.web.api.operation import serves
from organs.web.health import server_health
from organs.web.permissions import user_name
from organs.web.rate_limits import NEW_TOKENS, rates
from organs.web.responses import reading, registry, searching

EVENTS_SHOWN = 10
"""Newest events in the overview."""
FIRST_SCOPES = tuple(scope for scope in SCOPES if scope != ADMIN)
"""The scopes of the first token of a contributor who is added on a page."""
FIRST_LABEL = "first token"
STORAGE_SECONDS = 10.0
"""Time limit. The sizes take about 5 s at a million placements; they are cached until the catalog changes."""


@serves(endpoints.overview)
def overview() -> AdminOverview:
    with searching() as session:
        return admin_overview(session, EVENTS_SHOWN)


@serves(endpoints.health)
def health() -> ServerHealth:
    return server_health()


@serves(endpoints.quarantine)
def quarantine(limit: int, after: str | None) -> SubmissionReviewPage:
    with searching() as session:
        return waiting_submissions(session, limit, after)


@serves(endpoints.approve_submission)
def approve_submission(submission: int) -> Submission:
    submissions.approve_submission(registry(), submission, user_name())
    return decision(submission)


@serves(endpoints.refuse_submission)
def refuse_submission(submission: int, body: RefusalRequest) -> Submission:
    return refuse(submission, body.reason)


def refuse(submission_id: int, reason: str) -> Submission:
    """Refuse the submission with that number. Raises NotFound, Conflict, and BadValue for an empty reason."""
    submissions.refuse_submission(registry(), submission_id, reason, user_name())
    return decision(submission_id)


def decision(submission_id: int) -> Submission:
    """Return a submission as its contributor sees it. Raises NotFound."""
    with searching() as session:
        return submission_by_id(session, submission_id).entity()


@serves(endpoints.remove_model)
def remove_model(namespace: str, name: str, body: RemovalRequest) -> Removal:
    if parse_model_name(f"{namespace}/{name}").version is not None:
        raise BadRequest("name", "The version belongs in the body, not in the address.")
    with registry().catalog.writing() as session:
        model = model_in_any_state(session, parse_model_name(f"{namespace}/{name}@{body.version}"))
        removal = removal_of(session, model)
        with relinking_children(session, model):
            model_changes.remove_model(session, model, body.reason, user_name())
        return structs.replace(removal, state=model.state, reason=model.state_reason)


@serves(endpoints.events)
def events(limit: int, after: str | None, contributor: str | None, action: str | None) -> EventPage:
    with searching() as session:
        return newest_events(session, limit, after, contributor or "", action or "")


@serves(endpoints.contributor_accounts)
def contributor_accounts(limit: int, after: str | None) -> ContributorAccountPage:
    with searching() as session:
        return all_contributors(session, limit, after, default_bytes=registry().settings.quota_bytes)


@serves(endpoints.add_contributor)
def add_contributor(body: NewContributorRequest) -> ContributorAccount:
    with registry().catalog.writing() as session:
        contributor = accounts.add_contributor(session, body.name, user_name(), body.quota)
        return contributor_account(session, contributor, registry().settings.quota_bytes)


def add_with_token(name: str, scopes: Collection[str], days: int | None) -> CreatedToken:
    """Add a contributor with a first token, and return the token with its text, which is not stored.

    Raises BadName; BadInput for a name that exists, and for scopes other than FIRST_SCOPES: a token with the scope
    `admin` is created on the registry's machine only. Raises TooMany.
    """
    if not scopes or not set(scopes) <= set(FIRST_SCOPES):
        raise BadInput(f"a first token has one or more of the scopes {', '.join(FIRST_SCOPES)}")
    rates().hit(NEW_TOKENS, user_name())
    with registry().catalog.writing() as session:
        contributor = accounts.add_contributor(session, name, user_name())
        created = accounts.create_token(session, contributor.id, scopes, FIRST_LABEL, days, user_name())
        token = account_token(session, token_by_public_id(session, created.public_id))
        return CreatedToken(**structs.asdict(token), token=created.text)


@serves(endpoints.change_contributor)
def change_contributor(contributor: str, body: ContributorChangeRequest) -> ContributorAccount:
    if body.state is UNSET and body.quota is UNSET:
        raise BadRequest(None, "The body must have state, quota, or both.")
    if body.state is not UNSET and body.state not in CONTRIBUTOR_STATES:
        raise BadRequest("state", f"state must be {' or '.join(CONTRIBUTOR_STATES)}.")
    return change(contributor, body)


def change(contributor: str, changes: ContributorChangeRequest) -> ContributorAccount:
    """Change the state of a contributor, the quota, or both. Raises NotFound, NotAllowed for `local`."""
    with registry().catalog.writing() as session:
        name = contributor_by_name(session, contributor).name
        if changes.state is not UNSET:
            accounts.set_contributor_state(session, name, changes.state, user_name())
        if changes.quota is not UNSET:
            accounts.set_quota(session, name, changes.quota, user_name())
        row = contributor_by_name(session, name)
        return contributor_account(session, row, registry().settings.quota_bytes)


@serves(endpoints.fleet)
def fleet(limit: int, after: str | None) -> FleetRunPage:
    g.not_cached = True  # the speed changes with the time
    with searching() as session:
        return fleet_runs(session, limit, after)


@serves(endpoints.fleet_progress)
def fleet_progress(run: int) -> FleetRun:
    g.not_cached = True
    with searching() as session:
        return fleet_run(session, run)


@serves(endpoints.storage)
def storage(limit: int) -> Storage:
    with reading(STORAGE_SECONDS) as session:
        return stored(session, limit)
