"""A server under load while PostgreSQL and then the bucket do not answer for a while.

Readers and contributors send requests all the time. During an outage an answer is 200, or 503 with Retry-After; no
other error is allowed. Afterwards all answers are right again without a restart, and all that was confirmed is there.
"""

from __future__ import annotations

import hashlib
import os
import random
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from urllib.parse import parse_qs, urlsplit

import msgspec

from organs.registry.local import LocalRegistry
from organs.registry.settings import BLOBS_VARIABLE, DATABASE_VARIABLE, HOME_VARIABLE, Settings
from tests import buckets, postgres
from tests.faults.failing import verify_all
from tests.faults.hostile.harness import Arena, Case, Gate, Options, Suite
from tests.small_models import ingest_file, small_model
from tests.web.accounts import authorization, new_token
from tests.web.live_server import LiveServer

READERS = 4
CALM_SECONDS = 10.0
RECOVERY_SECONDS = 60.0
PAGES = ("/", "/models", "/organs", "/api/v1/models", "/api/v1/organs?q=type:organ", "/models/old/m.gguf")


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


def gates(stack: ExitStack) -> dict[str, Gate]:
    """Start both services; put a gate before each, and let the environment name the gates."""
    database = urlsplit(stack.enter_context(postgres.temporary_server()))
    path = f"{parse_qs(database.query)['host'][0]}/.s.PGSQL.5432"
    store = urlsplit(stack.enter_context(buckets.memory_server()))

    def connect_database() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        return connection

    made = {
        "database": Gate(connect_database),
        "bucket": Gate(lambda: socket.create_connection((store.hostname or "", store.port or 0))),
    }
    url = f"postgresql+psycopg://organ@127.0.0.1:{made['database'].port}/postgres"
    os.environ.update(buckets.CREDENTIALS, AWS_ENDPOINT_URL=f"http://127.0.0.1:{made['bucket'].port}")
    os.environ.update({DATABASE_VARIABLE: url, BLOBS_VARIABLE: f"s3://{buckets.BUCKET}/outages"})
    buckets.create_bucket()
    return made


@contextmanager
def opened(arena: Arena, options: Options) -> Iterator[list[Case]]:
    """Start the services, the server and the load; afterwards check all answers, and all that was published."""
    with ExitStack() as stack:
        doors = gates(stack)
        settings = Settings.from_environment({**os.environ, HOME_VARIABLE: str(arena.folder / "operator")})
        registry = stack.enter_context(LocalRegistry.from_settings(settings))
        model = arena.folder / "m.gguf"
        model.write_bytes(small_model("Old"))
        ingest_file(registry, model, "old/m")
        token = new_token(registry, "ada", "read", "upload")
        live = arena.serve("--workers", "2")
        load = Load(live, token, {"/models/old/m.gguf": hashlib.sha256(model.read_bytes()).hexdigest()})
        load.start()
        try:
            time.sleep(CALM_SECONDS)
            yield [Case("outage", name, partial(shut_for_a_while, load, name, doors[name], options)) for name in doors]
        finally:
            load.stop()
        arena.report.figures += [f"{phase}: {dict(counts)}" for phase, counts in load.answers.items()]
        arena.report.figures.append(f"{len(load.published)} models were published meanwhile")
        arena.report.faults += load.wrong
        for name, digest in load.published.items():
            registry.assemble(name, arena.folder / "back.gguf")
            is_same = hashlib.sha256((arena.folder / "back.gguf").read_bytes()).hexdigest() == digest
            arena.report.expect(is_same, f"{name} comes back as another file")
        report = verify_all(registry)
        arena.report.faults += [str(fault) for fault in (*report.faults, *report.miscounted.items())]
        arena.stop(live, may_have_failed=True)


def shut_for_a_while(load: Load, name: str, gate: Gate, options: Options) -> str:
    """Shut a gate; afterwards all answers are right again."""
    load.phase = f"without {name}"
    gate.shut()
    time.sleep(options.seconds)
    gate.open()
    load.phase = f"{name} is back"
    seconds = recovered(load)
    load.phase = f"after {name}"
    time.sleep(CALM_SECONDS)
    answers = load.answers[f"after {name}"]
    assert set(answers) <= {"200", "201", "202"}, answers
    return f"recovered after {max(seconds.values())} s"


def recovered(load: Load) -> dict[str, float]:
    """Return after how many seconds each page is answered with 200 again."""
    begun, times = time.monotonic(), {}
    while len(times) < len(PAGES):
        assert time.monotonic() - begun < RECOVERY_SECONDS, times
        for path in PAGES:
            if path not in times and load.send("GET", path)[0] == 200:
                times[path] = round(time.monotonic() - begun, 1)
    return times


SUITE = Suite(opened, {"seconds": 60.0})
"""`seconds` is the time of each outage."""
