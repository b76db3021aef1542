"""manifest.json: its writer, and its reader, which is strict for this program's manifests and lenient for others.

An entry of GGUF metadata is `{"key": ..., "type": "uint32" or "array of string" ..., "value": ...}`. Text that is not
UTF-8 is `{"base64": ...}`; NaN and the infinities, which JSON lacks, are words. Values beyond the limits below are
omitted: header.bin has the exact bytes of every entry.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from organs.ingest.directory.layout import (
    FOLDERS,
    FORMAT,
    FORMAT_VERSION,
    GGUF_SUFFIX,
    HEADER_FILE,
    MANIFEST_FILE,
    ORGAN_SUFFIX,
    organ_files,
    path_segments,
)
from organs.registry.anatomy import place_of
from organs.registry.digest import Digest, parse_digest
from organs.registry.documents import BadDocument, Limits, Parse, Reason, convert, quoted
from organs.registry.entities.base import prepared
from organs.registry.errors import BadDigest, BadDirectory, UnsupportedDType
from organs.registry.gguf import ByteSource, Field, Header, KeyValue, TensorSpec, ValueType, dtype_by_name, read_array
from organs.registry.gguf.header import field_type_text
from organs.registry.gguf.read import FIELDS_MAX
from organs.registry.gguf.types import KEY_MAX_BYTES, SCALAR_FORMATS, SIZE_MAX, VALUE_MAX

MANIFEST_LIMITS = Limits(size_bytes=64 * 1024 * 1024, depth=12)
TENSORS_MAX = 65_536
GGUF_FILES_MAX = 4_096
PADDINGS_MAX = TENSORS_MAX + 1
"""One after the header, and one after each tensor."""
REASONS_MAX = 20
"""Limit of reasons in a message; a hostile folder can have any number."""


class Reasons:
    """Collects the reasons of a refusal."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.more = 0

    def add(self, reason: str) -> None:
        """Add a reason; above the limit, reasons are only counted."""
        if len(self.found) < REASONS_MAX:
            self.found.append(reason)
        else:
            self.more += 1

    def add_faults(self, where: str, faults: Iterable[Reason]) -> None:
        """Add the faults of the part `where` of the manifest."""
        for path, sentence in faults:
            self.add(f"{where}{'.' if where and path else ''}{path}: {sentence}")

    def raise_if_any(self, path: str) -> None:
        """Raise BadDirectory for `path` if there are reasons."""
        if self.found:
            raise BadDirectory(path, [*self.found, *([f"and {self.more} more"] if self.more else [])])


def _file_name(name: str) -> str:
    with suppress(ValueError):
        if len(path_segments(name)) == 1 and name.lower().endswith(GGUF_SUFFIX):
            return name
    raise ValueError(f"not a plain name of a GGUF file: {quoted(name)}")


def _digest(text: str) -> Digest:
    try:
        return parse_digest(text)
    except BadDigest as error:
        raise ValueError(str(error)) from error


Size = Annotated[int, Meta(ge=0, le=SIZE_MAX)]
TEXT_MAX_LENGTH = 1024
Text = Annotated[str, Meta(max_length=TEXT_MAX_LENGTH)]
Measures = Mapping[str, float | None]
"""The measures of an organ by name (`registry.measures`); None where it was not measured."""


class Stretch(Struct, frozen=True):
    """A range of bytes of header.bin."""

    offset_bytes: Size
    size_bytes: Size


class Padding(Struct, frozen=True):
    """Padding that is not zero: at `offset_bytes` of the GGUF, stored in header.bin."""

    offset_bytes: Size
    kept: Stretch


class FileEntry(Struct, frozen=True):
    """One GGUF file of the folder, as this program writes it."""

    name: Annotated[str, Parse(_file_name)]
    size_bytes: Size | None = None
    sha256: Annotated[Digest, Parse(_digest)] | None = None
    alignment: Size | None = None
    header: Stretch | None = None
    padding: Annotated[tuple[Padding, ...], Meta(max_length=PADDINGS_MAX)] | None = None
    metadata: Any = None

    def faults(self) -> Iterator[Reason]:
        if self.header is not None and self.size_bytes is None:
            yield "size_bytes", "it is missing"


class _Files(Struct, frozen=True):
    files: Annotated[tuple[FileEntry, ...], Meta(min_length=1, max_length=GGUF_FILES_MAX)]
    header_file: Literal["header.bin"] | None = None


