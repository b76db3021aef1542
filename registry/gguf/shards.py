"""One model cut into shards at a size: which tensors go into which, and the header of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from organs.registry.errors import NotAssemblable
from organs.registry.gguf.header import Header, TensorSpec, padded
from organs.registry.gguf.source import ByteSource
from organs.registry.gguf.split import SPLIT_COUNT_KEY, SPLIT_KEYS, SPLIT_NUMBER_KEY, SPLIT_TENSORS_KEY, ShardName
from organs.registry.gguf.types import ValueType
from organs.registry.gguf.write import KeyValue, Metadata, carry_over, encode_header

SHARDS_MAX = 65_535
"""`split.count` is a 16-bit number."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard to be written: its header, padding included, then the bytes of `tensors`, each padded."""

    name: str
    header: bytes
    tensors: tuple[TensorSpec, ...]
    size_bytes: int


def cut(
    source: ByteSource, header: Header, tensors: Sequence[TensorSpec], stem: str, shard_bytes: int
) -> list[Shard] | None:
    """Shards `stem-00001-of-0000N.gguf` whose tensors add up to at most `shard_bytes` each, or to one tensor.

    `header`, read from `source`, has all metadata, and `tensors` are all tensors in order. None where all fit into one
    file, which is then no shard. Raises NotAssemblable when there would be too many.
    """
    groups = _groups(tensors, shard_bytes, header.alignment)
    if len(groups) == 1:
        return None
    if len(groups) > SHARDS_MAX:
        raise NotAssemblable(stem, [f"it would be {len(groups)} shards; a split set has at most {SHARDS_MAX}"])
    shards = []
    for number, group in enumerate(groups):
        metadata: list[Metadata] = [
            KeyValue(SPLIT_NUMBER_KEY, ValueType.UINT16, number),
            KeyValue(SPLIT_COUNT_KEY, ValueType.UINT16, len(groups)),
            KeyValue(SPLIT_TENSORS_KEY, ValueType.INT32, len(tensors)),
        ]
        if number == 0:
            metadata = [*whole_metadata(source, header), *metadata]
        encoded = encode_header(metadata, group, header.alignment)
        size_bytes = len(encoded) + sum(padded(one.size_bytes, header.alignment) for one in group)
        shards.append(Shard(str(ShardName(stem, number + 1, len(groups))), encoded, tuple(group), size_bytes))
    return shards


def whole_metadata(source: ByteSource, header: Header) -> list[Metadata]:
    """The metadata of a file, byte for byte, without the keys of a split set."""
    return [carry_over(source, field) for field in header.fields if field.key not in SPLIT_KEYS]


def _groups(tensors: Sequence[TensorSpec], shard_bytes: int, alignment: int) -> list[list[TensorSpec]]:
    groups: list[list[TensorSpec]] = [[]]
    filled = 0
    for tensor in tensors:
        size = padded(tensor.size_bytes, alignment)
        if groups[-1] and filled + size > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += size
    return groups
