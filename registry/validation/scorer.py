"""The program in the confined child: load a model with llama.cpp, let it write, and score windows of texts.

It reads an `Order` and prints a `Line` of JSON for each thing that it has done. Windows are scored by decoders, one on
each processor, each with the next window.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated, Protocol

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from organs.registry.entities.base import Count, Entity
from organs.registry.errors import OrganError
from organs.registry.measure import count_nonfinite_in
from organs.registry.validation.child import order_and_answers
from organs.registry.validation.decoder import Decoder, LoadedModel, ModelRefused, UnknownInterface, opened
from organs.registry.validation.divergence import packed
from organs.registry.validation.texts import conversations, spread_order
from organs.registry.validation.weights import Weights

WRITTEN_TOKENS = 40
NATS_DIGITS = 4
"""Decimals of the score of a window."""
DIVERGENCE_DIGITS = 7
"""Decimals of its divergence: that of Q8_0 is 0.0005 for each token, that of the same weights in F16 far less."""
PROMPT = "The file is opened for reading, and "
QUESTION = "What is a file?"


class OrderedText(Entity):
    """A text, and its windows to score, by their ranks."""

    text: str
    template: str | None
    """The chat template in which the text's conversations are written; None if it has none."""
    first: int
    end: int
    """The model scores the windows from the rank `first` to the one before `end`."""
    reference: list[int]
    """The ranks of the windows that the reference scores."""


class WindowOrder(Protocol):
    """Texts, and the size of their windows."""

    @property
    def texts(self) -> list[OrderedText]: ...

    @property
    def window_tokens(self) -> int: ...


class Order(Entity):
    """What the program is to do."""

    model: str
    """The path of the model; of a split set, of its first file."""
    reference: str | None
    texts: list[OrderedText]
    window_tokens: int
    seconds: float | None
    """No window is begun after so many seconds, except the first."""
    writes: bool
    chat: bool
    """Whether the model writes in its own chat template, if llama.cpp knows it."""
    threads: int
    """The threads that write."""
    decoders: int
    """The threads that score."""


DIVERGENCES_MAX_BYTES = 64 * 1024
"""Of a window."""
Ranked = tuple[
    Count,
    Count,
    float | None,
    Annotated[int, Meta(ge=1, le=1 << 31)],
    str,
    float | None,
    Count | None,
    Annotated[bytes, Meta(max_length=DIVERGENCES_MAX_BYTES)] | None,
]
"""The score of a window: the number of the text, the rank, the nats (None if they are not finite), the number of
tokens and their digest; and if the reference scored the window: the divergence from it, the tokens with the same top,
and the divergence at each token (`packed`)."""


class Line(Entity, omit_defaults=True):
    """What the program has done. The parent ignores lines that are none of these."""

    say: str = ""
    loaded: bool = False
    text: tuple[Count, Count, Count] | None = None
    """The number of a text, of its windows, and of its tokens."""
    window: Ranked | None = None
    reference: Ranked | None = None
    rate: tuple[Count, float] | None = None
    """The tokens that were scored, and the seconds that this took."""
    written: str | None = None
    refused: str | None = None
    incomparable: str | None = None
    """Why there is no reference to compare with."""
    missing: str | None = None
    """What this installation lacks."""
    done: bool = False


Tell = Callable[[Line], None]


class _Incomparable(Exception):
    """There is no reference to compare with; the message is the reason."""


def main() -> None:
    """Read one order, do it, and end."""
    order, tell = order_and_answers(Order)
    try:
        _do(order, tell)
    except _Incomparable as error:
        tell(Line(incomparable=str(error)))
    except (ImportError, UnknownInterface) as error:
        tell(Line(missing=str(error)))
    except (ModelRefused, OrganError, OSError) as error:
        tell(Line(refused=str(error)))


def _do(order: Order, tell: Tell) -> None:
    tell(Line(say="loading"))
    with ExitStack() as stack:
        model, reference = stack.enter_context(opened(order.model)), None
        tell(Line(loaded=True))
        if order.writes:  # once for each model: the first run of a validation writes, the later ones only score
            # llama.cpp loads weights that are NaN or infinite, and what it computes then means nothing.
            with Weights(Path(order.model)) as weights:
                for name, spot in weights.spots.items():
                    if count := count_nonfinite_in(spot.chunks(), spot.info.dtype):
                        raise ModelRefused(f"it has NaN or infinite weights: {count:,} in the tensor {name!r}")
            tell(Line(say="writing"))
            tell(Line(written=_written(model, order)))
        if order.reference is not None:
            try:
                reference = stack.enter_context(opened(order.reference))
            except ModelRefused as error:
                raise _Incomparable(f"llama.cpp refused the base: {error}") from error
            if reference.vocabulary_size != model.vocabulary_size:
                raise _Incomparable(
                    f"the vocabulary of the chimera has {model.vocabulary_size:,} tokens, that of its base "
                    f"{reference.vocabulary_size:,}: no comparison"
                )
        _score(model, reference, order, tell)
    tell(Line(done=True))


