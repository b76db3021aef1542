"""The fields of JSON objects, checked as they are taken; what is wrong is collected and raised once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from organs.registry.digest import Digest, parse_digest
from organs.registry.errors import BadDigest, BadDirectory
from organs.registry.gguf.types import SIZE_MAX

REASONS_MAX = 20
"""How many are spelled out; a hostile folder has no limit of its own."""
TEXT_MAX_LENGTH = 1024


@dataclass(slots=True)
class Reasons:
    """Why something is refused."""

    found: list[str] = field(default_factory=list)
    more: int = 0

    def add(self, reason: str) -> None:
        """One more; those beyond the limit are only counted."""
        if len(self.found) < REASONS_MAX:
            self.found.append(reason)
        else:
            self.more += 1

    def raise_if_any(self, path: str) -> None:
        """Raise BadDirectory for `path` with all of them."""
        if self.found:
            raise BadDirectory(path, [*self.found, *([f"and {self.more} more"] if self.more else [])])


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one JSON object. Each method gives the value, or None when it is absent or was refused.

    `lenient`: an optional field of another kind counts as absent, because another tool may mean something else by it.
    """

    values: dict[str, Any]
    where: str
    reasons: Reasons
    lenient: bool = False

    def text(self, key: str, *, required: bool = False, longest: int = TEXT_MAX_LENGTH) -> str | None:
        """A printable string."""
        value = self.values.get(key)
        if isinstance(value, str) and len(value) <= longest and value.isprintable():
            return value
        self._refuse(key, f"a printable text of at most {longest} characters", required=required)
        return None

    def whole(self, key: str, *, required: bool = False) -> int | None:
        """A whole number from 0 to the largest size of a file."""
        value = self.values.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= SIZE_MAX:
            return value
        self._refuse(key, "a whole number, not negative and below 2^63", required=required)
        return None

    def digest(self, key: str) -> Digest | None:
        """A SHA-256 digest."""
        value = self.values.get(key)
        try:
            if isinstance(value, str):
                return parse_digest(value)
        except BadDigest:
            pass
        self._refuse(key, "a SHA-256 digest", required=False)
        return None

    def numbers(self, key: str) -> tuple[int, ...] | None:
        """A list of whole numbers."""
        value = self.values.get(key)
        if isinstance(value, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in value):
            return tuple(value)
        self._refuse(key, "a list of whole numbers", required=False)
        return None

    def objects(self, key: str, most: int) -> Sequence[Fields]:
        """A list of at most `most` objects."""
        value = self.values.get(key)
        if isinstance(value, list) and len(value) > most:
            self.reasons.add(f"{self.where}{key} has {len(value)} entries; at most {most} are read")
            return ()
        if isinstance(value, list) and all(isinstance(one, dict) for one in value):
            return [
                Fields(one, f"{self.where}{key}[{number}].", self.reasons, self.lenient)
                for number, one in enumerate(value)
            ]
        self._refuse(key, "a list of objects", required=False)
        return ()

    def object(self, key: str) -> Fields | None:
        """An object."""
        value = self.values.get(key)
        if isinstance(value, dict):
            return Fields(value, f"{self.where}{key}.", self.reasons, self.lenient)
        self._refuse(key, "an object", required=False)
        return None

    def check_measures(self, key: str) -> None:
        """An object of numbers and nulls."""
        value = self.values.get(key)
        if not isinstance(value, dict) or not all(_is_number(one) for one in value.values()):
            self._refuse(key, "an object of numbers", required=False)

    def _refuse(self, key: str, wanted: str, *, required: bool) -> None:
        if self.values.get(key) is None:
            if required:
                self.reasons.add(f"{self.where}{key} is missing")
        elif required or not self.lenient:
            self.reasons.add(f"{self.where}{key} is not {wanted}")


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
