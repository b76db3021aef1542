"""The account of the sent token, its tokens, and public contributors. Pages of a session call the same functions."""

from __future__ import annotations

from msgspec import structs
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.accounts import (
    account_of,
    account_token,
    contributor_by_name,
    contributors_page,
    public_contributor,
    token_by_public_id,
    tokens_of,
)
from organs.registry.catalog.queries.accounts import account_overview as overview_of
from organs.registry.catalog.register.accounts import create_child_token, revoke_by_token
from organs.registry.catalog.tables import ContributorRow, Token
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
from organs.registry.errors import BadRequest, NoSuchToken, NotAllowed, NotFound
from organs.web.api.operation import ROOT, operation, read_body, writing_operation
from organs.web.auth import ANY, TOKENS, RequestUser, need
from organs.web.params import AFTER, LIMIT, path_parameter, requested_page
from organs.web.rate_limits import NEW_TOKENS, rates
from organs.web.responses import registry, searching

GROUP = "Contributors"
CREATED = 201
EXAMPLE_TOKEN = "Example01"  # noqa: S105  # a public id, not a secret
TOKEN = path_parameter(
    "token",
    "The public id of the token: the nine characters after `orgp_`.",
    {"type": "string", "pattern": "^[0-9A-Za-z]{9}$"},
    EXAMPLE_TOKEN,
)


@operation(GROUP, "/account", "Your account", scope=ANY)
def account() -> Account:
    """Return the contributor of the token, its scopes, and the used part of the quota. Models count with the sizes of
    their files until they are removed, uploads until they are published or expire.
    """
    with searching() as session:
        return _own_account(session)[0]


@operation(GROUP, "/account/overview", "Your account, with models and uploads", scope=ANY)
def account_overview() -> AccountOverview:
    """Return the account with its newest models in any state, its uploads and submissions, and its tokens. Without the
    scope `tokens`, only the token of this request is listed."""
    with searching() as session:
        account, contributor = _own_account(session)
        return overview_of(session, account, contributor, _visible_tokens(session, need(ANY)))


@operation(GROUP, "/account/tokens", "List tokens", scope=TOKENS)
def tokens() -> AccountTokenPage:
    """Return all tokens of the account, newest first, including revoked and expired ones. Secrets are not stored, so
    they are never listed.
    """
    with searching() as session:
        return AccountTokenPage(items=_visible_tokens(session, need(TOKENS)), next=None)


@writing_operation(
    GROUP,
    "/account/tokens",
    "Create a token",
    status=CREATED,
    body=TokenRequest,
    example='{"label": "laptop", "scopes": ["upload"], "days": 90}',
    scope=TOKENS,
)
def make_token() -> CreatedToken:
    """Create a token with some or all of the scopes of the token of this request. It expires no later than that token,
    and is revoked together with it. Only this answer contains the text of the token.
    """
    body = read_body(TokenRequest)
    if not set(body.scopes) <= set(SCOPES):
        raise BadRequest("scopes", f"scopes must be a list of some of {', '.join(SCOPES)}.")
    return create_own_token(body)


def create_own_token(request: TokenRequest) -> CreatedToken:
    """Create a token as a child of the sent token, and return it with its text, which is not stored.

    Raises BadToken (401); NotAllowed (403) without the scope `tokens`, and for scopes that the sent token does not
    have; BadInput; TooMany.
    """
    identity = need(TOKENS)
    sent = identity.account
    if sent is None or identity.is_of_page:
        raise NotAllowed("only a contributor's own token can create tokens")
    rates().hit(NEW_TOKENS, identity.name or "")
    with registry().catalog.writing() as session:
        created = create_child_token(session, sent.token_id, request.scopes, request.label, request.days)
        return CreatedToken(
            **structs.asdict(account_token(session, token_by_public_id(session, created.public_id))), token=created.text
        )


@writing_operation(
    GROUP, "/account/tokens/{token}", "Revoke a token", TOKEN, method="delete", refusals=(404,), scope=ANY
)
def revoke_token(token: str) -> AccountToken:
    """Revoke a token. Every token can revoke itself. With the scope `tokens`, it can also revoke the tokens that it
    created, directly or indirectly; for other tokens of the account the answer is 403. This also revokes the tokens
    that the revoked token created, and logs out their browser sessions. Revoking twice changes nothing."""
    identity = need(ANY)
    if identity.account is None:
        raise NoSuchToken(f"there is no token {token[:20]!r}")
    if identity.is_of_page:
        raise NotAllowed("the token of a page cannot revoke tokens: use a contributor's own token")
    with registry().catalog.writing() as session:
        return account_token(session, revoke_by_token(session, identity.account.token_id, token))


def _own_account(session: Session) -> tuple[Account, ContributorRow | None]:
    """Return the account of the sent token with its quota, and its row; `local` may have none."""
    identity, limits = need(ANY), registry().settings
    try:
        contributor = contributor_by_name(session, identity.name or "")
    except NotFound:
        contributor = None
    account = account_of(
        session,
        identity.name or "",
        identity.scopes,
        None if identity.account is None else identity.account.token_id,
        contributor,
        default_bytes=limits.quota_bytes,
        upload_max_bytes=limits.upload_max_bytes,
    )
    return account, contributor


def _visible_tokens(session: Session, identity: RequestUser) -> tuple[AccountToken, ...]:
    """Return the tokens that the user may list, newest first: without the scope `tokens` only the sent token."""
    if identity.account is None:
        return ()
    if identity.may(TOKENS):
        return tokens_of(session, identity.account.contributor_id)
    return (account_token(session, session.get_one(Token, identity.account.token_id)),)


CONTRIBUTOR = path_parameter(
    "contributor",
    "The contributor's name; upper and lower case do not matter.",
    {"type": "string", "maxLength": 96},
    "local",
)


@operation(GROUP, "/contributors", "List contributors", LIMIT, AFTER, example=f"{ROOT}/contributors?limit=1")
def contributors() -> ContributorPage:
    """Return the contributors with visible models, newest first, and how often their models are used."""
    with searching() as session:
        return contributors_page(session, *requested_page())


@operation(GROUP, "/contributors/{contributor}", "Get a contributor", CONTRIBUTOR, refusals=(404,))
def contributor(contributor: str) -> Contributor:
    """Return a contributor, and how often the models are used. 404 for a contributor without a visible model."""
    with searching() as session:
        return public_contributor(session, contributor)
