"""manifest.json: its writer, and its reader, which is strict for this program's manifests and lenient for others."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

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
from organs.ingest.directory.metadata import Entry, check_key, key_value
from organs.registry.anatomy import place_of
from organs.registry.digest import Digest, parse_digest
from organs.registry.documents import Limits
from organs.registry.errors import BadDigest, BadDirectory, UnsupportedDType
from organs.registry.gguf import KeyValue, TensorSpec, ValueType, dtype_by_name
from organs.registry.gguf.read import FIELDS_MAX
from organs.registry.gguf.types import KEY_MAX_BYTES, SIZE_MAX

REASONS_MAX = 20
"""Limit of reasons in a message; a hostile folder can have any number."""
TEXT_MAX_LENGTH = 1024


@dataclass(slots=True)
class Reasons:
    """Collects the reasons of a refusal."""

    found: list[str] = field(default_factory=list)
    more: int = 0

    def add(self, reason: str) -> None:
        """Add a reason; above the limit, reasons are only counted."""
        if len(self.found) < REASONS_MAX:
            self.found.append(reason)
        else:
            self.more += 1

    def raise_if_any(self, path: str) -> None:
        """Raise BadDirectory for `path` if there are reasons."""
        if self.found:
            raise BadDirectory(path, [*self.found, *([f"and {self.more} more"] if self.more else [])])


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one JSON object. Each method returns the value, or None if it is absent or refused.

    `lenient`: an optional field of another type counts as absent, because other tools may use it differently.
    """

    values: dict[str, Any]
    where: str
    reasons: Reasons
    lenient: bool = False

    def text(self, key: str, *, required: bool = False, longest: int = TEXT_MAX_LENGTH) -> str | None:
        """Return a printable string."""
        value = self.values.get(key)
        if isinstance(value, str) and len(value) <= longest and value.isprintable():
            return value
        self._refuse(key, f"a printable text of at most {longest} characters", required=required)
        return None

    def whole(self, key: str, *, required: bool = False) -> int | None:
        """Return an integer from 0 to the largest size of a file."""
        value = self.values.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= SIZE_MAX:
            return value
        self._refuse(key, "a whole number, not negative and below 2^63", required=required)
        return None

    def digest(self, key: str) -> Digest | None:
        """Return a SHA-256 digest."""
        value = self.values.get(key)
        try:
            if isinstance(value, str):
                return parse_digest(value)
        except BadDigest:
            pass
        self._refuse(key, "a SHA-256 digest", required=False)
        return None

    def numbers(self, key: str) -> tuple[int, ...] | None:
        """Return a list of integers."""
        value = self.values.get(key)
        if isinstance(value, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            return tuple(value)
        self._refuse(key, "a list of whole numbers", required=False)
        return None

    def objects(self, key: str, most: int) -> Sequence[Fields]:
        """Return a list of at most `most` objects."""
        value = self.values.get(key)
        if isinstance(value, list) and len(value) > most:
            self.reasons.add(f"{self.where}{key} has {len(value)} entries; at most {most} are read")
            return ()
        if isinstance(value, list) and all(isinstance(item, dict) for item in value):
            return [
                Fields(item, f"{self.where}{key}[{number}].", self.reasons, self.lenient)
                for number, item in enumerate(value)
            ]
        self._refuse(key, "a list of objects", required=False)
        return ()

    def object(self, key: str) -> Fields | None:
        """Return an object."""
        value = self.values.get(key)
        if isinstance(value, dict):
            return Fields(value, f"{self.where}{key}.", self.reasons, self.lenient)
        self._refuse(key, "an object", required=False)
        return None

    def check_measures(self, key: str) -> None:
        """Check an object of numbers and nulls."""
        value = self.values.get(key)
        if not isinstance(value, dict) or not all(_is_number(item) for item in value.values()):
            self._refuse(key, "an object of numbers", required=False)

    def _refuse(self, key: str, expected: str, *, required: bool) -> None:
        if self.values.get(key) is None:
            if required:
                self.reasons.add(f"{self.where}{key} is missing")
        elif required or not self.lenient:
            self.reasons.add(f"{self.where}{key} is not {expected}")


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


MANIFEST_LIMITS = Limits(size_bytes=64 * 1024 * 1024, depth=12)
TENSORS_MAX = 65_536
GGUF_FILES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of bytes of header.bin."""

    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Padding:
    """Padding that is not zero: at `offset_bytes` of the GGUF, stored in header.bin."""

    offset_bytes: int
    kept: Stretch


Measures = Mapping[str, float | None]
"""The measures of an organ by name (`registry.measures`); None where it was not measured."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor of the tensor map. Its file defines its dtype and shape."""

    name: str
    """Empty if only its file has the name."""
    file: str
    """A checked path. In a manifest of another tool it can be empty, or lead to no file: see `stated`."""
    gguf: int
    """The number of its GGUF file, from 0."""
    sha256: Digest | None = None
    stated: str = ""
    """What a manifest of another tool has as its path: on another system, or from another folder."""

    @property
    def label(self) -> str:
        """The name in sentences."""
        return self.name or repr(self.stated[:80])


@dataclass(frozen=True, slots=True)
class GgufEntry:
    """One GGUF file of the folder."""

    name: str
    size_bytes: int | None = None
    sha256: Digest | None = None
    header: Stretch | None = None
    paddings: tuple[Padding, ...] = ()
    readable: tuple[Entry, ...] | None = None
    """Readable metadata, for comparison with the header; None in another form."""
    pairs: tuple[KeyValue | str, ...] = ()
    """Metadata to write; only the key if the value is only in header.bin."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The GGUF files of a folder, its tensors in order, and notes on omitted parts of another tool's manifest."""

    files: tuple[GgufEntry, ...]
    tensors: tuple[TensorEntry, ...]
    notes: tuple[str, ...] = ()
    is_foreign: bool = False
    """Whether another tool wrote it."""


@dataclass(frozen=True, slots=True)
class WrittenTensor:
    """A written tensor."""

    spec: TensorSpec
    file: str
    gguf: int
    offset_bytes: int
    """Offset in its GGUF file."""
    sha256: Digest
    measures: Measures


@dataclass(frozen=True, slots=True)
class WrittenGguf:
    """A GGUF file that was written to the folder."""

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
    """Yield the text of manifest.json, line by line."""
    members = {"format": FORMAT, "version": FORMAT_VERSION, "architecture": architecture, "header_file": HEADER_FILE}
    yield "{\n"
    for key, value in members.items():
        yield f" {_json(key)}: {_json(value)},\n"
    yield ' "files": [\n'
    for number, file in enumerate(files):
        yield from _file_lines(file, last=number == len(files) - 1)
    yield ' ],\n "tensors": [\n'
    for number, tensor in enumerate(tensors):
        yield f"  {_json(_tensor_values(tensor))}{_comma(number, tensors)}"
    yield " ]\n}\n"


def _file_lines(file: WrittenGguf, *, last: bool) -> Iterator[str]:
    members = {
        "name": file.name,
        "size_bytes": file.size_bytes,
        "sha256": file.sha256,
        "alignment": file.alignment,
        "header": asdict(file.header),
        "padding": [asdict(padding) for padding in file.paddings],
    }
    yield "  {\n"
    for key, value in members.items():
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
        "measures": {key: _finite(value) for key, value in tensor.measures.items()},
    }


