"""The event loop of a worker, before a small application: nothing that a client does slowly takes a thread."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import pytest

from organs.web.server.connection import (
    HELD_BODY_BYTES,
    HttpConnection,
)
from organs.web.server.gateway import (
    MAY_DOWNLOAD,
    OPENS_LATER,
    REFUSED_DOWNLOAD,
    BodyPipe,
)
from organs.web.server.worker import (
    CONNECTIONS_OF_ADDRESS,
    FILES_RESERVED,
    LINGERING_MAX,
    WRITES_OF_ADDRESS,
    WorkerService,
    connections_max,
)
from organs.web.settings import ServerSettings
from tests.web.live_server import PATIENCE_SECONDS, receive_all, wait_until

THREADS = 4
PIECE = b"x" * 100_000
PIECES = 200
WHOLE = b"w" * 2_000_000


class Opening:
    """A download whose first piece cannot be read."""

    opens_later = True

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        raise ConnectionResetError("it cannot be read")


@dataclass
class Application:
    """A WSGI application that waits when a test says so, and keeps the paths of its requests."""

    requests: list[str] = field(default_factory=list)
    waiting: Event = field(default_factory=Event)
    is_busy: bool = True

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        self.requests.append(path)
        if path == "/opening" and environ[OPENS_LATER]:
            start_response("200 OK", [])
            return Opening()
        if path == "/file" and not environ[MAY_DOWNLOAD]:
            environ[REFUSED_DOWNLOAD] = True
            start_response("429 Too Many Requests", [])
            return [b"too many"]
        if path == "/busy" and self.is_busy:
            start_response("503 WorkerService Unavailable", [])
            return [b"busy"]
        if path in ("/wait", "/late"):
            self.waiting.wait(PATIENCE_SECONDS)
        if path == "/break":
            raise RuntimeError("broken")
        if path == "/split":
            start_response("200 OK", [("X-Name", "a\r\nSet-Cookie: b")])
            return [b""]
        if path == "/pieces":
            start_response("200 OK", [])
            return (PIECE for _ in range(PIECES))
        if path == "/early":
            start_response("413 Too Large", [("Content-Type", "text/plain")])
            return [b"too large\n"]
        bodies = {"/whole": WHOLE, "/opening": str(environ[MAY_DOWNLOAD]).encode()}
        body = bodies.get(path, environ["REMOTE_ADDR"].encode())
        if path in ("/echo", "/late"):
            body = environ["wsgi.input"].read()
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
        return [body]


@dataclass
class Loop:
    """An event loop that serves in a thread."""

    port: int
    application: Application
    service: WorkerService

    def connect(self, address: str = "127.0.0.1", receive_bytes: int | None = None) -> socket.socket:
        client = socket.socket()
        if receive_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.settimeout(PATIENCE_SECONDS)
        client.bind((address, 0))
        client.connect(("127.0.0.1", self.port))
        return client

    def send(self, data: bytes, address: str = "127.0.0.1") -> bytes:
        """Send `data` and return the answer, read until the connection is closed."""
        with self.connect(address) as client:
            client.sendall(data)
            return receive_all(client)


def get(path: str, more: str = "Connection: close\r\n", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode()


def post(path: str, size: int, more: str = "Connection: close\r\n") -> bytes:
    return get(path, f"Content-Length: {size}\r\n{more}", "POST")


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


@contextmanager
def serving(proxies: int = 0, **settings: float) -> Iterator[Loop]:
    """A service with few threads on a port of its own."""
    application, ready, ended = Application(), Event(), asyncio.Event()
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    loops: list[asyncio.AbstractEventLoop] = []
    services: list[WorkerService] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        told: Any = {"threads": THREADS, **settings}
        service = WorkerService(loops[0], application, ServerSettings(**told), proxies, logging.getLogger("tests.web"))
        service.listen([listener])
        services.append(service)
        ready.set()
        while not ended.is_set():
            await service.look_after(0.05)
        service.stop()
        service.end()
        await asyncio.sleep(0)

    thread = Thread(target=asyncio.run, args=(serve(),), name="loop")
    thread.start()
    assert ready.wait(PATIENCE_SECONDS)
    try:
        yield Loop(listener.getsockname()[1], application, services[0])
    finally:
        application.waiting.set()
        loops[0].call_soon_threadsafe(ended.set)
        thread.join()


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    with serving() as served:
        yield served


def test_health_answers_while_all_threads_are_taken() -> None:
    with serving() as loop, ExitStack() as stack:
        for number in range(3 * THREADS):
            stack.enter_context(loop.connect(f"127.0.1.{number + 1}")).sendall(get("/wait"))
        wait_until(lambda: len(loop.application.requests) == THREADS)
        assert status(loop.send(get("/healthz"))) == 200


@pytest.mark.parametrize("size", [100, 1_000_000])
def test_a_body_takes_a_thread_only_when_it_comes(size: int, loop: Loop) -> None:
    with ExitStack() as stack:
        for number in range(3 * THREADS):
            client = stack.enter_context(loop.connect(f"127.0.2.{number + 1}"))
            client.sendall(post("/body", size) + b"half")
        assert loop.send(post("/echo", size) + b"a" * size).endswith(b"a" * size)
        assert "/body" not in loop.application.requests


def test_a_body_that_takes_too_long_is_answered_by_408() -> None:
    with serving(body_seconds=0.3) as loop:
        for size in (100, 1_000_000):
            assert status(loop.send(post("/echo", size) + b"half")) == 408


def test_a_header_that_takes_too_long_is_answered_by_408_and_silence_by_nothing() -> None:
    with serving(head_seconds=0.3) as loop, loop.connect() as silent, loop.connect() as dripping:
        dripping.sendall(b"GET / HTTP/1.1\r\nX: ")
        time.sleep(0.1)
        dripping.sendall(b"a")
        assert receive_all(silent) == b""
        assert status(receive_all(dripping)) == 408


def test_a_thread_that_reads_a_slow_body_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("organs.web.server.connection.BODY_RATE", 1_000_000)
    with serving(body_seconds=0.3) as loop, ExitStack() as stack:
        clients = [stack.enter_context(loop.connect(f"127.0.4.{number + 1}")) for number in range(2 * THREADS)]
        for client in clients:
            client.sendall(post("/echo", 1_000_000) + b"a" * 100_000)
        for client in clients:
            assert status(receive_all(client)) == 408
        assert status(loop.send(get("/"))) == 200


def test_an_answer_of_many_pieces_arrives_completely(loop: Loop) -> None:
    head, _, body = loop.send(get("/pieces")).partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert body == b"%x\r\n%b\r\n" % (len(PIECE), PIECE) * PIECES + b"0\r\n\r\n"
    old = loop.send(b"GET /pieces HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert b"Transfer-Encoding" not in old[0]
    assert old[2] == PIECE * PIECES


def test_the_number_of_bodies_in_progress_of_one_address_is_limited(loop: Loop) -> None:
    with ExitStack() as stack:
        for _ in range(WRITES_OF_ADDRESS):
            stack.enter_context(loop.connect("127.0.6.1")).sendall(post("/echo", 10))
        wait_until(lambda: status(loop.send(post("/echo", 1) + b"a", "127.0.6.1")) == 503)
        assert b"Retry-After: " in loop.send(post("/echo", 1) + b"a", "127.0.6.1")
        assert status(loop.send(post("/healthz", 1) + b"a", "127.0.6.1")) == 503
        for request in (get("/"), get("/healthz"), get("/healthz", method="HEAD")):
            assert status(loop.send(request, "127.0.6.1")) == 200, "it may still read"
        assert status(loop.send(post("/echo", 1) + b"a", "127.0.6.2")) == 200
    wait_until(lambda: status(loop.send(post("/echo", 1) + b"a", "127.0.6.1")) == 200)


def test_behind_a_proxy_each_client_has_its_own_limits() -> None:
    with serving(proxies=1) as loop, ExitStack() as stack:
        for _ in range(WRITES_OF_ADDRESS):
            forwarded = "X-Forwarded-For: 6.6.6.6, 192.0.2.1\r\nConnection: close\r\n"
            stack.enter_context(loop.connect()).sendall(post("/echo", 10, forwarded))
        same = "X-Forwarded-For: 192.0.2.1\r\nConnection: close\r\n"
        wait_until(lambda: status(loop.send(post("/echo", 1, same) + b"a")) == 503)
        other = same.replace("192.0.2.1", "192.0.2.1, 192.0.2.2")
        assert status(loop.send(post("/echo", 1, other) + b"a")) == 200
        for _ in range(CONNECTIONS_OF_ADDRESS):
            stack.enter_context(loop.connect())
        assert status(loop.send(get("/", other))) == 200, "the proxy itself may have more connections"


def test_the_connection_that_waits_the_longest_makes_room_for_another_of_its_address(loop: Loop) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(loop.connect("127.0.7.1")) for _ in range(CONNECTIONS_OF_ADDRESS)]
        for client in clients:
            client.sendall(b"GET / HT")
        wait_until(lambda: status(loop.send(get("/"), "127.0.7.1")) == 200)
        assert status(receive_all(clients[0])) == 503, "it is told so"
        clients[-1].sendall(get("/")[8:])
        assert status(receive_all(clients[-1])) == 200


def test_a_client_that_is_refused_while_it_sends_reads_the_answer(loop: Loop) -> None:
    size = 8_000_000
    with loop.connect() as client:
        client.sendall(post("/early", size) + b"a" * 200_000)
        answer = receive_all(client)
    assert status(answer) == 413
    assert answer.endswith(b"too large\n")


def test_requests_that_come_together_are_answered_in_order(loop: Loop) -> None:
    asks = b"".join(post("/echo", 4, "") + b"no %d" % number for number in range(10))
    answers = loop.send(asks + get("/pieces", method="HEAD"))
    found = [answers.find(b"no %d" % number) for number in range(10)]
    assert -1 not in found
    assert found == sorted(found)
    assert answers.count(b"HTTP/1.1 200 OK") == 11
    assert answers.endswith(b"\r\n\r\n"), "HEAD has no body"
    with loop.connect() as client:
        for byte in get("/", "") + get("/"):
            client.sendall(bytes([byte]))
        assert receive_all(client).count(b"HTTP/1.1 200 OK") == 2


def test_a_body_in_chunks_is_put_together(loop: Loop) -> None:
    chunked = get("/echo", "Transfer-Encoding: chunked\r\nConnection: close\r\n", "POST")
    assert loop.send(chunked + b"5\r\nhello\r\n6;a=b\r\n world\r\n0\r\nX: y\r\n\r\n").endswith(b"hello world")
    large = b"%x\r\n%b\r\n" % (300_000, b"a" * 300_000)
    assert loop.send(chunked + large + b"0\r\n\r\n").endswith(b"a" * 300_000)


@pytest.mark.parametrize("path", ["/break", "/split"])
def test_an_application_that_fails_is_answered_by_500(loop: Loop, path: str, caplog: pytest.LogCaptureFixture) -> None:
    answer = loop.send(get(path))
    assert status(answer) == 500
    assert b"Set-Cookie" not in answer
    assert f"GET {path} failed" in caplog.text


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [
        (get("/", "X: y\r\nHost: other\r\nConnection: close\r\n"), 400),
        (get("/", "Transfer-Encoding: gzip, chunked\r\n"), 501),
        (get("/", "Expect: a-miracle\r\n"), 417),
        (get("/", "X: y\r\n" * 101), 431),
        (get("/", f"X: {'y' * 9000}\r\n"), 431),
        (get("/" + "y" * 9000), 414),
        (b"X" * 70_000, 400),
        (b"GET / HTTP/1.1\r\n" + b"X" * 200_000, 431),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 200),
        (get("/", "Connection: Upgrade\r\nUpgrade: h2c\r\n"), 200),
        (post("/echo", 5, "Content-Length: 6\r\n") + b"hello", 400),
        (get("/echo", "Content-Length: +10\r\n", "POST") + b"0123456789", 400),
        (get("/echo", "Content-Length: -1\r\n", "POST"), 400),
        (get("/echo", "Content-Length: 0x5\r\n", "POST") + b"hello", 400),
        (post("/echo", 5, "Transfer-Encoding: chunked\r\n") + b"0\r\n\r\n", 400),
        (get("/echo", "Transfer-Encoding: chunked, chunked\r\n", "POST") + b"0\r\n\r\n", 400),
        (get("/echo", "Transfer-Encoding: xchunked\r\n", "POST") + b"0\r\n\r\n", 501),
        (get("/echo", "Transfer-Encoding : chunked\r\n", "POST") + b"0\r\n\r\n", 400),
        (get("/", f"{'X' * 20_000}: a\r\n"), 431),
        (b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n", 400),
    ],
)
def test_invalid_http_is_refused(loop: Loop, request_bytes: bytes, expected: int) -> None:
    answer = loop.send(request_bytes + get("/smuggled"))
    assert status(answer) == expected, answer[:200]
    assert answer.count(b"\r\nServer: ") == 1, "what follows is no second request"
    assert "/smuggled" not in loop.application.requests


# Bodies and their framing


CHUNKED = get("/echo", "Transfer-Encoding: chunked\r\nConnection: close\r\n", "POST")


@pytest.mark.parametrize("beginning", [b"5\r\nhello\r\n0\r\nX: ", b"5\r\nhello\r\n0\r\n", b"5\r\nhello\r\n5;"])
def test_trailers_and_chunk_extensions_have_a_size_limit(loop: Loop, beginning: bytes) -> None:
    filler = b"X: y\r\n" if beginning.endswith(b"0\r\n") else b"aaaaaa"
    assert status(loop.send(CHUNKED + beginning + filler * 100_000)) == 431


def test_a_large_body_of_many_chunks_is_not_taken_for_a_large_header(loop: Loop) -> None:
    piece = b"2;x=y\r\naa\r\n"
    assert loop.send(CHUNKED + piece * 50_000 + b"0\r\n\r\n").endswith(b"a" * 100_000)


def test_large_bodies_in_memory_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("organs.web.server.worker.BODIES_MAX_BYTES", 200_000)
    with serving() as loop, ExitStack() as stack:
        for number in range(4):
            client = stack.enter_context(loop.connect(f"127.0.1.{number + 1}"))
            client.sendall(post("/wait", 1_000_000) + b"a" * 100_000)
        assert status(loop.send(post("/wait", 1_000_000) + b"a" * 100_000)) == 503


def test_a_body_continues_if_it_is_read_while_reading_is_being_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    held_bytes = BodyPipe.held_bytes.fget  # type: ignore[attr-defined]
    paused: list[int] = []

    def held_before(pipe: BodyPipe) -> int:
        """The number of bytes, which a thread reads before the caller can use it."""
        held = int(held_bytes(pipe))
        if pipe.is_read and held and not paused and threading.current_thread().name == "loop":
            paused.append(held)
            wait_until(lambda: not held_bytes(pipe))
            time.sleep(0.05)
            return 2 * HELD_BODY_BYTES
        return held

    monkeypatch.setattr(BodyPipe, "held_bytes", property(held_before))
    with serving() as loop, loop.connect() as client:
        client.settimeout(5)
        client.sendall(post("/echo", 200_000 + HELD_BODY_BYTES) + b"a" * 100_000)
        for _ in range(10):
            time.sleep(0.01)
            client.sendall(b"a" * 10_000)
        client.sendall(b"a" * HELD_BODY_BYTES)
        assert receive_all(client).endswith(b"a" * (200_000 + HELD_BODY_BYTES))
        assert paused


def test_a_thread_reads_the_received_part_of_a_body_after_the_connection_has_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving() as loop, loop.connect() as client:
        client.sendall(post("/late", 1_000_000) + b"a" * 100_000)
        wait_until(lambda: "/late" in loop.application.requests)
        for connection in list(loop.service.connections):
            loop.service.call_soon(connection.abort)
        wait_until(lambda: not loop.service.connections)
        loop.application.waiting.set()
        wait_until(lambda: "POST /late failed" in caplog.text)
        assert status(loop.send(get("/"))) == 200
    assert "Exception in callback" not in caplog.text


def test_a_client_behind_another_request_gets_100_when_its_turn_comes() -> None:
    with serving() as loop, loop.connect() as client:
        client.sendall(get("/wait", "") + post("/echo", 5, "Expect: 100-continue\r\nConnection: close\r\n"))
        wait_until(lambda: "/wait" in loop.application.requests)
        loop.application.waiting.set()
        received = b""
        while not received.endswith(b"HTTP/1.1 100 Continue\r\n\r\n"):
            received += client.recv(1000)
        client.sendall(b"hello")
        assert receive_all(client).endswith(b"hello")


def test_the_body_of_a_third_request_is_received_when_its_turn_comes() -> None:
    with serving() as loop, loop.connect() as client:
        client.settimeout(5)
        client.sendall(get("/wait", "") + get("/", "") + post("/echo", 10) + b"hello")
        wait_until(lambda: "/wait" in loop.application.requests)
        loop.application.waiting.set()
        client.sendall(b"world")
        assert receive_all(client).endswith(b"helloworld")


# Limits


def test_the_number_of_unread_answers_of_one_address_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("organs.web.server.worker.UNSENT_OF_ADDRESS_BYTES", 3 * len(WHOLE) // 2)
    with serving() as loop, ExitStack() as stack:
        slow = [stack.enter_context(loop.connect("127.0.1.1", 4096)) for _ in range(2)]
        for client in slow:
            client.sendall(get("/whole"))
            assert client.recv(15) == b"HTTP/1.1 200 OK", "an address below its limit gets one more"
        refused = loop.send(get("/whole"), "127.0.1.1")
        assert status(refused) == 503
        assert b"Retry-After: " in refused
        assert status(loop.send(get("/"), "127.0.1.1")) == 200, "a small answer does not wait"
        assert loop.send(get("/whole"), "127.0.1.2").endswith(WHOLE)
        assert WHOLE.endswith(receive_all(slow[0])[-1000:])
        wait_until(lambda: status(loop.send(get("/whole"), "127.0.1.1")) == 200)


def test_clients_that_do_not_read_are_cut_when_too_many_answers_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("organs.web.server.worker.UNSENT_MAX_BYTES", 2 * len(WHOLE))
    monkeypatch.setattr("organs.web.server.worker.UNREAD_SECONDS", 0.1)
    with serving() as loop, ExitStack() as stack:
        slow = [stack.enter_context(loop.connect(f"127.0.1.{number + 1}", 4096)) for number in range(2)]
        for client in slow:
            client.sendall(get("/whole"))
            assert client.recv(1)
            time.sleep(0.2)
        assert loop.send(get("/whole"), "127.0.2.1").endswith(WHOLE)
        assert len(receive_all(slow[0])) < len(WHOLE), "it was slow for longer"
        assert receive_all(slow[1]).endswith(WHOLE[-1000:])


def test_a_download_that_fails_to_open_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("organs.web.server.worker.DOWNLOADS_OF_ADDRESS", 1)
    with serving() as loop:
        for _ in range(3):
            answer = loop.send(get("/opening"))
            assert (status(answer), answer.rpartition(b"\r\n")[2]) == (200, b"True"), "its own place is there for it"


def test_only_refusals_of_downloads_are_remembered_and_only_until_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("organs.web.server.worker.DOWNLOADS_OF_ADDRESS", 1)
    with serving() as loop, loop.connect(receive_bytes=4096) as slow:
        slow.sendall(get("/pieces"))
        assert slow.recv(1)
        assert status(loop.send(get("/busy"))) == 503
        loop.application.is_busy = False
        assert status(loop.send(get("/busy"))) == 200
        assert [status(loop.send(get("/file"))) for _ in range(3)] == [429] * 3
        assert loop.application.requests.count("/file") == 1, "the answer is known"
        loop.send(get("/file?x"))
        loop.send(get("/file", method="HEAD"))
        assert loop.application.requests.count("/file") == 3, "other requests may have other answers"
        slow.close()
        wait_until(lambda: status(loop.send(get("/file"))) == 200)


@pytest.mark.parametrize(("files", "connections"), [(100_000, 1024), (1024, 512), (600, 88), (256, 1)])
def test_connections_leave_room_for_other_files(files: int, connections: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    assert connections_max() == connections
    assert connections == 1 or connections + FILES_RESERVED + LINGERING_MAX <= files


# Faults of one connection or one listener


def test_a_client_that_has_gone_when_it_is_refused_does_not_stop_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_eof(_self: object) -> None:
        raise OSError(errno.ENOTCONN, "not connected")

    monkeypatch.setattr("asyncio.selector_events._SelectorSocketTransport.write_eof", write_eof)
    with serving(head_seconds=0.1) as loop:
        with loop.connect() as client:
            client.sendall(b"GET / HT")
            receive_all(client)
        assert status(loop.send(get("/"))) == 200


def test_a_connection_that_fails_is_closed_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checked = HttpConnection.check

    def check(connection: HttpConnection, now: float) -> None:
        if connection.peer_address == "127.0.1.1":
            raise OSError("a fault")
        checked(connection, now)

    monkeypatch.setattr(HttpConnection, "check", check)
    with serving() as loop, loop.connect("127.0.1.1") as faulty, loop.connect() as sound:
        assert receive_all(faulty) == b""
        sound.sendall(get("/"))
        assert status(receive_all(sound)) == 200
    assert "the connection of 127.0.1.1 failed" in caplog.text


class Exhausted(socket.socket):
    """A listener that cannot accept connections, because too many files are open."""

    def accept(self) -> Any:
        raise OSError(errno.EMFILE, "too many open files")


def test_a_listener_that_cannot_accept_for_a_moment_is_closed_with_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("organs.web.server.worker.ACCEPT_AGAIN_SECONDS", 0.02)
    errors: list[dict[str, Any]] = []

    async def serve(*, pause: float) -> None:
        events = asyncio.get_running_loop()
        events.set_exception_handler(lambda _, context: errors.append(context))
        service = WorkerService(events, Application(), ServerSettings(threads=1), 0, logging.getLogger("tests.web"))
        with Exhausted() as first, socket.socket() as second, socket.socket() as client:
            for listener in (first, second):
                listener.bind(("127.0.0.1", 0))
                listener.listen()
            service.listen([first, second])
            client.connect(first.getsockname())
            await asyncio.sleep(pause)
            service.stop()
            assert (first.fileno(), second.fileno()) == (-1, -1)
            await asyncio.sleep(0.05)
        service.end()

    for pause in (0.0, 0.05):
        asyncio.run(serve(pause=pause))
    assert not errors
