"""A server under load while PostgreSQL and then the bucket do not answer for a while.

    python -m tests.faults.outages --seconds 60

Readers and contributors send requests all the time. During an outage an answer is 200, or 503 with Retry-After; no
other error is allowed. Afterwards all answers are right again without a restart, and all that was confirmed is there.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import socket
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from organs.registry.local import LocalRegistry
from organs.registry.settings import BLOBS_VARIABLE, DATABASE_VARIABLE, HOME_VARIABLE, Settings
from organs.registry.upkeep import Share, verify
from tests import buckets, postgres
from tests.small_models import ingest_file, small_model
from tests.web.accounts import authorization, new_token
from tests.web.live_server import LiveServer, running_server

READERS = 4
CALM_SECONDS = 10.0
RECOVERY_SECONDS = 60.0
PAGES = ("/", "/models", "/organs", "/api/v1/models", "/api/v1/organs?q=type:organ", "/models/old/m.gguf")


class Gate:
    """A port of this machine whose connections go to another address while it is open."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._is_open = True
        self._pairs: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self) -> None:
        """End all connections, and new ones at once."""
        self._is_open = False
        pairs, self._pairs = self._pairs, []
        for one in pairs:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def open(self) -> None:
        """Let connections through again."""
        self._is_open = True

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if not self._is_open:
                client.close()
                continue
            try:
                target = self._connect()
            except OSError:
                client.close()
                continue
            self._pairs += [client, target]
            for source, sink in ((client, target), (target, client)):
                threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class Load:
    """Threads that send requests, and what came back in each phase."""

    def __init__(self, live: LiveServer, token: str, contents: dict[str, str]) -> None:
        self._live, self._token, self._contents = live, token, contents
        self.phase = "before"
        self.answers: dict[str, Counter[str]] = {}
        self.wrong: list[str] = []
        self.published: dict[str, str] = {}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(seed,)) for seed in range(READERS)]
        self._threads.append(threading.Thread(target=self._contribute))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """Send a request, and count its answer in the phase in which it began."""
        phase = self.phase
        request = urllib.request.Request(f"{self._live.address}{path}", body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                status, content = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, content = error.code, error.read()
                if status == 503 and "Retry-After" not in error.headers:
                    self.wrong.append(f"{phase}: {method} {path}: 503 without Retry-After")
        except (OSError, EOFError) as error:  # a download that was cut off; the client would resume it
            status, content = 0, str(error).encode()
        self.answers.setdefault(phase, Counter())["cut" if status == 0 else str(status)] += 1
        if status not in (0, 200, 201, 202, 503):
            self.wrong.append(f"{phase}: {method} {path}: {status} {content[:200]!r}")
        return status, content

    def _read(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._stop.is_set():
            path = chance.choice(PAGES)
            status, content = self.send("GET", path)
            expected = self._contents.get(path)
            if status == 200 and expected not in (None, hashlib.sha256(content).hexdigest()):
                self.wrong.append(f"{self.phase}: {path} has other bytes")
            time.sleep(0.05)

    def _contribute(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            with suppress(TimeoutError):
                self._publish(f"m{number}", small_model(f"New {number}", seed=1000 + number))

    def _publish(self, name: str, data: bytes) -> None:
        size = len(data)
        begun = self._until_done("POST", "/api/v1/uploads", {"kind": "file", "size_bytes": size, "name": "m.gguf"})
        address, middle = f"/api/v1/uploads/{begun['id']}", size // 2
        for first, end in ((0, middle), (middle, size)):
            span = {"Content-Range": f"bytes {first}-{end - 1}/{size}", "Content-Type": "application/octet-stream"}
            self._until_done("PATCH", address, data[first:end], **span)
        self._until_done("PUT", address, b"")
        files = [{"name": "m.gguf", "upload": begun["id"]}]
        sent = self._until_done("PUT", f"/api/v1/models/ada/{name}", {"files": files, "publish": True})
        while not self._stop.is_set():
            found = self._until_done("GET", f"/api/v1/submissions/{sent['id']}", None)
            if found["state"] not in ("checking", "publishing"):
                if found["state"] == "published":
                    self.published[f"ada/{name}"] = hashlib.sha256(data).hexdigest()
                else:
                    self.wrong.append(f"submission {sent['id']}: {found['state']} {found.get('findings')}")
                return
            time.sleep(0.2)

    def _until_done(self, method: str, path: str, body: object, **headers: str) -> dict[str, object]:
        """Send a request again until it is accepted, as clients do. Raises TimeoutError at the end of the load."""
        if body is not None and not isinstance(body, bytes):
            body, headers = msgspec.json.encode(body), {**headers, "Content-Type": "application/json"}
        while not self._stop.is_set():
            status, content = self.send(method, path, body, **headers, **authorization(self._token))
            if status in (200, 201, 202):
                answer: dict[str, object] = msgspec.json.decode(content)
                return answer
            time.sleep(0.5)
        raise TimeoutError


def run(seconds: float, folder: Path, stack: ExitStack) -> None:
    """Start the services, the server and the load; shut each gate in turn; check."""
    database = urlsplit(stack.enter_context(postgres.temporary_server()))
    path = f"{parse_qs(database.query)['host'][0]}/.s.PGSQL.5432"
    store = urlsplit(stack.enter_context(buckets.memory_server()))

    def connect_database() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        return connection

    gates = {
        "database": Gate(connect_database),
        "bucket": Gate(lambda: socket.create_connection((store.hostname or "", store.port or 0))),
    }
    url = f"postgresql+psycopg://organ@127.0.0.1:{gates['database'].port}/postgres"
    os.environ.update(buckets.CREDENTIALS, AWS_ENDPOINT_URL=f"http://127.0.0.1:{gates['bucket'].port}")
    os.environ.update({DATABASE_VARIABLE: url, BLOBS_VARIABLE: f"s3://{buckets.BUCKET}/outages"})
    buckets.create_bucket()
    settings = Settings.from_environment({**os.environ, HOME_VARIABLE: str(folder / "operator")})
    registry = stack.enter_context(LocalRegistry.from_settings(settings))
    model = folder / "m.gguf"
    model.write_bytes(small_model("Old"))
    ingest_file(registry, model, "old/m")
    token = new_token(registry, "ada", "read", "upload")
    live = stack.enter_context(running_server(folder / "node", folder / "log", options=("--workers", "2")))
    load = Load(live, token, {"/models/old/m.gguf": hashlib.sha256(model.read_bytes()).hexdigest()})
    load.start()
    recovery = {}
    try:
        time.sleep(CALM_SECONDS)
        for name, gate in gates.items():
            load.phase = f"without {name}"
            gate.shut()
            time.sleep(seconds)
            gate.open()
            load.phase = f"{name} is back"
            recovery[name] = _recovered(load)
            load.phase = f"after {name}"
            time.sleep(CALM_SECONDS)
    finally:
        load.stop()
    for phase, counts in load.answers.items():
        print(f"{phase}: {dict(counts)}")
    print(f"all answers are 200 again after {recovery} s; {len(load.published)} models were published meanwhile")
    if load.wrong:
        print("[ERROR]", (folder / "log").read_text().partition("[ERROR]")[2][:20_000])
    assert not load.wrong, load.wrong[:20]
    for phase in ("after database", "after bucket"):
        assert set(load.answers[phase]) <= {"200", "201", "202"}, (phase, load.answers[phase])
    for name, digest in load.published.items():
        registry.assemble(name, folder / "back.gguf")
        assert hashlib.sha256((folder / "back.gguf").read_bytes()).hexdigest() == digest, name
    report = verify(registry.catalog, registry.blobs, read_data=Share(1, 1))
    assert (report.faults, report.miscounted) == ([], {}), report
    print(f"{report.blobs} blobs read, all are right")


def _recovered(load: Load) -> dict[str, float]:
    """Return after how many seconds each page is answered with 200 again."""
    begun, times = time.monotonic(), {}
    while len(times) < len(PAGES):
        assert time.monotonic() - begun < RECOVERY_SECONDS, times
        for path in PAGES:
            if path not in times and load.send("GET", path)[0] == 200:
                times[path] = round(time.monotonic() - begun, 1)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.outages", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each outage lasts")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        run(chosen.seconds, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="organ-outages-"))), stack)


if __name__ == "__main__":
    main()
