"""Requests to a registry elsewhere, which may be away, slow, busy, broken, or no registry at all."""

from __future__ import annotations

import threading
import time

import pytest

from organs.registry.client.connection import ANSWER_MAX_BYTES, CHUNK_BYTES, Connection
from organs.registry.endpoints import models, uploads
from organs.registry.entities.base import Entity
from organs.registry.entities.submission import UploadRequest
from organs.registry.errors import (
    BadInput,
    BadReply,
    BadRequest,
    BadSetting,
    BadToken,
    Busy,
    Conflict,
    NoRegistry,
    NotAllowed,
    NotFound,
    OrganError,
    OverQuota,
    Removed,
    TooMany,
    Unreachable,
)
from organs.registry.tokens import new_token
from tests.client.scripted_server import (
    CUT,
    AcceptedAnswer,
    Answer,
    ReceivedRequest,
    Script,
    as_json,
    as_problem,
    dripping_server,
    scripted_server,
)
from tests.web.live_server import unused_address

FINE = as_json({"fine": True})


def in_turn(*answers: Answer) -> Script:
    """A script that gives `answers` one after another, the last of them for ever."""
    left = list(answers)
    return lambda _asked: left.pop(0) if len(left) > 1 else left[0]


class Naps:
    """Sleeps in no time, and knows how long each would have been."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def test_a_request_names_the_program_its_version_and_the_token_and_carries_json() -> None:
    token = new_token().text
    with scripted_server(lambda _: FINE) as server:
        connection = Connection(f"{server.url}/", token)
        with pytest.raises(NoRegistry):  # the answer is no upload
            uploads.begin_upload(connection, UploadRequest(kind="piece", size_bytes=5))
        with pytest.raises(NoRegistry):
            models.models(connection, "a b&c", 2, None, ranked=True)
        posted, got = server.requests
    assert (posted.method, posted.path, posted.values) == (
        "POST",
        "/api/v1/uploads",
        {"kind": "piece", "size_bytes": 5},
    )
    assert posted.headers["User-Agent"].startswith("organ-registry/")
    assert posted.headers["Authorization"] == f"Bearer {token}"
    assert posted.headers["Content-Type"] == "application/json"
    assert got.path == "/api/v1/models?q=a+b%26c&limit=2&ranked=1"


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (as_problem(400, "no such field"), BadRequest, "no such field"),
        (as_problem(401, "the token was revoked"), BadToken, "revoked"),
        (as_problem(403, "not yours"), NotAllowed, "not yours"),
        (as_problem(409, "two at once"), Conflict, "two at once"),
        (as_problem(410, "it was removed"), Removed, "removed"),
        (as_problem(413, "quota"), OverQuota, "quota"),
        (as_problem(404, "no such model"), NotFound, "no such model"),
        (as_problem(429, "too often", Retry_After="3600"), TooMany, "too often"),
        (as_problem(500, "The registry cannot answer just now"), Unreachable, "just now"),
        (as_problem(503, "many wait", Retry_After="3600"), Busy, "many wait"),
        (Answer(404, b"<html>nothing</html>"), NotFound, "answered 404"),
        (Answer(405, b"[]"), BadInput, "answered 405"),
        (Answer(502, b""), Unreachable, "answered 502"),
        (Answer(200, b"{", promised=100), Unreachable, "cut"),
    ],
)
def test_an_answer_without_a_known_code_is_an_error_by_its_status(
    answer: Answer, kind: type[OrganError], said: str
) -> None:
    with scripted_server(lambda _: answer) as server, pytest.raises(kind, match=said) as raised:
        Connection(server.url).send(AcceptedAnswer, "GET", "/api/v1/x")
    assert type(raised.value) is kind


def test_only_an_idempotent_request_is_repeated_after_a_broken_connection() -> None:
    naps = Naps()
    with scripted_server(in_turn(CUT, CUT, FINE)) as server:
        assert Connection(server.url, sleep=naps).send(AcceptedAnswer, "GET", "/x") == AcceptedAnswer(fine=True)
        assert len(server.requests) == 3
    assert 0 < naps.seconds[0] < naps.seconds[1] * 1.5
    for method in ("POST", "PATCH"):
        with scripted_server(in_turn(CUT, FINE)) as server:
            with pytest.raises(Unreachable, match=f"127.0.0.1:{server.port} does not answer"):
                Connection(server.url, sleep=Naps()).send(AcceptedAnswer, method, "/x", data=b"abc", headers={})
            assert len(server.requests) == 1


def test_an_unreachable_registry_gives_an_error_of_one_sentence_after_some_attempts() -> None:
    naps = Naps()
    refused = r"^http://127\.0\.0\.1:\d+ does not answer: .*refused"
    with unused_address() as url, pytest.raises(Unreachable, match=refused) as raised:
        Connection(url, sleep=naps).send(AcceptedAnswer, "GET", "/x")
    assert "object at" not in str(raised.value)
    assert len(naps.seconds) == 3


def test_a_request_is_repeated_after_the_time_of_retry_after() -> None:
    naps, past = Naps(), "Wed, 21 Oct 2015 07:28:00 GMT"
    later = (
        as_problem(429, "often", Retry_After="7"),
        as_problem(503, "busy", Retry_After=past),
    )
    with scripted_server(in_turn(*later, FINE)) as server:
        assert Connection(server.url, sleep=naps).send(AcceptedAnswer, "POST", "/x", {}) == AcceptedAnswer(fine=True)
    assert naps.seconds == [7.0, 0.0]


def test_a_long_retry_after_is_not_waited_for() -> None:
    naps = Naps()
    with scripted_server(lambda _: as_problem(429, "often", Retry_After="61")) as server:
        with pytest.raises(TooMany) as raised:
            Connection(server.url, sleep=naps).send(AcceptedAnswer, "GET", "/x")
        assert len(server.requests) == 1
    assert (raised.value.seconds, naps.seconds) == (61.0, [])


def test_a_redirect_within_the_registry_is_followed_for_reading_only_and_a_few_times() -> None:
    def script(asked: ReceivedRequest) -> Answer:
        return FINE if asked.path == "/there" else Answer(308, b"", {"Location": asked.path.replace("/here", "/there")})

    with scripted_server(script) as server:
        assert Connection(server.url).send(AcceptedAnswer, "GET", "/here") == AcceptedAnswer(fine=True)
        for method, path in (("PUT", "/here"), ("GET", "/loop")):
            with pytest.raises(BadReply, match="not followed"):
                Connection(server.url).send(AcceptedAnswer, method, path, {} if method == "PUT" else None)
        assert len(server.requests) < 12


@pytest.mark.parametrize(
    "there", ["http://127.0.0.1:{other}/x", "//127.0.0.1:{other}/x", "https://127.0.0.1:{port}/x", ""]
)
def test_a_redirect_to_another_origin_gets_neither_a_request_nor_the_token(there: str) -> None:
    with (
        scripted_server(lambda _: FINE) as other,
        scripted_server(lambda _: Answer(302, b"", {"Location": location})) as server,
    ):
        location = there.format(other=other.port, port=server.port) or "ftp://127.0.0.1/x"
        with pytest.raises(BadReply, match="another registry"):
            Connection(server.url, new_token().text).send(AcceptedAnswer, "GET", "/x")
        with pytest.raises(BadReply, match="another registry"):
            Connection(server.url, new_token().text).send(AcceptedAnswer, "POST", "/x", {})
        with pytest.raises(BadReply, match="another registry"), Connection(server.url).download("/x"):
            pass
        assert not other.requests


def test_an_answer_that_is_too_large_is_not_read() -> None:
    huge = Answer(200, b'"' + b"a" * (ANSWER_MAX_BYTES + 5) + b'"')
    with scripted_server(lambda _: huge) as server, pytest.raises(BadReply, match="more than 16777216 bytes"):
        Connection(server.url).send(AcceptedAnswer, "GET", "/x")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "registry.example",
        "ftp://a",
        "http://",
        "http://a:b",
        "http://a:99999",
        "https://u:p@a",
        "https://a/?q=1",
        "https://a/#b",
        "https://a b",
        "https://ä",
        "https://" + "a" * 3000,
    ],
)
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(BadSetting, match="is not the address of a registry"):
        Connection(url)


def test_a_token_that_is_mistyped_or_would_leave_this_machine_unencrypted_is_not_sent() -> None:
    token = new_token().text
    with pytest.raises(BadToken) as mistyped:
        Connection("https://registry.example", token[:-1] + ("a" if token[-1] != "a" else "b"))
    assert token[:-1] not in str(mistyped.value)
    with pytest.raises(BadSetting, match="plain http") as raised:
        Connection("http://registry.example", token)
    assert token not in str(raised.value)
    for url in ("http://localhost:1", "http://127.0.0.2", "http://[::1]:8935", "https://registry.example"):
        assert Connection(url, token).url == url
    assert Connection("http://registry.example", token, plain_http=True).url == "http://registry.example"
    assert Connection("http://registry.example").url == "http://registry.example"


class Echo(Entity, frozen=True, kw_only=True):
    """The path of a request."""

    path: str


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"
"""The beginning of an answer."""


@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\nX: ", HEAD + b"\r\n"], ids=["none", "header", "body"])
def test_a_server_that_sends_very_slowly_does_not_block_a_call(beginning: bytes) -> None:
    with dripping_server(beginning) as url:
        connection = Connection(url, read_seconds=0.2, answer_seconds=0.2)
        begun = time.monotonic()
        with pytest.raises(Unreachable, match=r"it took more than 0\.2\d* seconds"):
            connection.send(AcceptedAnswer, "GET", "/api/v1/models")
        assert time.monotonic() - begun < 20, "the answer would take 20 seconds, and is not waited for a second time"
        connection.close()


def test_a_server_that_sends_very_slowly_does_not_block_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("organs.registry.client.connection.LOWEST_BYTES_A_SECOND", CHUNK_BYTES * 10)
    with dripping_server(HEAD + b"\r\n") as url:
        connection = Connection(url, read_seconds=0.2)
        with connection.download("/file") as reply, pytest.raises(Unreachable, match=r"more than .* seconds"):
            list(reply.stream())
        connection.close()


def test_a_connection_that_was_cut_in_time_is_not_used_again() -> None:
    slow = threading.Event()

    def script(_asked: ReceivedRequest) -> Answer:
        if not slow.is_set():
            slow.set()
            time.sleep(0.6)
        return FINE

    with scripted_server(script) as server:
        connection = Connection(server.url, read_seconds=0.2)
        with pytest.raises(Unreachable, match="timed out"):
            connection.send(AcceptedAnswer, "POST", "/x", {})
        assert connection.send(AcceptedAnswer, "GET", "/y") == AcceptedAnswer(fine=True)
        connection.close()
