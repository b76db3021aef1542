"""What a search gives, as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from registry.digest import Digest


@dataclass(frozen=True, slots=True)
class FoundOrgan:
    """An organ at its place in a visible model. Measures are None where nothing was measured."""

    digest: Digest
    model: str
    """`namespace/name@version`."""
    name: str
    type: str
    tower: str
    block: int | None
    slot: str
    dtype: str
    shape: tuple[int, ...]
    """Row length first."""
    size_bytes: int
    theta: float | None
    """Degrees, 0 noise to 90 signal."""
    magnitude: float | None
    signal: float | None
    spectral_signal: float | None
    stable_rank: float | None
    architecture: str | None
    license: str | None
    likeness: float | None = None
    """For `like:` the correlation of the fingerprints, -1 to 1."""


@dataclass(frozen=True, slots=True)
class SearchPage:
    """One page of a search. Iterating gives its organs."""

    items: tuple[FoundOrgan, ...]
    next: str | None
    """What to give as `after` for the next page; None on the last."""
    notes: tuple[str, ...] = ()
    """What the asker should know: a name that nothing has, a comparison that was cut off."""

    def __iter__(self) -> Iterator[FoundOrgan]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A visible model."""

    name: str
    """`namespace/name@version`."""
    title: str | None
    kind: str
    """model, adapter or vocabulary; partial when only some of its organs are here."""
    architecture: str | None
    license: str | None
    parameters: int
    tensors: int
    size_bytes: int
    mean_theta: float | None
    """Degrees, over its tensors."""
    mean_signal: float | None
    digest: Digest
    """Of its bytes."""
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ModelsPage:
    """One page of models. Iterating gives them."""

    items: tuple[FoundModel, ...]
    next: str | None
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[FoundModel]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True)
class FacetCounts:
    """How the placements that a query finds are spread; each field's counts leave out that field's own filter."""

    total: int | None
    """How many the query finds; None when there are too many to count one by one."""
    fields: Mapping[str, Mapping[str, int]]
    """By field (type, slot, dtype, arch, license), value and count; the largest counts first."""
    theta: Mapping[int | None, int]
    """By the lower edge of a bin of 5 degrees; None counts what has no θ. The filter by θ is left out."""
    exact: bool
    """False where a bound lies inside a bin of θ and its share was estimated, or where a filter was not counted."""
    uncounted: tuple[str, ...] = ()
    """The filters that the counts leave out, for what they match would have to be counted one by one."""
    hurried: bool = False
    """Whether time ran out over that: the same question may be answered better another time."""
