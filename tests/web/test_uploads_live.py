"""Uploads over real sockets: clients that vanish, dawdle, or lie about what they send."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from organs.registry.digest import digest_of
from organs.registry.local import LocalRegistry
from tests.web.live_server import HURRIED, LiveServer, receive_all, running_server
from tests.web.upload_clients import OCTETS, UPLOADS, content_digest, new_contributor_token

DATA = bytes(range(256)) * 4000
PACE_SECONDS = 0.3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A registry, and the tokens of two contributors."""
    folder = tmp_path_factory.mktemp("uploads")
    with LocalRegistry.open(folder / "home") as registry:
        return folder, new_contributor_token(registry, "ada"), new_contributor_token(registry, "bob")


@pytest.fixture(scope="module")
def live(place: tuple[Path, str, str]) -> Iterator[LiveServer]:
    """A server that waits a second for anything."""
    with running_server(place[0] / "home", place[0] / "log", HURRIED) as server:
        yield server


@pytest.fixture
def token(place: tuple[Path, str, str]) -> str:
    return place[1]


@pytest.fixture
def other_token(place: tuple[Path, str, str]) -> str:
    return place[2]


def head(method: str, path: str, token: str, headers: dict[str, str]) -> bytes:
    said = {"Host": "localhost", "Authorization": f"Bearer {token}", "Connection": "close", **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def chunk_head(upload: str, token: str, begin: int, end: int, **more: str) -> bytes:
    """The head of a chunk of DATA."""
    headers = {
        "Content-Type": OCTETS,
        "Content-Range": f"bytes {begin}-{end - 1}/{len(DATA)}",
        "Content-Digest": content_digest(DATA[begin:end]),
        "Content-Length": str(end - begin),
    }
    return head(
        "PATCH", f"{UPLOADS}/{upload}", token, headers | {name.replace("_", "-"): v for name, v in more.items()}
    )


def asked(live: LiveServer, token: str, method: str, path: str, body: Any = None) -> dict[str, Any]:
    data = b"" if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(data))}
    answer = live.send(head(method, path, token, headers) + data)
    found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found


def begun(live: LiveServer, token: str, name: str) -> str:
    return str(asked(live, token, "POST", UPLOADS, {"kind": "file", "size_bytes": len(DATA), "name": name})["id"])


def received(live: LiveServer, token: str, upload: str) -> int:
    return int(asked(live, token, "GET", f"{UPLOADS}/{upload}")["received_bytes"])


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def finished(live: LiveServer, token: str, upload: str, begin: int) -> str:
    """Send the rest; the digest of the whole."""
    answer = live.send(chunk_head(upload, token, begin, len(DATA)) + DATA[begin:])
    assert status(answer) == 202, answer
    return str(asked(live, token, "PUT", f"{UPLOADS}/{upload}")["digest"])


def test_a_client_that_vanished_continues_after_its_last_chunk(live: LiveServer, token: str) -> None:
    upload = begun(live, token, "vanishing")
    first = 200_000
    assert status(live.send(chunk_head(upload, token, 0, first) + DATA[:first])) == 202
    with live.connect() as client:
        client.sendall(chunk_head(upload, token, first, len(DATA)) + DATA[first : int(0.3 * len(DATA))])
    assert received(live, token, upload) == first
    until = time.monotonic() + 10
    answer = b""
    while status(answer) != 202 and time.monotonic() < until:  # 409 until the server has seen that the other is gone
        answer = live.send(chunk_head(upload, token, first, 300_000) + DATA[first:300_000])
        assert status(answer) in (202, 409), answer
    assert finished(live, token, upload, 300_000) == digest_of(DATA)


@pytest.mark.long
def test_a_slow_body_is_cut_off_and_others_are_served(live: LiveServer, token: str, other_token: str) -> None:
    """Of two contributors: so small a server takes one upload at a time of each."""
    owners = (token, other_token)
    uploads = [begun(live, owner, "slow") for owner in owners]
    clients = [live.connect() for _ in uploads]
    for client, upload, owner in zip(clients, uploads, owners, strict=True):
        client.sendall(chunk_head(upload, owner, 0, len(DATA)) + DATA[:1000])
    begin = time.monotonic()
    for _ in range(3):
        assert live.health_seconds() < 5
        assert received(live, token, uploads[0]) == 0
        time.sleep(PACE_SECONDS)
    for client in clients:
        assert status(receive_all(client)) == 408
        client.close()
    assert time.monotonic() - begin < 15
    for upload, owner in zip(uploads, owners, strict=True):
        assert received(live, owner, upload) == 0
    assert finished(live, token, uploads[0], 0) == digest_of(DATA)


def test_a_wrong_content_length_writes_nothing_and_smuggles_no_request(live: LiveServer, token: str) -> None:
    upload = begun(live, token, "lying")
    inner = head("DELETE", f"{UPLOADS}/{upload}", token, {})
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (100, DATA[:100])
    plain = chunk_head(upload, token, 0, 100)
    lies = {
        "short": (chunk_head(upload, token, 0, 100, Content_Length="50") + DATA[:100], {400}),
        "long": (chunk_head(upload, token, 0, 100, Content_Length="200") + DATA[:100], {400}),
        "plus": (chunk_head(upload, token, 0, 100, Content_Length="+100") + DATA[:100], {400}),
        "two": (
            plain.replace(b"Content-Length: 100", b"Content-Length: 100\r\nContent-Length: 99") + DATA[:100],
            {400},
        ),
        "chunked": (plain.replace(b"Content-Length: 100", b"Transfer-Encoding: chunked") + chunked, {400, 411}),
        "both": (plain.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n") + chunked, {400, 411}),
        "none": (plain.replace(b"Content-Length: 100\r\n", b"") + DATA[:100], {411}),
        "huge": (chunk_head(upload, token, 0, 100, Content_Length=str(1 << 40)) + DATA[:100], {413}),
        "gzip": (chunk_head(upload, token, 0, 100, Content_Encoding="gzip") + DATA[:100], {415}),
    }
    for name, (request, statuses) in lies.items():
        answer = live.send(request + inner)
        assert status(answer) in statuses, (name, answer)
        assert answer.count(b"HTTP/1.1 ") == 1, name
        assert received(live, token, upload) == 0, name
    live.health_seconds()
    assert finished(live, token, upload, 0) == digest_of(DATA)
