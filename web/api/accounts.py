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
from organs.registry.endpoints import accounts as endpoints
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
from organs.web.api.operation import serves
from organs.web.auth import ANY, TOKENS, RequestUser, need
from organs.web.rate_limits import NEW_TOKENS, rates
from organs.web.responses import registry, searching


@serves(endpoints.account)
def account() -> Account:
    with searching() as session:
        return _own_account(session)[0]


@serves(endpoints.account_overview)
def account_overview() -> AccountOverview:
    with searching() as session:
        account, contributor = _own_account(session)
        return overview_of(session, account, contributor, _visible_tokens(session, need(ANY)))


@serves(endpoints.tokens)
def tokens() -> AccountTokenPage:
    with searching() as session:
        return AccountTokenPage(items=_visible_tokens(session, need(TOKENS)), next=None)


@serves(endpoints.make_token)
def make_token(body: TokenRequest) -> CreatedToken:
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


@serves(endpoints.revoke_token)
def revoke_token(token: str) -> AccountToken:
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


@serves(endpoints.contributors)
def contributors(limit: int, after: str | None) -> ContributorPage:
    with searching() as session:
        return contributors_page(session, limit, after)


@serves(endpoints.contributor)
def contributor(contributor: str) -> Contributor:
    with searching() as session:
        return public_contributor(session, contributor)
