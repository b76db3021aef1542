"""A server in a thread that answers as a test says, and keeps the requests that it received."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from organs.registry.client.connection import Connection
from organs.registry.digest import digest_of
from organs.registry.entities.base import Entity
from organs.registry.entities.problem import data_of, encoded, plain_problem, problem_of
from organs.registry.errors import OrganError


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request as it came."""

    method: str
    path: str
    headers: Message
    body: bytes

    @property
    def values(self) -> Any:
        """Its body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back; `promised` is the Content-Length where that is not the truth. None of a body cuts the line."""

    status: int = 200
    body: bytes | None = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    promised: int | None = None


CUT = Answer(body=None)
"""The line is cut before anything is answered."""
Script = Callable[[ReceivedRequest], Answer]
REST = re.compile(r"bytes=(\d+)-")
"""A request for the rest of a file."""


class AcceptedAnswer(Entity, frozen=True, kw_only=True):
    """An answer that is accepted."""

    fine: bool


def as_json(values: Any, status: int = 200, **headers: str) -> Answer:
    """`values` as the registry answers them; header names have _ for -."""
    return Answer(
        status, json.dumps(values).encode(), {name.replace("_", "-"): value for name, value in headers.items()}
    )


def as_problem(problem: OrganError | int, detail: str = "", **headers: str) -> Answer:
    """Return an error as a registry answers it: that of a class, or of a status and a sentence."""
    if isinstance(problem, int):
        status, body = problem, encoded(plain_problem(problem, detail))
    else:
        status, body = problem.status, encoded(problem_of(problem), data_of(problem))
    return Answer(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


def rest_of(data: bytes, request: ReceivedRequest, tag: str | None = None) -> Answer:
    """Return the whole, or the rest of it that was requested, as a registry does."""
    tag = f'"{digest_of(data)}"' if tag is None else tag
    wanted = REST.fullmatch(request.headers.get("Range", ""))
    if wanted is None or request.headers.get("If-Range", tag) != tag:
        return Answer(200, data, {"ETag": tag})
    begin = int(wanted[1])
    return Answer(206, data[begin:], {"ETag": tag, "Content-Range": f"bytes {begin}-{len(data) - 1}/{len(data)}"})


def cut(answer: Answer, length: int) -> Answer:
    """Return the first `length` bytes of an answer that promises all of them."""
    assert answer.body is not None
    return replace(answer, body=answer.body[:length], promised=len(answer.body))


@contextmanager
def dripping_server(beginning: bytes) -> Iterator[str]:
    """The address of a server that sends `beginning`, and then a byte every few milliseconds for ever."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        is_over = threading.Event()

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=drip, args=(client,), daemon=True).start()

        def drip(client: socket.socket) -> None:
            with client, suppress(OSError):
                client.recv(65_536)
                client.sendall(beginning)
                while not is_over.wait(0.02):
                    client.sendall(b"x")

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            is_over.set()
            listener.shutdown(socket.SHUT_RDWR)


@dataclass(slots=True)
class ScriptedServer:
    """A server that runs."""

    port: int
    requests: list[ReceivedRequest] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def scripted_server(script: Script) -> Iterator[ScriptedServer]:
    """A server that answers every request as `script` says, as long as the block runs."""
    running: ScriptedServer

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60
        wbufsize = 1 << 16  # an answer in one piece: its end would wait for the client's word that the beginning came

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = ReceivedRequest(self.command, self.path, self.headers, body)
            running.requests.append(request)
            answer = script(request)
            if answer.body is None:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body) if answer.promised is None else answer.promised))
            self.end_headers()
            self.wfile.write(answer.body)
            self.close_connection = self.close_connection or answer.promised is not None

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815  # the names that http.server calls

        def log_message(self, *_: object) -> None:
            """Nothing: the test's output is its own."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Nothing: a client that hangs up is part of the test."""

    server = Server(("127.0.0.1", 0), Handler)
    running = ScriptedServer(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def connection_to_script(script: Callable[[ReceivedRequest], Answer]) -> Iterator[tuple[ScriptedServer, Connection]]:
    """A server that answers so, and a connection to it on which nobody waits."""
    with scripted_server(script) as server:
        connection = Connection(server.url, sleep=no_sleep)
        yield server, connection
        connection.close()


def no_sleep(_seconds: float) -> None:
    """Return immediately."""
