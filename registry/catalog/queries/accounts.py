"""Contributors with their tokens, sessions, models and quotas."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hmac import compare_digest
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from organs.registry.catalog.engine import database_now
from organs.registry.catalog.queries.submissions import UNDER_WAY
from organs.registry.catalog.rows import count, entity_of, page_of_rows, rows_among
from organs.registry.catalog.tables import (
    Blob,
    CardImageRow,
    ChimeraRow,
    ContributorRow,
    ModelRow,
    PageToken,
    SavedQueryRow,
    SubmissionRow,
    Token,
    UploadPiece,
    UploadRow,
    WebSession,
)
from organs.registry.catalog.vocabulary import SCOPES
from organs.registry.entities import account as entities
from organs.registry.entities.account import (
    Account,
    AccountOverview,
    AccountToken,
    ContributorAccount,
    ContributorPage,
    OwnModel,
    OwnQuota,
    OwnSubmission,
    Quota,
    UploadTotals,
)
from organs.registry.entities.query import SavedQueries, SavedQuery
from organs.registry.errors import NoSuchContributor, NoSuchToken, OverQuota
from organs.registry.tokens import SentToken

REVOKED = "was revoked: create a new token, or ask the administrator of the registry"
EXPIRED = "has expired: create a new token, or ask the administrator of the registry"
SUSPENDED = "belongs to a contributor who is suspended: ask the administrator of the registry"


@dataclass(frozen=True, slots=True)
class KnownToken:
    """A valid token with its contributor."""

    contributor_id: int
    name: str
    scopes: frozenset[str]
    token_id: int
    """The row of the contributor's token, also for a session."""
    session_id: int | None
    expires_at: datetime | None
    last_used_at: datetime | None
    """When its use was last recorded."""
    read_at: datetime
    """When this was read. All of these times are those of the database's clock."""


def token_account(session: Session, token: SentToken, now: datetime) -> KnownToken | str | None:
    """Return the contributor of a token, or why it is no longer valid; None for an unknown token.

    The reason completes a sentence that begins with "this token". It is only returned for the complete token with its
    secret. A page token ends with its session at the latest. Its scopes are those that the token of the session has,
    too.
    """
    if not token.is_of_page:
        row = session.execute(_ACCOUNTS.where(Token.public_id == token.public_id)).one_or_none()
        if row is None or not compare_digest(row[0].secret_sha256, token.sha256):
            return None
        own, contributor = row
        return _ended_token(own, contributor, now) or _known_token(own, contributor, now)
    of_page = (
        _ACCOUNTS.add_columns(WebSession, PageToken)
        .join(WebSession, WebSession.token_id == Token.id)
        .join(PageToken, PageToken.session_id == WebSession.id)
    )
    found = session.execute(of_page.where(PageToken.secret_sha256 == token.sha256)).one_or_none()
    if found is None:
        return None
    own, contributor, web_session, page_token = found
    if min(page_token.expires_at, web_session.expires_at) <= now:
        return EXPIRED
    ended = _ended_token(own, contributor, now)
    if ended is not None:
        return ended
    account = _known_token(own, contributor, now, web_session.id, page_token.expires_at)
    return replace(account, scopes=account.scopes & set(page_token.scopes.split()))


def account_by_session(session: Session, sha256: str, now: datetime) -> KnownToken | None:
    """Return the contributor of a session by the digest of its secret, if the session and its token are valid."""
    statement = _ACCOUNTS.add_columns(WebSession).join(WebSession, WebSession.token_id == Token.id)
    is_valid_session = (WebSession.secret_sha256 == sha256, WebSession.expires_at > now)
    row = session.execute(statement.where(*is_valid_session)).one_or_none()
    if row is None:
        return None
    token, contributor, web_session = row
    if _ended_token(token, contributor, now):
        return None
    return _known_token(token, contributor, now, web_session.id, web_session.expires_at)


_ACCOUNTS = select(Token, ContributorRow).join(ContributorRow, ContributorRow.id == Token.contributor_id)
"""Tokens with their contributors, valid or not (see `_ended_token`)."""


def _known_token(
    token: Token,
    contributor: ContributorRow,
    now: datetime,
    session_id: int | None = None,
    expires_at: datetime | None = None,
) -> KnownToken:
    """Return a valid token, or a session or page token of it that ends at `expires_at`."""
    return KnownToken(
        contributor_id=contributor.id,
        name=contributor.name,
        scopes=frozenset(token.scopes.split()),
        token_id=token.id,
        session_id=session_id,
        expires_at=expires_at or token.expires_at,
        last_used_at=token.last_used_at,
        read_at=now,
    )


