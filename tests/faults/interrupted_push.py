"""A push of a large model over an interrupted connection to a server that is killed: `make cut-push`.

A model of 1.19 GB is generated and pushed by `organ push`. A proxy between the command and the server cuts all open
connections after a random number of bytes; at intervals the server and all of its processes get SIGKILL, and are
started again. At the end the model is downloaded and compared with the file to the last byte, the registry is verified,
and the bytes through the proxy are counted: the bytes sent twice may be one chunk for each connection that was cut or
killed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from bench.generated import SMALL, Architecture, write_model
from organs.registry.catalog.queries.accounts import contributor_by_name
from organs.registry.catalog.register.accounts import add_contributor, create_token
from organs.registry.local import LocalRegistry
from organs.registry.upkeep import Share, verify
from tests.web.live_server import ROOT, LiveServer, free_port, start_server

LITTLE = Architecture(4, 512, 1024, 512, 1536, 20_000, 64)
"""60 MB: for a short run."""
CHUNK_BYTES = 8 * 1024 * 1024
BUFFER_BYTES = 256 * 1024
HEADER_BYTES = 4096
"""More than the header of any request of a push, for the count of sent bytes."""
PUSH_MAX = 20
"""The number of times that the command is run again after it has failed."""


@dataclass(slots=True)
class Line:
    """A proxy to `target`: counts bytes of clients, and cuts all connections on request."""

    target: int
    port: int = 0
    sent_bytes: int = 0
    cut: int = 0
    """The number of connections that were cut while they were open."""
    _open: set[socket.socket] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _listener: socket.socket | None = None

    def start(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_all(self) -> int:
        """Reset every connection; return their number."""
        with self._lock:
            hit, self._open = self._open, set()
        for connection in hit:
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                connection.shutdown(socket.SHUT_RDWR)
        self.cut += len(hit)
        return len(hit)

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self.target), 5)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open.add(client)
            for ends, counted in (((client, server), True), ((server, client), False)):
                threading.Thread(target=self._carry, args=(*ends, counted), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(BUFFER_BYTES):
                if counted:
                    with self._lock:
                        self.sent_bytes += len(data)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            with self._lock:
                self._open.discard(source if counted else sink)


class Watched:
    """A server that can be killed with all of its processes, and the peak memory of a worker."""

    def __init__(self, home: Path, folder: Path) -> None:
        self._home, self._folder = home, folder
        self.port = free_port()
        self.peaks: dict[str, int] = {}
        self.kills = 0
        self.live: LiveServer = start_server(home, folder / "server.log", port=self.port, options=["--accounts"])
        threading.Thread(target=self._watch, daemon=True).start()

    def kill(self) -> None:
        family = [psutil.Process(self.live.process.pid)]
        family += family[0].children(recursive=True)
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.live.process.wait()
        self.kills += 1
        self.live = start_server(
            self._home, self._folder / f"server-{self.kills}.log", port=self.port, options=["--accounts"]
        )

    def end(self) -> None:
        self.live.process.send_signal(signal.SIGTERM)
        self.live.process.wait(60)

    def _watch(self) -> None:
        while True:
            with suppress(psutil.Error):
                for process in psutil.Process(self.live.process.pid).children(recursive=True):
                    words = process.cmdline()
                    kind = "runner" if "work" in words else "child" if "serve" not in words else "worker"
                    self.peaks[kind] = max(self.peaks.get(kind, 0), process.memory_info().rss)
            time.sleep(0.1)


def main() -> None:
    """Push, cut, kill, compare; exit with 1 after any fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=30)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--little", action="store_true", help="60 MB instead of 1.19 GB")
    options = parser.parse_args()
    with TemporaryDirectory() as name:
        faults = run(Path(name), options.cuts, options.kills, options.seed, LITTLE if options.little else SMALL)
    for fault in faults:
        print("WRONG:", fault)
    sys.exit(1 if faults else 0)


