"""The header of a lock's file, looked at: a lock comes from outside."""

from __future__ import annotations

from organs.registry.compose.lock import Lock, locked_header
from organs.registry.errors import BadGguf, BadLock, NotAssemblable
from organs.registry.gguf import ByteSource, Header, HeaderSource, padded, read_header
from organs.registry.gguf.tokenizer import tokenizer_reasons
from organs.registry.gguf.types import ALIGNMENT_KEY


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
