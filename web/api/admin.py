"""Administration: reviews, removals, the event log, contributors, storage. All operations need the scope `admin`.

Pages call the same functions, after `web.permissions.check_admin`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from flask import g, request
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
from organs.registry.catalog.vocabulary import CONTRIBUTOR_STATES, SCOPES
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
from organs.registry.entities.storage import ROWS_DEFAULT, ROWS_MAX, Storage
from organs.registry.entities.submission import RefusalRequest, Submission, SubmissionReviewPage
from organs.registry.errors import BadInput, BadRequest, NoSuchRun
from organs.registry.names import parse_model_name
from organs.registry.relatives.storage import storage as stored
from organs.web.api.operation import ROOT, operation, read_body, writing_operation
from organs.web.auth import ADMIN
from organs.web.health import server_health
from organs.web.params import (
    AFTER,
    LIMIT,
    NAMESPACE,
    STORAGE_ROWS,
    Parameter,
    number_parameter,
    parsed_number,
    path_parameter,
    requested_limit,
    requested_page,
)
from organs.web.permissions import user_name
from organs.web.rate_limits import NEW_TOKENS, rates
from organs.web.responses import reading, registry, searching

GROUP = "Administration"
CREATED = 201
EXAMPLES = {"approve": "91", "refuse": "92"}
"""The submissions of the examples."""
_WORD: dict[str, Any] = {"type": "string", "maxLength": 96}
CONTRIBUTOR = path_parameter("contributor", "The contributor's name.", _WORD, "ada")
RUN = number_parameter("run")
BY = Parameter("contributor", "Only events of this contributor.", {"type": "string"}, "")
ACTION = Parameter("action", "Only this action.", {"type": "string"}, "")
PLAIN_NAME = path_parameter(
    "name",
    "The model's name without a version; the version is in the body.",
    {"type": "string", "maxLength": 96},
    "Zoo-B-2M-v1.0-Q8_0",
)


EVENTS_SHOWN = 10
"""Newest events in the overview."""
FIRST_SCOPES = tuple(scope for scope in SCOPES if scope != ADMIN)
"""The scopes of the first token of a contributor who is added on a page."""
FIRST_LABEL = "first token"
STORAGE_SECONDS = 10.0
"""Time limit. The sizes take about 5 s at a million placements; they are cached until the catalog changes."""


@operation(GROUP, "/admin/overview", "Registry overview with the newest events", scope=ADMIN)
def overview() -> AdminOverview:
    """Return the number of submissions to review, models and contributors by state, uploads, and the newest events."""
    with searching() as session:
        return admin_overview(session, EVENTS_SHOWN)


@operation(GROUP, "/admin/health", "The health of the server", scope=ADMIN)
def health() -> ServerHealth:
    """Return checks of the server, those that need action first, and the numbers behind them: the queue, the intake,
    the storage, the database, and what went wrong in the process that answers."""
    return server_health()


@operation(
    GROUP,
    "/admin/quarantine",
    "List submissions to review",
    LIMIT,
    AFTER,
    example=f"{ROOT}/admin/quarantine?limit=1",
    scope=ADMIN,
)
def quarantine() -> SubmissionReviewPage:
    """Return the submissions that were inspected and need a review, oldest first. Only their contributors and
    administrators see them until an administrator approves them."""
    with searching() as session:
        return waiting_submissions(session, *requested_page())


@writing_operation(
    GROUP,
    "/admin/submissions/{submission}/approve",
    "Approve a submission",
    number_parameter("submission", EXAMPLES["approve"]),
    refusals=(404, 409),
    scope=ADMIN,
)
def approve_submission(submission: str) -> Submission:
    """Publish the model of a submission. 409 for a submission that is not held for review."""
    submission_id = parsed_number(submission, "submission")
    submissions.approve_submission(registry(), submission_id, user_name())
    return decision(submission_id)


@writing_operation(
    GROUP,
    "/admin/submissions/{submission}/refuse",
    "Refuse a submission",
    number_parameter("submission", EXAMPLES["refuse"]),
    body=RefusalRequest,
    example='{"reason": "Its license does not allow it."}',
    refusals=(404, 409),
    scope=ADMIN,
)
def refuse_submission(submission: str) -> Submission:
    """Refuse a submission; its contributor sees the reason. The next sweeps remove its bytes. 409 for a submission that
    is not held for review."""
    return refuse(submission, read_body(RefusalRequest).reason)


def refuse(submission: str, reason: str) -> Submission:
    """Refuse the submission with that number. Raises NotFound, Conflict, and BadValue for an empty reason."""
    submission_id = parsed_number(submission, "submission")
    submissions.refuse_submission(registry(), submission_id, reason, user_name())
    return decision(submission_id)


def decision(submission_id: int) -> Submission:
    """Return a submission as its contributor sees it. Raises NotFound."""
    with searching() as session:
        return submission_by_id(session, submission_id).entity()


@writing_operation(
    GROUP,
    "/admin/models/{namespace}/{name}/remove",
    "Remove a model permanently",
    NAMESPACE,
    PLAIN_NAME,
    body=RemovalRequest,
    example='{"version": 1, "reason": "It was not theirs to give."}',
    refusals=(404, 409),
    scope=ADMIN,
)
def remove_model(namespace: str, name: str) -> Removal:
    """Remove a model. Its name, digest and reason stay. Chimeras keep the organs that they took from it. The next
    sweeps remove bytes that nothing else uses.
    """
    body = read_body(RemovalRequest)
    if parse_model_name(f"{namespace}/{name}").version is not None:
        raise BadRequest("name", "The version belongs in the body, not in the address.")
    with registry().catalog.writing() as session:
        model = model_in_any_state(session, parse_model_name(f"{namespace}/{name}@{body.version}"))
        removal = removal_of(session, model)
        model_changes.remove_model(session, model, body.reason, user_name())
        return structs.replace(removal, state=model.state, reason=model.state_reason)


@operation(
    GROUP, "/admin/events", "Event log", LIMIT, AFTER, BY, ACTION, example=f"{ROOT}/admin/events?limit=1", scope=ADMIN
)
def events() -> EventPage:
    """Return the event log, newest first. Entries are never changed or removed."""
    contributor, action = (request.args.get(name, "").strip() for name in ("contributor", "action"))
    with searching() as session:
        return newest_events(session, *requested_page(), contributor, action)


@operation(
    GROUP,
    "/admin/contributors",
    "List contributors with state and quota",
    LIMIT,
    AFTER,
    example=f"{ROOT}/admin/contributors?limit=1",
    scope=ADMIN,
)
def contributor_accounts() -> ContributorAccountPage:
    """Return all contributors, newest first, including those without a visible model."""
    with searching() as session:
        return all_contributors(session, *requested_page(), default_bytes=registry().settings.quota_bytes)


@writing_operation(
    GROUP,
    "/admin/contributors",
    "Add a contributor",
    status=CREATED,
    body=NewContributorRequest,
    example='{"name": "grace", "quota": 5000000000}',
    scope=ADMIN,
)
def add_contributor() -> ContributorAccount:
    """Add a contributor without a token. `organ token create`, on the registry's machine, creates one."""
    body = read_body(NewContributorRequest)
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


