"""The account of whoever sends the request: quota, tokens. Pages and the API use these functions alike."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.accounts import contributor_by_name, token_by_id, tokens_of
from organs.registry.catalog.register.accounts import create_child_token, revoke_by_token
from organs.registry.catalog.tables import Contributor, Token
from organs.registry.catalog.vocabulary import TOKEN_DAYS_DEFAULT
from organs.registry.errors import NoSuchToken, NotAllowed, NotFound
from organs.registry.present.accounts import (
    account_values,
    belongings_values,
    new_token_values,
    token_values,
    tokens_values,
)
from organs.registry.present.values import Values
from organs.web.auth import (
    ANY,
    TOKENS,
    Identity,
    need,
)
from organs.web.rates import NEW_TOKENS, rates
from organs.web.responses import (
    reading,
    registry,
    settings,
)


def own_account(*, whole: bool = False) -> Values:
    """Return the account with its quota; `whole` adds models, uploads, submissions and tokens. Raises BadToken (401).

    Of the tokens it has those that `visible_tokens` lists.
    """
    who = need(ANY)
    with reading(settings().search_seconds) as session:
        contributor, limits = _contributor(session, who), registry().settings
        token = None if who.account is None else token_by_id(session, who.account.token_id)
        most = (limits.quota_bytes, limits.upload_max_bytes)
        values = account_values(session, who.name or "", who.scopes, token, contributor, *most)
        if whole:
            tokens = [token_values(session, one) for one in visible_tokens(session, who)]
            values |= belongings_values(session, contributor) | {"tokens": tokens}
        return values


def own_tokens() -> Values:
    """Return the tokens that the asker may list. Raises BadToken (401), NotAllowed (403) without the scope `tokens`."""
    who = need(TOKENS)
    with reading(settings().search_seconds) as session:
        return tokens_values(session, visible_tokens(session, who))


def visible_tokens(session: Session, who: Identity) -> list[Token]:
    """Return the tokens that `who` may list, newest first: with the scope `tokens` all, else the one that is sent."""
    if who.account is None:
        return []
    own = tokens_of(session, who.account.contributor_id)
    return [one for one in own if who.may(TOKENS) or one.id == who.account.token_id]


def create_own_token(label: str, scopes: Collection[str], days: int | None = TOKEN_DAYS_DEFAULT) -> Values:
    """Create a token as a child of the asker's, and return its fields and its text, which is not stored.

    Raises BadToken (401); NotAllowed (403) without the scope `tokens`, and for scopes that the asker does not have;
    BadInput; TooMany.
    """
    who = need(TOKENS)
    account = who.account
    if account is None or who.is_of_page:
        raise NotAllowed("only a contributor's own token creates tokens")
    rates().hit(NEW_TOKENS, who.name or "")
    with registry().catalog.writing() as session:
        return new_token_values(session, create_child_token(session, account.token_id, scopes, label, days))


def revoke_own_token(public_id: str) -> Values:
    """Revoke the asker's token or one that it created, and return its fields.

    Raises BadToken (401); NotAllowed (403) for a token that it did not create, and for the token of a page; NotFound.
    """
    who = need(ANY)
    if who.account is None:
        raise NoSuchToken(f"there is no token {public_id[:20]!r}")
    if who.is_of_page:
        raise NotAllowed("the token of a page revokes no tokens: use a contributor's own")
    with registry().catalog.writing() as session:
        return token_values(session, revoke_by_token(session, who.account.token_id, public_id))


def _contributor(session: Session, who: Identity) -> Contributor | None:
    try:
        return contributor_by_name(session, who.name or "")
    except NotFound:
        return None
