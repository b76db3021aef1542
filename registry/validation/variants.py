"""The program in the confined child that compares variants of a model with it: each has other bytes in some places.

The model is in shards, one for each group of its organs. A variant has other files in the places of some shards, so
only the bytes that differ are written. The program reads a `VariantOrder`, waits for the files of each variant in turn,
and prints a `VariantLine` of JSON for each. The logits of the model itself are computed once, if they fit into memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from queue import SimpleQueue
from time import monotonic, sleep
from typing import Annotated, TypeVar

import numpy as np
from msgspec import Meta
from msgspec.structs import replace
from numpy.typing import NDArray

from organs.registry.entities.base import Count, Entity
from organs.registry.errors import OrganError
from organs.registry.validation.child import order_and_answers
from organs.registry.validation.decoder import Decoder, LoadedModel, ModelRefused, UnknownInterface, opened
from organs.registry.validation.scorer import (
    OrderedText,
    OrderedWindow,
    compared,
    joined,
    ordered_windows,
)

LOGITS_MAX_BYTES = 2 * 1024**3
"""The logits of the model itself that are kept; the windows that do not fit are left out."""
BEAT_SECONDS = 1.0
"""The interval of empty lines, at which the parent can stop the work."""
WAIT_SECONDS = 0.02
"""The interval of looks for the files of the next variant."""
DIGITS = 9
"""Decimals of a divergence, in nats."""


class ModelVariant(Entity):
    """A variant: other files in the places of some shards."""

    number: Count
    shards: dict[Count, str]
    """The paths of its files by the numbers of the shards, from 0."""


class VariantOrder(Entity):
    """What the program is to do."""

    shards: list[str]
    """The paths of the files of the model itself."""
    variants: list[ModelVariant]
    texts: list[OrderedText]
    window_tokens: int
    decoders: int
    """The threads that score."""
    details: bool = False
    """Whether to tell the perplexities, and the divergence of each token."""


class WindowReading(Entity, omit_defaults=True):
    """How a variant differs from the model on a window."""

    divergence: float | None
    """The sum over its tokens, in nats; None if it is not finite."""
    tokens: Annotated[int, Meta(ge=1, le=1 << 31)]
    same_top: Count
    """The tokens that both expect most."""
    nats: float | None = None
    """The sum of -ln of the probabilities of the tokens by the variant, if the order wants details."""
    reference_nats: float | None = None
    """The same by the model itself."""
    divergences: tuple[float, ...] = ()
    """That of each token, if the order wants details."""


class VariantLine(Entity, omit_defaults=True):
    """What the program has done. The parent ignores lines that are none of these."""

    loaded: bool = False
    rate: float | None = None
    """How many tokens of the model itself were evaluated in a second."""
    variant: Count | None = None
    windows: tuple[WindowReading, ...] = ()
    seconds: float = 0.0
    """The time that the variant took, with loading."""
    refused: str | None = None
    missing: str | None = None
    done: bool = False


Logits = NDArray[np.float32]
Tell = Callable[[VariantLine], None]


def main() -> None:
    """Read one order, do it, and end."""
    order, answer = order_and_answers(VariantOrder)
    lock = threading.Lock()

    def tell(line: VariantLine) -> None:
        with lock:
            answer(line)

    def beat() -> None:
        while True:
            sleep(BEAT_SECONDS)
            tell(VariantLine())

    threading.Thread(target=beat, daemon=True).start()
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

    def against(decoder: Decoder, number: int) -> WindowReading:
        return _reading(decoder, windows[number], reference[number], details=order.details)

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


def _reading(decoder: Decoder, window: OrderedWindow, reference: Logits, *, details: bool) -> WindowReading:
    """Return how a model differs from the reference on a window."""
    place, pairs = 0, []
    for logits in decoder.logits(window.tokens):
        following = window.tokens[place + 1 : place + 1 + len(logits)]
        pairs.append(compared(reference[place : place + len(logits)], logits, following))
        place += len(logits)
    base, own = (joined(parts) for parts in zip(*pairs, strict=True))
    assert own.divergences is not None
    assert own.same_top is not None
    reading = WindowReading(divergence=_sum(own.divergences), tokens=place, same_top=int(own.same_top.sum()))
    if not details or reading.divergence is None:
        return reading
    divergences = tuple(float(f"{value:.3g}") for value in own.divergences)
    return replace(reading, nats=_sum(own.surprises), reference_nats=_sum(base.surprises), divergences=divergences)


def _sum(values: NDArray[np.float64]) -> float | None:
    total = float(values.sum())
    return round(total, DIGITS) if np.isfinite(total) else None


if __name__ == "__main__":
    main()
