"""Running a confined process: its limits, its output, and the end of everything that it started."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from organs.registry.errors import OrganError
from organs.registry.sandbox.protections import CONFINE, Kernel, check_protections, kernel, protections

OUTPUT_MAX_BYTES = 1024 * 1024
LOG_MAX_BYTES = 16 * 1024
READ_BYTES = 64 * 1024
ALARM_GRACE_SECONDS = 5
"""The child's own alarm ends it so many seconds after our own limit."""
POLL_SECONDS = 0.05
"""The interval of checks whether a process has ended while other processes keep its pipes open."""
SUPERVISOR_SECONDS = 5.0
"""The time for a supervisor to kill the descendants of a program. After that it is killed too."""

_LIBRARIES = (
    *("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"),
    *("/nix/store", "/gnu/store", "/etc/ld.so.cache", "/etc/ld.so.preload"),
)
"""Paths of shared libraries and of the program that loads them. Every confined process may use them."""
_SYSTEM_FILES = (
    *("/dev/zero", "/dev/random", "/dev/urandom", "/proc/cpuinfo", "/proc/meminfo"),
    *("/proc/sys/vm/overcommit_memory", "/proc/self/maps", "/sys/devices/system/cpu"),
)
"""Files that libraries read about the machine and about the process itself (its shared libraries)."""
_PACKAGES = ("registry", "ingest", "migrations")
_LIBRARY_FOLDERS = ("site-packages", "dist-packages")

_LIMIT_OF_SIGNAL = {
    signal.SIGXCPU: "processor time",
    signal.SIGALRM: "time",
    signal.SIGXFSZ: "room for files",
}


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """The limits of a process. None means no limit."""

    wall_seconds: float = 600.0
    cpu_seconds: int | None = None
    address_space_bytes: int | None = None
    file_size_bytes: int | None = None
    """The maximum size of each file that it writes."""
    output_max_bytes: int = OUTPUT_MAX_BYTES
    niceness: int = 10


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The resources of a process beyond its own program and the shared libraries of the system. None by default.

    A confined process never has sockets.

    Paths are files, or folders with everything below them. A path that does not exist grants nothing.
    """

    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    """Paths that may be read and written. In folders, files and folders may be created, renamed and removed. If this is
    empty, no file can be opened for writing."""
    run: tuple[Path, ...] = ()
    """Programs, or folders with programs, that its own program needs to start, for example an interpreter."""
    processes: bool = False
    """Whether it may start processes, and the programs in `run`. Threads are always allowed."""
    required: bool = False
    """Whether it must not run if this kernel cannot enforce all of this."""
    listed: tuple[Path, ...] = ()
    """Folders whose names, and the names in folders below, may be listed but not read."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a process ended. Exactly one of `code`, `signal_name` and `stopped` is not None."""

    code: int | None
    signal_name: str | None
    """The signal that killed it, such as "SIGSEGV", if we did not send it."""
    stopped: str | None
    """The limit that it exceeded, as the end of a sentence."""
    output: bytes
    log: str
    """The end of its text on stderr, without characters that control a terminal."""
    seconds: float


