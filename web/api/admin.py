"""Administration: what waits for review, models removed, the event log, contributors. All of it needs `admin`."""

from __future__ import annotations

from typing import Any

from flask import request

from organs.registry.catalog.queries.administration import all_contributors, waiting_submissions
from organs.registry.catalog.queries.events import newest_events
from organs.registry.catalog.vocabulary import CONTRIBUTOR_STATES
from organs.registry.entities.event import EventPage
from organs.registry.errors import BadRequest
from organs.registry.names import parse_model_name
from organs.registry.present.administration import accounts_values, waiting_values
from organs.registry.present.values import Values
from organs.web import administration
from organs.web.api.blueprint import ROOT
from organs.web.api.operation import Parameter, operation
from organs.web.api.params import (
    AFTER,
    LIMIT,
    NAMESPACE,
    json_body,
)
from organs.web.api.writing import writing_operation
from organs.web.auth import ADMIN
from organs.web.params import (
    asked_after,
    asked_limit,
)
from organs.web.responses import (
    reading,
    registry,
    settings,
)

GROUP = "Administration"
CREATED = 201
VERSION_MAX = 10**9 - 1
EXAMPLES = {"approve": "91", "refuse": "92"}
"""Submissions that the examples decide on."""
_WORD: dict[str, Any] = {"type": "string", "maxLength": 96}
CONTRIBUTOR = Parameter("contributor", "The contributor's name.", _WORD, "ada", where="path", required=True)
BY = Parameter("contributor", "Only what that contributor did.", {"type": "string"}, "")
ACTION = Parameter("action", "Only that action.", {"type": "string"}, "")
PLAIN_NAME = Parameter(
    "name",
    "The model's name, without a version: that is in the body.",
    {"type": "string", "maxLength": 96},
    "Zoo-B-2M-v1.0-Q8_0",
    where="path",
    required=True,
)


def _submission(example: str) -> Parameter:
    schema: dict[str, Any] = {"type": "string", "pattern": "^[0-9]{1,19}$"}
    return Parameter("submission", "The number of the submission.", schema, example, where="path", required=True)


@operation(
    "/admin/quarantine",
    group=GROUP,
    summary="What waits for review",
    parameters=(LIMIT, AFTER),
    answer="Quarantine",
    scope=ADMIN,
    example=f"{ROOT}/admin/quarantine?limit=1",
)
def quarantine() -> Values:
    """Submissions that were checked and taken apart, and that nobody sees before an administrator says so; the one
    that has waited longest comes first."""
    limit, after = asked_limit(), asked_after()
    with reading(settings().search_seconds) as session:
        return waiting_values(session, waiting_submissions(session, limit, after))


@writing_operation(
    "/admin/submissions/{submission}/approve",
    group=GROUP,
    summary="Publish what waits",
    parameters=(_submission(EXAMPLES["approve"]),),
    answer="Decision",
    refusals=(404, 409),
    scope=ADMIN,
    example=f"{ROOT}/admin/submissions/{EXAMPLES['approve']}/approve",
)
def approve_submission(submission: str) -> Values:
    """Its model is visible from now on. 409 for what does not wait."""
    return administration.approve(submission)


@writing_operation(
    "/admin/submissions/{submission}/refuse",
    group=GROUP,
    summary="Refuse what waits",
    parameters=(_submission(EXAMPLES["refuse"]),),
    answer="Decision",
    refusals=(404, 409),
    body="RefusalRequest",
    scope=ADMIN,
    example='{"reason": "Its licence does not allow it."}',
)
def refuse_submission(submission: str) -> Values:
    """Its contributor reads the reason; its bytes go with the next sweeps. 409 for what does not wait."""
    return administration.refuse(submission, _text(json_body(("reason",)), "reason"))


@writing_operation(
    "/admin/models/{namespace}/{name}/remove",
    group=GROUP,
    summary="Remove a model for good",
    parameters=(NAMESPACE, PLAIN_NAME),
    answer="Removal",
    refusals=(404, 409),
    body="RemovalRequest",
    scope=ADMIN,
    example='{"version": 1, "reason": "It was not theirs to give."}',
)
def remove_model(namespace: str, name: str) -> Values:
    """Its name, its digest and the reason stay. Chimeras keep the organs that they have of it; bytes that nothing else
    needs go with the next sweeps."""
    body = json_body(("version", "reason"))
    version = body.get("version")
    if type(version) is not int or not 1 <= version <= VERSION_MAX:
        raise BadRequest("version", "version is to be the number of the version that goes.")
    if parse_model_name(f"{namespace}/{name}").version is not None:
        raise BadRequest("name", "The version is to stand in the body, not in the address.")
    return administration.remove(f"{namespace}/{name}@{version}", _text(body, "reason"))


@operation(
    "/admin/events",
    group=GROUP,
    summary="Who did what, newest first",
    parameters=(LIMIT, AFTER, BY, ACTION),
    answer=EventPage,
    scope=ADMIN,
    example=f"{ROOT}/admin/events?limit=1",
)
def events() -> EventPage:
    """The event log. Its entries are never changed or removed."""
    limit, after = asked_limit(), asked_after()
    contributor, action = request.args.get("contributor", ""), request.args.get("action", "")
    with reading(settings().search_seconds) as session:
        return newest_events(session, limit, after, contributor, action)


@operation(
    "/admin/contributors",
    group=GROUP,
    summary="Contributors with state and quota",
    parameters=(LIMIT, AFTER),
    answer="ContributorAccounts",
    scope=ADMIN,
    example=f"{ROOT}/admin/contributors?limit=1",
)
def contributor_accounts() -> Values:
    """All of them, newest first, those without a visible model among them."""
    limit, after = asked_limit(), asked_after()
    with reading(settings().search_seconds) as session:
        page = all_contributors(session, limit, after)
        return accounts_values(session, page, registry().settings.quota_bytes)


@writing_operation(
    "/admin/contributors",
    group=GROUP,
    summary="Add a contributor",
    answer="ContributorAccount",
    body="NewContributorRequest",
    status=CREATED,
    scope=ADMIN,
    example='{"name": "grace", "quota": 5000000000}',
)
def add_contributor() -> Values:
    """Who has no token yet: `organ token create` makes one, at the registry's machine."""
    body = json_body(("name", "quota"))
    return administration.add(_text(body, "name"), _quota(body))


@writing_operation(
    "/admin/contributors/{contributor}",
    method="patch",
    group=GROUP,
    summary="Suspend a contributor, or set a quota",
    parameters=(CONTRIBUTOR,),
    answer="ContributorAccount",
    refusals=(404,),
    body="ContributorChangeRequest",
    scope=ADMIN,
    example='{"quota": 2000000000}',
)
def change_contributor(contributor: str) -> Values:
    """Who is suspended can do nothing that needs an account, from the next request on; what was published stays."""
    body = json_body(("state", "quota"))
    if not body:
        raise BadRequest(None, "Say what is to be another: state, quota, or both.")
    state = body.get("state")
    if "state" in body and state not in CONTRIBUTOR_STATES:
        raise BadRequest("state", f"state is to be {' or '.join(CONTRIBUTOR_STATES)}.")
    return administration.change(contributor, state, _quota(body) if "quota" in body else administration.LEAVE)


def _text(body: Values, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadRequest(name, f"{name} is to be a text that is not empty.")
    return value


def _quota(body: Values) -> int | None:
    value = body.get("quota")
    if value is not None and (type(value) is not int or not 0 <= value <= administration.ID_MAX):
        raise BadRequest("quota", "quota is to be a whole number of bytes, or null.")
    return value
