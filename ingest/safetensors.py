"""Safetensors files: their header, checked before it is used, the values of their tensors; and headers to write.

The format: a length (8 bytes, little-endian), that many bytes of JSON, then the values of all tensors without gaps.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from organs.registry.documents import Limits, parse_json
from organs.registry.entities.base import prepared
from organs.registry.errors import BadSource
from organs.registry.input_files import FileSource

SAFETENSORS_SUFFIX = ".safetensors"
MODEL_CONFIG_FILE = "config.json"
"""The file with the dimensions of a model, beside its safetensors files."""
CONFIG_MAX_BYTES = 1024 * 1024
"""Limit of a config.json or an adapter_config.json; real ones have some kilobytes."""
HEADER_MAX_BYTES = 64 * 1024 * 1024
"""Limit of the JSON; the library of the format has 100 MB. The JSON of a LoRA of 80 blocks has 200 kB."""
_LIMITS = Limits(HEADER_MAX_BYTES, depth=12)
DIMENSIONS_MAX = 8
METADATA_KEY = "__metadata__"

_LENGTH_BYTES = 8
_VALUE_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
_STORED: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
PACKED = frozenset({"U8", "I8", "U16", "I16", "U32", "I32"})
"""Types of quantised weights, several of which can be in one number."""
MLX = "mlx"
UNCONVERTIBLE = {
    MLX: "MLX",
    "awq": "AWQ",
    "bitsandbytes": "bitsandbytes",
    "hqq": "HQQ",
    "aqlm": "AQLM",
    "quanto": "Quanto",
    "exl2": "ExLlamaV2",
    "exl3": "ExLlamaV3",
}
"""Quantisations that `convert_hf_to_gguf.py` does not read, with their names for people."""
FLOATS = frozenset(_STORED)
"""Types whose values can be read."""


def encode_entries(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> bytes:
    """Return the beginning of a file with these tensors: name, type and shape of each, in the order of their values."""
    entries: dict[str, object] = {METADATA_KEY: {"format": "pt"}}
    position = 0
    for name, dtype, shape in tensors:
        end = position + math.prod(shape) * _VALUE_BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": (position, end)}
        position = end
    text = msgspec.json.encode(entries)
    text = text.ljust(-(-len(text) // _LENGTH_BYTES) * _LENGTH_BYTES)  # so that the values are aligned
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """A tensor of a safetensors file; `offset_bytes` is its place in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int

    @property
    def elements(self) -> int:
        """The number of values."""
        return math.prod(self.shape)


class SafetensorsFile:
    """An open safetensors file, which several threads can read. A context manager."""

    def __init__(self, path: Path) -> None:
        """Open `path` and check its header. Raises BadSource for another file, ValueError for a bad header."""
        self._file = FileSource(path)
        try:
            self.entries = {entry.name: entry for entry in _read_entries(self._file)}
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, entry: WeightEntry, first: int, last: int) -> NDArray[np.generic]:
        """Return the values from `first` to before `last` of a tensor: float32, or float16 as it is stored.

        BF16 becomes float32, which has all of its values. Raises BadSource if the file became shorter.
        """
        stored = _STORED[entry.dtype]
        data = self._file.read_at(entry.offset_bytes + first * stored.itemsize, (last - first) * stored.itemsize)
        values: NDArray[np.generic] = np.frombuffer(data, stored)
        if entry.dtype == "BF16":
            return (values.astype("<u4") << np.uint32(16)).view("<f4")
        return values

    def check_unchanged(self) -> None:
        """Raise BadSource if the file was written or replaced since it was opened."""
        self._file.check_unchanged()


def is_model_folder(path: Path) -> bool:
    """Return whether the folder `path` has a model in safetensors files: its configuration and its weights."""
    try:
        with os.scandir(path) as entries:
            names = {entry.name for entry in entries}
    except OSError:
        return False
    return MODEL_CONFIG_FILE in names and any(name.lower().endswith(SAFETENSORS_SUFFIX) for name in names)


