"""The lock: what a chimera is, as a small canonical document. Its SHA-256 is the chimera's identity."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from organs.registry.digest import Digest, digest_of, parse_digest
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
"""Under this key the lock stands in the header of the file that it describes."""
FORMAT = "organ-registry lock 1"
LOCK_MAX_BYTES = 16 * 1024 * 1024
"""A hundred thousand tensors, which no model has."""
LISTS_MAX = 250_000
VALUES_MAX = 1_000_000
"""In one lock, counted before any of them is built."""
_MEMBERS = frozenset({"drop", "format", "header", "set", "tensors"})
_TYPES = {kind.name.lower(): kind for kind in ValueType if kind is not ValueType.ARRAY}
_TEXTS = "texts"
"""The type of a list of texts, the only kind of array that is set."""
_VALUES = {
    ValueType.STRING: str,
    ValueType.BOOL: bool,
    ValueType.FLOAT32: float,
    ValueType.FLOAT64: float,
}
"""What a value of each type is in JSON; all others are whole numbers."""
_NO_LOCK = (
    *(ValueError, TypeError, KeyError, OverflowError, RecursionError, struct.error),
    *(BadDigest, UnsupportedDType),
)
"""What reading a text that is no lock comes to, whatever is wrong with it."""


@dataclass(frozen=True, slots=True)
class LockedTensor:
    """A tensor of the result, in its place in the order."""

    spec: TensorSpec
    digest: Digest


@dataclass(frozen=True, slots=True)
class Lock:
    """What a chimera's bytes are a function of."""

    header: Digest
    """Of the base's header, from the magic to the last tensor info."""
    tensors: tuple[LockedTensor, ...]
    sets: tuple[KeyValue, ...]
    """Metadata that replaces the base's of the same key, or stands behind all of it."""
    drops: tuple[str, ...]
    """Keys of the base's that are left out, sorted."""

    def canonical(self) -> str:
        """The document: JSON without spaces, keys sorted, ASCII only."""
        document = {
            "drop": list(self.drops),
            "format": FORMAT,
            "header": self.header,
            "set": [[entry.key, *_typed(entry)] for entry in self.sets],
            "tensors": [[one.spec.name, one.spec.dtype.name, list(one.spec.shape), one.digest] for one in self.tensors],
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)

    @property
    def id(self) -> Digest:
        """SHA-256 of the canonical document."""
        return digest_of(self.canonical().encode("ascii"))


def parse_lock(text: str) -> Lock:
    """The lock written in `text`; raises BadLock for anything but the canonical form of one."""
    if len(text) > LOCK_MAX_BYTES:
        raise BadLock(f"it has {len(text)} characters; {LOCK_MAX_BYTES} are allowed")
    if text.count("[") > LISTS_MAX or text.count(",") > VALUES_MAX:
        raise BadLock("it has more lists or values than any lock")
    try:
        lock = _lock_of(json.loads(text))
        is_canonical = lock.canonical() == text
    except _NO_LOCK as error:
        raise BadLock(f"it is no lock of this format: {error}") from error
    if not is_canonical:
        raise BadLock("it is not in canonical form: its id would not be that of its bytes")
    return lock


def lock_of(header: Header, source: ByteSource) -> Lock | None:
    """The lock that `header`, read from `source`, carries; None where there is none, or none of ours."""
    field = header.field(LOCK_KEY)
    if field is None or field.type is not ValueType.STRING or field.size_bytes > LOCK_MAX_BYTES:
        return None
    try:
        return parse_lock(source.read_at(field.offset, field.size_bytes).decode("ascii"))
    except (UnicodeDecodeError, BadLock):
        return None


