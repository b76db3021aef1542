"""Contributors with accounts, their tokens, and the sessions of their browsers."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from datetime import timedelta

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.engine import database_now
from organs.registry.catalog.queries.accounts import (
    KnownToken,
    contributor_by_name,
    descendants_of,
    is_valid,
    token_by_public_id,
)
from organs.registry.catalog.register.events import contributor_id, record_event
from organs.registry.catalog.rows import count, entity_of
from organs.registry.catalog.tables import (
    SAVED_QUERY_MAX,
    ContributorRow,
    PageToken,
    SavedQueryRow,
    Token,
    WebSession,
)
from organs.registry.catalog.vocabulary import MANAGE_TOKENS, SCOPES, Action, checked_text
from organs.registry.entities.account import TOKEN_DAYS_DEFAULT, TOKEN_DAYS_MAX
from organs.registry.entities.query import SavedQuery
from organs.registry.errors import BadInput, BadName, BadToken, NotAllowed, NotFound
from organs.registry.names import check_new_name, check_query_name, parse_new_name
from organs.registry.tokens import NewToken, new_page_token, new_token, secret_sha256

TOKENS_MAX = 50
"""The most valid tokens of one contributor."""
SESSION = timedelta(days=14)
SESSIONS_MAX = 50
"""The most sessions of one token. A further session replaces the oldest."""
PAGE_TOKEN = timedelta(hours=1)
USE_INTERVAL = timedelta(minutes=10)
"""The least time between two records of the use of a token."""
LOCAL = "local"
"""The contributor for users of the registry's own machine: the command line, and servers that only it can reach."""
_STATE_ACTIONS = {"active": Action.RESUME_CONTRIBUTOR, "suspended": Action.SUSPEND_CONTRIBUTOR}


def add_contributor(session: Session, name: str, by: str = LOCAL, quota_bytes: int | None = None) -> ContributorRow:
    """Add a contributor, whose namespace has the same name. Raises BadName; BadInput if the name is existing_name."""
    parse_new_name(f"{name}/model")  # applies the rules of a namespace
    if "/" in name or "@" in name:
        raise BadName(f"{name[:100]!r} is not a valid contributor name: leave out / and @")
    check_new_name(name)
    existing_name = session.scalar(
        select(ContributorRow.name).where(func.lower(ContributorRow.name) == name.lower()).limit(1)
    )
    if existing_name is not None:
        raise BadInput(f"the contributor {existing_name} exists already")
    contributor = ContributorRow(name=name, created_at=database_now(session), state="active", quota_bytes=quota_bytes)
    session.add(contributor)
    session.flush()
    record_event(session, by, Action.ADD_CONTRIBUTOR, name)
    return contributor


def set_contributor_state(session: Session, name: str, state: str, by: str = LOCAL) -> ContributorRow:
    """Suspend a contributor (`suspended`) or resume them (`active`). Raises NotFound; NotAllowed for `local`."""
    contributor = contributor_by_name(session, name)
    if contributor.name == LOCAL:
        raise NotAllowed(f"{LOCAL} means all users of this machine: it cannot be suspended")
    if contributor.state != state:
        contributor.state = state
        record_event(session, by, _STATE_ACTIONS[state], contributor.name)
    return contributor


def set_quota(session: Session, name: str, quota_bytes: int | None, by: str = LOCAL) -> ContributorRow:
    """Set the quota of a contributor; None means the default of the server. Raises NotFound."""
    contributor = contributor_by_name(session, name)
    contributor.quota_bytes = quota_bytes
    text = "the default" if quota_bytes is None else f"{quota_bytes} bytes"
    record_event(session, by, Action.SET_QUOTA, contributor.name, text)
    return contributor


def create_token(
    session: Session,
    contributor_id: int,
    scopes: Collection[str],
    label: str,
    days: int | None = TOKEN_DAYS_DEFAULT,
    by: str = LOCAL,
) -> NewToken:
    """Create a token without a parent and with any of the scopes, on behalf of an administrator.

    It expires after `days`; None means never. Its text is in the result and is not stored.
    Raises BadInput, BadValue; NotAllowed for `local`, and if TOKENS_MAX tokens are valid.
    """
    return _add_token(session, contributor_id, scopes, label, days, None, by)


