"""A table fits the terminal: numbers and short words stay whole, names fold where their parts meet."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from organs.cli.console import (
    FOLDED_MIN,
    folded,
    table_lines,
)

NAME = "local/Zoo-A-2M-Branch-v1.0-Q8_0@1"
TENSOR = "blk.0.attn_norm.weight"


def lines_of(headings: list[str], rows: list[list[str]], right: list[bool], width: int) -> list[str]:
    return [line for line, _ in table_lines(headings, rows, right, width)]


def test_a_row_that_fits_is_printed_on_one_line() -> None:
    lines = lines_of(["model", "θ"], [["a", "9.1°"], ["long", "12.3°"]], [False, True], 80)
    assert lines == ["model      θ", "a       9.1°", "long   12.3°"]


def test_a_long_name_is_folded_between_its_parts_and_a_short_word_never() -> None:
    rows = [[NAME, "skeleton", "0.123"]]
    lines = lines_of(["model", "type", "alike"], rows, [False, False, True], 42)
    assert lines == [
        "model                      type      alike",
        "local/Zoo-A-2M-Branch-v1.  skeleton  0.123",
        "0-Q8_0@1",
    ]


def test_names_whose_column_would_be_too_narrow_get_their_own_line() -> None:
    rows = [[NAME, TENSOR, "skeleton", "35.1°"]]
    lines = lines_of(["model", "tensor", "type", "θ"], rows, [False, False, False, True], 50)
    assert lines == ["model  tensor", "  type          θ", NAME, TENSOR, "  skeleton  35.1°"]


def test_a_sentence_is_folded_between_words_and_its_neighbours_stay_beside_it() -> None:
    lines = lines_of(["figure", "what it is"], [["size", "As the files came in, no byte changed."]], [False] * 2, 32)
    assert lines == ["figure  what it is", "size    As the files came in, no", "        byte changed."]


def test_the_heading_is_marked() -> None:
    marked = list(table_lines(["model", "θ"], [[NAME * 3, "1°"]], [False, True], 30))
    assert [heading for _, heading in marked][:2] == [True, False]


def test_numbers_that_do_not_fit_are_printed_completely() -> None:
    assert lines_of(["a", "b"], [["1" * 30, "2" * 30]], [True, True], 40)[1] == "1" * 30 + "  " + "2" * 30


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two three", 7, ["one two", "three"]),
        ("Zoo-A-2M", 6, ["Zoo-A-", "2M"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("世界世界", 4, ["世界", "世界"]),
        ("a  b", 80, ["a  b"]),
        ("", 5, [""]),
    ],
)
def test_a_text_is_folded_at_the_best_possible_place(text: str, width: int, lines: list[str]) -> None:
    assert folded(text, width) == lines


@given(st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=60), st.integers(2, 40))
@example("0\u3000", 2)
def test_folding_keeps_every_character_and_the_width(text: str, width: int) -> None:
    lines = folded(text, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(cell_len(line) <= width for line in lines)


@given(st.lists(st.lists(st.text("ab-/_.1 ", max_size=50), min_size=4, max_size=4), max_size=5), st.integers(24, 100))
def test_text_columns_never_exceed_the_width(rows: list[list[str]], width: int) -> None:
    room = 4 * 14 + 3 * 2 + 2
    lines = lines_of(["a", "b", "c", "d"], rows, [False] * 4, width)
    assert all(cell_len(line) <= max(width, room, FOLDED_MIN) for line in lines)
