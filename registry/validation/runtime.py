"""The interface of runtimes: requests, readings, scores and failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from organs.registry.errors import OrganError
from organs.registry.errors import Text as ShortText
from organs.registry.validation.texts import Text

TOKENS_DEFAULT = 128
TOKENS_MIN = 32
"""A perplexity of fewer tokens has no meaning."""
TOKENS_MAX = 4096
TEXTS_MAX = 8
ADAPTERS_MAX = 16

Say = Callable[[str], None]
"""A callback with the current action of a runtime, in a few words."""


class NoRuntime(OrganError, code="no-runtime"):
    """The runtime for a validation is missing; `extra` is the extra of this program that installs it, if one does."""

    extra: ShortText | None

    def __init__(self, message: str, extra: str | None = None) -> None:
        super().__init__(message)
        self.extra = extra


class NoVerdict(OrganError, code="no-verdict"):
    """The base of a chimera does not run, so the chimera cannot be compared."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that the runtime applies while loading, with its scale."""

    path: Path
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """A model (the first file of a split set) and the texts to score: the first `tokens` predicted tokens of each."""

    model: Path
    texts: tuple[Text, ...]
    tokens: int = TOKENS_DEFAULT
    adapters: tuple[Adapter, ...] = ()
    chat: bool = False
    """Whether to generate text with the model's chat template."""

    def __post_init__(self) -> None:
        assert 1 <= len(self.texts) <= TEXTS_MAX
        assert TOKENS_MIN <= self.tokens <= TOKENS_MAX
        assert len(self.adapters) <= ADAPTERS_MAX


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


@dataclass(frozen=True, slots=True)
class Score:
    """The perplexity of one text: None if the runtime only reports that the model loads, infinite if not finite."""

    text: str
    perplexity: float | None
    standard_error: float | None
    tokens: int | None
    surprises: tuple[float, ...] | None = None
    """Surprise of each scored token in nats; None if unknown, or if one of them is not finite."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of a runtime for a model. Without a failure, `scores` has one score for each text, in order."""

    failure: Failure | None
    scores: tuple[Score, ...]
    written: str | None = None
    """A prompt and the model's continuation; text from outside."""
    by_chat_template: bool = False
    """Whether `written` used the model's chat template."""
    log: str = ""
    """The last lines of the runtime's log; text from outside."""
    seconds: float = 0.0
    cached: bool = False

    @property
    def loads(self) -> bool:
        return self.failure is None


class Runtime(Protocol):
    """Loads a model and computes the perplexity of texts."""

    @property
    def identity(self) -> str:
        """Name, version and method: runtimes with the same identity give the same scores."""
        ...

    def read(self, request: Request, say: Say) -> Reading:
        """Load and score; a crash of the runtime is a result as well. Raises NoRuntime."""
        ...
