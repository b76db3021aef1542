"""Licences as people state them: SPDX expressions of what is known here, and ways to state what is not. Pure.

expression  = part, or parts joined by AND and OR, in brackets where need be
part        = id, id+, id WITH exception, LicenseRef-name, other, NOASSERTION
"""

from __future__ import annotations

import re

from organs.registry.compose.licences import NO_ASSERTION, terms_of

LICENCE_MAX = 96
"""Characters; the catalog keeps no more."""
OTHER = "other"
"""What hubs write where a licence has no id."""
_TOKEN = re.compile(r"\s*(\(|\)|[^\s()]+)")
_REFERENCE = re.compile(r"(DocumentRef-[A-Za-z0-9.-]+:)?LicenseRef-[A-Za-z0-9.-]+")
_EXCEPTION = re.compile(r"[A-Za-z0-9.-]+")


def wrong_with_licence(text: str) -> str | None:
    """A sentence on what is wrong with `text` as a licence; None where nothing is."""
    if len(text) > LICENCE_MAX:
        return f"A licence has at most {LICENCE_MAX} characters; this has {len(text)}."
    tokens = _TOKEN.findall(text)
    if not tokens:
        return "Write the SPDX id of a licence, such as apache-2.0, or leave the licence out."
    left = list(reversed(tokens))
    wrong = _expression(left)
    if wrong is None and left:
        return f"{left[-1]!r} does not belong there: licences are joined by AND or OR, in brackets where need be."
    return wrong


def _expression(left: list[str]) -> str | None:
    """Take an expression from the end of `left`; what is wrong with it. Brackets go as deep as 96 characters let."""
    while True:
        wrong = _part(left)
        if wrong is not None or not left or left[-1] not in ("AND", "OR"):
            return wrong
        left.pop()


def _part(left: list[str]) -> str | None:
    word = left.pop() if left else ""
    if word == "(":
        wrong = _expression(left)
        if wrong is not None:
            return wrong
        return None if left and left.pop() == ")" else "A bracket that is opened is not closed."
    if word in ("", ")", "AND", "OR", "WITH"):
        return f"A licence is missing{f' before {word!r}' if word else ' at the end'}."
    if not _is_known(word):
        return (
            f"{word!r} is no licence that is known here: write its SPDX id, such as apache-2.0 or cc-by-sa-4.0, or "
            f"LicenseRef- and a name of your own, or {OTHER}."
        )
    if left and left[-1] == "WITH":
        left.pop()
        if not left or not _EXCEPTION.fullmatch(left.pop()):
            return "The exception behind WITH is missing."
    return None


def _is_known(word: str) -> bool:
    if _REFERENCE.fullmatch(word) or word == NO_ASSERTION or word.lower() == OTHER:
        return True
    return terms_of(word) is not None
