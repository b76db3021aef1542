"""The strict reader of GGUF headers. It returns a `Header` or raises BadGguf. Lengths are checked before use."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import prod
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from organs.registry.errors import BadGguf, UnsupportedDType
from organs.registry.gguf.header import ByteSource, Field, Header, Scalar, TensorInfo, padded
from organs.registry.gguf.types import (
    ALIGNMENT_DEFAULT,
    ALIGNMENT_KEY,
    ALIGNMENT_MAX,
    DIMENSIONS_MAX,
    EAGER_STRING_MAX_BYTES,
    KEY_MAX_BYTES,
    MAGIC,
    NAME_MAX_BYTES,
    SCALAR_FORMATS,
    SCALAR_SIZES,
    SIZE_MAX,
    VALUE_MAX,
    VERSIONS_READ,
    ValueType,
    dtype_at,
)

WINDOW_FIRST_BYTES = 64 * 1024
WINDOW_BYTES = 1024 * 1024
FIELD_TEXT_MAX = 80
"""Longer keys are cut in error texts."""

LITTLE, BIG = "<", ">"


def scalar_format(kind: ValueType, is_big_endian: bool) -> str:
    """Return the format of a metadata value, as `struct` and numpy have it."""
    return (BIG if is_big_endian else LITTLE) + SCALAR_FORMATS[kind][1:]


class _Layouts:
    """The layouts of numbers in a header with one order of bytes."""

    def __init__(self, order: str) -> None:
        self.u32 = struct.Struct(f"{order}I")
        self.u64 = struct.Struct(f"{order}Q")
        self.counts = struct.Struct(f"{order}QQ")
        self.dimensions = {count: struct.Struct(f"{order}{count}Q") for count in range(1, DIMENSIONS_MAX + 1)}
        self.type_and_offset = struct.Struct(f"{order}IQ")
        self.scalars = {kind: struct.Struct(scalar_format(kind, order == BIG)) for kind in SCALAR_FORMATS}


_LAYOUTS = {order: _Layouts(order) for order in (LITTLE, BIG)}


class Cursor:
    """Reads a source from front to back in windows of at most 1 MiB, even if the file announces more."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._size = source.size_bytes
        self._start = 0
        self._position = 0
        self._window = source.read_at(0, min(WINDOW_FIRST_BYTES, self._size))
        self.layouts = _LAYOUTS[LITTLE]

    @property
    def offset(self) -> int:
        """The offset of the next byte."""
        return self._start + self._position

    @property
    def is_big_endian(self) -> bool:
        return self.layouts is _LAYOUTS[BIG]

    @property
    def remaining(self) -> int:
        """Bytes from here to the end of the source."""
        return self._size - self.offset

    def refuse(
        self,
        field: str,
        reason: str,
        offset: int | None = None,
        fault: str = "broken-header",
        end: int | None = None,
    ) -> NoReturn:
        """Raise BadGguf for `field` at `offset`, by default at the current offset."""
        begin = self.offset if offset is None else offset
        raise BadGguf(self._source.name, field[:FIELD_TEXT_MAX], begin, reason, fault, end)

    def u32(self, field: str) -> int:
        """Read the next unsigned 32-bit number."""
        return self.unpack(self.layouts.u32, field)[0]

    def u64(self, field: str) -> int:
        """Read the next unsigned 64-bit number."""
        return self.unpack(self.layouts.u64, field)[0]

    def unpack(self, layout: struct.Struct, field: str) -> tuple[int, ...]:
        """Read the next numbers in a fixed layout."""
        position = self._reserve(layout.size, field)
        self._position = position + layout.size
        return layout.unpack_from(self._window, position)

    def take(self, size: int, field: str) -> bytes:
        """Read the next `size` bytes. The caller must check `size` first."""
        position = self._reserve(size, field)
        self._position = position + size
        return self._window[position : position + size]

    def skip(self, size: int, field: str) -> None:
        """Skip `size` bytes without reading them."""
        if size > self.remaining:
            reason = f"{size} bytes announced, {self.remaining} left in the file"
            self.refuse(field, reason, fault="header-cut")
        self._position += size

    def skip_strings(self, count: int, field: str) -> None:
        """Skip `count` strings; read only their lengths."""
        begin = self.offset
        unpack_from = self.layouts.u64.unpack_from
        while count:
            self._reserve(8, field)
            window, position = self._window, self._position
            last = len(window) - 8
            size = 0
            while count and position <= last:
                size = unpack_from(window, position)[0]
                position += 8 + size
                count -= 1
            # Only the last string can extend beyond the window, so only its size has to be checked.
            if size > VALUE_MAX or self._start + position > self._size:
                self.refuse(field, "a string in the array runs past the end of the file or the limit", begin)
            self._position = position

    def _reserve(self, size: int, field: str) -> int:
        """Read until the window contains the next `size` bytes; return the position of the first."""
        if self._position + size > len(self._window):
            if size > self.remaining:
                reason = f"the file ends here: {size} bytes are needed, {self.remaining} left"
                self.refuse(field, reason, fault="header-cut")
            self._start, self._position = self.offset, 0
            window_size = min(max(size, WINDOW_BYTES), self._size - self._start)
            self._window = self._source.read_at(self._start, window_size)
        return self._position


