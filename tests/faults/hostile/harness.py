"""The harness of the hostile programs: it runs the cases of a suite, reports what does not hold, and leaves no process.

A case has a kind, a name, and an action that returns its outcome in a few words. An AssertionError in an action is a
fault of that case. A suite opens its cases: it prepares a registry and its servers, yields the cases, and checks
afterwards what must still hold. Everything that it starts is started by its arena, which kills what is left at the end.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from organs.registry.local import LocalRegistry
from tests import postgres
from tests.faults.failing import verify_all
from tests.web.live_server import ROOT, LiveServer, start_server, stop_server

STOPPED_SECONDS = 120.0
"""After this time (seconds) a command is killed, unless it is given more."""
WATCH_SECONDS = 0.1
"""Between two looks at the processes of a server."""
FAULTS_SHOWN_MAX = 60
BUFFER_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Case:
    """What is sent or done; `act` returns how it ended, and raises AssertionError for what does not hold."""

    kind: str
    name: str
    act: Callable[[], str]


@dataclass(slots=True)
class Report:
    """How the cases ended, and what did not hold."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Numbers of cases by kind and outcome."""
    figures: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def expect(self, holds: object, fault: str) -> None:
        """Record a fault unless it holds."""
        if not holds:
            self.faults.append(fault)

    def print(self, suite: str, seconds: float) -> int:
        """Print the report; return the exit status: 1 if there is a fault."""
        print(f"{suite}: {self.outcomes.total()} cases in {seconds:.0f} s, {len(self.faults)} faults")
        for kind in sorted({kind for kind, _ in self.outcomes}):
            ended = sorted((how, number) for (one, how), number in self.outcomes.items() if one == kind)
            print(f"  {kind:26}", ", ".join(f"{number} {how}" for how, number in ended))
        for figure in self.figures:
            print(f"  {figure}")
        for fault in self.faults[:FAULTS_SHOWN_MAX]:
            print("WRONG:", fault)
        return 1 if self.faults else 0


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a command: its exit status, what it printed, and what it took."""

    status: int
    output: str
    seconds: float
    peak_bytes: int


class Arena:
    """A folder with a registry, and all processes of a run; what still runs at the end is a fault, and is killed."""

    def __init__(self, folder: Path, report: Report) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.report = report
        self.peaks: Counter[str] = Counter()
        """The most memory of a process of a server, by its kind: "worker", "runner" or "child"."""
        self._servers: list[LiveServer] = []
        self._started: list[subprocess.Popen[str]] = []
        self._family: dict[int, psutil.Process] = {}
        self._ended = threading.Event()

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        for live in [*self._servers]:
            self.stop(live)
        self._ended.set()
        for process in self._started:
            if process.poll() is None:
                self.kill(process)
        for left in self._family.values():
            with suppress(psutil.NoSuchProcess):
                if left.is_running() and left.status() != psutil.STATUS_ZOMBIE:
                    self.report.faults.append(f"left behind: {left}")
                    left.kill()

    def organ(self, *words: str | Path) -> list[str]:
        """Return the command line of `organ` with these words on the registry of the arena."""
        return self.client("--home", self.home, *words)

    def client(self, *words: str | Path) -> list[str]:
        """Return the command line of `organ` with these words, for a registry that they or its environment name."""
        return [sys.executable, "-m", "organs.cli", *map(str, words)]

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), **postgres.environment(self.home), **more}

    def start(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, log: Path | None = None
    ) -> subprocess.Popen[str]:
        """Start a command whose output goes to the end of a file."""
        with open(os.devnull if log is None else log, "a") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment or self.environment(), stdout=output, stderr=output, text=True
            )
        self._started.append(process)
        return process

    def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        seconds: float = STOPPED_SECONDS,
    ) -> Ended:
        """Run a command to its end; measure the time and the memory of it and its children."""
        begun = time.monotonic()
        with TemporaryDirectory(dir=self.folder) as name, Path(name, "output").open("w+b") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment or self.environment(),
                cwd=folder or name,
            )
            timer = threading.Timer(seconds, process.kill)
            timer.start()
            _, status, usage = os.wait4(process.pid, 0)
            timer.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            text = output.read().decode("utf-8", "replace")
        return Ended(process.returncode, text, time.monotonic() - begun, usage.ru_maxrss * 1024)

    def must_run(self, *words: str | Path) -> Ended:
        """Run `organ`, which must succeed."""
        ended = self.run(self.organ(*words))
        assert ended.status == 0, f"organ {words[0]} failed: {ended.output[-500:]}"
        return ended

    def serve(self, *options: str, port: int | None = None, watch_seconds: float = WATCH_SECONDS) -> LiveServer:
        """Serve the registry of the arena, and watch all processes of the server and their memory."""
        log = self.folder / f"server-{len(list(self.folder.glob('server-*.log')))}.log"
        live = start_server(self.home, log, port=port, options=options)
        self._servers.append(live)
        threading.Thread(target=self._watch, args=(live, watch_seconds), daemon=True).start()
        return live

    def stop(self, live: LiveServer, *, may_have_failed: bool = False) -> None:
        """End a server as a service manager does; its log may have no traceback, unless its services have failed."""
        self._servers.remove(live)
        stop_server(live)
        if may_have_failed:
            return
        log = live.log.read_text(errors="replace")
        for word in ("Traceback", "an inspector failed", "has ended;"):
            self.report.expect(word not in log, f"in the log of the server: {log[log.find(word) :][:4000]}")

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Send SIGKILL to a process and to all of its descendants, and wait for its end."""
        with suppress(psutil.NoSuchProcess):
            for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                with suppress(psutil.NoSuchProcess):
                    one.send_signal(signal.SIGKILL)
        process.wait()

    def kill_server(self, live: LiveServer, *options: str) -> LiveServer:
        """Kill a server with all of its processes, and start it again on the same port."""
        self._servers.remove(live)
        self.kill(live.process)
        self._family.clear()
        return self.serve(*options, port=live.port)

    def check_registry(self) -> None:
        """Read everything that is stored: each fault, and each wrong count, is a fault of the run."""
        with LocalRegistry.open(self.home) as registry:
            report = verify_all(registry)
        self.report.faults += [f"verify: {fault}" for fault in (*report.faults, *report.miscounted.items())]

    def _watch(self, live: LiveServer, seconds: float) -> None:
        while not self._ended.wait(seconds):
            try:
                for process in psutil.Process(live.process.pid).children(recursive=True):
                    words = process.cmdline()
                    kind = "runner" if "work" in words else "child" if "serve" not in words else "worker"
                    self.peaks[kind] = max(self.peaks[kind], process.memory_info().rss)
                    self._family.setdefault(process.pid, process)
            except psutil.NoSuchProcess as error:
                if error.pid == live.process.pid:
                    return
            except psutil.Error:
                continue


