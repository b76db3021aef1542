"""The messages between a registry and the confined inspector of a submission, and their checks.

A message has two lengths, a JSON object, and bytes. The registry requests:

    {"inspect": NAME, "size_bytes": N}                  describe the front of this file
    {"measure": NUMBER, "shape": [...], "dtype": NAME}  with the bytes that `registry.measure.required_reads` names

The inspector has no file. To `inspect` it answers with requests for bytes, {"read": [OFFSET, SIZE]}, and gets
{"bytes": SIZE} with the bytes; then with any number of {"fields": [...]} and {"tensors": [...]}, and {"front": {...}};
or with {"refused": {...}}. To `measure` it answers with {"measured": NUMBER, "measurement": {...}}.

The inspector parses untrusted files, so their author may control it. `FrontReader` and `read_measurement` treat every
value from it as hostile: types, counts, lengths, ranges and offsets are checked before they are used. The registry
takes neither digests of stored bytes nor values of metadata entries from it: it computes the digests, and decodes
numbers and texts from the file, at checked offsets.
"""

from __future__ import annotations

import json
import math
import os
import re
import select
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields
from math import prod
from typing import Any

from organs.ingest.dissect import Front
from organs.registry.digest import Digest
from organs.registry.errors import OrganError, UnsupportedDType
from organs.registry.fingerprints import FINGERPRINT_PATTERN
from organs.registry.gguf import ByteSource, DType, Header, TensorInfo, ValueType, padded
from organs.registry.gguf import Field as MetadataField
from organs.registry.gguf.header import Scalar
from organs.registry.gguf.read import (
    EAGER_TOTAL_MAX_BYTES,
    FIELDS_MAX,
    TAGS_MAX_BYTES,
    TENSOR_INFO_MIN_BYTES,
    is_big_endian,
    scalar_format,
)
from organs.registry.gguf.types import (
    ALIGNMENT_DEFAULT,
    ALIGNMENT_KEY,
    ALIGNMENT_MAX,
    DIMENSIONS_MAX,
    DTYPE_ID_MAX,
    EAGER_STRING_MAX_BYTES,
    KEY_MAX_BYTES,
    NAME_MAX_BYTES,
    SCALAR_SIZES,
    SIZE_MAX,
    VALUE_MAX,
    VERSIONS_READ,
    dtype_at,
)
from organs.registry.measure import Measurement
from organs.registry.measure.sample import PATCH_MAX_COLUMNS, PATCH_MAX_ROWS, SAMPLE_MAX_ELEMENTS
from organs.registry.measure.zmeasure import METHOD as Z_METHOD
from organs.registry.measures import MEASURES, SPECTRAL_METHOD

Values = dict[str, Any]

JSON_MAX_BYTES = 1024 * 1024
"""Limit of the JSON of one message."""
BYTES_MAX = 64 * 1024 * 1024
"""Limit of the bytes that follow one message. The largest sample of a tensor has 33 MiB."""
FRONTS_MAX_BYTES = 64 * 1024 * 1024
"""Limit of all answers about the fronts of one submission: names, shapes and offsets of some 600,000 tensors."""
READ_MAX_BYTES = 1024 * 1024
"""Limit of one answer to `read`."""
READ_COST_BYTES = 4096
"""A smaller request counts as this many bytes in the budget of reads."""
READS_BASE_BYTES = 64 * 1024 * 1024
"""The budget of reads is twice the size of the file, because its tokens are read again for a check, and these bytes."""
BATCH_ENTRIES = 500
"""Limit of fields or tensors in one message. A key has at most 64 KiB."""
BATCH_TEXT_BYTES = 256 * 1024
REASONS_MAX = 16
REASON_MAX_CHARACTERS = 1000
CODE_MAX_CHARACTERS = 32