def contributor_by_name(session: Session, name: str) -> ContributorRow:
    """Return the contributor of that name, in upper or lower case; raises NotFound."""
    same_name = func.lower(ContributorRow.name) == name.lower()
    statement = select(ContributorRow).where(same_name).order_by(ContributorRow.id).limit(1)
    contributor = None if "\0" in name else session.scalars(statement).one_or_none()
    if contributor is None:
        raise NoSuchContributor(f"there is no contributor {name[:96]!r}")
    return contributor


def contributors_in_order(session: Session) -> Sequence[ContributorRow]:
    """Return all contributors by name."""
    return session.scalars(select(ContributorRow).order_by(ContributorRow.name)).all()


def tokens_of(session: Session, contributor_id: int) -> tuple[AccountToken, ...]:
    """Return all tokens of a contributor, including revoked and expired ones, newest first."""
    statement = select(Token).where(Token.contributor_id == contributor_id).order_by(Token.id.desc())
    return tuple(account_token(session, row) for row in session.scalars(statement).all())


def account_token(session: Session, row: Token) -> AccountToken:
    """Return a token as its owner sees it."""
    parent = None if row.parent_id is None else session.get_one(Token, row.parent_id)
    is_expired = row.expires_at is not None and row.expires_at <= database_now(session)
    return entity_of(
        AccountToken,
        row,
        scopes=tuple(row.scopes.split()),
        state="revoked" if row.revoked_at is not None else "expired" if is_expired else "good",
        created_by=None if parent is None else parent.public_id,
    )


def token_by_public_id(session: Session, public_id: str, contributor_id: int | None = None) -> Token:
    """Return the token with this public id, of `contributor_id` if it is not None; raises NotFound."""
    statement = select(Token).where(Token.public_id == public_id)
    if contributor_id is not None:
        statement = statement.where(Token.contributor_id == contributor_id)
    token = session.scalars(statement).one_or_none() if public_id.isascii() and public_id.isalnum() else None
    if token is None:
        raise NoSuchToken(f"there is no token {public_id[:20]!r}")
    return token


def descendants_of(session: Session, token_id: int) -> Sequence[Token]:
    """Return the tokens that a token created, directly or through others, oldest first."""
    family = select(Token.id).where(Token.parent_id == token_id).cte("family", recursive=True)
    family = family.union(select(Token.id).where(Token.parent_id == family.c.id))
    return session.scalars(select(Token).where(Token.id.in_(select(family.c.id))).order_by(Token.id)).all()


def _ended_token(token: Token, contributor: ContributorRow, now: datetime) -> str | None:
    """Return why the token is not valid; None if it is valid."""
    if token.revoked_at is not None:
        return REVOKED
    if token.expires_at is not None and token.expires_at <= now:
        return EXPIRED
    return None if contributor.state == "active" else SUSPENDED


def is_valid(now: datetime) -> ColumnElement[bool]:
    """Return the condition that a token is neither revoked nor expired."""
    return and_(Token.revoked_at.is_(None), or_(Token.expires_at.is_(None), Token.expires_at > now))


MODELS_MAX = 100
"""The most models of one contributor in a list."""


def contributors_page(session: Session, limit: int, after: str | None = None) -> ContributorPage:
    """Return the next `limit` contributors after the cursor `after` who have visible models, newest first.

    Contributors without a visible model are shown to administrators only. Raises BadQuery.
    """
    visible = select(ModelRow.id).where(ModelRow.contributor_id == ContributorRow.id, ModelRow.state == "visible")
    rows, following = page_of_rows(
        session, select(ContributorRow).where(visible.exists()), "contributors", limit, after
    )
    return ContributorPage(items=tuple(_public_contributors(session, [row for (row,) in rows])), next=following)


def public_contributor(session: Session, name: str) -> entities.Contributor:
    """Return the contributor of that name, in upper or lower case.

    Raises NotFound if the contributor does not exist or has no visible model. The sentence is the same in both cases.
    """
    contributor = _public_contributors(session, [contributor_by_name(session, name)])[0]
    if not contributor.models:
        raise NoSuchContributor(f"there is no contributor {name[:96]!r}")
    return contributor


