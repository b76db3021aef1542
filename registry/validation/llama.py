"""llama.cpp through the package `xllamacpp` (the extra `validate`), in a confined child."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata, util
from itertools import takewhile
from pathlib import Path

from organs.registry.entities.base import decode, encode
from organs.registry.errors import BadSource
from organs.registry.sandbox.process import ProcessLimits, Result, Sandbox, plain_text, run_python
from organs.registry.validation.divergence import packed_bytes
from organs.registry.validation.runtime import (
    Failure,
    FailureKind,
    NoRuntime,
    NoVerdict,
    RuntimeReading,
    Say,
    Score,
    ScoringRequest,
    Window,
    short_reason,
)
from organs.registry.validation.scorer import Line, Order, OrderedText
from organs.registry.validation.variants import LOGITS_MAX_BYTES, VariantLine, VariantOrder

PACKAGE = "xllamacpp"
EXTRA = "validate"
NOT_INSTALLED = f"llama.cpp is not installed; install this program with the extra {EXTRA!r}"
METHOD = "whole windows"

MEMORY_SPARE_BYTES = 4 * 1024**3
"""Address space for the library, its threads, the context and its caches; measured: about 1.5 GB for a small model."""
MEMORY_PER_MODEL = 3
"""The file is mapped once, and partly repacked for the processor."""
MEMORY_PER_DECODER_BYTES = 512 * 1024**2
"""Address space for a thread, its context and its logits."""
DECODERS_MAX = 16
THREADS_FROM_BYTES = 256 * 1024 * 1024
"""Smaller models write on one thread: llama.cpp's threads wait actively, hundreds of times for each token, and on a
busy machine two threads can take ten times as long as one."""
OUTPUT_MAX_BYTES = 4 * 1024 * 1024
"""About 130 bytes for each window that is not compared with a reference."""
COMPARED_OUTPUT_BYTES = 1024
"""For each window that is: the divergence of each token."""
WRITTEN_MAX_LENGTH = 2000

_LOADING = re.compile(r"error loading model: (?P<reason>.+)")
_ERROR = re.compile(r"^[0-9.]+ E (?P<reason>.+)$", re.MULTILINE)
_ASSERTION = re.compile(r"GGML_ASSERT\(.+")


class LlamaCpp:
    """The built-in runtime. Raises NoRuntime if `xllamacpp` is not installed."""

    def __init__(self, limits: ProcessLimits | None = None, *, requires_sandbox: bool = False) -> None:
        self._limits = limits or ProcessLimits()
        self.requires_sandbox = requires_sandbox
        try:
            version = metadata.version(PACKAGE)
        except metadata.PackageNotFoundError:
            raise NoRuntime(NOT_INSTALLED, EXTRA) from None
        self.version = f"llama.cpp, {PACKAGE} {version}"
        """Its name and version, for people."""
        self._identity = f"{self.version}, {METHOD}"

    @staticmethod
    def is_installed() -> bool:
        """Return whether the package of llama.cpp is installed."""
        return util.find_spec(PACKAGE) is not None

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def has_references(self) -> bool:
        return True

    def read(
        self, request: ScoringRequest, say: Say, is_enough: Callable[[tuple[Score, ...]], bool] | None = None
    ) -> RuntimeReading:
        """Load the model in a confined process, and score windows, until `is_enough` says so of the scores so far.

        Raises NoRuntime, NoSandbox, and NoVerdict if the reference is refused or has another vocabulary.
        """
        answers = _Answers(say, request, is_enough)
        try:
            result = run_python(
                "organs.registry.validation.scorer",
                self._limits_for(request),
                Sandbox(read=_files(request), required=self.requires_sandbox),
                encode(self._order(request)),
                answers.take_line,
            )
        except _Enough:
            return RuntimeReading(None, answers.scores(answers.windows, request.ranks))
        if answers.missing is not None:
            raise NoRuntime(f"{NOT_INSTALLED} ({answers.missing})", EXTRA)
        if answers.incomparable is not None:
            line = telling_line(result.log)
            raise NoVerdict(short_reason(answers.incomparable) + (f": {short_reason(line)}" if line else ""))
        tokens, seconds = answers.rate
        return RuntimeReading(
            None if answers.is_done else failure_of(result, is_loaded=answers.is_loaded, refused=answers.refused),
            answers.scores(answers.windows, request.ranks),
            answers.written,
            result.log,
            reference=answers.scores(answers.reference, request.reference_ranks),
            evaluated_tokens=tokens,
            evaluation_seconds=seconds,
        )

    def compare_variants(
        self, order: VariantOrder, folder: Path, seconds: float, take: Callable[[VariantLine], None]
    ) -> None:
        """Compare variants of a model with it in a confined process, which may read `folder`, for at most `seconds`.

        `take` is called with what each variant gives; an exception of it ends the process. Raises NoRuntime, NoSandbox,
        and NoVerdict if llama.cpp does not run the model or a variant.
        """
        refused: list[VariantLine] = []
        is_done = False

        def take_line(data: bytes) -> None:
            nonlocal is_done
            try:
                line = decode(data, VariantLine)
            except ValueError:
                return
            is_done = is_done or line.done
            if line.missing or line.refused:
                refused.append(line)
            else:
                take(line)

        size_bytes = sum(Path(path).stat().st_size for path in order.shards)
        # The source and a variant are loaded one after the other, and logits are collected in two steps.
        limits = generous_limits(self._limits, 2 * size_bytes + 2 * LOGITS_MAX_BYTES, order.decoders, seconds)
        limits = replace(
            limits, output_max_bytes=max(limits.output_max_bytes, OUTPUT_MAX_BYTES * max(1, len(order.variants)))
        )
        sandbox = Sandbox(read=(folder,), required=self.requires_sandbox)
        result = run_python("organs.registry.validation.variants", limits, sandbox, encode(order), take_line)
        for line in refused:
            if line.missing:
                raise NoRuntime(f"{NOT_INSTALLED} ({line.missing})", EXTRA)
            reason = telling_line(result.log) or line.refused or ""
            raise NoVerdict(f"llama.cpp refused a variant of the model: {short_reason(reason)}")
        if not is_done:
            ended = result.stopped or result.signal_name or f"it ended with {result.code}"
            line_of_log = telling_line(result.log)
            details = f": {short_reason(line_of_log)}" if line_of_log else ""
            raise NoVerdict(f"llama.cpp did not finish the comparison ({ended}){details}")

    def _order(self, request: ScoringRequest) -> Order:
        texts = [
            OrderedText(
                text=text.text, template=text.template, first=ranks.start, end=ranks.stop, reference=list(reference)
            )
            for text, ranks, reference in zip(
                request.texts, request.ranks, request.reference_ranks or ((),) * len(request.texts), strict=True
            )
        ]
        return Order(
            model=str(request.model.absolute()),
            reference=None if request.reference is None else str(request.reference.absolute()),
            texts=texts,
            window_tokens=request.window_tokens,
            seconds=request.seconds,
            writes=request.writes,
            chat=request.chat,
            threads=1 if _size_bytes(request) < THREADS_FROM_BYTES else usable_cores(),
            decoders=min(usable_cores(), DECODERS_MAX),
        )

    def _limits_for(self, request: ScoringRequest) -> ProcessLimits:
        decoders = min(usable_cores(), DECODERS_MAX) * (1 if request.reference is None else 2)
        limits = generous_limits(self._limits, _size_bytes(request), decoders, request.seconds or 0.0)
        most = COMPARED_OUTPUT_BYTES * sum(map(len, request.reference_ranks))
        return replace(limits, output_max_bytes=max(limits.output_max_bytes, OUTPUT_MAX_BYTES) + most)


def generous_limits(
    own: ProcessLimits, models_bytes: int, decoders: int, seconds: float, written_bytes: int = 0
) -> ProcessLimits:
    """Return limits of a child that evaluates models for some seconds; those that `own` does not set are generous.

    `models_bytes` is the size of the files of the models, `written_bytes` of what the child writes into an open file.
    """
    cores, wall_seconds = usable_cores(), own.wall_seconds + seconds
    memory = MEMORY_PER_MODEL * models_bytes + MEMORY_SPARE_BYTES + MEMORY_PER_DECODER_BYTES * decoders
    return replace(
        own,
        wall_seconds=wall_seconds,
        cpu_seconds=own.cpu_seconds or int(wall_seconds * cores) + 1,
        address_space_bytes=own.address_space_bytes or memory,
        file_size_bytes=own.file_size_bytes or written_bytes,
    )


class _Enough(Exception):
    """The scores so far are enough."""


@dataclass(slots=True)
class _Answers:
    """What the child has printed so far; other lines than those of `scorer` are ignored."""

    say: Say
    request: ScoringRequest
    is_enough: Callable[[tuple[Score, ...]], bool] | None = None
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By the number of the text: its windows, and its tokens."""
    windows: dict[tuple[int, int], Window] = field(default_factory=dict)
    """By the number of the text and the rank of the window."""
    reference: dict[tuple[int, int], Window] = field(default_factory=dict)
    """The same for the reference."""
    rate: tuple[int, float] = (0, 0.0)
    """The scored tokens of both models, and the seconds that this took."""
    written: str | None = None
    is_loaded: bool = False
    is_done: bool = False
    refused: str | None = None
    incomparable: str | None = None
    """Why there is no reference."""
    missing: str | None = None

    def take_line(self, data: bytes) -> None:
        try:
            line = decode(data, Line)
        except ValueError:
            return
        if line.say:
            self.say(plain_text(line.say.encode("utf-8", "replace")), len(self.windows))
        if line.text is not None:
            self.sizes[line.text[0]] = line.text[1:]
        for ranked, windows in ((line.window, self.windows), (line.reference, self.reference)):
            if ranked is not None:
                text, rank, nats, tokens, digest, divergence, same_top, each = ranked
                nats = math.inf if nats is None else nats
                each = None if divergence is None or each is None or len(each) != packed_bytes(tokens) else each
                windows[text, rank] = Window(nats, tokens, digest, divergence, same_top, each)
        if (
            line.window is not None
            and self.is_enough is not None
            and self.is_enough(self.scores(self.windows, self.request.ranks))
        ):
            raise _Enough
        if line.written is not None:
            self.written = plain_text(line.written.encode("utf-8", "replace"))[:WRITTEN_MAX_LENGTH]
        self.rate = line.rate or self.rate
        self.is_loaded, self.is_done = self.is_loaded or line.loaded, self.is_done or line.done
        self.refused = line.refused or self.refused
        self.incomparable = line.incomparable or self.incomparable
        self.missing = line.missing or self.missing

    def scores(
        self, windows: Mapping[tuple[int, int], Window], requested: Sequence[Sequence[int]]
    ) -> tuple[Score, ...]:
        """Return the scores of all texts, as far as they are complete from the first requested window on."""
        return tuple(
            Score(text.name, tuple(_first_windows(windows, number, ranks)), *self.sizes[number])
            for number, (text, ranks) in enumerate(zip(self.request.texts, requested, strict=False))
            if number in self.sizes
        )