def _written(model: LoadedModel, order: Order) -> str:
    """Return a prompt, or a question in the model's own chat template, with the model's most likely continuation."""
    template = model.chat_template() if order.chat else None
    question = model.chat_text(template, [("user", QUESTION)], asks=True) if template else None
    has_question = bool(question)  # a template can also leave out everything
    tokens = [*model.first_tokens(), *model.tokens(question or PROMPT, parse_special=has_question)]
    with closing(Decoder(model, len(tokens) + WRITTEN_TOKENS, order.threads)) as decoder:
        answer = model.text(decoder.continuation(tokens, WRITTEN_TOKENS))
    return f"{QUESTION}\n{answer}" if has_question else f"{PROMPT}{answer}"


@dataclass(frozen=True, slots=True)
class OrderedWindow:
    """A window to score: its text, its rank, its tokens, and the models that score it."""

    text: int
    rank: int
    tokens: Sequence[int]
    by_model: bool
    by_reference: bool


def _score(model: LoadedModel, reference: LoadedModel | None, order: Order, tell: Tell) -> None:
    """Score the ordered windows: first the windows of rank 0 of all texts, then those of rank 1, and so on.

    Tells the number of windows and of tokens of each text, the score of each window, and how fast it was.
    """
    windows = ordered_windows(model, order, tell)
    queue, lock, begun = iter(enumerate(windows)), threading.Lock(), monotonic()

    def next_window() -> OrderedWindow | None:
        with lock:
            number, window = next(queue, (0, None))
            if number and order.seconds is not None and monotonic() - begun > order.seconds:
                return None
            if window is not None:
                tell(Line(say=f"window {number + 1} of {len(windows)}"))
            return window

    def work(own: Decoder, other: Decoder | None) -> int:
        scored = 0
        try:
            while (window := next_window()) is not None:
                lines = list(_lines(window, own, other))
                with lock:
                    for line in lines:
                        tell(line)
                scored += len(lines) * (len(window.tokens) - 1)
        except ModelRefused:
            with lock:
                deque(queue, maxlen=0)  # the other decoders begin no other window
            raise
        return scored

    with ExitStack() as stack:

        def decoder(loaded: LoadedModel) -> Decoder:
            return stack.enter_context(closing(Decoder(loaded, order.window_tokens)))

        count = max(1, min(order.decoders, len(windows)))
        decoders = [(decoder(model), None if reference is None else decoder(reference)) for _ in range(count)]
        pool = stack.enter_context(ThreadPoolExecutor(count))
        begun = monotonic()
        scored = sum(pool.map(lambda pair: work(*pair), decoders))
        tell(Line(rate=(scored, round(monotonic() - begun, 3))))


def ordered_windows(model: LoadedModel, order: WindowOrder, tell: Tell) -> list[OrderedWindow]:
    """Return the windows to score, in order. A window of a model without a first token begins one token earlier.

    So a window has as many scored tokens with a first token as without one. Only a text of fewer tokens than a window
    has a shorter one. A text whose chat template llama.cpp does not know has no tokens.
    """
    first, size, windows = model.first_tokens(), order.window_tokens, []
    for number, text in enumerate(order.texts):
        tokens = text_tokens(model, text.text, text.template)
        cut = [[*first, *tokens[start : start + size - len(first)]] for start in range(0, len(tokens), size - 1)]
        kept = [window for window in cut if len(window) == size] or cut[:1]
        tell(Line(text=(number, len(kept), len(tokens))))
        for rank, place in enumerate(spread_order(len(kept))):
            by_model, by_reference = text.first <= rank < text.end, rank in text.reference
            if by_model or by_reference:
                windows.append(OrderedWindow(number, rank, kept[place], by_model, by_reference))
    return sorted(windows, key=lambda window: (window.rank, window.text))


def text_tokens(model: LoadedModel, text: str, template: str | None) -> list[int]:
    """Return the tokens of a text, or of its conversations in a chat template; none in one that is not known."""
    if not template:
        return model.tokens(text)
    chats = [model.chat_text(template, conversation) for conversation in conversations(text)]
    return [token for chat in chats if chat is not None for token in model.tokens(chat, parse_special=True)]


