"""The account of the token, and public contributors."""

from __future__ import annotations

from organs.registry.catalog.queries.accounts import (
    contributors_page,
    public_contributor,
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
from organs.web.api.operation import (
    AFTER,
    LIMIT,
    ROOT,
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
    requested_after,
    requested_limit,
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
EXAMPLE_TOKEN = "Example01"  # noqa: S105  # a public id, not a secret
TOKEN = Parameter(
    "token",
    "The public id of the token: the nine characters after `orgp_`.",
    {"type": "string", "pattern": "^[0-9A-Za-z]{9}$"},
    EXAMPLE_TOKEN,
    where="path",
    required=True,
)


@operation("/account", group=GROUP, summary="Your account", answer=Account, scope=ANY, example=f"{ROOT}/account")
def account() -> Account:
    """Return the contributor of the token, its scopes, and the used part of the quota. Models count with the sizes of
    their files until they are removed, uploads until they are published or expire.
    """
    return own_account()


@operation(
    "/account/overview",
    group=GROUP,
    summary="Your account, with models and uploads",
    answer=AccountOverview,
    scope=ANY,
    example=f"{ROOT}/account/overview",
)
def account_overview() -> AccountOverview:
    """Return the account with its newest models in any state, its uploads and submissions, and its tokens. Without the
    scope `tokens`, only the token of this request is listed."""
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
    """Return all tokens of the account, newest first, including revoked and expired ones. Secrets are not stored, so
    they are never listed.
    """
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
    """Create a token with some or all of the scopes of the token of this request. It expires no later than that token,
    and is revoked together with it. Only this answer contains the text of the token.
    """
    body = read_body(TokenRequest)
    if not set(body.scopes) <= set(SCOPES):
        raise BadRequest("scopes", f"scopes must be a list of some of {', '.join(SCOPES)}.")
    return create_own_token(body)


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
    """Revoke a token. Every token can revoke itself. With the scope `tokens`, it can also revoke the tokens that it
    created, directly or indirectly; for other tokens of the account the answer is 403. This also revokes the tokens
    that the revoked token created, and logs out their browser sessions. Revoking twice changes nothing."""
    return revoke_own_token(token)


CONTRIBUTOR = Parameter(
    "contributor",
    "The contributor's name; upper and lower case do not matter.",
    {"type": "string", "maxLength": 96},
    "local",
    where="path",
    required=True,
)


@operation(
    "/contributors",
    group=GROUP,
    summary="List contributors",
    parameters=(LIMIT, AFTER),
    answer=ContributorPage,
    example=f"{ROOT}/contributors?limit=1",
)
def contributors() -> ContributorPage:
    """Return the contributors with visible models, newest first, and how often their models are used."""
    limit, after = requested_limit(), requested_after()
    with reading(settings().search_seconds) as session:
        return contributors_page(session, limit, after)


@operation(
    "/contributors/{contributor}",
    group=GROUP,
    summary="Get a contributor",
    parameters=(CONTRIBUTOR,),
    answer=Contributor,
    refusals=(404,),
    example=f"{ROOT}/contributors/local",
)
def contributor(contributor: str) -> Contributor:
    """Return a contributor, and how often the models are used. 404 for a contributor without a visible model."""
    with reading(settings().search_seconds) as session:
        return public_contributor(session, contributor)
