"""The account of the sent token, its tokens, and public contributors."""

from __future__ import annotations

from typing import Annotated

from organs.registry.catalog.vocabulary import MANAGE_TOKENS
from organs.registry.endpoints.declaration import ANY, CREATED, Group
from organs.registry.endpoints.parameters import LIMIT_DEFAULT, After, Limit, note
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
from organs.registry.names import NAME_MAX_LENGTH

GROUP = Group("Contributors", "Public contributors; your own account and its tokens.")
EXAMPLE_TOKEN = "Example01"  # noqa: S105  # a public id, not a secret
TokenId = Annotated[
    str,
    note("The public id of the token: the nine characters after `orgp_`.", EXAMPLE_TOKEN, pattern="^[0-9A-Za-z]{9}$"),
]
ContributorName = Annotated[
    str,
    note("The contributor's name; upper and lower case do not matter.", "local", max_length=NAME_MAX_LENGTH),
]


@GROUP.get("/account", "Your account", scope=ANY)
def account() -> Account:
    """Return the contributor of the token, its scopes, and the used part of the quota. Models count with the sizes of
    their files until they are removed, uploads until they are published or expire.
    """


@GROUP.get("/account/overview", "Your account, with models and uploads", scope=ANY)
def account_overview() -> AccountOverview:
    """Return the account with its newest models in any state, its uploads and submissions, and its tokens. Without the
    scope `tokens`, only the token of this request is listed."""


@GROUP.get("/account/tokens", "List tokens", scope=MANAGE_TOKENS)
def tokens() -> AccountTokenPage:
    """Return all tokens of the account, newest first, including revoked and expired ones. Secrets are not stored, so
    they are never listed.
    """


@GROUP.write(
    "post",
    "/account/tokens",
    "Create a token",
    status=CREATED,
    example='{"label": "laptop", "scopes": ["upload"], "days": 90}',
    scope=MANAGE_TOKENS,
)
def make_token(body: TokenRequest) -> CreatedToken:
    """Create a token with some or all of the scopes of the token of this request. It expires no later than that token,
    and is revoked together with it. Only this answer contains the text of the token.
    """


@GROUP.write("delete", "/account/tokens/{token}", "Revoke a token", refusals=(404,), scope=ANY)
def revoke_token(token: TokenId) -> AccountToken:
    """Revoke a token. Every token can revoke itself. With the scope `tokens`, it can also revoke the tokens that it
    created, directly or indirectly; for other tokens of the account the answer is 403. This also revokes the tokens
    that the revoked token created, and logs out their browser sessions. Revoking twice changes nothing."""


@GROUP.get("/contributors", "List contributors", example="limit=1")
def contributors(limit: Limit = LIMIT_DEFAULT, after: After | None = None) -> ContributorPage:
    """Return the contributors with visible models, newest first, and how often their models are used."""


@GROUP.get("/contributors/{contributor}", "Get a contributor", refusals=(404,))
def contributor(contributor: ContributorName) -> Contributor:
    """Return a contributor, and how often the models are used. 404 for a contributor without a visible model."""
