"""The shipped models in a registry that an administrator looks after: some wait, and one is to be removed."""

from __future__ import annotations

import json

from flask.testing import FlaskClient

from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.register.model_changes import hide_model
from organs.registry.catalog.tables import SubmissionRow, now
from organs.registry.endpoints.administration import EXAMPLE_SUBMISSIONS as EXAMPLES
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.web.app import create_app
from tests.fleets import put_run
from tests.web.accounts import new_token, program

WAITING = {
    "90": "local/Zoo-C-1M-v1.0-Q8_0",
    EXAMPLES["approve"]: "local/Zoo-A-2M-v0.1-Q8_0",
    EXAMPLES["refuse"]: "local/Zoo-A-2M-v0.3-Q8_0",
    "93": "local/Zoo-A-2M-Prose-v1.0-Q8_0",
}
"""Submissions by number: more than the examples decide on, so that there is a next page in any order."""


def put_waiting(registry: LocalRegistry) -> None:
    """Take models back into quarantine, and let a submission of ada's wait for each."""
    finding = {"severity": "note", "code": "chat-template", "sentence": "It has a chat template."}
    with registry.catalog.writing() as session:
        for number, name in WAITING.items():
            model = model_by_name(session, parse_model_name(name))
            hide_model(session, model, "quarantined", "It waits.", "local")
            submission = SubmissionRow(
                id=int(number),
                contributor_id=contributor_id(session, "ada"),
                namespace=model.namespace,
                name=model.name,
                state="quarantined",
                manifest="{}",
                metadata_given="{}",
                findings=json.dumps([finding]),
                size_bytes=model.size_bytes,
                model_id=model.id,
                created_at=now(),
                changed_at=now(),
            )
            session.add(submission)
    put_run(registry, name="first", digest="cd" * 32)
    put_run(registry)


def administrator(registry: LocalRegistry) -> FlaskClient:
    """A client that sends the token of an administrator with every request."""
    return program(create_app(registry), new_token(registry, "root", "admin"))
