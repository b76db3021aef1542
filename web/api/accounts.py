"""The account of the token that is sent, and contributors as everyone sees them."""

from __future__ import annotations

from typing import Any

from organs.registry.catalog.queries.accounts import (
    contributors_page,
    works_of,
)
from organs.registry.catalog.vocabulary import SCOPES, TOKEN_DAYS_DEFAULT, TOKEN_DAYS_MAX
from organs.registry.errors import BadRequest
from organs.registry.present.accounts import contributor_values, contributors_values
from organs.registry.present.values import Values
from organs.web.accounts import create_own_token, own_account, own_tokens, revoke_own_token
from organs.web.api.blueprint import ROOT
from organs.web.api.operation import Parameter, operation
from organs.web.api.params import (
    AFTER,
    LIMIT,
    json_body,
)
from organs.web.api.writing import writing_operation
from organs.web.auth import (
    ANY,
    TOKENS,
)
from organs.web.params import (
    asked_after,
    asked_limit,
)
from organs.web.responses import (
    reading,
    settings,
)

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
    summary="List tokens",
    answer="Tokens",
    scope=TOKENS,
    example=f"{ROOT}/account/tokens",
)
def tokens() -> Values:
    """All tokens of the account, newest first, with those that were revoked or have expired. The secrets are not
    stored, so they are not in the list."""
    return own_tokens()


@writing_operation(
    "/account/tokens",
    group=GROUP,
    summary="Create a token",
    answer="NewToken",
    status=CREATED,
    body="TokenRequest",
    scope=TOKENS,
    example='{"label": "laptop", "scopes": ["upload"], "days": 90}',
)
def make_token() -> Values:
    """The new token has some or all of the scopes of the token that creates it. It expires with that token at the
    latest, and is revoked with it. Its text is in this answer only."""
    body = json_body(("label", "scopes", "days"))
    label, scopes, days = body.get("label", ""), body.get("scopes"), body.get("days", TOKEN_DAYS_DEFAULT)
    if not isinstance(label, str):
        raise BadRequest("label", "label must be a string.")
    if not isinstance(scopes, list) or not _are_scopes(scopes):
        raise BadRequest("scopes", f"scopes must be a list of some of {', '.join(SCOPES)}.")
    if days is not None and (type(days) is not int or not 1 <= days <= TOKEN_DAYS_MAX):
        raise BadRequest("days", f"days must be an integer from 1 to {TOKEN_DAYS_MAX}, or null.")
    return create_own_token(label, scopes, days)


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
    """A token can revoke itself. With the scope `tokens` it can also revoke the tokens that it created, directly or
    through others; 403 for other tokens of the account. The tokens that the revoked token created are revoked with
    it, and browsers that logged in by any of them are logged out. Revoking twice changes nothing."""
    return revoke_own_token(token)


def _are_scopes(given: list[Any]) -> bool:
    return bool(given) and all(isinstance(one, str) and one in SCOPES for one in given)


CONTRIBUTOR = Parameter(
    "contributor",
    "The contributor's name, however it is capitalised.",
    {"type": "string", "maxLength": 96},
    "local",
    where="path",
    required=True,
)


@operation(
    "/contributors",
    group=GROUP,
    summary="Who has contributed",
    parameters=(LIMIT, AFTER),
    answer="Contributors",
    example=f"{ROOT}/contributors?limit=1",
)
def contributors() -> Values:
    """Contributors with visible models, the newest contributor first, and what their models are used for."""
    limit, after = asked_limit(), asked_after()
    with reading(settings().search_seconds) as session:
        return contributors_values(contributors_page(session, limit, after))


@operation(
    "/contributors/{contributor}",
    group=GROUP,
    summary="One contributor",
    parameters=(CONTRIBUTOR,),
    answer="Contributor",
    refusals=(404,),
    example=f"{ROOT}/contributors/local",
)
def contributor(contributor: str) -> Values:
    """Since when, and what their models are used for. Who has no visible model counts as absent."""
    with reading(settings().search_seconds) as session:
        return contributor_values(works_of(session, contributor))
