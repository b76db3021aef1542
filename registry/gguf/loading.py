"""What llama.cpp needs of the header and the tensors of a model, where it is known.

The rules are those that its loader checks: keys without a default, tensors that every block must have, and shapes that
follow from the header. `bench/checks.py` compares them with what llama.cpp says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from organs.registry.amounts import names_text
from organs.registry.anatomy import (
    DENSE_SHAPES,
    DENSE_SLOTS,
    EXPERT_DIMENSIONS,
    TOKEN_EMBEDDING,
    OrganType,
    Place,
    Tower,
    is_after_blocks,
)
from organs.registry.gguf.blocks import VARIED_KEYS, further_blocks, stated_blocks
from organs.registry.gguf.faults import HeaderFault
from organs.registry.gguf.header import Header, TensorSpec
from organs.registry.gguf.tokenizer import tokenizer_faults

DENSE = frozenset(
    ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "mistral3", "smollm3", "granite", "qwen2moe", "qwen3moe")
)
"""Architectures of one stack of blocks with attention and a feed-forward network, whose tensors and keys are known."""
REQUIRED_KEYS = ("context_length", "embedding_length", "block_count")
"""Keys that no architecture has a default for, after the name of the architecture."""
DENSE_KEYS = ("attention.head_count", "feed_forward_length", "attention.layer_norm_rms_epsilon")
FEATURES_KEY = "features_length"
"""The width of the embedding in models for sound, if it differs from that of the blocks."""
CONTEXT_MAX = 1 << 28
"""The most tokens of a context that is believed: far more than released models have."""
SHOWN_MAX = 3
NO_TENSORS = "no-tensors"


def loading_faults(header: Header, tensors: Sequence[TensorSpec], places: Sequence[Place]) -> Iterator[HeaderFault]:
    """Yield why llama.cpp refuses a complete model with this metadata, `tensors` at `places`, or cannot run it.

    A model without embedding or attention is a part of one: only that is said of it.
    """
    architecture = header.architecture
    if architecture is None:
        return
    kinds = {place.type for place in places}
    if not {OrganType.EMBED, OrganType.SKELETON} <= kinds:
        yield HeaderFault("partial-model", "it has only some tensors of a model: runtimes cannot load it alone")
        return
    is_dense = architecture in DENSE
    keys = (*REQUIRED_KEYS, *DENSE_KEYS) if is_dense else REQUIRED_KEYS
    missing = [f"{architecture}.{key}" for key in keys if header.field(f"{architecture}.{key}") is None]
    if is_dense and any(place.slot in EXPERT_DIMENSIONS for place in places):
        missing = [key for key in missing if not key.endswith("feed_forward_length")]
    if missing:
        yield HeaderFault("missing-keys", f"{names_text(missing)} absent: runtimes refuse it")
    if _number(header, "embedding_length") is None:
        return  # the header does not describe the model: nothing else is known
    context = _number(header, "context_length")
    if context is not None and context > CONTEXT_MAX:
        sentence = (
            f"{architecture}.context_length is {context:,}: runtimes that take it reserve memory for so many tokens"
        )
        yield HeaderFault("huge-context", sentence)
    yield from tokenizer_faults(header)
    yield from _head_faults(header)
    if is_dense:
        yield from _absent(header, places)
    yield from _shape_faults(header, zip(tensors, places, strict=True), is_dense=is_dense)


def _number(header: Header, key: str) -> int | None:
    return header.integer(f"{header.architecture}.{key}")


def _head_faults(header: Header) -> Iterator[HeaderFault]:
    heads, of_keys = _number(header, "attention.head_count"), _number(header, "attention.head_count_kv")
    width, length = _number(header, "embedding_length"), _number(header, "attention.key_length")
    name = f"{header.architecture}.attention.head_count"
    if heads is not None and heads < 1:
        yield HeaderFault("head-count", f"{name} is {heads}: runtimes refuse it")
        return
    if heads and of_keys and heads % of_keys:
        yield HeaderFault(
            "head-count", f"{name} is {heads}, not a multiple of {name}_kv, {of_keys}: runtimes cannot run it"
        )
    if heads and width and length is None and width % heads:
        sentence = f"{name} is {heads}, and {header.architecture}.embedding_length, {width}, is not a multiple of it"
        yield HeaderFault("head-count", f"{sentence}: runtimes refuse it")
    rotated = _number(header, "rope.dimension_count")
    if header.architecture == "llama" and heads and width and rotated and rotated != (length or width // heads):
        sentence = f"llama.rope.dimension_count is {rotated}, but a head has {length or width // heads} values"
        yield HeaderFault("head-count", f"{sentence}: runtimes refuse it")


def _absent(header: Header, places: Sequence[Place]) -> Iterator[HeaderFault]:
    """Yield the tensors that the architecture needs and that are absent, for the first block without them."""
    blocks: dict[int, set[str]] = {}
    for place in places:
        if place.tower is Tower.TEXT and place.block is not None:
            blocks.setdefault(place.block, set()).add(place.slot)
    for block, slots in sorted(blocks.items()):
        absent = [names[0] for names in DENSE_SLOTS if slots.isdisjoint(names)]
        if absent and not _varies(header) and block < (stated_blocks(header) or 0) - further_blocks(header):
            yield HeaderFault(NO_TENSORS, f"block {block} has no {names_text(absent)}: runtimes refuse it")
            break
    outside = [] if TOKEN_EMBEDDING in places else [TOKEN_EMBEDDING.slot]
    if not any(place.type is OrganType.NORM and is_after_blocks(place.slot) for place in places):
        outside.append("norm after its blocks")
    if outside:
        yield HeaderFault(NO_TENSORS, f"it has no {names_text(outside)}: runtimes refuse it")


def _varies(header: Header) -> bool:
    """Return whether the blocks have different parts, which the header states for each."""
    arrays = {field.key for field in header.fields if field.is_array}
    return any(f"{header.architecture}.{key}" in arrays for key in VARIED_KEYS)


def _shape_faults(
    header: Header, tensors: Iterable[tuple[TensorSpec, Place]], *, is_dense: bool
) -> Iterator[HeaderFault]:
    """Yield the tensors whose shapes differ from the header: the first of each slot."""
    width = _number(header, "embedding_length")
    assert width is not None, "the caller tested it"
    sizes = _dimensions(header, width)
    slots = set(DENSE_SHAPES) if is_dense and not _varies(header) else {TOKEN_EMBEDDING.slot}
    if header.field(f"{header.architecture}.{FEATURES_KEY}") is not None:
        slots.discard(TOKEN_EMBEDDING.slot)
    wrong: dict[str, str] = {}
    for tensor, place in tensors:
        if place.tower is not Tower.TEXT or place.slot not in slots or place.slot in wrong:
            continue
        expected = [sizes.get(dimension or "") for dimension in DENSE_SHAPES[place.slot]]
        if any(due is not None and due != size for due, size in zip(expected, tensor.shape, strict=False)):
            due = " × ".join("any" if size is None else f"{size:,}" for size in expected)
            wrong[place.slot] = f"{tensor.name} has {' × '.join(f'{size:,}' for size in tensor.shape)}, not {due}"
    if wrong:
        more = f" and {len(wrong) - SHOWN_MAX} more" if len(wrong) > SHOWN_MAX else ""
        listed = "; ".join([*wrong.values()][:SHOWN_MAX])
        yield HeaderFault("shape-differs", f"shapes differ from the header: {listed}{more}: runtimes refuse it")


def _dimensions(header: Header, width: int) -> Mapping[str, int | None]:
    """Return the dimensions of `DENSE_SHAPES` by name; None for one that the header does not state."""
    heads, inner = _number(header, "attention.head_count"), _number(header, "feed_forward_length")
    of_keys = _number(header, "attention.head_count_kv") or heads
    length = _number(header, "attention.key_length") or (width // heads if heads else None)
    values = _number(header, "attention.value_length") or length
    return {
        "width": width,
        "inner": inner,
        "queries": heads * length if heads and length else None,
        "keys": of_keys * length if of_keys and length else None,
        "values": of_keys * values if of_keys and values else None,
        "results": heads * values if heads and values else None,
    }
