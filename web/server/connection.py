"""HTTP/1.1 over one connection, in the event loop of a worker: no thread ever waits for a client.

The parser is httptools (llhttp), in its strict mode. A request gets a thread when its header and, if it is small, its
body have arrived. The answer is written as fast as the client reads. The event loop requests the further pieces of a
long answer. Every wait for a client has a deadline:

- the header must arrive within `head_seconds` of its first byte (or of the start of the connection);
- the body must arrive within `body_seconds`, or at BODY_RATE;
- each WRITE_BYTES of an answer must be read within `send_seconds`;
- between two requests a connection may be idle for `idle_seconds`.

A client that is refused gets an answer: 408, 413, 431 or 503 with Retry-After. The server then closes its side of the
connection and reads further input for LINGER_SECONDS, so that the answer reaches the client (RFC 9112, 9.6).
"""

from __future__ import annotations

import asyncio
import io
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, NoReturn, cast

import httptools

from organs.registry.entities.problem import MEDIA_TYPE, encoded, plain_problem
from organs.registry.upload_limits import CHUNK_MAX_BYTES
from organs.web.client_address import address_behind_proxies, network_of
from organs.web.responses import API_PREFIX
from organs.web.server.gateway import Answer, BodyPipe, BodyTooSlow, HttpRequest, split_target
from organs.web.settings import RETRY_SECONDS

if TYPE_CHECKING:
    from organs.web.server.worker import WorkerService

