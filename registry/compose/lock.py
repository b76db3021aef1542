"""The lock: the definition of a chimera as a small canonical document. Its SHA-256 is the chimera's identity."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from organs.registry.digest import Digest, digest_of, parse_digest
from organs.registry.documents import Limits, parse_json
from organs.registry.entities.base import prepared
from organs.registry.errors import BadDigest, BadGguf, BadLock, NotAssemblable, UnsupportedDType
from organs.registry.gguf import (
    ByteSource,
    Header,
    HeaderSource,
    KeyValue,
    TensorSpec,
    ValueType,
    carry_over,
    dtype_by_name,
    encode_header,
    padded,
    read_header,
)
from organs.registry.gguf.tokenizer import tokenizer_reasons
from organs.registry.gguf.types import ALIGNMENT_KEY, DIMENSIONS_MAX, KEY_MAX_BYTES, NAME_MAX_BYTES, SIZE_MAX
from organs.registry.gguf.write import Metadata

LOCK_KEY = "organ_registry.lock"
"""The key of the lock in the header of the file that it describes."""
FORMAT: Literal["organ-registry lock 1"] = "organ-registry lock 1"
LOCK_MAX_BYTES = 16 * 1024 * 1024
"""The largest lock; enough for a hundred thousand tensors."""
ENCODER_MAX_LENGTH = 100
LIMITS = Limits(LOCK_MAX_BYTES, depth=8, values=1_300_000)
_TYPES = {kind.name.lower(): kind for kind in ValueType if kind is not ValueType.ARRAY}
_LISTS = {"texts": ValueType.STRING} | {
    f"[{name}]": kind for name, kind in _TYPES.items() if kind is not ValueType.STRING
}
"""The types of arrays: `texts`, and for numbers their type in brackets."""
_LIST_NAMES = {kind: name for name, kind in _LISTS.items()}
_VALUES = {
    ValueType.STRING: str,
    ValueType.BOOL: bool,
    ValueType.FLOAT32: float,
    ValueType.FLOAT64: float,
}
"""The Python type of each value type in JSON; all others are integers."""
_Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX_BYTES, pattern=r"^[ -~]*$(?!\n)")]
_Encoder = Annotated[str, Meta(min_length=1, max_length=ENCODER_MAX_LENGTH, pattern=r"^[ -~]*$(?!\n)")]
_Key = Annotated[str, Meta(min_length=1, max_length=KEY_MAX_BYTES, pattern=r"^[ -~]*$(?!\n)")]
_Shape = Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=1, max_length=DIMENSIONS_MAX)]


class _LockDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The members of a lock's JSON."""

    drop: tuple[_Key, ...]
    format: Literal["organ-registry lock 1"]
    header: str
    set: tuple[tuple[_Key, str, Any], ...]
    """The key, type and value of each entry."""
    tensors: tuple[tuple[_Name, str, _Shape, str], ...]
    """The name, dtype, shape and digest of each tensor."""
    encoders: tuple[_Encoder, ...] = ()
    seeds: tuple[Annotated[int, Meta(ge=0, le=2**32 - 1)], ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LockedTensor:
    """A tensor of the result, in file order."""

    spec: TensorSpec
    digest: Digest


@dataclass(frozen=True, slots=True)
class Lock:
    """Everything that determines the bytes of a chimera."""

    header: Digest
    """SHA-256 of the base's header, from the magic to the last tensor info."""
    tensors: tuple[LockedTensor, ...]
    sets: tuple[KeyValue, ...]
    """Metadata that replaces the base's entries with the same keys; new keys are added at the end."""
    drops: tuple[str, ...]
    """Keys of the base that are left out, sorted."""
    encoders: tuple[str, ...] = ()
    """The packages that wrote computed tensors, with their versions, sorted; those that every installation has do not
    count."""
    seeds: tuple[int, ...] = ()
    """The seeds of the random masks of blends, sorted."""
    sources: tuple[Digest, ...] = ()
    """SHA-256 of the headers of the models whose weights were used in place of quantised ones, and of the importance
    matrix by which organs were encoded, sorted."""

    def canonical(self) -> str:
        """Return the document: JSON without spaces, keys sorted, ASCII only."""
        document: dict[str, Any] = {
            "drop": list(self.drops),
            "format": FORMAT,
            "header": self.header,
            "set": [
                [
                    entry.key,
                    entry.type.name.lower() if entry.element_type is None else _LIST_NAMES[entry.element_type],
                    entry.value,
                ]
                for entry in self.sets
            ],
            "tensors": [
                [tensor.spec.name, tensor.spec.dtype.name, list(tensor.spec.shape), tensor.digest]
                for tensor in self.tensors
            ],
        }
        document |= {"encoders": self.encoders} if self.encoders else {}
        document |= {"seeds": self.seeds} if self.seeds else {}
        document |= {"sources": self.sources} if self.sources else {}
        return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)

    @property
    def id(self) -> Digest:
        """SHA-256 of the canonical document."""
        return digest_of(self.canonical().encode("ascii"))


