"""The account of the current user, and its tokens. Pages and the API use the same functions.

The *sent token* is the token that authenticates the request, in the API or through the session of a browser.
"""

from __future__ import annotations

from msgspec import structs
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.accounts import (
    account_of,
    account_overview,
    account_token,
    contributor_by_name,
    token_by_public_id,
    tokens_of,
)
from organs.registry.catalog.register.accounts import create_child_token, revoke_by_token
from organs.registry.catalog.tables import ContributorRow, Token
from organs.registry.entities.account import (
    Account,
    AccountOverview,
    AccountToken,
    AccountTokenPage,
    CreatedToken,
    TokenRequest,
)
from organs.registry.errors import NoSuchToken, NotAllowed, NotFound
from organs.web.auth import (
    ANY,
    TOKENS,
    Identity,
    need,
)
from organs.web.rate_limits import (
    NEW_TOKENS,
    rates,
)
from organs.web.responses import (
    reading,
    registry,
    settings,
)


def own_account() -> Account:
    """Return the account of the sent token, with its quota. Raises BadToken (401)."""
    identity = need(ANY)
    with reading(settings().search_seconds) as session:
        return _account(session, identity, _contributor(session, identity))


def own_overview() -> AccountOverview:
    """Return the account with its models, uploads, submissions and visible tokens. Raises BadToken (401)."""
    identity = need(ANY)
    with reading(settings().search_seconds) as session:
        contributor = _contributor(session, identity)
        account = _account(session, identity, contributor)
        return account_overview(session, account, contributor, visible_tokens(session, identity))


def own_tokens() -> AccountTokenPage:
    """Return the tokens of the account. Raises BadToken (401), NotAllowed (403) without the scope `tokens`."""
    identity = need(TOKENS)
    with reading(settings().search_seconds) as session:
        return AccountTokenPage(items=visible_tokens(session, identity), next=None)


def visible_tokens(session: Session, identity: Identity) -> tuple[AccountToken, ...]:
    """Return the tokens that the user may list, newest first.

    With the scope `tokens` these are all tokens of the account, otherwise only the sent token.
    """
    if identity.account is None:
        return ()
    if identity.may(TOKENS):
        return tokens_of(session, identity.account.contributor_id)
    return (account_token(session, session.get_one(Token, identity.account.token_id)),)


def create_own_token(request: TokenRequest) -> CreatedToken:
    """Create a token as a child of the sent token, and return it with its text, which is not stored.

    Raises BadToken (401); NotAllowed (403) without the scope `tokens`, and for scopes that the sent token does not
    have; BadInput; TooMany.
    """
    identity = need(TOKENS)
    account = identity.account
    if account is None or identity.is_of_page:
        raise NotAllowed("only a contributor's own token can create tokens")
    rates().hit(NEW_TOKENS, identity.name or "")
    with registry().catalog.writing() as session:
        created = create_child_token(session, account.token_id, request.scopes, request.label, request.days)
        return CreatedToken(
            **structs.asdict(account_token(session, token_by_public_id(session, created.public_id))), token=created.text
        )


def revoke_own_token(public_id: str) -> AccountToken:
    """Revoke the sent token or a token that it created, and return the revoked token.

    Raises BadToken (401); NotAllowed (403) for a token that the sent token did not create, and if the sent token is
    that of a page; NotFound.
    """
    identity = need(ANY)
    if identity.account is None:
        raise NoSuchToken(f"there is no token {public_id[:20]!r}")
    if identity.is_of_page:
        raise NotAllowed("the token of a page cannot revoke tokens: use a contributor's own token")
    with registry().catalog.writing() as session:
        return account_token(session, revoke_by_token(session, identity.account.token_id, public_id))


def _account(session: Session, identity: Identity, contributor: ContributorRow | None) -> Account:
    limits = registry().settings
    return account_of(
        session,
        identity.name or "",
        identity.scopes,
        None if identity.account is None else identity.account.token_id,
        contributor,
        default_bytes=limits.quota_bytes,
        upload_max_bytes=limits.upload_max_bytes,
    )


def _contributor(session: Session, identity: Identity) -> ContributorRow | None:
    try:
        return contributor_by_name(session, identity.name or "")
    except NotFound:
        return None
