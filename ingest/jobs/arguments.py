"""Arguments of jobs, which come from outside as JSON: checked member by member."""

from __future__ import annotations

from collections.abc import Sequence

from organs.ingest.jobs.kind import Values
from organs.registry.errors import BadInput


def check_members(arguments: Values, known: Sequence[str]) -> None:
    """Raise BadInput for members that are not `known`, which would otherwise be ignored."""
    strange = sorted(repr(name[:80]) for name in arguments if name not in known)
    if strange:
        takes = ", ".join(known) or "none"
        raise BadInput(f"there is no argument {', '.join(strange[:10])} here; there is {takes}")


def text_or_none(arguments: Values, name: str, most: int) -> str | None:
    """The text `name`, of at most `most` characters; None where it is left out. Raises BadInput."""
    value = arguments.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise BadInput(f"{name} is to be a text of 1 to {most:,} characters")
    return value


def whole_number(arguments: Values, name: str, default: int, least: int, most: int) -> int:
    """The whole number `name`, `default` where it is left out. Raises BadInput."""
    value = arguments.get(name)
    if value is None:
        return default
    if type(value) is not int or not least <= value <= most:
        raise BadInput(f"{name} is to be a whole number from {least:,} to {most:,}")
    return value