def contributor_account(session: Session, contributor: ContributorRow, default_bytes: int) -> ContributorAccount:
    """Return `contributor` as administrators see it; `default_bytes` is the quota of contributors without their own."""
    quota = quota_of(session, contributor, default_bytes)
    return entity_of(ContributorAccount, contributor, quota=quota, has_own_quota=contributor.quota_bytes is not None)


def visible_models_of(session: Session, name: str) -> Sequence[ModelRow]:
    """Return the newest MODELS_MAX visible models of the contributor of exactly that name."""
    statement = select(ModelRow).join(ContributorRow, ContributorRow.id == ModelRow.contributor_id)
    statement = statement.where(ContributorRow.name == name, ModelRow.state == "visible")
    return session.scalars(statement.order_by(ModelRow.id.desc()).limit(MODELS_MAX)).all()


def _public_contributors(session: Session, contributors: Sequence[ContributorRow]) -> list[entities.Contributor]:
    """Return the public data of `contributors`, in the same order."""
    sums = (
        func.count(ModelRow.id),
        func.count(ChimeraRow.model_id),
        func.sum(ModelRow.downloads),
        func.sum(ModelRow.grafts),
    )
    statement = select(ModelRow.contributor_id, *sums).outerjoin(ChimeraRow, ChimeraRow.model_id == ModelRow.id)
    statement = statement.where(ModelRow.state == "visible").group_by(ModelRow.contributor_id)
    ids = {contributor.id for contributor in contributors}
    numbers = {owner: counts for owner, *counts in rows_among(session, statement, ModelRow.contributor_id, ids)}
    names = ("models", "chimeras", "downloads", "grafts")
    return [
        entity_of(entities.Contributor, row, **dict(zip(names, numbers.get(row.id, (0, 0, 0, 0)), strict=True)))
        for row in contributors
    ]


def contributor_name(session: Session, contributor_id: int) -> str:
    """Return the name of the contributor with that id."""
    return session.scalars(select(ContributorRow.name).where(ContributorRow.id == contributor_id)).one()


OVERVIEW_MAX = 100
"""The most rows of each kind in an overview: the newest."""


def account_of(
    session: Session,
    name: str,
    scopes: Collection[str],
    token_id: int | None,
    contributor: ContributorRow | None,
    default_bytes: int,
    upload_max_bytes: int,
) -> Account:
    """Return an account. `contributor` is None for `local` in an empty registry; `token_id` is None without a token.

    `default_bytes` is the quota of contributors without their own quota. `upload_max_bytes` is the size of the largest
    model that may be submitted.
    """
    quota = Quota(limit_bytes=default_bytes, used_bytes=0)
    if contributor is not None:
        quota = quota_of(session, contributor, default_bytes)
    return Account(
        contributor=name,
        namespace=name,
        scopes=tuple(scope for scope in SCOPES if scope in scopes),
        token=None if token_id is None else account_token(session, session.get_one(Token, token_id)),
        quota=OwnQuota(**msgspec.structs.asdict(quota), upload_max_bytes=upload_max_bytes),
    )


def account_overview(
    session: Session, account: Account, contributor: ContributorRow | None, tokens: Sequence[AccountToken]
) -> AccountOverview:
    """Return `account` with the newest objects of the contributor; it is None for `local` in an empty registry."""
    contributor_id = 0 if contributor is None else contributor.id  # no row has the id 0
    models = select(ModelRow).where(ModelRow.contributor_id == contributor_id).order_by(ModelRow.id.desc())
    # A push has one upload for each large tensor, so only sums are shown.
    sums = (func.count(), func.sum(UploadRow.received_bytes), func.sum(UploadRow.size_bytes))
    uploads = select(UploadRow.kind, UploadRow.state, *sums).where(UploadRow.contributor_id == contributor_id)
    uploads = uploads.group_by(UploadRow.kind, UploadRow.state).order_by(UploadRow.kind, UploadRow.state)
    submissions = select(SubmissionRow, ModelRow).outerjoin(ModelRow, ModelRow.id == SubmissionRow.model_id)
    submissions = submissions.where(SubmissionRow.contributor_id == contributor_id).order_by(SubmissionRow.id.desc())
    return AccountOverview(
        **{name: getattr(account, name) for name in account.__struct_fields__},
        models=tuple(entity_of(OwnModel, row) for row in session.scalars(models.limit(OVERVIEW_MAX))),
        uploads=tuple(
            UploadTotals(kind=kind, state=state, count=number, received_bytes=int(received), size_bytes=int(size))
            for kind, state, number, received, size in session.execute(uploads)
        ),
        submissions=tuple(
            entity_of(
                OwnSubmission,
                row,
                name=f"{row.namespace}/{row.name}",
                model=None if model is None else model.full_name,
                model_state=None if model is None else model.state,
            )
            for row, model in session.execute(submissions.limit(OVERVIEW_MAX))
        ),
        tokens=tuple(tokens),
    )


