"""Models for composing without a registry: parents in memory, and a search with a fixed result."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from organs.registry.anatomy import Slot
from organs.registry.compose.parents import (
    Parent,
    Part,
)
from organs.registry.compose.plan import Plan
from organs.registry.compose.planner import plan_recipe
from organs.registry.compose.recipe import read_recipe
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.errors import NotFound
from organs.registry.search.gains import DonorGain
from organs.registry.search.language import parse_query


@dataclass(slots=True)
class MemoryLibrary:
    """A library of `parents`, known by their labels; every query finds `found`, in that order."""

    parents: Sequence[Parent]
    found: Sequence[PlacedOrgan] = ()
    queries: list[str] = field(default_factory=list)
    """The received queries, in order."""

    def parent(self, text: str) -> Parent:
        for parent in self.parents:
            if parent.label == text:
                return parent
        raise NotFound(f"no model is registered as {text}")

    def organs(self, query: str, base: str | None = None) -> Iterator[PlacedOrgan]:
        self.queries.append(query)
        parse_query(query, base=base)
        yield from self.found

    def stored(self, parts: Collection[Part]) -> None:
        return None

    def source_of(self, model: Parent, named: str | None = None) -> None:
        return None

    def measured(self, base: Parent, donors: Sequence[Parent]) -> dict[str, DonorGain]:
        return {}

    def experts(self, parent: Parent, stacks: Collection[str], numbers: Collection[int]) -> dict[tuple[str, int], Part]:
        return {}

    def in_common(self, base: Parent) -> dict[Slot, set[str]]:
        shared: dict[Slot, set[str]] = {}
        for parent in self.parents:
            for slot, part in base.by_slot.items():
                own = parent.by_slot.get(slot)
                if parent is not base and own is not None and (own.digest, own.dtype) == (part.digest, part.dtype):
                    shared.setdefault(slot, set()).add(parent.label)
        return shared


def found_organ(parent: Parent, part: Part) -> PlacedOrgan:
    """Return `part` as a search result."""
    return PlacedOrgan(
        digest=part.digest,
        model=parent.label,
        name=part.name,
        type=part.place.type.value,
        tower=part.place.tower.value,
        block=part.place.block,
        slot=part.place.slot,
        dtype=part.dtype.name,
        shape=part.shape,
        size_bytes=part.size_bytes,
        theta=part.theta,
        magnitude=None,
        signal=None,
        spectral_signal=part.spectral_signal,
        stable_rank=None,
        architecture=None,
        license=None,
        nonfinite=None,
    )


def as_registered(parent: Parent, label: str, model_id: int = 1) -> Parent:
    """Return `parent` under another label, as if it were registered."""
    return replace(parent, label=label, model_id=model_id)


def plan_in_memory(text: str, *parents: Parent, found: Sequence[PlacedOrgan] = ()) -> Plan:
    """Return the plan of the recipe `text` with `parents` as the library."""
    return plan_recipe(read_recipe(text), MemoryLibrary(parents, found))
