"""llama.cpp through the package `xllamacpp` (the extra `validate`), in a confined child."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Any

from organs.registry.errors import BadSource
from organs.registry.sandbox.process import Limits, Result, Sandbox, plain_text, run_python
from organs.registry.validation.runtime import (
    LOOPBACK,
    Failure,
    FailureKind,
    NoRuntime,
    Reading,
    Request,
    Say,
    Score,
    Window,
)

PACKAGE = "xllamacpp"
EXTRA = "validate"
NOT_INSTALLED = f"llama.cpp is not installed; install this program with the extra {EXTRA!r}"
METHOD = "windows in batches"

MEMORY_SPARE_BYTES = 4 * 1024**3
"""Address space for the library, its threads, the context and its caches; measured: about 1.5 GB for a small model."""
MEMORY_PER_MODEL = 3
"""The file is mapped once, and partly repacked for the processor."""
THREADS_FROM_BYTES = 256 * 1024 * 1024
"""Smaller models run on one thread: llama.cpp's threads wait actively, hundreds of times for each token, and on a busy
machine two threads can take ten times as long as one."""
OUTPUT_MAX_BYTES = 4 * 1024 * 1024
"""About 130 bytes for each window."""
WRITTEN_MAX_LENGTH = 2000
REASON_MAX_LENGTH = 300

_LOADING = re.compile(r"error loading model: (?P<reason>.+)")
_ERROR = re.compile(r"^[0-9.]+ E (?P<reason>.+)$", re.MULTILINE)
_ASSERTION = re.compile(r"GGML_ASSERT\(.+")


class LlamaCpp:
    """The built-in runtime. Raises NoRuntime if `xllamacpp` is not installed."""

    def __init__(self, limits: Limits | None = None, package: str = PACKAGE, *, requires_sandbox: bool = False) -> None:
        self._limits = limits or Limits()
        self._requires_sandbox = requires_sandbox
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            raise NoRuntime(NOT_INSTALLED, EXTRA) from None
        self._identity = f"llama.cpp, {package} {version}, {METHOD}"

    @property
    def identity(self) -> str:
        return self._identity

    def read(self, request: Request, say: Say) -> Reading:
        """Load the model in a confined process, and score windows. Raises NoRuntime, NoSandbox."""
        answers = _Answers(say, request)
        with _reserved_port() as port:
            result = run_python(
                "organs.registry.validation.probe",
                self._limits_for(request),
                self._sandbox_for(request, port),
                self._input(request, port),
                answers.take_line,
            )
        if answers.missing is not None:
            raise NoRuntime(f"{NOT_INSTALLED} ({answers.missing})", EXTRA)
        scores = answers.scores()
        failure = None if answers.is_done else _failure(result, answers)
        return Reading(failure, scores, answers.written, answers.by_chat_template, result.log, result.seconds)

    def _sandbox_for(self, request: Request, port: int) -> Sandbox:
        """Return a sandbox with the files of the model, and the port of llama.cpp's server."""
        return Sandbox(read=model_files(request.model), port=port, required=self._requires_sandbox)

    def _input(self, request: Request, port: int) -> bytes:
        values = {
            "model": str(request.model.absolute()),
            "texts": [text.text for text in request.texts],
            "ranks": [[ranks.start, ranks.stop] for ranks in request.ranks],
            "window_tokens": request.window_tokens,
            "seconds": request.seconds,
            "writes": request.writes,
            "threads": 1 if _size_bytes(request.model) < THREADS_FROM_BYTES else os.cpu_count() or 1,
            "chat": request.chat,
            "wall_seconds": self._limits_for(request).wall_seconds,
            "port": port,
        }
        return json.dumps(values).encode()

    def _limits_for(self, request: Request) -> Limits:
        """The limits of this runtime; where one is not set, a generous one for this model."""
        own = self._limits
        size_bytes = _size_bytes(request.model)
        cores = os.cpu_count() or 1
        wall_seconds = own.wall_seconds + (request.seconds or 0.0)
        return Limits(
            wall_seconds,
            own.cpu_seconds or int(wall_seconds * cores) + 1,
            own.address_space_bytes or MEMORY_PER_MODEL * size_bytes + MEMORY_SPARE_BYTES,
            own.file_size_bytes or 0,  # it has nothing to write
            max(own.output_max_bytes, OUTPUT_MAX_BYTES),
            own.niceness,
        )