_LENGTHS = struct.Struct(">II")
_KEY = re.compile(r"[\x20-\x7e]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CODE = re.compile(r"[a-z][a-z-]*")


class BadMessage(OrganError, code="bad-message"):
    """A message between the server and an inspection breaks the rules of these messages."""


class Channel:
    """Messages over two pipes. Owns both descriptors. Sending and receiving may happen in different threads."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes
        self.received_bytes = 0
        self.waited_seconds = 0.0
        """The time that `send` and `receive` have waited for the other side."""
        for descriptor in (reads, writes):
            if descriptor >= 0:
                os.set_blocking(descriptor, False)

    def send(self, values: Values, *data: bytes | memoryview, timeout_seconds: float | None = None) -> None:
        """Write one whole message within `timeout_seconds`.

        Raises BrokenPipeError when the other side has ended, and TimeoutError when it does not read. After a timeout
        the other side may have half a message: send nothing more.
        """
        text = json.dumps(values, separators=(",", ":"), allow_nan=False).encode()
        head = _LENGTHS.pack(len(text), sum(map(len, data)))
        self._write([memoryview(part) for part in (head, text, *data) if len(part)], _deadline(timeout_seconds))

    def receive(self, bytes_max: int = 0, timeout_seconds: float | None = None) -> tuple[Values, bytes] | None:
        """Read one message, with at most `bytes_max` bytes after it; None when the other side has ended.

        Raises BadMessage for anything but a JSON object of a limited size, and TimeoutError if the whole message does
        not arrive within `timeout_seconds`.
        """
        deadline = _deadline(timeout_seconds)
        head = self._read(_LENGTHS.size, deadline)
        if not head:
            return None
        if len(head) < _LENGTHS.size:
            raise BadMessage("a message is incomplete")
        text_bytes, data_bytes = _LENGTHS.unpack(head)
        if text_bytes > JSON_MAX_BYTES or data_bytes > bytes_max:
            raise BadMessage(f"a message announces {text_bytes:,} and {data_bytes:,} bytes")
        text, data = self._read(text_bytes, deadline), self._read(data_bytes, deadline)
        if len(text) < text_bytes or len(data) < data_bytes:
            raise BadMessage("a message is incomplete")
        try:
            values = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise BadMessage("a message is not JSON") from None
        if not isinstance(values, dict):
            raise BadMessage("a message is not an object")
        self.received_bytes += text_bytes
        return values, data

    def end(self) -> None:
        """Close the pipe for sending: the other side sees the end."""
        self._writes = _close_descriptor(self._writes)

    def close(self) -> None:
        """Close both pipes; safe to call twice. No thread may be receiving."""
        self._reads, self._writes = _close_descriptor(self._reads), _close_descriptor(self._writes)

    def _write(self, views: list[memoryview], deadline: float | None) -> None:
        while views:
            try:
                written = os.writev(self._writes, views)
            except BlockingIOError:
                self._wait(self._writes, select.POLLOUT, deadline)
                continue
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if views:
                views[0] = views[0][written:]

    def _read(self, size: int, deadline: float | None) -> bytes:
        """Return `size` bytes, fewer only when the other side has closed the pipe."""
        data = bytearray()
        while len(data) < size:
            try:
                part = os.read(self._reads, min(size - len(data), READ_MAX_BYTES))
            except BlockingIOError:
                self._wait(self._reads, select.POLLIN, deadline)
                continue
            if not part:
                break
            data += part
        return bytes(data)

    def _wait(self, descriptor: int, event: int, deadline: float | None) -> None:
        """Wait until a descriptor can be read or written. Raises TimeoutError at the deadline.

        `select.select` fails for descriptors from 1024 on, which a busy server has.
        """
        began = time.monotonic()
        if deadline is not None and began >= deadline:  # first, because single bytes must not extend the time
            raise TimeoutError
        poll = select.poll()
        poll.register(descriptor, event)
        poll.poll(None if deadline is None else 1000 * (deadline - began))
        self.waited_seconds += time.monotonic() - began


def front_messages(front: Front) -> Iterator[Values]:
    """Yield the messages that describe `front`."""
    header = front.header
    field_entries = [
        [
            field.key,
            field.type,
            field.element_type,
            field.count,
            field.offset,
            field.size_bytes,
            field.value is not None,
        ]
        for field in header.fields
    ]
    yield from _batches("fields", field_entries, [len(field.key) for field in header.fields])
    tensor_entries = [[tensor.name, tensor.shape, tensor.dtype.id, tensor.offset] for tensor in header.tensors]
    yield from _batches("tensors", tensor_entries, [len(tensor.name) for tensor in header.tensors])
    yield {
        "front": {
            "version": header.version,
            "end": header.end,
            "fields": len(header.fields),
            "tensors": len(header.tensors),
            "tags": front.tags,
            "unassemblable": [reason[:REASON_MAX_CHARACTERS] for reason in front.unassemblable],
            "lock": front.lock,
        }
    }


def measurement_values(measured: Measurement) -> Values:
    """Return the object that describes `measured`. Numbers that are not finite count as not measured."""
    values = asdict(measured)
    values["fingerprint"] = None if measured.fingerprint is None else measured.fingerprint.hex()
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }


class FrontReader:
    """Collects the messages about the front of one file, and checks them against the file's size.

    Its result fulfils all guarantees of `registry.gguf.read_header`, also for hostile messages.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._fields: dict[str, MetadataField] = {}
        self._position = _LENGTHS.size * 3
        """The first possible offset of the next value; at first, the end of magic, version and counts."""
        self._eager_bytes = 0
        self._tensors: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        self._is_big_endian = is_big_endian(source)

    def add_fields(self, entries: Any) -> None:
        """Take one message of metadata entries. Raises BadMessage."""
        for entry in _check_entries(entries, 7):
            if len(self._fields) == FIELDS_MAX:
                raise BadMessage(f"more than {FIELDS_MAX:,} metadata entries")
            field = self._field(*entry)
            if field.key in self._fields:
                raise BadMessage("a metadata key appears twice")
            self._fields[field.key] = field
            self._position = field.offset + field.size_bytes

    def add_tensors(self, entries: Any) -> None:
        """Take one message of tensors. Raises BadMessage."""
        for name, shape, dtype_id, offset in _check_entries(entries, 4):
            if (len(self._tensors) + 1) * TENSOR_INFO_MIN_BYTES > self._source.size_bytes:
                raise BadMessage("more tensors than the file has room for")
            _check_text(name, "the name of a tensor", NAME_MAX_BYTES, _KEY)
            if name in self._tensors:
                raise BadMessage("two tensors have the same name")
            self._tensors[name] = (
                name,
                _check_shape(shape),
                _check_whole(dtype_id, "the type of a tensor", DTYPE_ID_MAX),
                _check_whole(offset, "the offset of a tensor"),
            )

    def finish(self, values: Any) -> Front:
        """Take the last message. Raises BadMessage; BadSource when the file cannot be read."""
        _check_members(values, ("version", "end", "fields", "tensors", "tags", "unassemblable", "lock"))
        if _check_whole(values["version"], "the version of the format") not in VERSIONS_READ:
            raise BadMessage("the version of the format is unknown")
        if values["fields"] != len(self._fields) or values["tensors"] != len(self._tensors):
            raise BadMessage("announced metadata entries or tensors are missing")
        header = self._header(values["version"], _check_whole(values["end"], "the end of the header"))
        lock = values["lock"]
        return Front(
            header=header,
            tags=tuple(_check_texts(values["tags"], "tags", TAGS_MAX_BYTES // 8, TAGS_MAX_BYTES)),
            unassemblable=tuple(
                map(_printable, _check_texts(values["unassemblable"], "reasons", REASONS_MAX, REASON_MAX_CHARACTERS))
            ),
            lock=None if lock is None else Digest(_check_text(lock, "the id of a lock", 64, _DIGEST)),
        )

    def _field(
        self, key: Any, kind: Any, element: Any, count: Any, offset: Any, size: Any, is_eager: Any
    ) -> MetadataField:
        _check_text(key, "a metadata key", KEY_MAX_BYTES, _KEY)
        value_type, element_type = _check_value_type(kind), None if element is None else _check_value_type(element)
        _check_whole(count, "a count", VALUE_MAX)
        _check_whole(offset, "the offset of a value")
        _check_whole(size, "the size of a value")
        if offset < self._position + len(key) or offset + size > self._source.size_bytes:
            raise BadMessage("a metadata value lies outside its place in the file")
        if (value_type is ValueType.ARRAY) != (element_type is not None) or element_type is ValueType.ARRAY:
            raise BadMessage("an array without the type of its elements, or the other way round")
        if not _fits(value_type, element_type, count, size):
            raise BadMessage("a metadata value has a size that its type cannot have")
        has_value = value_type is not ValueType.ARRAY and (is_eager is True or value_type is not ValueType.STRING)
        if not isinstance(is_eager, bool) or is_eager != has_value:
            raise BadMessage("a metadata value is sent that must stay in the file, or is not sent")
        value = self._value(value_type, offset, size) if has_value else None
        return MetadataField(key, value_type, element_type, count, offset, size, value, self._is_big_endian)

    def _value(self, kind: ValueType, offset: int, size: int) -> Scalar | bytes:
        if kind is ValueType.STRING:
            self._eager_bytes += size
            if size > EAGER_STRING_MAX_BYTES or self._eager_bytes > EAGER_TOTAL_MAX_BYTES:
                raise BadMessage("the texts of the metadata exceed the limit")
        raw = self._source.read_at(offset, size)
        if kind is ValueType.STRING:
            try:
                return raw.decode("utf-8")
            except UnicodeDecodeError:
                return raw
        value: Scalar = struct.unpack(scalar_format(kind, self._is_big_endian), raw)[0]
        return bool(value) if kind is ValueType.BOOL and value in (0, 1) else value

    def _header(self, version: int, end: int) -> Header:
        size = self._source.size_bytes
        if end > size or end - self._position < len(self._tensors) * TENSOR_INFO_MIN_BYTES:
            raise BadMessage("the header ends outside the file, or before its tensors")
        alignment = self._alignment()
        data_offset = padded(end, alignment)
        entries = tuple(self._tensors.values())
        ends = (*(offset for *_, offset in entries[1:]), size - data_offset)
        tensors, expected = [], 0
        for (name, shape, dtype_id, offset), tensor_end in zip(entries, ends, strict=False):
            dtype = _dtype_at(dtype_id, shape, tensor_end - offset, alignment, self._is_big_endian)
            if offset != expected or (shape[0] % dtype.block_elements and dtype.is_sized):
                raise BadMessage("a tensor is not where it must be, or has rows that its type cannot have")
            tensors.append(TensorInfo(name, shape, dtype, offset))
            expected += padded(tensors[-1].size_bytes, alignment)
        values = tuple(self._fields.values())
        header = Header(version, alignment, values, tuple(tensors), end, data_offset, size, self._is_big_endian)
        if not header.last_byte <= size <= padded(header.last_byte, alignment):
            raise BadMessage("a tensor lies outside the file")
        return header

    def _alignment(self) -> int:
        field = self._fields.get(ALIGNMENT_KEY)
        if field is None:
            return ALIGNMENT_DEFAULT
        value = field.value
        if field.type is not ValueType.UINT32 or not isinstance(value, int) or not 1 <= value <= ALIGNMENT_MAX:
            raise BadMessage("the alignment is not a valid number")
        if value & (value - 1):
            raise BadMessage("the alignment is not a power of two")
        return value


def read_measurement(values: Any) -> Measurement:
    """Return the measurement that an answer describes. Raises BadMessage."""
    _check_members(values, [field.name for field in fields(Measurement)])
    for name, check in _MEASUREMENT.items():
        if not check(values[name]):
            raise BadMessage(f"the {name} of a tensor is not valid")
    if values["nan_count"] + values["infinite_count"] > values["sample_size"]:
        raise BadMessage("more values are not numbers than were sampled")
    fingerprint = values["fingerprint"]
    return Measurement(**values | {"fingerprint": None if fingerprint is None else bytes.fromhex(fingerprint)})


def read_refusal(values: Any) -> tuple[str, str]:
    """Return the code and the sentence of a refusal. Raises BadMessage."""
    _check_members(values, ("code", "sentence"))
    code = _check_text(values["code"], "a code", CODE_MAX_CHARACTERS, _CODE)
    return code, _printable(_check_text(values["sentence"], "a sentence", REASON_MAX_CHARACTERS))


def read_range(values: Any, size_bytes: int) -> tuple[int, int]:
    """Return the offset and the size that a request for bytes of a file of `size_bytes` names. Raises BadMessage."""
    if not (isinstance(values, list) and len(values) == 2):
        raise BadMessage("a request for bytes must be a pair of numbers")
    offset, size = _check_whole(values[0], "an offset"), _check_whole(values[1], "a size", READ_MAX_BYTES)
    if offset + size > size_bytes:
        raise BadMessage("a request for bytes outside the file")
    return offset, size


def _batches(kind: str, entries: Sequence[list[Any]], texts: Sequence[int]) -> Iterator[Values]:
    """Yield `entries` in messages of limited length; `texts` are the lengths of their names."""
    batch: list[list[Any]] = []
    text_bytes = 0
    for entry, length in zip(entries, texts, strict=True):
        if batch and (len(batch) == BATCH_ENTRIES or text_bytes + length > BATCH_TEXT_BYTES):
            yield {kind: batch}
            batch, text_bytes = [], 0
        batch.append(entry)
        text_bytes += length
    if batch:
        yield {kind: batch}


def _check_entries(values: Any, members: int) -> list[list[Any]]:
    if not isinstance(values, list) or not 1 <= len(values) <= BATCH_ENTRIES:
        raise BadMessage("a list has too many entries, or none")
    if not all(isinstance(entry, list) and len(entry) == members for entry in values):
        raise BadMessage("an entry of a list has the wrong number of members")
    return values


def _check_members(values: Any, names: Sequence[str]) -> None:
    if not isinstance(values, dict) or set(values) != set(names):
        raise BadMessage("an object has the wrong members")


def _check_whole(value: Any, name: str, maximum: int = SIZE_MAX) -> int:
    if type(value) is not int or not 0 <= value <= maximum:
        raise BadMessage(f"{name} is not a whole number up to {maximum:,}")
    return value


def _check_text(value: Any, name: str, longest: int, pattern: re.Pattern[str] | None = None) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        raise BadMessage(f"{name} is not a text of 1 to {longest:,} characters")
    if pattern is not None and not pattern.fullmatch(value):
        raise BadMessage(f"{name} has characters that it cannot have")
    if not _is_unicode(value):
        raise BadMessage(f"{name} is not Unicode")
    return value


def _check_texts(values: Any, name: str, maximum: int, longest: int) -> Iterator[str]:
    """Yield at most `maximum` texts, each of at most `longest` characters."""
    if not isinstance(values, list) or len(values) > maximum:
        raise BadMessage(f"the {name} are not a list of at most {maximum:,}")
    for value in values:
        if not isinstance(value, str) or len(value) > longest or not _is_unicode(value):
            raise BadMessage(f"one of the {name} is not a text of at most {longest:,} characters")
        yield value


def _printable(text: str) -> str:
    """Return `text` with spaces for characters that are not printable, which could control a terminal."""
    return "".join(item if item.isprintable() else " " for item in text)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_value_type(number: Any) -> ValueType:
    try:
        return ValueType(_check_whole(number, "the type of a metadata value"))
    except ValueError:
        raise BadMessage("a metadata value has an unknown type") from None


def _dtype_at(dtype_id: int, shape: tuple[int, ...], room_bytes: int, alignment: int, is_big_endian: bool) -> DType:
    try:
        return dtype_at(dtype_id, prod(shape), room_bytes, alignment, is_big_endian)
    except UnsupportedDType:
        raise BadMessage("a tensor of an unknown type has a size that no type has") from None


def _check_shape(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or not 1 <= len(values) <= DIMENSIONS_MAX:
        raise BadMessage("the shape of a tensor is not a list of 1 to 4 lengths")
    shape = tuple(_check_whole(value, "a length in the shape of a tensor") for value in values)
    if not 1 <= prod(shape) <= SIZE_MAX:
        raise BadMessage("a tensor has no elements, or more than any file can hold")
    return shape


def _fits(kind: ValueType, element: ValueType | None, count: int, size: int) -> bool:
    """Return whether a value of that type can have that number of elements and bytes."""
    if element is ValueType.STRING:
        return size >= 8 * count
    if element is not None:
        return size == count * SCALAR_SIZES[element]
    return count == 1 and (size <= VALUE_MAX if kind is ValueType.STRING else size == SCALAR_SIZES[kind])


def _number_check(minimum: float, maximum: float) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        if type(value) is int and abs(value) > SIZE_MAX:
            return False  # before `math.isfinite`, which fails for integers that are too large for a float
        return value is None or (type(value) in (int, float) and math.isfinite(value) and minimum <= value <= maximum)

    return check


def _count_check(maximum: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 0 <= value <= maximum


def _optional_count_check(maximum: int) -> Callable[[Any], bool]:
    return lambda value: value is None or (type(value) is int and 0 <= value <= maximum)


ROUNDING = 1e-6
_ANY = _number_check(-math.inf, math.inf)
_MEASUREMENT: dict[str, Callable[[Any], bool]] = {
    "method": lambda value: value == Z_METHOD,
    "sample_size": _count_check(SAMPLE_MAX_ELEMENTS),
    **{
        item.name: _number_check(item.low, math.inf if item.high is None else item.high + ROUNDING)
        for item in MEASURES.values()
    },
    "entropy": _ANY,
    "kurtosis": _ANY,
    "coherence": _ANY,
    "reason": lambda value: value is None or (isinstance(value, str) and len(value) <= 256 and value.isprintable()),
    "nan_count": _count_check(SAMPLE_MAX_ELEMENTS),
    "infinite_count": _count_check(SAMPLE_MAX_ELEMENTS),
    "constant": lambda value: isinstance(value, bool),
    "mean": _ANY,
    "standard_deviation": _number_check(0, math.inf),
    "minimum": _ANY,
    "maximum": _ANY,
    "spectral_method": lambda value: value in (None, SPECTRAL_METHOD),
    "spectral_rows": _optional_count_check(PATCH_MAX_ROWS),
    "spectral_columns": _optional_count_check(PATCH_MAX_COLUMNS),
    "nonfinite": lambda value: value is None,
    "fingerprint": lambda value: (
        value is None or (isinstance(value, str) and re.fullmatch(FINGERPRINT_PATTERN, value) is not None)
    ),
}
"""The check of each value of a measurement."""


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _deadline(timeout_seconds: float | None) -> float | None:
    return None if timeout_seconds is None else time.monotonic() + timeout_seconds


def _close_descriptor(descriptor: int) -> int:
    if descriptor >= 0:
        os.close(descriptor)
    return -1
