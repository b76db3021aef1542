"""Importance matrices: run a model over texts in llama.cpp, and write how large the inputs of its weights were.

The sums come from a confined child (`collector`) in a file of a fixed layout: for each matrix or stack of the header,
the counts and then the sums. They are checked before they are written as llama.cpp's program writes them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import BinaryIO

import numpy as np

from organs.registry.amounts import duration_text
from organs.registry.entities.base import decode, encode
from organs.registry.entities.importance import CollectedImportances
from organs.registry.errors import BadInput
from organs.registry.gguf.importance import LARGEST, SummedSquares, written_importances
from organs.registry.gguf.types import ValueType
from organs.registry.gguf.write import KeyValue
from organs.registry.kinds import FileKind
from organs.registry.progress import StepProgress
from organs.registry.sandbox.process import ProcessLimits, Sandbox, run_python
from organs.registry.store.files import placed
from organs.registry.validation.collector import (
    CHUNK_TOKENS_MIN,
    ONE_COUNT,
    CollectionLine,
    CollectionOrder,
    CollectionText,
    MatrixPlace,
    matrix_places,
)
from organs.registry.validation.comparison import RunnableModel
from organs.registry.validation.llama import (
    DECODERS_MAX,
    EXTRA,
    NOT_INSTALLED,
    LlamaCpp,
    failure_of,
    generous_limits,
    model_files,
    usable_cores,
)
from organs.registry.validation.quick import operations_per_second
from organs.registry.validation.runtime import NoRuntime, RuntimeFailed
from organs.registry.validation.texts import ScoredText, fitted_texts
from organs.registry.validation.weights import Weights

CHUNK_TOKENS = 512
"""The tokens of a chunk, as in llama.cpp's program, unless the context of the model is smaller."""
SECONDS_MAX = 7 * 86400.0
SECONDS_MIN = 1.0
OUTPUT_MAX_BYTES = 64 * 1024 * 1024
"""About 20 bytes for each chunk."""


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """What a collection is going to do: known after the texts were cut into tokens, before the first is evaluated."""

    chunks: int
    chunk_tokens: int
    seconds: float
    """An estimate of the time for all chunks, from the speed of this machine."""


def collect_importances(
    model: RunnableModel,
    texts: Sequence[ScoredText],
    target: Path,
    *,
    seconds: float | None = None,
    planned: Callable[[CollectionPlan], None] = lambda _plan: None,
    progress: StepProgress = lambda _share, _step: None,
    limits: ProcessLimits | None = None,
    requires_sandbox: bool = False,
) -> CollectedImportances:
    """Run `model` over `texts`, and write its importance matrix to the file `target`; it names the model as its base.

    With `seconds`, no chunk is begun later, except the first; those that were evaluated are evenly spread over the
    texts. Raises BadInput for a model that writes no text and for times out of range, NoRuntime, NoSandbox,
    RuntimeFailed if llama.cpp refuses the model or crashes, or if no inputs can be summed, BadSource, BadGguf,
    StoreError, DiskFull.
    """
    if model.facts.kind != FileKind.MODEL:
        raise BadInput(f"{model.name}: it writes no text, so it has no inputs to sum")
    if seconds is not None and not SECONDS_MIN <= seconds <= SECONDS_MAX:
        raise BadInput(f"{seconds:g} seconds: give a second to a week")
    context = model.facts.context_tokens or CHUNK_TOKENS
    if context < CHUNK_TOKENS_MIN:
        raise BadInput(f"{model.name}: a context of {context} tokens; at least {CHUNK_TOKENS_MIN} are needed")
    wanted, version = fitted_texts(texts, model.facts.chat_template), LlamaCpp().version
    if not wanted:
        raise BadInput(f"{model.name}: it has no chat template, which the only text needs")
    answers = _CollectionAnswers(model, seconds, planned, progress)
    with ExitStack() as stack:
        progress(0.0, "writing the model")
        path = stack.enter_context(model.placed())
        with Weights(path) as weights:
            places = matrix_places(weights)
            model_bytes = sum(file.size_bytes for file in weights.files)
        sums = stack.enter_context(tempfile.TemporaryFile())
        decoders = min(usable_cores(), DECODERS_MAX)
        order = CollectionOrder(
            model=str(path.absolute()),
            texts=tuple(CollectionText(text=text.text, template=text.template or None) for text in wanted),
            chunk_tokens=min(CHUNK_TOKENS, context),
            seconds=seconds,
            decoders=decoders,
            descriptor=sums.fileno(),
        )
        own = limits or ProcessLimits(output_max_bytes=OUTPUT_MAX_BYTES)
        written_bytes = sum(place.size_bytes for place in places)
        kept_bytes = 4 * decoders * written_bytes  # each thread sums in float64
        result = run_python(
            "organs.registry.validation.collector",
            generous_limits(own, model_bytes + kept_bytes, decoders, seconds or SECONDS_MAX, written_bytes),
            Sandbox(read=model_files(path), required=requires_sandbox),
            encode(order),
            answers.take_line,
            descriptors=(sums.fileno(),),
        )
        if answers.missing is not None:
            raise NoRuntime(f"{NOT_INSTALLED} ({answers.missing})", EXTRA)
        if answers.unknown is not None:
            raise NoRuntime(f"no importance matrix can be collected: {answers.unknown}")
        if not answers.is_done:
            failure = failure_of(result, is_loaded=answers.is_loaded, refused=answers.refused)
            raise RuntimeFailed(f"{model.name}: {failure.reason}")
        sums.seek(0)
        by_tensor = read_sums(sums, places, model.name)
    (all_chunks, chunk_tokens), (tokens, took) = answers.chunks, answers.rate
    names = tuple(text.name for text in wanted)
    pieces = written_importances(by_tensor, names, answers.evaluated, chunk_tokens, _base_entries(model.name))
    with placed(target, written_bytes) as file:
        for piece in pieces:
            file.write(piece)
    return CollectedImportances(
        source=model.name,
        weights=len(by_tensor),
        unused=tuple(name for name, part in by_tensor.items() if not part.counts.all()),
        texts=names,
        chunks=answers.evaluated,
        all_chunks=all_chunks,
        chunk_tokens=chunk_tokens,
        tokens_per_second=tokens / max(took, 1e-3),
        size_bytes=file.size_bytes,
        runtime=version,
    )


