"""The account of the token that is sent, and contributors as everyone sees them."""

from __future__ import annotations

from organs.registry.catalog.queries.accounts import (
    contributors_page,
    works_of,
)
from organs.registry.catalog.vocabulary import SCOPES
from organs.registry.entities.account import (
    Account,
    AccountOverview,
    AccountToken,
    AccountTokenPage,
    Contributor,
    ContributorPage,
    CreatedToken,
    TokenRequest,
)
from organs.registry.errors import BadRequest
from organs.web.api.blueprint import ROOT
from organs.web.api.operation import (
    AFTER,
    LIMIT,
    Parameter,
    operation,
    read_body,
    writing_operation,
)
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
from organs.web.services.accounts import (
    create_own_token,
    own_account,
    own_overview,
    own_tokens,
    revoke_own_token,
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


@operation("/account", group=GROUP, summary="Your account", answer=Account, scope=ANY, example=f"{ROOT}/account")
def account() -> Account:
    """The contributor of the token, its scopes, and how much of the quota is used. Models count with the sizes of their
    files until they are removed, uploads until they are published or forgotten."""
    return own_account()


@operation(
    "/account/overview",
    group=GROUP,
    summary="Your account, with what you have here",
    answer=AccountOverview,
    scope=ANY,
    example=f"{ROOT}/account/overview",
)
def account_overview() -> AccountOverview:
    """The account with its newest models in any state, its uploads and submissions, and its tokens. Without the scope
    `tokens` only the token that is sent is in the list."""
    return own_overview()


@operation(
    "/account/tokens",
    group=GROUP,
    summary="List tokens",
    answer=AccountTokenPage,
    scope=TOKENS,
    example=f"{ROOT}/account/tokens",
)
def tokens() -> AccountTokenPage:
    """All tokens of the account, newest first, with those that were revoked or have expired. The secrets are not
    stored, so they are not in the list."""
    return own_tokens()


@writing_operation(
    "/account/tokens",
    group=GROUP,
    summary="Create a token",
    answer=CreatedToken,
    status=CREATED,
    body=TokenRequest,
    scope=TOKENS,
    example='{"label": "laptop", "scopes": ["upload"], "days": 90}',
)
def make_token() -> CreatedToken:
    """The new token has some or all of the scopes of the token that creates it. It expires with that token at the
    latest, and is revoked with it. Its text is in this answer only."""
    wanted = read_body(TokenRequest)
    if not set(wanted.scopes) <= set(SCOPES):
        raise BadRequest("scopes", f"scopes must be a list of some of {', '.join(SCOPES)}.")
    return create_own_token(wanted)


@writing_operation(
    "/account/tokens/{token}",
    method="delete",
    group=GROUP,
    summary="Revoke a token",
    parameters=(TOKEN,),
    answer=AccountToken,
    refusals=(404,),
    scope=ANY,
    example=f"{ROOT}/account/tokens/{EXAMPLE_TOKEN}",
)
def revoke_token(token: str) -> AccountToken:
    """A token can revoke itself. With the scope `tokens` it can also revoke the tokens that it created, directly or
    through others; 403 for other tokens of the account. The tokens that the revoked token created are revoked with
    it, and browsers that logged in by any of them are logged out. Revoking twice changes nothing."""
    return revoke_own_token(token)


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
    summary="Contributors",
    parameters=(LIMIT, AFTER),
    answer=ContributorPage,
    example=f"{ROOT}/contributors?limit=1",
)
def contributors() -> ContributorPage:
    """Contributors with visible models, newest first, and how much their models are used."""
    limit, after = asked_limit(), asked_after()
    with reading(settings().search_seconds) as session:
        return contributors_page(session, limit, after)


@operation(
    "/contributors/{contributor}",
    group=GROUP,
    summary="One contributor",
    parameters=(CONTRIBUTOR,),
    answer=Contributor,
    refusals=(404,),
    example=f"{ROOT}/contributors/local",
)
def contributor(contributor: str) -> Contributor:
    """One contributor, and how much the models are used. A contributor without a visible model counts as absent."""
    with reading(settings().search_seconds) as session:
        return works_of(session, contributor)
