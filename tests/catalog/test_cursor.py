"""Tests of cursors: a cursor reads back exactly, and any other text is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from organs.registry.catalog.cursor import (
    CURSOR_MAX_LENGTH,
    PageEnd,
    cursor_text,
    parse_cursor,
)
from organs.registry.errors import BadQuery
from tests.random_files import PATIENT

QUERY = "type:organ sort:-theta"
IDS = st.integers(0, 2**63 - 1)
VALUES = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**63) + 1, 2**63 - 1))


def packed(*values: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).rstrip(b"=").decode()


def mark(query: str) -> str:
    text = cursor_text(query, PageEnd(1.0, 1))
    return str(json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))[0])


@PATIENT
@given(st.text(max_size=50), VALUES, IDS)
@example("", -1.7976931348623157e308, 2**63 - 1)
def test_a_cursor_reads_back_to_the_last_bit(query: str, value: float | None, row_id: int) -> None:
    text = cursor_text(query, PageEnd(value, row_id))
    back = parse_cursor(query, text)
    assert (back, type(back.value)) == (PageEnd(value, row_id), type(value))
    assert len(text) <= CURSOR_MAX_LENGTH
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


def test_the_cursor_of_another_query_or_without_a_required_value_is_refused() -> None:
    text = cursor_text(QUERY, PageEnd(1.0, 1))
    with pytest.raises(BadQuery, match="this cursor belongs to another query") as caught:
        parse_cursor("type:norm sort:-theta", text)
    assert caught.value.term == "after"
    valueless = cursor_text(QUERY, PageEnd(None, 1))
    with pytest.raises(BadQuery, match="not a cursor"):
        parse_cursor(QUERY, valueless, missing=False)


@pytest.mark.parametrize(
    "values",
    [
        (1.0, -1),
        (1.0, 2**63),
        (1.0, 1.0),
        (1.0, True),
        (1.0, "1"),
        (True, 1),
        ("1", 1),
        ([1.0], 1),
        (2**63, 1),
        (-(2**63), 1),
        (float("nan"), 1),
        (float("inf"), 1),
    ],
)
def test_a_row_id_that_is_not_a_number_is_refused(values: tuple[Any, Any]) -> None:
    with pytest.raises(BadQuery, match="not a cursor"):
        parse_cursor(QUERY, packed(mark(QUERY), *values))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "WyI",
        "ＷyI",
        "\x00",
        "\ud800",
        packed(mark(QUERY), 1.0),
        packed(mark(QUERY), 1.0, 1, 1),
        packed(mark(QUERY)[:-1], 1.0, 1),
        base64.urlsafe_b64encode(b'{"a":1,"b":2,"c":3}').decode(),
        base64.urlsafe_b64encode(f'["{mark(QUERY)}",1e999,1]'.encode()).decode(),
        base64.urlsafe_b64encode(b"\xff\xfe\x00").decode(),
        base64.urlsafe_b64encode(b"[" * 140).decode(),
        cursor_text(QUERY, PageEnd(1.0, 1)) + " " * 200,
        "A" * 1_000_000,
    ],
)
def test_text_that_is_not_a_cursor_is_refused(text: str) -> None:
    with pytest.raises(BadQuery) as caught:
        parse_cursor(QUERY, text)
    assert "use the cursor of the previous page" in str(caught.value)


@PATIENT
@given(
    st.one_of(st.text(max_size=250), st.binary(max_size=150).map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
)
def test_any_text_as_a_cursor_is_refused(text: str) -> None:
    with pytest.raises(BadQuery):
        parse_cursor(QUERY, text)
