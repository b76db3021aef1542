"""The fields of a document as they are read: each knows its path, and notes what is wrong with it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from organs.registry.catalog.search.parse import nearest
from organs.registry.compose.document import Listing, Node, Scalar, Table
from organs.registry.errors import BadRecipe

REASONS_MAX = 100
"""Nobody reads more; what comes behind is not looked at."""
SHOWN_MAX = 60
"""Characters of what is quoted in a reason."""

_PLAIN_KEY = re.compile(r"[\w.-]{1,60}")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Reasons:
    """What is wrong with a recipe, gathered so that all of it is told at once."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.found: list[tuple[str, str]] = []

    def note(self, path: str, sentence: str) -> None:
        """Keeps one; raises BadRecipe where there are too many to go on."""
        self.found.append((path, sentence))
        if len(self.found) == REASONS_MAX:
            raise BadRecipe(
                self.where, [*self.found, ("", f"the first {REASONS_MAX} are listed, and not looked behind")]
            )

    def settle(self) -> None:
        """Raises BadRecipe where anything was noted."""
        if self.found:
            raise BadRecipe(self.where, self.found)


@dataclass(frozen=True, slots=True)
class Entry:
    """A value at its path. What reads it gives None, or leaves out, what it has refused."""

    node: Node
    path: str
    reasons: Reasons

    def refuse(self, sentence: str) -> None:
        """Notes what is wrong here."""
        self.reasons.note(self.path, sentence)

    def text(self, due: str, at_most: int) -> str | None:
        """The text here, on one line, without space around it, of 1 to `at_most` characters.

        `due` says what it should be, for people.
        """
        if not isinstance(self.node, Scalar) or self.node.text is None:
            self._refuse_kind(due)
            return None
        text = self.node.text.replace("\n", " ").strip()
        if not text:
            self.refuse(f"{due} is missing")
        elif len(text) > at_most:
            self.refuse(f"{due} has at most {at_most} characters, this has {len(text):,}")
        elif not text.isprintable():
            self.refuse(f"a control character or a space of an odd kind is in {quoted(text)}")
        else:
            return text
        return None

    def value(self, due: str) -> str | int | float | bool | None:
        """The text, number or truth here, whatever characters the text has but NUL and halves of pairs."""
        if not isinstance(self.node, Scalar) or self.node.value is None:
            self._refuse_kind(due)
            return None
        value = self.node.value
        if isinstance(value, str):
            return value if self._is_sound(value) else None
        if not math.isfinite(value):
            self.refuse("the number is too large")
            return None
        return value

    def whole(self) -> int | None:
        """The whole number here; None where there is none, which is not noted."""
        value = self.node.value if isinstance(self.node, Scalar) else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def number(self, due: str) -> float | None:
        """The finite number here."""
        value = self.node.value if isinstance(self.node, Scalar) else None
        if not isinstance(value, int | float) or isinstance(value, bool):
            self._refuse_kind(due)
            return None
        if not math.isfinite(value):
            self.refuse("the number is too large")
            return None
        return float(value)

    def items(self, due: str, at_most: int) -> list[Entry]:
        """The entries of the list here."""
        if not isinstance(self.node, Listing):
            self._refuse_kind(due)
            return []
        if len(self.node.items) > at_most:
            self.refuse(f"{len(self.node.items):,} stand there; at most {at_most:,} are taken")
            return []
        return [Entry(item, f"{self.path}[{index}]", self.reasons) for index, item in enumerate(self.node.items)]

    def one_or_more(self, due: str, at_most: int) -> list[Entry]:
        """The entries of the list here, which is not empty, or this one alone."""
        if not isinstance(self.node, Listing):
            return [self]
        if not self.node.items:
            self.refuse("the list is empty: leave the key out, or name something")
        return self.items(due, at_most)

    def members(self, keys: tuple[str, ...], meant: Mapping[str, str]) -> dict[str, Entry] | None:
        """What stands under each of `keys`, which are all that may; None where this is no mapping.

        `meant` has the keys that other words probably stand for.
        """
        due = f"a mapping with {', '.join(keys)}"
        if not isinstance(self.node, Table):
            self._refuse_kind(due)
            return None
        found = self.pairs(due)
        for key, entry in found.items():
            if key not in keys:
                word = meant.get(key.lower())
                close = word if word in keys else nearest(key[:SHOWN_MAX], keys)
                hint = f"did you mean {close}?" if close else f"the keys are {', '.join(keys)}"
                entry.refuse(f"no key is called so; {hint}")
        return found

    def pairs(self, due: str) -> dict[str, Entry]:
        """What stands under each key of the mapping here, whatever the keys; a key that stands twice is refused."""
        if not isinstance(self.node, Table):
            self._refuse_kind(due)
            return {}
        found: dict[str, Entry] = {}
        for key_node, node in self.node.pairs:
            key = key_node.text if isinstance(key_node, Scalar) else None
            if key is None:
                self.refuse(f"a key is text, not {_kind(key_node)}")
                continue
            path = shown_key(key)
            entry = Entry(node, f"{self.path}.{path}" if self.path else path, self.reasons)
            if key in found:
                entry.refuse("the key stands there twice")
            found.setdefault(key, entry)
        return found

    def _is_sound(self, text: str) -> bool:
        if "\0" in text or _SURROGATE.search(text):
            self.refuse("the text has a NUL character or half of a pair of surrogates in it")
            return False
        return True

    def _refuse_kind(self, due: str) -> None:
        kind = _kind(self.node)
        self.refuse(f"{due} is missing" if kind == "nothing" else f"this is {kind}; it should be {due}")


def quoted(text: str) -> str:
    """`text` for a sentence: quoted, its control characters made visible, cut."""
    return repr(text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…")


def shown_key(key: str) -> str:
    """`key` as a part of a path."""
    return key if _PLAIN_KEY.fullmatch(key) else quoted(key)


def _kind(node: Node) -> str:
    if isinstance(node, Table):
        return "a mapping"
    if isinstance(node, Listing):
        return "a list"
    if node.value is None:
        return "nothing"
    if isinstance(node.value, bool):
        return "true" if node.value else "false"
    return f"the text {quoted(node.value)}" if isinstance(node.value, str) else "a number"
