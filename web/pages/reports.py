"""Reports in tables, with the words that explain them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from flask import Response, current_app, request, url_for
from sqlalchemy.orm import Session

from organs.registry.anatomy import place_of
from organs.registry.catalog.memory import remembered
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.catalog.queries.reports import matrix_figures
from organs.registry.errors import BadName, BadQuery, NotFound, TooSlow
from organs.registry.names import parse_model_name
from organs.registry.present.values import Values
from organs.registry.reports.dissection import model_report
from organs.registry.reports.document import Cell, Column, Facts, Kind, Report, Section, Table, shown
from organs.registry.reports.formats import markdown
from organs.registry.reports.overview import registry_report
from organs.registry.reports.sections import scale_tables
from organs.web.charts import scale, types
from organs.web.links import model_address, with_parameters
from organs.web.pages.blueprint import pages
from organs.web.pages.charts import svg_answer
from organs.web.render import glyph
from organs.web.responses import (
    Page,
    Sheet,
    conditional,
    paged,
    plain_page,
    reading,
)

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


REPORT_SECONDS = 10.0
"""It takes a second and a half where there are a million placements, and is made once until the catalog changes."""
FAMILIES_MAX = 2000
"""Dots of the scale chart, and rows of its table."""
PAGES = {
    "ranking": ("Ranking", "Complete models by mean θ, with the mean over their matrices beside it.", ("ranking",)),
    "types": ("Types", "θ of attention, feed-forward, embeddings and norms, over all models.", ("types",)),
    "scale": ("Scale law", "Whether θ goes with the number of parameters.", ("scale", "families")),
    "wells": ("Gravitational wells", "The tensor with the lowest θ of each model.", ("wells",)),
}
"""Key of a page to its heading, what it is about, and the sections on it."""


@paged(pages, "/reports")
def reports() -> Page:
    """The registry in figures, and the way to each report."""
    try:
        whole = _registry_report()
    except TooSlow as error:
        if not plain_page():
            raise
        late = {"problem": _late(error), "links": _page_links()}
        return Page("reports.html", {}, extra=lambda: late, status=503)
    return Page("reports.html", whole.values(), extra=lambda: {"links": _page_links(), **_figures(whole)})


@paged(pages, f"/reports/<any({','.join(PAGES)}):section>", csv=True)
def report(section: str) -> Page:
    """One part of the report on the registry; `table` chooses the table of a CSV."""
    heading, about, keys = PAGES[section]
    try:
        whole = _registry_report()
        sections = _scale_sections() if section == "scale" else tuple(whole.section(one) for one in keys)
    except TooSlow as error:
        if not plain_page():
            raise
        extra = {"problem": _late(error), "heading": heading, "about": about}
        return Page("report.html", {}, extra=lambda: extra, status=503)
    part = replace(whole, title=f"Report on the registry: {heading}", sections=sections, main=keys[-1])
    chart: Callable[[Report], Values] = {"types": _types_figure, "scale": _scale_figure}.get(section, lambda _: {})
    return Page(
        "report.html",
        part.values(),
        extra=lambda: _shown(part, url_for("pages.report_csv", section=section)) | _about(heading, about) | chart(part),
        sheet=lambda: _sheet(part),
    )


@paged(pages, "/models/<namespace>/<name>/report", csv=True)
def dissection(namespace: str, name: str) -> Page:
    """The report on one model; `table` chooses the table of a CSV."""
    whole, model = _model_report(namespace, name)
    about = _about(f"Report on {model}", "What it is made of, what it shares, and how its organs read.")
    links = {
        "model_name": model,
        "markdown": model_address(model, "pages.dissection_markdown"),
    }
    return Page(
        "report.html",
        whole.values(),
        extra=lambda: _shown(whole, model_address(model, "pages.dissection_csv"), model) | about | links,
        sheet=lambda: _sheet(whole),
    )


@pages.get("/reports.md")
def reports_markdown() -> Response:
    """The whole report on the registry as Markdown."""
    return _markdown_answer(_registry_report(), "report.md")


@pages.get("/models/<namespace>/<name>/report.md")
def dissection_markdown(namespace: str, name: str) -> Response:
    """The report on one model as Markdown."""
    return _markdown_answer(_model_report(namespace, name)[0], "report.md")


@pages.get("/reports/types.svg")
def types_chart() -> Response:
    """θ by type of organ."""
    spreads = _spreads(_registry_report())
    if not spreads:
        raise NotFound("no organ has a θ yet")
    return svg_answer(types.types_chart(spreads))


@pages.get("/reports/scale.svg")
def scale_chart() -> Response:
    """θ over the number of parameters."""
    points, lines = _points(_scale_sections())
    if not points:
        raise NotFound("there is no complete model with a θ yet")
    return svg_answer(scale.scale_chart(points, lines))


def _registry_report() -> Report:
    """The report on the registry, made once for each state of the catalog; raises TooSlow."""
    with reading(REPORT_SECONDS) as session:
        return remembered(session, "registry report", lambda: registry_report(session))


def _scale_sections() -> tuple[Table, ...]:
    """The scale law with all of its families, made once for each state of the catalog; raises TooSlow."""
    with reading(REPORT_SECONDS) as session:
        return remembered(session, "scale law", lambda: _made_scale(session))


def _made_scale(session: Session) -> tuple[Table, ...]:
    return scale_tables(session, matrix_figures(session), FAMILIES_MAX)


def _model_report(namespace: str, name: str) -> tuple[Report, str]:
    with reading(REPORT_SECONDS) as session:
        model = model_by_name(session, parse_model_name(f"{namespace}/{name}"))
        return model_report(session, model), model.full_name


def _shown(part: Report, csv: str, model: str | None = None) -> Values:
    """The sections for the template, each with the address of its CSV."""
    joint = "&" if "?" in csv else "?"
    return {
        "parts": [shown_section(one, model) | {"csv": f"{csv}{joint}table={one.key}"} for one in part.sections],
        "introduction": part.opening,
        "conclusion": part.closing,
    }


def _about(heading: str, about: str) -> Values:
    return {"heading": heading, "about": about, "markdown": url_for("pages.reports_markdown")}


def _late(error: TooSlow) -> str:
    return f"The report was stopped: {error}. It is made from the whole catalog, which is busy or very large."


def _page_links() -> list[Values]:
    return [
        {"label": heading, "about": about, "address": url_for("pages.report", section=section)}
        for section, (heading, about, _) in PAGES.items()
    ]


def _sheet(part: Report) -> Sheet:
    """The table that `table` asks for, else the main one; raises BadQuery."""
    key = request.args.get("table") or part.main
    if key not in part.keys:
        raise BadQuery("table", f"one of {', '.join(part.keys)}")
    return Sheet(*part.section(key).sheet())


def _markdown_answer(whole: Report, name: str) -> Response:
    answer = current_app.response_class(markdown(whole), mimetype="text/markdown")
    answer.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return conditional(answer)


def _figures(whole: Report) -> Values:
    return {"figures": shown_section(whole.section("figures")), "markdown": url_for("pages.reports_markdown")}


def _types_figure(part: Report) -> Values:
    count = len(_spreads(part))
    alternative = "Mean, median, middle half and deviation of θ by type; the table below has the numbers."
    caption = "Dot: mean, in the colour of θ. Bar: the middle half. Line: one deviation to either side. Stroke: median."
    return _figure("pages.types_chart", types.WIDTH, types.types_height(count), alternative, caption) if count else {}


def _scale_figure(part: Report) -> Values:
    points, _ = _points(part.sections)
    alternative = "θ of matrices over the number of parameters, a dot a family; the tables below have the numbers."
    caption = "A dot a family, larger for more models, in the colour of θ."
    return _figure("pages.scale_chart", scale.WIDTH, scale.HEIGHT, alternative, caption) if points else {}


def _figure(endpoint: str, width: int, height: int, alternative: str, caption: str) -> Values:
    size = {"width": width, "height": height}
    return {"figure": {"address": url_for(endpoint), "alternative": alternative, "caption": caption, **size}}


def _spreads(whole: Report) -> list[types.TypeSpread]:
    rows = whole.section("types").values()["items"]
    keys = ("mean_theta_degrees", "theta_standard_deviation_degrees")
    quartiles = tuple(f"theta_{name}_degrees" for name in ("lower_quartile", "median", "upper_quartile"))
    return [
        types.TypeSpread(f"{glyph(row['type'])} {row['type']}", *(row[key] for key in (*keys, *quartiles)))
        for row in rows
        if all(row[key] is not None for key in (*keys, *quartiles))
    ]


def _points(sections: tuple[Section, ...]) -> tuple[list[scale.SizedPoint], list[scale.FittedLine]]:
    """Families that have a θ of matrices, and the lines through it."""
    fitted, families = (section.values()["items"] for section in sections)
    points = [
        scale.SizedPoint(row["mean_parameters_count"], row["matrix_mean_theta_degrees"], row["models_count"])
        for row in families
        if row["matrix_mean_theta_degrees"] is not None and row["mean_parameters_count"] > 0
    ]
    lines = [
        scale.FittedLine(label, look, row["slope_degrees_per_decade"], row["intercept_degrees"])
        for label, look, row in zip(("families", "models"), ("curve", "dashed"), _of_matrices(fitted), strict=False)
    ]
    return points, lines


def _of_matrices(fitted: list[Values]) -> list[Values]:
    return [row for row in fitted if row["reading"] == "matrices"]
