"""The event loop of a worker, before a small application: nothing that a client does slowly takes a thread."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import pytest
from gunicorn.workers.base import Worker

from tests.web.live import PATIENCE_SECONDS, everything
from web.server import ServerSettings
from web.worker import CONNECTIONS_OF_ADDRESS, DOWNLOADS_OF_ADDRESS, WRITES_OF_ADDRESS, Service

THREADS = 4
PIECE = b"x" * 100_000
PIECES = 200


@dataclass
class Application:
    """A WSGI application that waits when it is told to, and notes what it was asked."""

    asked: list[str] = field(default_factory=list)
    waiting: Event = field(default_factory=Event)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        self.asked.append(path)
        if path == "/wait":
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
        body = environ["wsgi.input"].read() if path == "/echo" else environ["REMOTE_ADDR"].encode()
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
        return [body]


@dataclass
class Loop:
    """An event loop that serves in a thread."""

    port: int
    application: Application

    def connect(self, address: str = "127.0.0.1", receive_bytes: int | None = None) -> socket.socket:
        client = socket.socket()
        if receive_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.settimeout(PATIENCE_SECONDS)
        client.bind((address, 0))
        client.connect(("127.0.0.1", self.port))
        return client

    def send(self, data: bytes, address: str = "127.0.0.1") -> bytes:
        """What comes back for `data` until the connection is closed."""
        with self.connect(address) as client:
            client.sendall(data)
            return everything(client)


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

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        told: Any = {"threads": THREADS, **settings}
        service = Service(loops[0], application, ServerSettings(**told), proxies, logging.getLogger("tests.web"))
        service.listen([listener])
        ready.set()
        while not ended.is_set():
            await service.look_after(0.05)
        service.stop()
        service.end()
        await asyncio.sleep(0)

    thread = Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(PATIENCE_SECONDS)
    try:
        yield Loop(listener.getsockname()[1], application)
    finally:
        application.waiting.set()
        loops[0].call_soon_threadsafe(ended.set)
        thread.join()


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    with serving() as served:
        yield served


def await_true(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_the_class_for_custom_workers_has_what_ours_uses() -> None:
    for name in ("SIGNALS", "notify", "run", "init_signals", "handle_usr1", "handle_abort", "load_wsgi"):
        assert hasattr(Worker, name), name
    made = Worker(1, 1, [], "application", 30, _Configuration(), "log")
    for name in ("alive", "app", "cfg", "log", "ppid", "sockets"):
        assert hasattr(made, name), name
    made.tmp.close()


class _Configuration:
    """What gunicorn's worker reads when it is made."""

    max_requests, worker_tmp_dir, uid, gid, umask = 0, None, 0, 0, 0

    def __init__(self) -> None:
        import os

        self.uid, self.gid = os.geteuid(), os.getegid()


def test_line_128_health_answers_while_all_threads_are_taken() -> None:
    with serving() as loop, ExitStack() as stack:
        for number in range(3 * THREADS):
            stack.enter_context(loop.connect(f"127.0.1.{number + 1}")).sendall(get("/wait"))
        await_true(lambda: len(loop.application.asked) == THREADS)
        assert status(loop.send(get("/healthz"))) == 200


def test_line_128_a_small_body_is_read_before_a_thread_is_taken(loop: Loop) -> None:
    with ExitStack() as stack:
        for number in range(3 * THREADS):
            client = stack.enter_context(loop.connect(f"127.0.2.{number + 1}"))
            client.sendall(post("/body", 100) + b"half")
        assert loop.send(post("/echo", 5) + b"whole").endswith(b"whole")
        assert "/body" not in loop.application.asked


def test_line_128_a_large_body_takes_a_thread_only_when_it_comes(loop: Loop) -> None:
    size = 1_000_000
    with ExitStack() as stack:
        for number in range(3 * THREADS):
            client = stack.enter_context(loop.connect(f"127.0.3.{number + 1}"))
            client.sendall(post("/large", size) + b"some")
        assert loop.send(post("/echo", size) + b"a" * size).endswith(b"a" * size)
        assert "/large" not in loop.application.asked


def test_line_85_a_body_that_takes_too_long_is_answered_by_408() -> None:
    with serving(body_seconds=0.3) as loop:
        for size in (100, 1_000_000):
            assert status(loop.send(post("/echo", size) + b"half")) == 408


def test_line_85_a_thread_that_reads_a_slow_body_is_freed() -> None:
    with serving(body_seconds=0.3) as loop, ExitStack() as stack:
        clients = [stack.enter_context(loop.connect(f"127.0.4.{number + 1}")) for number in range(2 * THREADS)]
        for client in clients:
            client.sendall(post("/echo", 1_000_000) + b"a" * 100_000)
        for client in clients:
            assert status(everything(client)) == 408
        assert status(loop.send(get("/"))) == 200


def test_line_129_clients_that_do_not_read_hold_no_threads(loop: Loop) -> None:
    with ExitStack() as stack:
        for number in range(3 * THREADS):
            stack.enter_context(loop.connect(f"127.0.5.{number + 1}", 4096)).sendall(get("/pieces"))
        assert status(loop.send(get("/"))) == 200
        assert status(loop.send(get("/healthz"))) == 200


