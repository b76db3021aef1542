"""How an organ is computed from others, as a value: the same value gives the same bytes, here or anywhere."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from organs.registry.digest import Digest, digest_of
from organs.registry.gguf.types import DType
from organs.registry.transform import METHOD


@dataclass(frozen=True, slots=True)
class Ingredient:
    """An organ that goes in: bytes with the dtype and shape that give them meaning."""

    digest: Digest
    dtype: DType
    shape: tuple[int, ...]
    name: str = ""
    """Of the tensor, for people; no part of what is computed."""


@dataclass(frozen=True, slots=True)
class Addition:
    """A low-rank product that is added: `scale` · (`alpha` / rank, or 1 where that is 0) · B·A."""

    a: Ingredient
    b: Ingredient
    alpha: float
    scale: float


@dataclass(frozen=True, slots=True)
class Computation:
    """What is done to `source`: products are added, then it is purified; the result is written as `dtype`."""

    source: Ingredient
    dtype: DType
    additions: tuple[Addition, ...] = ()
    is_token_embedding: bool = False
    """Whether products are laid the other way round, as adapters of the token embedding are."""
    method: str | None = None
    """Of purifying; None where nothing is purified."""
    keep: float | None = None

    @property
    def acts(self) -> tuple[str, ...]:
        """As lineage calls them, in their order."""
        return (*(("adapter",) if self.additions else ()), *(("purified",) if self.method else ()))

    def made(self) -> str:
        """Canonical JSON of all that the result is a function of."""
        added = [[_values(one.a), _values(one.b), one.alpha, one.scale] for one in self.additions]
        document: dict[str, Any] = {"dtype": self.dtype.name, "method": METHOD, "source": _values(self.source)}
        document |= {"add": added, "is_token_embedding": self.is_token_embedding} if added else {}
        document |= {"purify": self.method, "keep": self.keep} if self.method else {}
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def key(self) -> str:
        """SHA-256 of `made()`."""
        return digest_of(self.made().encode("ascii"))

    @property
    def ingredients(self) -> tuple[Ingredient, ...]:
        """All that goes in, the source first."""
        return (self.source, *(half for one in self.additions for half in (one.a, one.b)))


def _values(one: Ingredient) -> list[Any]:
    return [one.digest, one.dtype.name, list(one.shape)]
