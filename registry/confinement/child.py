"""One confined process: limits on itself, output bounded, its whole group killed in the end, however it ends."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from registry.errors import OrganError

OUTPUT_MAX_BYTES = 1024 * 1024
LOG_MAX_BYTES = 16 * 1024
READ_BYTES = 64 * 1024
ALARM_GRACE_SECONDS = 5
"""The child's own alarm rings so much later than we stop it."""
LOOK_SECONDS = 0.05
"""How often we look whether a process has ended that left its pipes open to others."""

_CONFINE = Path(__file__).with_name("confine.py")
_SPENT = {signal.SIGXCPU: "processor time", signal.SIGALRM: "time", signal.SIGXFSZ: "room for files"}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may use. None is no limit."""

    wall_seconds: float = 600.0
    cpu_seconds: int | None = None
    address_space_bytes: int | None = None
    file_size_bytes: int | None = None
    """Of any file that it writes."""
    output_max_bytes: int = OUTPUT_MAX_BYTES
    niceness: int = 10

    def as_json(self) -> str:
        """The limits that the child sets on itself."""
        alarm_seconds = int(self.wall_seconds) + ALARM_GRACE_SECONDS
        return json.dumps(
            {
                "address_space_bytes": self.address_space_bytes,
                "cpu_seconds": self.cpu_seconds,
                "file_size_bytes": self.file_size_bytes,
                "niceness": self.niceness,
                "alarm_seconds": alarm_seconds,
            }
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended. Exactly one of `code`, `signal_name` and `stopped` is not None."""

    code: int | None
    signal_name: str | None
    """The signal that it died of by itself, such as "SIGSEGV"."""
    stopped: str | None
    """The limit that it was over, as the end of a sentence."""
    output: bytes
    log: str
    """The end of what it wrote to stderr, without what a terminal would obey."""
    seconds: float


def run_confined(
    command: Sequence[str],
    limits: Limits,
    environment: Mapping[str, str],
    folder: Path,
    given: bytes = b"",
    on_line: Callable[[bytes], None] = lambda _: None,
) -> Ended:
    """Run `command` in `folder` with `given` on its stdin; `on_line` gets each line that it prints, as it comes.

    An exception out of `on_line`, or an interrupt, kills the child and goes on. Raises OrganError when no process can
    be started at all.
    """
    began = time.monotonic()
    try:
        process = subprocess.Popen(  # noqa: S603 - no shell; the command is the caller's business
            [sys.executable, "-I", "-S", "-B", str(_CONFINE), limits.as_json(), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
            bufsize=0,
        )
    except OSError as error:
        raise OrganError(f"no process can be started: {error.strerror}") from error
    talk = _Talk(process, limits, given, on_line)
    try:
        stopped = talk.until_end(began + limits.wall_seconds)
    finally:
        _end(process)
    return _ended(process.returncode, stopped, talk, time.monotonic() - began)


def python_environment() -> dict[str, str]:
    """For a child that is Python: as little as it needs to find what we find."""
    package = util.find_spec("registry")
    assert package is not None
    assert package.submodule_search_locations is not None
    roots = [str(Path(place).parent) for place in package.submodule_search_locations]
    paths = [*roots, *(path for path in sys.path if path and Path(path).is_absolute())]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PATH": os.defpath, "LC_ALL": "C.UTF-8"}


class _Talk:
    """What goes through the three pipes of a process, so that none of them can block us or fill our memory."""

    def __init__(
        self, process: subprocess.Popen[bytes], limits: Limits, given: bytes, on_line: Callable[[bytes], None]
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._limits = limits
        self._given = memoryview(given)
        self._on_line = on_line
        self._unfinished = 0
        self.output = bytearray()
        self.log = bytearray()
        self._selector = selectors.DefaultSelector()
        for pipe, events, act in (
            (process.stdin, selectors.EVENT_WRITE, self._give),
            (process.stdout, selectors.EVENT_READ, self._take_output),
            (process.stderr, selectors.EVENT_READ, self._take_log),
        ):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, events, act)

    def until_end(self, deadline: float) -> str | None:
        """Talk until the process has ended and its pipes are empty; the limit that it was over, if any."""
        with self._selector:
            while True:
                has_ended = _has_ended(self._process.pid)
                left = deadline - time.monotonic()
                if left <= 0:
                    return None if has_ended else f"it took longer than {self._limits.wall_seconds:g} s"
                wait = 0 if has_ended else min(LOOK_SECONDS, left)
                ready = self._selector.select(wait) if self._selector.get_map() else []
                if has_ended and not any(events & selectors.EVENT_READ for _, events in ready):
                    return None
                if not self._selector.get_map():
                    time.sleep(wait)
                for key, _ in ready:
                    key.data(key.fd)
                if len(self.output) > self._limits.output_max_bytes:
                    return f"it printed more than {self._limits.output_max_bytes} bytes"

    def _give(self, descriptor: int) -> None:
        try:
            self._given = self._given[os.write(descriptor, self._given) :] if self._given else self._given
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._given = memoryview(b"")
        if not self._given:
            self._close(self._process.stdin)

    def _take_output(self, descriptor: int) -> None:
        data = self._read(descriptor)
        if not data:
            self._close(self._process.stdout)
            return
        self.output += data
        while (end := self.output.find(b"\n", self._unfinished)) >= 0:
            line = bytes(self.output[self._unfinished : end])
            self._unfinished = end + 1
            if end < self._limits.output_max_bytes:
                self._on_line(line)

    def _take_log(self, descriptor: int) -> None:
        data = self._read(descriptor)
        if not data:
            self._close(self._process.stderr)
        self.log += data
        del self.log[:-LOG_MAX_BYTES]

    def _read(self, descriptor: int) -> bytes:
        return os.read(descriptor, READ_BYTES)

    def _close(self, pipe: object) -> None:
        self._selector.unregister(pipe)  # type: ignore[arg-type]
        pipe.close()  # type: ignore[attr-defined]


def _has_ended(pid: int) -> bool:
    """Whether the process has ended; it is left unreaped, so that its number and its group's are not given away."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole group, reap the process, close the pipes."""
    with suppress(ProcessLookupError, PermissionError):  # macOS: nobody but the unreaped one is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def _ended(status: int, stopped: str | None, talk: _Talk, seconds: float) -> Ended:
    output, log = bytes(talk.output[: OUTPUT_MAX_BYTES + 1]), plain_text(bytes(talk.log))
    if stopped is not None:
        return Ended(None, None, stopped, output, log, seconds)
    if status >= 0:
        return Ended(status, None, None, output, log, seconds)
    number = -status
    if number in _SPENT:
        return Ended(None, None, f"it used up its {_SPENT[signal.Signals(number)]}", output, log, seconds)
    known = number in signal.valid_signals() and number in set(signal.Signals)
    return Ended(None, signal.Signals(number).name if known else f"signal {number}", None, output, log, seconds)


def plain_text(data: bytes) -> str:
    """`data` as lines of text; bytes that are no UTF-8, and characters that a terminal would obey, are replaced."""
    text = data.decode("utf-8", "replace")
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)
