"""Submissions: models made of uploaded or stored pieces; they are checked, published or withdrawn."""

from __future__ import annotations

from flask import request

from organs.ingest.contributions.manifest import parse_accepted, parse_manifest, parse_stated_metadata
from organs.registry.entities.submission import PublicationRequest, Submission, SubmissionPage, SubmissionRequest
from organs.registry.upload_limits import SUBMISSION_MAX_BYTES
from organs.web.api.operation import (
    ACCEPTED,
    AFTER,
    LIMIT,
    NAMESPACE,
    ROOT,
    Parameter,
    json_body,
    operation,
    writing_operation,
)
from organs.web.api.uploads import current_contributor_id
from organs.web.auth import UPLOAD
from organs.web.params import (
    requested_after,
    requested_limit,
)
from organs.web.rate_limits import take_turn
from organs.web.services import contributions as submitting
from organs.web.services.contributions import receiving

GROUP = "Submissions"
EXAMPLES = {"shown": "101", "ready": "102", "withdrawn": "103"}
"""The submissions of the examples."""
EXAMPLE_MANIFEST = (
    '{"files": [{"name": "Tiny.gguf", "size_bytes": 96, "sha256": '
    '"2ea9ab9198d1638007400cd2c3bef1cc745b864b76011a0e1bc52180ac6452d4", "pieces": []}], '
    '"metadata": {"license": "apache-2.0", "base": "local/Zoo-A-2M-v1.0-F16"}, "publish": true}'
)
NEW_NAME = Parameter(
    "name",
    "The name of the model. If the name exists with other bytes, the model becomes its next version.",
    {"type": "string", "pattern": "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", "maxLength": 96},
    "Tiny",
    where="path",
    required=True,
)


def _submission(example: str) -> Parameter:
    schema = {"type": "string", "pattern": "^[0-9]{1,19}$"}
    return Parameter("submission", "The number of the submission.", schema, example, where="path", required=True)


@writing_operation(
    "/models/{namespace}/{name}",
    method="put",
    group=GROUP,
    summary="Submit a model",
    parameters=(NAMESPACE, NEW_NAME),
    body=SubmissionRequest,
    answer=Submission,
    status=ACCEPTED,
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
    manifest = parse_manifest(json_body(SubmissionRequest))
    return submitting.submit(namespace, name, manifest).entity()


@operation(
    "/submissions",
    group=GROUP,
    summary="List your submissions",
    parameters=(LIMIT, AFTER),
    answer=SubmissionPage,
    scope=UPLOAD,
    example=f"{ROOT}/submissions?limit=1",
)
def submissions() -> SubmissionPage:
    """Return your submissions with their states, newest first."""
    return submitting.own_submissions(requested_limit(), requested_after())


@operation(
    "/submissions/{submission}",
    group=GROUP,
    summary="Get a submission",
    parameters=(_submission(EXAMPLES["shown"]),),
    answer=Submission,
    refusals=(404,),
    scope=UPLOAD,
    example=f"{ROOT}/submissions/{EXAMPLES['shown']}",
)
def submission(submission: str) -> Submission:
    """Return progress, findings and header data of a submission. 404 for submissions of others."""
    return submitting.own_submission(submitting.parsed_submission(submission)).entity()


@writing_operation(
    "/submissions/{submission}/publish",
    group=GROUP,
    summary="Publish a submission",
    parameters=(_submission(EXAMPLES["ready"]),),
    body=PublicationRequest,
    answer=Submission,
    status=ACCEPTED,
    refusals=(404, 409),
    example='{"metadata": {"title": "Tiny", "license": "MIT"}}',
)
def publish_submission(submission: str) -> Submission:
    """Publish a submission with this metadata, and under another name if one is given. 409 if it is not `ready`; 400 if
    a finding that must be accepted (`non-finite-weights`) is missing from `accept`.
    """
    body = json_body(PublicationRequest)
    stated = parse_stated_metadata(body.get("metadata"))
    accepted = parse_accepted(body.get("accept"))
    submission_id = submitting.parsed_submission(submission)
    name = submitting.checked_name(body.get("name"))
    return submitting.publish(submission_id, stated, name, accepted).entity()


@writing_operation(
    "/submissions/{submission}",
    method="delete",
    group=GROUP,
    summary="Withdraw a submission",
    parameters=(_submission(EXAMPLES["withdrawn"]),),
    answer=Submission,
    refusals=(404, 409),
    example=f"{ROOT}/submissions/{EXAMPLES['withdrawn']}",
)
def withdraw_submission(submission: str) -> Submission:
    """Withdraw a submission that is being checked, is ready, or waits for an administrator; 409 otherwise. The uploaded
    bytes are kept until they expire."""
    return submitting.withdraw(submitting.parsed_submission(submission)).entity()
