"""Contributors with accounts, their tokens, and the sessions of their browsers."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.accounts import (
    KnownToken,
    contributor_by_name,
    descendants_of,
    is_good,
    token_by_public_id,
)
from organs.registry.catalog.register.events import record_event
from organs.registry.catalog.tables import Contributor, PageToken, Token, WebSession, now
from organs.registry.catalog.vocabulary import MANAGE_TOKENS, SCOPES, Action, checked_text
from organs.registry.entities.account import TOKEN_DAYS_DEFAULT, TOKEN_DAYS_MAX
from organs.registry.errors import BadInput, BadName, BadToken, NotAllowed
from organs.registry.names import check_new_name, parse_model_name
from organs.registry.tokens import NewToken, new_page_token, new_token, secret_sha256

TOKENS_MAX = 50
"""Good ones that a contributor may have at once."""
SESSION = timedelta(days=14)
SESSIONS_MAX = 50
"""Of one token; the oldest makes room."""
PAGE_TOKEN = timedelta(hours=1)
USE_NOTED_EVERY = timedelta(minutes=10)
LOCAL = "local"
"""Whoever works at the registry's own machine: the command, and the pages of a server that only it can reach."""
_STATE_ACTIONS = {"active": Action.RESUME_CONTRIBUTOR, "suspended": Action.SUSPEND_CONTRIBUTOR}


def add_contributor(session: Session, name: str, by: str = LOCAL, quota_bytes: int | None = None) -> Contributor:
    """A new contributor, whose namespace has the same name. Raises BadName, BadInput where the name is taken."""
    parse_model_name(f"{name}/model")  # the rules of a namespace
    if "/" in name or "@" in name:
        raise BadName(f"{name[:100]!r} is not a contributor's name: leave out / and @")
    check_new_name(name)
    taken = session.scalar(select(Contributor.name).where(func.lower(Contributor.name) == name.lower()).limit(1))
    if taken is not None:
        raise BadInput(f"there is a contributor {taken} already")
    found = Contributor(name=name, created_at=now(), state="active", quota_bytes=quota_bytes)
    session.add(found)
    session.flush()
    record_event(session, by, Action.ADD_CONTRIBUTOR, name)
    return found


def set_contributor_state(session: Session, name: str, state: str, by: str = LOCAL) -> Contributor:
    """Suspend a contributor (`suspended`) or let them in again (`active`). Raises NotFound, NotAllowed for `local`."""
    found = contributor_by_name(session, name)
    if found.name == LOCAL:
        raise NotAllowed(f"{LOCAL} is whoever works at this machine, and cannot be suspended")
    if found.state != state:
        found.state = state
        record_event(session, by, _STATE_ACTIONS[state], found.name)
    return found


def set_quota(session: Session, name: str, quota_bytes: int | None, by: str = LOCAL) -> Contributor:
    """What may be kept for a contributor; None is what the server gives to everybody. Raises NotFound."""
    found = contributor_by_name(session, name)
    found.quota_bytes = quota_bytes
    told = "the default" if quota_bytes is None else f"{quota_bytes} bytes"
    record_event(session, by, Action.SET_QUOTA, found.name, told)
    return found


def create_token(
    session: Session,
    contributor_id: int,
    scopes: Collection[str],
    label: str,
    days: int | None = TOKEN_DAYS_DEFAULT,
    by: str = LOCAL,
) -> NewToken:
    """Create a token of a contributor, as an administrator does: without a parent, with any of the scopes.

    It expires after `days`; None means never. Its text is in the result and is not stored.
    Raises BadInput, BadValue; NotAllowed for `local`, and where TOKENS_MAX tokens are good.
    """
    expires_at = None if days is None else now() + _lifetime(days)
    return _add_token(session, contributor_id, scopes, label, expires_at, None, by)


def create_child_token(
    session: Session, parent_id: int, scopes: Collection[str], label: str, days: int | None = TOKEN_DAYS_DEFAULT
) -> NewToken:
    """Create a token of the same contributor with the scopes of the token `parent_id`, or fewer.

    It expires after `days`, or with its parent if that is sooner; None means with its parent. It is revoked with its
    parent. Raises BadInput, BadValue; NotAllowed for a parent without the scope `tokens`, for scopes that the parent
    does not have, and where TOKENS_MAX tokens are good; BadToken for a parent that was revoked or has expired.
    """
    parent = session.get_one(Token, parent_id)
    moment = now()
    if parent.revoked_at is not None or (parent.expires_at is not None and parent.expires_at <= moment):
        raise BadToken("this token was revoked or has expired")
    _need_manager(parent)
    missing = sorted(set(scopes) - set(parent.scopes.split()))
    if missing:
        raise NotAllowed(f"a token can only give scopes that it has; this one does not have {', '.join(missing)[:80]}")
    limits = [parent.expires_at, None if days is None else moment + _lifetime(days)]
    expires_at = min((limit for limit in limits if limit is not None), default=None)
    owner = session.get_one(Contributor, parent.contributor_id)
    return _add_token(session, owner.id, scopes, label, expires_at, parent.id, owner.name)


def revoke_token(session: Session, public_id: str, by: str = LOCAL) -> Token:
    """Revoke any token, as an administrator does, with the tokens that it created. Raises NotFound."""
    return _revoke(session, token_by_public_id(session, public_id), by)