class Gate:
    """A port of this machine whose connections go on to another address, which may be shut or cut."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._is_open = True
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._listener.getsockname()[1]
        self.sent_bytes = 0
        """The bytes that clients have sent."""
        self.cuts = 0
        """The number of connections that were cut while they were open."""
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Reset all connections; new ones are let through."""
        with self._lock:
            cut, self._open = self._open, set()
        for connection in cut:
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                connection.shutdown(socket.SHUT_RDWR)
        self.cuts += len(cut)

    def shut(self) -> None:
        """End all connections, and new ones at once."""
        self._is_open = False
        self.cut()

    def open(self) -> None:
        """Let connections through again."""
        self._is_open = True

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            try:
                target = self._connect() if self._is_open else None
            except OSError:
                target = None
            if target is None:
                client.close()
                continue
            with self._lock:
                self._open.add(client)
            for source, sink in ((client, target), (target, client)):
                threading.Thread(target=self._carry, args=(source, sink, source is client), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, is_sent: bool) -> None:
        with suppress(OSError):
            while data := source.recv(BUFFER_BYTES):
                if is_sent:
                    with self._lock:
                        self.sent_bytes += len(data)
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(source if is_sent else sink)


Options = argparse.Namespace
Open = Callable[[Arena, Options], AbstractContextManager[Iterable[Case]]]


@dataclass(frozen=True, slots=True)
class Suite:
    """A way to attack: `open` prepares the arena, yields the cases, and checks afterwards what must still hold."""

    open: Open
    options: Mapping[str, object]
    """The names and defaults of its options; the type of a default is the type of the option."""
    lanes: int = 1
    """How many cases run at a time. With one, they run in the main thread."""


def run(suite: Suite, options: Options, folder: Path) -> Report:
    """Run all cases of a suite in an empty folder."""
    report = Report()
    with Arena(folder, report) as arena:
        try:
            with suite.open(arena, options) as cases:
                _run_all(iter(cases), report, suite.lanes)
        except AssertionError:
            report.faults.append(traceback.format_exc())
    return report


def _run_all(cases: Iterator[Case], report: Report, lanes: int) -> None:
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                case = next(cases, None)
            if case is None:
                return
            how = "broken"
            try:
                how = case.act()
            except (AssertionError, OSError) as error:
                with lock:
                    report.faults.append(f"{case.kind}, {case.name}: {error or traceback.format_exc()}")
            with lock:
                report.outcomes[case.kind, how] += 1

    if lanes == 1:  # a process that forks may have no other thread
        work()
        return
    threads = [threading.Thread(target=work) for _ in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
