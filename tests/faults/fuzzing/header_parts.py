"""A GGUF file in parts, and its assembly with the positions of its numbers."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

from organs.registry.gguf import KeyValue, TensorSpec, ValueType, padded
from organs.registry.gguf.types import ALIGNMENT_KEY, DTYPES
from tests.faults.fuzzing.edits import Mark

DATA_MAX_BYTES = 1 << 16
"""The limit of data of a tensor; if it claims more, its file is too short."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Entry:
    """A metadata entry; `value` is encoded, with the element type and count of an array."""

    key: bytes
    type: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Info:
    """A tensor; its data is `fill`, repeated. `offset` is None for the correct one."""

    name: bytes
    shape: tuple[int, ...]
    dtype_id: int
    fill: bytes
    offset: int | None = None

    @property
    def size_bytes(self) -> int:
        """The size by shape and type, in whole blocks or not; 0 for an unknown type."""
        dtype = DTYPES.get(self.dtype_id)
        elements = 1
        for length in self.shape:
            elements *= length
        return 0 if dtype is None else elements // dtype.block_elements * dtype.block_bytes


@dataclass(slots=True)
class Parts:
    """The parts of a file. Edits change lists and numbers, and replace entries and infos."""

    entries: list[Entry]
    infos: list[Info]
    alignment: int = 32
    version: int = 3
    padding: int = 0
    """The byte of paddings."""
    tail: int | None = None
    """The bytes of padding after the last tensor; None for all."""

    def copy(self) -> Parts:
        """Return an independent copy."""
        return replace(self, entries=self.entries.copy(), infos=self.infos.copy())


@dataclass(slots=True)
class Assembled:
    """A file, the end of its header, and the positions of its numbers."""

    data: bytearray = field(default_factory=lambda: bytearray(b"GGUF"))
    header_end: int = 0
    marks: list[Mark] = field(default_factory=list)

    def number(self, value: int, layout: struct.Struct) -> None:
        """Write a number, and record its position."""
        self.marks.append((len(self.data), layout.size))
        self.data += layout.pack(value % (1 << 8 * layout.size))

    def text(self, value: bytes) -> None:
        """Write a string, and record the position of its length."""
        self.number(len(value), _U64)
        self.data += value


def entry_of(written: KeyValue) -> Entry:
    """Return the entry that our writer writes."""
    raw = written.encode()[8 + len(written.key) :]
    return Entry(written.key.encode(), _U32.unpack_from(raw)[0], raw[4:])


def info_of(spec: TensorSpec, data: bytes) -> Info:
    """Return the parts of a tensor of the builders."""
    return Info(spec.name.encode(), spec.shape, spec.dtype.id, data[:256])


def assemble(parts: Parts) -> Assembled:
    """Return the file of `parts`, which is valid if they are."""
    file = Assembled()
    file.number(parts.version, _U32)
    file.number(len(parts.infos), _U64)
    file.number(len(parts.entries), _U64)
    for entry in parts.entries:
        _write_entry(file, entry)
    offset = 0
    for info in parts.infos:
        _write_info(file, info, offset)
        offset += padded(info.size_bytes, parts.alignment)
    file.header_end = len(file.data)
    _write_data(file, parts)
    return file


def with_alignment(parts: Parts, alignment: int) -> None:
    """Set the alignment, with the entry that announces it."""
    parts.alignment = alignment
    key = ALIGNMENT_KEY.encode()
    parts.entries = [entry for entry in parts.entries if entry.key != key]
    parts.entries.insert(0, Entry(key, ValueType.UINT32, _U32.pack(alignment)))


def _write_entry(file: Assembled, entry: Entry) -> None:
    file.text(entry.key)
    file.number(entry.type, _U32)
    begin = len(file.data)
    file.data += entry.value
    if entry.type == ValueType.STRING:
        file.marks.append((begin, 8))
    elif entry.type == ValueType.ARRAY and len(entry.value) >= 12:
        file.marks += [(begin, 4), (begin + 4, 8)]
        if entry.value[0] == ValueType.STRING and len(entry.value) >= 20:
            file.marks.append((begin + 12, 8))
    else:
        file.marks.append((begin, len(entry.value)))


def _write_info(file: Assembled, info: Info, due: int) -> None:
    file.text(info.name)
    file.number(len(info.shape), _U32)
    for length in info.shape:
        file.number(length, _U64)
    file.number(info.dtype_id, _U32)
    file.number(due if info.offset is None else info.offset, _U64)


def _write_data(file: Assembled, parts: Parts) -> None:
    filler = bytes([parts.padding])
    for info in parts.infos:
        _pad(file, parts.alignment, filler)
        size = min(info.size_bytes, DATA_MAX_BYTES)
        file.data += (info.fill * (size // len(info.fill) + 1))[:size]
    end = len(file.data)
    _pad(file, parts.alignment, filler)
    if parts.tail is not None:
        del file.data[end + parts.tail :]


def _pad(file: Assembled, alignment: int, filler: bytes) -> None:
    file.data += filler * (-len(file.data) % alignment)
