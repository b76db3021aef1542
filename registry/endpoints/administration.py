"""Administration: reviews, removals, the event log, contributors, fleets, storage. All need the scope `admin`."""

from __future__ import annotations

from typing import Annotated

from organs.registry.catalog.vocabulary import ADMIN
from organs.registry.endpoints.declaration import CREATED, Group
from organs.registry.endpoints.parameters import (
    LIMIT_DEFAULT,
    After,
    Limit,
    Namespace,
    limit_note,
    note,
    number_note,
)
from organs.registry.entities.account import (
    ContributorAccount,
    ContributorAccountPage,
    ContributorChangeRequest,
    NewContributorRequest,
)
from organs.registry.entities.fleet import FleetRun, FleetRunPage
from organs.registry.entities.published import Removal, RemovalRequest
from organs.registry.entities.server import AdminOverview, EventPage, ServerHealth
from organs.registry.entities.storage import ROWS_DEFAULT, Storage
from organs.registry.entities.submission import RefusalRequest, Submission, SubmissionReviewPage
from organs.registry.names import NAME_MAX_LENGTH

GROUP = Group("Administration", "Reviews, removals, contributors and the event log. Needs the scope `admin`.")
EXAMPLE_SUBMISSIONS = {"approve": "91", "refuse": "92"}
AnyContributor = Annotated[str, note("The contributor's name.", "ada", max_length=NAME_MAX_LENGTH)]
PlainName = Annotated[
    str,
    note(
        "The model's name without a version; the version is in the body.",
        "Zoo-B-2M-v1.0-Q8_0",
        max_length=NAME_MAX_LENGTH,
    ),
]
ByContributor = Annotated[str, note("Only events of this contributor.")]
ByAction = Annotated[str, note("Only this action.")]
StoredRows = Annotated[int, limit_note("Families, and models")]
RunNumber = Annotated[int, number_note("run")]


@GROUP.get("/admin/overview", "Registry overview with the newest events", scope=ADMIN)
def overview() -> AdminOverview:
    """Return the number of submissions to review, models and contributors by state, uploads, and the newest events."""


@GROUP.get("/admin/health", "The health of the server", scope=ADMIN)
def health() -> ServerHealth:
    """Return checks of the server, those that need action first, and the numbers behind them: the queue, the intake,
    the storage, the database, and what went wrong in the process that answers."""


@GROUP.get("/admin/quarantine", "List submissions to review", example="limit=1", scope=ADMIN)
def quarantine(limit: Limit = LIMIT_DEFAULT, after: After | None = None) -> SubmissionReviewPage:
    """Return the submissions that were inspected and need a review, oldest first. Only their contributors and
    administrators see them until an administrator approves them."""


@GROUP.write(
    "post",
    "/admin/submissions/{submission}/approve",
    "Approve a submission",
    refusals=(404, 409),
    scope=ADMIN,
)
def approve_submission(
    submission: Annotated[int, number_note("submission", EXAMPLE_SUBMISSIONS["approve"])],
) -> Submission:
    """Publish the model of a submission. 409 for a submission that is not held for review."""


@GROUP.write(
    "post",
    "/admin/submissions/{submission}/refuse",
    "Refuse a submission",
    example='{"reason": "Its license does not allow it."}',
    refusals=(404, 409),
    scope=ADMIN,
)
def refuse_submission(
    submission: Annotated[int, number_note("submission", EXAMPLE_SUBMISSIONS["refuse"])], body: RefusalRequest
) -> Submission:
    """Refuse a submission; its contributor sees the reason. The next sweeps remove its bytes. 409 for a submission that
    is not held for review."""


@GROUP.write(
    "post",
    "/admin/models/{namespace}/{name}/remove",
    "Remove a model permanently",
    example='{"version": 1, "reason": "It was not theirs to give."}',
    refusals=(404, 409),
    scope=ADMIN,
)
def remove_model(namespace: Namespace, name: PlainName, body: RemovalRequest) -> Removal:
    """Remove a model. Its name, digest and reason stay. Chimeras keep the tensors that they took from it. The next
    sweeps remove bytes that nothing else uses.
    """


@GROUP.get("/admin/events", "Event log", example="limit=1", scope=ADMIN)
def events(
    limit: Limit = LIMIT_DEFAULT,
    after: After | None = None,
    contributor: ByContributor | None = None,
    action: ByAction | None = None,
) -> EventPage:
    """Return the event log, newest first. Entries are never changed or removed."""


@GROUP.get("/admin/contributors", "List contributors with state and quota", example="limit=1", scope=ADMIN)
def contributor_accounts(limit: Limit = LIMIT_DEFAULT, after: After | None = None) -> ContributorAccountPage:
    """Return all contributors, newest first, including those without a visible model."""


@GROUP.write(
    "post",
    "/admin/contributors",
    "Add a contributor",
    status=CREATED,
    example='{"name": "grace", "quota": 5000000000}',
    scope=ADMIN,
)
def add_contributor(body: NewContributorRequest) -> ContributorAccount:
    """Add a contributor without a token. `organ token create`, on the registry's machine, creates one."""


@GROUP.write(
    "patch",
    "/admin/contributors/{contributor}",
    "Suspend a contributor or set a quota",
    example='{"quota": 2000000000}',
    refusals=(404,),
    scope=ADMIN,
)
def change_contributor(contributor: AnyContributor, body: ContributorChangeRequest) -> ContributorAccount:
    """Change the state or the quota of a contributor. Tokens of a suspended contributor stop working at once; published
    models stay."""


@GROUP.get("/admin/fleet", "List runs of fleets", example="limit=1", scope=ADMIN)
def fleet(limit: Limit = LIMIT_DEFAULT, after: After | None = None) -> FleetRunPage:
    """Return the runs of fleets with their progress, newest first."""


@GROUP.get("/admin/fleet/{run}", "Get a run of a fleet", refusals=(404,), scope=ADMIN)
def fleet_progress(run: RunNumber) -> FleetRun:
    """Return the progress of a run, with units that failed or were set aside, and its workers."""


@GROUP.get("/storage", "What is stored how, and what this saves", example="limit=2", scope=ADMIN, is_open_locally=True)
def storage(limit: StoredRows = ROWS_DEFAULT) -> Storage:
    """Return the size of all files and their size on the disk, with families, models and encodings by stored size. On
    a personal server, no token is needed."""
