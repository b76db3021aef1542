"""Every rule and every kind of asker: who is let in, who is refused by what, and that a refusal changes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import update
from werkzeug.test import TestResponse

from organs.registry.catalog.tables import CatalogVersion
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.file_responses import COUNTING_KEY
from organs.web.responses import API_PREFIX
from organs.web.settings import WebSettings
from tests import postgres
from tests.registry_templates import DATABASE, RegistryTemplates
from tests.web import owned_catalog as ada
from tests.web.authorisation import (
    GONE_FOR_ALL,
    GONE_GROUPS,
    GROUPS,
    HIDDEN_FROM_ALL,
    HIDDEN_GROUPS,
    IN,
    LOCALLY,
    LOG_IN,
    NO_METHOD,
    OTHERWISE_LOCALLY,
    Group,
    Outcome,
    Uncounted,
    rows,
)
from tests.web.good_requests import BODIES, OTHERWISE, READING, arguments, sent
from tests.web.owned_catalog import Askers, copy_uploads, fill_owned_catalog, lock_ids

TABLE, HIDDEN_TABLE, GONE_TABLE = rows(GROUPS), rows(HIDDEN_GROUPS), rows(GONE_GROUPS)
READING_BY_POST = {
    *(("POST", f"/api/v1/{what}") for what in ("assemblies", "organs/lookup", "plans")),
    ("POST", "/api/models/<user>/<name>/paths-info/<revision>"),
}


FEW = ("nobody", "reader", "owner", "other", "admin")
"""Who is asked where all get the same."""


"""What the applications have counted for the rates of requests."""


class SqliteCopy:
    """A copy of a registry's database, and whether others have written to the database."""

    def __init__(self, registry: LocalRegistry, folder: Path) -> None:
        self._watcher = sqlite3.connect(registry.settings.home / DATABASE)
        self._kept = sqlite3.connect(folder / DATABASE)

    def keep(self) -> None:
        self._watcher.backup(self._kept)

    def restore(self) -> None:
        self._kept.backup(self._watcher)

    def version(self) -> object:
        return self._watcher.execute("PRAGMA data_version").fetchone()

    def close(self) -> None:
        self._watcher.close()
        self._kept.close()


class PostgresCopy:
    """The same on PostgreSQL."""

    def __init__(self, registry: LocalRegistry, folder: Path) -> None:
        self._registry, self._folder = registry, folder

    def keep(self) -> None:
        self._registry.catalog.close()
        postgres.replace_database(self._folder, self._registry.settings.home)

    def restore(self) -> None:
        """Restore the database, under a version that no answer is cached for."""
        newest = self._registry.catalog.version()
        self._registry.catalog.close()
        postgres.replace_database(self._registry.settings.home, self._folder)
        with self._registry.catalog.writer.begin() as connection:
            connection.execute(update(CatalogVersion).values(number=newest + 1))

    def version(self) -> object:
        return self._registry.catalog.version()

    def close(self) -> None:
        """Nothing: the copy is dropped with its folder."""


class Place:
    """The furnished registry with its askers, which can be made what it was at first."""

    def __init__(self, registry: LocalRegistry, kept: Path) -> None:
        self.registry = registry
        self.app = _application(registry, WebSettings())
        self.rules = {(how, rule.rule): rule for rule in self.app.url_map.iter_rules() for how in rule.methods or ()}
        self.askers = Askers(registry, self.app)
        self.arguments = arguments(self.app.test_client(), registry, self.askers)
        self._uploads, self._kept_uploads = registry.settings.uploads, kept / "uploads"
        self._database = PostgresCopy(registry, kept) if postgres.is_used() else SqliteCopy(registry, kept)
        self.keep()

    def keep(self) -> None:
        """Let what is there now be what it was at first."""
        self._database.keep()
        copy_uploads(self._uploads, self._kept_uploads)

    def restore(self) -> None:
        """Let all be as it was at first."""
        self._database.restore()
        copy_uploads(self._kept_uploads, self._uploads)

    @contextmanager
    def served(self, settings: WebSettings) -> Iterator[None]:
        """The same by a server that is told something else."""
        usual, self.askers.app = self.app, _application(self.registry, settings)
        yield
        self.askers.app = usual

    def close(self) -> None:
        self._database.close()

    def asked(self, asker: str, method: str, rule: str, *, swapped: bool = False, **otherwise: str) -> Outcome:
        """What `asker` gets there, with `otherwise` in the address; all is as it was afterwards.

        A refusal must not have changed anything. If it is `swapped` the API is asked by cookie, and pages by token.
        """
        before = self.state()
        by_token = self.rules[method, rule].endpoint.startswith("api.") != swapped
        client = self.askers.program(asker) if by_token else self.askers.browser(asker)
        found = outcome(self._answer(client, asker, method, rule, otherwise))
        if self.state() != before:
            assert found == IN, (asker, method, rule, found, "and yet something was changed")
            assert method not in READING, (asker, method, rule)
            self.restore()
        return found

    def state(self) -> tuple[Any, ...]:
        """Another one after any write of others to the database, and to the folder for uploads."""
        uploads = [(one.name, one.read_bytes()) for one in sorted(self._uploads.iterdir())]
        return (self._database.version(), uploads)

    def _answer(
        self, client: FlaskClient, asker: str, method: str, rule: str, otherwise: Mapping[str, str]
    ) -> TestResponse:
        parts = {**self.arguments, **otherwise, **OTHERWISE.get((method, rule), {})}
        known = self.rules[method, rule]
        built = known.build({name: parts[name] for name in known.arguments})
        assert built is not None, rule
        request = sent(self.askers, asker, method, rule)
        answer = client.open(built[1], method=method, **request)
        location = answer.headers.get("Location", "")
        if answer.status_code == 302 and location.startswith(API_PREFIX):  # the JSON address of a page
            return client.open(location, method=method, **{**request, "query_string": None})
        return answer


