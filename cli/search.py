"""`organ search`: find organs."""

from __future__ import annotations

import click
from msgspec import structs

from organs.cli.arguments import (
    QueryCommand,
    any_registry,
    print_more,
)
from organs.cli.console import NONFINITE_MARK, plain, print_json, print_table
from organs.registry.anatomy import EXAMPLE_SLOTS
from organs.registry.catalog.search import ORGANS, Query, parse_query
from organs.registry.catalog.search.cursor import PAGE_MAX
from organs.registry.catalog.vocabulary import BIN_DEGREES
from organs.registry.entities.organ import FacetCounts, PlacedOrgan
from organs.registry.measures import BY_FIELD, MEASURES
from organs.registry.present.text import share_text, size_text, theta_text

_USUAL = ("theta", "spectral_signal")
"""Measures that every table shows; another is shown first when it is sorted by."""
_NUMBERS = ("size", "alike", *(one.label for one in MEASURES.values()))
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
    asked = parse_query(text)
    with any_registry() as registry:
        page = registry.search(text, limit=limit, after=after)
        told = page.next is not None and asked.like is None and not as_json  # "more of 238"
        counts = registry.count(text) if facets or told else None
    for note in page.notes:
        click.echo(f"note: {plain(note)}", err=True)
    if as_json:
        print_json(structs.replace(page, facets=counts))
        return
    if quiet:
        for organ in page:
            click.echo(organ.digest)
    else:
        _print_organs(page.items, asked)
        if facets and counts is not None:
            _print_counts(counts, asked)
    if page.next is not None:
        total = counts.total if counts is not None and counts.exact and not asked.unique else None
        print_more("search", text, [*(["-q"] if quiet else []), "--limit", str(limit)], page.next, total)


def _print_organs(organs: tuple[PlacedOrgan, ...], asked: Query) -> None:
    if not organs:
        click.echo("Nothing matches. organ search --help lists the fields.", err=True)
        return
    first, heading = _first_column(asked)
    columns = ["organ", "model", "tensor", "type", "dtype", *(MEASURES[name].label for name in _USUAL), "size"]
    rows = [[*([_number(first, getattr(organ, first))] if first else []), *_row(organ)] for organ in organs]
    print_table([*([heading] if first else []), *columns], rows, _NUMBERS)
    if asked.like is not None:
        click.echo("alike: 1 the same weights, below 0.2 not related", err=True)


def _first_column(asked: Query) -> tuple[str, str]:
    """The member that the list is ranked by, unless every table shows it, and its heading."""
    if asked.like is not None:
        return "likeness", "alike"
    measure = BY_FIELD.get(asked.sort.field)
    return (measure.name, measure.label) if measure and measure.name not in _USUAL else ("", "")


def _row(organ: PlacedOrgan) -> list[object]:
    numbers = [theta_text(organ.theta), share_text(organ.spectral_signal), size_text(organ.size_bytes)]
    name = f"{organ.name} {NONFINITE_MARK}" if organ.nonfinite else organ.name
    return [organ.digest[:12], organ.model, name, organ.type, organ.dtype, *numbers]


def _number(name: str, value: float | None) -> str:
    return MEASURES[name].text(value) if name in MEASURES else share_text(value)


def _print_counts(counts: FacetCounts, asked: Query) -> None:
    total = "too many to count one by one" if counts.total is None else f"{counts.total:,} organs at their places"
    about = "" if counts.exact or counts.total is None else "about "
    click.echo(f"\n{about}{total}")
    if counts.uncounted:
        click.echo(f"the counts below leave out {plain(', '.join(counts.uncounted))}")
    for name, values in counts.fields.items():
        shown = list(values.items())[:_VALUES_SHOWN]
        more = f", and {len(values) - len(shown)} more" if len(values) > len(shown) else ""
        label = f"any {name}" if asked.choices(name) else name  # its own filter is left out
        click.echo(f"{label + ':':12} {plain(', '.join(f'{value} {count:,}' for value, count in shown))}{more}")
    _print_histogram(counts, "any θ" if asked.numbers("theta") or asked.numbers("signal") else "θ")


def _print_histogram(counts: FacetCounts, label: str) -> None:
    by_bin = counts.theta_counts
    measured = [lower for lower, count in by_bin.items() if lower is not None and count]
    if measured:
        click.echo(f"{label}:")
    most = max(by_bin.values(), default=0)
    for lower in range(min(measured, default=0), max(measured, default=-1) + 1, BIN_DEGREES):
        count = by_bin.get(lower, 0)
        click.echo(
            f"{f'{lower}-{lower + BIN_DEGREES}°':>7} {'█' * round(_BAR_WIDTH * count / most):{_BAR_WIDTH}} {count:,}"
        )
    if unmeasured := by_bin.get(None):
        click.echo(f"   no θ {'█' * round(_BAR_WIDTH * unmeasured / most):{_BAR_WIDTH}} {unmeasured:,}")
