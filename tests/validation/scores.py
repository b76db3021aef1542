"""Windows with known scores, and a runtime that returns them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from organs.registry.validation.runtime import Failure, RuntimeReading, Say, Score, ScoringRequest, Window
from organs.registry.validation.weights import Weights

TOKENS = 255


def windows(perplexity: float, count: int = 16, noise: float = 0.0, seed: int = 0) -> tuple[Window, ...]:
    """Return windows with this perplexity: all models find the same windows difficult, apart from `noise` in nats."""
    difficulty, own = random.Random(0), random.Random(seed)
    level = math.log(perplexity) if math.isfinite(perplexity) else math.inf
    return tuple(
        Window(TOKENS * (level + difficulty.uniform(-0.5, 0.5) + own.gauss(0.0, noise)), TOKENS, f"window {number}")
        for number in range(count)
    )


@dataclass(slots=True)
class FixedRuntime:
    """A runtime that returns a perplexity, or a failure, by the name of the file, and records its requests."""

    perplexities: dict[str, float | Failure]
    identity: str = "fixed, 1"
    has_references: bool = True
    window_count: int = 16
    token_count: int | None = None
    noise: float = 0.0
    requests: list[ScoringRequest] = field(default_factory=list)
    zeroed: tuple[str, ...] = ()
    other_tokens: Sequence[str] = ()
    """Names of files that tokenize differently."""
    time_for: dict[str, int] = field(default_factory=dict)
    """By text, the windows after which the time is over."""

    def read(self, request: ScoringRequest, say: Say) -> RuntimeReading:
        self.requests.append(request)
        name = request.model.name
        say("reading")
        if name == "control.gguf":
            self.zeroed = zeroed_organs(request.model)
        perplexity = self.perplexities[name]
        if isinstance(perplexity, Failure):
            return RuntimeReading(perplexity, ())
        own = tuple(
            replace(window, divergence=25.5, same_top=204) if request.reference is not None else window
            for window in windows(perplexity, self.window_count, self.noise, seed=len(name))
        )
        if name in self.other_tokens:
            own = tuple(Window(window.nats, window.tokens, "another") for window in own)
        tokens = TOKENS * self.window_count if self.token_count is None else self.token_count
        scores = (
            Score(
                text.name,
                own[ranks.start : min(ranks.stop, self.time_for.get(text.name, ranks.stop))],
                self.window_count,
                tokens,
            )
            for text, ranks in zip(request.texts, request.ranks, strict=True)
        )
        return RuntimeReading(
            None,
            tuple(scores),
            written="a text" if request.writes else None,
            reference=tuple(self._reference(request)),
            evaluated_tokens=TOKENS,
            evaluation_seconds=0.5,
        )

    def _reference(self, request: ScoringRequest) -> Iterator[Score]:
        if request.reference is None:
            return
        perplexity = self.perplexities[request.reference.name]
        assert not isinstance(perplexity, Failure)
        own = windows(perplexity, self.window_count)
        for text, ranks in zip(request.texts, request.reference_ranks, strict=True):
            scored = tuple(own[rank] for rank in ranks if rank < len(own))
            yield Score(text.name, scored, self.window_count, TOKENS * self.window_count)

    @property
    def models(self) -> list[str]:
        """The names of the files that ran, each once, in the order of their first runs."""
        return list(dict.fromkeys(request.model.name for request in self.requests))


def zeroed_organs(model: Path) -> tuple[str, ...]:
    """Return the names of the tensors of a file that are zero."""
    with Weights(model) as weights:
        return tuple(name for name, spot in weights.spots.items() if not any(map(any, spot.chunks())))