class TensorLine(Struct, frozen=True):
    """A tensor, as this program writes it. Its file defines its type and its shape; most values are for people."""

    name: Text
    file: Text
    type: Text | None = None
    tower: Text | None = None
    block: Size | None = None
    slot: Text | None = None
    dtype: Text | None = None
    shape: tuple[int, ...] | None = None
    size_bytes: Size | None = None
    sha256: Text | None = None
    gguf: Size | None = None
    """The number of its GGUF file, from 0."""
    offset_bytes: Size | None = None
    """Offset in its GGUF file."""
    measures: dict[str, float | None] | None = None

    @classmethod
    def of(cls, spec: TensorSpec, file: str, gguf: int, offset_bytes: int, sha256: Digest) -> TensorLine:
        """Return the line of a tensor that is not measured yet."""
        place = place_of(spec.name)
        return cls(
            name=spec.name,
            file=file,
            type=place.type,
            tower=place.tower,
            block=place.block,
            slot=place.slot,
            dtype=spec.dtype.name,
            shape=spec.shape,
            size_bytes=spec.size_bytes,
            sha256=sha256,
            gguf=gguf,
            offset_bytes=offset_bytes,
        )

    def measured(self, measures: Measures) -> TensorLine:
        """Return the line with `measures`; NaN and infinities, which JSON lacks, become null."""
        finite = {
            name: None if value is None or not math.isfinite(value) else value for name, value in measures.items()
        }
        return msgspec.structs.replace(self, measures=finite)


class _MetadataLine(Struct, frozen=True):
    key: Annotated[str, Meta(max_length=KEY_MAX_BYTES)]
    type: Text
    value: Any | UnsetType = UNSET


def manifest_lines(
    architecture: str | None, files: Sequence[FileEntry], tensors: Sequence[TensorLine]
) -> Iterator[str]:
    """Yield the text of manifest.json, line by line."""
    members = {"format": FORMAT, "version": FORMAT_VERSION, "architecture": architecture, "header_file": HEADER_FILE}
    yield "{\n"
    for key, value in members.items():
        yield f" {_json(key)}: {_json(value)},\n"
    yield ' "files": [\n'
    for number, file in enumerate(files):
        yield "  {\n"
        for key in file.__struct_fields__[:-1]:
            yield f"   {_json(key)}: {_json(msgspec.to_builtins(getattr(file, key)))},\n"
        yield '   "metadata": [\n'
        for index, entry in enumerate(file.metadata):
            yield f"    {_json(entry)}{_comma(index, file.metadata)}"
        yield f"   ]\n  }}{_comma(number, files)}"
    yield ' ],\n "tensors": [\n'
    for number, tensor in enumerate(tensors):
        yield f"  {_json(msgspec.to_builtins(tensor))}{_comma(number, tensors)}"
    yield " ]\n}\n"


def _comma(number: int, items: Sequence[object]) -> str:
    return "\n" if number == len(items) - 1 else ",\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor of the tensor map. Its file defines its dtype and shape."""

    name: str
    """Empty if only its file has the name."""
    file: str
    """A checked path. In a manifest of another tool it can be empty, or lead to no file: see `stated`."""
    gguf: int
    """The number of its GGUF file, from 0."""
    sha256: Digest | None
    stated: str
    """What a manifest of another tool has as its path: on another system, or from another folder."""


class GgufEntry(FileEntry, frozen=True):
    """One GGUF file of the folder, with its metadata read."""

    readable: tuple[Entry, ...] | None = None
    """Readable metadata, for comparison with the header; None in another form."""
    pairs: tuple[KeyValue | str, ...] = ()
    """Metadata to write; only the key if the value is only in header.bin."""


@dataclass(frozen=True, slots=True)
class DirectoryManifest:
    """The GGUF files of a folder, its tensors in order, and notes on omitted parts of another tool's manifest."""

    files: tuple[GgufEntry, ...]
    tensors: tuple[TensorEntry, ...]
    notes: tuple[str, ...]
    is_foreign: bool
    """Whether another tool wrote it."""


T = TypeVar("T", bound=Struct)


