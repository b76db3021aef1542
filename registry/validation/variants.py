"""The program in the confined child that compares variants of a model with it: each has other bytes in some places.

The model is in shards, one for each group of its organs. A variant has other files in the places of some shards, so
only the bytes that differ are written. The program reads a `VariantOrder`, waits for the files of each variant in turn,
and prints a `VariantLine` of JSON for each. The logits of the model itself are computed once, if they fit into memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from queue import SimpleQueue
from time import monotonic, sleep
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from organs.registry.entities.base import Count, Entity, decode
from organs.registry.errors import OrganError
from organs.registry.validation.decoder import Decoder, LoadedModel, ModelRefused, UnknownInterface, opened
from organs.registry.validation.scorer import (
    ORDER_MAX_BYTES,
    OrderedText,
    OrderedWindow,
    compared,
    joined,
    ordered_windows,
)

LOGITS_MAX_BYTES = 2 * 1024**3
"""The logits of the model itself that are kept; the windows that do not fit are left out."""
WAIT_SECONDS = 0.02
"""The interval of looks for the files of the next variant."""
DIGITS = 9
"""Decimals of a divergence, in nats."""


class Variant(Entity):
    """A variant: other files in the places of some shards."""

    number: Count
    shards: dict[Count, str]
    """The paths of its files by the numbers of the shards, from 0."""


class VariantOrder(Entity):
    """What the program is to do."""

    shards: list[str]
    """The paths of the files of the model itself."""
    variants: list[Variant]
    texts: list[OrderedText]
    window_tokens: int
    decoders: int
    """The threads that score."""


WindowDivergence = tuple[float | None, Annotated[int, Meta(ge=1, le=1 << 31)], Count]
"""The divergence of a window, summed over its tokens in nats (None if it is not finite), the number of its tokens, and
that of the tokens with the same most likely one."""


class VariantLine(Entity, omit_defaults=True):
    """What the program has done. The parent ignores lines that are none of these."""

    loaded: bool = False
    rate: float | None = None
    """How many tokens of the model itself were evaluated in a second."""
    variant: Count | None = None
    windows: tuple[WindowDivergence, ...] = ()
    seconds: float = 0.0
    """The time that the variant took, with loading."""
    refused: str | None = None
    missing: str | None = None
    done: bool = False


Logits = NDArray[np.float32]
Tell = Callable[[VariantLine], None]


def main() -> None:
    """Read one order, do it, and end."""
    order = decode(sys.stdin.buffer.read(ORDER_MAX_BYTES), VariantOrder)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # output of llama.cpp itself goes to the log

    def tell(line: VariantLine) -> None:
        answers.write(msgspec.json.encode(line) + b"\n")

    try:
        _do(order, tell)
    except (ImportError, UnknownInterface) as error:
        tell(VariantLine(missing=str(error)))
    except (ModelRefused, OrganError, OSError) as error:
        tell(VariantLine(refused=str(error)))


def _do(order: VariantOrder, tell: Tell) -> None:
    with opened(order.shards) as model:
        tell(VariantLine(loaded=True))
        windows = ordered_windows(model, order, lambda _line: None)
        most = max(1, LOGITS_MAX_BYTES // (4 * model.vocabulary_size * order.window_tokens))
        windows = [window for window in windows if len(window.tokens) > 1][:most]
        if not windows:
            raise ModelRefused("the texts are too short for a window")
        begun = monotonic()
        reference = _each(model, order, len(windows), lambda decoder, number: _logits(decoder, windows[number]))
        tell(VariantLine(rate=sum(map(len, reference)) / max(monotonic() - begun, 1e-6)))

    def against(decoder: Decoder, number: int) -> WindowDivergence:
        return _divergence(decoder, windows[number], reference[number])

    for variant in order.variants:
        while not all(map(os.path.exists, variant.shards.values())):
            sleep(WAIT_SECONDS)
        begun = monotonic()
        with opened([variant.shards.get(number, path) for number, path in enumerate(order.shards)]) as other:
            found = _each(other, order, len(windows), against)
        tell(VariantLine(variant=variant.number, windows=tuple(found), seconds=round(monotonic() - begun, 3)))
    tell(VariantLine(done=True))


T = TypeVar("T")


def _each(model: LoadedModel, order: VariantOrder, count: int, work: Callable[[Decoder, int], T]) -> list[T]:
    """Return the results of `work` for the windows 0 to `count` - 1, done by several decoders at a time."""
    with ExitStack() as stack:
        free = SimpleQueue[Decoder]()
        threads = max(1, min(order.decoders, count))
        for _ in range(threads):
            free.put(stack.enter_context(closing(Decoder(model, order.window_tokens))))
        pool = stack.enter_context(ThreadPoolExecutor(threads))

        def with_decoder(number: int) -> T:
            decoder = free.get()
            try:
                return work(decoder, number)
            finally:
                free.put(decoder)

        return list(pool.map(with_decoder, range(count)))


def _logits(decoder: Decoder, window: OrderedWindow) -> Logits:
    """Return the logits after each but the last token of a window."""
    return np.concatenate([part.copy() for part in decoder.logits(window.tokens)])


def _divergence(decoder: Decoder, window: OrderedWindow, reference: Logits) -> WindowDivergence:
    """Return the divergence of a model from the reference on a window."""
    place, parts = 0, []
    for logits in decoder.logits(window.tokens):
        following = window.tokens[place + 1 : place + 1 + len(logits)]
        parts.append(compared(reference[place : place + len(logits)], logits, following)[1])
        place += len(logits)
    likelihoods = joined(parts)
    assert likelihoods.divergences is not None and likelihoods.same_top is not None
    total = float(likelihoods.divergences.sum())
    return (round(total, DIGITS) if np.isfinite(total) else None), place, int(likelihoods.same_top.sum())


if __name__ == "__main__":
    main()