def create_child_token(
    session: Session, parent_id: int, scopes: Collection[str], label: str, days: int | None = TOKEN_DAYS_DEFAULT
) -> NewToken:
    """Create a token of the same contributor with the scopes of the token `parent_id`, or fewer.

    The token expires after `days`, or with its parent if that is sooner; None means with its parent. It is revoked
    together with its parent. Raises BadInput, BadValue; NotAllowed for a parent without the scope `tokens`, for scopes
    that the parent does not have, and if TOKENS_MAX tokens are valid; BadToken for a parent that was revoked or has
    expired.
    """
    parent = session.get_one(Token, parent_id)
    if parent.revoked_at is not None or (parent.expires_at is not None and parent.expires_at <= database_now(session)):
        raise BadToken("this token was revoked or has expired")
    own_scopes = parent.scopes.split()
    if MANAGE_TOKENS not in own_scopes:
        raise NotAllowed(_CANNOT_MANAGE)
    missing = sorted(set(scopes) - set(own_scopes))
    if missing:
        raise NotAllowed(
            f"a token can only give scopes that it has; this token does not have {', '.join(missing)[:80]}"
        )
    owner = session.get_one(ContributorRow, parent.contributor_id)
    return _add_token(session, owner.id, scopes, label, days, parent, owner.name)


def revoke_token(session: Session, public_id: str) -> Token:
    """Revoke any token and the tokens that it created, on behalf of an administrator. Raises NotFound."""
    return _revoke(session, token_by_public_id(session, public_id), LOCAL)


def revoke_by_token(session: Session, holder_id: int, public_id: str) -> Token:
    """Revoke a token and all tokens that it created, with the rights of the token `holder_id`.

    Every token may revoke itself. A token with the scope `tokens` may also revoke the tokens that it created, directly
    or through others. Raises NotAllowed for all other tokens of the contributor; NotFound.
    """
    holder = session.get_one(Token, holder_id)
    owner = session.get_one(ContributorRow, holder.contributor_id)
    if holder.public_id == public_id:
        return _revoke(session, holder, owner.name)
    if MANAGE_TOKENS not in holder.scopes.split():
        raise NotAllowed(_CANNOT_MANAGE)
    token = token_by_public_id(session, public_id, owner.id)
    if token not in descendants_of(session, holder.id):
        raise NotAllowed(
            f"{token.public_id} was not created by this token: revoke it with itself or with the token that created "
            "it, or ask an administrator"
        )
    return _revoke(session, token, owner.name)


_CANNOT_MANAGE = f"this needs a token with the scope {MANAGE_TOKENS}; a token without it can revoke only itself"


def record_use(session: Session, account: KnownToken) -> None:
    """Record that a token was used just now."""
    session.execute(update(Token).where(Token.id == account.token_id).values(last_used_at=database_now(session)))


def is_use_due(account: KnownToken) -> bool:
    """Return whether the use of the token must be recorded again."""
    return account.last_used_at is None or account.read_at - account.last_used_at > USE_INTERVAL


def open_session(session: Session, account: KnownToken) -> str:
    """Log a browser in with the token of `account`; return the secret for its cookie."""
    moment = database_now(session)
    session.execute(delete(WebSession).where(WebSession.expires_at <= moment))
    sessions = select(WebSession.id).where(WebSession.token_id == account.token_id).order_by(WebSession.id.desc())
    surplus = session.scalars(sessions).all()[SESSIONS_MAX - 1 :]
    session.execute(delete(WebSession).where(WebSession.id.in_(surplus)))
    secret = secrets.token_urlsafe(32)
    ends_at = moment + SESSION if account.expires_at is None else min(moment + SESSION, account.expires_at)
    session.add(
        WebSession(
            secret_sha256=secret_sha256(secret), token_id=account.token_id, created_at=moment, expires_at=ends_at
        )
    )
    record_event(session, account.name, Action.LOG_IN)
    session.flush()
    return secret


def end_session(session: Session, session_id: int) -> None:
    """Log a browser out; the tokens of its pages end too."""
    session.execute(delete(WebSession).where(WebSession.id == session_id))


