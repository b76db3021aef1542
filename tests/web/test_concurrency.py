"""Limits of one process: turns of pages, limits of an address, the queue for threads, places of downloads."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from itertools import count
from threading import Event, Thread
from typing import Any

import pytest
from flask.testing import FlaskClient

from organs.registry.errors import Busy
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.client_address import address_behind_proxies
from organs.web.file_responses import STREAMS_KEY
from organs.web.rate_limits import (
    SECOND_TURNS,
    TURNS_KEY,
    Turns,
)
from organs.web.server.scheduling import PARKED_SECONDS, SHARE_SECONDS, AddressLimit, DownloadPlaces, FairQueue
from organs.web.settings import WebSettings

# Turns


def test_the_next_request_waits_until_the_turn_is_released() -> None:
    turns = Turns(seconds=60, patience_seconds=60)
    first, came = turns.take(), Event()

    def second() -> None:
        turns.take().release()
        came.set()

    waiting = Thread(target=second)
    waiting.start()
    assert not came.wait(0.05)
    first.release()
    assert came.wait(60)
    waiting.join()


def test_a_slow_page_does_not_block_other_pages() -> None:
    turns = Turns(seconds=60, patience_seconds=0.01)
    slow = turns.take()
    second = [turns.take() for _ in range(SECOND_TURNS)]
    assert slow not in second
    for turn in second:
        turn.release()
    turns.take().release()


def test_a_request_that_waits_too_long_for_its_turn_is_refused() -> None:
    turns = Turns(seconds=0.01, patience_seconds=0.01)
    taken = [turns.take() for _ in range(1 + SECOND_TURNS)]
    with pytest.raises(Busy):
        turns.take()
    taken[0].release()
    turns.take().release()


def test_a_turn_is_released_however_the_request_ends(registry: LocalRegistry) -> None:
    with create_app(registry, WebSettings(turn_seconds=0.0, cache_bytes=0)).test_client() as client:
        for address in ["/organs", "/organs?q=thta:1", "/organs/zz", "/models/a/b", "/api/v1/organs", "/nowhere"] * 4:
            assert client.get(address).status_code != 503, address


@pytest.mark.long
def test_a_page_without_a_turn_gets_retry_after(registry: LocalRegistry) -> None:
    app = create_app(registry, WebSettings(turn_seconds=0.0))
    taken = [app.extensions[TURNS_KEY].take() for _ in range(1 + SECOND_TURNS)]
    client = app.test_client()
    for address in ("/organs", "/api/v1/organs", "/organs.json"):
        answer = client.get(address)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5"), address
    for address in ("/healthz", "/static/style.css", "/metrics"):
        with client.get(address) as answer:
            assert answer.status_code == 200, address
    taken[0].release()
    assert client.get("/organs").status_code == 200


def test_a_cached_answer_needs_no_turn(family_client: FlaskClient) -> None:
    family_client.get("/organs")
    taken = [family_client.application.extensions[TURNS_KEY].take() for _ in range(1 + SECOND_TURNS)]
    assert family_client.get("/organs").headers["X-Answered"] == "memory"
    for turn in taken:
        turn.release()


class WatchedBody(BytesIO):
    """A body that keeps how many turns were free when it was read."""

    def __init__(self, turns: Turns) -> None:
        super().__init__(b'{"files": []}' + b" " * 300_000)
        self._turns = turns
        self.free: list[int] = []

    def readinto(self, buffer: Any) -> int:
        taken = [self._turns.take() for _ in range(1 + SECOND_TURNS)]
        self.free.append(len(taken))
        for turn in taken:
            turn.release()
        return super().readinto(buffer)


@pytest.mark.long
def test_a_submission_takes_its_turn_after_its_body_has_arrived(registry: LocalRegistry) -> None:
    app = create_app(registry, WebSettings(personal=True, turn_seconds=0.0))
    turns, streams = app.extensions[TURNS_KEY], app.extensions[STREAMS_KEY]

    def submit(body: BytesIO) -> int:
        sent: Any = {"input_stream": body, "content_length": len(body.getvalue())}
        return app.test_client().put("/api/v1/models/local/tiny", content_type="application/json", **sent).status_code

    watched = WatchedBody(turns)
    assert submit(watched) == 400, "it has no files"
    assert watched.free, "the body was read while all turns were free"
    taken = [turns.take() for _ in range(1 + SECOND_TURNS)]
    assert submit(BytesIO(watched.getvalue())) == 503, "it needs a turn then"
    for turn in taken:
        turn.release()
    contributors = count(1)
    while streams.begin_upload(next(contributors)):
        pass
    unread = WatchedBody(turns)
    assert (submit(unread), unread.free) == (503, []), "it needs a place for uploads before its body is read"


# Addresses


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "proxies", "address"),
    [
        ("192.0.2.1", None, 0, "192.0.2.1"),
        ("192.0.2.1", "198.51.100.7", 0, "192.0.2.1"),
        ("10.0.0.1", "6.6.6.6, 198.51.100.7", 1, "198.51.100.7"),
        ("10.0.0.1", "6.6.6.6, 198.51.100.7, 10.0.0.2", 2, "198.51.100.7"),
        ("10.0.0.1", "198.51.100.7", 2, "10.0.0.1"),
        ("10.0.0.1", "<script>", 1, "unknown"),
        ("2001:db8:1:3::1", None, 0, "20010db800010003::/64"),
        ("::ffff:192.0.2.1", None, 0, "192.0.2.1"),
        ("2001:db8:1:2:ffff::9%eth0", None, 0, "20010db800010002::/64"),
    ],
)
def test_the_client_address_is_counted_from_the_right_of_the_forwarded_list(
    peer: str, forwarded_for: str | None, proxies: int, address: str
) -> None:
    assert address_behind_proxies(peer, forwarded_for, proxies) == address


def test_each_address_has_its_own_limit() -> None:
    limit = AddressLimit(2)
    assert [limit.take("a") for _ in range(3)] == [True, True, False]
    assert limit.take("b")
    limit.release("a")
    assert limit.take("a")
    for address in ("a", "a", "b"):
        limit.release(address)
    assert len(limit) == 0, "an address that has nothing is not kept"


def test_addresses_take_turns_for_threads() -> None:
    started: list[str] = []
    queue = FairQueue(1)
    for name in ("a1", "a2", "a3", "a4", "b1", "c1", "b2"):
        queue.add(name[0], lambda name=name: started.append(name))  # type: ignore[misc]
    assert started == ["a1"]
    while len(queue):
        queue.finished()
    assert started == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


# Places of downloads


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeDownload:
    """A download that counts what happens to it."""

    def __init__(self, *, can_pause: bool = True) -> None:
        self.can_pause = can_pause
        self.proceeded = 0
        self.paused: list[Callable[[], None]] = []

    def proceed(self) -> None:
        self.proceeded += 1

    def pause(self, done: Callable[[], None]) -> None:
        self.paused.append(done)


def made(places: int, slow: int = 1) -> tuple[DownloadPlaces, Clock]:
    clock = Clock()
    return DownloadPlaces(places, slow, clock), clock


def test_a_download_that_is_not_read_gives_its_place_to_those_that_wait_and_continues_behind_them() -> None:
    places, clock = made(1)
    slow, quick, late = FakeDownload(), FakeDownload(), FakeDownload()
    places.want(slow)
    places.park(slow)
    places.want(quick)
    assert (slow.proceeded, quick.proceeded) == (1, 0), "it may only have paused for a moment"
    clock.now += 2 * PARKED_SECONDS
    places.serve()
    assert len(slow.paused) == 1
    assert not quick.proceeded, "its buffers are not free yet"
    places.want(slow)
    slow.paused[0]()
    assert quick.proceeded == 1
    places.want(late)
    places.leave(quick)
    assert (late.proceeded, slow.proceeded) == (1, 1)
    places.leave(late)
    assert slow.proceeded == 2


def test_slow_downloads_share_few_places() -> None:
    places, clock = made(4, slow=1)
    slow = [FakeDownload() for _ in range(4)]
    quick = [FakeDownload() for _ in range(4)]
    for download in slow:
        places.want(download)
        places.park(download)
    for download in quick:
        places.want(download)
    clock.now += 2 * PARKED_SECONDS
    places.serve()
    for download in slow:
        download.paused[0]()
    assert all(download.proceeded == 1 for download in quick)
    for download in quick:
        places.leave(download)
    for download in slow:
        places.want(download)
    assert sorted(download.proceeded for download in slow) == [1, 1, 1, 2]


def test_a_download_that_is_read_quickly_keeps_its_place_and_shares_it_after_a_while() -> None:
    places, clock = made(1)
    first, second = FakeDownload(), FakeDownload()
    places.want(first)
    places.want(second)
    places.want(first)
    assert (first.proceeded, second.proceeded) == (2, 0)
    clock.now += SHARE_SECONDS + 0.1
    places.want(first)
    first.paused[0]()
    assert (first.proceeded, second.proceeded) == (2, 1)
    places.leave(second)
    assert first.proceeded == 3


def test_a_download_that_cannot_pause_keeps_its_place() -> None:
    places, clock = made(1)
    fixed, other = FakeDownload(can_pause=False), FakeDownload()
    places.want(fixed)
    places.park(fixed)
    places.want(other)
    clock.now += 60
    places.serve()
    assert not fixed.paused
    places.leave(fixed)
    assert other.proceeded == 1


def test_a_download_that_ends_leaves_no_state() -> None:
    places, clock = made(1)
    first, waiting = FakeDownload(), FakeDownload()
    places.want(first)
    places.want(waiting)
    places.leave(waiting)
    places.park(first)
    clock.now += 2 * PARKED_SECONDS
    places.serve()
    assert not first.paused, "nobody waits for its place"
    places.leave(first)
    assert len(places) == 0
