"""A JSON reader for data from outside: size, depth and memory are checked before any value is built."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

from organs.registry.json_signs import depth_of, signs_of, split_at_quotes

MANIFEST_MAX_BYTES = 64 * 1024 * 1024
PARSED_MAX_BYTES = 64 * 1024 * 1024
PARSED_MAX_RATIO = 4
"""The memory that a parsed manifest may take: a fixed number of bytes, and more for each byte of its text. The line for
a tensor that this program writes has 560 bytes and takes 1,700; the three bytes of `{},` take 72."""
KEYS_MAX = 200_000
"""Limit of different keys. This program's manifest has 40; manifests of other tools have one for each tensor and
metadata entry."""
DEPTH_MAX = 12

_OBJECT_BYTES, _MEMBER_BYTES, _LIST_BYTES, _SLOT_BYTES, _TEXT_BYTES, _NUMBER_BYTES = 80, 40, 72, 9, 50, 32
"""Bytes that CPython needs for an empty object; each member of an object; an empty list; a place in a list; an empty
text, to which each byte of the text is added; and a number."""


@dataclass(slots=True)
class Outline:
    """Counts of the parts of a JSON text, without parsing it."""

    size_bytes: int = 0
    bone_bytes: int = 0
    """Bytes outside of strings, with one quote of each string."""
    strings: int = 0
    objects: int = 0
    lists: int = 0
    empty: int = 0
    """Objects and lists without any content, not even a space."""
    members: int = 0
    commas: int = 0

    def add(self, data: bytes) -> bytes:
        """Count `data`, which has only whole tokens; return its brackets."""
        brackets = []
        self.size_bytes += len(data)
        for inside, pieces in split_at_quotes(data):
            structure = b'"'.join(pieces[inside::2])
            self.bone_bytes += len(structure)
            self.strings += len(pieces) // 2
            self.objects += structure.count(b"{")
            self.lists += structure.count(b"[")
            self.empty += structure.count(b"{}") + structure.count(b"[]")
            self.members += structure.count(b":")
            self.commas += structure.count(b",")
            brackets.append(signs_of(structure).translate(None, b",:"))
        return b"".join(brackets)

    def refusal(self) -> str | None:
        """Return why a text with these counts is refused, or None."""
        if self.size_bytes > MANIFEST_MAX_BYTES:
            return f"{self.size_bytes} bytes; at most {MANIFEST_MAX_BYTES} are read"
        limit = PARSED_MAX_BYTES + PARSED_MAX_RATIO * self.size_bytes
        if self._parsed_bytes() > limit:
            return f"its values would take about {self._parsed_bytes()} bytes of memory; at most {limit} are allowed"
        return None

    def _parsed_bytes(self) -> int:
        texts = max(0, self.strings - self.members)  # a repeated key is kept once
        containers = self.objects + self.lists
        numbers = max(0, self.commas + 1 - texts - self.empty)
        return (
            _OBJECT_BYTES * self.objects
            + _MEMBER_BYTES * self.members
            + _LIST_BYTES * self.lists
            + _SLOT_BYTES * (self.commas + containers)
            + _TEXT_BYTES * texts
            + _NUMBER_BYTES * numbers
            + self.size_bytes
            - self.bone_bytes
        )


def parse_json(data: bytes) -> Any:
    """Return the value of `data`; raises ValueError with one sentence for invalid JSON, or beyond a limit.

    Repeated keys in one object are refused: parsers differ on which one counts.
    """
    outline = Outline(size_bytes=len(data))
    if refusal := outline.refusal():
        raise ValueError(refusal)
    outline = Outline()
    brackets = outline.add(data)
    if refusal := outline.refusal():
        raise ValueError(refusal)
    if depth_of(brackets) > DEPTH_MAX:
        raise ValueError(f"nested deeper than {DEPTH_MAX}")
    if outline.members > KEYS_MAX:
        _check_keys(data)
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=_unique_members, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None


def _check_keys(data: bytes) -> None:
    keys: set[int] = set()
    for inside, pieces in split_at_quotes(data):
        strings, after = pieces[1 - inside :: 2], pieces[2 - inside :: 2]
        # Hashes, because keys can have any length.
        keys.update(hash(item) for item, rest in zip(strings, after, strict=False) if rest.lstrip().startswith(b":"))
        if len(keys) > KEYS_MAX:
            raise ValueError(f"more than {KEYS_MAX} different keys")


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        repeated_key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {repeated_key[:80]!r} appears twice in one object")
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