TENSOR_INFO_MIN_BYTES = 24
FIELD_MIN_BYTES = 13
FIELDS_MAX = 65_536
"""Real models have about 40 metadata entries."""
EAGER_TOTAL_MAX_BYTES = 4 * 1024 * 1024
"""The total size of keys and values that are read into memory. Further strings stay in the file."""

_PRINTABLE = re.compile(rb"[\x20-\x7e]+")


def read_header(source: ByteSource) -> Header:
    """Read and validate the header of `source`; raises BadGguf, which names the field and the offset."""
    cursor = Cursor(source)
    version = _read_version(cursor, source)
    tensor_count, field_count = cursor.unpack(cursor.layouts.counts, "counts")
    if tensor_count * TENSOR_INFO_MIN_BYTES > cursor.remaining:
        cursor.refuse("n_tensors", f"{tensor_count} tensors cannot fit in {cursor.remaining} bytes", 8)
    if field_count > FIELDS_MAX:
        cursor.refuse("n_kv", f"{field_count} metadata entries are over the limit of {FIELDS_MAX}", 16)
    if field_count * FIELD_MIN_BYTES > cursor.remaining:
        cursor.refuse("n_kv", f"{field_count} metadata entries cannot fit in {cursor.remaining} bytes", 16)
    fields = _read_fields(cursor, field_count)
    alignment = _alignment(cursor, fields)
    entries = _read_entries(cursor, tensor_count)
    end, is_big_endian = cursor.offset, cursor.is_big_endian
    data_offset = padded(end, alignment)
    tensors = _placed(cursor, entries, alignment, source.size_bytes - data_offset)
    header = Header(version, alignment, fields, tensors, end, data_offset, source.size_bytes, is_big_endian)
    last, name = header.last_byte, tensors[-1].name if tensors else "header"
    if source.size_bytes < last:
        missing = last - source.size_bytes
        reason = f"the file is {missing} bytes short: {last} are announced"
        cursor.refuse(name, reason, source.size_bytes, fault="truncated", end=last)
    if source.size_bytes > padded(last, alignment):
        end = padded(last, alignment)
        reason = f"{source.size_bytes - end} bytes follow the last tensor and its padding"
        if source.size_bytes - end >= len(MAGIC) and source.read_at(end, len(MAGIC)) == MAGIC:
            cursor.refuse(name, f"{reason}: another GGUF file", end, fault="joined-files", end=end)
        cursor.refuse(name, reason, end, fault="bytes-after-end", end=end)
    return header


def is_big_endian(source: ByteSource) -> bool:
    """Return whether the numbers in the GGUF file `source` are big-endian, which its version shows."""
    version = int.from_bytes(source.read_at(len(MAGIC), 4), "little") if source.size_bytes >= len(MAGIC) + 4 else 0
    return version != 0 and version & 0xFFFF == 0


def read_array(source: ByteSource, field: Field) -> list[bytes] | NDArray[np.generic]:
    """Return the elements of an array field: strings as raw bytes, numbers as a numpy array."""
    assert field.element_type is not None
    payload = source.read_at(field.offset, field.size_bytes)
    if field.element_type is not ValueType.STRING:
        return np.frombuffer(payload, dtype=np.dtype(scalar_format(field.element_type, field.is_big_endian)))
    strings = []
    position = 0
    for _ in range(field.count):
        size = int.from_bytes(payload[position : position + 8], "big" if field.is_big_endian else "little")
        strings.append(payload[position + 8 : position + 8 + size])
        position += 8 + size
    return strings


