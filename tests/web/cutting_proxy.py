"""A line that breaks: it passes bytes between clients and a server, and cuts connections after so many bytes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Lock, Thread


class CuttingProxy(ThreadingTCPServer):
    """Listens on `port`; the first `cuts` connections that carry more than `after_bytes` to the client are cut."""

    daemon_threads = True

    def __init__(self, server_port: int, after_bytes: int, cuts: int) -> None:
        super().__init__(("127.0.0.1", 0), _Line)
        self.port = int(self.server_address[1])
        self.server_port, self.after_bytes = server_port, after_bytes
        self.requests = bytearray()
        """All that clients have sent."""
        self.made_cuts = 0
        self._cuts = cuts
        self._lock = Lock()

    def may_cut(self) -> bool:
        """Return whether one more connection may be cut, and count it."""
        with self._lock:
            may = self.made_cuts < self._cuts
            self.made_cuts += may
            return may


class _Line(BaseRequestHandler):
    server: CuttingProxy
    request: socket.socket

    def handle(self) -> None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.server.server_port)) as server:
            asking = Thread(target=self._ask, args=(server,), daemon=True)
            asking.start()
            passed = 0
            while data := server.recv(65536):
                self.request.sendall(data)
                passed += len(data)
                if passed > self.server.after_bytes and self.server.may_cut():
                    return

    def _ask(self, server: socket.socket) -> None:
        with suppress(OSError):
            while data := self.request.recv(65536):
                self.server.requests += data
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)


@contextmanager
def cutting_proxy(server_port: int, after_bytes: int, cuts: int = 1) -> Iterator[CuttingProxy]:
    """A line to `server_port` that is cut `cuts` times."""
    with CuttingProxy(server_port, after_bytes, cuts) as line:
        Thread(target=line.serve_forever, args=(0.05,), daemon=True).start()
        yield line
        line.shutdown()
