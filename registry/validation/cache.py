"""Scores that need not be measured again: the same file, text, number of tokens and runtime give the same number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from organs.registry.digest import Digest
from organs.registry.validation.reading import Score


@dataclass(frozen=True, slots=True)
class ScoreKey:
    """What a score depends on."""

    model: Digest
    """Of the model's files, or of what a control is made from."""
    text: Digest
    tokens: int
    runtime: str
    """`Runtime.identity`."""


class ScoreCache(Protocol):
    """Keeps scores. A score that was put may be forgotten; one that is given back is the one that was put."""

    def get(self, key: ScoreKey) -> Score | None:
        """The score under `key`; its `text` is the name that the text had when it was put."""
        ...

    def put(self, key: ScoreKey, score: Score) -> None:
        """Keep `score` under `key`."""
        ...


@dataclass(slots=True)
class MemoryCache:
    """Keeps scores as long as it lives."""

    scores: dict[ScoreKey, Score] = field(default_factory=dict)

    def get(self, key: ScoreKey) -> Score | None:
        return self.scores.get(key)

    def put(self, key: ScoreKey, score: Score) -> None:
        self.scores[key] = score
