"""A table fits the terminal: a row is one line, numbers stay whole, and names keep their beginning and their end."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from organs.cli.console import continued, folded, shortened
from organs.cli.tables import Table
from organs.registry.columns import CellKind, Column

NAME = "local/Zoo-A-2M-Branch-v1.0-Q8_0@1"
TENSOR = "blk.0.attn_norm.weight"
PRINTABLE = st.characters(categories=["L", "N", "P", "S"])
ANY_TEXT = st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=60)


def lines_of(
    headings: list[str],
    rows: list[list[str]],
    width: int,
    kinds: Mapping[str, CellKind] = MappingProxyType({}),
    ranks: Mapping[str, int] = MappingProxyType({}),
) -> list[str]:
    """Return the lines of a table of `rows`, with the kinds and the ranks of columns by heading."""
    columns = [
        Column(heading, kind=kinds.get(heading, CellKind.TEXT), rank=ranks.get(heading, 0)) for heading in headings
    ]
    return list(Table(columns, [dict(zip(headings, row, strict=True)) for row in rows], width=width).lines())


def test_a_row_that_fits_is_printed_completely() -> None:
    lines = lines_of(["model", "θ"], [["a", "9.1°"], ["long", "12.3°"]], 80, {"θ": CellKind.FIGURE}, {"θ": 1})
    assert lines == ["model      θ", "a       9.1°", "long   12.3°"]
    assert lines_of(["model", "θ"], [], 30) == ["model  θ"]


def test_a_long_name_keeps_its_quantisation_and_a_short_word_is_never_shortened() -> None:
    rows = [[NAME, "skeleton", "0.123"]]
    lines = lines_of(["model", "type", "likeness"], rows, 42, {"likeness": CellKind.FIGURE})
    assert lines == ["model                   type      likeness", "local/Zoo-A…1.0-Q8_0@1  skeleton     0.123"]


def test_a_narrow_table_does_without_the_least_important_columns_first() -> None:
    headings, rows = ["model", "size", "θ", "license"], [[NAME, "2.1 MB", "35.1°", "apache-2.0"]]
    kinds, ranks = {"size": CellKind.FIGURE, "θ": CellKind.FIGURE}, {"size": 3, "license": 2, "θ": 1}
    kept = [lines_of(headings, rows, width, kinds, ranks)[0].split() for width in (80, 54, 44, 34)]
    assert kept == [headings, ["model", "θ", "license"], ["model", "θ"], ["model"]]


def test_names_of_tensors_lose_their_usual_ending_first_and_digests_their_end() -> None:
    rows = [["0123456789ab", TENSOR, NAME]]
    (_, line) = lines_of(["organ", "tensor", "model"], rows, 60, {"organ": CellKind.DIGEST})
    assert line == f"01234567  blk.0.attn_norm  {NAME}"


def test_only_a_column_of_sentences_has_several_lines() -> None:
    rows = [["size", "As the files came in, no byte changed."], ["name", "x"]]
    lines = lines_of(["figure", "meaning"], rows, 32, {"meaning": CellKind.PROSE})
    assert lines == ["figure  meaning", "size    As the files came in, no", "        byte changed.", "name    x"]


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [
        (NAME, 21, "local/Zoo-…1.0-Q8_0@1"),
        ("one two three", 8, "one two…"),
        ("abc", 3, "abc"),
        ("abcd", 1, "…"),
        ("abcd", 0, ""),
        ("世界世界", 5, "世…界"),
    ],
)
def test_a_name_loses_its_middle_and_a_sentence_its_end(text: str, width: int, short: str) -> None:
    assert shortened(text, width) == short


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


@given(ANY_TEXT, st.integers(2, 40))
@example("0\u3000", 2)
def test_folding_keeps_every_character_and_the_width(text: str, width: int) -> None:
    lines = folded(text, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(cell_len(line) <= width for line in lines)


@given(st.lists(st.text(PRINTABLE, min_size=1, max_size=30), min_size=1, max_size=8), st.integers(20, 80))
def test_a_command_on_several_lines_is_the_same_command_for_a_shell(words: list[str], width: int) -> None:
    lines = continued(shlex.join(words), width)
    assert shlex.split("\n".join(lines).replace(" \\\n", " ")) == words, (
        "a shell removes a backslash at the end of a line"
    )


@given(st.lists(st.lists(st.text("ab-/_.1 ", max_size=50), min_size=4, max_size=4), max_size=5), st.integers(12, 100))
def test_a_table_of_texts_is_never_wider_than_the_terminal(rows: list[list[str]], width: int) -> None:
    lines = lines_of(["a", "b", "c", "d"], rows, width)
    assert all(cell_len(line) <= max(width, 14) for line in lines)
    assert len(lines) == 1 + len(rows)
