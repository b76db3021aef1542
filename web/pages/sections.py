"""A section of a report for a page: cells as text, as a reading in its colour, or as a link. Pure but for addresses."""

from __future__ import annotations

from collections.abc import Sequence

from flask import url_for

from organs.registry.anatomy import place_of
from organs.registry.errors import BadName
from organs.registry.names import parse_model_name
from organs.registry.present.values import Values
from organs.registry.reports.document import Cell, Column, Facts, Kind, Section, Table, shown
from organs.web.links import model_address, with_parameters

ROWS_SHOWN = 100
"""Rows of one table on a page; the others are in its CSV."""
MODEL_KEYS = ("model", "family")
TENSOR_KEY = "tensor"
THETA_ENDING = "theta_degrees"
QUOTE = '"'
"""The query language cannot ask for a name that has one."""


def shown_section(section: Section, model: str | None = None) -> Values:
    """`section` for the template. Tensors are looked for in the model of their row, else in `model`."""
    values: Values = {"key": section.key, "title": section.title, "before": section.before, "after": section.after}
    if isinstance(section, Facts):
        facts = [(fact.label, shown(fact.value, fact.kind), fact.meaning) for fact in section.facts]
        return values | {"facts": facts}
    if not section.rows:
        return values | {"before": (section.empty,), "after": (), "rows": []}
    columns = [(place, column) for place, column in enumerate(section.columns) if not column.data_only]
    return values | {
        "heads": [{"text": column.heading, "right": _is_right(column)} for _, column in columns],
        "rows": [_row(section, row, columns, model) for row in section.rows[:ROWS_SHOWN]],
        "left_out": max(0, len(section.rows) - ROWS_SHOWN),
    }


def _row(section: Table, row: Sequence[Cell], columns: Sequence[tuple[int, Column]], model: str | None) -> list[Values]:
    named = next((row[place] for place, column in enumerate(section.columns) if column.key == "model"), model)
    first_theta = next((place for place, column in columns if column.key.endswith(THETA_ENDING)), None)
    return [
        {
            "text": shown(row[place], column.kind),
            "right": _is_right(column),
            "is_name": column.kind is Kind.NAME,
            "mono": column.key == TENSOR_KEY,
            "address": _address(row[place], column, named),
            "theta": row[place] if column.key.endswith(THETA_ENDING) else None,
            "bar": place == first_theta,
        }
        for place, column in columns
    ]


def _is_right(column: Column) -> bool:
    return column.kind not in (Kind.TEXT, Kind.NAME)


def _address(cell: Cell, column: Column, model: Cell) -> str | None:
    """Where the name of a model or of a tensor leads to; what is no registered name leads nowhere."""
    if column.kind is not Kind.NAME or not isinstance(cell, str):
        return None
    if column.key in MODEL_KEYS:
        return model_address(cell) if _is_version(cell) else None
    if column.key == TENSOR_KEY and isinstance(model, str):
        place = place_of(cell)
        block = "none" if place.block is None else str(place.block)
        query = f'model:{model} block:{block} slot:"{place.slot}"'
        return None if QUOTE in place.slot else with_parameters(url_for("pages.organs"), {"q": query})
    return None


def _is_version(name: str) -> bool:
    """Whether it is the whole name of a model; a parent that is only named need not be."""
    try:
        return parse_model_name(name).version is not None
    except BadName:
        return False
