"""What manifest.json says, and how it is written: a line for each tensor and metadata entry, for people and diffs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from organs.ingest.directory.layout import FORMAT, FORMAT_VERSION, HEADER_FILE
from organs.ingest.directory.metadata import Entry
from organs.registry.anatomy import place_of
from organs.registry.digest import Digest
from organs.registry.gguf import KeyValue, TensorSpec

TENSORS_MAX = 65_536
GGUF_FILES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some consecutive bytes of header.bin."""

    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Padding:
    """Bytes that are not zero where zeros are usual: at `offset_bytes` of the GGUF, kept in header.bin."""

    offset_bytes: int
    kept: Stretch


@dataclass(frozen=True, slots=True)
class Measures:
    """What was measured of an organ: θ in degrees, |Z|, sin θ, and how its spectrum stands against chance."""

    theta: float | None
    magnitude: float | None
    signal: float | None
    spectral_signal: float | None
    stable_rank: float | None


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor of the map. Its dtype and shape are in its own file, which is the authority for them."""

    name: str
    file: str
    gguf: int
    """Which of the GGUF files it belongs to, from 0."""
    sha256: Digest | None = None


@dataclass(frozen=True, slots=True)
class GgufEntry:
    """One GGUF file that the folder gives."""

    name: str
    size_bytes: int | None = None
    sha256: Digest | None = None
    header: Stretch | None = None
    paddings: tuple[Padding, ...] = ()
    readable: tuple[Entry, ...] | None = None
    """Metadata as it is readable, to be compared with the header; None when it came in another form."""
    pairs: tuple[KeyValue | str, ...] = ()
    """Metadata to be written; the key alone where the value is in header.bin only."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The GGUF files of a folder, its tensors in order, and what was left out of a foreign one."""

    files: tuple[GgufEntry, ...]
    tensors: tuple[TensorEntry, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WrittenTensor:
    """A tensor that has been written to its file."""

    spec: TensorSpec
    file: str
    gguf: int
    offset_bytes: int
    """In its GGUF file."""
    sha256: Digest
    measures: Measures


@dataclass(frozen=True, slots=True)
class WrittenGguf:
    """A GGUF file that has been taken apart."""

    name: str
    size_bytes: int
    sha256: Digest
    alignment: int
    header: Stretch
    paddings: tuple[Padding, ...]
    metadata: Sequence[Entry]


def manifest_lines(
    architecture: str | None, files: Sequence[WrittenGguf], tensors: Sequence[WrittenTensor]
) -> Iterator[str]:
    """The text of manifest.json, line by line."""
    about = {"format": FORMAT, "version": FORMAT_VERSION, "architecture": architecture, "header_file": HEADER_FILE}
    yield "{\n"
    for key, value in about.items():
        yield f" {_json(key)}: {_json(value)},\n"
    yield ' "files": [\n'
    for number, file in enumerate(files):
        yield from _file_lines(file, last=number == len(files) - 1)
    yield ' ],\n "tensors": [\n'
    for number, tensor in enumerate(tensors):
        yield f"  {_json(_tensor_values(tensor))}{_comma(number, tensors)}"
    yield " ]\n}\n"


def _file_lines(file: WrittenGguf, *, last: bool) -> Iterator[str]:
    about = {
        "name": file.name,
        "size_bytes": file.size_bytes,
        "sha256": file.sha256,
        "alignment": file.alignment,
        "header": asdict(file.header),
        "padding": [asdict(padding) for padding in file.paddings],
    }
    yield "  {\n"
    for key, value in about.items():
        yield f"   {_json(key)}: {_json(value)},\n"
    yield '   "metadata": [\n'
    for number, entry in enumerate(file.metadata):
        yield f"    {_json(entry)}{_comma(number, file.metadata)}"
    yield f"   ]\n  }}{'' if last else ','}\n"


def _tensor_values(tensor: WrittenTensor) -> dict[str, Any]:
    spec, place = tensor.spec, place_of(tensor.spec.name)
    return {
        "name": spec.name,
        "file": tensor.file,
        "type": place.type,
        "tower": place.tower,
        "block": place.block,
        "slot": place.slot,
        "dtype": spec.dtype.name,
        "shape": list(spec.shape),
        "size_bytes": spec.size_bytes,
        "sha256": tensor.sha256,
        "gguf": tensor.gguf,
        "offset_bytes": tensor.offset_bytes,
        "measures": {key: _finite(value) for key, value in asdict(tensor.measures).items()},
    }


def _finite(value: float | None) -> float | None:
    """JSON has nothing for NaN and the infinities."""
    return value if value is None or math.isfinite(value) else None


def _comma(number: int, items: Sequence[object]) -> str:
    return "\n" if number == len(items) - 1 else ",\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