def revoke_by_token(session: Session, holder_id: int, public_id: str) -> Token:
    """Revoke what the token `holder_id` may revoke, with the tokens that it created: itself, and with the scope
    `tokens` those that it created, directly or through others.

    Raises NotAllowed for another token of the contributor, and without the scope for every other; NotFound.
    """
    holder = session.get_one(Token, holder_id)
    owner = session.get_one(Contributor, holder.contributor_id)
    if holder.public_id == public_id:
        return _revoke(session, holder, owner.name)
    _need_manager(holder)
    found = token_by_public_id(session, public_id, owner.id)
    if found not in descendants_of(session, holder.id):
        raise NotAllowed(
            f"{found.public_id} was not created by this token: revoke it with itself or with the token that created "
            "it, or ask an administrator"
        )
    return _revoke(session, found, owner.name)


def note_use(session: Session, account: KnownToken) -> None:
    """That a token was used, to USE_NOTED_EVERY."""
    session.execute(update(Token).where(Token.id == account.token_id).values(last_used_at=now()))


def is_use_due(account: KnownToken, moment: datetime) -> bool:
    """Whether its use is to be noted again."""
    return account.last_used_at is None or moment - account.last_used_at > USE_NOTED_EVERY


def open_session(session: Session, account: KnownToken) -> str:
    """Log a browser in by the token of `account`; the secret for its cookie."""
    forget_sessions(session)
    moment = now()
    own = select(WebSession.id).where(WebSession.token_id == account.token_id).order_by(WebSession.id.desc())
    surplus = session.scalars(own).all()[SESSIONS_MAX - 1 :]
    session.execute(delete(WebSession).where(WebSession.id.in_(surplus)))
    secret = secrets.token_urlsafe(32)
    until = moment + SESSION if account.expires_at is None else min(moment + SESSION, account.expires_at)
    session.add(
        WebSession(secret_sha256=secret_sha256(secret), token_id=account.token_id, created_at=moment, expires_at=until)
    )
    record_event(session, account.name, Action.LOG_IN)
    session.flush()
    return secret


def end_session(session: Session, session_id: int) -> None:
    """Log a browser out: its pages' tokens end too."""
    session.execute(delete(WebSession).where(WebSession.id == session_id))


def open_page_token(session: Session, session_id: int, scopes: Collection[str]) -> NewToken:
    """A token for a page of that session, good for `scopes` as far as its contributor's token is, and for an hour."""
    moment = now()
    session.execute(delete(PageToken).where(PageToken.session_id == session_id, PageToken.expires_at <= moment))
    made = new_page_token()
    session.add(
        PageToken(
            secret_sha256=made.sha256,
            session_id=session_id,
            scopes=" ".join(scope for scope in SCOPES if scope in scopes),
            created_at=moment,
            expires_at=moment + PAGE_TOKEN,
        )
    )
    session.flush()
    return made


def forget_sessions(session: Session) -> None:
    """Remove sessions that have ended by themselves."""
    session.execute(delete(WebSession).where(WebSession.expires_at <= now()))


def _need_manager(token: Token) -> None:
    if MANAGE_TOKENS not in token.scopes.split():
        raise NotAllowed(f"this needs a token with the scope {MANAGE_TOKENS}; without it a token revokes only itself")


def _lifetime(days: int) -> timedelta:
    if not 1 <= days <= TOKEN_DAYS_MAX:
        raise BadInput(f"a token is good for 1 to {TOKEN_DAYS_MAX} days")
    return timedelta(days=days)


def _add_token(
    session: Session,
    contributor_id: int,
    scopes: Collection[str],
    label: str,
    expires_at: datetime | None,
    parent_id: int | None,
    by: str,
) -> NewToken:
    """Write the row of a new token, after the checks that hold whoever creates it."""
    if session.get_one(Contributor, contributor_id).name == LOCAL:
        raise NotAllowed(f"{LOCAL} is whoever works at this machine, and has no tokens: make a contributor for them")
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise BadInput(f"{', '.join(unknown)[:80] or 'nothing'!r} is no scope: there is {', '.join(SCOPES)}")
    moment = now()
    good = session.scalar(
        select(func.count()).select_from(Token).where(Token.contributor_id == contributor_id, is_good(moment))
    )
    if (good or 0) >= TOKENS_MAX:
        raise NotAllowed(f"{good} tokens are good already: revoke some first")
    made = new_token()
    session.add(
        Token(
            contributor_id=contributor_id,
            parent_id=parent_id,
            public_id=made.public_id,
            secret_sha256=made.sha256,
            scopes=" ".join(scope for scope in SCOPES if scope in scopes),
            label=checked_text(label.strip(), "the label", 96),
            created_at=moment,
            expires_at=expires_at,
        )
    )
    session.flush()
    record_event(session, by, Action.CREATE_TOKEN, made.public_id, " ".join(sorted(scopes)))
    return made


def _revoke(session: Session, token: Token, by: str) -> Token:
    """Revoke a token and its descendants, and end their sessions. What is revoked already stays as it is."""
    moment = now()
    for one in (token, *descendants_of(session, token.id)):
        if one.revoked_at is None:
            one.revoked_at = moment
            session.execute(delete(WebSession).where(WebSession.token_id == one.id))
            record_event(session, by, Action.REVOKE_TOKEN, one.public_id)
    return token
