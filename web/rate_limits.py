"""Limits of requests: rates for each client, and the number of requests that one process computes at the same time.

The workers of a server count rates together. With PostgreSQL, all servers of a registry count them together. A request
above a rate is refused with 429 before a larger body is read (`web.server.connection` reads bodies of up to 256 KiB
before a request is counted). For requests that only read, the processor time is counted, on each server.

Tokens: A malformed or mistyped token is refused without a query and is not counted. Any other token is looked up. So a
valid token is always accepted, even from an address with many failures. Each unknown token counts for its address and
for its public id; above FAILED_TOKENS the answer is 429. This limits only the number of answers to a client that
guesses: the secret has 256 random bits, and a look-up reads one row by an index. A revoked or expired token is not a
guess and is not counted, so a program that still uses it does not block other clients at its address.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil
from mmap import mmap
from tempfile import TemporaryFile
from threading import BoundedSemaphore, Lock
from time import thread_time, time
from typing import TYPE_CHECKING, Protocol

from flask import Flask, Response, current_app, g, request

from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.register.counts import add_to_count
from organs.registry.errors import Busy, TooMany
from organs.web.client_address import client_address
from organs.web.settings import WebSettings

if TYPE_CHECKING:
    from organs.web.auth import RequestUser


@dataclass(frozen=True, slots=True)
class Rate:
    """How much one client may count in a window of `seconds`, which begins with the first count in it."""

    name: str
    amount: int
    seconds: int = 60

    def key_for(self, client: str) -> str:
        """Return the key of the count of `client`."""
        return f"{self.name}/{client}"


class Counts(Protocol):
    """Counts that expire, by key. Safe for threads."""

    def add(self, key: str, seconds: int, amount: int) -> int:
        """Add `amount` to the count of `key` and return it. It starts at 0 and expires after `seconds`."""

    def count(self, key: str) -> tuple[int, float]:
        """Return the last known count of `key`, and its expiry in seconds since the epoch; 0 and now if none."""


RATES_KEY = "organ_rates"
FAILED_TOKENS = Rate("failed", 10)
"""Unknown tokens, by address and by the public id of the token."""
LOG_INS = Rate("log-in", 10)
"""Log-ins, by contributor."""
NEW_TOKENS = Rate("new-token", 30, seconds=3600)
"""New tokens, by contributor."""
PAGE_TOKENS = Rate("page-token", 30)
"""New tokens of pages, by contributor."""
WRITES = Rate("write", 600)
"""Requests with another method than those of READING_METHODS, by contributor. Lookups are among them."""
ANONYMOUS_WRITES = Rate("anonymous-write", 120)
"""The same requests without an account, such as plans and lookups, by address."""
READING = Rate("reading", 30_000)
"""Milliseconds of processor time of requests that read, without an account, by address. Cached answers do not count."""
ACCOUNT_READING = Rate("account-reading", 120_000)
"""Milliseconds of processor time of requests that read, by contributor. Cached answers do not count."""
UPLOADS = Rate("upload", 6000)
"""Requests below UPLOADS_PATH, by contributor. A model of 1,000 tensors needs 3,000 requests."""
UPLOADS_PATH = "/api/v1/uploads"
WORKING_BLUEPRINTS = frozenset({"pages", "api", "hub", "ollama", "downloads", "artifacts"})
"""Blueprints whose requests take processor time."""
READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOG_IN = "pages.log_in"
ROWS = 8192
"""Rows of the table of counts, which has 65,536 counts in 2 MiB."""

_DIGEST_BYTES = 16
_SLOT = struct.Struct(f"<{_DIGEST_BYTES}sdI4x")
"""One count: the digest of its key, the time at which it expires (seconds since the epoch), and the count."""
_COUNT_MAX = 2**32 - 1
_ROW_SLOTS = 8
_ROW_BYTES = _ROW_SLOTS * _SLOT.size


class SharedCounts:
    """Counts with an expiry, in memory that a process shares with the processes that it forks. Safe for threads.

    The table of counts has a fixed size. A key uses one of the eight slots of its row. If all eight are in use, the
    smallest count is removed. So a client with many addresses can remove other small counts, but not its own large
    counts. The row of a key depends on a secret, so that a client cannot choose it.

    Processes take turns by a lock on a file without a name. The system releases the lock if its holder is killed.
    """

    def __init__(self, rows: int = ROWS) -> None:
        self._rows = rows
        self._table = mmap(-1, rows * _ROW_BYTES)
        self._secret = secrets.token_bytes(32)
        with TemporaryFile(prefix="organ-rates-") as file:
            self._turn = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._turn)
        self._thread_turn = Lock()  # a lock on a file excludes only other processes, not other threads

    def add(self, key: str, seconds: int, amount: int) -> int:
        now, (row, digest) = time(), self._place(key)
        with self._locked():
            offset, expires, count = self._find(row, digest, now)
            if count == 0 or expires > now + seconds:  # a later expiry means that the clock was set back
                expires = now + seconds
                count = 0
            count = min(count + amount, _COUNT_MAX)
            _SLOT.pack_into(self._table, offset, digest, expires, count)
        return count

    def count(self, key: str) -> tuple[int, float]:
        now, (row, digest) = time(), self._place(key)
        with self._locked():
            _, expires, count = self._find(row, digest, now)
        return count, expires if count else now

    def _place(self, key: str) -> tuple[int, bytes]:
        """Return the offset of the row of `key`, and its digest."""
        digest = blake2b(key.encode(), digest_size=_DIGEST_BYTES, key=self._secret).digest()
        return int.from_bytes(digest[:4], "little") % self._rows * _ROW_BYTES, digest

    def _find(self, row: int, digest: bytes, now: float) -> tuple[int, float, int]:
        """Return offset, expiry and count of the slot with `digest`.

        If there is none, return the slot to use for it, with expiry and count 0.
        """
        least_offset, least_count = row, _COUNT_MAX + 1
        for index, (slot_digest, expires, count) in enumerate(_SLOT.iter_unpack(self._table[row : row + _ROW_BYTES])):
            offset = row + index * _SLOT.size
            valid_count = count if expires > now else 0
            if slot_digest == digest:
                return offset, expires, valid_count
            if valid_count < least_count:
                least_offset, least_count = offset, valid_count
        return least_offset, 0.0, 0

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._thread_turn:
            fcntl.lockf(self._turn, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._turn, fcntl.LOCK_UN)


class CommonCounts:
    """Counts in the database, which all servers of a registry share. Safe for threads.

    This machine's `own` counts have the last known values, so that a client above a rate causes no more work.
    """

    def __init__(self, catalog: Catalog, own: Counts) -> None:
        self._catalog = catalog
        self._own = own

    def add(self, key: str, seconds: int, amount: int) -> int:
        with self._catalog.counting() as session:
            count, left_seconds = add_to_count(session, key, seconds, amount)
        missing = count - self._own.count(key)[0]
        if missing > 0:
            self._own.add(key, max(1, ceil(left_seconds)), missing)
        return count

    def count(self, key: str) -> tuple[int, float]:
        return self._own.count(key)


def common_counts(catalog: Catalog, own: Counts, *, read_only: bool) -> Counts:
    """Return the counts that all servers of the registry share; `own` if there is one server, or it may not write."""
    is_alone = catalog.writer.dialect.name == "sqlite"
    return own if is_alone or read_only else CommonCounts(catalog, own)


class Rates:
    """Checks of rates. Safe for threads.

    Requests are counted in `counts`, which all servers of a registry may share. Processor time is counted in `own`,
    which the processes of one server share: each machine has its own processors.
    """

    def __init__(self, counts: Counts, own: Counts) -> None:
        self._counts, self._own = counts, own

    def hit(self, rate: Rate, client: str, cost: int = 1) -> None:
        """Add `cost` to the count of `client`. Raises TooMany if that is more than `rate` allows."""
        counts, key = self._counts, rate.key_for(client)
        if counts.count(key)[0] + cost > rate.amount or counts.add(key, rate.seconds, cost) > rate.amount:
            raise _too_many(counts.count(key)[1])

    def check(self, rate: Rate, client: str) -> None:
        """Raise TooMany if `client` has used up `rate`, a rate of processor time."""
        count, expires = self._own.count(rate.key_for(client))
        if count >= rate.amount:
            raise _too_many(expires)

    def add(self, rate: Rate, client: str, cost: int) -> None:
        """Add `cost` to the count of `client` without a check, for work that is already done."""
        self._own.add(rate.key_for(client), rate.seconds, cost)


def _too_many(expires: float) -> TooMany:
    seconds = max(1.0, expires - time())
    return TooMany(f"too many requests; try again in {seconds:.0f} seconds", seconds)


def limit_rates(app: Flask, common: Counts, own: Counts, identity: Callable[[], RequestUser]) -> None:
    """Count the writes among the requests to `app`. Refuse those above a rate with 429 before a larger body is read.

    `common` has the counts of all servers of the registry, `own` those of this server. `identity` returns the client of
    the current request (`web.auth.identity`).
    """
    app.extensions[RATES_KEY] = Rates(common, own)

    @app.before_request
    def count_write() -> None:
        if request.method in READING_METHODS or request.endpoint in (None, LOG_IN):
            return  # `web.pages.account` counts log-ins by their results
        client = identity()
        if client.account is not None:
            is_upload = request.path == UPLOADS_PATH or request.path.startswith(f"{UPLOADS_PATH}/")
            rates().hit(UPLOADS if is_upload else WRITES, str(client.account.contributor_id))
        elif not client.is_local:
            rates().hit(ANONYMOUS_WRITES, client_address())


def limit_reading(app: Flask, identity: Callable[[], RequestUser]) -> None:
    """Count the processor time of requests that read. Refuse requests of a client that has used too much with 429.

    A download is counted without the time that decodes the bytes that are sent (`web.file_responses.FileBody`), because
    large downloads are what the registry is for.

    Call it after `cache_answers`, because cached answers cost nothing.
    """

    @app.before_request
    def begin() -> None:
        g.reader = None
        if request.method in READING_METHODS and request.blueprint in WORKING_BLUEPRINTS:
            client = identity()
            if client.is_local:
                return
            if client.account is not None:
                reader = (ACCOUNT_READING, str(client.account.contributor_id))
            else:
                reader = (READING, client_address())
            rates().check(*reader)
            g.reader, g.began_work = reader, thread_time()

    @app.after_request
    def end(answer: Response) -> Response:
        if g.get("reader") is not None:
            charge_of_reader()(max(0.001, thread_time() - g.began_work))
        return answer


def charge_of_reader() -> Callable[[float], None]:
    """Return a function that counts processor time, in seconds, for the client of this request, also after its end."""
    if g.get("reader") is None:
        return lambda _seconds: None
    counted, (rate, client) = rates(), g.reader

    def charge(seconds: float) -> None:
        if milliseconds := round(1000 * seconds):
            counted.add(rate, client, milliseconds)

    return charge


def rates() -> Rates:
    """Return the rates of this application."""
    shared: Rates = current_app.extensions[RATES_KEY]
    return shared


TURNS_KEY = "organ_turns"
WITH_TURN = frozenset({"pages", "api"})
"""Blueprints whose requests take a turn."""
WITHOUT_TURN = frozenset(
    {
        *("pages.reports", "pages.reports_markdown"),
        *("pages.report", "pages.report_csv", "pages.types_chart", "pages.scale_chart"),
        *("api.report", "api.report_section"),
        *("api.receive_chunk", "api.finish_upload", "api.submit_model", "api.evolve"),
    }
)
"""Endpoints of these blueprints that take no turn before their view runs. A report is computed once for all requests
that wait for it, and these must not wait while they hold a turn. Bodies of uploads and submissions arrive as slowly as
clients send them, and have their own limit (`web.api.uploads`). A submission takes its turn when its body
has arrived (`take_turn`)."""
PATIENCE_SECONDS = 0.25
"""Time that a request waits for the first turn before it tries to take one of the second turns."""
SECOND_TURNS = 2
"""Requests that may compute at the same time as a request that takes longer than PATIENCE_SECONDS."""


class Turns:
    """Turns of the requests of a process: one request computes at a time, and a few more if that request takes long.

    Safe for threads. The reason: A page is processor work, and Python runs one thread at a time. Sixteen threads do not
    finish earlier than one, and lose a quarter of the time by switching.
    """

    def __init__(self, seconds: float, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._seconds = seconds
        self._patience = patience_seconds
        self._first = BoundedSemaphore(1)
        self._second = BoundedSemaphore(SECOND_TURNS)

    def take(self) -> BoundedSemaphore:
        """Wait for a turn and return the semaphore that the caller must release.

        Raises Busy if no turn becomes free in time.
        """
        if self._first.acquire(timeout=self._patience):
            return self._first
        if self._second.acquire(timeout=self._seconds):
            return self._second
        raise Busy("the server is answering too many other requests; try again in a few seconds")


def take_turns(app: Flask, settings: WebSettings) -> None:
    """Make requests of `app` take turns. A request that waits too long is answered with 503."""
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
    """Take a turn for the current request, which keeps it until its end. Raises Busy."""
    turns: Turns = current_app.extensions[TURNS_KEY]
    g.turn = turns.take()