def parse_manifest(values: Any, path: str, default_name: str) -> DirectoryManifest:
    """Return the manifest of parsed JSON; `default_name` is for a GGUF without a name.

    Raises BadDirectory for `path` with all reasons.
    """
    if not isinstance(values, dict):
        raise BadDirectory(path, [f"{MANIFEST_FILE} is not a JSON object"])
    reader = _ManifestReader(values, is_foreign=values.get("format") != FORMAT)
    version = values.get("version")
    if not reader.is_foreign and version != FORMAT_VERSION:
        raise BadDirectory(path, [f"its version is {str(version)[:20]!r}; this program reads version {FORMAT_VERSION}"])
    has_files = not reader.is_foreign and "files" in values
    files = tuple(reader.files() if has_files else [reader.single_file(default_name)])
    tensors = tuple(reader.tensors(len(files)))
    for kind, names in (
        ("tensor", [tensor.name for tensor in tensors]),
        ("file", [tensor.file for tensor in tensors]),
        ("GGUF", [file.name for file in files]),
    ):
        for name, times in Counter(names).items():
            if times > 1 and name:
                reader.reasons.add(f"the {kind} {name[:80]!r} appears {times} times in the manifest")
    reader.reasons.raise_if_any(path)
    return DirectoryManifest(files, tensors, tuple(reader.notes), reader.is_foreign)


@dataclass(slots=True)
class _ManifestReader:
    """Reads the parts of a manifest, and collects what is wrong.

    In a manifest of another tool, an optional value of another type counts as absent.
    """

    values: dict[str, Any]
    is_foreign: bool
    reasons: Reasons = field(default_factory=Reasons)
    notes: list[str] = field(default_factory=list)

    def row(self, values: object, kind: type[T], where: str) -> T | None:
        """Return one of many lines: at once, or, if that fails, with all its faults."""
        with suppress(msgspec.ValidationError):
            return msgspec.convert(values, prepared(kind))
        try:
            return convert(values, kind, lenient=self.is_foreign)
        except BadDocument as error:
            self.reasons.add_faults(where, error.reasons)
            return None

    def files(self) -> Iterator[GgufEntry]:
        """Yield the entries of the field `files`."""
        try:
            entries = convert(self.values, _Files).files
        except BadDocument as error:
            self.reasons.add_faults("", error.reasons)
            return
        for number, file in enumerate(entries):
            readable, pairs = self.metadata(file.metadata, f"files[{number}].metadata")
            yield GgufEntry(**msgspec.structs.asdict(file), readable=readable, pairs=pairs)

    def single_file(self, name: str) -> GgufEntry:
        """Return the one GGUF of a manifest without `files`: metadata, with architecture and model name added."""
        _readable, pairs = self.metadata(self.values.get("metadata"), "metadata")
        keys = {pair if isinstance(pair, str) else pair.key for pair in pairs}
        model = self.values.get("model")
        described = model if isinstance(model, dict) else {"name": model}
        texts = (
            ("general.architecture", (self.values.get("architecture"), described.get("architecture"))),
            ("general.name", (described.get("name"),)),
        )
        added = []
        for key, candidates in texts:
            value = next((text for text in candidates if text and isinstance(text, str) and text.isprintable()), None)
            if value is not None and key not in keys:
                added.append(KeyValue(key, ValueType.STRING, value))
        if self.is_foreign and "general.architecture" not in keys | {pair.key for pair in added}:
            self.notes.append("the manifest has no general.architecture, which runtimes need; add it to its metadata")
        return GgufEntry(name, pairs=(*added, *pairs))

    def metadata(self, value: Any, where: str) -> tuple[tuple[Entry, ...] | None, tuple[KeyValue | str, ...]]:
        """Return the entries in readable form, if they have it, and the entries to write."""
        pairs: dict[str, KeyValue | str] = {}
        if isinstance(value, dict):
            for key, plain in list(value.items())[:FIELDS_MAX]:
                try:
                    pairs[key] = plain_key_value(key, plain)
                except ValueError as error:
                    sentence = f"metadata {key[:80]!r}: {error}"
                    if self.is_foreign:
                        self.notes.append(f"omitted: {sentence}")
                    else:
                        self.reasons.add(sentence)
            return None, tuple(pairs.values())
        is_list = isinstance(value, list)
        if not is_list or (self.is_foreign and not all(isinstance(item, dict) for item in value)):
            if value is not None and not self.is_foreign:
                self.reasons.add(f"{where}: it should be a list or an object")
            return None, ()
        if len(value) > FIELDS_MAX:
            self.reasons.add(f"{where}: it has {len(value):,} entries; at most {FIELDS_MAX:,} are read")
            return None, ()
        for number, item in enumerate(value):
            line = self.row(item, _MetadataLine, f"{where}[{number}]")
            if line is None:
                continue
            if line.key in pairs:
                self.reasons.add(f"{where}[{number}].key: it appears twice: {line.key[:80]!r}")
            try:
                check_key(line.key)
                pairs[line.key] = line.key if line.value is UNSET else key_value(line.key, line.type, line.value)
            except ValueError as error:
                self.reasons.add(f"{where}[{number}]: value of {line.key[:80]!r}: {error}")
        return tuple(value), tuple(pairs.values())

    def tensors(self, file_count: int) -> Iterator[TensorEntry]:
        """Yield the tensors of the tensor map."""
        lines = _lines(self.values, self.reasons)
        if len(lines) > TENSORS_MAX:
            self.reasons.add(f"{len(lines):,} tensors; at most {TENSORS_MAX:,} are read")
            return
        for where, values, folder in lines:
            entry = self._foreign_tensor(where, values, folder) if self.is_foreign else self._tensor(where, values)
            if entry is not None and 0 < file_count <= entry.gguf:
                self.reasons.add(f"{where}.gguf is {entry.gguf}; there are {file_count} files")
            elif entry is not None:
                yield entry

    def _tensor(self, where: str, values: Any) -> TensorEntry | None:
        line = self.row(values, TensorLine, where)
        if line is None:
            return None
        faults: list[Reason] = []
        digest = None
        if not line.name.isprintable():
            faults.append(("name", "it is not a printable text"))
        try:
            if not line.file.isprintable():
                raise ValueError("not a printable text")
            path_segments(line.file)
        except ValueError as error:
            faults.append(("file", f"{error}: {line.file[:80]!r}"))
        try:
            digest = None if line.sha256 is None else _digest(line.sha256)
        except ValueError as error:
            faults.append(("sha256", str(error)))
        try:
            if line.dtype is not None:
                dtype_by_name(line.dtype)
        except UnsupportedDType as error:
            faults.append(("dtype", str(error)))
        self.reasons.add_faults(where, faults)
        return None if faults else TensorEntry(line.name, line.file, line.gguf or 0, digest, line.file)

    def _foreign_tensor(self, where: str, values: Any, folder: str) -> TensorEntry | None:
        """Return a tensor of another tool's manifest; `folder` is that of its category, if it has one."""
        if isinstance(values, str):
            values = {"file" if values.lower().endswith(ORGAN_SUFFIX) else "name": values}
        if not isinstance(values, dict):
            self.reasons.add(f"{where}: it is neither an object, nor the name or the file of a tensor")
            return None
        file_key = next((key for key in ("file", *FILE_KEYS) if key in values), "file")
        name, stated = (
            text if isinstance(text, str) and len(text) <= TEXT_MAX_LENGTH and text.isprintable() else ""
            for text in (values.get("name"), values.get(file_key))
        )
        if not name and not stated:
            self.reasons.add(f"{where}: it has neither a name nor a file")
            return None
        file = stated
        if folder and stated and "/" not in stated:
            file = f"{folder}/{stated}"
        elif folder and not stated and name.isascii():
            file = f"{folder}/{organ_files([name])[0].rpartition('/')[2]}"
        gguf, digest = values.get("gguf"), None
        with suppress(ValueError):
            digest = _digest(str(values.get("sha256")))
        try:
            path_segments(file)
        except ValueError:
            file = ""  # found by its tensor's name
        return TensorEntry(name, file, gguf if type(gguf) is int and gguf >= 0 else 0, digest, stated)


