"""The messages between a registry and the confined inspector of a submission, and their checks.

A message has two lengths, a JSON object, and bytes. The registry requests `Inspect`, the front of a file, and
`MeasureTensor`, with the bytes that `registry.measure.required_reads` names.

The inspector has no file. To `Inspect` it answers with requests for bytes, `ReadBytes`, and gets `BytesRead` with the
bytes; then with any number of `Fields` and `Tensors`, and `FrontEnd`; or with `InspectorRefusal`. To `MeasureTensor` it
answers with `MeasureAnswer`.

The inspector parses untrusted files, so their author may control it. The registry treats every value from it as
hostile: msgspec checks types, ranges and lengths while it decodes a message of limited size, and `FrontReader` checks
that the values fit together and into the file. The registry takes neither digests of stored bytes nor values of
metadata entries from it: it computes the digests, and decodes numbers and texts from the file, at checked offsets.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import prod
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from organs.ingest.dissect import Front
from organs.registry.entities.base import Digest, prepared
from organs.registry.errors import OrganError, UnsupportedDType
from organs.registry.gguf import ByteSource, Header, TensorInfo, ValueType, padded
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
from organs.registry.measures import MEASURES, SPECTRAL_METHOD, THETA_METHOD
from organs.registry.similarity import FINGERPRINT_PATTERN

JSON_MAX_BYTES = 1024 * 1024
"""Limit of the JSON of one message."""
BYTES_MAX = 64 * 1024 * 1024
"""Limit of the bytes that follow one message. The largest sample of a tensor has 33 MiB."""
FRONTS_MAX_BYTES = 64 * 1024 * 1024
"""Limit of all answers about the fronts of one submission: names, shapes and offsets of some 600,000 tensors."""
READ_MAX_BYTES = 1024 * 1024
"""Limit of one answer to `ReadBytes`."""
READ_COST_BYTES = 4096
"""A smaller request counts as this many bytes in the budget of reads."""
READS_BASE_BYTES = 64 * 1024 * 1024
"""The budget of reads is twice the size of the file, because its tokens are read again for a check, and these bytes."""
BATCH_ENTRIES = 500
"""Limit of fields or tensors in one message. A key has at most 64 KiB."""
BATCH_TEXT_BYTES = 256 * 1024
REASONS_MAX = 16
REASON_MAX_CHARACTERS = 1000
ERROR_MAX_CHARACTERS = 200
"""Limit of the part of an error that can quote a message."""

_LENGTHS = struct.Struct(">II")

Whole = Annotated[int, Meta(ge=0, le=SIZE_MAX)]
Reason = Annotated[str, Meta(max_length=REASON_MAX_CHARACTERS)]
_PRINTABLE = r"\A[\x20-\x7e]+\Z"


class Inspect(Struct, frozen=True, tag="inspect"):
    """A request to describe the front of a file."""

    name: str
    size_bytes: int


class MeasureTensor(Struct, frozen=True, tag="measure"):
    """A request to measure a tensor."""

    number: int
    shape: tuple[int, ...]
    dtype: str


class BytesRead(Struct, frozen=True, tag="bytes"):
    """The answer to `ReadBytes`."""

    size_bytes: int


Request = Inspect | MeasureTensor | BytesRead


class _Answer(Struct, frozen=True, forbid_unknown_fields=True):
    """A message of the inspector: it has no other members."""


class ReadBytes(_Answer, frozen=True, tag="read"):
    """A request for bytes of the file."""

    offset: Whole
    size_bytes: Annotated[int, Meta(ge=0, le=READ_MAX_BYTES)]


class HeaderField(_Answer, frozen=True, array_like=True):
    """A metadata entry, whose value the registry reads itself."""

    key: Annotated[str, Meta(max_length=KEY_MAX_BYTES, pattern=_PRINTABLE)]
    type: ValueType
    element_type: ValueType | None
    count: Annotated[int, Meta(ge=0, le=VALUE_MAX)]
    offset: Whole
    size_bytes: Whole
    is_eager: bool
    """Whether its value belongs to the header, and does not stay in the file."""


class Fields(_Answer, frozen=True, tag="fields"):
    """The next metadata entries."""

    entries: Annotated[tuple[HeaderField, ...], Meta(min_length=1, max_length=BATCH_ENTRIES)]


class HeaderTensor(_Answer, frozen=True, array_like=True):
    """A tensor of the header."""

    name: Annotated[str, Meta(max_length=NAME_MAX_BYTES, pattern=_PRINTABLE)]
    shape: Annotated[tuple[Whole, ...], Meta(min_length=1, max_length=DIMENSIONS_MAX)]
    dtype_id: Annotated[int, Meta(ge=0, le=DTYPE_ID_MAX)]
    offset: Whole


class Tensors(_Answer, frozen=True, tag="tensors"):
    """The next tensors."""

    entries: Annotated[tuple[HeaderTensor, ...], Meta(min_length=1, max_length=BATCH_ENTRIES)]


class FrontEnd(_Answer, frozen=True, tag="front"):
    """The end of a front, with the numbers of its metadata entries and tensors."""

    version: Whole
    end: Whole
    fields: Whole
    tensors: Whole
    tags: Annotated[tuple[Annotated[str, Meta(max_length=TAGS_MAX_BYTES)], ...], Meta(max_length=TAGS_MAX_BYTES // 8)]
    unassemblable: Annotated[tuple[Reason, ...], Meta(max_length=REASONS_MAX)]
    lock: Digest | None


class InspectorRefusal(_Answer, frozen=True, tag="refused"):
    """The inspector refuses the file: the code and the sentence of a finding."""

    code: Annotated[str, Meta(max_length=32, pattern=r"\A[a-z][a-z-]*\Z")]
    sentence: Annotated[str, Meta(min_length=1, max_length=REASON_MAX_CHARACTERS)]

    @property
    def printable(self) -> str:
        """The sentence without characters that could control a terminal."""
        return _printable(self.sentence)


class MeasureAnswer(_Answer, frozen=True, tag="measured"):
    """The answer to `MeasureTensor` with that number: a measurement (`read_measurement`) or a refusal."""

    number: Whole
    measurement: Raw = Raw()
    refusal: InspectorRefusal | None = None


FrontAnswer = ReadBytes | Fields | Tensors | FrontEnd | InspectorRefusal


class BadMessage(OrganError, code="bad-message"):
    """A message between the server and an inspection breaks the rules of these messages."""


def decoded(data: bytes | Raw, kind: Any) -> Any:
    """Return the JSON `data` as `kind`. Raises BadMessage."""
    try:
        return msgspec.json.decode(data, type=prepared(kind))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"a message is not valid: {_printable(str(error)[:ERROR_MAX_CHARACTERS])}") from None


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

    def send(self, message: object, *data: bytes | memoryview, timeout_seconds: float | None = None) -> None:
        """Write one whole message within `timeout_seconds`.

        Raises BrokenPipeError when the other side has ended, and TimeoutError when it does not read. After a timeout
        the other side may have half a message: send nothing more.
        """
        text = msgspec.json.encode(message)
        head = _LENGTHS.pack(len(text), sum(map(len, data)))
        self._write([memoryview(part) for part in (head, text, *data) if len(part)], _deadline(timeout_seconds))

    def receive(self, kind: Any, bytes_max: int = 0, timeout_seconds: float | None = None) -> tuple[Any, bytes] | None:
        """Read one message of `kind`, with at most `bytes_max` bytes after it; None when the other side has ended.

        Raises BadMessage for anything else, and TimeoutError if the whole message does not arrive within
        `timeout_seconds`.
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
        message = decoded(text, kind)
        self.received_bytes += text_bytes
        return message, data

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


