"""Limits of requests: rates for each client, and how many requests one process computes at once.

All workers of a server count rates together. A request above a rate is refused with 429 before a larger body is read
(`web.server.connection` reads bodies of up to 256 KiB before a request is counted). For requests that only read,
processor time is counted.

Tokens. A malformed or mistyped token is refused without a query and is not counted. Any other is looked up, so a valid
token is accepted whatever else comes from its address. Each unknown token counts for its address and for its
public id; beyond FAILED_TOKENS the answer is 429. This limits only the number of answers to someone who guesses: the
secret has 256 random bits, and a look-up is one row by an index. A revoked or expired token is not a guess and not
counted: a program that still uses one blocks nobody else at its address.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from mmap import mmap
from tempfile import TemporaryFile
from threading import BoundedSemaphore, Lock
from time import thread_time, time
from typing import Protocol

from flask import Flask, Response, current_app, g, request
from limits import RateLimitItem, RateLimitItemPerHour, RateLimitItemPerMinute
from limits.storage import Storage
from limits.strategies import FixedWindowRateLimiter

from organs.registry.catalog.queries.accounts import KnownToken
from organs.registry.errors import Busy, TooMany
from organs.web.client_address import client_address
from organs.web.settings import WebSettings

RATES_KEY = "organ_rates"
FAILED_TOKENS = RateLimitItemPerMinute(10, namespace="failed")
"""By address, and by the public id of the token."""
LOG_INS = RateLimitItemPerMinute(10, namespace="log-in")
"""By contributor."""
NEW_TOKENS = RateLimitItemPerHour(30, namespace="new-token")
"""By contributor."""
PAGE_TOKENS = RateLimitItemPerMinute(30, namespace="page-token")
"""By contributor."""
WRITES = RateLimitItemPerMinute(600, namespace="write")
"""By contributor: requests that are no GET, such as lookups."""
ANONYMOUS_WRITES = RateLimitItemPerMinute(120, namespace="anonymous-write")
"""By address: the same requests without an account, such as plans and lookups."""
READING = RateLimitItemPerMinute(30_000, namespace="reading")
"""By address: milliseconds of processor time for requests that read, without an account, and not from memory."""
ACCOUNT_READING = RateLimitItemPerMinute(120_000, namespace="account-reading")
"""By contributor: the same."""
UPLOADS = RateLimitItemPerMinute(6000, namespace="upload")
"""By contributor: requests below /api/v1/uploads. A model of a thousand tensors is three thousand of them."""
UPLOADS_PATH = "/api/v1/uploads"
WORKING_BLUEPRINTS = frozenset({"pages", "api", "hub"})
"""Blueprints whose answers are computed. Downloads take little processor time, and have their own limit."""
READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOG_IN = "pages.log_in"
ROWS = 8192
"""Of the table of counts: 65,536 of them in 2 MiB."""

_DIGEST_BYTES = 16
_SLOT = struct.Struct(f"<{_DIGEST_BYTES}sdI4x")
"""Digest of a key, the time when its count expires (seconds since the epoch), and the count."""
_COUNT_MAX = 2**32 - 1
_ROW_SLOTS = 8
_ROW_BYTES = _ROW_SLOTS * _SLOT.size


class Client(Protocol):
    """The sender of a request, as far as rates depend on it."""

    @property
    def account(self) -> KnownToken | None:
        """The account of its token or session."""

    @property
    def is_local(self) -> bool:
        """Whether it is a program or a person on this machine."""


class SharedCounts(Storage):
    """Counts with an expiry, in memory that a process shares with those that it forks. Safe for threads.

    A table of fixed size: a key has one of the eight slots of its row. Where all eight are in use, the smallest count
    makes room, so a client with many addresses can push out other small counts, but not its own large ones. Rows are
    chosen by a secret, so that no client can choose one.

    Processes take turns by a lock on a file without a name, which the system releases when its holder is killed.
    """

    STORAGE_SCHEME = None

    def __init__(self, rows: int = ROWS) -> None:
        super().__init__()
        self._rows = rows
        self._table = mmap(-1, rows * _ROW_BYTES)
        self._secret = secrets.token_bytes(32)
        with TemporaryFile(prefix="organ-rates-") as file:
            self._turn = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._turn)
        self._thread_turn = Lock()  # a lock on a file excludes other processes alone

    @property
    def base_exceptions(self) -> type[Exception]:
        """Return what may be raised when the storage fails."""
        return OSError

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Add `amount` to the count of `key`, which begins at 0 and ends after `expiry` seconds; return the count."""
        now, (row, digest) = time(), self._place(key)
        with self._locked():
            offset, expires, count = self._find(row, digest, now)
            if count == 0 or expires > now + expiry:  # the second: the clock was set back
                expires = now + expiry
                count = 0
            count = min(count + amount, _COUNT_MAX)
            _SLOT.pack_into(self._table, offset, digest, expires, count)
        return count

    def get(self, key: str) -> int:
        """Return the count of `key`."""
        row, digest = self._place(key)
        with self._locked():
            return self._find(row, digest, time())[2]

    def get_expiry(self, key: str) -> float:
        """Return when the count of `key` ends, in seconds since the epoch; now where there is none."""
        now, (row, digest) = time(), self._place(key)
        with self._locked():
            _, expires, count = self._find(row, digest, now)
        return expires if count else now

    def check(self) -> bool:
        """Return True: memory does not fail."""
        return True

    def reset(self) -> int | None:
        """Forget all counts."""
        with self._locked():
            self._table[:] = bytes(len(self._table))
        return None

    def clear(self, key: str) -> None:
        """Forget the count of `key`."""
        row, digest = self._place(key)
        with self._locked():
            offset, _, _ = self._find(row, digest, time())
            _SLOT.pack_into(self._table, offset, bytes(_DIGEST_BYTES), 0.0, 0)

    def _place(self, key: str) -> tuple[int, bytes]:
        """Return the offset of the row of `key`, and its digest."""
        digest = blake2b(key.encode(), digest_size=_DIGEST_BYTES, key=self._secret).digest()
        return int.from_bytes(digest[:4], "little") % self._rows * _ROW_BYTES, digest

    def _find(self, row: int, digest: bytes, now: float) -> tuple[int, float, int]:
        """Return offset, expiry and count of the slot that has `digest`, or of the one to be used for it, with 0."""
        least_offset, least_count = row, _COUNT_MAX + 1
        for index, (held, expires, count) in enumerate(_SLOT.iter_unpack(self._table[row : row + _ROW_BYTES])):
            offset = row + index * _SLOT.size
            counted = count if expires > now else 0
            if held == digest:
                return offset, expires, counted
            if counted < least_count:
                least_offset, least_count = offset, counted
        return least_offset, 0.0, 0

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._thread_turn:
            fcntl.lockf(self._turn, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._turn, fcntl.LOCK_UN)