PIECE_ROW_BYTES = 256
"""The size of the row of a piece in the database. It is counted for each piece of a pack beside the bytes of the piece,
because a pack may have thousands of pieces of one byte. Other uploads are few, so their rows are not counted."""


def quota_of(session: Session, contributor: ContributorRow, default_bytes: int) -> Quota:
    """Return the quota of `contributor`; `default_bytes` is the quota of contributors without their own.

    A model counts with the complete size of its files and of the images of its card, also if it shares parts with
    others, until it is removed. An upload counts with its declared size, also before its bytes arrive, until it is
    published or deleted; a pack counts PIECE_ROW_BYTES more for each of its pieces.
    """

    def total(column: Any, *conditions: ColumnElement[bool]) -> int:
        return int(session.scalar(select(func.sum(column)).where(*conditions)) or 0)

    stored = ModelRow.state.in_(("visible", "quarantined", "yanked"))
    uploads_bytes = total(UploadRow.size_bytes, UploadRow.contributor_id == contributor.id)
    uploads_bytes += PIECE_ROW_BYTES * packed_pieces(session, contributor.id)
    images = select(func.sum(Blob.size_bytes)).join(CardImageRow, CardImageRow.blob_id == Blob.id)
    images = images.join(ModelRow, ModelRow.id == CardImageRow.model_id)
    images_bytes = int(session.scalar(images.where(ModelRow.contributor_id == contributor.id)) or 0)
    models_bytes = total(ModelRow.size_bytes, ModelRow.contributor_id == contributor.id, stored)
    is_under_way = (SubmissionRow.contributor_id == contributor.id, SubmissionRow.state.in_(UNDER_WAY))
    return Quota(
        limit_bytes=default_bytes if contributor.quota_bytes is None else contributor.quota_bytes,
        used_bytes=models_bytes + images_bytes + uploads_bytes,
        uploads_bytes=uploads_bytes,
        submitted_bytes=total(SubmissionRow.size_bytes, *is_under_way),
    )


def packed_pieces(session: Session, contributor_id: int) -> int:
    """Return the number of pieces in the contributor's packs. The number has a limit, so counting is fast."""
    packs = select(UploadRow.id).where(UploadRow.contributor_id == contributor_id, UploadRow.kind == "pack")
    return count(session, UploadPiece, UploadPiece.upload_id.in_(packs))


def check_model_fits(
    session: Session,
    contributor: ContributorRow,
    default_bytes: int,
    size_bytes: int,
    sent_bytes: int = 0,
    subject: str = "the model has",
) -> None:
    """Raise OverQuota if one more model of `size_bytes` does not fit; `sent_bytes` of it are in uploads already.
    `subject` begins the sentence for something else that is to be stored.

    Models of open submissions count as if they were published, because several submissions may use the same uploads.
    """
    quota = quota_of(session, contributor, default_bytes)
    more_bytes = quota.more_bytes(size_bytes, sent_bytes)
    if more_bytes > 0:
        raise OverQuota(
            f"{subject} {size_bytes:,} bytes; with all stored and submitted bytes it exceeds the quota of "
            f"{quota.limit_bytes:,} bytes by {more_bytes:,}"
        )


def saved_queries_of(session: Session, contributor: str) -> SavedQueries:
    """Return the saved queries of `contributor`, by name; none for an account that does not exist yet."""
    statement = select(SavedQueryRow).join(ContributorRow, ContributorRow.id == SavedQueryRow.contributor_id)
    statement = statement.where(ContributorRow.name == contributor).order_by(SavedQueryRow.name, SavedQueryRow.kind)
    return SavedQueries(items=tuple(entity_of(SavedQuery, row) for row in session.scalars(statement)))
