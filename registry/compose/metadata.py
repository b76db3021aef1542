"""The header entries of a chimera that differ from those of its base, and the name of its file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from organs.registry.amounts import names_text
from organs.registry.compose.licenses import license_expression
from organs.registry.compose.lock import LOCK_KEY, can_be_set
from organs.registry.compose.parents import Parent
from organs.registry.compose.recipe import ARCHITECTURE_KEY, TEMPLATE_KEY, MetadataValue
from organs.registry.entities.finding import Finding, Severity
from organs.registry.gguf import Header, KeyValue, TensorSpec, ValueType, read_array
from organs.registry.gguf.header import ARRAY_BLOB_MIN_BYTES, Field
from organs.registry.gguf.quants import FLOAT32_MAX
from organs.registry.gguf.split import SPLIT_KEYS
from organs.registry.gguf.types import FILE_TYPE_KEY, FILE_TYPES, UNQUANTISED, file_type_of, main_dtype
from organs.registry.names import split_quantisation

PART_MAX_LENGTH = 40
CHIMERA = "Chimera"

_UNWANTED = re.compile(r"[^A-Za-z0-9]+", re.ASCII)
_ENCODING = re.compile(rf"[-._](?:{'|'.join(sorted(FILE_TYPES.values(), key=len, reverse=True))})\Z", re.IGNORECASE)
"""The ending of a name that tells the types."""
_VERSION = re.compile(r"v?(\d{1,4})(?:\.(\d{1,4}))?(?:\.\d{1,4})*", re.ASCII)


def file_stem(base: Parent, sets: Sequence[KeyValue], name: str | None, *, is_quantisation: bool = False) -> str:
    """Return the file's name without `.gguf`; `name` is the recipe's name of the chimera, if it has one.

    The file of a quantisation is called as its base, all of whose organs it has, with its type or size at the end.
    """
    header = base.header
    basename = _clean(header.text("general.basename") or header.text("general.name") or "Model")
    size = _clean(header.text("general.size_label") or "")
    variety = _clean(name.rpartition("/")[2]) if name else CHIMERA
    version = _VERSION.fullmatch((header.text("general.version") or "").strip())
    numbered = f"v{version[1]}.{version[2] or 0}" if version else "v1.0"
    file_type = next((entry.value for entry in sets if entry.key == FILE_TYPE_KEY), None)
    encoding = FILE_TYPES.get(file_type if isinstance(file_type, int) else header.integer(FILE_TYPE_KEY), "mixed")
    if is_quantisation:
        called = (name or base.label).rpartition("/")[2].partition("@")[0].removesuffix(".gguf")
        quantisation = split_quantisation(called)[1]
        if name and quantisation and quantisation not in FILE_TYPES.values():
            return called  # it is called after its size: 4.5bpw, Q4_K_M-best
        bare = _ENCODING.sub("", called)
        return f"{bare or called}-{encoding}"
    return "-".join(part for part in (basename, size, variety, numbered, encoding) if part)


def _clean(text: str) -> str:
    return _UNWANTED.sub("-", text).strip("-")[:PART_MAX_LENGTH].strip("-")


NAME_KEY = "general.name"
LICENSE_KEY = "general.license"
NAMED_PARENTS_MAX = 3
QUANTIZATION_VERSION = 2
"""Version of the layout of quantised blocks; ggml has used only this version since 2023."""

TEMPLATES_KEY = "tokenizer.chat_templates"
"""The names of the chat templates besides the default one."""
TEMPLATES_MAX = 1000
RESERVED = ("general", "tokenizer", "split", "adapter", "quantize", "organ_registry")
"""The beginnings of keys that every file has, which no architecture can be called."""

_ARCHITECTURE = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
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
IMATRIX_GROUP = "quantize.imatrix."
_DROPPED_GROUPS = ("general.source.", "general.base_model.", IMATRIX_GROUP)
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


def dropped_keys(
    base: Header, sets: Iterable[KeyValue], *, is_edit: bool = False, is_quantisation: bool = False
) -> tuple[str, ...]:
    """Return the sorted keys of `base` that a chimera leaves out; keys that it sets are not included.

    An edit, which keeps all organs, leaves out only the keys of split files, and those of another architecture. A
    quantisation, which changes only their types, also leaves out those of an importance matrix.
    """
    replaced = {entry.key: entry.value for entry in sets}
    dropped = {LOCK_KEY, *SPLIT_KEYS} | (set() if is_edit or is_quantisation else set(_DROPPED))
    described = () if is_edit else _DROPPED_GROUPS if not is_quantisation else ("general.base_model.", IMATRIX_GROUP)
    groups = (*_renamed_group(base, replaced.get(ARCHITECTURE_KEY)), *described)
    keys = (field.key for field in base.fields if field.key not in replaced)
    return tuple(sorted(key for key in keys if key in dropped or (groups and key.startswith(groups))))


def _renamed_group(base: Header, architecture: object) -> Iterator[str]:
    """Yield the beginning of the keys of the base's hyperparameters if these get another one."""
    if architecture is not None and base.architecture not in (None, architecture):
        yield f"{base.architecture}."


