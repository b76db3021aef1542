"""One's own account: who asks, how much is kept for them, their tokens."""

from __future__ import annotations

from typing import Any

from registry.catalog.queries.accounts import tokens_of
from registry.catalog.register.accounts import TOKEN_DAYS_DEFAULT, TOKEN_DAYS_MAX
from registry.catalog.vocabulary import SCOPES
from registry.present.accounts import tokens_values
from registry.present.values import Values
from web.accounts import end_own_token, make_own_token, own_account, own_contributor
from web.answers import reading, settings
from web.api.blueprint import ROOT
from web.api.body import asked_object
from web.api.operation import Parameter, operation
from web.api.refusals import Refused
from web.api.writing import writing_operation
from web.identity import ANY

GROUP = "Contributors"
CREATED = 201
EXAMPLE_TOKEN = "Example01"  # noqa: S105  # what a token is called by, no secret
TOKEN = Parameter(
    "token",
    "What the token is called by: the nine characters behind `orgp_`.",
    {"type": "string", "pattern": "^[0-9A-Za-z]{9}$"},
    EXAMPLE_TOKEN,
    where="path",
    required=True,
)


@operation("/account", group=GROUP, summary="Who asks", answer="Account", scope=ANY, example=f"{ROOT}/account")
def account() -> Values:
    """The contributor whose token it is, what the token is good for, and how much of the quota is used: the sizes of
    the models' files, until a model is removed, and of uploads, until they are published or forgotten."""
    return own_account()


@operation(
    "/account/tokens",
    group=GROUP,
    summary="One's own tokens",
    answer="Tokens",
    scope=ANY,
    example=f"{ROOT}/account/tokens",
)
def tokens() -> Values:
    """All of them, newest first, those that are good no more among them; nobody can read what is secret of them."""
    with reading(settings().search_seconds) as session:
        found = own_contributor(session)
        return tokens_values([] if found is None else tokens_of(session, found.id))


@writing_operation(
    "/account/tokens",
    group=GROUP,
    summary="Make a token",
    answer="NewToken",
    status=CREATED,
    body="TokenRequest",
    scope=ANY,
    example='{"label": "laptop", "scopes": ["upload"], "days": 90}',
)
def make_token() -> Values:
    """A token of one's own, good for some of the scopes of the one that asks. Its text is in this answer and nowhere
    else."""
    body = asked_object(("label", "scopes", "days"))
    label, scopes, days = body.get("label", ""), body.get("scopes"), body.get("days", TOKEN_DAYS_DEFAULT)
    if not isinstance(label, str):
        raise Refused("label", "label is to be a text.")
    if not isinstance(scopes, list) or not _are_scopes(scopes):
        raise Refused("scopes", f"scopes is to be a list of some of {', '.join(SCOPES)}.")
    if days is not None and (type(days) is not int or not 1 <= days <= TOKEN_DAYS_MAX):
        raise Refused("days", f"days is to be a whole number from 1 to {TOKEN_DAYS_MAX}, or null for ever.")
    return make_own_token(label, scopes, days)


@writing_operation(
    "/account/tokens/{token}",
    method="delete",
    group=GROUP,
    summary="Revoke a token",
    parameters=(TOKEN,),
    answer="Token",
    refusals=(404,),
    scope=ANY,
    example=f"{ROOT}/account/tokens/{EXAMPLE_TOKEN}",
)
def revoke_token(token: str) -> Values:
    """It is good for nothing from the next request on, nor is a browser that logged in by it. One that is revoked
    already stays so."""
    return end_own_token(token)


def _are_scopes(given: list[Any]) -> bool:
    return bool(given) and all(isinstance(one, str) and one in SCOPES for one in given)
