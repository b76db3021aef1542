"""Answers that say no, as the errors that the same question raises here."""

from __future__ import annotations

import re
from typing import Any

from organs.registry.errors import (
    Ambiguous,
    BadInput,
    BadToken,
    Busy,
    Conflict,
    NotAllowed,
    NotAssemblable,
    NotComposable,
    NotFound,
    OrganError,
    OverQuota,
    Removed,
    TooCostly,
    TooMany,
    Unreachable,
    UnsupportedDType,
)

SENTENCE_MAX_LENGTH = 2000
REASONS_MAX = 40
_KINDS: dict[int, type[OrganError]] = {
    400: BadInput,
    401: BadToken,
    403: NotAllowed,
    404: NotFound,
    410: Removed,
    413: OverQuota,
    503: Busy,
}
_CODES = re.compile(r"Accept (.+) to make it all the same")


def error_of(status: int, values: dict[str, Any], where: str, seconds: float = 0) -> OrganError:
    """The error for an answer of `status` with the JSON `values` (empty when it was none) from `where`.

    `seconds` is what it asks to wait. The text is that of the registry, cut to a bearable length.
    """
    said = values.get("error")
    sentence = said[:SENTENCE_MAX_LENGTH] if isinstance(said, str) and said else f"{where} answered {status}"
    if status == 409:
        return _conflict(sentence, _reasons(values))
    if status == 429:
        return TooMany(sentence, seconds)
    if values.get("code") == TooCostly.CODE:
        return BadInput(sentence)
    kind = _KINDS.get(status, BadInput if 400 <= status < 500 else Unreachable)
    return kind(sentence)


def _reasons(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Fields and sentences of an answer, as far as they are such."""
    listed = values.get("errors")
    errors = [error for error in listed[:REASONS_MAX] if isinstance(error, dict)] if isinstance(listed, list) else []
    return [(str(error.get("field") or ""), str(error.get("sentence"))[:SENTENCE_MAX_LENGTH]) for error in errors]


def _conflict(sentence: str, reasons: list[tuple[str, str]]) -> OrganError:
    """What 409 means is told by its shape: a plan names its fields, and the others have a wording of their own."""
    if any(field in ("recipe", "accept") for field, _ in reasons):
        codes = [match[1] for field, said in reasons if field == "accept" and (match := _CODES.search(said))]
        refusals = [said for field, said in reasons if field == "recipe"]
        return NotComposable(refusals, [code for listed in codes for code in listed.split(", ")])
    model, cannot, reason = sentence.partition(" cannot be assembled: ")
    if cannot:
        return NotAssemblable(model, [reason])
    if "tensor type" in sentence or "no kernel" in sentence:
        return UnsupportedDType(sentence)
    if re.search(r"\bbegins? (?:with|the digests)\b", sentence):
        return Ambiguous(sentence)
    return Conflict(sentence)