def set_entries(
    base: Parent,
    parents: Sequence[Parent],
    tensors: Sequence[TensorSpec],
    changes: Mapping[str, MetadataValue],
    hyperparameters: Iterable[KeyValue] = (),
    *,
    is_edit: bool = False,
    is_quantisation: bool = False,
) -> tuple[KeyValue, ...]:
    """Return the entries of a chimera's header: its name, its `parents` (the base first), its types, then `changes`.

    Only a parent's own metadata describes it. If two entries have the same key, the last one is used. `hyperparameters`
    follow from its organs. An edit has only its changes, and a quantisation keeps the name of its base.
    """
    entries = [] if is_edit else list(_descriptions(base, parents, tensors))
    if is_quantisation:
        entries = [entry for entry in entries if entry.key != NAME_KEY]
    entries += hyperparameters
    architecture = changes.get(ARCHITECTURE_KEY)
    if isinstance(architecture, str):
        own = f"{base.header.architecture}."
        entries = [
            replace(entry, key=f"{architecture}.{entry.key.removeprefix(own)}") if entry.key.startswith(own) else entry
            for entry in entries
        ]
        known = {entry.key for entry in entries}
        entries += (entry for _, entry in _renamed(base, architecture) if entry is not None and entry.key not in known)
    entries += [changed_entry(base.header, key, value) for key, value in changes.items()]
    entries += _template_names(base, changes)
    return tuple({entry.key: entry for entry in entries}.values())


def metadata_findings(base: Parent, changes: Mapping[str, MetadataValue]) -> Iterator[Finding]:
    """Yield the findings on the metadata that a recipe sets."""
    labels, architecture = (base.label,), base.header.architecture
    renamed = changes.get(ARCHITECTURE_KEY)
    groups = tuple(f"{name}." for name in (architecture, renamed) if isinstance(name, str) and name not in RESERVED)
    for key, value in changes.items():
        field = f"metadata.{key}"
        if groups and key.startswith(groups):
            sentence = f"{key} is a hyperparameter of {base.label} and cannot be changed."
            yield Finding(Severity.REFUSE, "bad-metadata", sentence, field, labels)
        elif key == ARCHITECTURE_KEY and not (
            isinstance(value, str) and _ARCHITECTURE.fullmatch(value) and value not in RESERVED
        ):
            sentence = f"An architecture is a word of letters, digits, - and _, and not {', '.join(RESERVED)}."
            yield Finding(Severity.REFUSE, "bad-metadata", sentence, field, labels)
        elif key == ARCHITECTURE_KEY and value != architecture:
            kept = [field.key for field, entry in _renamed(base, str(value)) if entry is None]
            if kept:
                sentence = f"{names_text(kept)} cannot be renamed: too large, not UTF-8, or not a finite number."
                yield Finding(Severity.REFUSE, "bad-metadata", sentence, field, labels)
            sentence = (
                f"{architecture or 'No architecture'} becomes {value}, and the keys of its hyperparameters follow. "
                "Runtimes will read the tensors as those of such a model: it works only if they are."
            )
            yield Finding(Severity.WARN, "architecture-renamed", sentence, field, labels)
        elif key.startswith(TEMPLATE_KEY):
            from organs.registry.chat_trial import syntax_fault  # jinja2 is slow to import, and rarely needed

            fault = syntax_fault(value) if isinstance(value, str) else "it is no text"
            if fault is not None:
                sentence = f"The chat template cannot be parsed: {fault}."
                yield Finding(Severity.WARN, "template-unread", sentence, field, labels)