HEAD_MAX_BYTES = 64 * 1024
TARGET_MAX_LENGTH = 8190
FIELD_MAX_LENGTH = 8190
"""Maximum length of the name and the value of one header together."""
FIELDS_MAX = 100
BODY_RATE = 16 * 1024
"""Bytes a second. Each received byte extends the deadline of a body at this rate."""
SMALL_BODY_BYTES = 256 * 1024
"""A body up to this size is read before the request gets a thread."""
BODY_MAX_BYTES = CHUNK_MAX_BYTES
"""The application refuses a larger body without reading it."""
FIRST_BODY_BYTES = 64 * 1024
"""Bytes of a body above SMALL_BODY_BYTES that are received before the request gets a thread."""
HELD_BODY_BYTES = 1024 * 1024
"""Bytes of a body above SMALL_BODY_BYTES that are received ahead of the thread that reads them."""
PIPELINE_MAX = 100
"""Requests that a client may send before the first of them is answered."""
WRITE_BYTES = 64 * 1024
"""Maximum number of bytes that are passed to the transport in one call."""
LINGER_SECONDS = 2.0
HEALTH_PATH = "/healthz"
UNSAFE_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
SERVER_NAME = "organ-registry"
STOPPING_SECONDS = 2.0
"""Time for which a stopping server waits on idle connections for requests that are already on their way."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"})
_SET_HERE = _HOP_BY_HOP | {"content-length", "date", "server"}
"""Headers that the server writes itself. A library of the application also sets `Date` on answers with an ETag."""
_ONCE = ("host", "content-type")
"""Headers that a request may have only once, because programs differ in which of two values they use."""


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """A refusal of a request. It needs neither a thread nor the application."""

    status: int
    sentence: str


class Rejected(Exception):
    """Exception that stops the parser when a request is refused."""


@dataclass(frozen=True, slots=True)
class Framing:
    """How the client recognises the end of an answer."""

    has_body: bool
    is_chunked: bool = False
    length: int | None = None


TOO_MANY_CONNECTIONS = HttpRefusal(503, "Too many connections are open; try again in a few seconds.")
TOO_MANY_OF_ADDRESS = HttpRefusal(
    503, "Too many requests from this address are in progress; try again in a few seconds."
)
TOO_MANY_BODIES = HttpRefusal(503, "Too much is being sent to this server; try again in a few seconds.")
TOO_MANY_UNREAD = HttpRefusal(503, "Too many answers are waiting to be read; read them, or try again in a few seconds.")
TOO_SLOW_HEAD = HttpRefusal(408, "The header of the request did not come in time.")
TOO_SLOW_BODY = HttpRefusal(408, "The body of the request did not come in time.")
TOO_LARGE_HEAD = HttpRefusal(
    431, f"The headers, the trailers and each chunk header of a request have at most {HEAD_MAX_BYTES} bytes."
)
FAILED = HttpRefusal(500, "The server could not answer this request; its log says why.")


class HttpConnection(asyncio.BufferedProtocol):
    """One connection of a client: its requests one after another, and their answers."""

    def __init__(self, service: WorkerService, peer: tuple[str, int], server: tuple[str, int]) -> None:
        self._service = service
        self._peer = peer
        self._server = server
        self.peer_address = network_of(peer[0])
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # set by connection_made
        self._parser = httptools.HttpRequestParser(self)
        self._head = HttpRequest()
        """The request that is being received."""
        self._head_bytes = 0
        """Bytes of headers, chunk headers and trailers since the last request or the last piece of a body."""
        self._small_body: bytearray | None = None
        self._pipe: BodyPipe | None = None
        """The body that is being received is in one of these two. Both are None while no body is received."""
        self._refusal: HttpRefusal | None = None
        """Why a callback stopped the parser."""
        self._exchanges: deque[Exchange] = deque()
        """Requests whose answers are not complete. Only the first of them is being answered."""
        self._ignores_input = False
        """Whether further input is ignored."""
        self._is_paused = False
        """Whether the transport asked to stop writing, because the client does not read."""
        self._unsent: deque[memoryview] = deque()
        self._read_deadline = service.clock() + service.settings.head_seconds
        """Deadline for the header or body that is being received, or for the next request."""
        self._read_paused_at: float | None = None
        self._send_deadline = 0.0
        self.parked_since: float | None = None
        """Time since when the client has not read, or None if it reads."""
        self._lingers_until: float | None = None
        self._has_end = False
        """Whether the client has closed its side."""
        self.is_counted = False
        """Whether the limit of connections of its address counts it."""

    @property
    def is_lingering(self) -> bool:
        """Whether all answers were sent and the connection only waits until the client closes its side."""
        return self._lingers_until is not None

    @property
    def has_unsent(self) -> bool:
        """Whether a part of an answer waits in memory until the client reads."""
        return bool(self._unsent)

    @property
    def is_waiting(self) -> bool:
        """Whether the connection has no request with a complete header and is not lingering."""
        return not self._exchanges and self._lingers_until is None

    # Methods that the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        self._service.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._ignores_input = True
        self._unsent.clear()
        if self._pipe is not None:
            self._pipe.fail(ConnectionResetError("the client has closed the connection"))
        while self._exchanges:
            self._exchanges.popleft().end()
        self._service.closed(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._service.buffer

    def buffer_updated(self, size: int) -> None:
        if self._ignores_input:
            return
        if self._is_body_whole() and not self._head_bytes:
            self._read_deadline = self._service.clock() + self._service.settings.head_seconds
        self._head_bytes += size  # the parser's callbacks reset it
        try:
            with memoryview(self._service.buffer) as buffer:
                self._parser.feed_data(buffer[:size])
        except httptools.HttpParserUpgrade:
            self._stop_reading()  # the client offers another protocol, which this server does not use
        except httptools.HttpParserError as error:
            if not self._ignores_input:
                self.refuse(self._refusal or HttpRefusal(400, f"This is not HTTP/1.1: {error}."))
        if self._head_bytes > HEAD_MAX_BYTES and not self._ignores_input:
            self.refuse(TOO_LARGE_HEAD)

    def eof_received(self) -> bool:
        """Answer the requests that have arrived. The client sends nothing more."""
        self._has_end = True
        if self._lingers_until is not None or not self._exchanges or not self._is_body_whole():
            return False
        self._stop_reading()
        return True

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.parked_since = None
        self._write()

    # Methods that the parser calls; an exception stops it

    def on_message_begin(self) -> None:
        self._head = HttpRequest(peer=self._peer, server=self._server)

    def on_url(self, part: bytes) -> None:
        self._head.target += part.decode("latin-1")
        if len(self._head.target) > TARGET_MAX_LENGTH:
            self._reject(HttpRefusal(414, f"An address has at most {TARGET_MAX_LENGTH} characters."))

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_body_whole():
            return  # a trailer after a chunked body; the server does not use trailers
        if len(name) + len(value) > FIELD_MAX_LENGTH or len(self._head.headers) >= FIELDS_MAX:
            self._reject(
                HttpRefusal(431, f"A request has at most {FIELDS_MAX} headers of {FIELD_MAX_LENGTH} characters.")
            )
        self._head.headers.append((name.decode("latin-1").lower(), value.decode("latin-1").strip(" \t")))

    def on_headers_complete(self) -> None:
        head, service = self._head, self._service
        head.method = self._parser.get_method().decode("ascii")
        head.version = self._parser.get_http_version()
        self._head_bytes = 0
        refusal = head_problem(head)
        if refusal is not None:
            self._reject(refusal)
        exchange = Exchange(self, head, service, is_last=not self._parser.should_keep_alive())
        exchange.awaits_continue = head.expects_continue
        refusal = service.admit(exchange)
        if refusal is not None:
            self._reject(refusal)
        self._exchanges.append(exchange)
        service.busy(self)
        self._read_deadline = service.clock() + service.settings.body_seconds
        size = int(head.header("content-length") or 0)
        if size > SMALL_BODY_BYTES:
            self._pipe = head.body = BodyPipe(self._body_was_read)
            exchange.is_complete = size > BODY_MAX_BYTES  # the application refuses it without reading
        else:
            self._small_body = bytearray()
        if exchange.awaits_continue and len(self._exchanges) > 1:
            self._pause_reading()  # the client waits for 100, so the body has no deadline until its turn
        self._start()

    def on_body(self, data: bytes) -> None:
        exchange = self._exchanges[-1]
        self._head_bytes = 0
        exchange.awaits_continue = False
        self._read_deadline += len(data) / BODY_RATE
        if self._small_body is not None:
            self._small_body += data
            if len(self._small_body) <= SMALL_BODY_BYTES:
                self._hold(exchange, len(self._small_body))
                return
            data, self._small_body = bytes(self._small_body), None  # a chunked body that is not small
            self._pipe = exchange.request.body = BodyPipe(self._body_was_read)
        assert self._pipe is not None
        self._pipe.feed(data)
        held = self._pipe.held_bytes
        self._hold(exchange, held)
        if held >= FIRST_BODY_BYTES:
            exchange.is_complete = True
            self._start()
        if held >= (HELD_BODY_BYTES if self._pipe.is_read else FIRST_BODY_BYTES):
            self._pause_reading()
            self._resume_body()  # the thread may have read everything before it could notice the pause

    def _hold(self, exchange: Exchange, size: int) -> None:
        """Set the size of the body in memory; reject the request if all bodies together are too large."""
        if not exchange.hold(size):
            self._reject(TOO_MANY_BODIES)

    def on_message_complete(self) -> None:
        exchange = self._exchanges[-1]
        if self._pipe is not None:
            self._pipe.finish()
        elif self._small_body:
            exchange.request.body = io.BytesIO(self._small_body)
        self._pipe = self._small_body = None
        self._head = HttpRequest(peer=self._peer, server=self._server)
        self._head_bytes = 0
        exchange.is_complete = True
        self._resume_reading()
        if exchange.is_last or len(self._exchanges) > PIPELINE_MAX:
            self._stop_reading()
        elif len(self._exchanges) > 1:
            self._pause_reading()
        self._start()

    def _reject(self, refusal: HttpRefusal) -> NoReturn:
        self._refusal = refusal
        raise Rejected

    # Reading

    def _is_body_whole(self) -> bool:
        return self._pipe is None and self._small_body is None

    def _stop_reading(self) -> None:
        """Ignore further input; the last request that has arrived closes the connection."""
        self._ignores_input = True
        if self._exchanges:
            self._exchanges[-1].is_last = True

    def _pause_reading(self) -> None:
        if self._read_paused_at is None and not self._transport.is_closing():
            self._read_paused_at = self._service.clock()
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._read_paused_at is not None and not self._transport.is_closing():
            self._read_deadline += self._service.clock() - self._read_paused_at
            self._read_paused_at = None
            self._transport.resume_reading()

    def _body_was_read(self) -> None:
        """Resume reading after a thread has read a part of the body. Called in that thread."""
        if self._read_paused_at is not None:
            self._service.call_soon(self._resume_body)

    def _resume_body(self) -> None:
        if self._pipe is None or not self._pipe.is_read or not self._exchanges:
            return  # without exchanges the connection has ended, and a thread still reads the received bytes
        held = self._pipe.held_bytes
        self._exchanges[-1].hold(held)
        if held < HELD_BODY_BYTES // 2:
            self._resume_reading()

    # Answering

    def _start(self) -> None:
        """Answer the first request, or give it to a thread, unless that was done before."""
        if not self._exchanges:
            return
        exchange = self._exchanges[0]
        if exchange.refusal is not None:
            self._write_refusal(exchange.refusal)
        elif exchange.is_complete:
            exchange.start()
        else:
            self._resume_reading()  # it may have been paused while earlier requests were answered
            if exchange.awaits_continue:
                exchange.awaits_continue = False
                self._transport.write(CONTINUE)

    def refuse(self, refusal: HttpRefusal) -> None:
        """Answer the request that is being received with `refusal`, after all earlier requests; then close."""
        self._ignores_input = True
        if self._pipe is not None:
            self._pipe.fail(BodyTooSlow(refusal.sentence))
        if not self._is_body_whole():
            unfinished = self._exchanges.pop()
            self._pipe = self._small_body = None
            unfinished.is_recorded = unfinished.has_begun  # otherwise the refusal is recorded
            unfinished.end()
            if unfinished.has_begun:
                self.abort()  # a part of its answer was sent already
                return
        self._exchanges.append(Exchange(self, self._head, self._service, is_last=True, refusal=refusal))
        self._service.busy(self)
        if len(self._exchanges) == 1:
            self._start()

    def answer(self, exchange: Exchange, answer: Answer) -> None:
        """Send what the application answered."""
        if not self._is_body_whole() and exchange is self._exchanges[-1]:
            exchange.is_last = True  # the server does not wait for the rest of the body
        exchange.is_last = exchange.is_last or self._service.is_stopping
        exchange.status = int(answer.status[:3])
        exchange.framing = framing = framing_of(exchange.request, answer)
        if framing.has_body and framing.length is None and not framing.is_chunked:
            exchange.is_last = True  # the end of the connection is the end of the answer
        head = answer_head(exchange.request, answer, framing, self._service.date(), closes=exchange.is_last)
        exchange.has_begun = True
        self.send([head, *exchange.framed(answer.pieces)])

    def send(self, pieces: Sequence[bytes]) -> None:
        """Write pieces of the answer to the first request. The answer continues when they have been written."""
        size = sum(map(len, pieces))
        parts = [b"".join(pieces)] if size <= WRITE_BYTES else pieces
        self._unsent.extend(memoryview(part) for part in parts)
        self._service.hold_unsent(self._exchanges[0], size)
        self._write()

    def _write(self) -> None:
        """Write as much as the client reads; then continue or end the answer."""
        while self._unsent and not self._is_paused and not self._transport.is_closing():
            view = self._unsent[0]
            self._transport.write(view[:WRITE_BYTES])
            if len(view) > WRITE_BYTES:
                self._unsent[0] = view[WRITE_BYTES:]
            else:
                self._unsent.popleft()
        if not self._unsent and self._exchanges:
            self._service.release_unsent(self._exchanges[0])
        now = self._service.clock()
        self._send_deadline = now + self._service.settings.send_seconds
        if self._transport.is_closing() or not self._exchanges:
            return
        if self._is_paused:
            self.parked_since = now
            self._exchanges[0].park()
        elif not self._unsent and self._exchanges[0].has_begun and not self._exchanges[0].go_on():
            self._end_exchange()

    def _end_exchange(self) -> None:
        exchange = self._exchanges.popleft()
        exchange.end()
        if exchange.is_last or self._service.is_stopping:
            self._linger()
        elif self._exchanges:
            self._start()
        else:
            self._read_deadline = self._service.clock() + self._service.settings.idle_seconds
            self._service.idle(self)
            self._resume_reading()

    def _write_refusal(self, refusal: HttpRefusal) -> None:
        answer = refusal_answer(refusal, self._head.target)
        framing = framing_of(HttpRequest(), answer)
        head = answer_head(HttpRequest(), answer, framing, self._service.date(), closes=True)
        self._transport.write(b"".join([head, *answer.pieces]))
        self._exchanges[0].status = refusal.status
        self._exchanges[0].sent_bytes = sum(map(len, answer.pieces))
        while self._exchanges:
            self._exchanges.popleft().end()
        self._linger()

    # Closing

    def _linger(self) -> None:
        """Close the server's side, and close the connection when the client has closed its side (RFC 9112, 9.6).

        Otherwise the client might not get the last bytes.
        """
        self._ignores_input = True
        self._send_deadline = self._service.clock() + self._service.settings.send_seconds
        if self._transport.is_closing():
            return
        self._service.leaving(self)
        if self._has_end or not self._service.may_linger():
            self._transport.close()
            return
        self._lingers_until = self._service.clock() + LINGER_SECONDS
        self._read_paused_at = None
        try:
            self._transport.write_eof()
        except OSError:  # the client has disconnected, and asyncio does not catch the error of `shutdown`
            self.abort()
            return
        if not self._transport.is_reading():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close the connection when all written bytes have been sent."""
        self._service.leaving(self)
        self._transport.close()

    def abort(self) -> None:
        """Close the connection immediately."""
        self._unsent.clear()
        self.parked_since = None
        if self._exchanges:
            self._service.release_unsent(self._exchanges[0])
        self._transport.abort()

    def check(self, now: float) -> None:
        """Close the connection or refuse its request if a deadline has passed. Called every SWEEP_SECONDS."""
        unsent = self._transport.get_write_buffer_size()
        if unsent and now > self._send_deadline:
            self._service.log.info("%s did not read its answer in time", self.peer_address)
            self.abort()
        elif self._lingers_until is not None:
            if now > self._lingers_until and not unsent:
                self.close()
        elif self._read_paused_at is None and now > self._read_deadline and not self._ignores_input:
            if not self._is_body_whole():
                self.refuse(TOO_SLOW_BODY)
            elif self._head_bytes:
                self.refuse(TOO_SLOW_HEAD)
            elif not self._exchanges:
                self.close()

    def make_room(self) -> None:
        """Close a connection without a complete request, so that another connection can be opened."""
        if self._head_bytes:
            self.refuse(TOO_MANY_CONNECTIONS)
        else:
            self.close()

    def stop(self) -> None:
        """Shorten the deadline of an idle connection: the server is stopping."""
        if self.is_waiting:
            limit = self._service.clock() + STOPPING_SECONDS
            self._read_deadline = min(self._read_deadline, limit)


