"""Slow and hostile clients beside honest ones: `make slow-crowds`.

A real `organ serve` with two processes and default settings serves 500 hostile connections of one kind at a time while
50 honest users read pages and JSON, download complete files and send small bodies. Each kind runs twice: all hostile
connections from one address, then each from its own address (all of 127.0.0.0/8 is this machine). Honest users have
other addresses. It passes when, for every kind,

- the 99th percentile of the honest pages and JSON stays below PAGE_SECONDS,
- no honest request is answered with 5xx or 429, or closed without an answer,
- `/healthz` always answers within HEALTH_SECONDS.

The same users without any hostile connection run first and last: the baseline of the machine as it is now.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.local import LocalRegistry
from tests.faults.hostile.harness import Arena, Case, Options, Suite
from tests.gguf_files import file_bytes
from tests.small_models import block_metadata, ingest_file, weight_tensor
from tests.web.live_server import LiveServer

HOSTILE = 500
HONEST = 50
WORKERS = 2
RAMP_SECONDS = 3.0
"""Seconds in which the hostile connections begin; honest requests of this time count too."""
RECONNECT_SECONDS = 1.0
DRIP_SECONDS, DRIP_BYTES = 1.0, 2
CHURN_RATE = 400.0
"""Connections per second that are opened and reset, all together."""
WARM_SECONDS = 5.0
"""Seconds before the measurement: a new process first reads its programs and templates."""
THINK_SECONDS = 1.0
"""The average seconds between two requests of an honest user."""
ANSWER_SECONDS = 30.0
PAGE_SECONDS = 1.0
HEALTH_SECONDS = 1.0
LARGE_BYTES = 24 * 1024 * 1024
SMALL_BYTES = 2 * 1024 * 1024
UPLOAD_BYTES = 8 * 1024 * 1024
SUBMISSION_BYTES = 8_000_000
BEGUN_BYTES = 66_000
"""The bytes of a large body that make the server assign a thread."""
LARGE, SMALL = "/models/local/large.gguf", "/models/local/small.gguf"
READ_BYTES = 1024
RECEIVE_BUFFER_BYTES = 4096


# The registry that is served


def fill(home: Path) -> None:
    """Make a registry with a large file to download, a small one, and long lists."""
    home.parent.mkdir(parents=True, exist_ok=True)
    numbers = np.random.default_rng(1)
    large = numbers.integers(-90, 90, LARGE_BYTES, dtype=np.int8).tobytes()
    tensors = [(TensorSpec("blk.0.ffn_up.weight", (LARGE_BYTES,), dtype_by_name("I8")), large)]
    small = [weight_tensor(f"blk.{block}.attn_q.weight", (64, 64), seed=block) for block in range(200)]
    small.append(weight_tensor("token_embd.weight", (256, SMALL_BYTES // 512)))
    with LocalRegistry.open(home) as registry:
        for name, content in (("large", tensors), ("small", small)):
            path = home.parent / f"{name}.gguf"
            path.write_bytes(file_bytes(block_metadata(name, 200), content))
            ingest_file(registry, path)


# The parts of HTTP that the users need


@dataclass(slots=True)
class Answer:
    """A complete answer."""

    status: int
    body_bytes: int
    closes: bool


class Closed(Exception):
    """The server closed the connection before the end of the answer; `begun` says whether any byte was received."""

    def __init__(self, begun: bool) -> None:
        super().__init__("closed")
        self.begun = begun


class Connection:
    """A connection of an honest user."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, address: str) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0)))

    async def ask(self, request: bytes) -> Answer:
        """Send a request and read its answer. Raises Closed."""
        begun = False
        try:
            self._writer.write(request)
            head = await self._reader.readuntil(b"\r\n\r\n")
            begun = True
            lines = head.lower().split(b"\r\n")
            fields = dict(line.split(b": ", 1) for line in lines[1:] if b": " in line)
            size = int(fields.get(b"content-length", b"0"))
            left = size
            while left:
                data = await self._reader.read(min(left, 1 << 18))
                if not data:
                    raise Closed(True)
                left -= len(data)
            return Answer(int(lines[0].split()[1]), size, fields.get(b"connection") == b"close")
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Closed(begun or bool(getattr(error, "partial", b""))) from error

    def close(self) -> None:
        self._writer.close()