def _first_windows(windows: Mapping[tuple[int, int], Window], text: int, ranks: Sequence[int]) -> Iterator[Window]:
    return (windows[text, rank] for rank in takewhile(lambda rank: (text, rank) in windows, ranks))


def failure_of(result: Result, *, is_loaded: bool, refused: str | None) -> Failure:
    """Return why a child gave no answer, with the most informative line of its log."""
    phase = "with the model loaded" if is_loaded else "while it loaded the model"
    if result.stopped is not None:
        return Failure(FailureKind.STOPPED, f"the runtime was stopped {phase}: {result.stopped}")
    line = telling_line(result.log)
    if refused is not None:
        generic = line if line and not is_loaded else refused
        return Failure(FailureKind.REFUSED, f"the model was refused: {short_reason(generic)}")
    how = result.signal_name or f"it ended with {result.code}"
    details = f": {short_reason(line)}" if line else ""
    return Failure(FailureKind.CRASHED, f"the runtime crashed ({how}) {phase}{details}")


def telling_line(log: str) -> str | None:
    """Return the line of llama.cpp's log with the reason: the error of loading, or else its first error."""
    for pattern in (_LOADING, _ASSERTION, _ERROR):
        match = pattern.search(log)
        if match is not None:
            return (match["reason"] if match.groupdict() else match[0]).strip()
    return None


def usable_cores() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _files(request: ScoringRequest) -> tuple[Path, ...]:
    """Return all files of the models of a request."""
    reference = () if request.reference is None else model_files(request.reference)
    return (*model_files(request.model), *reference)


def _size_bytes(request: ScoringRequest) -> int:
    """Return the size of all files of the models in bytes: a limit of the mapped memory."""
    try:
        return sum(path.stat().st_size for path in _files(request))
    except OSError as error:
        raise BadSource(f"{request.model}: {error.strerror}") from error


def model_files(model: Path) -> tuple[Path, ...]:
    """Return the files of a model, of which `model` is the only one or the first."""
    from organs.registry.validation.weights import shard_paths

    return tuple(shard_paths(model))