class Exchange:
    """A request and its answer, which is a `web.server.scheduling.Download` when it is sent piece by piece."""

    def __init__(
        self,
        connection: HttpConnection,
        request: HttpRequest,
        service: WorkerService,
        *,
        is_last: bool,
        refusal: HttpRefusal | None = None,
    ) -> None:
        self._connection = connection
        self._service = service
        self.request = request
        self.is_last = is_last
        """Whether the connection is closed after the answer."""
        self.refusal = refusal
        self.address = address_behind_proxies(request.peer[0], request.header("x-forwarded-for"), service.proxies)
        self.is_complete = False
        """Whether enough of the body has arrived for a thread to begin."""
        self.is_started = False
        self.has_begun = False
        """Whether sending the answer has begun."""
        self.has_ended = False
        self.began = service.clock()
        self.status: int | None = None
        """The status of the answer; None while there is none."""
        self.sent_bytes = 0
        """Bytes of the body of the answer, sent or waiting in memory."""
        self.is_recorded = True
        """Whether the log of requests has it, if there is one."""
        self.awaits_continue = False
        """Whether the client waits for 100 before it sends the body."""
        self.held_bytes = 0
        """Bytes of the body in memory."""
        self.unsent_bytes = 0
        """Bytes of the answer that wait in memory until the client reads."""
        self.is_counted = False
        """Whether the limits of its address count this request."""
        length = request.header("content-length")
        has_body = request.header("transfer-encoding") is not None or length not in (None, "0")
        self.is_health = request.path == HEALTH_PATH and request.method in ("GET", "HEAD") and not has_body
        """Whether it asks for the health of the server. No limit counts these requests."""
        self.is_write = request.method in UNSAFE_METHODS
        self.is_download = False
        """Whether the limit of downloads counts this request."""
        self.framing = Framing(has_body=False)
        self._answer: Answer | None = None
        self._is_exhausted = False
        self._in_thread = False

    def hold(self, size: int) -> bool:
        """Set the number of bytes of the body in memory; return False if all bodies together are too large."""
        change, self.held_bytes = size - self.held_bytes, size
        return self._service.hold(change)

    # Computing the answer

    def start(self) -> None:
        """Let a thread answer the request."""
        if not self.is_started:
            self.is_started = True
            self._service.start(self)

    def answered(self, answer: Answer | None) -> None:
        """Send the answer of the application; None means a failure that was logged. Called in the event loop."""
        if self.has_ended:
            if answer is not None:
                self._service.discard(answer)
            return
        if answer is not None:
            refusal = None
            if answer.rest is not None and not self.is_download and not self._service.admit_download(self):
                refusal = TOO_MANY_OF_ADDRESS
            elif sum(map(len, answer.pieces)) > WRITE_BYTES and not self._service.has_room_unsent(self.address):
                refusal = TOO_MANY_UNREAD
            if refusal is not None:
                self._service.discard(answer)
                answer = refusal_answer(refusal, self.request.target, getattr(answer.source, "busy_status", 503))
        self._answer = answer or refusal_answer(FAILED, self.request.target)
        if self._answer.opens_later:
            self._service.places.want(self)  # the first piece is read before the header is sent
            return
        if self._answer.rest is not None:
            self._service.places.enter(self)
        self._connection.answer(self, self._answer)

    def framed(self, pieces: Sequence[bytes]) -> list[bytes]:
        """Return the pieces with the framing of the answer, and count their bytes."""
        if not self.framing.has_body:
            return []
        self.sent_bytes += sum(map(len, pieces))
        if not self.framing.is_chunked:
            return list(pieces)
        return [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece]

    # Sending the answer piece by piece

    @property
    def can_pause(self) -> bool:
        """Whether the answer can free its buffers and files and open them again."""
        return self._answer is not None and hasattr(self._answer.source, "pause")

    def go_on(self) -> bool:
        """Produce the next piece after everything was sent; return False at the end of the answer."""
        if not self._has_more():
            return False
        if not self._in_thread:
            self._service.places.want(self)
        return True

    def park(self) -> None:
        """Note that the client does not read."""
        if self._has_more() and not self._in_thread:
            self._service.places.park(self)

    def proceed(self) -> None:
        """Produce the next piece. Called when the download has a place."""
        assert self._answer is not None
        assert self._answer.rest is not None
        self._in_thread = True
        self._service.in_stream_thread(partial(next, self._answer.rest, None), self._produced)

    def pause(self, done: Callable[[], None]) -> None:
        """Free the buffers. Called when the download has lost its place."""
        assert self._answer is not None
        self._service.in_stream_thread(self._answer.source.pause, lambda _result, _error: done())

    def _has_more(self) -> bool:
        """Return whether pieces are left."""
        has_rest = self._answer is not None and self._answer.rest is not None
        return has_rest and not self._is_exhausted and self.framing.has_body

    def _produced(self, piece: bytes | None, error: OSError | None) -> None:
        """Send the next piece, or handle `error`. Both are None at the end of the answer. Called in the event loop."""
        self._in_thread = False
        if self.has_ended:
            self._release_answer()
        elif not self.has_begun:
            self._opened(piece, error)
        elif error is not None:
            self._connection.close()  # so that the client sees that the answer is incomplete
        elif piece is not None:
            self._connection.send(self.framed([piece]))
        else:
            self._is_exhausted = True
            if self.framing.length not in (None, self.sent_bytes):
                self._connection.close()
            else:
                self._connection.send([LAST_CHUNK] if self.framing.is_chunked else [])

    def _opened(self, piece: bytes | None, error: OSError | None) -> None:
        """Send the header with the first piece. If that piece cannot be read, ask the application for an error."""
        assert self._answer is not None
        if error is None:
            self._answer.pieces = [piece] if piece is not None else []
            self._is_exhausted = piece is None
            self._connection.answer(self, self._answer)
        else:
            self._release_answer()
            self._answer = None
            self.request.opens_later = False
            self._service.start(self)

    # The end of the exchange

    def end(self) -> None:
        """End the exchange after its answer, or after the end of the connection. May be called twice."""
        if not self.has_ended:
            self.has_ended = True
            self._service.release(self)
            if not self._in_thread:
                self._release_answer()

    def _release_answer(self) -> None:
        if self._answer is not None and self._answer.rest is not None:
            self._service.places.leave(self)
            self._service.discard(self._answer)


