"""The header entries of a chimera that differ from those of its base, and the name of its file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from organs.registry.compose.licenses import license_expression
from organs.registry.compose.lock import LOCK_KEY
from organs.registry.compose.parents import Parent
from organs.registry.compose.recipe import MetadataValue
from organs.registry.gguf import Header, KeyValue, TensorSpec, ValueType
from organs.registry.gguf.quants import FLOAT32_MAX
from organs.registry.gguf.split import SPLIT_KEYS
from organs.registry.gguf.types import FILE_TYPE_KEY, FILE_TYPES, UNQUANTISED, file_type_of, main_dtype

PART_MAX_LENGTH = 40
CHIMERA = "Chimera"

_UNWANTED = re.compile(r"[^A-Za-z0-9]+", re.ASCII)
_VERSION = re.compile(r"v?(\d{1,4})(?:\.(\d{1,4}))?(?:\.\d{1,4})*", re.ASCII)


def file_stem(base: Parent, sets: Sequence[KeyValue], name: str | None) -> str:
    """Return the file's name without `.gguf`; `name` is the recipe's name of the chimera, if it has one."""
    header = base.header
    basename = _clean(header.text("general.basename") or header.text("general.name") or "Model")
    size = _clean(header.text("general.size_label") or "")
    variety = _clean(name.rpartition("/")[2]) if name else CHIMERA
    version = _VERSION.fullmatch((header.text("general.version") or "").strip())
    numbered = f"v{version[1]}.{version[2] or 0}" if version else "v1.0"
    file_type = next((entry.value for entry in sets if entry.key == FILE_TYPE_KEY), None)
    encoding = FILE_TYPES.get(file_type if isinstance(file_type, int) else header.integer(FILE_TYPE_KEY), "mixed")
    return "-".join(part for part in (basename, size, variety, numbered, encoding) if part)


def _clean(text: str) -> str:
    return _UNWANTED.sub("-", text).strip("-")[:PART_MAX_LENGTH].strip("-")


NAME_KEY = "general.name"
LICENSE_KEY = "general.license"
NAMED_PARENTS_MAX = 3
QUANTIZATION_VERSION = 2
"""Version of the layout of quantised blocks; ggml has used only this version since 2023."""

_PARENT_KEYS = ("name", "author", "version", "organization", "url", "doi", "uuid", "repo_url")
_DROPPED = (
    "general.description",
    "general.uuid",
    "general.doi",
    "general.url",
    "general.repo_url",
    "general.quantized_by",
    "general.tags",
    LOCK_KEY,
)
_DROPPED_GROUPS = ("general.source.", "general.base_model.", "quantize.imatrix.")
_WHOLE_TYPES = {
    ValueType.UINT8: range(2**8),
    ValueType.INT8: range(-(2**7), 2**7),
    ValueType.UINT16: range(2**16),
    ValueType.INT16: range(-(2**15), 2**15),
    ValueType.UINT32: range(2**32),
    ValueType.INT32: range(-(2**31), 2**31),
    ValueType.UINT64: range(2**64),
    ValueType.INT64: range(-(2**63), 2**63),
}
_USUAL_WHOLE_TYPES = (ValueType.UINT32, ValueType.INT32, ValueType.INT64, ValueType.UINT64)
_FLOAT_TYPES = (ValueType.FLOAT32, ValueType.FLOAT64)


def dropped_keys(base: Header, sets: Iterable[KeyValue]) -> tuple[str, ...]:
    """Return the sorted keys of `base` that a chimera leaves out; keys that it sets are not included."""
    replaced, only_of_base = {entry.key for entry in sets}, (*_DROPPED, *SPLIT_KEYS)
    keys = (field.key for field in base.fields if field.key not in replaced)
    return tuple(sorted(key for key in keys if key in only_of_base or key.startswith(_DROPPED_GROUPS)))


def set_entries(
    base: Parent,
    parents: Sequence[Parent],
    tensors: Sequence[TensorSpec],
    changes: Mapping[str, MetadataValue],
    hyperparameters: Mapping[str, MetadataValue] | None = None,
) -> tuple[KeyValue, ...]:
    """Return the entries of a chimera's header: its name, its `parents` (the base first), its types, then `changes`.

    `hyperparameters` are those of the base that the organs of the result change. Only a parent's own metadata describes
    it. If two entries have the same key, the last one is used.
    """
    entries = [
        KeyValue(NAME_KEY, ValueType.STRING, default_name(parents)),
        KeyValue("general.base_model.count", ValueType.UINT32, len(parents)),
    ]
    for number, parent in enumerate(parents):
        for part in _PARENT_KEYS:
            value = parent.header.text(f"general.{part}")
            if value:
                entries.append(KeyValue(f"general.base_model.{number}.{part}", ValueType.STRING, value))
    main, before = (
        main_dtype((tensor.dtype.name, tensor.size_bytes) for tensor in specs)
        for specs in (tensors, [part.spec for part in base.parts])
    )
    number_of_type = file_type_of(main)
    if number_of_type is not None and (main != before or base.header.integer(FILE_TYPE_KEY) is None):
        entries.append(KeyValue(FILE_TYPE_KEY, ValueType.UINT32, number_of_type))
    quantised = any(tensor.dtype.name not in UNQUANTISED for tensor in tensors)
    if quantised and base.header.integer("general.quantization_version") is None:
        entries.append(KeyValue("general.quantization_version", ValueType.UINT32, QUANTIZATION_VERSION))
    # Without all licenses, a chimera of this chimera would inherit only the license of the base.
    licenses = license_expression({parent.label: parent.license for parent in parents}) or parents[0].stated_license
    if licenses is not None:
        entries.append(KeyValue(LICENSE_KEY, ValueType.STRING, licenses))
    entries += [_changed_entry(base.header, *item) for item in (*changes.items(), *(hyperparameters or {}).items())]
    return tuple({entry.key: entry for entry in entries}.values())


def default_name(parents: Sequence[Parent]) -> str:
    """Return the names in the headers of the parents, joined: `A × Code`."""
    names = list(dict.fromkeys(parent.header.text(NAME_KEY) or "unnamed" for parent in parents))
    more = len(names) - NAMED_PARENTS_MAX
    parts = names[:NAMED_PARENTS_MAX] + ([f"{more} more"] if more > 0 else [])
    return " × ".join(parts) if len(parts) > 1 else f"{parts[0]}, recomposed"


def _changed_entry(base: Header, key: str, value: MetadataValue) -> KeyValue:
    if isinstance(value, tuple):
        return KeyValue(key, ValueType.ARRAY, list(value), element_type=ValueType.STRING)
    if isinstance(value, bool):
        return KeyValue(key, ValueType.BOOL, value)
    if isinstance(value, str):
        return KeyValue(key, ValueType.STRING, value)
    field = base.field(key)
    own = None if field is None else field.type
    if isinstance(value, float) or own in _FLOAT_TYPES:
        # 64 bits if the base has them under this key, or if the value exceeds 32 bits.
        is_large = own is ValueType.FLOAT64 or abs(float(value)) > FLOAT32_MAX
        return KeyValue(key, ValueType.FLOAT64 if is_large else ValueType.FLOAT32, float(value))
    # The base's type if the number fits, else the first usual type: one fits, as numbers in recipes have 64 bits.
    kinds = _USUAL_WHOLE_TYPES if own is None else (own, *_USUAL_WHOLE_TYPES)
    return KeyValue(key, next(kind for kind in kinds if value in _WHOLE_TYPES.get(kind, ())), value)
