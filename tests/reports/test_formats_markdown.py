"""Tests of Markdown: hostile names are shown unchanged, and tables are aligned in the source."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.columns import CellKind, cell_text
from organs.registry.entities.report import (
    Report,
    ReportColumn,
    ReportFigures,
    ReportSection,
    ReportTable,
    table,
)
from organs.registry.reports.formats import escaped, markdown, section_sheet

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


COLUMN = ReportColumn("a", "a", CellKind.TEXT)


def report_with(section: ReportSection) -> Report:
    return Report(title="T", main="t", opening=(), sections={"t": section}, closing=())


def report_of(*cells: str, kind: CellKind = CellKind.NAME) -> Report:
    columns = (ReportColumn("a", "a", kind), ReportColumn("n", "n", CellKind.COUNT))
    section = table("Table", columns, [(cell, 1) for cell in cells], before=(), after=(), empty="")
    return Report(title="Title", main="t", opening=(), sections={"t": section}, closing=())


@pytest.mark.parametrize("kind", [CellKind.NAME, CellKind.TEXT])
@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_name_stays_inert_in_its_table_cell(text: str, kind: CellKind) -> None:
    lines = markdown(report_of(text, kind=kind)).splitlines()
    assert lines[:3] == ["# Title", "", "## Table"]
    (row,) = lines[-1:]
    assert len(lines) == 7
    assert len(re.findall(r"(?<!\\)\|", row.replace("\\\\", ""))) == 3
    bare = re.sub(r"\\.", "", row)
    assert not set("<>`*[]~$") & set(bare)
    assert re.sub(r"&(lt|gt|amp);", "", bare).count("&") == 0


@given(st.text(max_size=40))
def test_no_text_leaves_its_table_cell(text: str) -> None:
    lines = markdown(report_of(text)).split("\n")
    assert len(lines) == 8
    row = lines[-2]
    assert len(re.findall(r"(?<!\\)\|", row.replace("\\\\", ""))) == 3


def test_a_harmless_name_is_code_and_a_number_is_not_a_list() -> None:
    out = markdown(report_of("blk.0.attn_q.weight", "__x__"))
    assert "| `blk.0.attn_q.weight` |" in out
    assert "| `__x__` " in out
    assert escaped("1. a_b 37.6° -2.0") == "1. a_b 37.6° -2.0"


def test_a_paragraph_that_begins_like_a_list_is_not_a_list() -> None:
    section = ReportFigures(title="F", before=("1. one", "- two", "+ three", "1.5 four"), figures={}, after=())
    out = markdown(report_with(section))
    assert out == "# T\n\n## F\n\n1\\. one\n\n\\- two\n\n\\+ three\n\n1.5 four\n"


def test_a_data_column_is_not_shown_but_is_in_the_rows() -> None:
    columns = (COLUMN, ReportColumn("n", "n", CellKind.COUNT, data_only=True))
    section = table("Table", columns, (("x", 7),), before=(), after=(), empty="")
    assert "7" not in markdown(report_with(section))
    assert section.items == ({"a": "x", "n": 7},)
    assert section_sheet(section) == (("a", "n"), (("x", 7),))


@pytest.mark.parametrize("items", [({"b": 1},), ({"a": 1, "b": 2},), ({},)])
def test_rows_have_the_keys_of_the_columns(items: tuple[dict[str, int], ...]) -> None:
    with pytest.raises(ValueError, match="keys of its columns"):
        ReportTable(title="T", before=(), columns=(COLUMN,), items=items, after=())


def test_a_column_of_an_unknown_kind_is_shown_as_a_number() -> None:
    assert cell_text(1234, "tonnes") == "1,234"