def _base_entries(name: str) -> list[KeyValue]:
    """Return the entries that name the model of a file, or a registered one, as the base of its importance matrix."""
    organization, _, own = name.partition("@")[0].removesuffix(".gguf").rpartition("/")
    texts = {"name": f"{own} importance matrix", "base_model.0.name": own, "base_model.0.organization": organization}
    entries = [KeyValue(f"general.{key}", ValueType.STRING, text) for key, text in texts.items() if text]
    return [*entries, KeyValue("general.base_model.count", ValueType.UINT32, 1)]


def read_sums(file: BinaryIO, places: Sequence[MatrixPlace], name: str) -> dict[str, SummedSquares]:
    """Return the sums that the child wrote for the weights at `places`, without those that were never multiplied with.

    Raises RuntimeFailed if the file is shorter or longer, if a sum is negative or too large, or if there is none.
    """
    found: dict[str, SummedSquares] = {}
    for place in places:
        data = file.read(place.size_bytes)
        if len(data) != place.size_bytes:
            raise RuntimeFailed(f"{name}: the runtime did not write the sums of {place.name}")
        values = np.frombuffer(data, "<f4")
        counts, sums = values[: place.matrices], values[place.matrices :]
        if (counts[1:] == ONE_COUNT).all():
            counts = counts[:1]
        means_of = np.maximum(np.repeat(counts, sums.size // counts.size), 1)
        if not ((counts >= 0) & (counts <= 1e30)).all() or not ((sums >= 0) & (sums / means_of <= LARGEST)).all():
            raise RuntimeFailed(f"{name}: the runtime wrote sums of {place.name} that are negative or too large")
        if counts.any():
            found[place.name] = SummedSquares(sums, counts)
    if not found or file.read(1):
        raise RuntimeFailed(f"{name}: the runtime wrote no sums, or more than those of its weights")
    return found


@dataclass(slots=True)
class _CollectionAnswers:
    """What the child has printed so far; other lines than those of `collector` are ignored."""

    model: RunnableModel
    seconds: float | None
    planned: Callable[[CollectionPlan], None]
    progress: StepProgress
    chunks: tuple[int, int] = (0, 1)
    """The chunks of all texts, and the tokens of a chunk."""
    evaluated: int = 0
    rate: tuple[int, float] = (0, 0.0)
    begun: float = field(default_factory=monotonic)
    is_loaded: bool = False
    is_done: bool = False
    refused: str | None = None
    missing: str | None = None
    unknown: str | None = None

    def take_line(self, data: bytes) -> None:
        try:
            line = decode(data, CollectionLine)
        except ValueError:
            return
        if line.chunks is not None:
            self.chunks, self.begun = line.chunks, monotonic()
            operations = 2.0 * self.model.facts.active_parameters * self.chunks[0] * self.chunks[1]
            self.planned(CollectionPlan(*self.chunks, operations / operations_per_second()))
        if line.evaluated:
            self.evaluated = line.evaluated
            self._report()
        self.rate = line.rate or self.rate
        self.is_loaded, self.is_done = self.is_loaded or line.loaded, self.is_done or line.done
        self.refused, self.missing = line.refused or self.refused, line.missing or self.missing
        self.unknown = line.unknown or self.unknown

    def _report(self) -> None:
        all_chunks, passed = max(1, self.chunks[0]), monotonic() - self.begun
        share = min(1.0, self.evaluated / all_chunks)
        left = passed * (1.0 - share) / share
        if self.seconds is not None:
            share, left = max(share, min(1.0, passed / self.seconds)), min(left, max(0.0, self.seconds - passed))
        self.progress(share, f"chunk {self.evaluated:,} of {all_chunks:,}, about {duration_text(left)} left")