def _lines(window: OrderedWindow, own: Decoder, other: Decoder | None) -> Iterator[Line]:
    """Yield the scores of a window by the reference and by the model, of those that score it."""
    tokens, place = window.tokens, 1
    if len(tokens) < 2:
        raise ModelRefused(f"text {window.text + 1} has too few tokens to score")
    by_reference: list[Likelihoods] = []
    by_model: list[Likelihoods] = []
    if window.by_model and window.by_reference and other is not None:
        for theirs, ours in zip(other.logits(tokens), own.logits(tokens), strict=True):
            pair = compared(theirs, ours, tokens[place : place + len(ours)])
            by_reference.append(pair[0])
            by_model.append(pair[1])
            place += len(ours)
    else:
        scorer, scores = (own, by_model) if window.by_model or other is None else (other, by_reference)
        for logits in scorer.logits(tokens):
            scores.append(surprises(logits, tokens[place : place + len(logits)]))
            place += len(logits)
    digest = hashlib.sha256(repr(list(tokens)).encode()).hexdigest()[:16]

    def ranked(likelihoods: Likelihoods) -> Ranked:
        divergences, divergence = likelihoods.divergences, None
        if divergences is not None:
            divergence = _nats(divergences, DIVERGENCE_DIGITS)
        each = None if divergences is None or divergence is None else packed(divergences)
        same_top = None if likelihoods.same_top is None else int(likelihoods.same_top.sum())
        nats = _nats(likelihoods.surprises)
        return window.text, window.rank, nats, len(likelihoods.surprises), digest, divergence, same_top, each

    if by_reference:
        yield Line(reference=ranked(joined(by_reference)))
    if by_model:
        yield Line(window=ranked(joined(by_model)))


def _nats(values: NDArray[np.float64], digits: int = NATS_DIGITS) -> float | None:
    """Return the sum of the values; None if one is not finite."""
    total = math.fsum(values) if np.isfinite(values).all() else math.inf
    return round(total, digits) if math.isfinite(total) else None


PIECE_BYTES = 1024 * 1024
"""Logits are large, 50 MB for a window of 256 tokens and a vocabulary of 49,152. So they are read in pieces of some
rows that fit into a processor's cache."""


@dataclass(frozen=True, slots=True)
class Likelihoods:
    """The scores of one model on consecutive tokens: arrays with an element for each token."""

    surprises: NDArray[np.float64]
    """-ln of the probability of the token, in nats; not finite where the logits are not."""
    divergences: NDArray[np.float64] | None = None
    """The Kullback-Leibler divergence, in nats, of this model's distribution of the token from that of the reference:
    the sum over the vocabulary of p ln(p / q), p by the reference and q by this model. None without a reference."""
    same_top: NDArray[np.bool_] | None = None
    """Whether both think the same token the most likely one."""


def surprises(logits: NDArray[np.float32], following: Sequence[int]) -> Likelihoods:
    """Return the surprises of `following`, the token that comes after each row of `logits`."""
    chosen = np.asarray(following)
    with np.errstate(all="ignore"):
        totals = np.concatenate([_log_total(piece)[0] for piece, _ in _pieces(logits, logits)])
        return Likelihoods(totals - logits[np.arange(len(chosen)), chosen])


def compared(
    reference: NDArray[np.float32], logits: NDArray[np.float32], following: Sequence[int]
) -> tuple[Likelihoods, Likelihoods]:
    """Return the surprises by the reference, and the likelihoods by a model with its divergence from the reference."""
    chosen, rows = np.asarray(following), np.arange(len(following))
    totals, totals_reference, divergences, same = [], [], [], []
    with np.errstate(all="ignore"):
        for ours, theirs in _pieces(logits, reference):
            total, _ = _log_total(ours)
            total_reference, powers = _log_total(theirs)
            shift = (total_reference - total).astype(np.float32)
            difference = np.subtract(theirs, ours)
            difference -= shift[:, np.newaxis]  # ln(p / q), small numbers, so that the sum in float32 is exact enough
            mean = np.einsum("ij,ij->i", powers, difference) / powers.sum(axis=1)
            totals.append(total)
            totals_reference.append(total_reference)
            divergences.append(mean + shift - (total_reference - total))
            same.append(ours.argmax(axis=1) == theirs.argmax(axis=1))
        base = np.concatenate(totals_reference) - reference[rows, chosen]
        own = np.concatenate(totals) - logits[rows, chosen]
        divergence = np.maximum(np.concatenate(divergences), 0.0)
    return Likelihoods(base), Likelihoods(own, divergence, np.concatenate(same))


def joined(parts: Sequence[Likelihoods]) -> Likelihoods:
    """Return the likelihoods of consecutive parts as those of the whole."""
    divergences = [part.divergences for part in parts if part.divergences is not None]
    same = [part.same_top for part in parts if part.same_top is not None]
    return Likelihoods(
        np.concatenate([part.surprises for part in parts]),
        np.concatenate(divergences) if divergences else None,
        np.concatenate(same) if same else None,
    )


def _pieces(
    first: NDArray[np.float32], second: NDArray[np.float32]
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    rows = max(1, PIECE_BYTES // (4 * first.shape[1]))
    return ((first[start : start + rows], second[start : start + rows]) for start in range(0, len(first), rows))


def _log_total(logits: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Return ln of the sum of exp of each row, and exp of the rows less their highest values."""
    highest = logits.max(axis=1, keepdims=True)
    powers: NDArray[np.float32] = np.exp(logits - highest)
    return np.log(powers.sum(axis=1).astype(np.float64)) + highest[:, 0], powers


if __name__ == "__main__":
    main()