def run(folder: Path, cuts: int, kills: int, seed: int, shape: Architecture) -> list[str]:
    """Return the faults."""
    model = folder / "large.gguf"
    size_bytes = write_model(model, shape)
    home, token = folder / "home", _account(folder / "home")
    server = Watched(home, folder)
    line = Line(server.port)
    line.start()
    moments = _moments(random.Random(seed), cuts, kills, size_bytes)
    begun = time.monotonic()
    pushed = threading.Event()
    spoiler = threading.Thread(target=_spoil, args=(line, server, moments, pushed), daemon=True)
    spoiler.start()
    runs = _push(model, line, token, folder)
    pushed.set()
    spoiler.join()
    seconds, sent, hit = time.monotonic() - begun, line.sent_bytes, line.cut
    _push(model, line, token, folder)
    again = line.sent_bytes - sent
    fetched = hashlib.sha256(server.live.get("/models/ada/large.gguf", seconds=600)).hexdigest()
    server.end()
    twice = sent - size_bytes
    print(f"{size_bytes:,} bytes in {seconds:.0f} s, {runs} runs of the command")
    print(f"{cuts} cuts and {server.kills} kills hit {hit} connections; most of them held one chunk of {CHUNK_BYTES:,}")
    print(f"sent {sent:,} bytes, {twice:,} twice: {twice / max(hit, 1) / CHUNK_BYTES:.2f} chunks for each that was hit")
    print(f"pushed once more: {again:,} bytes")
    print("most memory:", ", ".join(f"{kind} {peak / 1e6:.0f} MB" for kind, peak in sorted(server.peaks.items())))
    faults = [] if runs <= PUSH_MAX else ["the push never ended"]
    if twice > hit * (CHUNK_BYTES + HEADER_BYTES) + size_bytes // 100:
        faults.append(f"{twice:,} bytes were sent twice")
    if fetched != hashlib.sha256(model.read_bytes()).hexdigest():
        faults.append("what was fetched is not what was pushed")
    with LocalRegistry.open(home) as registry:
        report = verify(registry.catalog, registry.blobs, read_data=Share(1, 1))
    return faults + [str(fault) for fault in report.faults] + [str(fault) for fault in report.miscounted.items()]


def _account(home: Path) -> str:
    with LocalRegistry.open(home) as registry, registry.catalog.writing() as session:
        add_contributor(session, "ada")
        return create_token(session, contributor_by_name(session, "ada").id, ("read", "upload"), "push").text


def _moments(chance: random.Random, cuts: int, kills: int, size_bytes: int) -> list[tuple[int, str]]:
    """Return the events by the number of bytes after which they happen, in order."""
    whats = ["cut"] * cuts + ["kill"] * kills
    chance.shuffle(whats)
    return list(zip(sorted(chance.randrange(size_bytes) for _ in whats), whats, strict=True))


def _spoil(line: Line, server: Watched, moments: list[tuple[int, str]], pushed: threading.Event) -> None:
    for after, what in moments:
        while line.sent_bytes < after and not pushed.is_set():
            time.sleep(0.002)
        if pushed.is_set():
            return
        line.cut_all()
        if what == "kill":
            server.kill()


def _push(model: Path, line: Line, token: str, folder: Path) -> int:
    """Push until it succeeds; return the number of runs of the command."""
    environment = os.environ | {
        "ORGAN_TOKEN": token,
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "XDG_CONFIG_HOME": str(folder / "config"),
    }
    command = ["-m", "organs.cli", "--registry", f"http://127.0.0.1:{line.port}", "push", str(model), "--json"]
    for attempt in range(1, PUSH_MAX + 1):
        ended = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
        if ended.returncode == 0:
            return attempt
        print(f"run {attempt} ended: {ended.stderr.strip()[-300:]}", file=sys.stderr)
        time.sleep(1)
    return PUSH_MAX + 1


if __name__ == "__main__":
    main()
