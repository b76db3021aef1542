"""A gunicorn worker whose threads never wait for a slow client without end.

gunicorn's threaded worker gives a connection to a thread as soon as it is there. A client that says nothing keeps the
thread for 5 s, one that stops in its header keeps it for ever, one that does not read the answer too, and one that does
not close its side holds up the whole worker for 2 s. Here

- a connection waits in the event loop until its whole header has come, within `head_seconds`;
- a body must come at BODY_RATE after `body_seconds`, and what nobody has read of it is not waited for;
- each piece of an answer must be taken within `send_seconds`;
- a connection is let go in the event loop, without waiting.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from gunicorn.http.unreader import SocketUnreader
from gunicorn.workers.gthread import TConn, ThreadWorker

HEAD_MAX_BYTES = 64 * 1024
HEAD_END = b"\r\n\r\n"
BODY_RATE = 16 * 1024
"""Bytes a second, the least that a body must come with."""
WAITING_MAX = 256
"""Connections that wait for their headers; the oldest makes room for the next."""
LEFTOVER_SECONDS = 0.05
LINGER_SECONDS = 2.0
LINGERING_MAX = 256
STOPPING_SECONDS = 1.0
"""How long a worker that stops waits for a header that has not come."""


class PatientWorker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """`threads` requests at once; everything that waits for a client waits outside of them, or not for long."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = self.app.limits
        self._waiting: dict[_Connection, float] = {}
        """Connections whose header has not come, and until when."""
        self._leaving: dict[socket.socket, float] = {}
        """Sockets that have been answered, until their clients close."""

    def accept(self, listener: Any) -> None:
        """Take a connection; it waits for its header in the event loop."""
        try:
            client, address = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # another worker was faster, or the client has gone again
        self.nr_conns += 1
        self.enqueue_req(_Connection(self.cfg, client, address, listener.getsockname(), self._let_go))

    def enqueue_req(self, conn: _Connection) -> None:
        """Give a connection whose header is there to a thread; one whose header is not waits for it."""
        conn.start(self._limits)
        if conn.has_head():
            super().enqueue_req(conn)
        else:
            if len(self._waiting) >= WAITING_MAX:
                self._give_up(next(iter(self._waiting)))
            conn.sock.setblocking(False)
            self._waiting[conn] = time.monotonic() + self._limits.head_seconds
            self.poller.register(conn.sock, selectors.EVENT_READ, partial(self._read_head, conn))

    def handle_request(self, req: Any, conn: _Connection) -> bool:
        """Answer one request; a client that does not take its answer, or send its body, in time is cut off."""
        conn.sock.settimeout(self._limits.send_seconds)
        try:
            return bool(super().handle_request(req, conn))
        except TimeoutError:
            self.log.info("a client was too slow and was cut off")
            return False

    def murder_pending(self) -> None:
        """Close what has waited too long. Called about once a second."""
        super().murder_pending()
        present = time.monotonic()
        limit = present if self.alive else present + self._limits.head_seconds - STOPPING_SECONDS
        for conn in [conn for conn, until in self._waiting.items() if until <= limit]:
            self._give_up(conn)
        for leaving in [one for one, until in self._leaving.items() if until <= present]:
            self._close(leaving)

    def _keepalive_after(self, conn: _Connection, keepalive: bool) -> bool:
        """Whether the connection can be used again: not where a body is left that has not come yet."""
        return keepalive and bool(conn.parser.finish_body(deadline=time.monotonic() + LEFTOVER_SECONDS))

    def _read_head(self, conn: _Connection, _file: object) -> None:
        try:
            data = conn.sock.recv(HEAD_MAX_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._give_up(conn)
            return
        conn.take(data)
        if conn.has_head():
            self._stop_waiting(conn)
            super().enqueue_req(conn)

    def _stop_waiting(self, conn: _Connection) -> None:
        del self._waiting[conn]
        self.poller.unregister(conn.sock)

    def _give_up(self, conn: _Connection) -> None:
        self._stop_waiting(conn)
        self.nr_conns -= 1
        conn.close()

    def _let_go(self, sock: socket.socket) -> None:
        """Say that nothing more comes, and close when the client does: so it gets the last bytes (RFC 9112, 9.6)."""
        try:
            sock.shutdown(socket.SHUT_WR)
            sock.setblocking(False)
            if len(self._leaving) < LINGERING_MAX and self.alive:
                self.poller.register(sock, selectors.EVENT_READ, self._read_rest)
                self._leaving[sock] = time.monotonic() + LINGER_SECONDS
                return
        except (OSError, ValueError, KeyError):
            pass  # it is closed already
        sock.close()

    def _read_rest(self, sock: socket.socket) -> None:
        with suppress(ConnectionError):
            if sock.recv(HEAD_MAX_BYTES):
                return
        self._close(sock)

    def _close(self, sock: socket.socket) -> None:
        del self._leaving[sock]
        self.poller.unregister(sock)
        sock.close()


class _Connection(TConn):  # type: ignore[misc]
    """A connection that knows whether a whole header has come."""

    def __init__(self, cfg: Any, sock: Any, client: Any, server: Any, let_go: Callable[[Any], None]) -> None:
        super().__init__(cfg, sock, client, server)
        self._let_go = let_go

    def start(self, limits: Any) -> None:
        """Make the parser, for the first request; give the next body its time."""
        self.init()
        if not isinstance(self.parser.unreader, _PacedUnreader):
            self.parser.unreader = _PacedUnreader(self.sock, limits.body_seconds)
        self.parser.unreader.restart()

    def has_head(self) -> bool:
        """Whether a thread can parse the header without waiting. One that is too long, the parser refuses."""
        held = self.parser.unreader.buf.getvalue().lstrip(b"\r\n")
        return HEAD_END in held or len(held) >= HEAD_MAX_BYTES

    def take(self, data: bytes) -> None:
        """Keep what has come of the header; the time of the body begins with its end."""
        held = self.parser.unreader.take_buffered()
        self.parser.unreader.unread(held + data)
        self.parser.unreader.restart()

    def close(self, graceful: bool = False) -> None:
        if graceful:
            self._let_go(self.sock)
        else:
            super().close()


class _PacedUnreader(SocketUnreader):  # type: ignore[misc]
    """Reads what the parser asks for, as long as it comes fast enough; raises TimeoutError."""

    def __init__(self, sock: Any, seconds: float) -> None:
        super().__init__(sock)
        self._seconds = seconds
        self._deadline = 0.0

    def restart(self) -> None:
        """From now on."""
        self._deadline = time.monotonic() + self._seconds

    def chunk(self, size_hint: int | None = None) -> bytes:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        before = self.sock.gettimeout()
        self.sock.settimeout(left if before is None else min(left, before))
        try:
            data: bytes = super().chunk(size_hint)
        finally:
            self.sock.settimeout(before)
        self._deadline += len(data) / BODY_RATE
        return data