def front_messages(front: Front) -> Iterator[Fields | Tensors | FrontEnd]:
    """Yield the messages that describe `front`."""
    header = front.header
    field_entries = [
        HeaderField(
            field.key,
            field.type,
            field.element_type,
            field.count,
            field.offset,
            field.size_bytes,
            field.value is not None,
        )
        for field in header.fields
    ]
    for begin, end in _batches([len(entry.key) for entry in field_entries]):
        yield Fields(tuple(field_entries[begin:end]))
    tensor_entries = [HeaderTensor(item.name, item.shape, item.dtype.id, item.offset) for item in header.tensors]
    for begin, end in _batches([len(entry.name) for entry in tensor_entries]):
        yield Tensors(tuple(tensor_entries[begin:end]))
    yield FrontEnd(
        version=header.version,
        end=header.end,
        fields=len(header.fields),
        tensors=len(header.tensors),
        tags=front.tags,
        unassemblable=tuple(reason[:REASON_MAX_CHARACTERS] for reason in front.unassemblable),
        lock=front.lock,
    )


def _batches(text_lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield where each message of limited length begins and ends, from the lengths of the names of all entries."""
    begin = text_bytes = 0
    for number, length in enumerate(text_lengths):
        if number > begin and (number - begin == BATCH_ENTRIES or text_bytes + length > BATCH_TEXT_BYTES):
            yield begin, number
            begin, text_bytes = number, 0
        text_bytes += length
    if text_lengths:
        yield begin, len(text_lengths)


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
        self._tensors: dict[str, HeaderTensor] = {}
        self._is_big_endian = is_big_endian(source)

    def add_fields(self, message: Fields) -> None:
        """Take one message of metadata entries. Raises BadMessage."""
        for entry in message.entries:
            if len(self._fields) == FIELDS_MAX:
                raise BadMessage(f"more than {FIELDS_MAX:,} metadata entries")
            if entry.key in self._fields:
                raise BadMessage("a metadata key appears twice")
            self._fields[entry.key] = self._field(entry)
            self._position = entry.offset + entry.size_bytes

    def add_tensors(self, message: Tensors) -> None:
        """Take one message of tensors. Raises BadMessage."""
        for entry in message.entries:
            if (len(self._tensors) + 1) * TENSOR_INFO_MIN_BYTES > self._source.size_bytes:
                raise BadMessage("more tensors than the file has room for")
            if entry.name in self._tensors:
                raise BadMessage("two tensors have the same name")
            if not 1 <= prod(entry.shape) <= SIZE_MAX:
                raise BadMessage("a tensor has no elements, or more than any file can hold")
            self._tensors[entry.name] = entry

    def finish(self, message: FrontEnd) -> Front:
        """Take the last message. Raises BadMessage; BadSource when the file cannot be read."""
        if message.version not in VERSIONS_READ:
            raise BadMessage("the version of the format is unknown")
        if message.fields != len(self._fields) or message.tensors != len(self._tensors):
            raise BadMessage("announced metadata entries or tensors are missing")
        return Front(
            header=self._header(message.version, message.end),
            tags=message.tags,
            unassemblable=tuple(map(_printable, message.unassemblable)),
            lock=message.lock,
        )

    def _field(self, entry: HeaderField) -> MetadataField:
        kind, element, size = entry.type, entry.element_type, entry.size_bytes
        if entry.offset < self._position + len(entry.key) or entry.offset + size > self._source.size_bytes:
            raise BadMessage("a metadata value lies outside its place in the file")
        if (kind is ValueType.ARRAY) != (element is not None) or element is ValueType.ARRAY:
            raise BadMessage("an array without the type of its elements, or the other way round")
        if not _fits(kind, element, entry.count, size):
            raise BadMessage("a metadata value has a size that its type cannot have")
        has_value = kind is not ValueType.ARRAY and (entry.is_eager or kind is not ValueType.STRING)
        if entry.is_eager != has_value:
            raise BadMessage("a metadata value is sent that must stay in the file, or is not sent")
        value = self._value(kind, entry.offset, size) if has_value else None
        return MetadataField(entry.key, kind, element, entry.count, entry.offset, size, value, self._is_big_endian)

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
        field, alignment = self._fields.get(ALIGNMENT_KEY), ALIGNMENT_DEFAULT
        if field is not None:
            if field.type is not ValueType.UINT32 or not isinstance(field.value, int):
                raise BadMessage("the alignment is not a number")
            alignment = field.value
            if not 1 <= alignment <= ALIGNMENT_MAX or alignment & (alignment - 1):
                raise BadMessage("the alignment is not a power of two")
        data_offset = padded(end, alignment)
        entries = tuple(self._tensors.values())
        ends = (*(entry.offset for entry in entries[1:]), size - data_offset)
        tensors, expected = [], 0
        for entry, tensor_end in zip(entries, ends, strict=False):
            shape, room = entry.shape, tensor_end - entry.offset
            try:
                dtype = dtype_at(entry.dtype_id, prod(shape), room, alignment, self._is_big_endian)
            except UnsupportedDType:
                raise BadMessage("a tensor of an unknown type has a size that no type has") from None
            if entry.offset != expected or (shape[0] % dtype.block_elements and dtype.is_sized):
                raise BadMessage("a tensor is not where it must be, or has rows that its type cannot have")
            tensors.append(TensorInfo(entry.name, shape, dtype, entry.offset))
            expected += padded(tensors[-1].size_bytes, alignment)
        values = tuple(self._fields.values())
        header = Header(version, alignment, values, tuple(tensors), end, data_offset, size, self._is_big_endian)
        if not header.last_byte <= size <= padded(header.last_byte, alignment):
            raise BadMessage("a tensor lies outside the file")
        return header


def _fits(kind: ValueType, element: ValueType | None, count: int, size: int) -> bool:
    """Return whether a value of that type can have that number of elements and bytes."""
    if element is ValueType.STRING:
        return size >= 8 * count
    if element is not None:
        return size == count * SCALAR_SIZES[element]
    return count == 1 and (size <= VALUE_MAX if kind is ValueType.STRING else size == SCALAR_SIZES[kind])


ROUNDING = 1e-6
_Sampled = Annotated[int, Meta(ge=0, le=SAMPLE_MAX_ELEMENTS)]
_Number = float | None
_MeasurementValues = msgspec.defstruct(
    "_MeasurementValues",
    [
        ("method", Literal[THETA_METHOD]),
        ("sample_size", _Sampled),
        *(
            (
                item.name,
                Annotated[float, Meta(ge=item.low, le=None if item.high is None else item.high + ROUNDING)] | None,
            )
            for item in MEASURES.values()
        ),
        *((name, _Number) for name in ("entropy", "kurtosis", "coherence", "mean", "minimum", "maximum")),
        ("reason", Annotated[str, Meta(max_length=256, pattern=_PRINTABLE)] | None),
        ("nan_count", _Sampled),
        ("infinite_count", _Sampled),
        ("constant", bool),
        ("standard_deviation", Annotated[float, Meta(ge=0)] | None),
        ("spectral_method", Literal[SPECTRAL_METHOD] | None),
        ("spectral_rows", Annotated[int, Meta(ge=0, le=PATCH_MAX_ROWS)] | None),
        ("spectral_columns", Annotated[int, Meta(ge=0, le=PATCH_MAX_COLUMNS)] | None),
        ("nonfinite", None),
        ("fingerprint", Annotated[str, Meta(pattern=FINGERPRINT_PATTERN)] | None),
    ],
    forbid_unknown_fields=True,
    frozen=True,
)
"""A measurement as it is sent, with the range of each of its values."""


def measurement_values(measured: Measurement) -> Raw:
    """Return `measured` as JSON. Numbers that are not finite count as not measured."""
    fingerprint = None if measured.fingerprint is None else measured.fingerprint.hex()
    return Raw(msgspec.json.encode(asdict(measured) | {"fingerprint": fingerprint}))


def read_measurement(data: bytes | Raw) -> Measurement:
    """Return the measurement that an answer describes. Raises BadMessage."""
    values = msgspec.structs.asdict(decoded(data, _MeasurementValues))
    if values["nan_count"] + values["infinite_count"] > values["sample_size"]:
        raise BadMessage("more values are not numbers than were sampled")
    fingerprint = values["fingerprint"]
    return Measurement(**values | {"fingerprint": None if fingerprint is None else bytes.fromhex(fingerprint)})


def _printable(text: str) -> str:
    """Return `text` with spaces for characters that are not printable, which could control a terminal."""
    return "".join(item if item.isprintable() else " " for item in text)


def _deadline(timeout_seconds: float | None) -> float | None:
    return None if timeout_seconds is None else time.monotonic() + timeout_seconds


def _close_descriptor(descriptor: int) -> int:
    if descriptor >= 0:
        os.close(descriptor)
    return -1
