"""GGUF types for JSON values that come without one, as manifests of other tools and little scripts give them.

Well-known keys get the type that loaders look for. Else: text is a string, true and false a bool, a whole number uint32
(int32 if negative; uint64 and int64 beyond 32 bits), any other number float32, and a list of one kind an array: of
int32 for whole numbers if they fit, then uint32, int64, uint64; of strings when it is empty.
"""

from __future__ import annotations

import math
from typing import Any

from organs.ingest.directory.metadata import check_key, key_value
from organs.registry.gguf import KeyValue

KNOWN_TYPES = {
    "general.alignment": "uint32",
    "general.file_type": "uint32",
    "general.quantization_version": "uint32",
    "general.base_model.count": "uint32",
    "adapter.lora.alpha": "float32",
    "split.no": "uint16",
    "split.count": "uint16",
    "split.tensors.count": "int32",
    "tokenizer.ggml.tokens": "array of string",
    "tokenizer.ggml.merges": "array of string",
    "tokenizer.ggml.scores": "array of float32",
    "tokenizer.ggml.token_type": "array of int32",
}
KNOWN_BEGINNINGS = (("tokenizer.ggml.add_", "bool"),)
KNOWN_ENDINGS = (
    ("_epsilon", "float32"),
    (".freq_base", "float32"),
    (".freq_base_swa", "float32"),
    (".scaling.factor", "float32"),
    ("_scale", "float32"),
    ("_softcapping", "float32"),
    ("_token_id", "uint32"),
)

_INTEGERS = (
    ("int32", -(2**31), 2**31 - 1),
    ("uint32", 0, 2**32 - 1),
    ("int64", -(2**63), 2**63 - 1),
    ("uint64", 0, 2**64 - 1),
)


def plain_key_value(key: str, value: Any) -> KeyValue:
    """The entry for a plain JSON value; raises ValueError when GGUF has nothing for it."""
    check_key(key)
    if isinstance(value, dict) and {"type", "value"} <= value.keys() and isinstance(value["type"], str):
        return key_value(key, value["type"], value["value"])
    known = _known_type(key)
    if known is not None:
        try:
            return key_value(key, known, _loosened(known, value))
        except ValueError:
            pass  # a key may be known and used otherwise: then by what the value is
    return key_value(key, _type_of(value), value)


def _known_type(key: str) -> str | None:
    if key in KNOWN_TYPES:
        return KNOWN_TYPES[key]
    for beginning, kind in KNOWN_BEGINNINGS:
        if key.startswith(beginning):
            return kind
    return next((kind for ending, kind in KNOWN_ENDINGS if key.endswith(ending)), None)


def _loosened(kind: str, value: Any) -> Any:
    """`value` as whole number or truth where other tools wrote 32.0 or 1."""
    if kind == "bool" and value in (0, 1):
        return bool(value)
    if "int" in kind and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _type_of(value: Any) -> str:
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return _smallest([value], ("uint32", "int32", "uint64", "int64"))
    if isinstance(value, float):
        return _float_type([value])
    if isinstance(value, list):
        return "array of " + _element_type(value)
    raise ValueError("neither text, a number, true or false, nor a list of one of these")


def _element_type(values: list[Any]) -> str:
    if all(isinstance(one, str) for one in values):
        return "string"
    if all(isinstance(one, bool) for one in values):
        return "bool"
    if any(isinstance(one, bool) for one in values):
        raise ValueError("a list of several kinds")
    if all(isinstance(one, int) for one in values):
        return _smallest(values, ("int32", "uint32", "int64", "uint64"))
    if all(isinstance(one, int | float) for one in values):
        return _float_type(values)
    raise ValueError("a list of several kinds, or of what GGUF has no type for")


def _smallest(values: list[int], order: tuple[str, ...]) -> str:
    ranges = {name: (low, high) for name, low, high in _INTEGERS}
    low, high = min(values), max(values)
    for name in order:
        if ranges[name][0] <= low and high <= ranges[name][1]:
            return name
    raise ValueError("a whole number of more than 64 bits")


def _float_type(values: list[float]) -> str:
    largest = max((abs(one) for one in values if math.isfinite(one)), default=0.0)
    return "float32" if largest <= 3.4e38 else "float64"
