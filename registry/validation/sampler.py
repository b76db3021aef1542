"""The program in the confined child that answers prompts: it loads models, samples tokens, and prints pieces of text.

It reads a `SampleOrder` and prints a `SampleLine` of JSON for each piece, as soon as it is there. Several models answer
in turns, a token each, so that their texts grow side by side.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from organs.registry.entities.base import Entity, Items
from organs.registry.validation.child import order_and_answers
from organs.registry.validation.decoder import Decoder, LoadedModel, ModelRefused, UnknownInterface, opened

TOP_TOKENS, TOP_SHARE = 40, 0.95
"""A token is drawn among the TOP_TOKENS most likely ones, of which those are left out that are beyond TOP_SHARE of the
probability (Holtzman et al. 2020)."""


class PromptPart(Entity):
    """A part of a prompt: text of a template, in which the names of special tokens are these tokens, or of a message,
    in which they are text."""

    text: str
    is_template: bool = False


class SampledModel(Entity):
    """A model, and its prompt."""

    model: str
    """The path of its file, or of the first one of a split set."""
    parts: Items[PromptPart]


class SampleOrder(Entity):
    """What the program is to do."""

    models: Items[SampledModel]
    tokens: int
    """The most tokens of each answer."""
    seconds: float
    """No token is begun after so many seconds from the first on."""
    temperature: float
    seed: int
    threads: int


class SampleLine(Entity, omit_defaults=True):
    """What the program has done. The parent ignores lines that are none of these."""

    model: int = 0
    """The number of the model."""
    prompt_tokens: int | None = None
    piece: str | None = None
    """A piece of text, which may be empty: a token can be a part of a character."""
    ended: str | None = None
    """`end`, `tokens`, `seconds` or `context`."""
    refused: str | None = None
    loaded: bool = False
    missing: str | None = None


Answers = Callable[[SampleLine], None]


def main() -> None:
    """Read one order, do it, and end."""
    order, tell = order_and_answers(SampleOrder)
    try:
        _do(order, tell)
    except (ImportError, UnknownInterface) as error:
        tell(SampleLine(missing=str(error)))


def _do(order: SampleOrder, tell: Answers) -> None:
    with ExitStack() as stack:
        writing: dict[int, Iterator[SampleLine]] = {}
        for number, one in enumerate(order.models):
            try:
                model = stack.enter_context(opened(one.model))
                tokens = prompt_tokens(model, one.parts)
                tell(SampleLine(model=number, loaded=True, prompt_tokens=len(tokens)))
                context = min(model.context_tokens or len(tokens) + order.tokens, len(tokens) + order.tokens)
                if len(tokens) >= context:
                    tell(SampleLine(model=number, ended="context"))
                    continue
                decoder = stack.enter_context(closing(Decoder(model, context, order.threads)))
                writing[number] = _pieces(number, model, decoder, tokens, context, order)
            except ModelRefused as error:
                tell(SampleLine(model=number, refused=str(error)))
        begun = monotonic()
        while writing:
            for number in list(writing):
                try:
                    line = next(writing[number])
                except ModelRefused as error:
                    line = SampleLine(model=number, refused=str(error))
                if line.ended is None and line.refused is None and monotonic() - begun > order.seconds:
                    tell(line)
                    line = SampleLine(model=number, ended="seconds")
                tell(line)
                if line.ended is not None or line.refused is not None:
                    del writing[number]


def _pieces(
    number: int, model: LoadedModel, decoder: Decoder, tokens: list[int], context: int, order: SampleOrder
) -> Iterator[SampleLine]:
    """Yield the pieces of an answer, and why it ends."""
    text = codecs.getincrementaldecoder("utf-8")("replace")
    chosen = decoder.following(tokens, chooser(order.temperature, order.seed))
    for written, token in enumerate(chosen, 1):
        yield SampleLine(model=number, piece=text.decode(model.piece(token)))
        if written == order.tokens:
            yield SampleLine(model=number, ended="tokens")
        elif len(tokens) + written == context:
            yield SampleLine(model=number, ended="context")
    yield SampleLine(model=number, ended="end")


def chooser(temperature: float, seed: int) -> Callable[[NDArray[np.float32]], int]:
    """Return a function that chooses a token by its logits: the most likely one at the temperature 0.

    The same seed gives the same choices for the same logits.
    """
    if temperature <= 0.0:
        return lambda logits: int(logits.argmax())
    random = np.random.default_rng(seed)

    def choose(logits: NDArray[np.float32]) -> int:
        count = min(TOP_TOKENS, len(logits))
        best = np.argpartition(logits, -count)[-count:]
        best = best[np.lexsort((best, -logits[best]))]  # equal ones in the order of their numbers
        powers = np.exp((logits[best].astype(np.float64) - float(logits[best[0]])) / temperature)
        sums = np.cumsum(powers / powers.sum())
        kept = int(np.searchsorted(sums, TOP_SHARE)) + 1
        place = int(np.searchsorted(sums[:kept], random.random() * sums[min(kept, count) - 1], side="right"))
        return int(best[min(place, kept - 1, count - 1)])

    return choose


def prompt_tokens(model: LoadedModel, parts: Items[PromptPart]) -> list[int]:
    """Return the tokens of a prompt. What a message says is never a marker of the template.

    The whole text is tokenized at once, as runtimes do, if this gives no other markers than those of the template.
    Otherwise each part is tokenized alone, and markers in messages as the characters of their names.
    """
    if model.has_encoder:
        raise ModelRefused("it translates texts, and does not continue them")
    alone = [model.tokens(part.text, parse_special=part.is_template) for part in parts]
    markers = [
        token
        for part, own in zip(parts, alone, strict=True)
        if part.is_template
        for token in own
        if model.is_marker(token)
    ]
    whole = model.tokens("".join(part.text for part in parts), parse_special=bool(markers))
    messages = [part.text for part in parts if not part.is_template]
    has_markers = any(model.is_marker(token) for text in messages for token in model.tokens(text, parse_special=True))
    if has_markers or [token for token in whole if model.is_marker(token)] != markers:
        whole = []
        for part, own in zip(parts, alone, strict=True):
            whole += own if part.is_template else [plain for token in own for plain in _plain(model, token)]
    first = model.first_tokens()
    tokens = whole if whole[: len(first)] == first else [*first, *whole]
    if not tokens:
        raise ModelRefused("it has no token that begins a text: the prompt must not be empty")
    return tokens


def _plain(model: LoadedModel, token: int) -> list[int]:
    """Return the token; in the place of a marker, the tokens of the characters of its name."""
    if not model.is_marker(token):
        return [token]
    name = model.piece(token, special=True).decode("utf-8", "replace")
    tokens = [plain for character in name for plain in model.tokens(character)]
    return [plain for plain in tokens if not model.is_marker(plain)]


if __name__ == "__main__":
    main()
