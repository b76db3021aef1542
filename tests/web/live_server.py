"""A server of the catalog in processes of its own on a free port, and clients that are not polite."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import postgres
from tests.token_leaks import check_log

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120
PATIENCE_SECONDS = 60.0
"""After which a test that waits for something gives up: far longer than it takes on any machine."""
PORTS = range(10_000, 32_000)
"""None of them is given to a client, on Linux: what is free stays free until the server listens."""
HURRIED = (
    "import sys; from organs.registry import LocalRegistry\n"
    "from organs.web.server.processes import ServerSettings, serve_forever\n"
    "registry = LocalRegistry.open(); registry.catalog.close()\n"
    "serve_forever(registry, ServerSettings(port=int(sys.argv[2]), workers=1, threads=8, "
    "head_seconds=1, body_seconds=1, send_seconds=1, idle_seconds=2))"
)
"""A server with one process and little patience."""
TELLING = """
import os, sys
from organs.registry.local import LocalRegistry
from organs.web.server.processes import Server, prepare_metrics
from organs.web.settings import ServerSettings

class Telling(Server):
    def load(self):
        app = super().load()
        @app.after_request
        def tell(answer):
            answer.headers["X-Worker"] = str(os.getpid())
            return answer
        return app

registry = LocalRegistry.open()
registry.catalog.close()
prepare_metrics()
Telling(registry, ServerSettings(port=int(sys.argv[2]), workers=3, threads=8)).run()
"""
"""A server of three processes, which say in the header `X-Worker` which of them answers."""


@dataclass(frozen=True, slots=True)
class LiveServer:
    """A server that runs."""

    port: int
    process: subprocess.Popen[str]
    log: Path
    """What it writes, which has no token in it when it has ended."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, headers: dict[str, str] | None = None, seconds: float = 30) -> bytes:
        """The body of a GET that went well."""
        request = urllib.request.Request(f"{self.address}{path}", headers=headers or {})
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return bytes(answer.read())

    def connect(self, receive_bytes: int | None = None) -> socket.socket:
        """A connection, with room for about `receive_bytes` that nobody has read."""
        client = socket.socket()
        if receive_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.settimeout(30)
        client.connect(("127.0.0.1", self.port))
        return client

    def send(self, data: bytes) -> bytes:
        """Send `data` and return the answer, read until the server closes the connection."""
        with self.connect() as client:
            client.sendall(data)
            return receive_all(client)

    def health_seconds(self) -> float:
        """Return the seconds that `/healthz` takes to answer."""
        begun = time.monotonic()
        assert self.get("/healthz", seconds=20) == b'{"ok":true}\n'
        return time.monotonic() - begun


def receive_all(client: socket.socket) -> bytes:
    """All that comes until the other side closes or resets."""
    received = bytearray()
    try:
        while data := client.recv(1 << 20):
            received += data
    except ConnectionError:
        pass
    return bytes(received)


def free_port() -> int:
    """A port that nobody listens on just now, drawn so that nobody else draws the same at once."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


@contextmanager
def unused_address() -> Iterator[str]:
    """An address at which nobody listens, and nobody begins to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def running_server(
    home: Path, log: Path, script: str | None = None, options: Sequence[str] = ()
) -> Iterator[LiveServer]:
    """`organ serve` over the registry in `home`, or `script` with the folder and a port as its arguments."""
    live = start_server(home, log, script, options=options)
    try:
        yield live
    finally:
        stop_server(live)


def start_server(
    home: Path, log: Path, script: str | None = None, port: int | None = None, options: Sequence[str] = ()
) -> LiveServer:
    """The same server, which the caller stops; on `port` if one is given."""
    port = port or free_port()
    command = ["-m", "organs.cli", "--home", str(home), "serve", "--port", str(port), *options]
    arguments: Sequence[str] = command if script is None else ["-c", script, str(home), str(port)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **postgres.environment(home)}
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=output, stderr=output, text=True, env=environment, cwd=log.parent
        )
    live = LiveServer(port, process, log)
    try:
        _await(live, log)
    except BaseException:
        stop_server(live)
        raise
    return live


def stop_server(live: LiveServer) -> None:
    """Ask it to end, and wait; one that does not is killed."""
    live.process.send_signal(signal.SIGTERM)
    try:
        live.process.wait(40)
    except subprocess.TimeoutExpired:
        live.process.kill()
        live.process.wait()
    check_log(live.log)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until the condition is true; fail after PATIENCE_SECONDS."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def _await(live: LiveServer, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            live.health_seconds()
        except (OSError, urllib.error.URLError):
            assert live.process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)
        else:
            return