def _read_version(cursor: Cursor, source: ByteSource) -> int:
    if not cursor.remaining:
        cursor.refuse("magic", "the file is empty", fault="empty")
    magic = cursor.take(4, "magic")
    if magic.startswith(b"<"):
        cursor.refuse("magic", "not a GGUF file but a web page: the download failed", 0, fault="web-page")
    if magic != MAGIC:
        cursor.refuse("magic", f"not a GGUF file: it begins with {magic!r}", 0, fault="not-gguf")
    if is_big_endian(source):
        cursor.layouts = _LAYOUTS[BIG]
    version = cursor.u32("version")
    if version == 1:
        reason = "version 1 is too old: convert the file to version 3 with a current tool"
        cursor.refuse("version", reason, 4, fault="old-version")
    if version not in VERSIONS_READ:
        reason = f"version {version} is unknown; versions 2 and 3 are read"
        cursor.refuse("version", reason, 4, fault="unknown-version")
    return version


def _read_fields(cursor: Cursor, count: int) -> tuple[Field, ...]:
    fields: dict[str, Field] = {}
    eager_bytes = 0
    for index in range(count):
        begin = cursor.offset
        size = cursor.u64(f"key {index}")
        if not 1 <= size <= KEY_MAX_BYTES:
            cursor.refuse(f"key {index}", f"a key has 1 to {KEY_MAX_BYTES} bytes, but this one has {size}", begin)
        raw = cursor.take(size, f"key {index}")
        if not _PRINTABLE.fullmatch(raw):
            cursor.refuse(f"key {index}", f"a key is printable ASCII, this one is {raw[:80]!r}", begin)
        key = raw.decode("ascii")
        if key in fields:
            cursor.refuse(key, "the key occurs twice", begin)
        room = min(EAGER_STRING_MAX_BYTES, EAGER_TOTAL_MAX_BYTES - eager_bytes)
        fields[key] = _read_value(cursor, key, room)
        eager_bytes += size + (fields[key].size_bytes if fields[key].value is not None else 0)
    return tuple(fields.values())


def _read_value(cursor: Cursor, key: str, room: int) -> Field:
    kind = _value_type(cursor, key)
    if kind is ValueType.ARRAY:
        return _read_array_span(cursor, key)
    if kind is ValueType.STRING:
        begin = cursor.offset
        size = cursor.u64(key)
        if size > VALUE_MAX:
            cursor.refuse(key, f"a string of {size} bytes is over the limit of {VALUE_MAX}", begin)
        offset = cursor.offset
        text: str | bytes | None = None
        if size > room:
            cursor.skip(size, key)
        else:
            text = cursor.take(size, key)
            with suppress(UnicodeDecodeError):
                text = text.decode("utf-8")
        return Field(key, ValueType.STRING, None, 1, offset, size, text, cursor.is_big_endian)
    offset, size = cursor.offset, SCALAR_SIZES[kind]
    value: Scalar = cursor.layouts.scalars[kind].unpack(cursor.take(size, key))[0]
    if kind is ValueType.BOOL and value in (0, 1):
        value = bool(value)
    return Field(key, kind, None, 1, offset, size, value, cursor.is_big_endian)


def _value_type(cursor: Cursor, key: str) -> ValueType:
    begin = cursor.offset
    number = cursor.u32(key)
    try:
        return ValueType(number)
    except ValueError:
        cursor.refuse(key, f"value type {number} is unknown", begin)


def _read_array_span(cursor: Cursor, key: str) -> Field:
    element = _value_type(cursor, key)
    begin = cursor.offset
    if element is ValueType.ARRAY:
        cursor.refuse(key, "arrays of arrays are not supported by any loader", begin)
    count = cursor.u64(key)
    if count > VALUE_MAX:
        cursor.refuse(key, f"an array of {count} elements is over the limit of {VALUE_MAX}", begin)
    smallest = 8 if element is ValueType.STRING else SCALAR_SIZES[element]
    if count * smallest > cursor.remaining:
        reason = f"{count} elements cannot fit in the {cursor.remaining} bytes left: the file was cut"
        cursor.refuse(key, reason, begin, fault="header-cut")
    offset = cursor.offset
    if element is ValueType.STRING:
        cursor.skip_strings(count, key)
    else:
        cursor.skip(count * smallest, key)
    return Field(key, ValueType.ARRAY, element, count, offset, cursor.offset - offset, None, cursor.is_big_endian)


