"""A push of a large model over an interrupted connection to a server that is killed: `make cut-push`.

A model of 1.19 GB is generated and pushed by `organ push`. A gate between the command and the server cuts all open
connections after a random number of bytes; at intervals the server and all of its processes get SIGKILL, and are
started again. At the end the model is downloaded and compared with the file to the last byte, the registry is verified,
and the bytes through the gate are counted: the bytes sent twice may be one chunk for each connection that was cut or
killed.
"""

from __future__ import annotations

import hashlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.generated import SMALL, Architecture, write_model
from organs.registry.local import LocalRegistry
from tests.faults.hostile.harness import Arena, Case, Gate, Options, Suite
from tests.web.accounts import new_token
from tests.web.live_server import LiveServer

LITTLE = Architecture(4, 512, 1024, 512, 1536, 20_000, 64)
"""60 MB: for a short run."""
CHUNK_BYTES = 8 * 1024 * 1024
HEADER_BYTES = 4096
"""More than the header of any request of a push, for the count of sent bytes."""
RUN_SECONDS, LITTLE_RUN_SECONDS = 3600.0, 600.0
"""A run of the command that takes longer hangs."""
PUSH_MAX = 20
"""The number of times that the command is run again after it has failed."""


@dataclass(slots=True)
class Push:
    """A push through a gate, and the server behind it."""

    arena: Arena
    options: Options
    model: Path
    token: str
    live: LiveServer
    gate: Gate = field(init=False)
    kills: int = 0

    def __post_init__(self) -> None:
        self.gate = Gate(lambda: socket.create_connection(("127.0.0.1", self.live.port), 5))

    def cut_and_killed(self) -> str:
        """Push while the connection is cut and the server is killed; what is sent twice has a bound."""
        is_pushed = threading.Event()
        spoiler = threading.Thread(target=self._spoil, args=(is_pushed,), daemon=True)
        spoiler.start()
        begun = time.monotonic()
        runs = self._push()
        is_pushed.set()
        spoiler.join()
        size_bytes, sent, hit = self.model.stat().st_size, self.gate.sent_bytes, self.gate.cuts
        twice = sent - size_bytes
        chunks = twice / max(hit, 1) / CHUNK_BYTES
        self.arena.report.figures += [
            f"{size_bytes:,} bytes in {time.monotonic() - begun:.0f} s, {runs} runs of the command",
            f"{self.options.cuts} cuts and {self.kills} kills hit {hit} connections",
            f"sent {sent:,} bytes, {twice:,} twice: {chunks:.2f} chunks of {CHUNK_BYTES:,} for each that was hit",
        ]
        assert twice <= hit * (CHUNK_BYTES + HEADER_BYTES) + size_bytes // 100, f"{twice:,} bytes were sent twice"
        return "pushed"

    def again(self) -> str:
        """Push once more: the server has everything."""
        before = self.gate.sent_bytes
        self._push()
        self.arena.report.figures.append(f"pushed once more: {self.gate.sent_bytes - before:,} bytes")
        return "pushed"

    def fetched(self) -> str:
        """Download the model: it has the bytes of the file."""
        data = self.live.get("/models/ada/large.gguf", seconds=600)
        is_same = hashlib.sha256(data).digest() == hashlib.sha256(self.model.read_bytes()).digest()
        assert is_same, "what was fetched is not what was pushed"
        return "identical"

    def _push(self) -> int:
        """Push until it succeeds; return the number of runs of the command."""
        folder, address = self.arena.folder, f"http://127.0.0.1:{self.gate.port}"
        places = {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_CONFIG_HOME": str(folder / "config")}
        environment = self.arena.environment(ORGAN_TOKEN=self.token, **places)
        seconds = LITTLE_RUN_SECONDS if self.options.little else RUN_SECONDS
        for attempt in range(1, PUSH_MAX + 1):
            words = ("--registry", address, "push", str(self.model), "--json")
            ended = self.arena.run(self.arena.client(*words), environment, seconds=seconds)
            assert ended.seconds < seconds, f"the push hangs: it was ended after {seconds:.0f} s"
            if ended.status == 0:
                return attempt
            print(f"run {attempt} ended: {ended.output.strip()[-300:]}", flush=True)
            time.sleep(1)
        raise AssertionError("the push never ended")

    def _spoil(self, is_pushed: threading.Event) -> None:
        """Cut and kill, each after a random number of bytes."""
        chance = random.Random(self.options.seed)
        whats = ["cut"] * self.options.cuts + ["kill"] * self.options.kills
        chance.shuffle(whats)
        for after, what in zip(sorted(chance.randrange(self.model.stat().st_size) for _ in whats), whats, strict=True):
            while self.gate.sent_bytes < after and not is_pushed.is_set():
                time.sleep(0.002)
            if is_pushed.is_set():
                return
            self.gate.cut()
            if what == "kill":
                self.live = self.arena.kill_server(self.live, "--accounts")
                self.kills += 1


@contextmanager
def opened(arena: Arena, options: Options) -> Iterator[Iterator[Case]]:
    """Generate the model and serve an empty registry; afterwards read all that is stored."""
    model = arena.folder / "large.gguf"
    write_model(model, LITTLE if options.little else SMALL)
    with LocalRegistry.open(arena.home) as registry:
        token = new_token(registry, "ada", "read", "upload")
    push = Push(arena, options, model, token, arena.serve("--accounts"))
    cases = [
        Case("push", "cut and killed", push.cut_and_killed),
        Case("push", "once more", push.again),
        Case("download", "compared", push.fetched),
    ]
    yield (case for case in cases if not arena.report.faults)
    arena.stop(push.live)
    peaks = ", ".join(f"{kind} {peak / 1e6:.0f} MB" for kind, peak in sorted(arena.peaks.items()))
    arena.report.figures.append(f"most memory: {peaks}")
    arena.check_registry()


SUITE = Suite(opened, {"cuts": 30, "kills": 5, "seed": 1, "little": False})
"""`little` pushes 60 MB."""
