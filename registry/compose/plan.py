"""The plan: every tensor of the result, where its bytes come from, and how computed organs are computed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from organs.registry.compose.findings import (
    Finding,
    refusals,
    unaccepted,
)
from organs.registry.compose.lock import Lock, LockedTensor, locked_header
from organs.registry.compose.models import (
    Parent,
    Part,
)
from organs.registry.compose.prediction import Prediction
from organs.registry.compose.recipe import Recipe
from organs.registry.digest import Digest, digest_of
from organs.registry.errors import NotComposable
from organs.registry.gguf import KeyValue, TensorSpec, padded
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


NOT_YET = Digest("0" * 64)
"""Stands for the digest of an organ that has not been computed: as long as any, so that sizes are known."""


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """A tensor of the result."""

    before: Part
    """The base's, whose name and place it has."""
    source: Part
    """What stands there, or what it is computed from."""
    donor: Parent | None
    """Whom `source` comes from; None for the base's own."""
    computation: Computation | None = None
    adapters: tuple[Parent, ...] = ()
    """Whose products are added."""

    @property
    def spec(self) -> TensorSpec:
        dtype = self.source.dtype if self.computation is None else self.computation.dtype
        return TensorSpec(self.before.name, self.source.shape, dtype)

    @property
    def acts(self) -> tuple[str, ...]:
        """What was done at this place, as lineage calls it: nothing where the base's own stays."""
        grafted = ("grafted",) if self.donor is not None else ()
        return (*grafted, *(self.computation.acts if self.computation else ()))

    def __repr__(self) -> str:
        whose = f" from {self.donor.label}" if self.donor is not None else ""
        return f"<{self.before.name}: {', '.join(self.acts) or 'kept'}{whose}>"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a recipe comes to. One with refusals is never made; warnings must be accepted by their codes."""

    recipe: Recipe
    base: Parent
    parents: tuple[Parent, ...]
    """The base, then everybody whose weights go in, in the order of the recipe."""
    parts: tuple[PlannedPart, ...]
    sets: tuple[KeyValue, ...]
    drops: tuple[str, ...]
    findings: tuple[Finding, ...]
    prediction: Prediction
    licence: str
    """Of all parents together, for people."""
    stem: str
    """The file's name without its ending."""

    @property
    def refusals(self) -> list[Finding]:
        return refusals(self.findings)

    @property
    def unaccepted(self) -> list[Finding]:
        """Warnings that the recipe does not accept."""
        return unaccepted(self.findings, self.recipe.accept)

    @property
    def can_be_made(self) -> bool:
        return not self.refusals and not self.unaccepted

    @property
    def file_name(self) -> str:
        return f"{self.stem}.gguf"

    @property
    def computations(self) -> dict[str, Computation]:
        """What must be computed, by the names of the tensors."""
        return {part.before.name: part.computation for part in self.parts if part.computation is not None}

    @property
    def size_bytes(self) -> int:
        """Of the file that it makes."""
        tensors = sum(padded(part.spec.size_bytes, self.base.header.alignment) for part in self.parts)
        return len(self.header(self.lock(dict.fromkeys(self.computations, NOT_YET)))) + tensors

    @property
    def digest(self) -> Digest:
        """Of all that it would make: two plans with one digest make the same bytes."""
        steps = [part.source.digest if part.computation is None else part.computation.key for part in self.parts]
        lock = self.lock(dict.fromkeys(self.computations, NOT_YET))
        return digest_of("\n".join([lock.id, *steps]).encode())

    def check(self) -> None:
        """Raise NotComposable unless it can be made."""
        if not self.can_be_made:
            codes = sorted({finding.code for finding in self.unaccepted})
            raise NotComposable([finding.sentence for finding in self.refusals], codes)

    def lock(self, computed: Mapping[str, Digest] | None = None) -> Lock:
        """The lock; `computed` has the digest of each organ that is computed, by its tensor's name."""
        digests = computed or {}
        tensors = [
            LockedTensor(part.spec, part.source.digest if part.computation is None else digests[part.before.name])
            for part in self.parts
        ]
        return Lock(self.base.header_digest, tuple(tensors), self.sets, self.drops)

    def header(self, lock: Lock) -> bytes:
        """The header of the file that `lock` describes."""
        return locked_header(self.base.header, self.base.source, lock)
