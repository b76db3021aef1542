"""Words as they are kept and looked up: folded, so that case, accents and punctuation make no difference."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from organs.registry.catalog.tables.finding import WORD_MAX

WORDS_MAX = 1000
"""Of one model; a description has at most 4,096 characters."""

_WORD = re.compile(r"[^\W_]+")


def folded_words(text: str) -> list[str]:
    """The words of `text` in order: `Zoo-A v1.0` gives zoo, a, v1, 0. Words beyond 64 characters are cut."""
    split = unicodedata.normalize("NFKD", text)
    plain = "".join(sign for sign in split if not unicodedata.combining(sign)).casefold()
    return [word[:WORD_MAX] for word in _WORD.findall(plain)]


def different_words(texts: Iterable[str | None]) -> list[str]:
    """Each word of `texts` once, in order, at most `WORDS_MAX`."""
    found: dict[str, None] = {}
    for text in texts:
        found.update(dict.fromkeys(folded_words(text or "")))
    return list(found)[:WORDS_MAX]
