"""`organ report`."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path

import click

from organs.cli.arguments import (
    folder_registry,
    remote_registry,
)
from organs.cli.console import in_lines, plain, print_json, print_table
from organs.cli.elsewhere import report_there
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.errors import BadSource
from organs.registry.names import parse_model_name
from organs.registry.reports.dissection import ORGANS_DEFAULT, model_report
from organs.registry.reports.document import Report, Section, Table
from organs.registry.reports.formats import markdown, sheet
from organs.registry.reports.overview import ROWS_DEFAULT, registry_report
from organs.registry.store.files import placed

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
    """Explain what was measured: the registry, or one MODEL, in tables with what they mean and do not mean.

    The registry's tables are figures, ranking, types, scale, families and wells; a model's are model, notes,
    relatives, findings, dtypes, types, blocks, highest, wells, anomalies and methods.
    """
    if as_json and form not in (None, "json"):
        raise click.UsageError(f"--json and --format {form} exclude each other")
    chosen = "json" if as_json else form or _form_of(output)
    if output is not None:
        _check_target(output, force=force)
    made = _made(model, limit)
    if table is not None:
        if table not in made.keys:
            raise click.UsageError(f"{table!r} is no table of this report: it has {', '.join(made.keys)}")
        made = made.only(table)
    if output is None:
        _print(made, chosen)
        return
    with redirect_stdout(io.StringIO()) as printed:
        _print(made, chosen)
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


def _made(model: str | None, limit: int | None) -> Report:
    remote = remote_registry()
    if remote is not None:
        with remote:
            return report_there(remote, model, limit)
    with folder_registry() as registry, registry.catalog.reading() as session:
        if model is None:
            return registry_report(session, limit or ROWS_DEFAULT)
        return model_report(session, model_by_name(session, parse_model_name(model)), limit or ORGANS_DEFAULT)


def _print(made: Report, form: str) -> None:
    if form == "json":
        print_json(made.values())
        return
    harmless = made.with_texts(plain)
    if form == "csv":
        keys, rows = harmless.section(made.main).sheet()
        click.echo(sheet(keys, rows), nl=False)
    elif form == "markdown":
        click.echo(markdown(harmless), nl=False)
    else:
        _print_text(harmless)


def _print_text(made: Report) -> None:
    click.echo(f"{made.title}\n{'=' * len(made.title)}")
    _print_paragraphs(made.opening)
    for section in made.sections:
        click.echo(f"\n{section.title}\n{'-' * len(section.title)}")
        _print_section(section)
    _print_paragraphs(made.closing)


def _print_section(section: Section) -> None:
    if isinstance(section, Table) and not section.rows:
        _print_paragraphs((section.empty,))
        return
    _print_paragraphs(section.before)
    click.echo()
    grid = section.grid()
    numbers = [heading for heading, right in zip(grid.headings, grid.right, strict=True) if right]
    print_table(grid.headings, grid.rows, numbers)
    _print_paragraphs(section.after)


def _print_paragraphs(texts: tuple[str, ...]) -> None:
    for text in texts:
        click.echo("\n" + in_lines(text))


def _place(path: Path, data: bytes) -> None:
    """`data` at `path`, durable, or nothing."""
    with placed(path, len(data)) as file:
        file.write_at(data, 0)