def request_bytes(method: str, path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    """Return a complete request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    if method != "GET":
        head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


# Honest users


@dataclass(slots=True)
class Results:
    """The results of honest users in one run."""

    page_seconds: list[float] = field(default_factory=list)
    download_seconds: list[float] = field(default_factory=list)
    post_seconds: list[float] = field(default_factory=list)
    health_seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    closed: int = 0
    """Connections that were closed without an answer, or during one."""
    refused_health: int = 0

    @property
    def refused(self) -> int:
        """Return the answers that an honest user should not get."""
        return sum(count for status, count in self.statuses.items() if status >= 500 or status == 429)

    def faults(self) -> list[str]:
        """Return the faults."""
        sentences = []
        if percentile(self.page_seconds, 0.99) >= PAGE_SECONDS:
            sentences.append(f"p99 of pages {percentile(self.page_seconds, 0.99):.2f} s")
        if self.refused:
            sentences.append(f"{self.refused} refused: {dict(self.statuses)}")
        if self.closed:
            sentences.append(f"{self.closed} closed without an answer")
        if self.refused_health or max(self.health_seconds, default=ANSWER_SECONDS) >= HEALTH_SECONDS:
            sentences.append(f"health {max(self.health_seconds, default=ANSWER_SECONDS):.2f} s")
        return sentences


def percentile(values: list[float], share: float) -> float:
    """Return the value below which that share of `values` is; ANSWER_SECONDS if there are none."""
    ordered = sorted(values) or [ANSWER_SECONDS]
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


_numbers = count()
"""Numbers of users: each has another address in each run, so that rate limits do not carry over to the next run."""


class User:
    """An honest user with its own address."""

    def __init__(self, number: int, port: int, results: Results) -> None:
        self._address = f"127.1.{next(_numbers) // HONEST}.{number + 1}"
        self._port = port
        self._results = results
        self._random = random.Random(number)
        self._connection: Connection | None = None

    async def work(self, until: float) -> None:
        """Send one request after another until the time `until`."""
        try:
            await asyncio.sleep(self._random.random() * THINK_SECONDS)
            while time.monotonic() < until:
                seconds, request = self._choose()
                began = time.monotonic()
                await self._send(request)
                seconds.append(time.monotonic() - began)
                await asyncio.sleep(self._random.random() * 2 * THINK_SECONDS)
        finally:
            self._drop()

    def _choose(self) -> tuple[list[float], bytes]:
        results, draw, number = self._results, self._random.random(), self._random.randrange(40)
        if draw < 0.45:
            path = self._random.choice(("/", "/organs", "/models", f"/organs?q=type:organ+theta%3E%3D{number}"))
            return results.page_seconds, request_bytes("GET", path)
        if draw < 0.8:
            search = f"/api/v1/organs?q=block:{number}"
            path = self._random.choice(("/api/v1/organs?limit=20", search, "/api/v1/models"))
            return results.page_seconds, request_bytes("GET", path)
        if draw < 0.87:
            form = request_bytes("POST", "/login", b"token=orgp_none", "application/x-www-form-urlencoded")
            return results.post_seconds, form
        if draw < 0.93:
            lookup = b'{"digests": ["' + b"0" * 64 + b'"]}'
            return results.post_seconds, request_bytes("POST", "/api/v1/uploads/lookup", lookup)
        return results.download_seconds, request_bytes("GET", SMALL)

    async def _send(self, request: bytes) -> None:
        """Send `request`; if the server had closed the idle connection, send it once more on a new one."""
        results, is_fresh = self._results, self._connection is None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if self._connection is None:
                    self._connection = await Connection.open(self._port, self._address)
                answer = await self._connection.ask(request)
        except (Closed, OSError) as error:
            self._drop()
            if is_fresh or getattr(error, "begun", False) or isinstance(error, TimeoutError):
                results.closed += 1
            else:
                await self._send(request)
            return
        results.statuses[answer.status] += 1
        if answer.closes or self._random.random() < 0.3:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


async def watch_health(port: int, results: Results, until: float) -> None:
    """Ask for `/healthz` twice a second, each time on a new connection."""
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                connection = await Connection.open(port, "127.2.0.1")
                answer = await connection.ask(request_bytes("GET", "/healthz"))
                connection.close()
            results.refused_health += answer.status != 200
        except (Closed, OSError):
            results.refused_health += 1
        results.health_seconds.append(time.monotonic() - began)
        await asyncio.sleep(0.5)


# Hostile clients

Attack = Callable[[socket.socket, asyncio.AbstractEventLoop], Awaitable[None]]
"""Actions on a connection, until the server closes it."""


def dripping(beginning: bytes) -> Attack:
    """Return an attack that sends `beginning` immediately, then two bytes a second."""

    async def attack(client: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        await loop.sock_sendall(client, beginning)
        while True:
            await asyncio.sleep(DRIP_SECONDS)
            await loop.sock_sendall(client, b"a" * DRIP_BYTES)
            with suppress(BlockingIOError):
                client.recv(4096)
                return  # the server closed the connection, or refused

    return attack


def reading_slowly(path: str) -> Attack:
    """Ask for `path` and read a kilobyte a second of the answer."""

    async def attack(client: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        await loop.sock_sendall(client, request_bytes("GET", path))
        while await loop.sock_recv(client, READ_BYTES):
            await asyncio.sleep(1.0)

    return attack


async def staying_idle(client: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
    """Ask for a page, then keep the connection."""
    await loop.sock_sendall(client, request_bytes("GET", "/api/v1/models"))
    while await loop.sock_recv(client, 1 << 16):
        pass


async def saying_nothing(client: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
    """Keep the connection and send nothing."""
    while await loop.sock_recv(client, 4096):
        pass


def post_head(path: str, size: int, kind: str, method: str = "POST", more: str = "") -> bytes:
    """Return the head of a request whose body never arrives completely."""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n{more}\r\n"
    ).encode()


async def begin_upload(port: int) -> str:
    """Open an upload and return its id; it waits for its first chunk."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"kind": "file", "size_bytes": %d}' % UPLOAD_BYTES
    head = post_head("/api/v1/uploads", len(body), "application/json", more="Connection: close\r\n")
    writer.write(head + body)
    answer = await reader.read()
    writer.close()
    return answer.partition(b'"id":"')[2].partition(b'"')[0].decode()


async def attacks(port: int) -> dict[str, Attack | None]:
    """Return the kinds of hostile clients by name; None for those that connect and reset."""
    form = "application/x-www-form-urlencoded"
    upload = await begin_upload(port)
    assert upload, "the server does not let this machine upload"
    chunk = f"Content-Range: bytes 0-{UPLOAD_BYTES - 1}/{UPLOAD_BYTES}\r\n"
    path = f"/api/v1/uploads/{upload}"
    return {
        "slow header": dripping(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "),
        "slow form": dripping(post_head("/logout", 2000, form)),
        "slow hub body": dripping(post_head("/api/models/local/small/paths-info/main", 2000, form)),
        "slow upload": dripping(post_head(path, UPLOAD_BYTES, "application/octet-stream", "PATCH", chunk)),
        "slow submission": dripping(
            post_head("/api/v1/models/local/slow", SUBMISSION_BYTES, "application/json", "PUT") + b" " * BEGUN_BYTES
        ),
        "slow download": reading_slowly(LARGE),
        "slow page reader": reading_slowly("/api/v1/organs?limit=500"),
        "idle": staying_idle,
        "silent": saying_nothing,
        "connect and reset": None,
    }


class Crowd:
    """The hostile connections of one kind."""

    def __init__(self, port: int, attack: Attack | None, *, one_address: bool) -> None:
        self._port = port
        self._attack = attack
        self._one_address = one_address
        self.connections = 0
        """The number of opened connections."""

    async def run(self) -> None:
        """Keep HOSTILE connections busy until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(HOSTILE):
                group.create_task(self._keep(number))

    async def _keep(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(RAMP_SECONDS * number / HOSTILE)
        while True:
            with suppress(OSError):
                await self._connect(number, loop)
            await asyncio.sleep(RECONNECT_SECONDS if self._attack else HOSTILE / CHURN_RATE)

    async def _connect(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        with socket.socket() as client:
            client.setblocking(False)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            client.setsockopt(socket.IPPROTO_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
            client.bind(("127.9.9.9" if self._one_address else f"127.10.{number // 250}.{number % 250 + 1}", 0))
            await loop.sock_connect(client, ("127.0.0.1", self._port))
            self.connections += 1
            if self._attack is not None:
                await self._attack(client, loop)
            else:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if number % 2:
                    await loop.sock_sendall(client, request_bytes("GET", "/models"))


# The runs


def run(name: str, arena: Arena, live: LiveServer, seconds: float, crowd: Crowd | None = None) -> str:
    """Let the honest users work beside a crowd."""
    results = Results()

    async def work() -> None:
        until = time.monotonic() + seconds + (RAMP_SECONDS if crowd else 0)
        hostile = None if crowd is None else asyncio.ensure_future(crowd.run())
        users = [User(number, live.port, results).work(until) for number in range(HONEST)]
        await asyncio.gather(*users, watch_health(live.port, results, until))
        if hostile is not None:
            hostile.cancel()

    asyncio.run(work())
    time.sleep(1.0)
    times = {
        "median of pages": percentile(results.page_seconds, 0.5),
        "pages": percentile(results.page_seconds, 0.99),
        "forms": percentile(results.post_seconds, 0.99),
        "downloads": percentile(results.download_seconds, 0.99),
        "health": max(results.health_seconds),
    }
    figures = ", ".join(f"{what} {1000 * slowest:.0f} ms" for what, slowest in times.items())
    arena.report.figures.append(f"{name}: {figures}; {crowd.connections if crowd else 0} hostile connections")
    faults = results.faults()
    assert not faults, "; ".join(faults)
    return "in time"


@contextmanager
def opened(arena: Arena, options: Options) -> Iterator[list[Case]]:
    """Serve a filled registry to each kind of crowd."""
    fill(arena.home)
    live = arena.serve("--workers", str(WORKERS), watch_seconds=2.0)
    asyncio.run(warm(live))
    baseline = Case("without a crowd", "baseline", partial(run, "baseline", arena, live, options.seconds))
    crowds = [
        Case(
            kind, where, partial(run, name, arena, live, options.seconds, Crowd(live.port, attack, one_address=is_one))
        )
        for kind, attack in asyncio.run(attacks(live.port)).items()
        for where, is_one in (("one address", True), ("many addresses", False))
        if options.only in (name := f"{kind}, {where}")
    ]
    yield [baseline, *crowds, baseline]


async def warm(live: LiveServer) -> None:
    """Send the first requests of each process, which reads its programs and templates."""
    until = time.monotonic() + WARM_SECONDS
    await asyncio.gather(*(User(number, live.port, Results()).work(until) for number in range(HONEST)))


SUITE = Suite(opened, {"seconds": 10.0, "only": ""})
"""`seconds` is the time of each run after its beginning; `only` chooses the runs with this in their names."""
