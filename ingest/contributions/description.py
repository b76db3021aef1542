"""What somebody says of a model beside its bytes, read from outside: each thing that is wrong with it, by its field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from organs.registry.catalog.records import (
    Edits,
)
from organs.registry.catalog.vocabulary import checked_text
from organs.registry.compose.licences import wrong_with_licence
from organs.registry.entities.published import BASE_MAX, DESCRIPTION_MAX, TAG_MAX, TAGS_MAX, TITLE_MAX
from organs.registry.errors import BadValue

FIELDS = ("title", "description", "license", "base", "tags")

BREAKS = "\n\t"
"""Control characters that a description may have."""
_HARMLESS = "\u00a0\u200c\u200d"
"""Blanks that break no line, and what holds signs together: Python takes them for control characters."""

Wrong = tuple[str, str]
"""A field and a sentence."""


def read_edits(given: Mapping[str, object]) -> tuple[Edits, list[Wrong]]:
    """The edits that the members of `given` among `FIELDS` mean, and all that is wrong with them.

    What is absent stays as it is; null, an empty text and an empty list say that nothing is said any more. Where
    anything is wrong the edits are not to be used.
    """
    wrong: list[Wrong] = []
    read: dict[str, Any] = {}
    for name, reader in _READERS.items():
        if name in given:
            try:
                read[name] = reader("" if given[name] is None else given[name])
            except BadValue as error:
                wrong.append((name, _sentence(str(error))))
    return (Edits() if wrong else Edits(**read)), wrong


def has_controls(text: str, breaks: str = "") -> bool:
    """Whether `text` has control characters, line breaks or the like, other than `breaks`."""
    return any(not (sign.isprintable() or sign in breaks or sign in _HARMLESS) for sign in text)


def _line(what: str, limit: int) -> Callable[[object], str]:
    def read(value: object) -> str:
        text = _text(value, what, limit)
        if has_controls(text):
            raise BadValue(f"{what} is one line of plain text, without control characters")
        return text

    return read


def _description(value: object) -> str:
    text = _text(value, "the description", DESCRIPTION_MAX)
    if has_controls(text, BREAKS):
        raise BadValue("the description has control characters; line breaks and tabs are the ones that may be there")
    return text


def _licence(value: object) -> str:
    text = " ".join(_text(value, "the licence", TITLE_MAX).split())
    wrong = wrong_with_licence(text) if text else None
    if wrong is not None:
        raise BadValue(wrong)
    return text


def _tags(value: object) -> tuple[str, ...]:
    if value == "":
        return ()
    if not isinstance(value, list):
        raise BadValue("the tags are to be a list of texts")
    if len(value) > TAGS_MAX:
        raise BadValue(f"{len(value)} tags were given; {TAGS_MAX} are allowed")
    tags = [_line("a tag", TAG_MAX)(tag) for tag in value]
    return tuple(dict.fromkeys(tag for tag in tags if tag))


def _text(value: object, what: str, limit: int) -> str:
    if not isinstance(value, str):
        raise BadValue(f"{what} is to be a text")
    text = value.replace("\r\n", "\n").replace("\r", "\n").strip()
    return checked_text(text, what, limit)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


_READERS: dict[str, Callable[[object], object]] = {
    "title": _line("the title", TITLE_MAX),
    "description": _description,
    "license": _licence,
    "base": _line("the base", BASE_MAX),
    "tags": _tags,
}