TENSOR_MAPS = ("tensors", "tensor_map", "organs", "categories", "anatomy")
"""Fields that can have the tensor map, in this order."""
FILE_KEYS = ("path", "filename")
"""Names that other tools give to the field `file`."""
CATEGORIES: dict[str, str] = {folder: folder for folder in FOLDERS.values()} | {
    kind.value: folder for kind, folder in FOLDERS.items()
}
"""The folder of each category by which other tools group tensors."""


def _lines(values: dict[str, Any], reasons: Reasons) -> list[tuple[str, Any, str]]:
    """Return the tensors of the manifest: place, values, and the folder of its category or an empty text.

    Adds a reason if there are none that can be read.
    """
    listing = next((values[key] for key in TENSOR_MAPS if _can_list(values.get(key))), None)
    is_grouped = (
        bool(listing)
        and isinstance(listing, dict)
        and all(
            key in CATEGORIES and isinstance(value, list | dict) and "file" not in value
            for key, value in listing.items()
        )
    )  # from category to tensors, not from tensor to file
    if not is_grouped and not any(key in values for key in TENSOR_MAPS[:2]):
        groups = {
            key: value
            for key, value in values.items()
            # A field of a category can be a summary instead.
            if key in CATEGORIES
            and (isinstance(value, list) or (isinstance(value, dict) and isinstance(value.get("tensors"), list | dict)))
        }
        if groups.keys() - {"organs"}:
            listing, is_grouped = groups, True
    if listing is None:
        reasons.add(
            f"{MANIFEST_FILE} has no tensor map: tensors, tensor_map or organs, or lists by category such as skeleton"
        )
        return []
    if not is_grouped:
        return [(f"tensors[{number}]", item, "") for number, item in enumerate(_items(listing))]
    lines = []
    for category, group in listing.items():
        tensors = group.get("tensors", group) if isinstance(group, dict) else group
        is_summary = isinstance(tensors, dict) and not all(isinstance(item, str | dict) for item in tensors.values())
        if is_summary or not isinstance(tensors, list | dict):  # such as {"count": 12}
            reasons.add(f"{category} lists no tensors: the name or the file of each is needed")
            continue
        items = enumerate(_items(tensors))
        lines += [(f"{category}[{number}]", item, CATEGORIES[category]) for number, item in items]
    return lines


