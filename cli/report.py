"""`organ report`."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path

import click

from organs.cli.arguments import any_registry
from organs.cli.console import in_lines, plain, print_json, print_table
from organs.registry.entities.report import ORGANS_DEFAULT, ROWS_DEFAULT, Report, ReportSection
from organs.registry.errors import BadSource
from organs.registry.reports.formats import grid, markdown, section_sheet, sheet

_FORMATS = ("text", "markdown", "json", "csv")
_BY_SUFFIX = {
    "": "text",
    ".txt": "text",
    ".md": "markdown",
    ".markdown": "markdown",
    ".json": "json",
    ".csv": "csv",
}


@click.command()
@click.argument("model", required=False)
@click.option("--format", "form", type=click.Choice(_FORMATS), help="By default by the end of -o's name, else text.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--table", metavar="NAME", help="One table only. CSV has one at a time: ranking, or types of a MODEL.")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help=f"Rows of a list: {ROWS_DEFAULT} models or {ORGANS_DEFAULT} tensors by default.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write it to FILE, whole.")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
def report(
    model: str | None,
    form: str | None,
    as_json: bool,
    table: str | None,
    limit: int | None,
    output: Path | None,
    force: bool,
) -> None:
    """Explain what was measured, of the registry or of one MODEL, in tables and with their meaning.

    The registry's tables are figures, ranking, types, scale, families and wells; a model's are model, notes,
    relatives, findings, dtypes, types, blocks, highest, wells, anomalies and methods.
    """
    if as_json and form not in (None, "json"):
        raise click.UsageError(f"--json and --format {form} exclude each other")
    chosen = "json" if as_json else form or _form_of(output)
    if output is not None:
        _check_target(output, force=force)
    with any_registry() as registry:
        result = registry.report(model, limit=limit)
    if table is not None:
        if table not in result.sections:
            raise click.UsageError(f"this report has no table {table!r}: it has {', '.join(result.sections)}")
        result = result.only(table)
    if output is None:
        _print(result, chosen)
        return
    with redirect_stdout(io.StringIO()) as printed:
        _print(result, chosen)
    _place(output, printed.getvalue().encode())
    click.echo(f"written to {plain(output)}", err=True)


def _form_of(output: Path | None) -> str:
    """The format that the end of the name of `output` stands for; text without one."""
    suffix = output.suffix.lower() if output else ""
    if suffix not in _BY_SUFFIX:
        raise BadSource(
            f"{output}: a report is text (.txt), Markdown (.md), JSON (.json) or CSV (.csv); --format chooses "
            "one whatever the name is"
        )
    return _BY_SUFFIX[suffix]


def _check_target(output: Path, *, force: bool) -> None:
    if output.is_dir():
        raise BadSource(f"{output}: a folder is there")
    if output.exists() and not force:
        raise BadSource(f"{output}: there already; --force replaces it")
    if not output.parent.is_dir():
        raise BadSource(f"{output.parent}: no such folder")


def _print(report: Report, form: str) -> None:
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
        _print_text(report)


def _print_text(report: Report) -> None:
    _print_heading(report.title, "=")
    _print_paragraphs(report.opening)
    for section in report.sections.values():
        click.echo()
        _print_heading(section.title, "-")
        _print_section(section)
    _print_paragraphs(report.closing)


def _print_heading(title: str, line: str) -> None:
    shown = plain(title)
    click.echo(f"{shown}\n{line * len(shown)}")


def _print_section(section: ReportSection) -> None:
    _print_paragraphs(section.before)
    shown = grid(section)
    if shown.rows:
        click.echo()
        headings = [plain(heading) for heading in shown.headings]
        numbers = [heading for heading, right in zip(headings, shown.right, strict=True) if right]
        print_table(headings, shown.rows, numbers)
    _print_paragraphs(section.after)


def _print_paragraphs(texts: tuple[str, ...]) -> None:
    for text in texts:
        click.echo("\n" + in_lines(plain(text)))


def _place(path: Path, data: bytes) -> None:
    """Write `data` to `path`, durably, or nothing."""
    from organs.registry.store.files import placed

    with placed(path, len(data)) as file:
        file.write_at(data, 0)
