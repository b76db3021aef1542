"""The signs of a JSON text outside of its strings, from which its size and its depth are checked before it is parsed.

A bracket inside a string is a character like others. In a text that is not JSON, the signs before its first error are
right, and a parser stops there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

CHUNK_BYTES = 256 * 1024
"""Bytes that are scanned at a time: the parts of a chunk take many times its size in memory."""

_BACKSLASHES = re.compile(rb"\\*+")
_NO_SIGNS = bytes(set(range(256)) - set(b"[]{},:"))


def json_signs(data: bytes) -> bytes:
    """Return the brackets, commas and colons of `data` that are outside of strings, in their order."""
    return b"".join(signs_of(b'"'.join(parts[inside::2])) for inside, parts in split_at_quotes(data))


def signs_of(structure: bytes) -> bytes:
    """Return the brackets, commas and colons of a text without strings."""
    return structure.translate(None, _NO_SIGNS)


def depth_of(signs: bytes) -> int:
    """Return how deep the lists and objects are nested."""
    depth = deepest = 0
    for sign in signs:
        if sign in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif sign in b"]}":
            depth -= 1
    return deepest


def split_at_quotes(data: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Yield for each chunk of `data` 1 if it begins inside a string, else 0; and its parts, split at the quotes.

    Parts inside and outside of strings alternate. Escaped quotes and backslashes are left out.
    """
    begin, inside = 0, 0
    while begin < len(data):
        end = begin + CHUNK_BYTES
        if data[end - 1 : end] == b"\\":  # the escaped character belongs to this chunk
            run = _BACKSLASHES.match(data, end)
            assert run is not None
            end = run.end() + 1
        parts = data[begin:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield inside, parts
        inside = (inside + len(parts) - 1) % 2
        begin = end
