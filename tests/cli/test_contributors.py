"""`organ contributor` and `organ token`: in a registry's folder, and of one's own account elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from organs.registry.catalog.tables import now
from organs.registry.catalog.vocabulary import SCOPE_MEANINGS
from organs.registry.client.tokens import KeptToken, keep_token
from organs.registry.local import LocalRegistry
from organs.registry.tokens import parse_token
from organs.web.app import create_app
from tests.cli.in_process import OrganCommand
from tests.client.served_registry import serve_application
from tests.registry_templates import valid_account
from tests.web.accounts import new_token

TOKEN = re.compile(r"orgp_[0-9A-Za-z]{58}\n")


@pytest.fixture
def token(organ: OrganCommand) -> str:
    """A token of Ada, who was added for it."""
    organ.done("contributor", "add", "ada", "--quota", "50G")
    return organ.done("token", "create", "ada", "--label", "laptop").out.strip()


def scopes(registry: LocalRegistry, token: str) -> set[str] | None:
    with registry.catalog.reading() as session:
        account = valid_account(session, parse_token(token), now())
        return None if account is None else set(account.scopes)


def test_a_contributor_is_added_listed_suspended_and_readmitted(
    organ: OrganCommand, registry: LocalRegistry, token: str
) -> None:
    assert organ.done("contributor", "list", "-q").lines == ["ada", "local"]
    ada = organ.done("contributor", "list", "--json").values["items"][0]
    assert (ada["name"], ada["state"], ada["quota"]["limit_bytes"]) == ("ada", "active", 50 * 10**9)
    listed, local = organ.done("contributor", "list").lines[1:]
    assert "50.0 GB" in listed
    assert local.split()[-2] == "none", "the local user has no quota"
    for verb, state in (("suspend", "suspended"), ("resume", "active")):
        assert f"ada is {state}" in organ.done("contributor", verb, "ADA").err
        assert (scopes(registry, token) is None) is (verb == "suspend")
    organ.done("contributor", "quota", "ada", "default")
    assert organ.done("contributor", "list", "--json").values["items"][0]["has_own_quota"] is False


def test_a_token_is_printed_once_and_without_other_text(
    organ: OrganCommand, registry: LocalRegistry, token: str
) -> None:
    made = organ.done("token", "create", "ada", "--scope", "read", "--scope", "upload", "--forever")
    assert TOKEN.fullmatch(made.out)
    assert "cannot be shown again" in made.err
    assert scopes(registry, made.out.strip()) == {"read", "upload"}
    assert scopes(registry, token) == {"upload"}
    listed = organ.done("token", "list", "--json")
    assert [one["expires_at"] is None for one in listed.values["items"]] == [True, False]
    assert not TOKEN.search(listed.out + organ.done("token", "list").out)
    assert organ.done("token", "list", "ada", "-q").lines[1] == token[5:14]
    for said in (token[5:14], made.out.strip()):
        assert organ.done("token", "revoke", said).out == ""
    assert scopes(registry, token) is None


def test_a_new_contributor_is_told_of_every_scope_and_the_command_works(organ: OrganCommand) -> None:
    ended = organ.done("contributor", "add", "eve")
    assert ended.out == "eve\n"
    words = re.findall(r"organ (token create eve .*)", ended.err)[0].split()
    assert TOKEN.fullmatch(organ.done(*words).out)
    for scope, meaning in SCOPE_MEANINGS.items():
        assert re.search(rf"^{scope} +{meaning}$", ended.err, re.MULTILINE)


@pytest.fixture
def remote_url(registry: LocalRegistry) -> Iterator[str]:
    """The address of a server of the registry."""
    with serve_application(create_app(registry)) as address:
        yield address


def test_own_tokens_of_a_remote_registry_are_made_listed_and_revoked_over_the_api(
    organ: OrganCommand, registry: LocalRegistry, token: str, remote_url: str
) -> None:
    manager = new_token(registry, "ada", "upload", "tokens", days=5)
    there = {"ORGAN_TOKEN": manager, "ORGAN_REGISTRY": remote_url}
    made = organ("token", "create", "--forever", environment=there)
    assert (made.status, bool(TOKEN.fullmatch(made.out))) == (0, True), made.err
    assert scopes(registry, made.out.strip()) == {"upload"}
    listed = organ("token", "list", "--json", environment=there).values["items"]
    assert [one["id"] for one in listed] == [made.out[5:14], manager[5:14], token[5:14]]
    assert listed[0]["expires_at"] == listed[1]["expires_at"], "it expires with the token that created it"
    assert f"expires {listed[0]['expires_at'][:10]}" in made.err
    assert "contributor" not in organ("token", "list", environment=there).lines[0]
    assert organ("token", "revoke", made.out[5:14], environment=there).status == 0
    assert scopes(registry, made.out.strip()) is None
    assert "organ token list" in organ("token", "revoke", "aaaaaaaaa", environment=there).err
    for arguments in (("token", "create", "eve"), ("token", "list", "eve"), ("contributor", "list")):
        assert organ(*arguments, environment=there).status == 2
    foreign = organ("token", "revoke", token, environment=there)
    assert (foreign.status, foreign.out) == (4, "")
    assert "was not created by this token" in foreign.err
    assert scopes(registry, token) == {"upload"}


def test_the_error_for_an_invalid_token_says_how_to_continue_reading(
    organ: OrganCommand, token: str, remote_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    organ.done("token", "revoke", token)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    there = {"ORGAN_REGISTRY": remote_url, "XDG_CONFIG_HOME": str(tmp_path)}
    told = organ("models", environment={**there, "ORGAN_TOKEN": token})
    assert "without ORGAN_TOKEN you can read" in told.err
    keep_token(remote_url, KeptToken(token))
    told = organ("models", environment=there)
    assert told.status == 4
    assert f"organ login URL, or organ login --forget {remote_url} to read without an account" in told.err
    assert organ("login", "--forget", remote_url, environment=there).status == 0
    assert organ("models", environment=there).status == 0
