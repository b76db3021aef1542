"""`organ report`: a report on the registry or on a model."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path

import click
from rich.cells import cell_len

from organs.cli.console import (
    WIDTH_MAX,
    continued,
    output_options,
    plain,
    print_json,
    print_remark,
    print_sentence,
    prints_json,
    shortened,
    status_line,
    terminal_width,
    wrapped,
)
from organs.cli.outputs import check_free, force_option, output_option, write_text
from organs.cli.registries import selected_registry
from organs.cli.tables import PIPED_WIDTH, Table
from organs.registry.columns import CellKind
from organs.registry.entities.report import ORGANS_DEFAULT, ROWS_DEFAULT, Report, ReportSection, ReportTable
from organs.registry.errors import BadSource

PROSE_HEADINGS = ("meaning", "finding", "why not measured", "other members")
"""Last columns of report tables that have sentences."""
REPORT_LEAVES_OUT = (
    "parameters",
    "signal",
    "25%",
    "75%",
    "shape",
    "stored",
    "size",
    "caution",
    "deviation",
    "tensors",
    "type",
    "kind",
    "elements",
    "new",
    "share",
    "median",
    "spectral",
    "matrix θ",
    "mean θ",
)
"""Columns of report tables that a narrow terminal does without, the least important first."""
FORMS = ("text", "markdown", "json", "csv")
FORM_BY_SUFFIX = {
    "": "text",
    ".txt": "text",
    ".md": "markdown",
    ".markdown": "markdown",
    ".json": "json",
    ".csv": "csv",
}


@click.command()
@click.argument("model", required=False)
@click.option(
    "--format", "form", type=click.Choice(FORMS), help="The format. [default: by the suffix of FILE, otherwise text]"
)
@output_options(json="The same as --format json.")
@click.option("--csv", "as_csv", is_flag=True, help="The same as --format csv: one table, chosen with --table.")
@click.option("--table", metavar="NAME", help="Print only this table. [default for CSV: ranking; for a MODEL, types]")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help=f"Print at most N rows of each list. [default: {ROWS_DEFAULT} models, {ORGANS_DEFAULT} tensors]",
)
@output_option("FILE", "Write the report to FILE.")
@force_option("Replace an existing FILE.")
def report(
    model: str | None,
    form: str | None,
    as_csv: bool,
    table: str | None,
    limit: int | None,
    output: Path | None,
) -> None:
    """Print a report on the registry or on one MODEL: tables of measures, with explanations.

    The report on the registry begins with the disk space that it saves, what you can do, and the families of models.
    Its tables are figures, actions, families, ranking, types, type_ranges, model_types, components, scale, wells,
    ingests and ingest_totals. The report on a model has model, notes, relatives, findings, dtypes, types, components,
    blocks, highest, wells, anomalies and methods.
    """
    forms = {*(["json"] if prints_json() else []), *(["csv"] if as_csv else []), *([form] if form else [])}
    if len(forms) > 1:
        raise click.UsageError("--json, --csv and --format exclude each other")
    suffix = output.suffix.lower() if output else ""
    if not forms and suffix not in FORM_BY_SUFFIX:
        raise BadSource(
            f"{output}: a report is text (.txt), Markdown (.md), JSON (.json) or CSV (.csv); for another name, "
            "choose with --format"
        )
    chosen = forms.pop() if forms else FORM_BY_SUFFIX[suffix]
    if output is not None:
        check_free(output)
    with selected_registry() as registry, status_line("report", quiet=chosen != "text"):
        result = registry.report(model, limit=limit)
    if table is not None:
        if table not in result.sections:
            raise click.UsageError(f"this report has no table {table!r}: it has {', '.join(result.sections)}")
        result = result.only(table)
    if output is None:
        _print_report(result, chosen)
        return
    with redirect_stdout(io.StringIO()) as printed:
        _print_report(result, chosen)
    write_text(output, printed.getvalue())
    print_remark(f"written to {output}")


def _print_report(report: Report, form: str) -> None:
    from organs.registry.reports.formats import markdown, section_sheet, sheet

    if form == "json":
        print_json(report)
    elif form == "csv":
        keys, rows = section_sheet(report.sections[report.main])
        harmless = ([plain(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
        click.echo(sheet([plain(key) for key in keys], harmless), nl=False)
    elif form == "markdown":
        for line in markdown(report).splitlines():
            click.echo(plain(line))
    else:
        _print_heading(report.title, "=")
        for key, section in report.sections.items():
            if key == report.main:
                _print_paragraphs(report.opening)
            click.echo()
            _print_heading(section.title, "-")
            if key == "actions" and isinstance(section, ReportTable) and section.items:
                _print_paragraphs(section.before)
                for row in section.items:  # findings as sentences, each with its model and the command that helps
                    about = "" if row["model"] is None else f"{row['model']}: "
                    click.echo()
                    print_sentence(f"{about}{row['finding']}", "- ")
                    for line in continued(plain(row["command"]), terminal_width() or PIPED_WIDTH):
                        click.echo(line)
                _print_paragraphs(section.after)
            else:
                _print_section(section)
        _print_paragraphs(report.closing)


def _print_heading(title: str, line: str) -> None:
    width, text = terminal_width(), plain(title)
    text = text if width is None else shortened(text, width)
    click.echo(f"{text}\n{line * cell_len(text)}")


def _print_section(section: ReportSection) -> None:
    from organs.registry.reports.formats import columns_and_rows
    from organs.registry.reports.words import explanations

    columns, rows = columns_and_rows(section)
    for column in columns[1:]:  # the first one names the row
        if column.heading in REPORT_LEAVES_OUT:
            column.rank = len(REPORT_LEAVES_OUT) - REPORT_LEAVES_OUT.index(column.heading)
    if columns[-1].heading in PROSE_HEADINGS:
        columns[-1].kind = CellKind.PROSE
    table = Table(columns, rows)
    left_out = {plain(column.heading) for column in columns} - set(table.headings)
    _print_paragraphs(explanations(section.before, left_out))
    if rows:
        click.echo()
        table.print()
    _print_paragraphs(explanations(section.after, left_out))


def _print_paragraphs(texts: Iterable[str]) -> None:
    """Print paragraphs, wrapped also in a file: to 80 columns there."""
    width = min(WIDTH_MAX, shutil.get_terminal_size().columns)
    for text in texts:
        click.echo("\n" + wrapped(plain(text), width))
