"""The interface of runtimes: requests, readings, scores and failures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from organs.registry.errors import OrganError
from organs.registry.errors import Text as ShortText
from organs.registry.sandbox.process import plain_text
from organs.registry.validation.texts import ScoredText

WINDOW_TOKENS = 256
"""Tokens of a window with the special token that begins a text, unless a context is smaller."""
WINDOW_TOKENS_MIN = 32
"""A perplexity of fewer tokens has no meaning."""
TEXTS_MAX = 16


class Say(Protocol):
    """A callback with the current action of a runtime, in a few words, and how many windows of a request are scored."""

    def __call__(self, action: str, windows: int = 0, /) -> None: ...


class NoRuntime(OrganError, code="no-runtime"):
    """The runtime for a validation is missing; `extra` is the extra of this program that installs it, if one does."""

    extra: ShortText | None

    def __init__(self, message: str, extra: str | None = None) -> None:
        super().__init__(message)
        self.extra = extra


class NoVerdict(OrganError, code="no-verdict"):
    """A chimera cannot be compared with its base: the base does not run, or they have different tokens."""


class RuntimeFailed(OrganError, code="runtime-failed"):
    """llama.cpp refused a model, had not enough memory, crashed or exceeded a limit."""


@dataclass(frozen=True, slots=True)
class ScoringRequest:
    """A model (the first file of a split set), and the windows of texts to score."""

    model: Path
    texts: tuple[ScoredText, ...]
    ranks: tuple[range, ...]
    """For each text, the windows to score, by their places in the order of `spread_order`."""
    window_tokens: int = WINDOW_TOKENS
    seconds: float | None = None
    """No window is begun after so many seconds, except the first."""
    writes: bool = False
    """Whether to generate text."""
    chat: bool = False
    """Whether to generate it with the model's chat template."""
    reference: Path | None = None
    """Another model (the first file of a split set) with the same vocabulary, that scores windows, too."""
    reference_ranks: tuple[Sequence[int], ...] = ()
    """For each text, the windows that the reference scores. In those that both score, they are compared."""

    def __post_init__(self) -> None:
        assert 1 <= len(self.texts) == len(self.ranks) <= TEXTS_MAX
        assert (self.reference is None) == (not self.reference_ranks)
        assert len(self.reference_ranks) in (0, len(self.texts))
        assert self.window_tokens >= WINDOW_TOKENS_MIN


class FailureKind(StrEnum):
    """Why a runtime gave no answer."""

    REFUSED = "refused"
    """It refused the file or a request."""
    CRASHED = "crashed"
    """It ended by a signal or without an answer."""
    STOPPED = "stopped"
    """It exceeded a limit: time, processor time, output."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A missing answer, with its reason as the end of a sentence."""

    kind: FailureKind
    reason: str


REASON_MAX_LENGTH = 300


def short_reason(text: str) -> str:
    """Return a text from outside as the end of a sentence on one line."""
    return plain_text(text.encode("utf-8", "replace")).replace("\n", " ").strip()[:REASON_MAX_LENGTH].rstrip(".")


@dataclass(frozen=True, slots=True)
class Window:
    """The score of a window: the sum of -ln of the probabilities of its tokens, infinite if it is not finite."""

    nats: float
    tokens: int
    digest: str
    """A digest of the tokens: windows of two models with the same digest can be compared."""
    divergence: float | None = None
    """The sum over the tokens of the Kullback-Leibler divergence of the next token's distribution from that of the
    reference, in nats; None if the reference did not score the window."""
    same_top: int | None = None
    """For how many tokens both find the same token the most likely one; None like `divergence`."""
    divergences: bytes | None = None
    """The divergence at each token, in nats, as `divergence.packed` has them; None like `divergence`."""


@dataclass(frozen=True, slots=True)
class Score:
    """The scores of the first windows of a text, in the order of their ranks."""

    text: str
    windows: tuple[Window, ...]
    window_count: int
    """The number of windows of the whole text."""
    token_count: int
    """The number of tokens of the whole text."""

    @property
    def tokens(self) -> int:
        """The number of scored tokens."""
        return sum(window.tokens for window in self.windows)

    @property
    def perplexity(self) -> float | None:
        """exp of the mean of -ln of the probabilities; infinite if it is not finite, None without a window."""
        return perplexity_of(self.windows)


def perplexity_of(windows: Sequence[Window]) -> float | None:
    """Return the perplexity over all tokens of `windows`; infinite if it is not finite, None without a token."""
    tokens = sum(window.tokens for window in windows)
    if not tokens:
        return None
    try:
        return math.exp(math.fsum(window.nats for window in windows) / tokens)
    except OverflowError:
        return math.inf


def finite(value: float | None) -> float | None:
    """Return `value`; None if it is infinite or not a number, which JSON cannot have."""
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class RuntimeReading:
    """The result of a runtime for a model. Without a failure, `scores` has one score for each text, in order.

    If the time was over, some texts have fewer windows than were requested.
    """

    failure: Failure | None
    scores: tuple[Score, ...]
    written: str | None = None
    """A prompt and the model's continuation; text from outside."""
    log: str = ""
    """The last lines of the runtime's log; text from outside."""
    reference: tuple[Score, ...] = ()
    """The scores by the reference, like `scores`: of each text the first of `reference_ranks`, until one is missing."""
    evaluated_tokens: int = 0
    """The tokens that were scored, by both models together."""
    evaluation_seconds: float = 0.0
    """The time that this took, without loading."""


class Runtime(Protocol):
    """Loads a model and scores windows of texts."""

    @property
    def identity(self) -> str:
        """Name, version and method: runtimes with the same identity give the same scores."""
        ...

    @property
    def has_references(self) -> bool:
        """Whether it compares the distributions of a model with those of a reference."""
        ...

    def read(self, request: ScoringRequest, say: Say) -> RuntimeReading:
        """Load and score; a crash of the runtime is a result as well.

        Raises NoRuntime, and NoVerdict if the reference cannot be compared with the model.
        """
        ...
