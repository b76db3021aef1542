"""The shapes of answers: what a registry elsewhere says is looked at before it is used.

    check(values, {"items": Each({"name": text}), "next": Maybe(text)}, "/models")

Members that no shape names are left alone: a newer registry may say more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from organs.registry.digest import parse_digest
from organs.registry.errors import BadDigest, BadReply

Values = dict[str, Any]
WHOLE_MAX = 2**63 - 1
WORD_MAX_LENGTH = 210
ITEMS_MAX = 1 << 20
"""Of one list; what an answer may weigh bounds them before."""


@dataclass(frozen=True, slots=True)
class Maybe:
    """Such a value, or null."""

    shape: Shape

    def check(self, value: object, where: str) -> None:
        """As `check` below."""
        if value is not None:
            check(value, self.shape, where)


@dataclass(frozen=True, slots=True)
class Each:
    """A list of such values."""

    shape: Shape
    most: int = ITEMS_MAX

    def check(self, value: object, where: str) -> None:
        """As `check` below."""
        if not isinstance(value, list) or len(value) > self.most:
            raise _wrong(where)
        for place, one in enumerate(value):
            check(one, self.shape, f"{where}[{place}]")


@dataclass(frozen=True, slots=True)
class Named:
    """An object of any names, each with such a value."""

    shape: Shape

    def check(self, value: object, where: str) -> None:
        """As `check` below."""
        if not isinstance(value, dict):
            raise _wrong(where)
        for name, one in value.items():
            check(one, self.shape, f"{where}.{name[:40]}")


Shape: TypeAlias = Callable[[object], bool] | Maybe | Each | Named | Mapping[str, "Shape"]
"""A test of a single value, or one of the above, or the members that an object must have."""
Members: TypeAlias = dict[str, Shape]


def text(value: object) -> bool:
    """A text; any, for whoever shows it makes it harmless."""
    return isinstance(value, str)


def word(value: object) -> bool:
    """A short text of printable ASCII, which is shown as it is: a kind, a name, a state."""
    return isinstance(value, str) and len(value) <= WORD_MAX_LENGTH and value.isascii() and value.isprintable()


def flag(value: object) -> bool:
    """True or false."""
    return isinstance(value, bool)


def whole(value: object) -> bool:
    """A whole number from 0 that fits into 63 bits: a size, a count, a block."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= WHOLE_MAX


def number(value: object) -> bool:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= WHOLE_MAX if isinstance(value, int) else math.isfinite(value)


def digest(value: object) -> bool:
    """A whole SHA-256, in lower-case hexadecimal."""
    if not isinstance(value, str):
        return False
    try:
        return parse_digest(value) == value
    except BadDigest:
        return False


def moment(value: object) -> bool:
    """A date and a time, as ISO 8601 has it."""
    if not isinstance(value, str):
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def anything(_value: object) -> bool:
    """Whatever JSON holds: for what is only handed on."""
    return True


def check(value: object, shape: Shape, where: str) -> None:
    """Raise BadReply, which names the place below `where`, unless `value` has `shape`."""
    if isinstance(shape, Maybe | Each | Named):
        shape.check(value, where)
    elif isinstance(shape, Mapping):
        _check_members(value, shape, where)
    elif not shape(value):
        raise _wrong(where)


def _check_members(value: object, shape: Mapping[str, Shape], where: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(where)
    for name, inner in shape.items():
        if name not in value:
            raise BadReply(f"the registry does not answer as one does: {where}.{name} is missing")
        check(value[name], inner, f"{where}.{name}")


def _wrong(where: str) -> BadReply:
    return BadReply(f"the registry does not answer as one does: {where} is no such value as belongs there")