def _finite(value: float | None) -> float | None:
    """Return the value, or None for NaN and infinities, which JSON lacks."""
    return value if value is None or math.isfinite(value) else None


def _comma(number: int, items: Sequence[object]) -> str:
    return "\n" if number == len(items) - 1 else ",\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


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
    """Return the entry for a plain JSON value; raises ValueError if GGUF has no type for it."""
    check_key(key)
    if isinstance(value, dict) and {"type", "value"} <= value.keys() and isinstance(value["type"], str):
        return key_value(key, value["type"], value["value"])
    known = _known_type(key)
    if known is not None:
        try:
            return key_value(key, known, _convert_number(known, value))
        except ValueError:
            pass  # a known key with another use: the value decides the type
    return key_value(key, _type_of_value(value), value)


def _known_type(key: str) -> str | None:
    if key in KNOWN_TYPES:
        return KNOWN_TYPES[key]
    for beginning, kind in KNOWN_BEGINNINGS:
        if key.startswith(beginning):
            return kind
    return next((kind for ending, kind in KNOWN_ENDINGS if key.endswith(ending)), None)


def _convert_number(kind: str, value: Any) -> Any:
    """Return `value` as an integer or boolean if other tools wrote 32.0 or 1."""
    if kind == "bool" and value in (0, 1):
        return bool(value)
    if "int" in kind and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _type_of_value(value: Any) -> str:
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return _smallest_type([value], ("uint32", "int32", "uint64", "int64"))
    if isinstance(value, float):
        return _float_type([value])
    if isinstance(value, list):
        return "array of " + _element_type(value)
    raise ValueError("not a text, a number, true, false, or a list of one of these")