def open_page_token(session: Session, session_id: int, scopes: Collection[str]) -> NewToken:
    """Create a token for a page of the session: valid for an hour, for `scopes` that the session's token also has."""
    moment = database_now(session)
    session.execute(delete(PageToken).where(PageToken.session_id == session_id, PageToken.expires_at <= moment))
    token = new_page_token()
    session.add(
        PageToken(
            secret_sha256=token.sha256,
            session_id=session_id,
            scopes=" ".join(scope for scope in SCOPES if scope in scopes),
            created_at=moment,
            expires_at=moment + PAGE_TOKEN,
        )
    )
    session.flush()
    return token


def _add_token(
    session: Session,
    contributor_id: int,
    scopes: Collection[str],
    label: str,
    days: int | None,
    parent: Token | None,
    by: str,
) -> NewToken:
    """Write the row of a new token, after the checks that apply to every creator."""
    moment = database_now(session)
    if days is not None and not 1 <= days <= TOKEN_DAYS_MAX:
        raise BadInput(f"a token is valid for 1 to {TOKEN_DAYS_MAX} days")
    if session.get_one(ContributorRow, contributor_id).name == LOCAL:
        raise NotAllowed(f"{LOCAL} means all users of this machine and has no tokens: add a contributor first")
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise BadInput(f"{', '.join(unknown)[:80] or 'nothing'!r} is not a scope: use {', '.join(SCOPES)}")
    valid = count(session, Token, Token.contributor_id == contributor_id, is_valid(moment))
    if valid >= TOKENS_MAX:
        raise NotAllowed(f"{valid} tokens are valid already, the most allowed: revoke some first")
    ends = [None if parent is None else parent.expires_at, None if days is None else moment + timedelta(days=days)]
    token = new_token()
    session.add(
        Token(
            contributor_id=contributor_id,
            parent_id=None if parent is None else parent.id,
            public_id=token.public_id,
            secret_sha256=token.sha256,
            scopes=" ".join(scope for scope in SCOPES if scope in scopes),
            label=checked_text(label.strip(), "the label", 96),
            created_at=moment,
            expires_at=min((end for end in ends if end is not None), default=None),
        )
    )
    session.flush()
    record_event(session, by, Action.CREATE_TOKEN, token.public_id, " ".join(sorted(scopes)))
    return token


def _revoke(session: Session, token: Token, by: str) -> Token:
    """Revoke a token and its descendants, and end their sessions. Tokens that were revoked before stay unchanged."""
    moment = database_now(session)
    for revoked in (token, *descendants_of(session, token.id)):
        if revoked.revoked_at is None:
            revoked.revoked_at = moment
            session.execute(delete(WebSession).where(WebSession.token_id == revoked.id))
            record_event(session, by, Action.REVOKE_TOKEN, revoked.public_id)
    return token


SAVED_QUERIES_MAX = 100
"""The most saved queries of an account."""


def store_query(session: Session, contributor: str, kind: str, name: str, query: str) -> SavedQuery:
    """Save a valid query for the list `kind` under a name of `contributor`, in the place of one of this name.

    Raises BadInput, NotAllowed if SAVED_QUERIES_MAX queries are saved.
    """
    check_query_name(name)
    owner = contributor_id(session, contributor)
    row = session.get(SavedQueryRow, (owner, kind, name))
    if row is None and count(session, SavedQueryRow, SavedQueryRow.contributor_id == owner) >= SAVED_QUERIES_MAX:
        raise NotAllowed(f"{SAVED_QUERIES_MAX} queries are saved, as many as an account can have: delete one")
    row = row or SavedQueryRow(contributor_id=owner, kind=kind, name=name)
    row.query, row.created_at = checked_text(query, "the query", SAVED_QUERY_MAX), database_now(session)
    session.add(row)
    session.flush()
    return entity_of(SavedQuery, row)


def delete_saved_query(session: Session, contributor: str, kind: str, name: str) -> SavedQuery:
    """Delete a saved query of `contributor`, and return it. Raises NotFound."""
    row = session.get(SavedQueryRow, (contributor_id(session, contributor), kind, name))
    if row is None:
        raise NotFound(f"no query for {kind} is saved as {name[:80]!r}")
    saved = entity_of(SavedQuery, row)
    session.delete(row)
    session.flush()
    return saved