def _descriptions(base: Parent, parents: Sequence[Parent], tensors: Sequence[TensorSpec]) -> Iterator[KeyValue]:
    """Yield the entries that describe a chimera: its name, its parents, its types and its license."""
    yield KeyValue(NAME_KEY, ValueType.STRING, default_name(parents))
    yield KeyValue("general.base_model.count", ValueType.UINT32, len(parents))
    for number, parent in enumerate(parents):
        for part in _PARENT_KEYS:
            value = parent.header.text(f"general.{part}")
            if value:
                yield KeyValue(f"general.base_model.{number}.{part}", ValueType.STRING, value)
    main, before = (
        main_dtype((tensor.dtype.name, tensor.size_bytes) for tensor in specs)
        for specs in (tensors, [part.spec for part in base.parts])
    )
    number_of_type = file_type_of(main)
    if number_of_type is not None and (main != before or base.header.integer(FILE_TYPE_KEY) is None):
        yield KeyValue(FILE_TYPE_KEY, ValueType.UINT32, number_of_type)
    quantised = any(tensor.dtype.name not in UNQUANTISED for tensor in tensors)
    if quantised and base.header.integer("general.quantization_version") is None:
        yield KeyValue("general.quantization_version", ValueType.UINT32, QUANTIZATION_VERSION)
    # Without all licenses, a chimera of this chimera would inherit only the license of the base.
    licenses = license_expression({parent.label: parent.license for parent in parents}) or parents[0].stated_license
    if licenses is not None:
        yield KeyValue(LICENSE_KEY, ValueType.STRING, licenses)


def _renamed(base: Parent, architecture: str) -> Iterator[tuple[Field, KeyValue | None]]:
    """Yield each hyperparameter of the base, with its entry under the key of another architecture; None if it can
    have none there."""
    own = base.header.architecture
    for field in base.header.fields if own is not None and own != architecture else ():
        if not field.key.startswith(f"{own}."):
            continue
        key = architecture + field.key.removeprefix(own or "")
        entry = None
        if not field.is_array:
            entry = None if field.value is None else KeyValue(key, field.type, field.value)
        elif field.size_bytes <= ARRAY_BLOB_MIN_BYTES:
            items = read_array(base.source, field)
            numbers = list(map(_text, items)) if isinstance(items, list) else items.tolist()
            values = [bool(item) for item in numbers] if field.element_type is ValueType.BOOL else numbers
            entry = KeyValue(key, ValueType.ARRAY, values, element_type=field.element_type)
        yield field, entry if entry is not None and can_be_set(entry) else None


def _template_names(base: Parent, changes: Mapping[str, MetadataValue]) -> Iterator[KeyValue]:
    """Yield the list of the named chat templates, if a new one is set."""
    prefix = f"{TEMPLATE_KEY}."
    new = [key.removeprefix(prefix) for key in changes if key.startswith(prefix)]
    field = base.header.field(TEMPLATES_KEY)
    is_list = field is not None and field.element_type is ValueType.STRING and field.count <= TEMPLATES_MAX
    stored = read_array(base.source, field) if field is not None and is_list else []
    names = [name for item in stored if isinstance(item, bytes) and isinstance(name := _text(item), str)]
    if any(name not in names for name in new):
        merged = list(dict.fromkeys((*names, *new)))
        yield KeyValue(TEMPLATES_KEY, ValueType.ARRAY, merged, element_type=ValueType.STRING)


def _text(data: bytes) -> str | bytes:
    """Return UTF-8 as text, and other bytes as they are, which no lock can have."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def default_name(parents: Sequence[Parent]) -> str:
    """Return the names in the headers of the parents, joined: `A × Code`."""
    names = list(dict.fromkeys(parent.header.text(NAME_KEY) or "unnamed" for parent in parents))
    more = len(names) - NAMED_PARENTS_MAX
    parts = names[:NAMED_PARENTS_MAX] + ([f"{more} more"] if more > 0 else [])
    return " × ".join(parts) if len(parts) > 1 else f"{parts[0]}, recomposed"


def changed_entry(base: Header, key: str, value: MetadataValue) -> KeyValue:
    """Return the entry with a value of a recipe, of the type that `base` has under this key if the value fits it."""
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
