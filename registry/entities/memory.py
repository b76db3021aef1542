"""How much memory the runtime takes for a model: its own count, in parts."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry.columns import CellKind, Column, data_only
from organs.registry.entities.base import Bytes, Count, Entity, Items, Text, Word


class MemoryBuffer(Entity):
    """A buffer that the runtime allocated, or mapped from the file."""

    name: Annotated[Word, Meta(description="Where it is, as the runtime calls it: CPU_Mapped, CPU_REPACK, CPU.")]
    content: Annotated[Word, Meta(description="What it holds, as the runtime calls it: model, KV, compute, output.")]
    size_bytes: Annotated[Bytes, Meta(description="With the resolution of the runtime's log, 0.01 MiB.")]


class MemoryCount(Entity):
    """The memory of a model with a context of some tokens, as the runtime counts it."""

    model: Text
    context_tokens: Count
    cache_type: Annotated[Word, Meta(description="The tensor type of keys and values in the cache.")]
    micro_batch: Annotated[Count, Meta(description="The most tokens that are computed at once.")]
    flash_attention: Annotated[Word, Meta(description="auto, on or off.")]
    device: Word
    weights_bytes: Annotated[Bytes, Meta(description="The weights, as they are in the file.")]
    repacked_bytes: Annotated[
        Bytes, Meta(description="Weights that are in memory a second time, in an order that suits the processor.")
    ]
    cache_bytes: Annotated[Bytes, Meta(description="Keys and values of the tokens of the context, or a state.")]
    compute_bytes: Annotated[Bytes, Meta(description="Intermediate results and outputs.")]
    total_bytes: Bytes
    buffers: Items[MemoryBuffer]
    runtime: Text


MEMORY_COLUMNS = (
    Column("context_tokens", "context", CellKind.COUNT),
    Column("weights_bytes", "weights", CellKind.SIZE),
    Column("repacked_bytes", "repacked", CellKind.SIZE, rank=1),
    Column("cache_bytes", "cache", CellKind.SIZE),
    Column("compute_bytes", "compute", CellKind.SIZE),
    Column("total_bytes", "total", CellKind.SIZE),
    *data_only("model", "cache_type", "micro_batch", "flash_attention", "device", "buffers", "runtime"),
)
