"""Split GGUF: models in several files `NAME-00001-of-00003.gguf` (shards). Checks and writes shards."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from organs.registry.errors import BadSplit, NotAssemblable
from organs.registry.gguf.blocks import has_all_blocks
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
    """Return whether the file is one of several shards, according to its header and its tensors."""
    return (header.integer(SPLIT_COUNT_KEY) or 0) > 1 and not _has_all_tensors(header)


def has_left_over_keys(header: Header) -> bool:
    """Return whether the header of a complete model still says that the file is one of several shards."""
    return (header.integer(SPLIT_COUNT_KEY) or 0) > 1 and _has_all_tensors(header)


def _has_all_tensors(header: Header) -> bool:
    """Return whether a file that says that it is a shard has all tensors of its model.

    Programs that write one new file from the shards of a model copy the keys of the first one. They may add or leave
    out tensors, so that fewer are announced than there are. Programs that split a model may announce in each shard its
    own tensors. So the blocks are compared; only as many tensors as announced prove that the output matrix is tied.
    """
    if not header.tensors or header.architecture is None:
        return False
    announced = header.integer(SPLIT_TENSORS_KEY)
    if announced is not None and announced >= len(header.tensors):
        return announced == len(header.tensors) and has_all_blocks(header, may_be_tied=True)
    return not header.integer(SPLIT_NUMBER_KEY) and has_all_blocks(header)


def check_split(name: str, shards: Sequence[tuple[str, Header]]) -> tuple[int, ...]:
    """Return the order in which `shards` (file name and header) form one model, as indices into `shards`.

    Raises BadSplit with all faults: those of `check_shards`, and missing shards.
    """
    if not shards:
        raise BadSplit(name, ["there are no shards"])
    order, reasons = _checked(shards)
    if missing := order.count - len(order.shards):
        reasons.insert(0, f"{missing} of {order.count} shards missing: {_missing_numbers(order)}")
    if reasons:
        raise BadSplit(name, _bounded(reasons))
    return tuple(index for _, index in order.shards)


def check_shards(name: str, shards: Sequence[tuple[str, Header]]) -> SplitOrder:
    """Return the order of `shards` (file name and header), which may be some of the shards of the model `name`.

    Raises BadSplit with the first difference of each file that does not fit those before it.
    """
    order, reasons = _checked(shards)
    if reasons:
        raise BadSplit(name, _bounded(reasons), "not shards of one model")
    return order


@dataclass(frozen=True, slots=True)
class SplitOrder:
    """Some or all shards of a model."""

    count: int
    """The number of shards of the complete model."""
    shards: tuple[tuple[int, int], ...]
    """The number of each shard, from 0, and its index in the list that was checked; by number."""


def _checked(shards: Sequence[tuple[str, Header]]) -> tuple[SplitOrder, list[str]]:
    """Return the order of the shards that fit together, and the first difference of each of the others."""
    checked = _CheckedShards()
    places: dict[int, int] = {}
    reasons = []
    for index, (file, header) in enumerate(shards):
        difference = checked.difference(header)
        if difference is None:
            places[checked.add(file, header)] = index
        else:
            reasons.append(f"{file} {difference}")
    total, announced = len(checked.tensors), checked.tensor_count
    is_complete = len(places) == checked.count
    if not reasons and announced is not None and (total > announced or (is_complete and total < announced)):
        reasons.append(f"{shards[-1][0]} announces {announced} tensors, but with it there are {total}")
    return SplitOrder(checked.count, tuple((number, places[number]) for number in sorted(places))), reasons


@dataclass(slots=True)
class _CheckedShards:
    """Shards of one set that fit together. The first one determines the set."""

    first: str = ""
    count: int = 0
    tensor_count: int | None = None
    """The number of tensors of the complete set, if it is stated."""
    architecture: tuple[str, str] | None = None
    """The architecture, and the first file that states it."""
    files: dict[int, str] = field(default_factory=dict)
    """The files by number."""
    tensors: dict[str, str] = field(default_factory=dict)
    """The file of each tensor."""

    def difference(self, header: Header) -> str | None:
        """Return why a shard does not fit, as the end of a sentence; None if it fits."""
        number, count, tensors = map(header.integer, SPLIT_KEYS)
        if number is None or count is None:
            return f"is not a shard: its header has no {SPLIT_NUMBER_KEY} and {SPLIT_COUNT_KEY}"
        if self.files and count != self.count:
            return f"says {count} for {SPLIT_COUNT_KEY}, but {self.first} says {self.count}"
        if not 0 <= number < count:
            return f"says that it is number {number} of {count}, counted from 0"
        if self.files and tensors != self.tensor_count:
            return f"says {tensors} for {SPLIT_TENSORS_KEY}, but {self.first} says {self.tensor_count}"
        if self.architecture is not None and header.architecture not in (None, self.architecture[0]):
            return f"is of the architecture {header.architecture}, but {self.architecture[1]} of {self.architecture[0]}"
        if number in self.files:
            return f"repeats shard {number + 1}, but is another file than {self.files[number]}"
        repeated = next((tensor.name for tensor in header.tensors if tensor.name in self.tensors), None)
        return None if repeated is None else f"has the tensor {repeated}, as {self.tensors[repeated]} has"

    def add(self, file: str, header: Header) -> int:
        """Add a shard that fits; return its number."""
        number, count, tensors = map(header.integer, SPLIT_KEYS)
        assert number is not None, "the shard was checked"
        assert count is not None, "the shard was checked"
        if not self.files:
            self.first, self.count, self.tensor_count = file, count, tensors
        if self.architecture is None and header.architecture is not None:
            self.architecture = header.architecture, file
        self.files[number] = file
        self.tensors |= dict.fromkeys((tensor.name for tensor in header.tensors), file)
        return number


def _bounded(reasons: list[str]) -> list[str]:
    left_out = len(reasons) - REASONS_MAX
    return [*reasons[:REASONS_MAX], f"and {left_out} more"] if left_out > 0 else reasons


def _missing_numbers(order: SplitOrder) -> str:
    present = {number for number, _ in order.shards}
    first = [number + 1 for number in range(min(order.count, len(present) + 6)) if number not in present][:5]
    return ", ".join(f"{number:05d}" for number in first) + (" ..." if order.count - len(present) > len(first) else "")


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
    groups: list[list[TensorSpec]] = [[]]
    filled_bytes = 0
    for tensor in tensors:
        size_bytes = padded(tensor.size_bytes, header.alignment)
        if groups[-1] and filled_bytes + size_bytes > shard_bytes:
            groups.append([])
            filled_bytes = 0
        groups[-1].append(tensor)
        filled_bytes += size_bytes
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
