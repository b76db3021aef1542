"""Split GGUF: models in several files `NAME-00001-of-00003.gguf` (shards). Checks and writes shards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from organs.registry.errors import BadSplit, NotAssemblable
from organs.registry.gguf.header import ByteSource, Header, TensorSpec, padded
from organs.registry.gguf.types import ValueType
from organs.registry.gguf.write import KeyValue, Metadata, carry_over, encode_header

SPLIT_NUMBER_KEY = "split.no"
SPLIT_COUNT_KEY = "split.count"
SPLIT_TENSORS_KEY = "split.tensors.count"
SPLIT_KEYS = (SPLIT_NUMBER_KEY, SPLIT_COUNT_KEY, SPLIT_TENSORS_KEY)
REASONS_MAX = 12
"""The maximum number of reasons in a message; a hostile set can have any number of faults."""

_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.ASCII)


@dataclass(frozen=True, slots=True)
class ShardName:
    """The parts of the file name of a shard; `number` counts from 1."""

    stem: str
    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.stem}-{self.number:05d}-of-{self.count:05d}.gguf"


def parse_shard_name(name: str) -> ShardName | None:
    """Return the parts of `name` if it is the file name of a shard, else None."""
    match = _SHARD_NAME.fullmatch(name)
    return ShardName(match["stem"], int(match["number"]), int(match["count"])) if match else None


def is_shard(header: Header) -> bool:
    """Return whether the file is one of several shards, according to its header."""
    return (header.integer(SPLIT_COUNT_KEY) or 0) > 1


def check_split(name: str, shards: Sequence[tuple[str, Header]]) -> tuple[int, ...]:
    """Return the order in which `shards` (file name and header) form one model, as indices into `shards`.

    Raises BadSplit with all faults: missing or repeated shards, shards of another model, and wrong counts.
    """
    if not shards:
        raise BadSplit(name, ["there are no shards"])
    count, places, reasons = _places(shards)
    missing = count - len([number for number in places if number < count])
    if missing > 0:
        reasons.append(f"{missing} of {count} shards missing: {_numbers(places, count)}")
    reasons.extend(_check_tensors([header for _, header in shards]))
    announced = _announced(shards, places)
    total = sum(len(header.tensors) for _, header in shards)
    if announced is not None and announced != total:
        reasons.append(f"the header announces {announced} tensors, but there are {total}")
    if reasons:
        raise BadSplit(name, _bounded(reasons))
    return tuple(places[number] for number in range(count))


def check_shards(name: str, shards: Sequence[tuple[str, Header]]) -> SplitOrder:
    """Return the order of `shards` (file name and header), which may be some of the shards of the model `name`.

    Raises BadSplit with the first difference of each file that does not fit those before it.
    """
    fitting: dict[int, _Stated] = {}
    places: dict[int, int] = {}
    tensors: dict[str, str] = {}
    reasons = []
    for index, (file, header) in enumerate(shards):
        stated = _Stated.by(file, header)
        difference = stated.difference_from(fitting)
        repeated = next((tensor.name for tensor in header.tensors if tensor.name in tensors), None)
        if difference is None and repeated is not None:
            difference = f"has the tensor {repeated}, as {tensors[repeated]} has"
        if difference is not None:
            reasons.append(f"{file} {difference}")
            continue
        fitting[stated.number or 0] = stated
        places[stated.number or 0] = index
        tensors |= dict.fromkeys((tensor.name for tensor in header.tensors), file)
    count, announced = stated.count or 0, stated.tensors or len(tensors)
    if not reasons and (len(tensors) > announced or (len(places) == count and len(tensors) < announced)):
        reasons.append(f"{stated.file} announces {announced} tensors, but with it there are {len(tensors)}")
    if reasons:
        raise BadSplit(name, _bounded(reasons), "not shards of one model")
    return SplitOrder(count, tuple((number, places[number]) for number in sorted(places)))


@dataclass(frozen=True, slots=True)
class _Stated:
    """What the header of a shard says about its set."""

    file: str
    number: int | None
    count: int | None
    tensors: int | None
    architecture: str | None

    @classmethod
    def by(cls, file: str, header: Header) -> Self:
        number, count, tensors = map(header.integer, (SPLIT_NUMBER_KEY, SPLIT_COUNT_KEY, SPLIT_TENSORS_KEY))
        return cls(file, number, count, tensors, header.architecture)

    def difference_from(self, others: Mapping[int, _Stated]) -> str | None:
        """Return the first difference from the `others` of the set, by number, as the end of a sentence."""
        if self.number is None or self.count is None:
            return f"is not a shard: its header has no {SPLIT_NUMBER_KEY} and {SPLIT_COUNT_KEY}"
        if not 0 <= self.number < self.count:
            return f"says that it is number {self.number} of {self.count}, counted from 0"
        for other in others.values():
            for key, own, value in (
                (SPLIT_COUNT_KEY, self.count, other.count),
                (SPLIT_TENSORS_KEY, self.tensors, other.tensors),
            ):
                if own != value:
                    return f"says {own} for {key}, but {other.file} says {value}"
            if None not in (self.architecture, other.architecture) and self.architecture != other.architecture:
                return f"is of the architecture {self.architecture}, but {other.file} of {other.architecture}"
        if self.number in others:
            return f"repeats shard {self.number + 1}, but is another file than {others[self.number].file}"
        return None


@dataclass(frozen=True, slots=True)
class SplitOrder:
    """Some or all shards of a model."""

    count: int
    """The number of shards of the complete model."""
    shards: tuple[tuple[int, int], ...]
    """The number of each shard, from 0, and its index in the list that was checked; by number."""


def _places(shards: Sequence[tuple[str, Header]]) -> tuple[int, dict[int, int], list[str]]:
    """Return the number of shards of the complete model, the index of each shard by number, and the faults."""
    counts = Counter(header.integer(SPLIT_COUNT_KEY) for _, header in shards)
    count = counts.most_common(1)[0][0] or 0
    places: dict[int, int] = {}
    reasons = [_place(index, file, header, count, places) for index, (file, header) in enumerate(shards)]
    return count, places, [reason for reason in reasons if reason is not None]


def _bounded(reasons: list[str]) -> list[str]:
    left_out = len(reasons) - REASONS_MAX
    return [*reasons[:REASONS_MAX], f"and {left_out} more"] if left_out > 0 else reasons


def _place(index: int, file: str, header: Header, count: int, places: dict[int, int]) -> str | None:
    number = header.integer(SPLIT_NUMBER_KEY)
    own_count = header.integer(SPLIT_COUNT_KEY)
    if number is None or own_count is None:
        return f"{file} is not a shard: it has no {SPLIT_NUMBER_KEY} and {SPLIT_COUNT_KEY}"
    if own_count != count:
        return f"{file} is of a set of {own_count}, the others of {count}"
    if not 0 <= number < count:
        return f"{file} says it is number {number} of {count}"
    if number in places:
        return f"{file} repeats shard {number + 1}"
    places[number] = index
    return None


def _numbers(places: dict[int, int], count: int) -> str:
    missing_numbers = [number + 1 for number in range(min(count, len(places) + 6)) if number not in places][:5]
    return ", ".join(f"{number:05d}" for number in missing_numbers) + (
        " ..." if count - len(places) > len(missing_numbers) else ""
    )


def _announced(shards: Sequence[tuple[str, Header]], places: dict[int, int]) -> int | None:
    first = places.get(0)
    return None if first is None else shards[first][1].integer(SPLIT_TENSORS_KEY)


def _check_tensors(headers: Sequence[Header]) -> list[str]:
    reasons = []
    tensor_counts = {header.integer(SPLIT_TENSORS_KEY) for header in headers}
    if len(tensor_counts) > 1:
        reasons.append(f"the shards disagree on {SPLIT_TENSORS_KEY}: a shard of another model is among them")
    names = Counter(tensor.name for header in headers for tensor in header.tensors)
    repeated = [name for name, count in names.items() if count > 1]
    if repeated:
        reasons.append(f"{len(repeated)} tensors are in more than one shard, for example {repeated[0]}")
    architectures = {header.architecture for header in headers if header.architecture is not None}
    if len(architectures) > 1:
        reasons.append("the shards are of different architectures: " + ", ".join(sorted(architectures)))
    return reasons


SHARDS_MAX = 65_535
"""`split.count` is a 16-bit number."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard to write: its header with padding, then the bytes of `tensors`, each padded."""

    name: str
    header: bytes
    tensors: tuple[TensorSpec, ...]
    size_bytes: int


def cut(
    source: ByteSource, header: Header, tensors: Sequence[TensorSpec], stem: str, shard_bytes: int
) -> list[Shard] | None:
    """Return shards `stem-00001-of-0000N.gguf`, each with at most `shard_bytes` of tensors or with one larger tensor.

    `header`, read from `source`, has all metadata; `tensors` are all tensors in order. Returns None if all tensors fit
    into one file, which is then not a shard. Raises NotAssemblable for more than SHARDS_MAX shards.
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
        size_bytes = len(encoded) + sum(padded(tensor.size_bytes, header.alignment) for tensor in group)
        shards.append(Shard(str(ShardName(stem, number + 1, len(groups))), encoded, tuple(group), size_bytes))
    return shards


def whole_metadata(source: ByteSource, header: Header) -> list[Metadata]:
    """Return the metadata of a file, byte for byte, without the keys of a split set."""
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
