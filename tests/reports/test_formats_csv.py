"""Tests of CSV: tidy data, and no formula from user input in a spreadsheet."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.reports.formats import (
    FORMULA_STARTS,
    sheet,
    sheet_lines,
)

FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", '=HYPERLINK("http://example.org")', "-", "=", "\n=1"]


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_a_text(text: str) -> None:
    assert read(sheet_lines([[text]])) == [["'" + text]]


def test_numbers_stay_numbers_and_a_missing_value_is_empty() -> None:
    assert sheet(["a", "b", "c", "d"], [[-1, -2.5, None, "x"]]) == "a,b,c,d\n-1,-2.5,,x\n"
    assert float(read(sheet_lines([[1 / 3]]))[0][0]) == 1 / 3


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=2, max_size=4))
def test_any_text_reads_back_and_starts_no_formula(cells: list[str]) -> None:
    (row,) = read(sheet_lines([cells]))
    assert not any(cell.startswith(FORMULA_STARTS) for cell in row)
    assert [cell if kept == cell else kept[1:] for cell, kept in zip(cells, row, strict=True)] == cells
