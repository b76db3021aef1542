"""`organ search`: find organs."""

from __future__ import annotations

import shlex

import click

from cli.console import plain, print_json, print_table
from cli.querying import QueryCommand
from registry.anatomy import EXAMPLE_SLOTS
from registry.catalog.bins import BIN_DEGREES
from registry.catalog.queries.search import PAGE_MAX
from registry.catalog.search import ORGANS, FacetCounts, FoundOrgan
from registry.present.search import search_values
from registry.present.text import share_text, size_text, theta_text
from registry.registry import Registry

_NUMBERS = ("block", "θ", "spectral", "size", "likeness", "organs")
_BAR_WIDTH = 40
_VALUES_SHOWN = 12


def _fields_help() -> str:
    lines = [f"  {field.name + ':':10} {field.meaning}" for field in ORGANS.fields.values()]
    return "\n".join(lines)


@click.command(
    cls=QueryCommand,
    epilog="\b\nFields\n" + _fields_help() + "\n\n\b\n"
    "Any other word is looked for in the names, titles, tags and descriptions of models.\n"
    f"  slot:{','.join(EXAMPLE_SLOTS)}   one of them        -type:norm      not this\n"
    "  block:5-20             a range            theta>=45       a bound\n"
    "  sort:-spectral         the highest first  unique:organ    each organ once\n"
    "  like:DIGEST            the most alike first, among organs of its slot and shape",
)
@click.argument("query", nargs=-1)
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, PAGE_MAX), help="Organs on a page.")
@click.option("--after", metavar="PLACE", help="Go on behind a page: its `next`.")
@click.option("--facets", is_flag=True, help="Also count what is found, by type, slot, dtype and so on.")
@click.option("--json", "as_json", is_flag=True, help="The page as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print digests only.")
def search(query: tuple[str, ...], limit: int, after: str | None, facets: bool, as_json: bool, quiet: bool) -> None:
    """Find organs: `organ search type:organ theta:35-60 sort:-spectral`.

    Without sort: the highest θ comes first. θ is the shape of an organ's weights between noise (0°) and signal (90°);
    it does not say how good an organ is.
    """
    text = " ".join(query)
    with Registry.open() as registry:
        page = registry.search(text, limit=limit, after=after)
        counts = registry.count(text) if facets else None
    for note in page.notes:
        click.echo(f"note: {plain(note)}", err=True)
    if as_json:
        print_json(search_values(page, counts))
        return
    if quiet:
        for organ in page:
            click.echo(organ.digest)
    else:
        _print_organs(page.items)
        if counts is not None:
            _print_counts(counts)
    if page.next is not None:
        click.echo(f"more: organ search {shlex.quote(text)} --limit {limit} --after {page.next}", err=True)


def _print_organs(organs: tuple[FoundOrgan, ...]) -> None:
    if not organs:
        click.echo("Nothing matches. organ search --help lists the fields.", err=True)
        return
    alike = organs[0].likeness is not None
    columns = [*(["likeness"] if alike else []), "organ", "model", "tensor", "type", "dtype", "θ", "spectral", "size"]
    print_table(columns, [_row(organ, alike) for organ in organs], _NUMBERS)


def _row(organ: FoundOrgan, alike: bool) -> list[object]:
    likeness = [share_text(organ.likeness)] if alike else []
    numbers = [theta_text(organ.theta), share_text(organ.spectral_signal), size_text(organ.size_bytes)]
    return [*likeness, organ.digest[:12], organ.model, organ.name, organ.type, organ.dtype, *numbers]


def _print_counts(counts: FacetCounts) -> None:
    total = "too many to count one by one" if counts.total is None else f"{counts.total:,} organs at their places"
    about = "" if counts.exact or counts.total is None else "about "
    click.echo(f"\n{about}{total}")
    if counts.uncounted:
        click.echo(f"the counts below leave out {plain(', '.join(counts.uncounted))}", err=True)
    for name, values in counts.fields.items():
        shown = list(values.items())[:_VALUES_SHOWN]
        more = f", and {len(values) - len(shown)} more" if len(values) > len(shown) else ""
        click.echo(f"{name + ':':8} {plain(', '.join(f'{value} {count:,}' for value, count in shown))}{more}")
    most = max(counts.theta.values(), default=0)
    for lower, count in counts.theta.items():
        label = "no θ" if lower is None else f"{lower}-{lower + BIN_DEGREES}°"
        click.echo(f"{label:>7} {'█' * round(_BAR_WIDTH * count / most):{_BAR_WIDTH}} {count:,}" if count else "")
