"""Groups of organs whose sensitivity is measured together, and the tensor types in which each may be written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from organs.registry.anatomy import Tower
from organs.registry.compose.parents import Part
from organs.registry.gguf import dtype_by_name
from organs.registry.gguf.quants import can_encode
from organs.registry.gguf.types import DType
from organs.registry.transform.values import WRITTEN_AS_THEY_ARE

FAST = ("Q2_K", "Q3_K", "IQ4_XS", "IQ4_NL", "Q4_K", "Q4_1", "Q5_0", "Q5_K", "Q5_1", "Q6_K", "Q8_0", "F16")
"""The types that are chosen from, the smallest first. Others are slow in runtimes, or not better than one of these of
the same size."""


BANDS = (4, 2, 1)
"""Into so many bands of depth the organs of a slot are divided at first, where time allows; each half is two of the
next finer bands."""


@dataclass(frozen=True, slots=True)
class OrganGroup:
    """Organs of one slot in neighbouring blocks."""

    key: str
    """The slot with the blocks, such as `ffn_down 0-3`; the tower is before it unless it is the text's."""
    parts: tuple[Part, ...]


def first_groups(parts: Sequence[Part]) -> Iterator[list[OrganGroup]]:
    """Yield the organs of each slot in bands of neighbouring blocks, the finest bands first."""
    for bands in BANDS:
        yield _in_bands(parts, bands)


def _in_bands(parts: Sequence[Part], bands: int) -> list[OrganGroup]:
    slots: dict[tuple[str, str], list[Part]] = {}
    for part in parts:
        slots.setdefault((part.place.tower.value, part.place.slot), []).append(part)
    return [
        OrganGroup(_key(band), tuple(band))
        for own in slots.values()
        for band in _bands(sorted(own, key=lambda part: part.place.block or 0), bands)
    ]


def halves(group: OrganGroup) -> list[OrganGroup]:
    """Return a group in two parts; a single organ as it is."""
    return [OrganGroup(_key(band), tuple(band)) for band in _bands(group.parts, 2)]


def _bands(parts: Sequence[Part], count: int) -> Iterator[Sequence[Part]]:
    """Yield `parts` in at most `count` runs of about the same length."""
    count = min(count, len(parts))
    edges = [len(parts) * number // count for number in range(count + 1)]
    return (parts[begin:end] for begin, end in pairwise(edges))


def _key(parts: Sequence[Part]) -> str:
    first, last = parts[0].place, parts[-1].place
    tower = "" if first.tower is Tower.TEXT else f"{first.tower.value} "
    blocks = "" if first.block is None else f" {first.block}" if first == last else f" {first.block}-{last.block}"
    return f"{tower}{first.slot}{blocks}"


def allowed_dtypes(part: Part) -> list[DType]:
    """Return the types in which an organ may be written, the smallest first; the last is its own."""
    fitting = [
        dtype
        for dtype in map(dtype_by_name, FAST)
        if part.shape[0] % dtype.block_elements == 0
        and dtype.bits_per_value < part.dtype.bits_per_value
        and (dtype.name in WRITTEN_AS_THEY_ARE or can_encode(dtype))
    ]
    return [*fitting, part.dtype]


def coarse_dtype(group: OrganGroup, bits: float) -> DType | None:
    """Return the largest type of at most `bits` in which all organs of a group may be written, else the smallest.

    None if there is none but their own.
    """
    first, *others = (allowed_dtypes(part) for part in group.parts)
    own = {part.dtype for part in group.parts}
    coarser = [dtype for dtype in first if dtype not in own and all(dtype in other for other in others)]
    small = [dtype for dtype in coarser if dtype.bits_per_value <= bits]
    return small[-1] if small else next(iter(coarser), None)