def read_json(path: Path) -> dict[str, object]:
    """Return the JSON object in the file `path`; raises BadSource, and ValueError for anything else in it."""
    with FileSource(path) as file:
        if file.size_bytes > CONFIG_MAX_BYTES:
            raise ValueError(f"{file.size_bytes} bytes; at most {CONFIG_MAX_BYTES} are read")
        return msgspec.convert(parse_json(file.read_at(0, file.size_bytes), _LIMITS), prepared(dict[str, object]))


class _Quantisation(Struct, frozen=True):
    """What a `config.json` says about the quantisation of the weights."""

    quant_method: str | None = None
    bits: float | None = None
    group_size: int | None = None


class _QuantisationConfig(Struct, frozen=True):
    """The members of a `config.json` about quantisation; MLX writes `quantization`, transformers the other."""

    quantization: _Quantisation | None = None
    quantization_config: _Quantisation | None = None


def quantised_by(folder: Path) -> str | None:
    """Return the quantisation of the safetensors files in `folder` that llama.cpp cannot convert; None if it can.

    The weights decide: a configuration can also state the quantisation of weights that were written out again.
    """
    try:
        config = msgspec.convert(read_json(folder / MODEL_CONFIG_FILE), prepared(_QuantisationConfig))
    except (BadSource, ValueError):
        return None
    stated = config.quantization or config.quantization_config
    if stated is None:
        return None
    is_mlx = stated.quant_method is None and stated.bits is not None and stated.group_size is not None
    method = MLX if is_mlx else (stated.quant_method or "").lower()
    weights = (path for path in folder.iterdir() if path.suffix.lower() == SAFETENSORS_SUFFIX)
    return UNCONVERTIBLE.get(method) if any(map(_has_packed_weights, weights)) else None


def _has_packed_weights(path: Path) -> bool:
    """Return whether the file has matrices of small whole numbers; a file that cannot be read may have some."""
    try:
        with SafetensorsFile(path) as file:
            return any(entry.dtype in PACKED and len(entry.shape) > 1 for entry in file.entries.values())
    except (BadSource, ValueError):
        return True


class _StatedEntry(Struct, frozen=True):
    """A tensor in the JSON of the header."""

    dtype: str
    shape: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=DIMENSIONS_MAX)]
    data_offsets: tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]


def _read_entries(file: FileSource) -> Iterator[WeightEntry]:
    if file.size_bytes < _LENGTH_BYTES:
        raise ValueError(f"{file.size_bytes} bytes are too few for a safetensors file")
    size = int.from_bytes(file.read_at(0, _LENGTH_BYTES), "little")
    most = min(HEADER_MAX_BYTES, file.size_bytes - _LENGTH_BYTES)
    if size > most:
        raise ValueError(f"its header states a length of {size} bytes; at most {most} are possible")
    values = parse_json(file.read_at(_LENGTH_BYTES, size), _LIMITS)
    if isinstance(values, dict):
        values.pop(METADATA_KEY, None)
    stated = msgspec.convert(values, prepared(dict[str, _StatedEntry]))
    position = _LENGTH_BYTES + size
    for name, item in sorted(stated.items(), key=lambda pair: pair[1].data_offsets):
        begin, end = (_LENGTH_BYTES + size + offset for offset in item.data_offsets)
        shown = repr(name[:80])
        if item.dtype not in _VALUE_BYTES:
            raise ValueError(f"{shown} has the unknown type {item.dtype[:20]!r}")
        needed_bytes = math.prod(item.shape) * _VALUE_BYTES[item.dtype]
        if end - begin != needed_bytes:
            raise ValueError(f"{shown} has {end - begin} bytes, but its shape and type need {needed_bytes}")
        if begin != position:
            raise ValueError(f"{shown} does not begin where the tensor before it ends")
        yield WeightEntry(name, item.dtype, item.shape, begin)
        position = end
    if position != file.size_bytes:
        raise ValueError(f"its tensors end at byte {position}, but the file has {file.size_bytes}")
