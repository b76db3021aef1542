"""Reports as tables with explanations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from flask import Response, current_app, request, url_for
from msgspec.structs import replace
from sqlalchemy.orm import Session

from organs.registry.amounts import UNCERTAIN
from organs.registry.anatomy import place_of, type_name
from organs.registry.catalog.cache import cached
from organs.registry.catalog.queries.reports import tensor_figures
from organs.registry.columns import CellKind, Column, caution_in
from organs.registry.entities.report import Cell, Report, ReportSection, ReportTable
from organs.registry.errors import BadName, BadQuery, NotFound, TooSlow
from organs.registry.names import parse_model_name
from organs.registry.reports.dissection import model_report
from organs.registry.reports.formats import columns_and_rows, markdown, section_sheet
from organs.registry.reports.scale import scale_tables
from organs.web.api import reports as api
from organs.web.charts import plots
from organs.web.pages.charts import svg_answer
from organs.web.pages.routes import Context, Sheet, WebPage, paged, pages
from organs.web.params import addressed_model
from organs.web.permissions import may_see_storage
from organs.web.render import glyph
from organs.web.responses import conditional, model_address, plain_page, reading, with_parameters

ROWS_SHOWN = 100
"""Rows of one table on a page; the others are in its CSV."""
MODEL_KEYS = ("model", "family", "minimum_model", "maximum_model")
THETA_ENDING = "theta_degrees"
TENSOR_KEY = "tensor"
COMMAND_KEY = "command"
TYPE_KEY = "type"
QUOTE = '"'
"""A query cannot contain a name with this character."""


def _shown_section(key: str, section: ReportSection, model: str | None = None, csv: str | None = None) -> Context:
    """Return `section` for the template: figures, or a table with at most ROWS_SHOWN rows.

    A tensor is searched for in the model of its row, else in `model`.
    """
    shown: Context = {"key": key, "title": section.title, "before": section.before, "after": section.after, "csv": csv}
    columns, rows = columns_and_rows(section)
    if not isinstance(section, ReportTable):
        return shown | {"figures": [[column.text(row) for column in columns] for row in rows]}
    first_theta = next((column.name for column in columns if column.name.endswith(THETA_ENDING)), None)

    def cell(row: Mapping[str, Cell], column: Column) -> Context:
        value, text = row[column.name], column.text(row)
        is_theta = column.name.endswith(THETA_ENDING) and isinstance(value, int | float)
        return {
            "text": type_name(text) if column.name == TYPE_KEY else text,
            "is_number": column.is_number,
            "is_name": column.kind == CellKind.NAME,
            "is_tensor": column.name in (TENSOR_KEY, COMMAND_KEY),
            "address": _address(value, column, row.get("model", model)),
            "theta": value if is_theta else None,
            "caution": caution_in(row, column.name),
            "has_bar": column.name == first_theta,
        }

    return shown | {
        "heads": [(column.heading, column.is_number) for column in columns],
        "rows": [[cell(row, column) for column in columns] for row in rows[:ROWS_SHOWN]],
        "left_out": max(0, len(rows) - ROWS_SHOWN),
        "csv": csv if rows else None,
    }


def _address(cell: Cell, column: Column, model: Cell) -> str | None:
    """Return the address of the model or the tensor that the cell names; None for other names."""
    if column.kind != CellKind.NAME or not isinstance(cell, str):
        return None
    if column.name in MODEL_KEYS:
        with suppress(BadName):  # a parent that is not registered may have any name
            return None if parse_model_name(cell).version is None else model_address(cell)
    if column.name == TENSOR_KEY and isinstance(model, str):
        place = place_of(cell)
        block = "none" if place.block is None else str(place.block)
        query = f'model:{model} block:{block} slot:"{place.slot}"'
        return None if QUOTE in place.slot else with_parameters(url_for("pages.organs"), {"q": query})
    return None


FAMILIES_MAX = 2000
"""Dots of the scale chart, and rows of its table."""
PAGES = {
    "ranking": ("Ranking", "Complete models by mean θ, over all tensors and over matrices only.", ("ranking",)),
    "types": ("Types", "θ of attention, feed-forward, embeddings and norms, over all models.", ("types",)),
    "model_types": (
        "Models by type",
        "θ and signal of each type in each model, and the range of each type over all models.",
        ("type_ranges", "model_types"),
    ),
    "components": (
        "Components",
        "θ of attention, dense feed-forward, experts, routers and other parts, over all models.",
        ("components",),
    ),
    "scale": ("Scale law", "Does θ change with the number of parameters?", ("scale", "families")),
    "wells": ("Gravitational wells", "The matrix with the lowest θ in each model.", ("wells",)),
    "ingests": ("Ingests", "When models were added, their sizes, and how long it took.", ("ingest_totals", "ingests")),
}
"""For each key of a page: its heading, its description and its sections, of which some are for the owner only."""
FIRST_SECTIONS = ("figures", "actions", "families")
"""The sections on the first page."""


@paged("/reports", api="report")
def reports() -> WebPage:
    """Show the registry in figures, what one can do, the families of models, and links to the measures."""
    addresses = [
        {"label": heading, "about": about, "address": url_for("pages.report", section=section)}
        for section, (heading, about, _) in PAGES.items()
    ]
    links = {"links": addresses, "may_see_storage": may_see_storage()}
    try:
        full_report = api.full_report()
    except TooSlow as error:
        return WebPage("reports.html", {"problem": _too_slow_text(error), **links}, status=503)
    firsts = [_shown_section(key, full_report.sections[key]) for key in FIRST_SECTIONS]
    values = {"report": full_report, "firsts": firsts, "markdown": url_for("pages.reports_markdown")}
    return WebPage("reports.html", values | links)


@paged(f"/reports/<any({','.join(PAGES)}):section>", csv=True, api="report_section")
def report(section: str) -> WebPage:
    """Show one part of the report on the registry; `table` chooses the table of a CSV file."""
    heading, about, keys = PAGES[section]
    texts = {"heading": heading, "about": about}
    try:
        full_report = api.full_report()
        own = {key: full_report.sections[key] for key in keys if key in full_report.sections}
        sections = _scale_sections() if section == "scale" else own
    except TooSlow as error:
        if not plain_page():
            raise
        return WebPage("report.html", {"problem": _too_slow_text(error), **texts}, status=503)
    part = replace(full_report, title=f"Report on the registry: {heading}", sections=sections, main=keys[-1])
    texts["markdown"] = url_for("pages.reports_markdown")
    return WebPage(
        "report.html",
        lambda: {
            **_section_context(part, url_for("pages.report_csv", section=section)),
            **texts,
            **_figure(section, part),
        },
        sheet=lambda: _sheet(part),
    )


@paged("/models/<namespace>/<name>/report", csv=True, api="report_on_model")
def dissection(namespace: str, name: str) -> WebPage:
    """Show the report on one model; `table` chooses the table of a CSV file."""
    full_report, model = _model_report(namespace, name)
    texts = {
        "heading": f"Report on {model}",
        "about": "Its parts, what it shares with other models, and all measurements.",
        "model_name": model,
        "markdown": model_address(model, "pages.dissection_markdown"),
    }
    return WebPage(
        "report.html",
        lambda: texts | _section_context(full_report, model_address(model, "pages.dissection_csv"), model),
        sheet=lambda: _sheet(full_report),
    )


@pages.get("/reports.md")
def reports_markdown() -> Response:
    """Send the report on the registry as Markdown."""
    return _markdown_answer(api.full_report())


@pages.get("/models/<namespace>/<name>/report.md")
def dissection_markdown(namespace: str, name: str) -> Response:
    """Send the report on a model as Markdown."""
    return _markdown_answer(_model_report(namespace, name)[0])


@pages.get("/reports/types.svg")
def types_chart() -> Response:
    """Send the chart of θ by type."""
    spreads = _type_spreads(api.full_report())
    if not spreads:
        raise NotFound("no tensor has a θ yet")
    return svg_answer(plots.types_chart(spreads))


@pages.get("/reports/scale.svg")
def scale_chart() -> Response:
    """Send the chart of θ against the number of parameters."""
    points, lines = _scale_points(_scale_sections())
    if not points:
        raise NotFound("there is no complete model with a θ yet")
    return svg_answer(plots.scale_chart(points, lines))


def _scale_sections() -> dict[str, ReportSection]:
    """Return the scale law with all its families. It is made once for each state of the catalog. Raises TooSlow."""

    def made(session: Session) -> dict[str, ReportSection]:
        tables = scale_tables(session, tensor_figures(session).matrices, FAMILIES_MAX)
        return dict(zip(PAGES["scale"][2], tables, strict=True))

    with reading(api.REPORT_SECONDS) as session:
        return cached(session, "scale law", lambda: made(session))


def _model_report(namespace: str, name: str) -> tuple[Report, str]:
    with reading(api.REPORT_SECONDS) as session:
        model = addressed_model(session, namespace, name)
        return model_report(session, model, complete=may_see_storage()), model.full_name


def _section_context(part: Report, csv: str, model: str | None = None) -> Context:
    """Return the sections for the template, each with the address of its CSV file."""
    return {
        "parts": [_shown_section(key, section, model, f"{csv}?table={key}") for key, section in part.sections.items()],
        "introduction": part.opening,
        "conclusion": part.closing,
    }


def _too_slow_text(error: TooSlow) -> str:
    return f"The report was stopped: {error}. It reads the whole catalog, which is busy or very large. Try again later."


def _sheet(part: Report) -> Sheet:
    """Return the table that the parameter `table` names, else the main table. Raises BadQuery."""
    key = request.args.get("table") or part.main
    if key not in part.sections:
        raise BadQuery("table", f"one of {', '.join(part.sections)}")
    return Sheet(*section_sheet(part.sections[key]))


def _markdown_answer(full_report: Report) -> Response:
    answer = current_app.response_class(markdown(full_report), mimetype="text/markdown")
    answer.headers["Content-Disposition"] = 'attachment; filename="report.md"'
    return conditional(answer)


def _figure(section: str, part: Report) -> Context:
    """Return the chart of a section, if it has one with something to draw."""
    if section == "types" and (spreads := _type_spreads(part)):
        figure = {
            "address": url_for("pages.types_chart"),
            "width": plots.TYPES_WIDTH,
            "height": plots.types_height(len(spreads)),
            "alternative": (
                "Mean, median, middle half and standard deviation of θ by type; the table below has the numbers."
            ),
            "caption": (
                "Dot: mean, coloured by θ. Bar: middle half. Line: mean ± one standard deviation. Tick: median. "
                f"{UNCERTAIN}: most of its tensors have an uncertain θ."
            ),
        }
    elif section == "scale" and _scale_points(part.sections)[0]:
        figure = {
            "address": url_for("pages.scale_chart"),
            "width": plots.SCALE_WIDTH,
            "height": plots.SCALE_HEIGHT,
            "alternative": (
                "θ of matrices against the number of parameters, a dot for each family; the tables have the numbers."
            ),
            "caption": "One dot for each family, larger for more models, coloured by θ.",
        }
    else:
        return {}
    return {"figure": figure}


def _type_spreads(full_report: Report) -> list[plots.TypeSpread]:
    quartiles = (f"theta_{name}_degrees" for name in ("lower_quartile", "median", "upper_quartile"))
    keys = ("mean_theta_degrees", "theta_standard_deviation_degrees", *quartiles)
    spreads = []
    for row in _items(full_report.sections["types"]):
        numbers = [_float(row[key]) for key in keys]
        if None not in numbers:
            mark = UNCERTAIN if row["caution"] else ""
            label = f"{glyph(str(row['type']))} {mark}{type_name(str(row['type']))}"
            spreads.append(plots.TypeSpread(label, *(number for number in numbers if number is not None)))
    return spreads


def _scale_points(sections: Mapping[str, ReportSection]) -> tuple[list[plots.SizedPoint], list[plots.FittedLine]]:
    """Return the families with a known θ of matrices, and the fitted lines."""
    points = []
    for row in _items(sections["families"]):
        parameters, theta = _float(row["mean_parameters_count"]), _float(row["matrix_mean_theta_degrees"])
        if parameters and theta is not None:
            points.append(plots.SizedPoint(parameters, theta, int(_float(row["models_count"]) or 1)))
    fitted = [row for row in _items(sections["scale"]) if row["reading"] == "matrices"]
    lines = [
        plots.FittedLine(
            label, look, _float(row["slope_degrees_per_decade"]) or 0.0, _float(row["intercept_degrees"]) or 0.0
        )
        for label, look, row in zip(("families", "models"), ("curve", "dashed"), fitted, strict=False)
    ]
    return points, lines


def _items(section: ReportSection) -> Sequence[Mapping[str, Cell]]:
    return section.items if isinstance(section, ReportTable) else ()


def _float(value: Cell) -> float | None:
    return None if isinstance(value, str) else value
