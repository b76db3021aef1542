"""Tests of accounts in the catalog: authentication, stored secrets, and the used quota."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.accounts import (
    KnownToken,
    account_by_session,
    contributor_by_name,
    contributors_page,
    public_contributor,
    quota_of,
)
from organs.registry.catalog.register.accounts import (
    SESSIONS_MAX,
    TOKENS_MAX,
    add_contributor,
    create_token,
    end_session,
    open_page_token,
    open_session,
    revoke_token,
    set_contributor_state,
    set_quota,
)
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.tables import Base, EventRow, PageToken, Token, UploadRow, WebSession, now
from organs.registry.errors import BadInput, BadName, NotAllowed, NotFound
from organs.registry.tokens import NewToken, parse_token, secret_sha256
from tests.catalog.test_register import record, register_in
from tests.registry_templates import valid_account


@pytest.fixture
def token(session: Session) -> NewToken:
    """Return a token of Ada with the scope `upload`, valid for a month."""
    return create_token(session, add_contributor(session, "Ada").id, ["upload"], "laptop", 30)


def by_token(session: Session, made: NewToken, later: timedelta = timedelta()) -> KnownToken | None:
    return valid_account(session, parse_token(made.text), now() + later)


def by_session(session: Session, secret: str, later: timedelta = timedelta()) -> KnownToken | None:
    return account_by_session(session, secret_sha256(secret), now() + later)


def opened(session: Session, made: NewToken) -> tuple[str, NewToken]:
    """Open a session with the token, and a page token of the session."""
    account = by_token(session, made)
    assert account is not None
    secret = open_session(session, account)
    inside = by_session(session, secret)
    assert inside is not None
    assert inside.session_id is not None
    return secret, open_page_token(session, inside.session_id, ["upload", "admin"])


def let_in(session: Session, made: NewToken, secret: str, page: NewToken) -> list[bool]:
    """Return whether the token, the session and the page token are valid."""
    return [bool(by_token(session, made)), bool(by_session(session, secret)), bool(by_token(session, page))]


def test_a_token_has_its_scopes_and_a_page_token_has_no_more(session: Session, token: NewToken) -> None:
    account = by_token(session, token)
    assert account is not None
    assert (account.name, account.scopes, account.session_id) == ("Ada", {"upload"}, None)
    _, page = opened(session, token)
    narrow = by_token(session, page)
    assert narrow is not None
    assert (narrow.name, narrow.scopes) == ("Ada", {"upload"}), "not admin, which the token has not"


def test_a_revoked_token_is_refused(session: Session, token: NewToken) -> None:
    secret, page = opened(session, token)
    assert let_in(session, token, secret, page) == [True, True, True]
    revoke_token(session, token.public_id)
    assert let_in(session, token, secret, page) == [False, False, False]


def test_a_suspended_contributor_cannot_sign_in_until_resumed(session: Session, token: NewToken) -> None:
    secret, page = opened(session, token)
    for state, may in (("suspended", False), ("active", True)):
        set_contributor_state(session, "ada", state)
        assert let_in(session, token, secret, page) == [may] * 3


def test_tokens_sessions_and_page_tokens_expire(session: Session, token: NewToken) -> None:
    secret, page = opened(session, token)
    assert by_token(session, token, timedelta(days=29))
    assert by_token(session, token, timedelta(days=31)) is None
    assert by_session(session, secret, timedelta(days=15)) is None
    assert by_token(session, page, timedelta(hours=2)) is None


def test_ending_a_session_deletes_it_and_its_page_tokens(session: Session, token: NewToken) -> None:
    secret, page = opened(session, token)
    account = by_session(session, secret)
    assert account is not None
    assert account.session_id is not None
    end_session(session, account.session_id)
    assert session.query(PageToken).count() == 0
    assert let_in(session, token, secret, page) == [True, False, False]


def test_a_copy_of_the_database_has_no_usable_secret(session: Session, token: NewToken) -> None:
    secret, page = opened(session, token)
    tables = Base.metadata.sorted_tables
    dump = "\n".join(repr(row) for table in tables for row in session.execute(select(table)))
    assert token.public_id in dump, "the tables of tokens are in it"
    for hidden in (token.text, token.text[14:], secret, page.text, page.text[5:]):
        assert hidden not in dump
    for digest in (token.sha256, page.sha256, secret_sha256(secret)):
        assert digest in dump
        assert account_by_session(session, secret_sha256(digest), now()) is None


def test_a_wrong_secret_and_an_unknown_id_are_both_refused(session: Session, token: NewToken) -> None:
    other = NewToken(token.public_id, "0" * 64, token.text)
    sent = parse_token(token.text)
    assert valid_account(session, type(sent)(sent.public_id, other.sha256), now()) is None
    assert valid_account(session, type(sent)("000000000", sent.sha256), now()) is None


def test_the_number_of_tokens_and_sessions_is_limited(session: Session, token: NewToken) -> None:
    account = by_token(session, token)
    assert account is not None
    for _ in range(SESSIONS_MAX + 3):
        open_session(session, account)
    assert session.query(WebSession).count() == SESSIONS_MAX
    for _ in range(TOKENS_MAX - 1):
        create_token(session, account.contributor_id, ["read"], "")
    with pytest.raises(NotAllowed, match="revoke some"):
        create_token(session, account.contributor_id, ["read"], "")
    revoke_token(session, token.public_id)
    create_token(session, account.contributor_id, ["read"], "")


@pytest.mark.parametrize("days", [0, -1, 3651])
def test_a_token_is_valid_for_at_most_ten_years_or_without_limit(session: Session, token: NewToken, days: int) -> None:
    owner = contributor_by_name(session, "ADA").id
    with pytest.raises(BadInput, match="3650 days"):
        create_token(session, owner, ["read"], "", days)
    with pytest.raises(BadInput, match="not a scope"):
        create_token(session, owner, ["delete"], "")
    with pytest.raises(NotAllowed, match="has no tokens"):
        create_token(session, contributor_id(session, "local"), ["upload"], "")
    for_ever = create_token(session, owner, ["read"], "", None)
    assert session.query(Token).filter_by(public_id=for_ever.public_id).one().expires_at is None


@pytest.mark.parametrize("name", ["ada", "ADA", "a/b", "a@1", "", "admin", "Account", "..", "a" * 97, "é"])
def test_the_name_of_a_contributor_is_unique_and_a_valid_namespace(
    session: Session, token: NewToken, name: str
) -> None:
    with pytest.raises((BadName, BadInput)):
        add_contributor(session, name)


def test_the_local_contributor_cannot_be_suspended_and_actions_are_logged(session: Session, token: NewToken) -> None:
    with pytest.raises(NotAllowed):
        set_contributor_state(session, "local", "suspended")
    set_quota(session, "ada", 5)
    revoke_token(session, token.public_id)
    revoke_token(session, token.public_id)
    actions = [event.action for event in session.query(EventRow).order_by(EventRow.id)]
    assert actions == ["add contributor", "create token", "set quota", "revoke token"]


def test_the_quota_counts_models_until_removal_and_the_declared_size_of_uploads(
    session: Session, token: NewToken
) -> None:
    ada, model = contributor_by_name(session, "ada"), register_in(session, record()).model
    assert quota_of(session, ada, 100).used_bytes == 0
    with pytest.raises(NotFound, match="no contributor 'ada'"):
        public_contributor(session, "ada")
    model.contributor_id = ada.id
    size = model.size_bytes
    works = public_contributor(session, "ADA")
    assert (works.models, works.chimeras, works.downloads, works.grafts) == (1, 0, 0, 0)
    assert [contributor.name for contributor in contributors_page(session, 5).items] == ["Ada"]
    for state, bytes_used in (("visible", size), ("quarantined", size), ("yanked", size), ("removed", 0)):
        model.state = state
        session.flush()
        assert quota_of(session, ada, 100).used_bytes == bytes_used, state
    assert contributors_page(session, 5).items == ()
    upload = UploadRow(public_id="u" * 22, contributor_id=ada.id, kind="file", size_bytes=70, received_bytes=10)
    upload.state, upload.created_at, upload.expires_at = "open", now(), now()
    session.add(upload)
    session.flush()
    assert quota_of(session, ada, 100).used_bytes == 70
    assert quota_of(session, ada, 100).left_bytes == 30
    ada.quota_bytes = 50
    assert (quota_of(session, ada, 100).limit_bytes, quota_of(session, ada, 100).left_bytes) == (50, 0)
