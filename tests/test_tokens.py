"""Tests of tokens: their form, their checksum, and their stored digest."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.errors import BadToken
from organs.registry.tokens import new_page_token, new_token, parse_token

MADE = new_token()


def test_a_token_has_a_recognisable_form_and_is_stored_as_a_digest() -> None:
    assert re.fullmatch(r"orgp_[0-9A-Za-z]{58}", MADE.text)
    assert MADE.text[5:14] == MADE.public_id
    assert MADE.sha256 == hashlib.sha256(MADE.text.encode()).hexdigest()
    assert MADE.text not in repr(MADE)


def test_a_new_token_can_be_parsed_and_is_unique() -> None:
    sent = parse_token(MADE.text)
    assert (sent.public_id, sent.sha256, sent.is_of_page) == (MADE.public_id, MADE.sha256, False)
    page = new_page_token()
    assert parse_token(page.text).is_of_page
    assert len({new_token().text for _ in range(50)}) == 50


def test_a_token_with_one_wrong_character_is_refused_by_its_checksum() -> None:
    for place in range(5, len(MADE.text)):
        other = "0" if MADE.text[place] != "0" else "1"
        with pytest.raises(BadToken, match="mistyped"):
            parse_token(MADE.text[:place] + other + MADE.text[place + 1 :])


@given(st.text(max_size=80))
def test_text_that_is_not_a_token_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(BadToken) as refused:
        parse_token(text)
    assert str(refused.value) == "this is not a token: tokens begin with orgp_"


def test_text_similar_to_a_token_is_refused() -> None:
    for odd in (MADE.text + "\n", " " + MADE.text, MADE.text[:-1], MADE.text + "a", MADE.text.lower()):
        with pytest.raises(BadToken):
            parse_token(odd)