def locked_header(base: Header, source: ByteSource, lock: Lock) -> bytes:
    """The header of the file that `lock` describes, with its padding; `base` is the base's, read from `source`.

    What the base says comes over byte for byte, but for what the lock drops and sets; the lock itself stands last.
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
    return encode_header(metadata, [one.spec for one in lock.tensors], base.alignment)


def _typed(entry: KeyValue) -> list[Any]:
    if entry.type is ValueType.ARRAY:
        assert isinstance(entry.value, Sequence)
        return [_TEXTS, list(entry.value)]
    return [entry.type.name.lower(), entry.value]


def _lock_of(document: Any) -> Lock:
    if set(document) != _MEMBERS or document["format"] != FORMAT:
        raise ValueError(f"a lock has {', '.join(sorted(_MEMBERS))} and the format {FORMAT!r}")
    tensors = [
        LockedTensor(_spec(name, dtype, shape), _digest(hash_)) for name, dtype, shape, hash_ in document["tensors"]
    ]
    sets = [_entry(key, kind, value) for key, kind, value in document["set"]]
    drops = [_key(key) for key in document["drop"]]
    changed = [*drops, *(entry.key for entry in sets)]
    if len(set(changed)) != len(changed) or drops != sorted(drops):
        raise ValueError("each key is set or dropped once, and what is dropped is sorted")
    if any(entry.key == LOCK_KEY for entry in sets):
        raise ValueError("the lock stands in the file anyway")
    if len({one.spec.name for one in tensors}) != len(tensors):
        raise ValueError("two tensors have one name")
    return Lock(_digest(document["header"]), tuple(tensors), tuple(sets), tuple(drops))


def _spec(name: Any, dtype: Any, shape: Any) -> TensorSpec:
    if not (isinstance(name, str) and name.isascii() and name.isprintable() and 0 < len(name) <= NAME_MAX_BYTES):
        raise ValueError(f"a tensor's name is 1 to {NAME_MAX_BYTES} characters of printable ASCII")
    if not (0 < len(shape) <= DIMENSIONS_MAX and all(type(one) is int and one > 0 for one in shape)):
        raise ValueError(f"{name} has no shape")
    spec = TensorSpec(name, tuple(shape), dtype_by_name(str(dtype)))
    if spec.shape[0] % spec.dtype.block_elements:
        raise ValueError(f"{name} has rows of no whole number of blocks")
    if max(spec.elements, spec.size_bytes) > SIZE_MAX:
        raise ValueError(f"{name} is larger than any file")
    return spec


def _entry(key: Any, kind: Any, value: Any) -> KeyValue:
    if kind == _TEXTS:
        entry = KeyValue(_key(key), ValueType.ARRAY, value, element_type=ValueType.STRING)
        fits = isinstance(value, list) and all(isinstance(one, str) for one in value)
    else:
        entry = KeyValue(_key(key), _TYPES[kind], value)
        fits = type(value) is _VALUES.get(entry.type, int)
    if not fits:
        raise ValueError(f"{key} has a value of another type")
    entry.encode()
    return entry


def _digest(text: Any) -> Digest:
    if not isinstance(text, str):
        raise TypeError("a digest is text")
    return parse_digest(text)


def _key(key: Any) -> str:
    if not (isinstance(key, str) and key.isascii() and key.isprintable() and 0 < len(key) <= KEY_MAX_BYTES):
        raise ValueError(f"a key is 1 to {KEY_MAX_BYTES} characters of printable ASCII")
    return key


def sound_header(base: Header, source: ByteSource, lock: Lock) -> tuple[bytes, int]:
    """The header of the file that `lock` describes, with its padding, and the size of that file.

    `base` is the base's header, read from `source`. Raises BadLock for a lock that describes no sound file,
    NotAssemblable where loaders must not be given it.
    """
    name = f"the lock {lock.id[:12]}"
    if any(entry.key == ALIGNMENT_KEY for entry in lock.sets):
        raise BadLock(f"{name} changes the alignment of its base")
    data = locked_header(base, source, lock)
    size_bytes = len(data) + sum(padded(one.spec.size_bytes, base.alignment) for one in lock.tensors)
    found = HeaderSource(data, size_bytes, name)
    try:
        header = read_header(found)
    except BadGguf as error:
        raise BadLock(f"{name} describes no sound file: {error.field}: {error.reason}") from error
    assert header.data_offset == len(data), "the padding is part of what was written"
    if reasons := tokenizer_reasons(found, header):
        raise NotAssemblable(name, reasons)
    return data, size_bytes
