"""Tests of stored text: shown text is cut and escaped, invalid names are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.catalog.vocabulary import TEXT_MAX, checked_text, shown_text
from organs.registry.errors import BadValue
from tests.random_files import PATIENT


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("Grüße, 世界\n\x1b[31m", TEXT_MAX, "Grüße, 世界\n\x1b[31m"),
        ("a\0b", TEXT_MAX, "a␀b"),
        ("x" * 10, 10, "x" * 10),
        ("x" * 11, 10, "x" * 9 + "…"),
        (b"\xff.gguf".decode("utf-8", "surrogateescape"), TEXT_MAX, "\\udcff.gguf"),
    ],
)
def test_shown_text_is_cut_and_escaped(text: str, limit: int, shown: str) -> None:
    assert shown_text(text, limit) == shown


@PATIENT
@given(st.text(st.characters(codec=None), max_size=50), st.integers(1, 40))
def test_shown_text_can_always_be_stored(text: str, limit: int) -> None:
    shown = shown_text(text, limit)
    assert len(shown) <= limit
    assert "\0" not in shown.encode("utf-8").decode("utf-8")


@pytest.mark.parametrize("text", ["x" * 97, "a\0b", "\0", "\udcff", "a\ud800"])
def test_a_name_that_is_too_long_or_cannot_be_stored_is_refused_and_not_cut(text: str) -> None:
    assert checked_text("x" * 96, "the name", 96) == "x" * 96
    with pytest.raises(BadValue, match=r"the name (has 97 characters; 96 are allowed)?"):
        checked_text(text, "the name", 96)
