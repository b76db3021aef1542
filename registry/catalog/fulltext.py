"""Words of models: folded so that case and accents make no difference, and looked up in full-text tables."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from sqlalchemy import Select, and_, select

from organs.registry.catalog.tables import ModelWord
from organs.registry.catalog.tables.search import WORD_MAX

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


_SURROGATES_BEGIN, _SURROGATES_END = 0xD800, 0xE000


def models_with_words(words: Sequence[str]) -> Select[int]:
    """SELECT of the ids of the models that have, for each of `words`, a word that begins so. Words are folded."""
    assert words
    first, *others = [_having(word) for word in words]
    for other in others:
        first = first.where(ModelWord.model_id.in_(other))
    return first


def _having(word: str) -> Select[int]:
    # A range instead of LIKE: it uses the index on every database, and means the same on all.
    return select(ModelWord.model_id).where(and_(ModelWord.word >= word, ModelWord.word < _behind(word)))


def _behind(word: str) -> str:
    """The least text that is greater than everything that begins with `word`."""
    following = ord(word[-1]) + 1
    if _SURROGATES_BEGIN <= following < _SURROGATES_END:
        following = _SURROGATES_END
    return word[:-1] + chr(following) if following <= 0x10FFFF else word + chr(0x10FFFF)