def run_confined(
    command: Sequence[str],
    limits: ProcessLimits,
    sandbox: Sandbox,
    environment: Mapping[str, str],
    folder: Path,
    stdin: bytes = b"",
    on_line: Callable[[bytes], None] = lambda _: None,
    *,
    descriptors: Sequence[int] = (),
    is_over: threading.Event | None = None,
) -> Result:
    """Run `command` in `folder` with `stdin` and only the variables of `environment`; return its result.

    `on_line` is called with each line of the output, immediately. The process inherits `descriptors` and the three
    standard ones. It is killed when another thread sets `is_over`, when `on_line` raises an exception, and on an
    interrupt. Raises NoSandbox; raises OrganError if no process can be started.
    """
    current_kernel = kernel()
    offered = protections(current_kernel, writing=bool(sandbox.write), processes=sandbox.processes)
    check_protections(offered, required=sandbox.required)
    program = shutil.which(command[0], path=environment.get("PATH")) or command[0]
    supervised = current_kernel.is_linux and (sandbox.processes or not current_kernel.has_seccomp)
    orders = _orders(current_kernel, limits, sandbox, program, supervised=supervised)
    start = time.monotonic()
    try:
        process = subprocess.Popen(  # noqa: S603 - no shell; the caller chooses the command
            [sys.executable, "-I", "-S", "-B", str(CONFINE), json.dumps(orders), program, *command[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
            pass_fds=descriptors,
            bufsize=0,
        )
    except OSError as error:
        raise OrganError(f"no process can be started: {error.strerror}") from error
    try:
        try:
            pipes = _Pipes(process, limits, stdin, on_line, is_over or threading.Event())
        except OSError as error:  # for example, no descriptor is left
            raise OrganError(f"a process cannot be watched: {error.strerror}") from error
        stopped = pipes.until_end(start + limits.wall_seconds)
    finally:
        _end(process, supervised=supervised)
    code, signal_name = None, None
    if stopped is None and process.returncode >= 0:
        code = process.returncode
    elif stopped is None:
        number = -process.returncode
        if number in _LIMIT_OF_SIGNAL:
            stopped = f"it used up its {_LIMIT_OF_SIGNAL[signal.Signals(number)]}"
        else:
            is_named = number in signal.valid_signals() and number in set(signal.Signals)
            signal_name = signal.Signals(number).name if is_named else f"signal {number}"
    output, log = bytes(pipes.output[: limits.output_max_bytes + 1]), plain_text(bytes(pipes.log))
    return Result(code, signal_name, stopped, output, log, time.monotonic() - start)


def run_python(
    module: str,
    limits: ProcessLimits,
    sandbox: Sandbox,
    stdin: bytes = b"",
    on_line: Callable[[bytes], None] = lambda _: None,
    *,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] = MappingProxyType({}),
    descriptors: Sequence[int] = (),
    is_over: threading.Event | None = None,
) -> Result:
    """Run a module of this project as a program, with this interpreter and its installed packages.

    It may read these packages; in a source tree that is not installed, only the packages of this project. Its
    environment has the variables to find them, and `variables`. Other parameters are those of `run_confined`.
    """
    search, readable = _python_paths()
    allowed = replace(
        sandbox,
        read=(*readable, *sandbox.read),
        listed=(Path(search[0]), *sandbox.listed),  # Python searches the source tree for our packages
    )
    environment = {"PYTHONPATH": os.pathsep.join(search), "PATH": os.defpath, "LC_ALL": "C.UTF-8", **variables}
    command = [sys.executable, "-P", "-s", "-B", "-m", module, *arguments]
    return run_confined(
        command, limits, allowed, environment, Path("/"), stdin, on_line, descriptors=descriptors, is_over=is_over
    )


@cache
def _python_paths() -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Return the paths where a Python child searches for modules, and the paths that it may read."""
    source = Path(__file__).parents[3]
    installed = [path for path in sys.path if Path(path).is_absolute() and Path(path).name in _LIBRARY_FOLDERS]
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    readable = [Path(prefix, folder) for prefix in sorted(prefixes) for folder in ("lib", "lib64", "pyvenv.cfg")]
    readable += [Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("platstdlib")), *map(Path, installed)]
    readable += [source / "organs" / package for package in _PACKAGES]
    return (str(source), *installed), tuple(readable)


def _orders(
    current_kernel: Kernel, limits: ProcessLimits, sandbox: Sandbox, program: str, *, supervised: bool
) -> dict[str, Any]:
    """Return the orders for `confine`."""

    def texts(paths: Iterable[Path]) -> list[str]:
        return [str(path.absolute()) for path in paths]

    devices = [path for path in sandbox.write if _is_device(path)]
    return {
        "parent": os.getpid(),
        "supervise": supervised,
        "limits": {
            "address_space_bytes": limits.address_space_bytes,
            "cpu_seconds": limits.cpu_seconds,
            "file_size_bytes": limits.file_size_bytes,
            "niceness": limits.niceness,
            "alarm_seconds": int(limits.wall_seconds) + ALARM_GRACE_SECONDS,
        },
        "sandbox": {
            "landlock": current_kernel.landlock_abi,
            "seccomp": current_kernel.has_seccomp,
            "read": [*_SYSTEM_FILES, *texts(sandbox.read)],
            "write": texts(path for path in sandbox.write if path not in devices),
            "devices": [os.devnull, *texts(devices)],
            "listed": texts(sandbox.listed),
            "run": [*_LIBRARIES, *texts([*sandbox.run, Path(program)])],
            "processes": sandbox.processes,
        }
        if current_kernel.is_linux
        else None,
    }


def _is_device(path: Path) -> bool:
    """Return whether `path` is a device; False if its folder cannot be searched, which `is_char_device` raises."""
    try:
        return path.is_char_device()
    except OSError:
        return False


class _Pipes:
    """The three pipes of a process. Reading and writing them never blocks and needs bounded memory."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        limits: ProcessLimits,
        stdin: bytes,
        on_line: Callable[[bytes], None],
        is_over: threading.Event,
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._limits = limits
        self._stdin = memoryview(stdin)
        self._on_line = on_line
        self._is_over = is_over
        self._unfinished = 0
        self.output = bytearray()
        self.log = bytearray()
        self._selector = selectors.DefaultSelector()
        for pipe, events, act in (
            (process.stdin, selectors.EVENT_WRITE, self._feed),
            (process.stdout, selectors.EVENT_READ, self._read_output),
            (process.stderr, selectors.EVENT_READ, self._read_log),
        ):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, events, act)

    def until_end(self, deadline: float) -> str | None:
        """Wait until the process has ended and its pipes are empty; return the limit that it exceeded, if any."""
        with self._selector:
            while True:
                has_ended = _has_ended(self._process.pid)
                if self._is_over.is_set():
                    return None
                left = deadline - time.monotonic()
                if left <= 0:
                    return None if has_ended else f"it took longer than {self._limits.wall_seconds:g} s"
                wait = 0 if has_ended else min(POLL_SECONDS, left)
                ready = self._selector.select(wait) if self._selector.get_map() else []
                if has_ended and not any(events & selectors.EVENT_READ for _, events in ready):
                    return None
                if not self._selector.get_map():
                    time.sleep(wait)
                for key, _ in ready:
                    key.data(key.fd)
                if len(self.output) > self._limits.output_max_bytes:
                    return f"it printed more than {self._limits.output_max_bytes} bytes"

    def _feed(self, descriptor: int) -> None:
        try:
            self._stdin = self._stdin[os.write(descriptor, self._stdin) :] if self._stdin else self._stdin
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._stdin = memoryview(b"")
        if not self._stdin:
            self._close(self._process.stdin)

    def _read_output(self, descriptor: int) -> None:
        data = os.read(descriptor, READ_BYTES)
        if not data:
            self._close(self._process.stdout)
            return
        self.output += data
        while (end := self.output.find(b"\n", self._unfinished)) >= 0:
            line = bytes(self.output[self._unfinished : end])
            self._unfinished = end + 1
            if end < self._limits.output_max_bytes:
                self._on_line(line)

    def _read_log(self, descriptor: int) -> None:
        data = os.read(descriptor, READ_BYTES)
        if not data:
            self._close(self._process.stderr)
        self.log += data
        del self.log[:-LOG_MAX_BYTES]

    def _close(self, pipe: object) -> None:
        self._selector.unregister(pipe)  # type: ignore[arg-type]
        pipe.close()  # type: ignore[attr-defined]


def _has_ended(pid: int) -> bool:
    """Return whether the process has ended. It is not reaped, so that its number and its group are not reused."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _end(process: subprocess.Popen[bytes], *, supervised: bool) -> None:
    """Kill the process and everything that it started, reap the process, close the pipes."""
    if supervised and not _has_ended(process.pid):
        process.terminate()  # the supervisor then kills all descendants, also those that left the group
        with suppress(subprocess.TimeoutExpired):
            process.wait(SUPERVISOR_SECONDS)
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):  # on macOS, if only the unreaped process is left
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def plain_text(data: bytes) -> str:
    """Return `data` as lines of text; bytes that are not UTF-8, and control characters, are replaced."""
    text = data.decode("utf-8", "replace")
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)
