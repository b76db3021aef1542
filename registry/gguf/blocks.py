"""The blocks of a model: those that its header states, and those that its tensors are in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from organs.registry.amounts import names_text, ranges_text, spans_text
from organs.registry.anatomy import (
    COMPANIONS,
    EXPERT_DIMENSIONS,
    OUTPUT_MATRIX,
    TOKEN_EMBEDDING,
    OrganType,
    Place,
    Tower,
    is_after_blocks,
    is_shared_by_blocks,
    place_of,
)
from organs.registry.gguf.faults import HeaderFault
from organs.registry.gguf.header import Header

TOWERS = (Tower.TEXT, Tower.ENCODER, Tower.DECODER)
"""The stacks of blocks whose number a header states in `block_count`."""
VARIED_KEYS = (
    *("attention.head_count", "attention.head_count_kv", "feed_forward_length"),
    "attention.recurrent_layers",
)
"""Keys that are arrays, with a number for each block, in models whose blocks have different parts."""
BLOCK_INCOMPLETE = "block-incomplete"
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


def block_faults(header: Header, places: Sequence[Place]) -> Iterator[HeaderFault]:
    """Yield the faults of blocks without tensors, and of tensors that only one block lacks.

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


PERIODS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("gemma2", "gpt-oss"), (2, 1)),
    **dict.fromkeys(("cohere2", "llama4", "smollm3", "exaone4", "exaone-moe", "olmo2", "afmoe"), (4, 3)),
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), (4, 3)),
    **dict.fromkeys(("gemma3", "gemma-embedding"), (6, 5)),
    "gemma3n": (5, 4),
    "smallthinker": (4, 0),
    "modern-bert": (3, 0),
}
"""Architectures in which runtimes treat one of so many blocks in another way, and which of them, counted from 0.

It is the block with full attention among those with a window, with attention among recurrent ones, or the one without
positions. llama.cpp has these numbers in its code, not in the header."""
PERIOD_KEYS = (
    *("attention.sliding_window_pattern", "full_attention_interval"),
    *("interleave_moe_layer_step", "moe_every_n_layers"),
)
"""Keys that state such a number; in models that have an array there, each block has a value of its own."""
DENSE_KEY, FURTHER_KEY = "leading_dense_block_count", "nextn_predict_layers"
EACH_BLOCK_INPUT = "per_layer_token_embd"
"""The slot of an embedding of which each block has a part."""


def arrangement_faults(
    header: Header,
    own: Sequence[Collection[str]],
    arranged: Sequence[tuple[int, Collection[str]]],
    outside: Iterable[str],
) -> Iterator[str]:
    """Yield sentences on blocks that runtimes would treat as blocks of another kind if they are arranged anew.

    `own` are the slots of each block of a model with the metadata `header`, `arranged` the former number and the slots
    of each new block, `outside` the slots outside of blocks.
    """
    architecture = header.architecture
    if EACH_BLOCK_INPUT in outside:
        yield f"{EACH_BLOCK_INPUT} has a part for each block: the blocks of {architecture} cannot be arranged anew"
    yield from _further_faults(header, [former for former, _ in arranged])
    for length, special in dict.fromkeys(_periods(header)):
        moved = [
            new for new, (former, _) in enumerate(arranged) if (new % length == special) != (former % length == special)
        ]
        if moved:
            yield (
                f"runtimes treat every {_ordinal(length)} block of {architecture} in another way, by its number, "
                f"and block {arranged[moved[0]][0]} would become block {moved[0]}: repeat, drop or move {length} "
                "blocks together, or a multiple"
            )
    kinds = [_kind(slots) for slots in own]
    new_kinds = [_kind(slots) for _, slots in arranged]
    foreign = [former for (former, _), kind in zip(arranged, new_kinds, strict=True) if kind not in kinds]
    if foreign:
        yield f"block {foreign[0]} of another model has other parts than any block of the base"
        return
    has_numbers = any(field.is_array and field.key in _varied_keys(header) for field in header.fields)
    if has_numbers or len(own) < 2:
        return
    due = _kinds_by_number(kinds, len(new_kinds))
    if header.field(f"{architecture}.{DENSE_KEY}") is not None:  # the number of the first ones can change
        first = next((kind for kind in kinds if kind != kinds[0]), kinds[0])
        lead = next((number for number, kind in enumerate(new_kinds) if kind == first), len(new_kinds))
        due = [*new_kinds[:lead], *[first] * (len(new_kinds) - lead)]
    wrong = [number for number, kind in enumerate(new_kinds) if due is None or kind != due[number]]
    if wrong and [former for former, _ in arranged] != list(range(len(arranged))):
        yield (
            f"block {arranged[wrong[0]][0]} would become block {wrong[0]}, and has other parts than {architecture} "
            "has there: keep the order of the kinds of blocks, or move whole periods"
        )


def leading_dense(header: Header, arranged: Sequence[Collection[str]]) -> int | None:
    """Return how many of the first blocks have no experts, for models whose header states it; None for others."""
    if header.field(f"{header.architecture}.{DENSE_KEY}") is None:
        return None
    of_experts = (number for number, slots in enumerate(arranged) if not EXPERT_DIMENSIONS.keys().isdisjoint(slots))
    return next(of_experts, len(arranged))


