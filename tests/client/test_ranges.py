"""Files at http addresses, read by range: each fault of a server gets one sentence, and no wrong byte is returned."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from organs.registry.client.ranges import GAP_BYTES, HttpFile, RangeClient, ReadLimits
from organs.registry.errors import BadHubToken, BadSetting, BadSource, NoSuchFile, NotAllowed, OrganError, Unreachable
from tests.client.scripted_server import (
    CUT,
    Answer,
    ReceivedRequest,
    Script,
    dripping_server,
    no_sleep,
    scripted_server,
)

DATA = random.Random(16).randbytes(300_000)
RANGE = re.compile(r"bytes=(\d+)-(\d+)")
TOKEN = {"Authorization": "Bearer secret"}


def part(request: ReceivedRequest, data: bytes = DATA, tag: str = '"1"') -> Answer:
    match = RANGE.fullmatch(request.headers["Range"])
    assert match is not None
    begin, end = int(match[1]), min(int(match[2]) + 1, len(data))
    return Answer(206, data[begin:end], {"ETag": tag, "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"})


@pytest.fixture
def client() -> Iterator[RangeClient]:
    with RangeClient(limits=ReadLimits(tries=3, silence_seconds=1.0, total_seconds=20.0), sleep=no_sleep) as running:
        yield running


def later(answer: Callable[[ReceivedRequest], Answer], first: Script = part) -> Script:
    """Answer the first request by `first`, and all others by `answer`."""
    opened = False

    def script(request: ReceivedRequest) -> Answer:
        nonlocal opened
        if opened:
            return answer(request)
        opened = True
        return first(request)

    return script


def test_ranges_are_read_in_parallel_and_near_ones_together(client: RangeClient) -> None:
    spans = [(200_000, 700), (100_000, 300), (100_300 + GAP_BYTES, 5), (299_990, 10), (5, 10)]
    with scripted_server(part) as server:
        file = HttpFile(client, f"{server.url}/m.gguf")
        assert (file.size_bytes, file.version, file.path.name) == (len(DATA), '"1"', "m.gguf")
        assert file.read_ranges(spans) == [DATA[offset : offset + size] for offset, size in spans]
        assert len(server.requests) == 4, "the first 64 KiB, two spans together, and two others"
        assert client.requests == 4
        file.check_unchanged()
        with pytest.raises(BadSource, match="ends at byte 300,000"):
            file.read_at(299_999, 2)


def changed(headers: dict[str, str] | None = None, **changes: Any) -> Callable[[ReceivedRequest], Answer]:
    """Answer as a server ought to, but for these parts."""

    def answer(request: ReceivedRequest) -> Answer:
        right = part(request)
        return replace(right, headers={**right.headers, **(headers or {})}, **changes)

    return answer


FAULTS: dict[str, tuple[Callable[[ReceivedRequest], Answer], type[OrganError], str]] = {
    "ignores Range": (lambda _: Answer(200, DATA), BadSource, "ignores Range and would send the whole file"),
    "cuts": (lambda _: CUT, Unreachable, "tried 3 times"),
    "busy": (lambda _: Answer(503, b""), Unreachable, "status 503; tried 3 times"),
    "too many": (lambda _: Answer(429, b"", {"Retry-After": "3600"}), Unreachable, "status 429; tried 1 times"),
    "other range": (
        changed({"Content-Range": f"bytes 7-16/{len(DATA)}"}),
        BadSource,
        "sends other bytes than those",
    ),
    "no range": (changed({"Content-Range": "bytes */1"}), BadSource, "does not answer with one range"),
    "compressed": (changed({"Content-Encoding": "gzip"}), BadSource, "does not answer with one range"),
    "shorter": (changed(body=b"123", promised=10), Unreachable, "tried 3 times"),
    "lies about its length": (changed(body=b"123"), BadSource, "announces 3 bytes for a range of 10"),
    "another size": (changed({"Content-Range": "bytes 100000-100009/400000"}), BadSource, "changed"),
    "another version": (lambda request: part(request, tag='"2"'), BadSource, "changed on the server while it was read"),
    "a loop": (lambda _: Answer(302, b"", {"Location": "/m.gguf"}), BadSource, "redirects more than 5 times"),
    "elsewhere": (lambda _: Answer(302, b"", {"Location": "file:///etc/passwd"}), BadSource, "not an http address"),
    "removed": (lambda _: Answer(404, b""), NoSuchFile, r"no such file on the server \(404\)"),
    "forbidden": (lambda _: Answer(403, b""), NotAllowed, r"access is not allowed \(403\)"),
    "gated": (lambda _: Answer(403, b"", {"X-Error-Code": "GatedRepo"}), NotAllowed, "request access on its page"),
    "private": (lambda _: Answer(401, b""), BadHubToken, "requires a valid token"),
    "nonsense": (lambda _: Answer(418, b""), BadSource, "status 418"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_server_gets_one_sentence(fault: str, client: RangeClient) -> None:
    answer, error, sentence = FAULTS[fault]
    with scripted_server(later(answer)) as server:
        file = HttpFile(client, f"{server.url}/m.gguf")
        with pytest.raises(error, match=sentence) as raised:
            file.read_at(100_000, 10)
        assert str(raised.value).startswith(f"{server.url}/m.gguf: ")
        assert "\n" not in str(raised.value)


def test_another_header_is_noticed_without_a_version(client: RangeClient) -> None:
    changed = later(lambda asked: part(asked, b"!" + DATA[1:], 'W/"1"'), lambda asked: part(asked, DATA, 'W/"1"'))
    with scripted_server(changed) as server:
        file = HttpFile(client, f"{server.url}/m.gguf")
        assert file.version == ""
        for read in (file.check_unchanged, lambda: file.read_all(lambda _offset, _data: None)):
            with pytest.raises(BadSource, match="changed on the server"):
                read()


@pytest.mark.parametrize("answer", [CUT, Answer(500, b""), Answer(206, b"12", {}, 5)])
def test_a_passing_fault_is_not_noticed(answer: Answer, client: RangeClient) -> None:
    count = 0

    def script(request: ReceivedRequest) -> Answer:
        nonlocal count
        count += 1
        right = part(request)
        return right if count % 3 == 1 else Answer(answer.status, answer.body, right.headers, answer.promised)

    with scripted_server(script) as server:
        assert HttpFile(client, f"{server.url}/m.gguf").read_at(150_000, 5) == DATA[150_000:150_005]


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 206 Partial",
        b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-65535/90000\r\nContent-Length: 65536\r\n\r\n",
    ],
)
def test_a_server_that_drips_is_left_in_time(head: bytes) -> None:
    limits = ReadLimits(tries=1, silence_seconds=0.4, total_seconds=0.4, lowest_bytes_a_second=10**9)
    sentence = r"too slow|more than 0\.5 seconds"
    with RangeClient(limits=limits) as client, dripping_server(head) as url, pytest.raises(Unreachable, match=sentence):
        HttpFile(client, f"{url}/m.gguf")


def test_the_token_is_sent_to_the_first_host_only(client: RangeClient) -> None:
    with scripted_server(part) as storage:
        location = f"http://localhost:{storage.port}/signed?key=1"
        with scripted_server(
            lambda _: Answer(302, b"", {"Location": location, "X-Linked-Etag": f'"{"a" * 64}"'})
        ) as hub:
            file = HttpFile(client, f"{hub.url}/m.gguf", headers=TOKEN)
            assert file.read_at(150_000, 9) == DATA[150_000:150_009]
            assert file.stated_sha256 == "a" * 64
            assert [request.headers["Authorization"] for request in hub.requests] == ["Bearer secret"]
            assert [request.headers["Authorization"] for request in storage.requests] == [None, None]


def test_an_expired_address_is_requested_again(client: RangeClient) -> None:
    signed = 0

    def script(request: ReceivedRequest) -> Answer:
        nonlocal signed
        if request.path == "/m.gguf":
            signed += 1
            return Answer(302, b"", {"Location": f"/signed/{signed}"})
        if request.path == "/signed/1" and len(server.requests) > 2:
            return Answer(403, b"")
        return part(request)

    with scripted_server(script) as server:
        file = HttpFile(client, f"{server.url}/m.gguf")
        assert file.read_at(150_000, 9) == DATA[150_000:150_009]
        assert [request.path for request in server.requests] == [
            "/m.gguf",
            "/signed/1",
            "/signed/1",
            "/m.gguf",
            "/signed/2",
        ]


@pytest.mark.parametrize("url", ["ftp://host/m.gguf", "http://", "https://host:port/m.gguf", "http://h/a b.gguf"])
def test_an_invalid_address_is_refused(url: str, client: RangeClient) -> None:
    with pytest.raises(BadSetting, match="not an http or https address"):
        HttpFile(client, url)


def test_a_token_is_not_sent_unencrypted_to_another_machine(client: RangeClient) -> None:
    with pytest.raises(BadSetting, match="a token is not sent over plain http"):
        HttpFile(client, "http://hub.example/m.gguf", headers=TOKEN)
