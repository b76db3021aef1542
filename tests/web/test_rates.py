"""Rates of requests: unknown tokens, log-ins, what is sent; counted by all workers, before a larger body is read."""

from __future__ import annotations

import io
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from threading import Thread, local

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import event, select
from werkzeug.test import TestResponse

from organs.registry import assembly
from organs.registry.catalog.queries.accounts import contributor_by_name, token_by_public_id
from organs.registry.catalog.queries.model_contents import placements_of
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.accounts import revoke_token, set_contributor_state
from organs.registry.catalog.register.counts import add_to_count, remove_expired_counts
from organs.registry.catalog.tables import RateCount, now
from organs.registry.digest import digest_of
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.tokens import _checksum
from organs.registry.tokens import new_token as unknown_token
from organs.web import rate_limits as rates_module
from organs.web.app import create_app
from organs.web.rate_limits import (
    ANONYMOUS_WRITES,
    FAILED_TOKENS,
    LOG_INS,
    PAGE_TOKENS,
    READING,
    UPLOADS_PATH,
    WRITES,
    CommonCounts,
    Rate,
    Rates,
    SharedCounts,
    rates,
)
from organs.web.settings import WebSettings
from tests.small_models import ingest_file, small_model
from tests.web.accounts import authorization, form_token, log_in, new_token
from tests.web.live_server import TELLING, LiveServer, running_server

ACCOUNT, LOOKUP = "/api/v1/account", "/api/v1/organs/lookup"
NO_ORGANS = {"digests": ["0" * 64]}


@pytest.fixture
def app(registry: LocalRegistry) -> Flask:
    return create_app(registry)


@pytest.fixture
def asked(registry: LocalRegistry) -> Callable[[], int]:
    """Return a function that counts the statements executed by the catalog."""
    count = [0]

    def counted(*_: object) -> None:
        count[0] += 1

    for engine in (registry.catalog.reader, registry.catalog.writer):
        event.listen(engine, "before_cursor_execute", counted)
    return lambda: count[0]


def ask(app: Flask, token: str, address: str = "192.0.2.1", path: str = ACCOUNT) -> int:
    return app.test_client().get(path, headers=authorization(token), environ_base={"REMOTE_ADDR": address}).status_code


def test_a_mistyped_token_never_reaches_the_database_and_counts_for_nobody(
    app: Flask, registry: LocalRegistry, asked: Callable[[], int]
) -> None:
    good = new_token(registry, "ada")
    before = asked()
    for wrong in ("x", good[:-1] + ("0" if good[-1] != "0" else "1"), *["orgp_" + "0" * 58] * FAILED_TOKENS.amount):
        assert ask(app, wrong) == 401
    assert asked() == before
    assert ask(app, unknown_token().text) == 401
    assert asked() > before


def test_an_address_with_many_unknown_tokens_is_told_to_wait_and_its_good_token_is_accepted(
    app: Flask, registry: LocalRegistry
) -> None:
    good = new_token(registry, "ada")
    statuses = [ask(app, unknown_token().text) for _ in range(FAILED_TOKENS.amount + 2)]
    assert statuses == [401] * FAILED_TOKENS.amount + [429] * 2
    assert ask(app, unknown_token().text, "192.0.2.2") == 401
    client = app.test_client()
    client.environ_base["REMOTE_ADDR"] = "192.0.2.1"
    claimed = {**authorization(unknown_token().text), "X-Forwarded-For": "192.0.2.3"}
    answer = client.get(ACCOUNT, headers=claimed)
    assert answer.get_json()["status"] == 429, "an address that the client claims is not believed"
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    assert client.get("/api/v1/models").status_code == 200
    assert ask(app, good) == 200
    form = {"form_token": form_token(client), "token": unknown_token().text}
    assert client.post("/login", data=form).status_code == 429
    assert client.post("/login", data=form | {"token": good}).status_code == 303


def guess_of(token: str) -> str:
    """Another token with the same public id."""
    body = token[:14] + unknown_token().text[14:-6]
    return body + _checksum(body)


