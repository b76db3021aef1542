"""One's own account, as pages and the API ask for it: who that is, what is kept for them, tokens made and ended."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy.orm import Session

from registry.catalog.queries.accounts import contributor_by_name, token_by_id, token_by_public_id
from registry.catalog.register.accounts import TOKEN_DAYS_DEFAULT, create_token, revoke_token
from registry.catalog.register.contributors import contributor_id
from registry.catalog.tables import Contributor
from registry.errors import NotAllowed, NotFound
from registry.present.accounts import account_values, belongings_values, new_token_values, token_values
from registry.present.values import Values
from web.answers import reading, registry, settings
from web.identity import ANY, Identity, need
from web.rates import NEW_TOKENS, rates


def own_account(*, whole: bool = False) -> Values:
    """Who asks, with the quota; the `whole` has models, uploads, submissions and tokens too. Raises BadToken (401)."""
    who = need(ANY)
    with reading(settings().search_seconds) as session:
        contributor, limits = _contributor(session, who), registry().settings
        token = None if who.account is None else token_by_id(session, who.account.token_id)
        most = (limits.quota_bytes, limits.upload_max_bytes)
        values = account_values(session, who.name or "", who.scopes, token, contributor, *most)
        return values | belongings_values(session, contributor) if whole else values


def own_contributor(session: Session) -> Contributor | None:
    """Who asks; None for `local` in a registry that has nothing yet. Raises BadToken (401)."""
    return _contributor(session, need(ANY))


def make_own_token(label: str, scopes: Collection[str], days: int | None = TOKEN_DAYS_DEFAULT) -> Values:
    """A new token of who asks, with its text, which is shown this once.

    Raises NotAllowed for scopes that the asker has not, and for a page's token; BadInput; TooMany.
    """
    who = _token_keeper()
    beyond = sorted(set(scopes) - who.scopes)
    if beyond:
        raise NotAllowed(f"a token gives only what its maker may; {', '.join(beyond)[:80]} is more")
    rates().hit(NEW_TOKENS, who.name or "")
    with registry().catalog.writing() as session:
        name = who.name or ""
        made = create_token(session, contributor_id(session, name), scopes, label, days, by=name)
        return new_token_values(token_by_public_id(session, made.public_id), made)


def end_own_token(public_id: str) -> Values:
    """Revoke a token of who asks; it is good for nothing from the next request on. Raises NotFound, NotAllowed."""
    who = _token_keeper()
    with registry().catalog.writing() as session:
        name = who.name or ""
        return token_values(revoke_token(session, public_id, contributor_id(session, name), by=name))


def _token_keeper() -> Identity:
    """Who asks, who may make and end tokens: a page's token, which lives for an hour, makes none that live on."""
    who = need(ANY)
    if who.is_of_page:
        raise NotAllowed("a page's token makes and ends no tokens: use a contributor's")
    return who


def _contributor(session: Session, who: Identity) -> Contributor | None:
    try:
        return contributor_by_name(session, who.name or "")
    except NotFound:
        return None