def _further_faults(header: Header, former: Sequence[int]) -> Iterator[str]:
    """Yield a sentence if blocks that predict further tokens would not be the last ones, each once, or all absent."""
    count, stated = further_blocks(header), stated_blocks(header) or 0
    last = range(stated - count, stated)
    if count and any(number in last for number in former) and list(former[-count:]) != list(last):
        yield f"block {ranges_text(last)} predicts further tokens: it can only be dropped, or stay at the end"
    elif count and sum(number in last for number in former) > count:
        yield f"block {ranges_text(last)} predicts further tokens: it can be there only once"


def _periods(header: Header) -> Iterator[tuple[int, int]]:
    """Yield for each pattern by the number of a block its length, and which block of it is of another kind."""
    architecture = header.architecture or ""
    length, special = PERIODS.get(architecture, (1, 0))
    stated = [header.field(f"{architecture}.{key}") for key in PERIOD_KEYS]
    arrays = {field.key for field in header.fields if field.is_array}
    if length > 1 and not arrays & {f"{architecture}.{key}" for key in (*PERIOD_KEYS, "attention.recurrent_layers")}:
        yield length, special
    for key, field in zip(PERIOD_KEYS, stated, strict=True):
        number = header.integer(f"{architecture}.{key}") or 0
        if field is not None and number > 1:
            yield number, 0 if special == 0 and length > 1 else number - 1


def _varied_keys(header: Header) -> set[str]:
    return {f"{header.architecture}.{key}" for key in VARIED_KEYS}


def _kind(slots: Iterable[str]) -> frozenset[str]:
    """Return the slots of a block without those that belong to a tensor type."""
    return frozenset(slot for slot in slots if not slot.endswith(_SCALES))


def _kinds_by_number(kinds: Sequence[frozenset[str]], count: int) -> list[frozenset[str]] | None:
    """Return the kinds of `count` blocks by the pattern of `kinds`; None if these have no pattern.

    A pattern is a period of at most half of the blocks, or a first block that differs from the others.
    """
    for length in range(1, len(kinds) // 2 + 1):
        if all(kind == kinds[number % length] for number, kind in enumerate(kinds)):
            return [kinds[number % length] for number in range(count)]
    is_first_alone = len(set(kinds[1:])) == 1
    return [kinds[0], *[kinds[1]] * (count - 1)] if is_first_alone else None


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third", 4: "fourth", 5: "fifth", 6: "sixth"}.get(number, f"{number}th")


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


def _count_faults(header: Header, tower: Tower, blocks: Iterable[int]) -> Iterator[HeaderFault]:
    """Yield faults of blocks that the header states and that have no tensors, and the other way round."""
    stated = stated_blocks(header, tower)
    if stated is None:
        return
    subject = f"its header states {stated:,} {'block' if stated == 1 else 'blocks'}, but it"
    if more := [block for block in blocks if block >= stated]:
        yield HeaderFault("more-blocks", f"{subject} also has tensors of block {ranges_text(more)}: runtimes refuse it")
    # Ranges, not a list of all: a header can state any number of blocks.
    missing, next_block = [], 0
    for block in (*(block for block in blocks if block < stated), stated):
        if block > next_block:
            missing.append((next_block, block - 1))
        next_block = block + 1
    if missing:
        sentence = f"{subject} has no tensors of block {spans_text(missing)}"
        if missing == [(stated - further_blocks(header), stated - 1)]:
            yield HeaderFault(
                "no-prediction-block", f"{sentence}, which predicts further tokens: some runtimes refuse it"
            )
        else:
            yield HeaderFault("fewer-blocks", f"{sentence}: runtimes refuse it")


def _slot_faults(blocks: Mapping[int, Mapping[str, OrganType]]) -> Iterator[HeaderFault]:
    """Yield a fault for each block that lacks slots that all other blocks have, and has none for itself."""
    counts = Counter(slot for slots in blocks.values() for slot in slots)
    types = {slot: kind for slots in blocks.values() for slot, kind in slots.items()}
    usual = [slot for slot, count in counts.items() if count == len(blocks) - 1]
    first = min(blocks)
    for block, slots in blocks.items():
        missing = (slot for slot in usual if slot not in slots)
        lacking = [slot for slot in missing if not _may_lack(slot, types[slot], is_first=block == first)]
        if lacking and all(counts[slot] > 1 for slot in slots):
            others = "the other block has" if len(blocks) == 2 else "all other blocks have"
            sentence = f"block {block} has no {names_text(lacking)}, which {others}: runtimes may refuse it"
            yield HeaderFault(BLOCK_INCOMPLETE, sentence)


def _may_lack(slot: str, kind: OrganType, *, is_first: bool) -> bool:
    """Return whether one block of a sound model can lack `slot`, which all others have."""
    if slot.endswith(_SCALES):
        return True  # it belongs to a tensor type, which can differ
    if is_first:
        return kind is OrganType.NORM  # the embedding has a norm in its place
    return is_shared_by_blocks(slot)