def parse_lock(text: str) -> Lock:
    """Return the lock in `text`; raises BadLock if `text` is not the canonical form of a lock."""
    try:
        document = msgspec.convert(parse_json(text.encode("ascii"), LIMITS), prepared(_LockDocument))
        sets = tuple(_entry(key, kind, value) for key, kind, value in document.set)
        changed = [*document.drop, *(entry.key for entry in sets)]
        if len(set(changed)) != len(changed) or list(document.drop) != sorted(document.drop):
            raise ValueError("each key is set or dropped once, and the dropped keys are sorted")
        if any(entry.key == LOCK_KEY for entry in sets):
            raise ValueError(f"{LOCK_KEY} cannot be set: it is the lock itself")
        if len({name for name, *_ in document.tensors}) != len(document.tensors):
            raise ValueError("two tensors have the same name")
        tensors = tuple(
            LockedTensor(_spec(name, dtype, shape), parse_digest(digest))
            for name, dtype, shape, digest in document.tensors
        )
        encoders, seeds, sources = document.encoders, document.seeds, tuple(map(parse_digest, document.sources))
        if not all(map(_in_order, (encoders, seeds, sources))):
            raise ValueError("encoders, seeds and sources are sorted, and each is there once")
        lock = Lock(parse_digest(document.header), tensors, sets, document.drop, encoders, seeds, sources)
        is_canonical = lock.canonical() == text
    except (ValueError, OverflowError, struct.error, BadDigest, UnsupportedDType) as error:
        raise BadLock(f"it is not a lock of this format: {error}") from error
    if not is_canonical:
        raise BadLock("it is not in canonical form, so its digest is not the lock's id")
    return lock


def can_be_set(entry: KeyValue) -> bool:
    """Return whether a lock can have an entry: its numbers are finite and fit their type, its texts are UTF-8."""
    try:
        entry.encode()
        json.dumps(entry.value, allow_nan=False)
    except (struct.error, TypeError, ValueError):
        return False
    return True


def lock_of(header: Header, source: ByteSource) -> Lock | None:
    """Return the lock in `header`, which was read from `source`; None without a valid lock."""
    field = header.field(LOCK_KEY)
    if field is None or field.type is not ValueType.STRING or field.size_bytes > LOCK_MAX_BYTES:
        return None
    try:
        return parse_lock(source.read_at(field.offset, field.size_bytes).decode("ascii"))
    except (UnicodeDecodeError, BadLock):
        return None


def locked_header(base: Header, source: ByteSource, lock: Lock) -> bytes:
    """Return the header of the file that `lock` describes, with its padding; `base` was read from `source`.

    The base's metadata is copied byte for byte, except the keys that the lock drops or sets. The lock itself is the
    last entry.
    """
    sets, drops = {entry.key: entry for entry in lock.sets}, set(lock.drops)
    metadata: list[Metadata] = []
    for field in base.fields:
        if field.key in sets:
            metadata.append(sets.pop(field.key))
        elif field.key not in drops:
            metadata.append(carry_over(source, field))
    metadata += sets.values()
    metadata.append(KeyValue(LOCK_KEY, ValueType.STRING, lock.canonical()))
    return encode_header(metadata, [tensor.spec for tensor in lock.tensors], base.alignment)


def _in_order(items: Sequence[Any]) -> bool:
    """Return whether `items` are sorted, and each is there once."""
    return list(items) == sorted(set(items))


def _spec(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    spec = TensorSpec(name, shape, dtype_by_name(dtype))
    if spec.dtype.is_foreign:
        raise ValueError(f"{name} has the type {spec.dtype.name}, whose bytes are only kept")
    if spec.shape[0] % spec.dtype.block_elements:
        raise ValueError(f"the rows of {name} are not a whole number of blocks")
    if max(spec.elements, spec.size_bytes) > SIZE_MAX:
        raise ValueError(f"{name} is too large")
    return spec


def _entry(key: str, kind: str, value: Any) -> KeyValue:
    if kind in _LISTS:
        element = _LISTS[kind]
        entry = KeyValue(key, ValueType.ARRAY, value, element_type=element)
        fits = isinstance(value, list) and all(type(item) is _VALUES.get(element, int) for item in value)
    elif kind in _TYPES:
        entry = KeyValue(key, _TYPES[kind], value)
        fits = type(value) is _VALUES.get(entry.type, int)
    else:
        raise ValueError(f"{key} has an unknown type")
    if not fits:
        raise ValueError(f"{key} has a value of another type")
    entry.encode()
    return entry


def checked_header(base: Header, source: ByteSource, lock: Lock) -> tuple[bytes, int]:
    """Return the header of the file that `lock` describes, with its padding, and the size of that file in bytes.

    `base` is the base's header, read from `source`. Raises BadLock for a lock that describes no valid file,
    NotAssemblable if loaders cannot open it.
    """
    name = f"the lock {lock.id[:12]}"
    if any(entry.key == ALIGNMENT_KEY for entry in lock.sets):
        raise BadLock(f"{name} changes the alignment of its base")
    data = locked_header(base, source, lock)
    size_bytes = len(data) + sum(padded(tensor.spec.size_bytes, base.alignment) for tensor in lock.tensors)
    file_source = HeaderSource(data, size_bytes, name)
    try:
        header = read_header(file_source)
    except BadGguf as error:
        raise BadLock(f"{name} describes no valid file: {error.field}: {error.reason}") from error
    assert header.data_offset == len(data), "the header includes its padding"
    if reasons := tokenizer_reasons(file_source, header):
        raise NotAssemblable(name, reasons)
    return data, size_bytes