@dataclass(slots=True)
class _Answers:
    """What the child has printed so far; lines that are not of the protocol are ignored."""

    say: Say
    request: Request
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By the number of the text: its windows, and its tokens."""
    windows: dict[tuple[int, int], Window] = field(default_factory=dict)
    """By the number of the text and the rank of the window."""
    written: str | None = None
    by_chat_template: bool = False
    is_loaded: bool = False
    is_done: bool = False
    refused: str | None = None
    missing: str | None = None

    def take_line(self, line: bytes) -> None:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(values, dict):
            for key, value in values.items():
                self._take(key, value)

    def _take(self, key: str, value: Any) -> None:
        acts: dict[str, Callable[[Any], None]] = {
            "say": lambda value: self.say(str(value), len(self.windows)),
            "loaded": lambda _: setattr(self, "is_loaded", True),
            "done": lambda _: setattr(self, "is_done", True),
            "text": lambda value: self.sizes.update({int(value[0]): (int(value[1]), int(value[2]))}),
            "window": self._take_window,
            "written": lambda value: setattr(self, "written", plain_text(str(value).encode())[:WRITTEN_MAX_LENGTH]),
            "chat": lambda value: setattr(self, "by_chat_template", bool(value)),
            "refused": lambda value: setattr(self, "refused", str(value)),
            "missing": lambda value: setattr(self, "missing", str(value)),
        }
        if key in acts:
            acts[key](value)

    def _take_window(self, value: Any) -> None:
        number, rank, nats, tokens, digest = value
        self.windows[int(number), int(rank)] = Window(float(nats), int(tokens), str(digest))

    def scores(self) -> tuple[Score, ...]:
        """Return the scores of all texts, as far as they are complete from the first requested window on."""
        return tuple(self._score(number) for number in range(len(self.request.texts)) if number in self.sizes)

    def _score(self, number: int) -> Score:
        ranks = takewhile(lambda rank: (number, rank) in self.windows, self.request.ranks[number])
        windows = tuple(self.windows[number, rank] for rank in ranks)
        return Score(self.request.texts[number].name, windows, *self.sizes[number])


def _failure(result: Result, answers: _Answers) -> Failure:
    """Return why there is no score, with the most informative line of the log."""
    phase = "with the model loaded" if answers.is_loaded else "while it loaded the model"
    if result.stopped is not None:
        return Failure(FailureKind.STOPPED, f"the runtime was stopped {phase}: {result.stopped}")
    line = telling_line(result.log)
    if answers.refused is not None:
        generic = line if line and not answers.is_loaded else answers.refused
        return Failure(FailureKind.REFUSED, f"llama.cpp refused the model: {_short(generic)}")
    how = result.signal_name or f"it ended with {result.code}"
    details = f": {_short(line)}" if line else ""
    return Failure(FailureKind.CRASHED, f"the runtime crashed ({how}) {phase}{details}")


def telling_line(log: str) -> str | None:
    """Return the line of llama.cpp's log with the reason: the error of loading, or else its first error."""
    for pattern in (_LOADING, _ASSERTION, _ERROR):
        match = pattern.search(log)
        if match is not None:
            return (match["reason"] if match.groupdict() else match[0]).strip()
    return None


def _short(text: str) -> str:
    return plain_text(text.encode("utf-8", "replace")).replace("\n", " ").strip()[:REASON_MAX_LENGTH].rstrip(".")


@contextmanager
def _reserved_port() -> Iterator[int]:
    """Return a free TCP port of the loopback address.

    It stays bound here, without a listener, so that no other program gets it. llama.cpp's server can still bind it,
    because both set SO_REUSEPORT.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as held:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            held.setsockopt(socket.SOL_SOCKET, option, 1)
        held.bind((LOOPBACK, 0))
        yield int(held.getsockname()[1])


def _size_bytes(model: Path) -> int:
    """Return the size of all files of a model in bytes: a limit of the mapped memory."""
    try:
        return sum(path.stat().st_size for path in model_files(model))
    except OSError as error:
        raise BadSource(f"{model}: {error.strerror}") from error


def model_files(model: Path) -> tuple[Path, ...]:
    """Return the files of a model, of which `model` is the only one or the first."""
    from organs.registry.validation.weights import shard_paths

    return tuple(shard_paths(model))
