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
from organs.registry.entities.submission import (
    PublicationRequest,
    Submission,
    SubmissionMetadata,
    SubmissionPage,
    SubmissionRequest,
)
from organs.registry.errors import BadInput, BadName, NotAllowed
from organs.registry.names import parse_new_name
from organs.registry.upload_limits import SUBMISSION_MAX_BYTES
from organs.web.api.operation import ACCEPTED, ROOT, json_body, operation, writing_operation
from organs.web.api.uploads import current_contributor_id, receiving
from organs.web.auth import ADMIN, UPLOAD, identity, need
from organs.web.params import (
    AFTER,
    LIMIT,
    NAMESPACE,
    number_parameter,
    parsed_number,
    path_parameter,
    requested_page,
)
from organs.web.rate_limits import take_turn
from organs.web.responses import reading, registry, searching, settings

GROUP = "Submissions"
EXAMPLES = {"shown": "101", "ready": "102", "withdrawn": "103"}
"""The submissions of the examples."""
NOBODY = 0
"""An id that no contributor has. It is used for `local` in a registry without contributors."""
EXAMPLE_MANIFEST = (
    '{"files": [{"name": "Tiny.gguf", "size_bytes": 96, "sha256": '
    '"2ea9ab9198d1638007400cd2c3bef1cc745b864b76011a0e1bc52180ac6452d4", "pieces": []}], '
    '"metadata": {"license": "apache-2.0", "base": "local/Zoo-A-2M-v1.0-F16"}, "publish": true}'
)
NEW_NAME = path_parameter(
    "name",
    "The name of the model. If the name exists with other bytes, the model becomes its next version.",
    {"type": "string", "pattern": "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", "maxLength": 96},
    "Tiny",
)


@writing_operation(
    GROUP,
    "/models/{namespace}/{name}",
    "Submit a model",
    NAMESPACE,
    NEW_NAME,
    method="put",
    status=ACCEPTED,
    body=SubmissionRequest,
    example=EXAMPLE_MANIFEST,
)
def submit_model(namespace: str, name: str) -> Submission:
    """Submit the files of a model, in your own namespace. Each file is a complete upload, or consists of pieces that
    were uploaded before or are stored already, with zeros between them. A job checks the files; then the model is
    published, or waits for you if `publish` is false. Repeating the request while the submission is open returns the
    same submission.
    """
    request.max_content_length = SUBMISSION_MAX_BYTES
    with receiving(current_contributor_id()):
        request.get_data()  # reads and keeps the body for `json_body`
        take_turn()
    wanted = parse_manifest(json_body(SubmissionRequest))
    account = need(UPLOAD)
    if not account.owns(namespace):
        raise NotAllowed(f"{namespace[:96]} is not your namespace: use {account.name}/{name[:96]}")
    _check_plain(name)
    full_name = parse_new_name(f"{namespace if account.is_local else account.name}/{name}")
    return own_submission(services.submit(registry(), account.name or "", full_name, wanted)).entity()


@operation(
    GROUP, "/submissions", "List your submissions", LIMIT, AFTER, example=f"{ROOT}/submissions?limit=1", scope=UPLOAD
)
def submissions() -> SubmissionPage:
    """Return your submissions with their states, newest first."""
    return own_submissions(*requested_page())


def own_submissions(limit: int, after: str | None = None) -> SubmissionPage:
    """Return a page of the user's submissions, newest first. Raises BadQuery."""
    owner_id = _owner_id()
    with searching() as session:
        return submissions_page(session, limit, after, contributor_id=owner_id)


@operation(
    GROUP,
    "/submissions/{submission}",
    "Get a submission",
    number_parameter("submission", EXAMPLES["shown"]),
    refusals=(404,),
    scope=UPLOAD,
)
def submission(submission: str) -> Submission:
    """Return progress, findings and header data of a submission. 404 for submissions of others."""
    return own_submission(parsed_number(submission, "submission")).entity()


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


@writing_operation(
    GROUP,
    "/submissions/{submission}/publish",
    "Publish a submission",
    number_parameter("submission", EXAMPLES["ready"]),
    status=ACCEPTED,
    body=PublicationRequest,
    example='{"metadata": {"title": "Tiny", "license": "MIT"}}',
    refusals=(404, 409),
)
def publish_submission(submission: str) -> Submission:
    """Publish a submission with this metadata, and under another name if one is given. 409 if it is not `ready`; 400 if
    a finding that must be accepted (`non-finite-weights`) is missing from `accept`.
    """
    body = json_body(PublicationRequest)
    stated = parse_stated_metadata(body.get("metadata"))
    accepted = parse_accepted(body.get("accept"))
    submission_id, name = parsed_number(submission, "submission"), body.get("name")
    if name is not None and not isinstance(name, str):
        raise BadInput("name must be a text")
    return publish(submission_id, stated, name, accepted).entity()


def publish(
    submission_id: int, metadata: SubmissionMetadata, name: str | None = None, accepted: tuple[str, ...] = ()
) -> SubmissionWithJob:
    """Publish a checked submission of the user, under `name` in their namespace if a name is given."""
    if name is not None:
        _check_plain(name)
    services.publish(registry(), need(UPLOAD).name or "", submission_id, metadata, name, accepted)
    return own_submission(submission_id)


@writing_operation(
    GROUP,
    "/submissions/{submission}",
    "Withdraw a submission",
    number_parameter("submission", EXAMPLES["withdrawn"]),
    method="delete",
    refusals=(404, 409),
)
def withdraw_submission(submission: str) -> Submission:
    """Withdraw a submission that is being checked, is ready, or waits for an administrator; 409 otherwise. The uploaded
    bytes are kept until they expire."""
    submission_id = parsed_number(submission, "submission")
    services.withdraw(registry(), need(UPLOAD).name or "", submission_id)
    return own_submission(submission_id).entity()


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
