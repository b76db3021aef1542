"""Conversion of GGUF metadata to readable JSON, and back.

An entry is `{"key": ..., "type": "uint32" or "array of string" ..., "value": ...}`. Text that is not UTF-8 is
`{"base64": ...}`; NaN and the infinities, which JSON lacks, are words. Values beyond the limits below are omitted:
header.bin has the exact bytes of every entry.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from typing import Any

from organs.registry.gguf import ByteSource, Field, Header, KeyValue, ValueType, read_array
from organs.registry.gguf.header import field_type_text
from organs.registry.gguf.types import KEY_MAX_BYTES, SCALAR_FORMATS, VALUE_MAX

Entry = dict[str, object]

READABLE_MAX_BYTES = 32 * 1024 * 1024
READABLE_MAX_VALUES = 1_500_000
"""Limit of the values of one header. A vocabulary of 262,000 tokens with 515,000 merges has 1.3 million."""

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_KEY = re.compile(r"[\x20-\x7e]+")
_ARRAY_OF = "array of "
_SCALARS = {kind.name.lower(): kind for kind in ValueType if kind is not ValueType.ARRAY}
_FLOATS = (ValueType.FLOAT32, ValueType.FLOAT64)


def readable_metadata(source: ByteSource, header: Header) -> list[Entry]:
    """Return all entries of `header` in order; those beyond the limits have no value."""
    entries: list[Entry] = []
    left_bytes, left_values = READABLE_MAX_BYTES, READABLE_MAX_VALUES
    for field in header.fields:
        entry: Entry = {"key": field.key, "type": field_type_text(field)}
        if field.size_bytes <= left_bytes and field.count <= left_values:
            entry["value"] = _readable(source, field)
            left_bytes -= field.size_bytes
            left_values -= field.count
        entries.append(entry)
    return entries


def same_metadata(entries: list[Entry], of_header: list[Entry]) -> bool:
    """Return whether `entries` equal those of the header; omitted values are not compared."""
    if len(entries) != len(of_header):
        return False
    return all(
        item["key"] == other["key"]
        and item["type"] == other["type"]
        and ("value" not in item or "value" not in other or item["value"] == other["value"])
        for item, other in zip(entries, of_header, strict=True)
    )


def key_value(key: str, type_text: str, value: Any) -> KeyValue:
    """Return the entry to write; raises ValueError with the problem."""
    check_key(key)
    element = type_text.removeprefix(_ARRAY_OF)
    kind = _SCALARS.get(element)
    if kind is None:
        raise ValueError(f"{element[:40]!r} is not a type of a value")
    if element == type_text:
        return KeyValue(key, kind, _from_readable(kind, value))
    if not isinstance(value, list):
        raise ValueError(f"the value of an {type_text} must be a list")  # noqa: TRY004  # the input is wrong
    return KeyValue(key, ValueType.ARRAY, [_from_readable(kind, item) for item in value], kind)


def check_key(key: str) -> None:
    """Raise ValueError for an invalid key of GGUF metadata."""
    if len(key) > KEY_MAX_BYTES or not _KEY.fullmatch(key):
        raise ValueError(f"a key must be 1 to {KEY_MAX_BYTES} characters of printable ASCII")


def _readable(source: ByteSource, field: Field) -> Any:
    if field.element_type is not None:
        array = read_array(source, field)
        if isinstance(array, list):
            return [_text(item) for item in array]
        values: list[Any] = array.tolist()
        if field.element_type is ValueType.BOOL:
            return [bool(value) if value in (0, 1) else value for value in values]
        return [_number(value) for value in values] if field.element_type in _FLOATS else values
    if field.type is ValueType.STRING and field.value is None:
        return _text(source.read_at(field.offset, field.size_bytes))
    if isinstance(field.value, bytes):
        return _text(field.value)
    return _number(field.value) if isinstance(field.value, float) else field.value


def _text(raw: bytes) -> Any:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode("ascii")}


def _number(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _from_readable(kind: ValueType, value: Any) -> Any:
    if kind is ValueType.STRING:
        if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
            raw = base64.b64decode(value["base64"], validate=True)
        elif isinstance(value, str):
            raw = value.encode("utf-8")
        else:
            raise ValueError('a string must be a text, or {"base64": ...} if it is not UTF-8')
        if len(raw) > VALUE_MAX:
            raise ValueError(f"a string may have at most {VALUE_MAX} bytes")
        return raw
    if kind in _FLOATS and isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    if kind is ValueType.BOOL and isinstance(value, bool):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float if kind in _FLOATS else int):
        raise ValueError(f"{str(value)[:40]!r} is not a valid {kind.name.lower()}")  # noqa: TRY004  # the input is wrong
    try:
        number = float(value) if kind in _FLOATS else value
        struct.pack(SCALAR_FORMATS[kind], number)
    except (struct.error, OverflowError):
        number = math.inf
    if math.isinf(number):
        raise ValueError(f"{str(value)[:40]} is out of the range of {kind.name.lower()}")
    return number