class Rates:
    """Rates of requests, by counts that other processes may share. Safe for threads."""

    def __init__(self, counts: Storage) -> None:
        self._counts = counts
        self._limiter = FixedWindowRateLimiter(counts)

    def hit(self, rate: RateLimitItem, client: str, cost: int = 1) -> None:
        """Count `cost` for `client`; raise TooMany where that is more than `rate` allows."""
        if not self._limiter.hit(rate, client, cost=cost):
            raise self._too_many(rate, client)

    def check(self, rate: RateLimitItem, client: str) -> None:
        """Raise TooMany where `rate` allows `client` no more."""
        if not self._limiter.test(rate, client):
            raise self._too_many(rate, client)

    def add(self, rate: RateLimitItem, client: str, cost: int) -> None:
        """Count `cost` for `client`, for what has been done already."""
        self._counts.incr(rate.key_for(client), rate.get_expiry(), cost)

    def _too_many(self, rate: RateLimitItem, client: str) -> TooMany:
        seconds = max(1.0, self._counts.get_expiry(rate.key_for(client)) - time())
        return TooMany(f"too many requests; try again in {seconds:.0f} seconds", seconds)


def limit_rates(app: Flask, counts: Storage, identity: Callable[[], Client]) -> None:
    """Count requests to `app` that are no GET; refuse those above a rate with 429 before a larger body is read.

    `identity` returns the client of the current request (`web.auth.identity`).
    """
    app.extensions[RATES_KEY] = Rates(counts)
    app.before_request(partial(_count, identity))