def head_problem(head: HttpRequest) -> HttpRefusal | None:
    """Return the refusal of a header that the parser accepts but this server does not, or None."""
    if head.version not in ("1.0", "1.1"):
        return HttpRefusal(400, "Only HTTP/1.0 and HTTP/1.1 are supported.")
    if head.method == "CONNECT" or not (split_target(head.target)[0] or head.target == "*"):
        return HttpRefusal(400, "The target of a request is a path that begins with /.")
    names = [name for name, _ in head.headers]
    for name in _ONCE:
        if names.count(name) > 1:
            return HttpRefusal(400, f"A request has one {name.title()} header.")
    coding = head.header("transfer-encoding")
    if coding is not None and (coding.lower() != "chunked" or head.version == "1.0"):
        return HttpRefusal(501, "The only supported transfer coding is chunked.")
    if head.header("expect") is not None and head.header("expect", lower=True) != "100-continue":
        return HttpRefusal(417, "The only supported expectation is 100-continue.")
    return None


def framing_of(request: HttpRequest, answer: Answer) -> Framing:
    """Return how the client recognises the end of `answer` to `request` (RFC 9112, 6.3)."""
    status = int(answer.status[:3])
    if request.method == "HEAD" or status in (204, 304) or status < 200:
        return Framing(has_body=False, length=answer.length)
    if answer.rest is None:
        return Framing(has_body=True, length=sum(map(len, answer.pieces)))
    length = answer.length
    return Framing(has_body=True, is_chunked=length is None and request.version != "1.0", length=length)