@writing_operation(
    GROUP,
    "/admin/contributors/{contributor}",
    "Suspend a contributor or set a quota",
    CONTRIBUTOR,
    method="patch",
    body=ContributorChangeRequest,
    example='{"quota": 2000000000}',
    refusals=(404,),
    scope=ADMIN,
)
def change_contributor(contributor: str) -> ContributorAccount:
    """Change the state or the quota of a contributor. Tokens of a suspended contributor stop working at once; published
    models stay."""
    changes = read_body(ContributorChangeRequest)
    if changes.state is UNSET and changes.quota is UNSET:
        raise BadRequest(None, "The body must have state, quota, or both.")
    if changes.state is not UNSET and changes.state not in CONTRIBUTOR_STATES:
        raise BadRequest("state", f"state must be {' or '.join(CONTRIBUTOR_STATES)}.")
    return change(contributor, changes)


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


@operation(
    GROUP, "/admin/fleet", "List runs of fleets", LIMIT, AFTER, example=f"{ROOT}/admin/fleet?limit=1", scope=ADMIN
)
def fleet() -> FleetRunPage:
    """Return the runs of fleets with their progress, newest first."""
    g.not_cached = True  # the speed changes with the time
    with searching() as session:
        return fleet_runs(session, *requested_page())


@operation(GROUP, "/admin/fleet/{run}", "Get a run of a fleet", RUN, refusals=(404,), scope=ADMIN)
def fleet_progress(run: str) -> FleetRun:
    """Return the progress of a run, with units that failed or were set aside, and its workers."""
    run_id = parsed_number(run, "run", NoSuchRun)
    g.not_cached = True
    with searching() as session:
        return fleet_run(session, run_id)


@operation(
    GROUP,
    "/storage",
    "What is stored how, and what this saves",
    STORAGE_ROWS,
    example=f"{ROOT}/storage?limit=2",
    scope=ADMIN,
    is_open_locally=True,
)
def storage() -> Storage:
    """Return the size of all files and their size on the disk, with families, models and encodings by stored size. On
    a personal server, no token is needed."""
    limit = requested_limit(ROWS_DEFAULT, ROWS_MAX)
    with reading(STORAGE_SECONDS) as session:
        return stored(session, limit)