def _can_list(value: Any) -> bool:
    """Return whether a field of the manifest can be a tensor map; it could be a summary such as {"count": 12}."""
    if isinstance(value, dict):
        return all(isinstance(item, str | list | dict) for item in value.values())
    return isinstance(value, list)


def _items(listing: list[Any] | dict[str, Any]) -> Iterator[Any]:
    if isinstance(listing, list):
        yield from listing
        return
    for name, item in listing.items():
        yield {"name": name, **item} if isinstance(item, dict) else {"name": name, "file": item}


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
KNOWN_ENDINGS = (
    ("_epsilon", "float32"),
    (".freq_base", "float32"),
    (".freq_base_swa", "float32"),
    (".scaling.factor", "float32"),
    ("_scale", "float32"),
    ("_softcapping", "float32"),
    ("_token_id", "uint32"),
)

_INTEGERS = {
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}


def plain_key_value(key: str, value: Any) -> KeyValue:
    """Return the entry for a plain JSON value; raises ValueError if GGUF has no type for it."""
    check_key(key)
    if isinstance(value, dict) and {"type", "value"} <= value.keys() and isinstance(value["type"], str):
        return key_value(key, value["type"], value["value"])
    known = KNOWN_TYPES.get(key) or next((kind for ending, kind in KNOWN_ENDINGS if key.endswith(ending)), None)
    if known is None and key.startswith("tokenizer.ggml.add_"):
        known = "bool"
    if known is not None:
        fitting = value
        if known == "bool" and value in (0, 1):  # other tools write 1 for true, and 32.0 for 32
            fitting = bool(value)
        elif "int" in known and isinstance(value, float) and value.is_integer():
            fitting = int(value)
        with suppress(ValueError):  # a known key with another use: the value decides the type
            return key_value(key, known, fitting)
    if isinstance(value, list):
        return key_value(key, _ARRAY_OF + _type_of_all(value, ("int32", "uint32", "int64", "uint64")), value)
    if isinstance(value, str | int | float):
        return key_value(key, _type_of_all([value], ("uint32", "int32", "uint64", "int64")), value)
    raise ValueError("not a text, a number, true, false, or a list of one of these")


def _type_of_all(values: list[Any], integers: tuple[str, ...]) -> str:
    """Return the type for `values`, with the first of `integers` that holds all of them."""
    if all(isinstance(value, str) for value in values):
        return "string"
    if all(isinstance(value, bool) for value in values):
        return "bool"
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        raise ValueError("a list of several kinds, or of a kind that GGUF has no type for")
    if any(isinstance(value, float) for value in values):
        largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
        return "float32" if largest <= 3.4e38 else "float64"
    for name in integers:
        low, high = _INTEGERS[name]
        if low <= min(values) and max(values) <= high:
            return name
    raise ValueError("a whole number of more than 64 bits")


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
    for item in header.fields:
        entry: Entry = {"key": item.key, "type": field_type_text(item)}
        if item.size_bytes <= left_bytes and item.count <= left_values:
            entry["value"] = _readable(source, item)
            left_bytes -= item.size_bytes
            left_values -= item.count
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
