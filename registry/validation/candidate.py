"""A model that is to be read by a runtime, and how many tokens of a text all that stand side by side can be given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from organs.registry.digest import Digest
from organs.registry.errors import BadInput
from organs.registry.validation.reading import TOKENS_MIN
from organs.registry.validation.weights import Weights, files_digest


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model to be read, which need not lie in a file before it is."""

    digest: Digest
    """Of its content, by which its scores are kept."""
    placed: Callable[[], AbstractContextManager[Path]]
    """Its file (of a split set the first), for as long as it is read."""
    context_tokens: int | None = None
    """How long a text its header says that it can be given; None where it does not say."""


@dataclass(frozen=True, slots=True)
class Length:
    """How many tokens of each text are scored; `remark` says why, in a sentence, where fewer than were asked for."""

    tokens: int
    remark: str | None = None


def file_candidate(path: Path) -> Candidate:
    """The model in the file `path`; reads it, for its digest. Raises BadSource, BadGguf, BadSplit."""
    return Candidate(files_digest(path), lambda: nullcontext(path), context_tokens(path))


def context_tokens(path: Path) -> int | None:
    """What the header of the model in `path` says of its context. Raises BadSource, BadGguf, BadSplit."""
    with Weights(path) as weights:
        header = weights.headers[0]
        return header.integer(f"{header.architecture}.context_length")


def length_that_fits(asked: int, chimera: Candidate, base: Candidate, donors: Sequence[Candidate]) -> Length:
    """As many of the `asked` tokens as all of them can be given: one less than the smallest context has.

    The first token of a text is given and not scored. A donor that cannot take enough to be scored at all is not asked:
    it is only shown. Raises BadInput where that is the case of the chimera or its base.
    """
    named = (("the chimera", chimera), ("its base", base))
    known = [(whose, one.context_tokens) for whose, one in named if one.context_tokens is not None]
    for whose, context in known:
        if context <= TOKENS_MIN:
            raise BadInput(f"{whose} has a context of {context} tokens, in which no {TOKENS_MIN} tokens can be scored")
    contexts = [context for _, context in known]
    contexts += [one.context_tokens for one in donors if one.context_tokens and one.context_tokens > TOKENS_MIN]
    smallest = min(contexts, default=None)
    if smallest is None or asked < smallest:
        return Length(asked)
    said = f"{asked} tokens a text were asked for; the smallest context among these models has {smallest}"
    return Length(smallest - 1, f"{said}, so {smallest - 1} were scored at most.")