def answer_head(request: HttpRequest, answer: Answer, framing: Framing, date: str, *, closes: bool) -> bytes:
    """Return the status line and the headers of `answer`."""
    lines = [f"HTTP/1.1 {answer.status}", f"Date: {date}", f"Server: {SERVER_NAME}"]
    if closes:
        lines.append("Connection: close")
    elif request.version == "1.0":
        lines.append("Connection: keep-alive")
    if framing.is_chunked:
        lines.append("Transfer-Encoding: chunked")
    elif framing.length is not None and not answer.status.startswith(("204", "304")):
        lines.append(f"Content-Length: {framing.length}")
    for name, value in answer.headers:
        if name.lower() not in _SET_HERE:
            lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def refusal_answer(refusal: HttpRefusal, target: str, status: int | None = None) -> Answer:
    """Return `refusal` as an answer to a request for `target`, with `status` instead of its own status if given.

    For a target of the API the body is a problem document, as for every refusal of the API.
    """
    code, is_api = status or refusal.status, target.startswith(API_PREFIX)
    headers = [
        ("Content-Type", MEDIA_TYPE if is_api else "text/plain; charset=utf-8"),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    if code in (429, 503):
        headers.append(("Retry-After", str(RETRY_SECONDS)))
    body = encoded(plain_problem(code, refusal.sentence)) if is_api else refusal.sentence.encode()
    return Answer(f"{code} {HTTPStatus(code).phrase}", headers, [body + b"\n"])
