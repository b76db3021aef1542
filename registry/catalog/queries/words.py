"""Words of models: the full-text look-up, behind one function for every database."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Select, and_, select

from organs.registry.catalog.tables import ModelWord

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
