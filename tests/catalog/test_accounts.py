"""Tests of accounts in the catalog: authentication, stored secrets, and the used quota."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

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
from organs.registry.catalog.tables import Base, EventRow, ModelRow, PageToken, Token, UploadRow, WebSession, now
from organs.registry.errors import BadInput, BadName, NotAllowed, NotFound
from organs.registry.local import LocalRegistry
from organs.registry.tokens import NewToken, parse_token, secret_sha256
from tests.registry_templates import valid_account
from tests.small_models import ingest_file, small_model


@pytest.fixture
def token(registry: LocalRegistry) -> NewToken:
    """Return a token of Ada with the scope `upload`, valid for a month."""
    with registry.catalog.writing() as session:
        return create_token(session, add_contributor(session, "Ada").id, ["upload"], "laptop", 30)


def by_token(registry: LocalRegistry, made: NewToken, later: timedelta = timedelta()) -> KnownToken | None:
    with registry.catalog.reading() as session:
        return valid_account(session, parse_token(made.text), now() + later)


def by_session(registry: LocalRegistry, secret: str, later: timedelta = timedelta()) -> KnownToken | None:
    with registry.catalog.reading() as session:
        return account_by_session(session, secret_sha256(secret), now() + later)


def opened(registry: LocalRegistry, made: NewToken) -> tuple[str, NewToken]:
    """Open a session with the token, and a page token of the session."""
    account = by_token(registry, made)
    assert account is not None
    with registry.catalog.writing() as session:
        secret = open_session(session, account)
    inside = by_session(registry, secret)
    assert inside is not None
    assert inside.session_id is not None
    with registry.catalog.writing() as session:
        return secret, open_page_token(session, inside.session_id, ["upload", "admin"])


def let_in(registry: LocalRegistry, made: NewToken, secret: str, page: NewToken) -> list[bool]:
    """Return whether the token, the session and the page token are valid."""
    return [bool(by_token(registry, made)), bool(by_session(registry, secret)), bool(by_token(registry, page))]


def test_a_token_has_its_scopes_and_a_page_token_has_no_more(registry: LocalRegistry, token: NewToken) -> None:
    account = by_token(registry, token)
    assert account is not None
    assert (account.name, account.scopes, account.session_id) == ("Ada", {"upload"}, None)
    _, page = opened(registry, token)
    narrow = by_token(registry, page)
    assert narrow is not None
    assert (narrow.name, narrow.scopes) == ("Ada", {"upload"}), "not admin, which the token has not"


def test_a_revoked_token_is_refused(registry: LocalRegistry, token: NewToken) -> None:
    secret, page = opened(registry, token)
    assert let_in(registry, token, secret, page) == [True, True, True]
    with registry.catalog.writing() as session:
        revoke_token(session, token.public_id)
    assert let_in(registry, token, secret, page) == [False, False, False]


def test_a_suspended_contributor_cannot_sign_in_until_resumed(registry: LocalRegistry, token: NewToken) -> None:
    secret, page = opened(registry, token)
    for state, may in (("suspended", False), ("active", True)):
        with registry.catalog.writing() as session:
            set_contributor_state(session, "ada", state)
        assert let_in(registry, token, secret, page) == [may] * 3


def test_tokens_sessions_and_page_tokens_expire(registry: LocalRegistry, token: NewToken) -> None:
    secret, page = opened(registry, token)
    assert by_token(registry, token, timedelta(days=29))
    assert by_token(registry, token, timedelta(days=31)) is None
    assert by_session(registry, secret, timedelta(days=15)) is None
    assert by_token(registry, page, timedelta(hours=2)) is None


def test_ending_a_session_deletes_it_and_its_page_tokens(registry: LocalRegistry, token: NewToken) -> None:
    secret, page = opened(registry, token)
    account = by_session(registry, secret)
    assert account is not None
    assert account.session_id is not None
    with registry.catalog.writing() as session:
        end_session(session, account.session_id)
        assert session.query(PageToken).count() == 0
    assert let_in(registry, token, secret, page) == [True, False, False]


def test_a_copy_of_the_database_has_no_usable_secret(registry: LocalRegistry, token: NewToken) -> None:
    secret, page = opened(registry, token)
    with registry.catalog.reading() as session:
        tables = Base.metadata.sorted_tables
        dump = "\n".join(repr(row) for table in tables for row in session.execute(select(table)))
    assert token.public_id in dump, "the tables of tokens are in it"
    for hidden in (token.text, token.text[14:], secret, page.text, page.text[5:]):
        assert hidden not in dump
    for digest in (token.sha256, page.sha256, secret_sha256(secret)):
        assert digest in dump
        with registry.catalog.reading() as session:
            assert account_by_session(session, secret_sha256(digest), now()) is None


def test_a_wrong_secret_and_an_unknown_id_are_both_refused(registry: LocalRegistry, token: NewToken) -> None:
    other = NewToken(token.public_id, "0" * 64, token.text)
    with registry.catalog.reading() as session:
        sent = parse_token(token.text)
        assert valid_account(session, type(sent)(sent.public_id, other.sha256), now()) is None
        assert valid_account(session, type(sent)("000000000", sent.sha256), now()) is None


def test_the_number_of_tokens_and_sessions_is_limited(registry: LocalRegistry, token: NewToken) -> None:
    account = by_token(registry, token)
    assert account is not None
    with registry.catalog.writing() as session:
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
def test_a_token_is_valid_for_at_most_ten_years_or_without_limit(
    registry: LocalRegistry, token: NewToken, days: int
) -> None:
    with registry.catalog.writing() as session:
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
    registry: LocalRegistry, token: NewToken, name: str
) -> None:
    with registry.catalog.writing() as session, pytest.raises((BadName, BadInput)):
        add_contributor(session, name)


def test_the_local_contributor_cannot_be_suspended_and_actions_are_logged(
    registry: LocalRegistry, token: NewToken
) -> None:
    with registry.catalog.writing() as session:
        with pytest.raises(NotAllowed):
            set_contributor_state(session, "local", "suspended")
        set_quota(session, "ada", 5)
        revoke_token(session, token.public_id)
        revoke_token(session, token.public_id)
        actions = [event.action for event in session.query(EventRow).order_by(EventRow.id)]
    assert actions == ["add contributor", "create token", "set quota", "revoke token"]


def test_the_quota_counts_models_until_removal_and_the_declared_size_of_uploads(
    registry: LocalRegistry, token: NewToken, tmp_path: Path
) -> None:
    path = tmp_path / "little.gguf"
    path.write_bytes(small_model())
    ingest_file(registry, path)
    with registry.catalog.writing() as session:
        ada = contributor_by_name(session, "ada")
        model = session.query(ModelRow).one()
        assert quota_of(session, ada, 100).used_bytes == 0
        with pytest.raises(NotFound, match="no contributor 'ada'"):
            public_contributor(session, "ada")
        model.contributor_id = ada.id
        size = path.stat().st_size
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
