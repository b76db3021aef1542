"""An HTTP load generator with a steady rate of requests. The time of a request counts from when it was scheduled.

It does not wait for slow answers (an open loop). It is one process, HTTP/1.1 with kept-alive connections, and does only
what this needs, because the tool and the server share the machine.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

CONNECTIONS_MAX = 64
WAITING_MAX = 4000
"""The limit of due requests without an answer; more are refused, and count as errors."""
ANSWER_SECONDS_MAX = 30.0


@dataclass(slots=True)
class Outcome:
    """The results of a run."""

    seconds: float = 0.0
    milliseconds: list[tuple[float, float]] = field(default_factory=list)
    """For each answer: its scheduled time, in seconds from the beginning, and its duration from then on."""
    statuses: Counter[int] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    remembered: int = 0
    bytes: int = 0
    addresses: set[str] = field(default_factory=set)
    processor_seconds: float = 0.0
    """Processor seconds of this tool."""

    @property
    def failed(self) -> int:
        """Return the number of answers other than 200, and of requests without an answer."""
        return sum(self.errors.values()) + sum(count for status, count in self.statuses.items() if status != 200)


@dataclass(slots=True)
class _Asked:
    address: str
    due: float
    again: bool = False


class _Connection(asyncio.Protocol):
    """A connection with one request at a time; it reports the answer to the run."""

    def __init__(self, run: _Run) -> None:
        self.run = run
        self.transport: asyncio.Transport | None = None
        self.asked: _Asked | None = None
        self._received = bytearray()
        self._end = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def ask(self, asked: _Asked) -> None:
        assert self.transport is not None
        self.asked, self._end = asked, 0
        self._received.clear()
        self.transport.write(b"GET %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (asked.address.encode(), self.run.host))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._end:
            head_end = self._received.find(b"\r\n\r\n")
            if head_end < 0:
                return
            self._end = head_end + 4 + _length(bytes(self._received[:head_end]).lower())
        if len(self._received) >= self._end and self.asked is not None:
            asked, self.asked = self.asked, None
            self.run.answered(self, asked, bytes(self._received[:1000]), self._end)

    def connection_lost(self, error: Exception | None) -> None:
        asked, self.asked = self.asked, None
        self.run.lost(self, asked, begun=bool(self._received))


class _Run:
    def __init__(self, port: int, outcome: Outcome) -> None:
        self.port, self.host = port, f"127.0.0.1:{port}".encode()
        self.outcome = outcome
        self.begun = time.perf_counter()
        self.waiting: deque[_Asked] = deque()
        self.idle: list[_Connection] = []
        self.connections = 0
        self.under_way = 0

    def due(self, address: str, due: float) -> None:
        self.outcome.addresses.add(address)
        if self.under_way >= WAITING_MAX:
            self.outcome.errors["not asked: too many wait"] += 1
            return
        self.under_way += 1
        self.waiting.append(_Asked(address, due))
        self.go_on()

    def go_on(self) -> None:
        while self.waiting and self.idle:
            self.idle.pop().ask(self.waiting.popleft())
        if self.waiting and self.connections < CONNECTIONS_MAX:
            self.connections += 1
            asyncio.ensure_future(self._connect())  # noqa: RUF006  # the run outlives it

    async def _connect(self) -> None:
        try:
            loop = asyncio.get_running_loop()
            _, made = await loop.create_connection(lambda: _Connection(self), "127.0.0.1", self.port)
        except OSError as error:
            self.connections -= 1
            self.outcome.errors[f"no connection: {error.strerror}"] += 1
            return
        self.idle.append(made)
        self.go_on()

    def answered(self, connection: _Connection, asked: _Asked, head: bytes, size_bytes: int) -> None:
        outcome, now = self.outcome, time.perf_counter()
        self.under_way -= 1
        outcome.statuses[int(head[9:12])] += 1
        outcome.remembered += b"x-answered: memory" in head.lower()
        outcome.bytes += size_bytes
        outcome.milliseconds.append((asked.due - self.begun, 1000 * (now - asked.due)))
        if b"connection: close" in head.lower() and connection.transport is not None:
            connection.transport.close()
        else:
            self.idle.append(connection)
            self.go_on()

    def lost(self, connection: _Connection, asked: _Asked | None, begun: bool) -> None:
        self.connections -= 1
        if connection in self.idle:
            self.idle.remove(connection)
        if asked is not None and not begun and not asked.again:  # the server closed it just when it was used again
            asked.again = True
            self.waiting.appendleft(asked)
        elif asked is not None:
            self.under_way -= 1
            self.outcome.errors["the connection was cut"] += 1
        self.go_on()


def drive(port: int, addresses: Iterator[str], rate: float, seconds: float) -> Outcome:
    """Request the next of `addresses` `rate` times a second, for `seconds`; wait for the last answers."""
    outcome = Outcome()
    begun = time.process_time()
    asyncio.run(_drive(_Run(port, outcome), addresses, rate, seconds))
    outcome.processor_seconds = time.process_time() - begun
    return outcome


async def _drive(run: _Run, addresses: Iterator[str], rate: float, seconds: float) -> None:
    run.begun = time.perf_counter()
    for number in range(int(rate * seconds)):
        due = run.begun + number / rate
        while (left := due - time.perf_counter()) > 0:
            await asyncio.sleep(left)
        run.due(next(addresses), due)
        if number % 20 == 0:
            await asyncio.sleep(0)  # late: answers are read nevertheless
    patience = time.perf_counter() + ANSWER_SECONDS_MAX
    while run.under_way and time.perf_counter() < patience:
        await asyncio.sleep(0.01)
    run.outcome.seconds = time.perf_counter() - run.begun
    run.outcome.errors["no answer"] += run.under_way
    for connection in run.idle:
        if connection.transport is not None:
            connection.transport.close()


def _length(head: bytes) -> int:
    """Return the `content-length`, which every requested answer has."""
    begin = head.find(b"\r\ncontent-length:")
    return int(head[begin + 17 :].split(b"\r\n", 1)[0]) if begin >= 0 else 0
