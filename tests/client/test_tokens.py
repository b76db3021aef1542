"""Tokens for registries elsewhere: kept for their owner's eyes, and sent to their own registry alone."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from organs.registry import open_registry
from organs.registry.client.tokens import KeptToken, forget_token, keep_token, kept_token, kept_tokens, tokens_path
from organs.registry.errors import BadSetting
from organs.registry.tokens import new_token
from tests.client.scripted_server import as_json, scripted_server

URL = "https://registry.example"


def test_a_token_is_stored_for_one_address_and_only_its_owner_can_read_it(own_settings: Path) -> None:
    token = KeptToken(new_token().text)
    assert kept_tokens() == {}
    keep_token(f"{URL}/", token)
    keep_token("https://registry.example:8443", KeptToken(new_token().text, plain_http=True))
    assert kept_token(URL) == kept_token("HTTPS://Registry.example:443/") == token
    assert kept_token("http://registry.example") is None
    path = tokens_path()
    assert own_settings in path.parents
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert token.token not in repr(kept_tokens())
    assert set(json.loads(path.read_text())[URL]) == {"token", "plain_http"}
    assert forget_token(URL)
    assert not forget_token(URL)
    assert list(kept_tokens()) == ["https://registry.example:8443"]


def test_a_file_that_others_can_read_is_not_used() -> None:
    keep_token(URL, KeptToken(new_token().text))
    for mode in (0o644, 0o640, 0o606):
        tokens_path().chmod(mode)
        with pytest.raises(BadSetting, match="others can read"):
            kept_token(URL)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"https://x": 5}', '{"https://x": {"token": 1, "plain_http": false}}', "[" * 99_999],
)
def test_a_file_without_valid_tokens_is_reported(text: str) -> None:
    tokens_path().parent.mkdir(parents=True)
    tokens_path().write_text(text)
    tokens_path().chmod(0o600)
    with pytest.raises(BadSetting, match="its content is not valid"):
        kept_token(URL)


def test_a_symbolic_link_instead_of_the_file_is_not_followed(tmp_path: Path) -> None:
    tokens_path().parent.mkdir(parents=True)
    (tmp_path / "other.json").write_text("{}")
    tokens_path().symlink_to(tmp_path / "other.json")
    with pytest.raises(OSError, match=r"symbolic|links"):
        kept_tokens()


def test_a_token_is_sent_only_to_its_own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    page = as_json({"items": [], "next": None, "notes": []})
    with scripted_server(lambda _: page) as own, scripted_server(lambda _: page) as other:
        token = new_token().text
        keep_token(own.url, KeptToken(token))
        for server in (own, other):
            with open_registry(server.url) as remote:
                remote.search()
        assert own.requests[0].headers["Authorization"] == f"Bearer {token}"
        assert "Authorization" not in other.requests[0].headers
        told = new_token().text
        monkeypatch.setenv("ORGAN_TOKEN", told)
        with open_registry(own.url) as remote:
            remote.search()
        assert own.requests[1].headers["Authorization"] == f"Bearer {told}"


def test_a_stored_token_is_sent_over_plain_http_only_if_its_owner_allowed_it() -> None:
    plain, token = "http://registry.example", new_token().text
    keep_token(plain, KeptToken(token))
    with pytest.raises(BadSetting, match="plain http"):
        open_registry(plain)
    keep_token(plain, KeptToken(token, plain_http=True))
    open_registry(plain).close()