def _element_type(values: list[Any]) -> str:
    if all(isinstance(value, str) for value in values):
        return "string"
    if all(isinstance(value, bool) for value in values):
        return "bool"
    if any(isinstance(value, bool) for value in values):
        raise ValueError("a list of several kinds")
    if all(isinstance(value, int) for value in values):
        return _smallest_type(values, ("int32", "uint32", "int64", "uint64"))
    if all(isinstance(value, int | float) for value in values):
        return _float_type(values)
    raise ValueError("a list of several kinds, or of a kind that GGUF has no type for")


def _smallest_type(values: list[int], order: tuple[str, ...]) -> str:
    ranges = {name: (low, high) for name, low, high in _INTEGERS}
    low, high = min(values), max(values)
    for name in order:
        if ranges[name][0] <= low and high <= ranges[name][1]:
            return name
    raise ValueError("a whole number of more than 64 bits")


def _float_type(values: list[float]) -> str:
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    return "float32" if largest <= 3.4e38 else "float64"


TENSOR_MAPS = ("tensors", "tensor_map", "organs", "categories", "anatomy")
"""Fields that can have the tensor map, in this order."""
PADDINGS_MAX = TENSORS_MAX + 1
"""One after the header, and one after each tensor."""


def parse_manifest(values: Any, path: str, default_name: str) -> Manifest:
    """Return the manifest of parsed JSON; `default_name` is for a GGUF without a name.

    Raises BadDirectory for `path` with all reasons.
    """
    reasons = Reasons()
    if not isinstance(values, dict):
        reasons.add(f"{MANIFEST_FILE} is not a JSON object")
        reasons.raise_if_any(path)
    strict = values.get("format") == FORMAT
    fields = Fields(values, "", reasons, lenient=not strict)
    if strict and values.get("version") != FORMAT_VERSION:
        reasons.add(f"its version is {str(values.get('version'))[:20]!r}; this program reads version {FORMAT_VERSION}")
        reasons.raise_if_any(path)
    notes: list[str] = []
    has_files = strict and "files" in values
    files = tuple(_read_files(fields, notes)) if has_files else (_read_single_file(fields, default_name, notes),)
    tensors = tuple(_read_tensors(fields, len(files)))
    _check_unique(tensors, files, reasons)
    reasons.raise_if_any(path)
    return Manifest(files, tensors, tuple(notes), is_foreign=not strict)


def _read_files(fields: Fields, notes: list[str]) -> Iterator[GgufEntry]:
    entries = fields.objects("files", GGUF_FILES_MAX)
    if not entries:
        fields.reasons.add("files has no readable entry; at least one is required")
    if fields.values.get("header_file") not in (None, HEADER_FILE):
        fields.reasons.add(f"header_file is not {HEADER_FILE}")
    for item in entries:
        name = item.text("name", required=True) or ""
        if name and not _is_file_name(name):
            item.reasons.add(f"{item.where}name is not a plain name of a GGUF file: {name[:80]!r}")
        item.whole("alignment")
        readable, pairs = _read_metadata(item, notes)
        header = item.object("header")
        yield GgufEntry(
            name=name,
            size_bytes=item.whole("size_bytes", required=header is not None),
            sha256=item.digest("sha256"),
            header=None if header is None else _read_stretch(header),
            paddings=tuple(_read_paddings(item)),
            readable=readable,
            pairs=pairs,
        )


def _is_file_name(name: str) -> bool:
    try:
        return len(path_segments(name)) == 1 and name.lower().endswith(GGUF_SUFFIX)
    except ValueError:
        return False


def _read_stretch(fields: Fields) -> Stretch:
    offset, size = fields.whole("offset_bytes", required=True), fields.whole("size_bytes", required=True)
    return Stretch(offset or 0, size or 0)


def _read_paddings(fields: Fields) -> Iterator[Padding]:
    for item in fields.objects("padding", PADDINGS_MAX):
        kept = item.object("kept")
        offset = item.whole("offset_bytes", required=True)
        if kept is None:
            item.reasons.add(f"{item.where}kept is missing")
        else:
            yield Padding(offset or 0, _read_stretch(kept))


def _read_single_file(fields: Fields, name: str, notes: list[str]) -> GgufEntry:
    """Return the one GGUF of a manifest without `files`: metadata, with architecture and model name added."""
    _readable, pairs = _read_metadata(fields, notes)
    keys = {pair if isinstance(pair, str) else pair.key for pair in pairs}
    added = []
    for key, value in (("general.architecture", _architecture(fields)), ("general.name", _model_name(fields))):
        if value is not None and key not in keys:
            added.append(KeyValue(key, ValueType.STRING, value))
    if fields.lenient and "general.architecture" not in keys | {pair.key for pair in added}:
        notes.append("the manifest has no general.architecture, which runtimes need; add it to its metadata")
    return GgufEntry(name, pairs=(*added, *pairs))


