"""Submissions: models made of uploaded or stored pieces; they are checked, published or withdrawn."""

from __future__ import annotations

from typing import Annotated

from organs.registry.catalog.vocabulary import UPLOAD
from organs.registry.endpoints.declaration import ACCEPTED, Group, Values
from organs.registry.endpoints.parameters import (
    LIMIT_DEFAULT,
    WORD_PATTERN,
    After,
    Limit,
    Namespace,
    note,
    number_note,
)
from organs.registry.entities.submission import PublicationRequest, Submission, SubmissionPage, SubmissionRequest
from organs.registry.names import NAME_MAX_LENGTH

GROUP = Group("Submissions", "Models made from uploads: check, publish, withdraw.")
EXAMPLE_SUBMISSIONS = {"shown": "101", "ready": "102", "withdrawn": "103"}
_EXAMPLE_MANIFEST = (
    '{"files": [{"name": "Tiny.gguf", "size_bytes": 96, "sha256": '
    '"2ea9ab9198d1638007400cd2c3bef1cc745b864b76011a0e1bc52180ac6452d4", "pieces": []}], '
    '"metadata": {"license": "apache-2.0", "base": "local/Zoo-A-2M-v1.0-F16"}, "publish": true}'
)
NewName = Annotated[
    str,
    note(
        "The name of the model. If the name exists with other bytes, the model becomes its next version.",
        "Tiny",
        pattern=f"^{WORD_PATTERN}$",
        max_length=NAME_MAX_LENGTH,
    ),
]


@GROUP.write("put", "/models/{namespace}/{name}", "Submit a model", status=ACCEPTED, example=_EXAMPLE_MANIFEST)
def submit_model(namespace: Namespace, name: NewName, body: SubmissionRequest | Values) -> Submission:
    """Submit the files of a model, in your own namespace. Each file is a complete upload, or consists of pieces that
    were uploaded before or are stored already, with zeros between them. A job checks the files; then the model is
    published, or waits for you if `publish` is false. Repeating the request while the submission is open returns the
    same submission.
    """


@GROUP.get("/submissions", "List your submissions", example="limit=1", scope=UPLOAD)
def submissions(limit: Limit = LIMIT_DEFAULT, after: After | None = None) -> SubmissionPage:
    """Return your submissions with their states, newest first."""


@GROUP.get("/submissions/{submission}", "Get a submission", refusals=(404,), scope=UPLOAD)
def submission(submission: Annotated[int, number_note("submission", EXAMPLE_SUBMISSIONS["shown"])]) -> Submission:
    """Return progress, findings and header data of a submission. 404 for submissions of others."""


@GROUP.write(
    "post",
    "/submissions/{submission}/publish",
    "Publish a submission",
    status=ACCEPTED,
    example='{"metadata": {"title": "Tiny", "license": "MIT"}}',
    refusals=(404, 409),
)
def publish_submission(
    submission: Annotated[int, number_note("submission", EXAMPLE_SUBMISSIONS["ready"])],
    body: PublicationRequest | Values,
) -> Submission:
    """Publish a submission with this metadata, and under another name if one is given. 409 if it is not `ready`; 400 if
    a finding that must be accepted (`non-finite-weights`) is missing from `accept`.
    """


@GROUP.write("delete", "/submissions/{submission}", "Withdraw a submission", refusals=(404, 409))
def withdraw_submission(
    submission: Annotated[int, number_note("submission", EXAMPLE_SUBMISSIONS["withdrawn"])],
) -> Submission:
    """Withdraw a submission that is being checked, is ready, or waits for an administrator; 409 otherwise. The uploaded
    bytes are kept until they expire."""