def test_a_token_guessed_at_from_many_places_is_counted_and_stays_its_owners(
    app: Flask, registry: LocalRegistry
) -> None:
    good = new_token(registry, "ada")
    statuses = [ask(app, guess_of(good), f"192.0.2.{place}") for place in range(FAILED_TOKENS.amount + 2)]
    assert statuses == [401] * FAILED_TOKENS.amount + [429] * 2
    assert ask(app, good, "198.51.100.1") == 200


def test_a_token_that_was_good_once_is_no_guess_and_its_owner_alone_learns_what_became_of_it(
    app: Flask, registry: LocalRegistry, asked: Callable[[], int]
) -> None:
    revoked, expired, suspended = (new_token(registry, name) for name in ("ada", "ada", "eve"))
    with registry.catalog.writing() as session:
        revoke_token(session, revoked[5:14])
        token_by_public_id(session, expired[5:14]).expires_at = now()
        set_contributor_state(session, "eve", "suspended")

    def answer_to(token: str) -> tuple[TestResponse, int]:
        before = asked()
        answer = app.test_client().get(ACCOUNT, headers=authorization(token))
        return answer, asked() - before

    unknown, cost = answer_to(unknown_token().text)
    for token, why in ((revoked, "was revoked"), (expired, "has expired"), (suspended, "is suspended")):
        for _ in range(FAILED_TOKENS.amount):
            answer, own_cost = answer_to(token)
            assert (answer.status_code, 0 < own_cost <= cost) == (401, True), "it costs no more statements"
            assert why in answer.get_json()["detail"]
            assert "WWW-Authenticate" in answer.headers
    assert answer_to(guess_of(revoked))[0].data == unknown.data, "who has not all of it learns nothing"
    assert ask(app, new_token(registry, "bob"), "127.0.0.1") == 200


def test_log_ins_are_counted_by_contributor(app: Flask, registry: LocalRegistry) -> None:
    tokens = [new_token(registry, "ada") for _ in range(2)]
    client = app.test_client()
    form = {"form_token": form_token(client)}
    for number in range(LOG_INS.amount):
        assert client.post("/login", data=form | {"token": tokens[number % 2]}).status_code == 303
        client.delete_cookie("organ_session")
    answer = client.post("/login", data=form | {"token": tokens[0]})
    assert answer.status_code == 429
    assert answer.mimetype == "text/html"
    assert "Retry-After" in answer.headers
    assert client.post("/login", data=form | {"token": new_token(registry, "bob")}).status_code == 303


def test_what_an_address_sends_without_an_account_is_counted_before_its_body_is_read(app: Flask) -> None:
    client = app.test_client()
    with app.app_context():
        rates().hit(ANONYMOUS_WRITES, "127.0.0.1", cost=ANONYMOUS_WRITES.amount - 1)
    assert client.post(LOOKUP, json=NO_ORGANS).status_code == 200
    for path in (LOOKUP, "/api/v1/plans", "/compose", "/logout", "/api/models/local/base/paths-info/main"):
        assert unread_answer(client, path).status_code == 429, path
    assert client.get("/api/v1/models").status_code == 200, "reading is not sending"
    assert client.post(LOOKUP, json=NO_ORGANS, environ_base={"REMOTE_ADDR": "192.0.2.2"}).status_code == 200


def unread_answer(client: FlaskClient, path: str, **headers: str) -> TestResponse:
    """The answer to a request whose body is not read."""
    body = io.BytesIO(b"{}")
    answer = client.post(path, input_stream=body, content_type="application/json", headers=headers)
    assert body.tell() == 0
    return answer


def test_an_address_that_reads_what_takes_long_is_refused_and_others_are_not(
    app: Flask, registry: LocalRegistry
) -> None:
    client = app.test_client()
    with app.app_context():
        rates().add(READING, "127.0.0.1", READING.amount - 1)
    assert client.get("/models").status_code == 200
    for path in ("/organs", "/organs.json", "/api/v1/models", "/api/models/local/base"):
        assert client.get(path).status_code == 429, "the time of the first answer was counted"
    assert client.get("/models").headers["X-Answered"] == "memory", "what costs nothing is not refused"
    assert client.get("/healthz").status_code == 200
    assert client.get("/organs", environ_base={"REMOTE_ADDR": "192.0.2.2"}).status_code == 200
    token = authorization(new_token(registry, "ada"))
    assert client.get("/api/v1/models", headers=token).status_code == 200, "an account has a count of its own"