def test_line_92_a_client_that_does_not_read_is_cut_off() -> None:
    with serving(send_seconds=0.3) as loop, loop.connect(receive_bytes=4096) as client:
        client.sendall(get("/pieces"))
        time.sleep(1.5)
        assert len(everything(client)) < PIECES * len(PIECE)


def test_an_answer_of_many_pieces_comes_whole(loop: Loop) -> None:
    head, _, body = loop.send(get("/pieces")).partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert body == b"%x\r\n%b\r\n" % (len(PIECE), PIECE) * PIECES + b"0\r\n\r\n"
    old = loop.send(b"GET /pieces HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert b"Transfer-Encoding" not in old[0]
    assert old[2] == PIECE * PIECES


def test_an_address_has_so_many_bodies_in_progress_and_no_more(loop: Loop) -> None:
    with ExitStack() as stack:
        for _ in range(WRITES_OF_ADDRESS):
            stack.enter_context(loop.connect("127.0.6.1")).sendall(post("/echo", 10))
        with loop.connect("127.0.6.1") as client:
            await_true(lambda: status(loop.send(post("/echo", 1) + b"a", "127.0.6.1")) == 503)
            client.sendall(get("/"))
            assert status(everything(client)) == 200, "it may still read"
        assert b"Retry-After: " in loop.send(post("/echo", 1) + b"a", "127.0.6.1")
        assert status(loop.send(post("/echo", 1) + b"a", "127.0.6.2")) == 200
    await_true(lambda: status(loop.send(post("/echo", 1) + b"a", "127.0.6.1")) == 200)


def test_behind_a_proxy_limits_are_those_of_its_clients() -> None:
    with serving(proxies=1) as loop, ExitStack() as stack:
        for _ in range(WRITES_OF_ADDRESS):
            forwarded = "X-Forwarded-For: 6.6.6.6, 192.0.2.1\r\nConnection: close\r\n"
            stack.enter_context(loop.connect()).sendall(post("/echo", 10, forwarded))
        same = "X-Forwarded-For: 192.0.2.1\r\nConnection: close\r\n"
        await_true(lambda: status(loop.send(post("/echo", 1, same) + b"a")) == 503)
        other = same.replace("192.0.2.1", "192.0.2.1, 192.0.2.2")
        assert status(loop.send(post("/echo", 1, other) + b"a")) == 200
        for _ in range(CONNECTIONS_OF_ADDRESS):
            stack.enter_context(loop.connect())
        assert status(loop.send(get("/", other))) == 200, "the proxy itself may have more connections"


def test_a_download_manager_may_have_sixteen_connections() -> None:
    assert min(DOWNLOADS_OF_ADDRESS, CONNECTIONS_OF_ADDRESS, WRITES_OF_ADDRESS) >= 16


def test_the_connection_that_waits_the_longest_makes_room_for_another_of_its_address(loop: Loop) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(loop.connect("127.0.7.1")) for _ in range(CONNECTIONS_OF_ADDRESS)]
        for client in clients:
            client.sendall(b"GET / HT")
        await_true(lambda: status(loop.send(get("/"), "127.0.7.1")) == 200)
        assert status(everything(clients[0])) == 503, "it is told so"
        clients[-1].sendall(get("/")[8:])
        assert status(everything(clients[-1])) == 200


def test_a_client_that_is_refused_while_it_sends_reads_the_answer(loop: Loop) -> None:
    size = 8_000_000
    with loop.connect() as client:
        client.sendall(post("/early", size) + b"a" * 200_000)
        answer = everything(client)
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


def test_a_body_in_chunks_is_put_together(loop: Loop) -> None:
    chunked = get("/echo", "Transfer-Encoding: chunked\r\nConnection: close\r\n", "POST")
    assert loop.send(chunked + b"5\r\nhello\r\n6;a=b\r\n world\r\n0\r\nX: y\r\n\r\n").endswith(b"hello world")
    large = b"%x\r\n%b\r\n" % (300_000, b"a" * 300_000)
    assert loop.send(chunked + large + b"0\r\n\r\n").endswith(b"a" * 300_000)


def test_a_client_that_waits_for_100_gets_it(loop: Loop) -> None:
    with loop.connect() as client:
        client.sendall(post("/echo", 5, "Expect: 100-continue\r\nConnection: close\r\n"))
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"hello")
        assert everything(client).endswith(b"hello")


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
        (b"GET / HTTP/1.1\r\n" + b"X" * 70_000, 431),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 200),
        (get("/", "Connection: Upgrade\r\nUpgrade: h2c\r\n"), 200),
    ],
)
def test_line_86_what_is_not_plain_http_is_refused(loop: Loop, request_bytes: bytes, expected: int) -> None:
    answer = loop.send(request_bytes)
    assert status(answer) == expected, answer[:200]
    assert answer.count(b"\r\nHTTP/1.1 ") == 0, "there is one answer"
