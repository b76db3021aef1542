"""The writer of GGUF files, version 3. It encodes metadata and tensors and computes the offsets."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from organs.registry.gguf.header import ByteSource, Field, TensorSpec, padded
from organs.registry.gguf.types import (
    ALIGNMENT_DEFAULT,
    ALIGNMENT_KEY,
    MAGIC,
    SCALAR_FORMATS,
    VERSION_WRITTEN,
    ValueType,
)

Text = str | bytes
Value = int | float | bool | Text | Sequence[int] | Sequence[float] | Sequence[bool] | Sequence[Text]


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A metadata entry to write: `KeyValue("a.b", ValueType.ARRAY, [1, 2], element_type=ValueType.INT32)`.

    Strings may be given as bytes, which need not be UTF-8.
    """

    key: str
    type: ValueType
    value: Value
    element_type: ValueType | None = None

    def encode(self) -> bytes:
        """Return key, type and value as bytes of the file; raises struct.error for a number out of range."""
        key = self.key.encode("ascii")
        head = struct.pack("<Q", len(key)) + key + struct.pack("<I", self.type)
        if self.type is not ValueType.ARRAY:
            return head + _encode_scalar(self.type, self.value)
        assert self.element_type is not None
        assert isinstance(self.value, Sequence)
        head += struct.pack("<IQ", self.element_type, len(self.value))
        if self.element_type is ValueType.STRING:
            return head + b"".join(_encode_scalar(ValueType.STRING, text) for text in self.value)
        return head + struct.pack(f"<{len(self.value)}{SCALAR_FORMATS[self.element_type][1]}", *self.value)


@dataclass(frozen=True, slots=True)
class RawKeyValue:
    """A metadata entry with the exact bytes of another file."""

    key: str
    encoded: bytes

    def encode(self) -> bytes:
        return self.encoded


Metadata = KeyValue | RawKeyValue


def carry_over(source: ByteSource, field: Field) -> RawKeyValue:
    """Return `field` of the file `source` with its exact bytes: key, type, length and value."""
    if field.is_array:
        head_size = 12
    elif field.type is ValueType.STRING:
        head_size = 8
    else:
        head_size = 0
    begin = field.offset - head_size - 4 - len(field.key) - 8
    return RawKeyValue(field.key, source.read_at(begin, field.offset + field.size_bytes - begin))


def encode_header(
    metadata: Iterable[Metadata], tensors: Sequence[TensorSpec], alignment: int = ALIGNMENT_DEFAULT
) -> bytes:
    """Return the header with its padding; the data section begins after it.

    An `alignment` other than 32 is written as `general.alignment`, unless `metadata` has this key.
    """
    entries = list(metadata)
    if alignment != ALIGNMENT_DEFAULT and all(entry.key != ALIGNMENT_KEY for entry in entries):
        entries.insert(0, KeyValue(ALIGNMENT_KEY, ValueType.UINT32, alignment))
    announced = [entry.encode()[-4:] for entry in entries if entry.key == ALIGNMENT_KEY]
    assert all(value == struct.pack("<I", alignment) for value in announced), "the metadata have another alignment"
    pieces = [MAGIC, struct.pack("<IQQ", VERSION_WRITTEN, len(tensors), len(entries))]
    pieces.extend(entry.encode() for entry in entries)
    offset = 0
    for tensor in tensors:
        name, shape = tensor.name.encode("ascii"), tensor.shape
        pieces.append(struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        pieces.append(struct.pack("<IQ", tensor.dtype.id, offset))
        offset += padded(tensor.size_bytes, alignment)
    header = b"".join(pieces)
    return header.ljust(padded(len(header), alignment), b"\0")


def write_file(
    stream: BinaryIO,
    metadata: Iterable[Metadata],
    tensors: Sequence[tuple[TensorSpec, bytes | memoryview]],
    alignment: int = ALIGNMENT_DEFAULT,
) -> int:
    """Write a complete GGUF file to `stream`, with padding after every tensor; return the number of bytes."""
    size = stream.write(encode_header(metadata, [spec for spec, _ in tensors], alignment))
    for spec, data in tensors:
        assert len(data) == spec.size_bytes, f"{spec.name}: {len(data)} bytes instead of {spec.size_bytes}"
        size += stream.write(data)
        size += stream.write(b"\0" * (padded(len(data), alignment) - len(data)))
    return size


def _encode_scalar(kind: ValueType, value: object) -> bytes:
    if kind is ValueType.STRING:
        raw = value.encode("utf-8") if isinstance(value, str) else value
        assert isinstance(raw, bytes)
        return struct.pack("<Q", len(raw)) + raw
    return struct.pack(SCALAR_FORMATS[kind], value)