class SlowClock(local):
    """A clock of processor time on which the decoding of every chunk takes a second."""

    seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 1
        return self.seconds


def test_what_is_decoded_for_bytes_that_are_not_sent_is_counted(
    app: Flask, registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "thread_time", SlowClock())
    path = tmp_path / "a.gguf"
    path.write_bytes(data := small_model(blocks=8))
    ingest_file(registry, path)
    with registry.catalog.reading() as session:
        digest = placements_of(session, model_by_name(session, parse_model_name("a")).id)[0][2]
    addresses = ("/models/local/a.gguf", f"/v2/local/a/blobs/sha256:{digest_of(data)}", f"/organs/{digest}.npy")
    client = app.test_client()

    def part(address: str, begin: int, size: int, sender: str) -> TestResponse:
        headers = {"Range": f"bytes={begin}-{begin + size - 1}"}
        return client.get(address, headers=headers, environ_base={"REMOTE_ADDR": sender}, buffered=True)

    for number, address in enumerate(addresses):
        sender = f"192.0.2.{number}"
        statuses = [part(address, 9000, 1, sender).status_code for _ in range(40)]
        assert statuses.count(206) in (30, 31), address
        refused = part(address, 9000, 1, sender)
        assert (refused.status_code, 0 < int(refused.headers["Retry-After"]) <= 60) == (429, True), address
    eighth = -(-len(data) // 8)
    for _ in range(2):
        parts = [part(addresses[0], begin, eighth, "192.0.2.100") for begin in range(0, len(data), eighth)]
        assert b"".join(one.data for one in parts) == data, "a client with eight connections is not refused"


def test_who_works_at_this_machine_is_not_counted(registry: LocalRegistry) -> None:
    app = create_app(registry, WebSettings(personal=True))
    with app.app_context():
        rates().hit(ANONYMOUS_WRITES, "127.0.0.1", cost=ANONYMOUS_WRITES.amount)
        rates().add(READING, "127.0.0.1", READING.amount)
    assert app.test_client().post(LOOKUP, json=NO_ORGANS).status_code == 200
    assert app.test_client().get("/organs").status_code == 200


def test_what_a_contributor_sends_is_counted_before_its_body_is_read(app: Flask, registry: LocalRegistry) -> None:
    client, token, other = app.test_client(), new_token(registry, "ada"), new_token(registry, "bob")
    with registry.catalog.reading() as session, app.app_context():
        rates().hit(WRITES, str(contributor_by_name(session, "ada").id), cost=WRITES.amount)
    assert unread_answer(client, LOOKUP, **authorization(token)).status_code == 429
    assert client.post(LOOKUP, headers=authorization(other), json=NO_ORGANS).status_code == 200
    begun = client.post(UPLOADS_PATH, headers=authorization(token), json={"kind": "file", "size_bytes": 1})
    assert begun.status_code == 202, "uploads have a rate of their own"


def test_tokens_of_pages_are_counted(app: Flask, registry: LocalRegistry) -> None:
    client = log_in(app, new_token(registry, "ada"))
    field = form_token(client, "/account")
    made = [client.post("/account/page-token", data={"form_token": field}) for _ in range(PAGE_TOKENS.amount + 1)]
    assert [one.status_code for one in made] == [200] * PAGE_TOKENS.amount + [429]


def test_processes_and_threads_count_together() -> None:
    counts, times = SharedCounts(), 500

    def count() -> None:
        for number in range(times):
            counts.add("one", 60, 1)
            counts.add(f"each {number % 7}", 60, 1)

    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            count()
            os._exit(0)
        children.append(child)
    threads = [Thread(target=count) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert counts.count("one")[0] == 4 * times
    assert sum(counts.count(f"each {number}")[0] for number in range(7)) == 4 * times


def test_a_count_ends_with_its_window_whichever_way_the_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, clock = SharedCounts(), [1000.0]
    monkeypatch.setattr(rates_module, "time", lambda: clock[0])
    assert [counts.add("one", 60, 1) for _ in range(3)] == [1, 2, 3]
    assert counts.count("one")[1] == 1060
    clock[0] = 1059
    assert counts.count("one")[0] == 3
    clock[0] = 1060
    assert (counts.count("one")[0], counts.add("one", 60, 1)) == (0, 1)
    clock[0] = 10
    assert counts.add("one", 60, 1) == 1, "the clock was set back"
    assert counts.count("one")[1] == 70
    assert counts.count("other")[1] == 10


def test_counts_take_no_more_room_however_many_clients_there_are_and_large_ones_stay() -> None:
    counts = SharedCounts(rows=16)
    room = len(counts._table)
    counts.add("guesser", 60, 10)
    for number in range(1000):
        counts.add(f"client {number}", 60, 1)
    assert counts.count("guesser")[0] == 10
    assert sum(counts.count(f"client {number}")[0] for number in range(1000)) == 16 * 8 - 1
    assert len(counts._table) == room


def test_a_process_that_is_killed_in_its_turn_leaves_the_turn_to_others() -> None:
    counts = SharedCounts()
    begun, said = os.pipe()
    child = os.fork()
    if child == 0:
        with counts._locked():
            os.write(said, b"x")
            signal.pause()
    os.read(begun, 1)
    os.kill(child, signal.SIGKILL)
    assert counts.add("one", 60, 1) == 1
    os.waitpid(child, 0)
    os.close(begun)
    os.close(said)


@pytest.mark.postgres
def test_servers_with_one_database_count_together(registry: LocalRegistry) -> None:
    one, two = (Rates(CommonCounts(registry.catalog, own := SharedCounts()), own) for _ in range(2))
    rate, version = Rate("test", 4), registry.catalog.version()
    for counted in (one, two, one, two):
        counted.hit(rate, "a client")
    for counted in (one, two):
        with pytest.raises(rates_module.TooMany, match=r"again in (60|59|58) seconds"):
            counted.hit(rate, "a client")
    one.hit(rate, "another client")
    one.add(rate, "a client at work", 4)
    with pytest.raises(rates_module.TooMany):
        one.check(rate, "a client at work")
    two.check(rate, "a client at work")  # each server has its own processors
    assert registry.catalog.version() == version, "counts leave cached answers valid"


@pytest.mark.postgres
def test_a_count_begins_again_when_it_expires(registry: LocalRegistry) -> None:
    def add(name: str, seconds: float, amount: int) -> tuple[int, float]:
        with registry.catalog.counting() as session:
            return add_to_count(session, name, seconds, amount)

    assert add("one", -1.0, 5)[0] == 5
    count, left_seconds = add("one", 60.0, 2)
    assert (count, 59 < left_seconds <= 60) == (2, True)
    assert add("one", 600.0, 2)[0] == 4
    add("two", -1.0, 1)
    with registry.catalog.writing() as session:
        remove_expired_counts(session)
        assert session.scalars(select(RateCount.count)).all() == [4]


@pytest.mark.long
def test_a_rate_holds_whichever_worker_answers(registry: LocalRegistry, tmp_path: Path) -> None:
    registry.catalog.close()
    with running_server(registry.settings.home, tmp_path / "log", TELLING) as live:
        workers: list[int] = []
        try:
            for _ in range(3):
                for _ in range(ANONYMOUS_WRITES.amount // 3):
                    status, process = look_up(live)
                    assert status == 200
                assert process not in workers
                workers.append(process)
                os.kill(process, signal.SIGSTOP)  # so another one answers
            for process in workers:
                os.kill(process, signal.SIGCONT)
                assert look_up(live) == (429, process)
                os.kill(process, signal.SIGSTOP)
        finally:
            for process in workers:
                os.kill(process, signal.SIGCONT)


def look_up(live: LiveServer) -> tuple[int, int]:
    """Send a look-up; return the status of the answer, and the process that answered."""
    headers = {"Content-Type": "application/json"}
    sent = urllib.request.Request(f"{live.address}{LOOKUP}", json.dumps(NO_ORGANS).encode(), headers)
    try:
        with urllib.request.urlopen(sent, timeout=60) as answer:
            return answer.status, int(answer.headers["X-Worker"])
    except urllib.error.HTTPError as answer:
        with answer:
            return answer.code, int(answer.headers["X-Worker"])