def _architecture(fields: Fields) -> str | None:
    model = fields.values.get("model")
    value = model.get("architecture") if isinstance(model, dict) else None
    return fields.text("architecture") or (value if isinstance(value, str) and value.isprintable() else None)


def _model_name(fields: Fields) -> str | None:
    model = fields.values.get("model")
    name = model.get("name") if isinstance(model, dict) else model
    return name if isinstance(name, str) and name.isprintable() else None


def _read_metadata(
    fields: Fields, notes: list[str]
) -> tuple[tuple[dict[str, Any], ...] | None, tuple[KeyValue | str, ...]]:
    """Return the entries in readable form, if they have it, and the entries to write."""
    value = fields.values.get("metadata")
    if isinstance(value, dict):
        return None, tuple(_read_plain_pairs(fields, value, notes))
    entries = fields.objects("metadata", FIELDS_MAX)
    pairs: dict[str, KeyValue | str] = {}
    for entry in entries:
        pair = _read_pair(entry)
        key = pair if isinstance(pair, str) else pair.key
        if key in pairs:
            fields.reasons.add(f"{entry.where}key appears twice: {key[:80]!r}")
        pairs[key] = pair
    readable = tuple(dict(entry.values) for entry in entries) if isinstance(value, list) else None
    return readable, tuple(pairs.values())


def _read_plain_pairs(fields: Fields, values: dict[str, Any], notes: list[str]) -> Iterator[KeyValue]:
    for key, value in list(values.items())[:FIELDS_MAX]:
        try:
            yield plain_key_value(key, value)
        except ValueError as error:
            sentence = f"metadata {key[:80]!r}: {error}"
            if fields.lenient:
                notes.append(f"omitted: {sentence}")
            else:
                fields.reasons.add(sentence)


def _read_pair(entry: Fields) -> KeyValue | str:
    """Return an entry to write, or its key if it has no value; an empty text if it is refused."""
    key = entry.text("key", required=True, longest=KEY_MAX_BYTES)
    kind = entry.text("type", required=True)
    if key is None or kind is None:
        return ""
    try:
        check_key(key)
        return key_value(key, kind, entry.values["value"]) if "value" in entry.values else key
    except ValueError as error:
        entry.reasons.add(f"{entry.where}value of {key[:80]!r}: {error}")
        return ""


def _read_tensors(fields: Fields, file_count: int) -> Iterator[TensorEntry]:
    lines = _lines(fields)
    if len(lines) > TENSORS_MAX:
        fields.reasons.add(f"{len(lines)} tensors; at most {TENSORS_MAX} are read")
        return
    for line in lines:
        values = _foreign_values(line.values) if fields.lenient else line.values
        if not isinstance(values, dict):
            fields.reasons.add(f"{line.where} is not an object")
            continue
        entry = Fields(values, f"{line.where}.", fields.reasons, fields.lenient)
        # In a manifest of another tool the tensor's file can tell its name, or its name where its file is.
        name = entry.text("name", required=not fields.lenient or "file" not in values)
        stated = entry.text("file", required=not fields.lenient or name is None)
        file = _file_in_folder(line.folder, stated, name) if line.folder else stated
        gguf = entry.whole("gguf") or 0
        if gguf >= file_count:
            fields.reasons.add(f"{entry.where}gguf is {gguf}; there are {file_count} files")
        _check_rest(entry)
        if file is not None and not _is_path(entry, file):
            file = None
        yield TensorEntry(name or "", file or "", gguf, entry.digest("sha256"), stated or "")


def _foreign_values(values: Any) -> Any:
    """Return the fields of a tensor in a manifest of another tool: a text is its name or its file.

    The field `file` can have another of FILE_KEYS as its name.
    """
    if isinstance(values, str):
        return {"file" if values.lower().endswith(ORGAN_SUFFIX) else "name": values}
    if not isinstance(values, dict):
        return values
    key = next((key for key in ("file", *FILE_KEYS) if key in values), "file")
    return values if key not in values else {**values, "file": values[key]}


FILE_KEYS = ("path", "filename")
"""Names that other tools give to the field `file`."""
CATEGORIES: dict[str, str] = {folder: folder for folder in FOLDERS.values()} | {
    kind.value: folder for kind, folder in FOLDERS.items()
}
"""The folder of each category by which other tools group tensors."""


