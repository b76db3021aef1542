"""Submissions: a model of pieces that were sent or are here, looked at, published, withdrawn."""

from __future__ import annotations

from flask import request

from organs.ingest.contributions.manifest import (
    BODY_MAX_BYTES,
    parse_acknowledged,
    parse_manifest,
    parse_stated_metadata,
)
from organs.registry.entities.submission import PublicationRequest, Submission, SubmissionPage, SubmissionRequest
from organs.web.api.blueprint import ROOT
from organs.web.api.operation import (
    ACCEPTED,
    AFTER,
    LIMIT,
    NAMESPACE,
    Parameter,
    json_body,
    operation,
    writing_operation,
)
from organs.web.api.uploads import asker_id
from organs.web.auth import UPLOAD
from organs.web.limits import take_turn
from organs.web.params import (
    asked_after,
    asked_limit,
)
from organs.web.services import contributions as submitting
from organs.web.services.contributions import receiving

GROUP = "Submissions"
EXAMPLES = {"shown": "101", "ready": "102", "withdrawn": "103"}
"""Submissions that the examples are about."""
EXAMPLE_MANIFEST = (
    '{"files": [{"name": "Tiny.gguf", "size_bytes": 96, "sha256": '
    '"2ea9ab9198d1638007400cd2c3bef1cc745b864b76011a0e1bc52180ac6452d4", "pieces": []}], '
    '"metadata": {"license": "apache-2.0", "base": "local/Zoo-A-2M-v1.0-F16"}, "publish": true}'
)
NEW_NAME = Parameter(
    "name",
    "What the model is to be called; a name that stands for other bytes gets its next version.",
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
    """Its files, each put together from pieces that were sent before or are here already, zeros between them, or a
    whole upload. They are looked at as a job; then the model is published, or with `publish` false, waits to be. Only
    in one's own namespace. Asked again while it has not ended, the same submission is answered.
    """
    request.max_content_length = BODY_MAX_BYTES
    with receiving(asker_id()):
        request.get_data()  # keeps the body, for `json_body`
        take_turn()
    manifest = parse_manifest(json_body(SubmissionRequest))
    return submitting.submit(namespace, name, manifest).entity()


@operation(
    "/submissions",
    group=GROUP,
    summary="Your submissions, newest first",
    parameters=(LIMIT, AFTER),
    answer=SubmissionPage,
    scope=UPLOAD,
    example=f"{ROOT}/submissions?limit=1",
)
def submissions() -> SubmissionPage:
    """Your own submissions with their states."""
    return submitting.own_submissions(asked_limit(), asked_after())


@operation(
    "/submissions/{submission}",
    group=GROUP,
    summary="One submission",
    parameters=(_submission(EXAMPLES["shown"]),),
    answer=Submission,
    refusals=(404,),
    scope=UPLOAD,
    example=f"{ROOT}/submissions/{EXAMPLES['shown']}",
)
def submission(submission: str) -> Submission:
    """Its progress, its findings, and what its headers say. Submissions of others count as absent."""
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
    """With what is said of it beside its header, and under another name if one is given. 409 for one that is not
    `ready`, 400 while it has a finding that must be acknowledged (`non-finite-weights`) and is not in `acknowledge`.
    """
    body = json_body(PublicationRequest)
    given = parse_stated_metadata(body.get("metadata"))
    acknowledged = parse_acknowledged(body.get("acknowledge"))
    submission_id = submitting.parsed_submission(submission)
    name = submitting.checked_name(body.get("name"))
    return submitting.publish(submission_id, given, name, acknowledged).entity()


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
    """While it is looked at, is ready, or waits for an administrator; 409 otherwise. What was sent is kept until it
    expires."""
    return submitting.withdraw(submitting.parsed_submission(submission)).entity()
