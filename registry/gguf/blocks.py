"""The blocks of a model: those that its header states, and those that its tensors are in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from organs.registry.amounts import names_text, ranges_text, spans_text
from organs.registry.anatomy import (
    COMPANIONS,
    OUTPUT_MATRIX,
    TOKEN_EMBEDDING,
    OrganType,
    Place,
    Tower,
    is_after_blocks,
    is_shared_by_blocks,
    place_of,
)
from organs.registry.gguf.header import Header

TOWERS = (Tower.TEXT, Tower.ENCODER, Tower.DECODER)
"""The stacks of blocks whose number a header states in `block_count`."""
VARIED_KEYS = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
"""Keys that are arrays, with a number for each block, in models whose blocks have different parts."""
_SCALES = tuple(companion.suffix for companion in COMPANIONS if companion.is_scale)


def stated_blocks(header: Header, tower: Tower = Tower.TEXT) -> int | None:
    """Return the number of blocks that a header states for a stack of blocks; None if it states none."""
    keys = ("decoder_block_count", "block_count") if tower is Tower.DECODER else ("block_count",)
    counts = (header.integer(f"{header.architecture}.{key}") for key in keys)
    return next((count for count in counts if count is not None), None)


def further_blocks(header: Header) -> int:
    """Return how many of the last stated blocks only predict further tokens: a model runs without them."""
    count = header.integer(f"{header.architecture}.nextn_predict_layers") or 0
    return count if 0 < count < (stated_blocks(header) or 0) else 0


def block_faults(header: Header, places: Sequence[Place]) -> Iterator[str]:
    """Yield sentences on blocks without tensors, and on tensors that only one block lacks.

    `header` has the metadata of a model with tensors at `places`. A model without embedding or attention is a part of
    one: nothing is said of it. Blocks may have different parts, as in mixtures of attention and state space: a block
    that has a slot for itself is of another kind than the others.
    """
    if not {OrganType.EMBED, OrganType.SKELETON} <= {place.type for place in places}:
        return
    arrays = {field.key for field in header.fields if field.is_array}
    may_vary = any(f"{header.architecture}.{key}" in arrays for key in VARIED_KEYS)
    for tower in TOWERS:
        slots: dict[int, dict[str, OrganType]] = {}
        for place in places:
            if place.tower is tower and place.block is not None:
                slots.setdefault(place.block, {})[place.slot] = place.type
        if slots:
            blocks = dict(sorted(slots.items()))
            yield from _count_faults(header, tower, blocks)
            if not may_vary:
                yield from _slot_faults(blocks)


def has_all_blocks(header: Header, *, may_be_tied: bool = False) -> bool:
    """Return whether one file has all blocks that its header states, with an embedding, a norm and an output matrix.

    With `may_be_tied`, the embedding can be the output matrix.
    """
    places = [place_of(tensor.name) for tensor in header.tensors]
    needed = (TOKEN_EMBEDDING,) if may_be_tied else (TOKEN_EMBEDDING, OUTPUT_MATRIX)
    if stated_blocks(header) is None or any(place not in places for place in needed):
        return False
    has_attention = any(place.type is OrganType.SKELETON for place in places)
    has_norm = any(place.type is OrganType.NORM and is_after_blocks(place.slot) for place in places)
    return has_attention and has_norm and not any(block_faults(header, places))


def _count_faults(header: Header, tower: Tower, blocks: Iterable[int]) -> Iterator[str]:
    """Yield sentences on blocks that the header states and that have no tensors, and the other way round."""
    stated = stated_blocks(header, tower)
    if stated is None:
        return
    subject = f"its header states {stated:,} {'block' if stated == 1 else 'blocks'}, but it"
    if more := [block for block in blocks if block >= stated]:
        yield f"{subject} also has tensors of block {ranges_text(more)}: runtimes refuse it"
    # Ranges, not a list of all: a header can state any number of blocks.
    missing, next_block = [], 0
    for block in (*(block for block in blocks if block < stated), stated):
        if block > next_block:
            missing.append((next_block, block - 1))
        next_block = block + 1
    if missing:
        is_further = missing == [(stated - further_blocks(header), stated - 1)]
        effect = ", which predicts further tokens: some runtimes refuse it" if is_further else ": runtimes refuse it"
        yield f"{subject} has no tensors of block {spans_text(missing)}{effect}"


def _slot_faults(blocks: Mapping[int, Mapping[str, OrganType]]) -> Iterator[str]:
    """Yield a sentence for each block that lacks slots that all other blocks have, and has none for itself."""
    counts = Counter(slot for slots in blocks.values() for slot in slots)
    types = {slot: kind for slots in blocks.values() for slot, kind in slots.items()}
    usual = [slot for slot, count in counts.items() if count == len(blocks) - 1]
    first = min(blocks)
    for block, slots in blocks.items():
        missing = (slot for slot in usual if slot not in slots)
        lacking = [slot for slot in missing if not _may_lack(slot, types[slot], is_first=block == first)]
        if lacking and all(counts[slot] > 1 for slot in slots):
            others = "the other block has" if len(blocks) == 2 else "all other blocks have"
            yield f"block {block} has no {names_text(lacking)}, which {others}: runtimes may refuse it"


def _may_lack(slot: str, kind: OrganType, *, is_first: bool) -> bool:
    """Return whether one block of a sound model can lack `slot`, which all others have."""
    if slot.endswith(_SCALES):
        return True  # it belongs to a tensor type, which can differ
    if is_first:
        return kind is OrganType.NORM  # the embedding has a norm in its place
    return is_shared_by_blocks(slot)
