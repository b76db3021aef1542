"""JSON from outside: its size, its depth and the number of its values are bounded before anything is built of it."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

MANIFEST_MAX_BYTES = 64 * 1024 * 1024
VALUES_MAX = 4_000_000
"""What 64 MiB of commas and brackets would be is over a gigabyte of Python objects."""
DEPTH_MAX = 12

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # one that never ends is passed over once
_BRACKET = re.compile(rb"[\[{]|[\]}]")


def parse_json(data: bytes) -> Any:
    """The value of `data`; raises ValueError with one sentence for what is no JSON, or over a limit.

    A key that stands twice in one object is refused: readers differ on which of the two counts.
    """
    if len(data) > MANIFEST_MAX_BYTES:
        raise ValueError(f"{len(data)} bytes; at most {MANIFEST_MAX_BYTES} are read")
    bones = _STRING.sub(b"", data)
    values = bones.count(b",") + bones.count(b"[") + bones.count(b"{")
    if values > VALUES_MAX:
        raise ValueError(f"about {values} values; at most {VALUES_MAX} are read")
    _check_depth(bones)
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None


def _check_depth(bones: bytes) -> None:
    depth = 0
    for bracket in _BRACKET.finditer(bones):
        depth += 1 if bracket.group() in b"[{" else -1
        if depth > DEPTH_MAX:
            raise ValueError(f"nested deeper than {DEPTH_MAX}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:80]!r} stands twice in one object")
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
