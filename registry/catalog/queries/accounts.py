"""Who asks: by a token, by a browser's session, by a page's token. And what contributors have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hmac import compare_digest
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.orm import Session

from organs.registry.catalog.tables import Contributor, PageToken, Token, WebSession
from organs.registry.errors import NoSuchContributor, NoSuchToken
from organs.registry.tokens import SentToken

REVOKED = "was revoked: make another, or ask whoever runs the registry"
EXPIRED = "has expired: make another, or ask whoever runs the registry"
SUSPENDED = "is of a contributor who is suspended: ask whoever runs the registry"


@dataclass(frozen=True, slots=True)
class Account:
    """A contributor who asks, with what the token is good for by which they do."""

    contributor_id: int
    name: str
    scopes: frozenset[str]
    token_id: int
    """The row of the contributor's token, also behind a session."""
    session_id: int | None
    expires_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class EndedToken:
    """A token that was good once: `why` it is not any more, in words that follow "this token"."""

    why: str


def account_by_token(session: Session, sent: SentToken, now: datetime) -> Account | None:
    """Whose token it is; None for one that is unknown, revoked or expired, or whose contributor is suspended."""
    found = known_token(session, sent, now)
    return found if isinstance(found, Account) else None


def known_token(session: Session, sent: SentToken, now: datetime) -> Account | EndedToken | None:
    """Whose token it is, or why it is good no more; None for one that never was.

    One row by an index, whichever it is. Why a token has ended is told to who has all of it, and to nobody else.
    """
    if sent.is_of_page:
        return _page_account(session, sent, now)
    rows = _accounts().add_columns(Token.scopes, Token.secret_sha256).where(Token.public_id == sent.public_id)
    row = session.execute(rows).one_or_none()
    if row is None or not compare_digest(row.secret_sha256, sent.sha256):
        return None
    return _ended(row, now) or _account(row, row.scopes, row.expires_at)


def account_by_session(session: Session, sha256: str, now: datetime) -> Account | None:
    """Whose browser has the session with a secret of that digest, while it and its token are good."""
    columns = (WebSession.id.label("session_id"), WebSession.expires_at.label("session_expires_at"), Token.scopes)
    rows = _accounts().add_columns(*columns).join(WebSession, WebSession.token_id == Token.id)
    row = session.execute(rows.where(WebSession.secret_sha256 == sha256, WebSession.expires_at > now)).one_or_none()
    return (
        None if row is None or _ended(row, now) else _account(row, row.scopes, row.session_expires_at, row.session_id)
    )


def contributor_by_name(session: Session, name: str) -> Contributor:
    """The contributor of that name, however it is capitalised; raises NotFound."""
    wanted = func.lower(Contributor.name) == name.lower()
    one = select(Contributor).where(wanted).order_by(Contributor.id).limit(1)
    found = None if "\0" in name else session.scalars(one).one_or_none()
    if found is None:
        raise NoSuchContributor(f"there is no contributor {name[:96]!r}")
    return found


def contributors_in_order(session: Session) -> Sequence[Contributor]:
    """All of them, by name."""
    return session.scalars(select(Contributor).order_by(Contributor.name)).all()


def tokens_of(session: Session, contributor_id: int) -> Sequence[Token]:
    """A contributor's tokens, newest first, those that are good no more among them."""
    statement = select(Token).where(Token.contributor_id == contributor_id).order_by(Token.id.desc())
    return session.scalars(statement).all()


def token_by_id(session: Session, token_id: int) -> Token:
    """The token of that row, which there is."""
    return session.get_one(Token, token_id)


def token_by_public_id(session: Session, public_id: str, contributor_id: int | None = None) -> Token:
    """The token that is called so, of that contributor if one is given; raises NotFound."""
    statement = select(Token).where(Token.public_id == public_id)
    if contributor_id is not None:
        statement = statement.where(Token.contributor_id == contributor_id)
    found = session.scalars(statement).one_or_none() if public_id.isascii() and public_id.isalnum() else None
    if found is None:
        raise NoSuchToken(f"there is no token {public_id[:20]!r}")
    return found


def descendants_of(session: Session, token_id: int) -> Sequence[Token]:
    """Return the tokens that a token created, directly or through others, oldest first."""
    family = select(Token.id).where(Token.parent_id == token_id).cte("family", recursive=True)
    family = family.union(select(Token.id).where(Token.parent_id == family.c.id))
    return session.scalars(select(Token).where(Token.id.in_(select(family.c.id))).order_by(Token.id)).all()


def _page_account(session: Session, sent: SentToken, now: datetime) -> Account | EndedToken | None:
    """A page's token is good while its session is, for what both are good for."""
    columns = (PageToken.scopes.label("page_scopes"), PageToken.expires_at.label("page_expires_at"), Token.scopes)
    ids = (WebSession.id.label("session_id"), WebSession.expires_at.label("session_expires_at"))
    rows = (
        _accounts()
        .add_columns(*columns, *ids)
        .join(WebSession, WebSession.token_id == Token.id)
        .join(PageToken, PageToken.session_id == WebSession.id)
        .where(PageToken.secret_sha256 == sent.sha256)
    )
    row = session.execute(rows).one_or_none()
    if row is None:
        return None
    if min(row.page_expires_at, row.session_expires_at) <= now:
        return EndedToken(EXPIRED)
    ended = _ended(row, now)
    if ended is not None:
        return ended
    both = set(row.page_scopes.split()) & set(row.scopes.split())
    return _account(row, " ".join(both), row.page_expires_at, row.session_id)


def _accounts() -> Select[*tuple[Any, ...]]:
    """Rows of tokens with their contributors, good or not: `_ended` tells."""
    own = (Contributor.id.label("contributor_id"), Contributor.name, Contributor.state)
    times = (Token.expires_at, Token.revoked_at, Token.last_used_at)
    statement: Select[*tuple[Any, ...]] = select(*own, Token.id.label("token_id"), *times)
    return statement.join(Contributor, Contributor.id == Token.contributor_id)


def _ended(row: Any, now: datetime) -> EndedToken | None:
    """Why a row of `_accounts` lets nobody in; None for one that does."""
    if row.revoked_at is not None:
        return EndedToken(REVOKED)
    if row.expires_at is not None and row.expires_at <= now:
        return EndedToken(EXPIRED)
    return None if row.state == "active" else EndedToken(SUSPENDED)


def is_good(now: datetime) -> ColumnElement[bool]:
    """Whether a token is neither revoked nor expired."""
    return and_(Token.revoked_at.is_(None), or_(Token.expires_at.is_(None), Token.expires_at > now))


def _account(row: Any, scopes: str, expires_at: datetime | None, session_id: int | None = None) -> Account:
    return Account(
        contributor_id=row.contributor_id,
        name=row.name,
        scopes=frozenset(scopes.split()),
        token_id=row.token_id,
        session_id=session_id,
        expires_at=expires_at,
        last_used_at=row.last_used_at,
    )
