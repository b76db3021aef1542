"""manifest.json to a `Manifest`: exact with our own format, tolerant with that of other tools.

What is known of the other tools' manifests is a JSON object with metadata and a tensor map, which is a list of objects
with `name` and `file`, or an object from name to such objects or to the file alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from organs.ingest.directory.conventions import plain_key_value
from organs.ingest.directory.fields import Fields, Reasons
from organs.ingest.directory.layout import (
    FORMAT,
    FORMAT_VERSION,
    GGUF_SUFFIX,
    HEADER_FILE,
    MANIFEST_FILE,
    path_segments,
)
from organs.ingest.directory.manifest import (
    GGUF_FILES_MAX,
    TENSORS_MAX,
    GgufEntry,
    Manifest,
    Padding,
    Stretch,
    TensorEntry,
)
from organs.ingest.directory.metadata import check_key, key_value
from organs.registry.errors import UnsupportedDType
from organs.registry.gguf import KeyValue, ValueType, dtype_by_name
from organs.registry.gguf.read import FIELDS_MAX
from organs.registry.gguf.types import KEY_MAX_BYTES

TENSOR_MAPS = ("tensors", "tensor_map", "organs")
"""Where a tensor map is looked for, in this order."""
PADDINGS_MAX = TENSORS_MAX + 1
"""One behind the header, and one behind each tensor."""


def parse_manifest(values: Any, path: str, default_name: str) -> Manifest:
    """What the parsed JSON of a manifest says; `default_name` is for a GGUF that has none in it.

    Raises BadDirectory for `path` with everything that is wrong.
    """
    reasons = Reasons()
    if not isinstance(values, dict):
        reasons.add(f"{MANIFEST_FILE} is no JSON object")
        reasons.raise_if_any(path)
    own = values.get("format") == FORMAT
    fields = Fields(values, "", reasons, lenient=not own)
    if own and values.get("version") != FORMAT_VERSION:
        reasons.add(f"its version is {str(values.get('version'))[:20]!r}; this program reads version {FORMAT_VERSION}")
        reasons.raise_if_any(path)
    notes: list[str] = []
    files = tuple(_files(fields, notes)) if own and "files" in values else (_single_file(fields, default_name, notes),)
    tensors = tuple(_tensors(fields, len(files)))
    _check_unique(tensors, files, reasons)
    reasons.raise_if_any(path)
    return Manifest(files, tensors, tuple(notes))


def _files(fields: Fields, notes: list[str]) -> Iterator[GgufEntry]:
    found = fields.objects("files", GGUF_FILES_MAX)
    if not found:
        fields.reasons.add("files has 0 entries that can be read; one is needed")
    if fields.values.get("header_file") not in (None, HEADER_FILE):
        fields.reasons.add(f"header_file is not {HEADER_FILE}")
    for one in found:
        name = one.text("name", required=True) or ""
        if name and not _is_file_name(name):
            one.reasons.add(f"{one.where}name is no plain name of a GGUF file: {name[:80]!r}")
        one.whole("alignment")
        readable, pairs = _metadata(one, notes)
        header = one.object("header")
        yield GgufEntry(
            name=name,
            size_bytes=one.whole("size_bytes", required=header is not None),
            sha256=one.digest("sha256"),
            header=None if header is None else _stretch(header),
            paddings=tuple(_paddings(one)),
            readable=readable,
            pairs=pairs,
        )


def _is_file_name(name: str) -> bool:
    try:
        return len(path_segments(name)) == 1 and name.lower().endswith(GGUF_SUFFIX)
    except ValueError:
        return False


def _stretch(fields: Fields) -> Stretch:
    offset, size = fields.whole("offset_bytes", required=True), fields.whole("size_bytes", required=True)
    return Stretch(offset or 0, size or 0)


def _paddings(fields: Fields) -> Iterator[Padding]:
    for one in fields.objects("padding", PADDINGS_MAX):
        kept = one.object("kept")
        offset = one.whole("offset_bytes", required=True)
        if kept is None:
            one.reasons.add(f"{one.where}kept is missing")
        else:
            yield Padding(offset or 0, _stretch(kept))


def _single_file(fields: Fields, name: str, notes: list[str]) -> GgufEntry:
    """The one GGUF of a manifest without `files`: metadata, and where it lacks them architecture and model name."""
    _readable, pairs = _metadata(fields, notes)
    said = {pair if isinstance(pair, str) else pair.key for pair in pairs}
    more = []
    for key, value in (("general.architecture", _architecture(fields)), ("general.name", _model_name(fields))):
        if value is not None and key not in said:
            more.append(KeyValue(key, ValueType.STRING, value))
    return GgufEntry(name, pairs=(*more, *pairs))


def _architecture(fields: Fields) -> str | None:
    model = fields.values.get("model")
    inside = model.get("architecture") if isinstance(model, dict) else None
    return fields.text("architecture") or (inside if isinstance(inside, str) and inside.isprintable() else None)


def _model_name(fields: Fields) -> str | None:
    model = fields.values.get("model")
    found = model.get("name") if isinstance(model, dict) else model
    return found if isinstance(found, str) and found.isprintable() else None


def _metadata(fields: Fields, notes: list[str]) -> tuple[tuple[dict[str, Any], ...] | None, tuple[KeyValue | str, ...]]:
    """The entries, as they are readable if that is their form, and as they are to be written."""
    value = fields.values.get("metadata")
    if isinstance(value, dict):
        return None, tuple(_plain_pairs(fields, value, notes))
    entries = fields.objects("metadata", FIELDS_MAX)
    pairs: dict[str, KeyValue | str] = {}
    for entry in entries:
        pair = _pair(entry)
        key = pair if isinstance(pair, str) else pair.key
        if key in pairs:
            fields.reasons.add(f"{entry.where}key stands twice: {key[:80]!r}")
        pairs[key] = pair
    readable = tuple(dict(entry.values) for entry in entries) if isinstance(value, list) else None
    return readable, tuple(pairs.values())


def _plain_pairs(fields: Fields, values: dict[str, Any], notes: list[str]) -> Iterator[KeyValue]:
    for key, value in list(values.items())[:FIELDS_MAX]:
        try:
            yield plain_key_value(key, value)
        except ValueError as error:
            sentence = f"metadata {key[:80]!r}: {error}"
            if fields.lenient:
                notes.append(f"left out: {sentence}")
            else:
                fields.reasons.add(sentence)


def _pair(entry: Fields) -> KeyValue | str:
    """An entry to be written, or its key alone where the value is left out; the empty text when it was refused."""
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


def _tensors(fields: Fields, file_count: int) -> Iterator[TensorEntry]:
    found = next((fields.values[key] for key in TENSOR_MAPS if isinstance(fields.values.get(key), list | dict)), None)
    if found is None:
        fields.reasons.add(f"{MANIFEST_FILE} has no tensor map")
        return
    if len(found) > TENSORS_MAX:
        fields.reasons.add(f"{len(found)} tensors; at most {TENSORS_MAX} are read")
        return
    for number, one in enumerate(_items(found)):
        entry = Fields(one, f"tensors[{number}].", fields.reasons, fields.lenient) if isinstance(one, dict) else None
        if entry is None:
            fields.reasons.add(f"tensors[{number}] is no object")
            continue
        name, file = entry.text("name", required=True), entry.text("file", required=True)
        gguf = entry.whole("gguf") or 0
        if gguf >= file_count:
            fields.reasons.add(f"{entry.where}gguf is {gguf}; there are {file_count} files")
        _check_rest(entry)
        if file is not None:
            _check_path(entry, file)
        yield TensorEntry(name or "", file or "", gguf, entry.digest("sha256"))


def _items(found: list[Any] | dict[str, Any]) -> Iterator[Any]:
    if isinstance(found, list):
        yield from found
        return
    for name, one in found.items():
        yield {"name": name, **one} if isinstance(one, dict) else {"name": name, "file": one}


def _check_path(entry: Fields, file: str) -> None:
    try:
        path_segments(file)
    except ValueError as error:
        entry.reasons.add(f"{entry.where}file is {error}: {file[:80]!r}")


def _check_rest(entry: Fields) -> None:
    """Fields that are for reading only are held to their kind all the same, where they are ours."""
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
    for what, values in (
        ("tensor", [tensor.name for tensor in tensors]),
        ("file", [tensor.file for tensor in tensors]),
        ("GGUF", [file.name for file in files]),
    ):
        for value, times in Counter(values).items():
            if times > 1 and value:
                reasons.add(f"the {what} {value[:80]!r} stands {times} times in the manifest")
