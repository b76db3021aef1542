"""Markdown shows hostile names as they are, and lines its tables up for whoever reads it raw."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.reports.document import Column, Fact, Facts, Kind, Report, Table
from organs.registry.reports.formats import (
    escaped,
    markdown,
)

HOSTILE = [
    "<script>alert(1)</script>",
    "a|b",
    "`code`",
    "[x](javascript:alert(1))",
    "![x](http://example.org/x.png)",
    "**bold** _it_ ~~gone~~",
    "one\n\n# two",
    "tab\there\rthere\u2028line",
    "&lt;b&gt;",
    "\\|",
    "``` | x",
    "$x$",
]


def report_of(*cells: str, kind: Kind = Kind.NAME) -> Report:
    table = Table(
        "t", "Table", (Column("a", "a", kind), Column("n", "n", Kind.COUNT)), tuple((cell, 1) for cell in cells)
    )
    return Report("Title", (), (table,), (), "t")


@pytest.mark.parametrize("kind", [Kind.NAME, Kind.TEXT])
@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_name_stays_in_its_cell_and_obeys_nobody(text: str, kind: Kind) -> None:
    lines = markdown(report_of(text, kind=kind)).splitlines()
    assert lines[:3] == ["# Title", "", "## Table"]
    (row,) = lines[-1:]
    assert len(lines) == 7
    assert len(re.findall(r"(?<!\\)\|", row.replace("\\\\", ""))) == 3
    bare = re.sub(r"\\.", "", row)
    assert not set("<>`*[]~$") & set(bare)
    assert re.sub(r"&(lt|gt|amp);", "", bare).count("&") == 0


@given(st.text(max_size=40))
def test_no_text_at_all_leaves_its_cell(text: str) -> None:
    lines = markdown(report_of(text)).split("\n")
    assert len(lines) == 8
    row = lines[-2]
    assert len(re.findall(r"(?<!\\)\|", row.replace("\\\\", ""))) == 3


def test_a_tame_name_is_code_and_a_number_is_no_list() -> None:
    out = markdown(report_of("blk.0.attn_q.weight", "__x__"))
    assert "| `blk.0.attn_q.weight` |" in out
    assert "| `__x__` " in out
    assert escaped("1. a_b 37.6° -2.0") == "1. a_b 37.6° -2.0"


def test_a_paragraph_that_begins_like_a_list_is_none() -> None:
    out = markdown(Report("T", ("1. one", "- two", "+ three", "1.5 four"), (), (), ""))
    assert out == "# T\n\n1\\. one\n\n\\- two\n\n\\+ three\n\n1.5 four\n"


def test_every_line_of_a_table_is_as_wide_as_the_others() -> None:
    table = markdown(report_of("a", "a long name", "b|c")).splitlines()[4:]
    assert {len(line) for line in table} == {len(table[0])}
    assert table[1].endswith("-:|")


def test_a_table_without_rows_says_so_and_shows_no_table() -> None:
    table = Table("t", "Table", (Column("a", "a", Kind.TEXT),), (), ("Before.",), ("After.",), "Nothing.")
    out = markdown(Report("T", (), (table,), (), "t"))
    assert out == "# T\n\n## Table\n\nNothing.\n"


def test_figures_stand_beside_their_meaning() -> None:
    facts = Facts("f", "Figures", (Fact("size_bytes", "size", 2_000_000, Kind.SIZE, "What it takes."),))
    assert "| size   | 2.0 MB | What it takes. |" in markdown(Report("T", (), (facts,), (), "f"))


def test_a_column_for_data_alone_is_not_shown_and_stands_in_the_values() -> None:
    columns = (Column("a", "a", Kind.TEXT), Column("n", "n", Kind.COUNT, data_only=True))
    table = Table("t", "Table", columns, (("x", 7),))
    assert "7" not in markdown(Report("T", (), (table,), (), "t"))
    assert table.values() == {
        "columns": [
            {"key": "a", "heading": "a", "kind": "text", "data_only": False},
            {"key": "n", "heading": "n", "kind": "count", "data_only": True},
        ],
        "items": [{"a": "x", "n": 7}],
    }
    assert table.sheet() == (("a", "n"), (("x", 7),))
