"""The worker process of a server: a gunicorn worker with its own event loop.

The loop accepts connections and does everything that waits for a client (`web.server.connection`). Threads only
compute: `threads` of them answer requests, a few produce the pieces of downloads, and one answers `/healthz`, so that
health checks work while all others are busy. Each address has limits for its requests, downloads and connections
(`web.server.scheduling`).

This module uses gunicorn's class for custom workers, `gunicorn.workers.base.Worker`: its attributes `alive`, `app`,
`cfg`, `log`, `ppid`, `sockets`, `wsgi` and SIGNALS, and its methods `notify`, `run`, `init_signals`, `handle_usr1` and
`handle_abort`. A test checks that they exist.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import resource
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Any

from gunicorn.workers.base import Worker

from organs.web.logs import FIELDS
from organs.web.server.connection import (
    TOO_MANY_CONNECTIONS,
    TOO_MANY_OF_ADDRESS,
    Exchange,
    HttpConnection,
    HttpRefusal,
)
from organs.web.server.gateway import Answer, call
from organs.web.server.scheduling import AddressLimit, DownloadPlaces, FairQueue
from organs.web.settings import ServerSettings

QUIT_SIGNALS = (signal.SIGINT, signal.SIGQUIT)
"""Signals that end a worker at once. After Ctrl-C, a worker gets both: one from the terminal, one from gunicorn."""
RECEIVE_BYTES = 256 * 1024
ACCEPT_BATCH = 8
"""Connections that a process accepts before it serves the open ones. Other processes accept from the same socket."""
ACCEPT_AGAIN_SECONDS = 1.0
"""Pause before connections are accepted again after an error, for example too many open files."""
SWEEP_SECONDS = 0.5
TICK_SECONDS = 0.1
"""Interval of the check whether parked downloads must give their places to waiting downloads."""
UNSENT_BYTES = 256 * 1024
"""Bytes of an answer that the kernel buffers and has not sent yet. More would only fill memory for slow clients."""
CONNECTIONS_MAX = 1024
FILES_WANTED = 8192
FILES_RESERVED = 256
"""Open files that are not connections: files of the database, of downloads and of logs."""
CONNECTIONS_OF_ADDRESS = 64
REQUESTS_OF_ADDRESS = 48
WRITES_OF_ADDRESS = 16
"""Maximum of requests in progress with a method that may have a body (UNSAFE_METHODS)."""
DOWNLOADS_OF_ADDRESS = 24
"""Download managers open at most 16 connections, and all of them may reach the same process."""
BODIES_MAX_BYTES = 64 * 1024 * 1024
"""Maximum size of all bodies together that are being received."""
UNSENT_MAX_BYTES = 64 * 1024 * 1024
"""Maximum size of all answers together that wait in memory until their clients read. Above it, the connections of the
slowest clients are closed."""
UNSENT_OF_ADDRESS_BYTES = 16 * 1024 * 1024
"""The same for one address. Above it, the address gets no answer that is larger than WRITE_BYTES."""
UNREAD_SECONDS = 1.0
"""Time without reading after which a connection may be closed when UNSENT_MAX_BYTES are exceeded."""
DOWNLOAD_PLACES = 8
"""Maximum of downloads that hold buffers: two chunks of 4 MiB for each download."""
SLOW_PLACES = 1
STREAM_THREADS = 4
LINGERING_MAX = 256
REFUSED_MAX = 64
"""Maximum of refused downloads that are remembered for an address while it has its maximum of downloads."""
PATH_MAX = 1000
"""Maximum number of characters of a path in the log."""
REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}", re.ASCII)
"""Values of `X-Request-ID` that the log has. A proxy sets this header; other values are left out."""

requests_log = logging.getLogger("organs.requests")
"""The log of requests. Its records have the level INFO."""


class EventLoopWorker(Worker):  # type: ignore[misc]  # gunicorn has no types
    """A worker that serves the application `app.wsgi()` with the settings `app.limits`."""

    def init_signals(self) -> None:
        """Restore the default handlers of signals, but exit at QUIT_SIGNALS; `run` sets handlers in the event loop."""
        for number in self.SIGNALS:
            signal.signal(number, self.handle_quit if number in QUIT_SIGNALS else signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, self.handle_usr1)
        signal.signal(signal.SIGABRT, self.handle_abort)

    def run(self) -> None:
        """Serve until SIGTERM. Requests in progress then have `graceful_timeout` seconds to end."""
        with suppress(asyncio.CancelledError):
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop)
        loop.add_signal_handler(signal.SIGWINCH, lambda: None)
        for number in QUIT_SIGNALS:
            loop.add_signal_handler(number, self._quit, loop, asyncio.current_task())
        service = WorkerService(loop, self.wsgi, self.app.limits, self.app.proxies, self.log)
        service.listen(self.sockets)
        try:
            while self.alive:
                self.notify()
                if self.ppid != os.getppid():
                    break
                await service.look_after(SWEEP_SECONDS)
            service.stop()
            until = time.monotonic() + self.cfg.graceful_timeout
            while service.connections and time.monotonic() < until:
                self.notify()
                await service.look_after(SWEEP_SECONDS / 5)
        finally:
            service.end()

    def _stop(self) -> None:
        self.alive = False

    def _quit(self, loop: asyncio.AbstractEventLoop, serving: asyncio.Task[Any] | None) -> None:
        for number in QUIT_SIGNALS:  # the default action of the second signal would kill the process
            loop.remove_signal_handler(number)  # otherwise the loop restores the default action when it is closed
            signal.signal(number, signal.SIG_IGN)
        if serving is not None:
            serving.cancel()


class WorkerService:
    """Threads, limits and the application, shared by the connections of a worker.

    Only the event loop calls its public methods, except `call_soon`.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, application: Any, settings: ServerSettings, proxies: int, log: Any
    ) -> None:
        self.settings = settings
        self.proxies = proxies
        self.log = log
        self.buffer = bytearray(RECEIVE_BYTES)
        """Received bytes. All connections share it, so its bytes are used before the next bytes are received."""
        self.connections: set[HttpConnection] = set()
        self.is_stopping = False
        self.has_ended = False
        self.places = DownloadPlaces(DOWNLOAD_PLACES, SLOW_PLACES, time.monotonic)
        self._loop = loop
        self._application = application
        self._listeners: list[Any] = []
        self._opening: set[asyncio.Task[Any]] = set()
        self._connections_max = connections_max()
        if self._connections_max < CONNECTIONS_OF_ADDRESS:
            log.warning("only %d connections: raise the limit of open files (ulimit -n)", self._connections_max)
        self._waiting: OrderedDict[HttpConnection, None] = OrderedDict()
        """Connections without a request; the connection that waits longest is first."""
        self._waiting_of: dict[str, OrderedDict[HttpConnection, None]] = {}
        """The same connections by address."""
        self._lingering = 0
        self._held_bytes = 0
        self._unsent_bytes = 0
        self._unsent_of = AddressLimit(UNSENT_OF_ADDRESS_BYTES)
        self._connections_of = AddressLimit(CONNECTIONS_OF_ADDRESS)
        self._requests_of = AddressLimit(REQUESTS_OF_ADDRESS)
        self._writes_of = AddressLimit(WRITES_OF_ADDRESS)
        self._downloads_of = AddressLimit(DOWNLOADS_OF_ADDRESS)
        self._queue = FairQueue(settings.threads)
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="request")
        self._stream_threads = ThreadPoolExecutor(STREAM_THREADS, thread_name_prefix="download")
        self._health_thread = ThreadPoolExecutor(1, thread_name_prefix="health")
        self._refused_downloads: dict[str, dict[tuple[str, str], int]] = {}
        """Statuses of downloads that were refused because their address has too many, by address and by `_resource`."""
        self._date = (0, "")
        if settings.logs_requests:
            requests_log.setLevel(logging.INFO)

    def clock(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()

    def date(self) -> str:
        """Return the time for the header `Date`."""
        now = int(time.time())
        if now != self._date[0]:
            self._date = (now, formatdate(now, usegmt=True))
        return self._date[1]

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call `function` in the event loop. For other threads."""
        with suppress(RuntimeError):  # raised after the end of the loop
            self._loop.call_soon_threadsafe(function)

    # Connections

    def listen(self, listeners: Any) -> None:
        """Accept connections."""
        self._listeners = list(listeners)
        for listener in self._listeners:
            listener.setblocking(False)
            self._watch(listener)

    def _watch(self, listener: Any) -> None:
        if not self.is_stopping:
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: Any) -> None:
        for _ in range(ACCEPT_BATCH):
            try:
                client, peer = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self.log.warning("no connection can be accepted: %s", error)
                self._loop.remove_reader(listener.fileno())
                self._loop.call_later(ACCEPT_AGAIN_SECONDS, self._watch, listener)
                return
            client.setblocking(False)
            with suppress(OSError):
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client.setsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_NOTSENT_LOWAT", 25), UNSENT_BYTES)
            server = listener.getsockname()
            factory = partial(HttpConnection, self, peer[:2], server[:2])
            task = self._loop.create_task(self._open(factory, client))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, factory: Callable[[], HttpConnection], client: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(factory, client)
        except OSError:
            client.close()  # the client has disconnected already

    def opened(self, connection: HttpConnection) -> None:
        """Count an accepted connection. If there are too many, close one that is idle, or refuse this one."""
        self.connections.add(connection)
        address = connection.peer_address
        has_room = bool(self.proxies)  # the connections of a proxy are those of all clients, so it has no limit
        if not has_room:
            has_room = connection.is_counted = self._connections_of.take(address) or (
                self._make_room(self._waiting_of.get(address)) and self._connections_of.take(address)
            )
        if len(self.connections) - self._lingering > self._connections_max:
            seconds = self.settings.send_seconds / 10
            has_room = has_room and (self._make_room(self._waiting) or self._cut_slowest(self.connections, seconds))
        self.idle(connection)
        if not has_room:
            connection.refuse(TOO_MANY_CONNECTIONS)

    def _make_room(self, waiting: OrderedDict[HttpConnection, None] | None) -> bool:
        """Close the connection that has waited longest for its request; return False if there is none."""
        if not waiting:
            return False
        next(iter(waiting)).make_room()
        return True

    def _cut_slowest(self, connections: Iterable[HttpConnection], seconds: float) -> bool:
        """Close the connection that was not read for the longest time, at least `seconds`; return False if none."""
        now = self.clock()
        slow = [
            (connection.parked_since, connection) for connection in connections if connection.parked_since is not None
        ]
        since, slowest = min(slow, key=lambda pair: pair[0], default=(now, None))
        if slowest is None or now - since < seconds:
            return False
        slowest.abort()
        return True

    def leaving(self, connection: HttpConnection) -> None:
        """Stop counting a connection that is about to close."""
        self.busy(connection)
        if connection.is_counted:
            connection.is_counted = False
            self._connections_of.release(connection.peer_address)

    def closed(self, connection: HttpConnection) -> None:
        """Forget a connection that has ended."""
        self.leaving(connection)
        self.connections.discard(connection)
        if connection.is_lingering:
            self._lingering -= 1

    def busy(self, connection: HttpConnection) -> None:
        """Note that a request has arrived on the connection."""
        self._waiting.pop(connection, None)
        waiting = self._waiting_of.get(connection.peer_address)
        if waiting is not None:
            waiting.pop(connection, None)
            if not waiting:
                del self._waiting_of[connection.peer_address]

    def idle(self, connection: HttpConnection) -> None:
        """Note that the connection has no request."""
        self._waiting[connection] = None
        self._waiting_of.setdefault(connection.peer_address, OrderedDict())[connection] = None

    def may_linger(self) -> bool:
        """Return whether one more connection may stay until its client has read the answer."""
        if self._lingering >= LINGERING_MAX:
            return False
        self._lingering += 1
        return True

    # Requests

    def admit(self, exchange: Exchange) -> HttpRefusal | None:
        """Count a request and return None, or return the refusal."""
        if exchange.is_health:
            return None
        status = self._refused_downloads.get(exchange.address, {}).get(_resource(exchange))
        if status is not None:
            return HttpRefusal(status, TOO_MANY_OF_ADDRESS.sentence)
        if not self._requests_of.take(exchange.address):
            return TOO_MANY_OF_ADDRESS
        if exchange.is_write and not self._writes_of.take(exchange.address):
            self._requests_of.release(exchange.address)
            return TOO_MANY_OF_ADDRESS
        exchange.is_counted = True
        return None

    def admit_download(self, exchange: Exchange) -> bool:
        """Count an answer that is sent piece by piece; return False if its address has too many."""
        exchange.is_download = self._downloads_of.take(exchange.address)
        return exchange.is_download

    def hold(self, size: int) -> bool:
        """Count bytes of a body; return False if all bodies together are too large."""
        self._held_bytes += size
        return self._held_bytes <= BODIES_MAX_BYTES

    def has_room_unsent(self, address: str) -> bool:
        """Return whether one more answer to `address` may wait in memory until its client reads.

        If all waiting answers together are too large, close the connections that have not read for the longest time.
        """
        return self._unsent_of.has_room(address) and self._free_unsent()

    def hold_unsent(self, exchange: Exchange, size: int) -> None:
        """Count bytes of an answer that wait until the client reads."""
        exchange.unsent_bytes += size
        self._unsent_bytes += size
        self._unsent_of.add(exchange.address, size)
        self._free_unsent()

    def release_unsent(self, exchange: Exchange) -> None:
        """Stop counting the waiting bytes of an answer, because they were written or the connection ends."""
        size, exchange.unsent_bytes = exchange.unsent_bytes, 0
        if size:
            self._unsent_bytes -= size
            self._unsent_of.release(exchange.address, size)

    def _free_unsent(self) -> bool:
        """Close connections whose clients do not read until the waiting answers are small enough.

        Return False if they are too large but no client is slow.
        """
        while self._unsent_bytes >= UNSENT_MAX_BYTES:
            if not self._cut_slowest(
                (connection for connection in self.connections if connection.has_unsent), UNREAD_SECONDS
            ):
                return False
        return True

    def release(self, exchange: Exchange) -> None:
        """Stop counting a request that has ended, and record it."""
        if self.settings.logs_requests and exchange.is_recorded:
            record_request(exchange, self.clock())
        self._held_bytes -= exchange.held_bytes
        if exchange.is_counted:
            self._requests_of.release(exchange.address)
            if exchange.is_write:
                self._writes_of.release(exchange.address)
        self.release_unsent(exchange)
        if exchange.is_download:
            exchange.is_download = False
            self._downloads_of.release(exchange.address)
            self._refused_downloads.pop(exchange.address, None)

    def start(self, exchange: Exchange) -> None:
        """Let a thread answer a request; addresses take turns."""
        if exchange.is_health:
            self._submit(self._health_thread, self._answer, exchange, exchange.answered)
        else:
            self._queue.add(exchange.address, partial(self._begin, exchange))

    def _begin(self, exchange: Exchange) -> None:
        if exchange.has_ended:  # the client has disconnected
            self._loop.call_soon(self._queue.finished)
        else:
            exchange.request.may_download = exchange.is_download or self._downloads_of.has_room(exchange.address)
            self._submit(self._threads, self._answer, exchange, partial(self._finish, exchange))

    def _finish(self, exchange: Exchange, answer: Answer | None) -> None:
        self._queue.finished()
        if answer is not None and answer.refuses_download and not self._downloads_of.has_room(exchange.address):
            # The same request needs no thread until one of the downloads of its address has ended.
            refused = self._refused_downloads.setdefault(exchange.address, {})
            if len(refused) >= REFUSED_MAX:
                refused.clear()
            refused[_resource(exchange)] = int(answer.status[:3])
        exchange.answered(answer)

    def _answer(self, exchange: Exchange, then: Callable[[Answer | None], None]) -> None:
        """Call the application. Runs in a thread."""
        answer = None
        try:
            answer = call(self._application, exchange.request)
        except Exception:
            self.log.exception("%s %s failed", exchange.request.method, exchange.request.path)
        self.call_soon(partial(then, answer))

    def in_stream_thread(self, function: Callable[[], Any], then: Callable[[Any, OSError | None], None]) -> None:
        """Call `function` in a thread, and `then` in the event loop with its result or its error."""
        self._submit(self._stream_threads, self._in_thread, function, then)

    def _submit(self, pool: ThreadPoolExecutor, function: Callable[..., None], *arguments: Any) -> None:
        if not self.has_ended:  # afterwards the pools are closed, and the process exits
            pool.submit(function, *arguments)

    def _in_thread(self, function: Callable[[], Any], then: Callable[[Any, OSError | None], None]) -> None:
        result, failure = None, None
        try:
            result = function()
        except ConnectionResetError as error:
            failure = error  # the code that raised it has logged it
        except Exception as error:
            if not self.has_ended:
                self.log.exception("a download failed")
            failure = ConnectionResetError(str(error))
        self.call_soon(partial(then, result, failure))

    def discard(self, answer: Answer) -> None:
        """Release what the application holds for an answer that is not needed any more."""
        if answer.rest is None:
            return  # it was closed when it was complete
        self.in_stream_thread(answer.close, lambda _result, _error: None)

    # Time

    async def look_after(self, seconds: float) -> None:
        """Wait `seconds`, then check the deadlines of all connections."""
        until = self.clock() + seconds
        while (left := until - self.clock()) > 0:
            await asyncio.sleep(min(left, TICK_SECONDS))
            self.places.serve()
        now = self.clock()
        for connection in list(self.connections):
            try:
                connection.check(now)
            except Exception:  # one connection must not end the process
                self.log.exception("the connection of %s failed", connection.peer_address)
                connection.abort()

    def stop(self) -> None:
        """Stop accepting connections, and further requests on open connections."""
        self.is_stopping = True
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        for connection in list(self.connections):
            connection.stop()

    def end(self) -> None:
        """Close all remaining connections and stop the threads."""
        self.has_ended = True
        for connection in list(self.connections):
            connection.abort()
        for pool in (self._threads, self._stream_threads, self._health_thread):
            pool.shutdown(wait=False, cancel_futures=True)


def connections_max() -> int:
    """Raise the number of files that this process may open, and return how many connections that allows.

    Lingering connections (up to LINGERING_MAX), which wait until their clients have read the last answer, are not
    included in that number.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    new_limit = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < new_limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (new_limit, hard))
        soft = new_limit
    allowed = FILES_WANTED if soft == resource.RLIM_INFINITY else soft
    return max(1, min(CONNECTIONS_MAX, allowed - FILES_RESERVED - LINGERING_MAX))


def record_request(exchange: Exchange, now: float) -> None:
    """Write a request that has ended to the log, unless it was a successful health check.

    The query of its target is left out, because it can have a secret, and so are all headers but the request's id.
    `status` is None if the client disconnected before an answer. The address of an IPv6 client is its network.
    """
    request, status = exchange.request, exchange.status
    if exchange.is_health and status == HTTPStatus.OK:
        return
    path = request.path[:PATH_MAX] or None
    fields: dict[str, object] = {
        "method": request.method or None,
        "path": path,
        "status": status,
        "seconds": round(now - exchange.began, 4),
        "bytes": max(0, exchange.sent_bytes - exchange.unsent_bytes),
        "client": exchange.address,
    }
    request_id = request.header("x-request-id")
    if request_id is not None and REQUEST_ID.fullmatch(request_id):
        fields["request_id"] = request_id
    requests_log.info("%s %s: %s", request.method or "-", path or "-", status or "no answer", extra={FIELDS: fields})


def _resource(exchange: Exchange) -> tuple[str, str]:
    """Return method and target of a request. They determine whether it is a download."""
    return exchange.request.method, exchange.request.target