def limit_reading(app: Flask, identity: Callable[[], Client]) -> None:
    """Count the processor time of requests that read, and refuse those of a client that has taken too much by 429.

    Call it after answers from memory are looked up: those cost nothing.
    """

    @app.before_request
    def begin() -> None:
        g.reader = None
        if request.method in READING_METHODS and request.blueprint in WORKING_BLUEPRINTS:
            reader = _reader(identity())
            if reader is not None:
                rates().check(*reader)
                g.reader, g.began_work = reader, thread_time()

    @app.after_request
    def end(answer: Response) -> Response:
        if g.get("reader") is not None:
            rate, client = g.reader
            rates().add(rate, client, max(1, round(1000 * (thread_time() - g.began_work))))
        return answer


def rates() -> Rates:
    """Return the rates of this application."""
    counted: Rates = current_app.extensions[RATES_KEY]
    return counted


def _reader(client: Client) -> tuple[RateLimitItem, str] | None:
    """Return the rate and the client that a request that reads counts for; None for a client of this machine."""
    if client.account is not None:
        return ACCOUNT_READING, str(client.account.contributor_id)
    return None if client.is_local else (READING, client_address())


def _count(identity: Callable[[], Client]) -> None:
    """Count a request that is no GET. A log-in is counted by its result: see `web.pages.account`."""
    if request.method in READING_METHODS or request.endpoint in (None, LOG_IN):
        return
    client = identity()
    if client.account is not None:
        is_upload = request.path == UPLOADS_PATH or request.path.startswith(f"{UPLOADS_PATH}/")
        rates().hit(UPLOADS if is_upload else WRITES, str(client.account.contributor_id))
    elif not client.is_local:
        rates().hit(ANONYMOUS_WRITES, client_address())


TURNS_KEY = "organ_turns"
WITH_TURN = frozenset({"pages", "api"})
"""Blueprints whose requests take a turn."""
WITHOUT_TURN = frozenset(
    {
        *("pages.reports", "pages.reports_markdown"),
        *("pages.report", "pages.report_csv", "pages.types_chart", "pages.scale_chart"),
        *("api.report", "api.report_section"),
        *("api.receive_chunk", "api.finish_upload", "api.submit_model"),
    }
)
"""Endpoints of these blueprints that take no turn before their view runs. Reports are computed once for all requests
that wait for them, and must not wait inside of a turn. Bodies of uploads and submissions arrive as slowly as clients
send them, and have their own limit (`web.services.contributions`); a submission takes its turn when its body has
arrived (`take_turn`)."""
PATIENCE_SECONDS = 0.25
SECOND_TURNS = 2
"""Requests that may work beside one that takes longer than PATIENCE_SECONDS."""


class Turns:
    """Let one request of a process compute at a time, and few beside one that takes long. Safe for threads.

    A page is processor work, and Python runs one thread at a time: sixteen threads finish no sooner than one, and lose
    a quarter of the time by switching.
    """

    def __init__(self, seconds: float, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._seconds = seconds
        self._patience = patience_seconds
        self._first = BoundedSemaphore(1)
        self._second = BoundedSemaphore(SECOND_TURNS)

    def take(self) -> BoundedSemaphore:
        """Wait for a turn and return the semaphore that the caller must release.

        Raises Busy when none becomes free in time.
        """
        if self._first.acquire(timeout=self._patience):
            return self._first
        if self._second.acquire(timeout=self._seconds):
            return self._second
        raise Busy("the server is answering too many other requests; try again in a few seconds")


def take_turns(app: Flask, settings: WebSettings) -> None:
    """Make requests of `app` take turns; a request that waits too long is answered by 503."""
    app.extensions[TURNS_KEY] = Turns(settings.turn_seconds)

    @app.before_request
    def take() -> None:
        if request.blueprint in WITH_TURN and request.endpoint not in WITHOUT_TURN:
            take_turn()

    @app.teardown_request
    def release(_error: BaseException | None) -> None:
        turn = g.pop("turn", None)
        if turn is not None:
            turn.release()


def take_turn() -> None:
    """Take a turn for this request, which keeps it until it ends; raises Busy."""
    turns: Turns = current_app.extensions[TURNS_KEY]
    g.turn = turns.take()
