"""A line that breaks: it passes bytes between clients and a server, and cuts connections after so many bytes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class CuttingProxy:
    """Listens on `port`; the first `cuts` connections that carry more than `after_bytes` to the client are cut."""

    def __init__(self, server_port: int, after_bytes: int, cuts: int) -> None:
        self._server = ("127.0.0.1", server_port)
        self._after = after_bytes
        self._left = cuts
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self.port = int(self._listener.getsockname()[1])
        self.requests = bytearray()
        """All that clients have sent."""
        self.made_cuts = 0
        self._threads[0].start()

    def close(self) -> None:
        """Accept nothing more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            for work in (self._ask, self._answer):
                thread = threading.Thread(target=work, args=(client, server), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                with self._lock:
                    self.requests += data
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        passed = 0
        with suppress(OSError), client, server:
            while data := server.recv(65536):
                client.sendall(data)
                passed += len(data)
                if passed > self._after and self._may_cut():
                    client.shutdown(socket.SHUT_RDWR)
                    return

    def _may_cut(self) -> bool:
        with self._lock:
            self._left -= 1
            self.made_cuts += self._left >= 0
            return self._left >= 0


@contextmanager
def cutting_proxy(server_port: int, after_bytes: int, cuts: int = 1) -> Iterator[CuttingProxy]:
    """A line to `server_port` that is cut `cuts` times."""
    line = CuttingProxy(server_port, after_bytes, cuts)
    try:
        yield line
    finally:
        line.close()
