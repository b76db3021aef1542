"""What a runtime is asked, and what it found: the language between runtimes and whoever compares."""

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
"""Of fewer a perplexity says next to nothing."""
TOKENS_MAX = 4096
TEXTS_MAX = 8
ADAPTERS_MAX = 16

Say = Callable[[str], None]
"""Is told what a runtime does now, in a few words."""


class NoRuntime(OrganError, code="no-runtime"):
    """The runtime for a validation is missing; `extra` is the extra of this program that installs it, if one does."""

    extra: ShortText | None

    def __init__(self, message: str, extra: str | None = None) -> None:
        super().__init__(message)
        self.extra = extra


class NoVerdict(OrganError, code="no-verdict"):
    """The base of a chimera does not run here, so there is nothing to compare the chimera with."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that the runtime applies at load, and how much of it."""

    path: Path
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """A model (of a split set the first file), and the texts to score: the first `tokens` predicted tokens of each."""

    model: Path
    texts: tuple[Text, ...]
    tokens: int = TOKENS_DEFAULT
    adapters: tuple[Adapter, ...] = ()
    chat: bool = False
    """Whether the model has a chat template, to write by."""

    def __post_init__(self) -> None:
        assert 1 <= len(self.texts) <= TEXTS_MAX
        assert TOKENS_MIN <= self.tokens <= TOKENS_MAX
        assert len(self.adapters) <= ADAPTERS_MAX


class FailureKind(StrEnum):
    """How a runtime came to give no answer."""

    REFUSED = "refused"
    """It said no: to the file, or to a question about it."""
    CRASHED = "crashed"
    """It ended by a signal or without a word."""
    STOPPED = "stopped"
    """It was over a limit of ours: time, processor time, output."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no answer, as the end of a sentence."""

    kind: FailureKind
    reason: str


@dataclass(frozen=True, slots=True)
class Score:
    """The perplexity of one text. None where the runtime only tells that it loads; infinite where it is not finite."""

    text: str
    perplexity: float | None
    standard_error: float | None
    tokens: int | None
    surprises: tuple[float, ...] | None = None
    """Of each scored token, in nats; None where the runtime does not tell them, or one of them is not finite."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a runtime found in a model. Without a failure it loaded, and `scores` has one for each text, in order."""

    failure: Failure | None
    scores: tuple[Score, ...]
    written: str | None = None
    """A prompt and what the model made of it; text from outside."""
    by_chat_template: bool = False
    """Whether `written` was asked for by way of the model's chat template."""
    log: str = ""
    """The last lines that the runtime said about itself; text from outside."""
    seconds: float = 0.0
    cached: bool = False

    @property
    def loads(self) -> bool:
        return self.failure is None


class Runtime(Protocol):
    """Something that loads a model and tells the perplexity of texts."""

    @property
    def identity(self) -> str:
        """Name, version and method: two runtimes with one identity give the same scores."""
        ...

    def read(self, request: Request, say: Say) -> Reading:
        """Load and score; whatever the model does to the runtime is a result. Raises NoRuntime."""
        ...