@dataclass(frozen=True, slots=True)
class _Line:
    """The values of one tensor, and where they are in the manifest."""

    where: str
    values: Any
    folder: str = ""
    """The folder of its category; empty in a manifest that is not grouped."""


def _lines(fields: Fields) -> list[_Line]:
    """Return the tensors of the manifest. Adds a reason if it has none that can be read."""
    values = fields.values
    listing = next((values[key] for key in TENSOR_MAPS if _can_list(values.get(key))), None)
    is_grouped = isinstance(listing, dict) and _is_grouped(listing)
    if not is_grouped and not any(key in values for key in TENSOR_MAPS[:2]):
        groups = {key: value for key, value in values.items() if key in CATEGORIES and _is_group(value)}
        if groups.keys() - {"organs"}:
            listing, is_grouped = groups, True
    if listing is None:
        fields.reasons.add(
            f"{MANIFEST_FILE} has no tensor map: tensors, tensor_map or organs, or lists by category such as skeleton"
        )
        return []
    if is_grouped:
        return [line for category, group in listing.items() for line in _group_lines(fields, category, group)]
    return [_Line(f"tensors[{number}]", item) for number, item in enumerate(_items(listing))]


def _can_list(value: Any) -> bool:
    """Return whether a field of the manifest can be a tensor map; it could be a summary such as {"count": 12}."""
    if isinstance(value, dict):
        return all(isinstance(item, str | list | dict) for item in value.values())
    return isinstance(value, list)


def _is_group(value: Any) -> bool:
    """Return whether a field of the manifest lists tensors of a category; it could be a summary instead."""
    return isinstance(value, list) or (isinstance(value, dict) and isinstance(value.get("tensors"), list | dict))


def _is_grouped(listing: dict[str, Any]) -> bool:
    """Return whether `listing` is from category to tensors, not from tensor to file."""
    return bool(listing) and all(
        key in CATEGORIES and isinstance(value, list | dict) and "file" not in value for key, value in listing.items()
    )


def _group_lines(fields: Fields, category: str, group: list[Any] | dict[str, Any]) -> Iterator[_Line]:
    """Yield the tensors of a category: a list, an object with the list `tensors`, or an object from name to file."""
    listing = group.get("tensors", group) if isinstance(group, dict) else group
    if isinstance(listing, dict) and not all(isinstance(item, str | dict) for item in listing.values()):
        listing = None  # such as {"count": 12}
    if not isinstance(listing, list | dict):
        fields.reasons.add(f"{category} lists no tensors: the name or the file of each is needed")
        return
    for number, item in enumerate(_items(listing)):
        yield _Line(f"{category}[{number}]", item, CATEGORIES[category])


def _file_in_folder(folder: str, file: str | None, name: str | None) -> str | None:
    """Return the path of a file that is in `folder` if its path names none; without a path, by the tensor's name."""
    if file:
        return file if "/" in file else f"{folder}/{file}"
    return f"{folder}/{organ_files([name])[0].rpartition('/')[2]}" if name and name.isascii() else None


def _items(listing: list[Any] | dict[str, Any]) -> Iterator[Any]:
    if isinstance(listing, list):
        yield from listing
        return
    for name, item in listing.items():
        yield {"name": name, **item} if isinstance(item, dict) else {"name": name, "file": item}


def _is_path(entry: Fields, file: str) -> bool:
    """Return whether `file` is a path in the folder. If not, the file is found by its tensor's name, or refused."""
    try:
        path_segments(file)
    except ValueError as error:
        if not entry.lenient:
            entry.reasons.add(f"{entry.where}file is {error}: {file[:80]!r}")
        return False
    return True


def _check_rest(entry: Fields) -> None:
    """Check the types of informative fields in manifests of this program."""
    if entry.lenient:
        return
    for key in ("type", "tower", "slot"):
        entry.text(key)
    for key in ("block", "size_bytes", "offset_bytes"):
        entry.whole(key)
    entry.numbers("shape")
    entry.check_measures("measures")
    dtype = entry.text("dtype")
    try:
        if dtype is not None:
            dtype_by_name(dtype)
    except UnsupportedDType as error:
        entry.reasons.add(f"{entry.where}dtype: {error}")


def _check_unique(tensors: tuple[TensorEntry, ...], files: tuple[GgufEntry, ...], reasons: Reasons) -> None:
    for name, values in (
        ("tensor", [tensor.name for tensor in tensors]),
        ("file", [tensor.file for tensor in tensors]),
        ("GGUF", [file.name for file in files]),
    ):
        for value, times in Counter(values).items():
            if times > 1 and value:
                reasons.add(f"the {name} {value[:80]!r} appears {times} times in the manifest")