def _alignment(cursor: Cursor, fields: tuple[Field, ...]) -> int:
    field = next((field for field in fields if field.key == ALIGNMENT_KEY), None)
    if field is None:
        return ALIGNMENT_DEFAULT
    value = field.value
    if field.type is not ValueType.UINT32 or not isinstance(value, int):
        cursor.refuse(ALIGNMENT_KEY, "the alignment must be an unsigned 32-bit number", field.offset)
    if not 1 <= value <= ALIGNMENT_MAX or value & (value - 1):
        cursor.refuse(ALIGNMENT_KEY, f"{value} is not a power of two up to {ALIGNMENT_MAX}", field.offset)
    return value


class _Entry(NamedTuple):
    """One tensor of the list in a header; its type may be foreign."""

    name: str
    shape: tuple[int, ...]
    dtype_id: int
    offset: int
    begin: int
    """The offset of the entry itself."""


def _read_entries(cursor: Cursor, count: int) -> list[_Entry]:
    entries: list[_Entry] = []
    names: set[str] = set()
    for index in range(count):
        begin = cursor.offset
        size = cursor.u64(f"tensor {index}")
        if not 1 <= size <= NAME_MAX_BYTES:
            reason = f"a tensor name has 1 to {NAME_MAX_BYTES} bytes, but this one has {size}"
            cursor.refuse(f"tensor {index}", reason, begin)
        raw = cursor.take(size, f"tensor {index}")
        if not _PRINTABLE.fullmatch(raw):
            cursor.refuse(f"tensor {index}", f"a tensor name is printable ASCII, this one is {raw!r}", begin)
        name = raw.decode("ascii")
        dimensions = cursor.u32(name)
        if not 1 <= dimensions <= DIMENSIONS_MAX:
            cursor.refuse(name, f"{dimensions} dimensions; 1 to {DIMENSIONS_MAX} are allowed", begin)
        shape = cursor.unpack(cursor.layouts.dimensions[dimensions], name)
        dtype_id, offset = cursor.unpack(cursor.layouts.type_and_offset, name)
        if 0 in shape:
            cursor.refuse(name, "a dimension is 0: there is nothing to store", begin)
        if prod(shape) > SIZE_MAX:
            cursor.refuse(name, f"the shape {shape} has more elements than any file can hold", begin)
        if name in names:
            cursor.refuse(name, "two tensors have this name", begin)
        names.add(name)
        entries.append(_Entry(name, shape, dtype_id, offset, begin))
    return entries


def _placed(cursor: Cursor, entries: Sequence[_Entry], alignment: int, data_bytes: int) -> tuple[TensorInfo, ...]:
    """Return the tensors of `entries`, which must lie one after another; the data section has `data_bytes`."""
    tensors: list[TensorInfo] = []
    expected = 0
    ends = (*(entry.offset for entry in entries[1:]), data_bytes)
    for (name, shape, dtype_id, offset, begin), end in zip(entries, ends, strict=False):
        if offset % alignment:
            cursor.refuse(name, f"its offset {offset} is not a multiple of the alignment {alignment}", begin)
        if offset != expected:
            problem = "overlaps the tensor before it" if offset < expected else "leaves a hole before it"
            cursor.refuse(name, f"its offset {offset} {problem}: it must be {expected}", begin)
        try:
            dtype = dtype_at(dtype_id, prod(shape), end - offset, alignment, cursor.is_big_endian)
        except UnsupportedDType as error:
            cursor.refuse(name, str(error), begin)
        if shape[0] % dtype.block_elements and dtype.is_sized:
            reason = f"the row length {shape[0]} is not a multiple of {dtype.name}'s block of {dtype.block_elements}"
            cursor.refuse(name, reason, begin)
        if dtype.size_bytes(prod(shape)) > SIZE_MAX:
            cursor.refuse(name, f"the shape {shape} is larger than any file", begin)
        tensors.append(TensorInfo(name, shape, dtype, offset))
        expected += padded(tensors[-1].size_bytes, alignment)
        if expected > SIZE_MAX:
            cursor.refuse(name, "the tensors are larger than any file", begin)
    return tuple(tensors)


TAGS_KEY = "general.tags"
TAGS_MAX_BYTES = 16 * 1024


def tags_of(source: ByteSource, header: Header) -> Iterator[str]:
    """Yield the tags of `general.tags`, if it is text of at most TAGS_MAX_BYTES."""
    field = header.field(TAGS_KEY)
    if field is None or field.element_type is not ValueType.STRING or field.size_bytes > TAGS_MAX_BYTES:
        return
    for tag in read_array(source, field):
        yield bytes(tag).decode("utf-8", errors="replace")