def _application(registry: LocalRegistry, settings: WebSettings) -> Flask:
    """One that counts no downloads: a thread writes what was counted, whatever is asked just then."""
    app = create_app(registry, settings, Uncounted())
    del app.extensions[COUNTING_KEY]
    return app


def outcome(answer: TestResponse) -> Outcome:
    """What somebody got, as the table has it. An answer that is let in is a good one."""
    with answer:
        if answer.status_code == 303 and answer.headers["Location"].startswith("/login"):
            return LOG_IN
        return IN if answer.status_code < 400 else answer.status_code


@pytest.fixture(scope="module")
def place(templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("authorisation")
    with templates.open_copy(fill_owned_catalog, folder / "home") as registry:
        found = Place(registry, folder)
        yield found
        found.close()


def wrong(place: Place, table: Mapping[tuple[str, str], Group], **otherwise: str) -> list[str]:
    """Return the answers that differ from the table."""
    found = []
    for (method, rule), group in table.items():
        asked = group._asdict() if len(set(group)) > 1 else dict.fromkeys(FEW, group.nobody)
        for asker, expected in asked.items():
            got = place.asked(asker, method, rule, **otherwise)
            if got != expected:
                found.append(f"{method} {rule}: {asker} gets {got} and not {expected}")
    return found


def test_the_table_has_every_method_of_every_rule_and_no_other(place: Place) -> None:
    there = {(method, rule) for method, rule in place.rules if method not in ("HEAD", "OPTIONS")}
    assert TABLE.keys() ^ there == set()
    for what in (HIDDEN_TABLE, GONE_TABLE, BODIES, OTHERWISE):
        assert what.keys() - there == set()


@pytest.mark.long
def test_every_client_gets_the_answer_of_the_table(place: Place) -> None:
    assert wrong(place, TABLE) == []


@pytest.mark.long
def test_a_model_under_review_is_visible_only_to_its_owner_and_administrators(place: Place) -> None:
    named = {
        (method, rule): HIDDEN_FROM_ALL
        for (method, rule), group in TABLE.items()
        if group is not NO_METHOD and place.rules[method, rule].arguments & {"name", "lock"}
    }
    forms = (("POST", f"/chimeras/<lock>/{form}") for form in ("quick-look", "validate"))
    for one in (*forms, *HIDDEN_TABLE):
        assert named.pop(one) is HIDDEN_FROM_ALL
    hidden = {"name": "hidden", "lock": lock_ids(place.registry)[ada.HIDDEN]}
    assert wrong(place, {**named, **HIDDEN_TABLE}, **hidden) == []


@pytest.mark.long
def test_a_removed_model_is_gone_for_everyone(place: Place) -> None:
    named = {
        (method, rule): GONE_FOR_ALL
        for (method, rule), group in TABLE.items()
        if group is not NO_METHOD and "name" in place.rules[method, rule].arguments
    }
    assert wrong(place, {**named, **GONE_TABLE}, name="gone") == []


def test_the_token_of_a_page_has_only_the_rights_to_upload(place: Place) -> None:
    answer = place.askers.browser("keeper").post("/account/page-token", data=place.askers.fields["keeper"])
    place.askers.tokens["page"] = answer.get_json()["token"]
    place.keep()
    keeps = {("POST", "/api/v1/account/tokens"), ("DELETE", "/api/v1/account/tokens/<token>")}
    for (method, rule), group in TABLE.items():
        if rule.startswith("/api/v1/") and len(set(group)) > 1:
            expected = 403 if (method, rule) in keeps else group.other
            assert place.asked("page", method, rule) == expected, (method, rule)


def test_the_api_ignores_cookies_and_pages_ignore_tokens(place: Place) -> None:
    for (method, rule), group in TABLE.items():
        if len(set(group)) > 1:
            assert place.asked("keeper", method, rule, swapped=True) in (group.nobody, 403), (method, rule)
            assert place.asked("owner", method, rule, swapped=True) in (group.nobody, 403), (method, rule)


def test_every_form_is_refused_without_its_token(place: Place) -> None:
    place.askers.fields, usual = {one: {"other": "x"} for one in place.askers.fields}, place.askers.fields
    for (method, rule), group in TABLE.items():
        if method == "POST" and not rule.startswith("/api/"):
            asker = "keeper" if group.keeper == IN else "manager"
            assert place.asked(asker, method, rule) == 403, rule
    place.askers.fields = usual


def test_a_read_only_server_refuses_every_write(place: Place) -> None:
    with place.served(WebSettings(read_only=True)):
        for method, rule in TABLE.keys() - READING_BY_POST:
            if method not in READING and TABLE[method, rule] is not NO_METHOD:
                for asker in ("nobody", "owner", "keeper"):
                    assert place.asked(asker, method, rule) == 403, (asker, method, rule)


@pytest.mark.folder
def test_every_client_of_a_personal_server_can_upload_into_every_namespace(place: Place) -> None:
    with place.served(WebSettings(personal=True)):
        for (method, rule), group in TABLE.items():
            if len(set(group)) > 1:
                expected = OTHERWISE_LOCALLY.get((method, rule), LOCALLY[group])
                assert place.asked("nobody", method, rule) == expected, (method, rule)
