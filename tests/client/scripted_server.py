"""A server in a thread that answers as a test says, and keeps the requests that it received."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from organs.registry.client.connection import Connection
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
