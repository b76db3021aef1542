"""Tests of the words of models: stored and queried with the same folding, and found by prefix."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, insert

from organs.registry.catalog.tables import ModelWord
from organs.registry.catalog.vocabulary import WORD_MAX, WORDS_MAX, folded_words, unique_words
from organs.registry.local import LocalRegistry
from organs.registry.search.filters import models_with_words
from tests.random_files import PATIENT
from tests.search.catalogs import RandomModel, write_models


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("  --- ", []),
        ("Zoo-A v1.0", ["zoo", "a", "v1", "0"]),
        ("tiny_code", ["tiny", "code"]),
        ("Größe GRÖSSE grosse", ["grosse", "grosse", "grosse"]),
        ("Ärzte, Café", ["arzte", "cafe"]),
        ("İstanbul IĞDIR ırmak", ["istanbul", "igdir", "ırmak"]),
        ("ﬁne ½ Ⅷ ²", ["fine", "1", "2", "viii", "2"]),
        ("ＦＵＬＬ width", ["full", "width"]),
        ("ΣΊΣΥΦΟΣ σίσυφος", ["σισυφοσ", "σισυφοσ"]),
        ("a\u0301b a\x00b", ["ab", "a", "b"]),
        ("世界模型", ["世界模型"]),
        ("x" * 65, ["x" * 64]),
        ("a%b_c\\d'e\"f", ["a", "b", "c", "d", "e", "f"]),
    ],
)
def test_folded_words_have_no_special_characters_of_a_database(text: str, words: list[str]) -> None:
    assert folded_words(text) == words


@PATIENT
@given(st.text(st.characters(codec=None), max_size=200))
def test_folded_words_can_be_stored_and_looked_up_unchanged(text: str) -> None:
    words = folded_words(text)
    assert folded_words(" ".join(words)) == words
    for word in words:
        assert 1 <= len(word) <= WORD_MAX
        word.encode()
        assert "\0" not in word


def test_the_words_of_a_model_are_unique_and_limited() -> None:
    assert unique_words(["b a", None, "A c"]) == ["b", "a", "c"]
    assert len(unique_words(f"w{number}" for number in range(5000))) == WORDS_MAX == 1000


@pytest.fixture(scope="module")
def wordy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    with LocalRegistry.open(tmp_path_factory.mktemp("wordy")) as registry:
        write_models(registry, [RandomModel((), name=f"m{number}") for number in range(4)])
        yield registry


LETTERS = st.text(st.sampled_from("abyz09世\ud7fb\uffdc\U00010000\U000323af"), min_size=1, max_size=3)
"""The words include the last letters before and after the surrogates, of the first plane and of all planes."""


@settings(deadline=None, max_examples=60)
@given(words=st.lists(LETTERS, min_size=1, max_size=8, unique=True), asked=LETTERS)
def test_a_lookup_finds_exactly_the_words_with_the_prefix(words: list[str], asked: str, wordy: LocalRegistry) -> None:
    with wordy.catalog.writing() as session:
        session.execute(delete(ModelWord))
        session.execute(insert(ModelWord), [{"word": word, "model_id": 1 + n % 4} for n, word in enumerate(words)])
    expected = {1 + number % 4 for number, word in enumerate(words) if word.startswith(asked)}
    with wordy.catalog.reading() as session:
        assert set(session.scalars(models_with_words([asked]))) == expected
