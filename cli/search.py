"""`organ search`: find organs. What its tables have in common with those of `organ models` is also here."""

from __future__ import annotations

from collections.abc import Sequence

import click
from msgspec import structs

from organs.cli.console import (
    NONFINITE_MARK,
    is_for_people,
    output_options,
    plain,
    print_facts,
    print_hint,
    print_page,
    print_remark,
    print_sentence,
    prints_json,
    status_line,
)
from organs.cli.options import QueryCommand, after_option, flag, limit_option
from organs.cli.registries import selected_registry
from organs.cli.tables import print_table
from organs.registry.amounts import CHANGE_LEGEND, share_text, size_text, weight_change_text
from organs.registry.anatomy import EXAMPLE_SLOTS
from organs.registry.catalog.vocabulary import BIN_DEGREES
from organs.registry.entities.gain import MeasuredGain
from organs.registry.entities.model import ModelSummary
from organs.registry.entities.organ import FacetCounts, PlacedOrgan
from organs.registry.measures import BY_FIELD, MEASURES, THETA_LEGEND
from organs.registry.search.language import GAIN, LIKENESS, ORGANS, Query, parse_query

CHANGE = "change"
USUAL = ("theta", "spectral_signal")
"""Measures in every table. Another measure is the first column if the list is sorted by it."""
BAR_WIDTH = 40
VALUES_SHOWN = 12
LEGENDS = {
    GAIN: "gain +5.7%: the perplexity of the chimera is 5.7% lower than that of its base; more is better",
    LIKENESS: "likeness: 1 for the same weights, below 0.2 for unrelated weights",
    CHANGE: CHANGE_LEGEND,
}
"""Printed below a table with this column."""


@click.command(
    cls=QueryCommand,
    fields={field.name: field.meaning for field in ORGANS.fields.values()},
    epilog="Any other word is searched in the names, titles, tags and descriptions of models.\n\n\b\n"
    f"  slot:{','.join(EXAMPLE_SLOTS)}   either value       -type:norm      exclude a value\n"
    "  block:5-20             a range            theta>=45       a bound\n"
    "  sort:-spectral         the highest first  unique:organ    each organ once\n"
    "  like:DIGEST            organs like this one, the most similar first",
)
@click.argument("query", nargs=-1)
@limit_option("Organs on a page.", 20)
@after_option
@flag("--facets", "Also count the results by type, slot, tensor type, architecture, license and θ.")
@output_options(json="Print the page as JSON.", quiet="Print digests only.")
def search(query: tuple[str, ...], limit: int, after: str | None, facets: bool) -> None:
    """Find organs (tensors): `organ search type:organ theta:35-60 sort:-spectral`.

    Without a query, the feed-forward organs with the most structure are listed; with --json or -q, all organs.

    An organ is any tensor of a model; `type:organ` means only feed-forward tensors. Without `sort:`, the organs with
    the highest θ come first. θ is the shape of the distribution of an organ's weights: 0° uniform, about 34° Gaussian
    (also untrained), 90° heavy tails. It does not tell how good an organ is.

    With a base (`fits:MODEL` or `kin:MODEL`), the table has the change of each organ from the organ of the base at the
    same place, and without `sort:` the most similar organs come first: `organ search fits:acme/base likeness:0.5-0.99`.
    """
    begins = not query and is_for_people()
    text = ORGANS.start if begins else " ".join(query)
    parsed = parse_query(text)
    with selected_registry() as registry, status_line("search"):
        page = registry.search(text, limit=limit, after=after)
        shows_total = page.next is not None and parsed.like is None and not prints_json()  # "more of 238"
        counts = registry.count(text) if facets or shows_total else None

    def print_organs(organs: Sequence[PlacedOrgan]) -> None:
        _print_organs(organs, parsed)
        if begins:
            print_hint("feed-forward organs first; all organs", "organ search sort:-theta")
        if facets and counts is not None:
            _print_counts(counts, parsed)

    total = counts.total if counts is not None and counts.exact and not parsed.unique else None
    print_page(structs.replace(page, facets=counts), lambda organ: organ.digest, print_organs, total=total)


def _print_organs(organs: Sequence[PlacedOrgan], parsed: Query) -> None:
    if not organs:
        print_remark("Nothing matches. organ search --help lists the fields.")
        return
    # The table begins with the likeness to an organ or the change from a base, the measured gain if the query is about
    # gains, and the measure that the list is sorted by if no table shows it.
    firsts = first_columns(parsed)
    measure = None if parsed.like is not None else BY_FIELD.get(parsed.sort.field)
    if measure is not None and measure.name not in USUAL:
        firsts[measure.name] = measure.label
    labels = [MEASURES[name].label for name in USUAL]
    columns = [*firsts.values(), "organ", "model", "tensor", "type", "dtype", *labels, "size"]
    rows = [
        [
            *(first_cell(name, organ) for name in firsts),
            organ.digest[:12],
            organ.model,
            f"{organ.label} {NONFINITE_MARK}" if organ.nonfinite else organ.label,
            organ.type,
            organ.dtype,
            organ.theta_text,
            share_text(organ.spectral_signal),
            size_text(organ.size_bytes),
        ]
        for organ in organs
    ]
    numbers = ("size", LIKENESS, CHANGE, *(measure.label for measure in MEASURES.values()))
    print_table(columns, rows, numbers, digests=("organ",), leave_out=("type", "size", "dtype", labels[-1]))
    print_legends(firsts, organs)


def first_columns(parsed: Query) -> dict[str, str]:
    """Return the members with which the table for a query begins, and their headings."""
    columns = {LIKENESS: LIKENESS} if parsed.like is not None else {CHANGE: CHANGE} if parsed.base is not None else {}
    return columns | ({GAIN: GAIN} if parsed.mentions_gains else {})


def first_cell(name: str, item: PlacedOrgan | ModelSummary) -> str:
    """Return a member of a found organ or model as text."""
    value = getattr(item, name)
    if name == CHANGE:
        return weight_change_text(item.change, item.likeness)
    if isinstance(value, MeasuredGain) or name == GAIN:
        return "–" if value is None else plain(str(value))
    return MEASURES[name].text(value) if name in MEASURES else share_text(value)


def print_legends(columns: Sequence[str] | dict[str, str], items: Sequence[PlacedOrgan | ModelSummary]) -> None:
    """Print on stderr what uncertain values of θ and the first columns of a table mean."""
    if any(item.theta_caution for item in items):
        print_remark(THETA_LEGEND)
    for name, legend in LEGENDS.items():
        if name in columns:
            print_remark(legend)


def _print_counts(counts: FacetCounts, parsed: Query) -> None:
    about = "" if counts.exact else "about "
    total = "too many to count" if counts.total is None else f"{about}{counts.total:,} (each place of an organ counts)"
    click.echo(f"\nresults: {total}")
    if counts.uncounted:
        print_sentence(f"the counts below ignore these filters: {', '.join(counts.uncounted)}")
    facts = []
    for name, values in counts.fields.items():
        shown = list(values.items())[:VALUES_SHOWN]
        more = f", and {len(values) - len(shown)} more" if len(values) > len(shown) else ""
        label = f"any {name}" if parsed.choices(name) else name  # its own filter is left out
        facts.append((f"{label}:", ", ".join(f"{value} {count:,}" for value, count in shown) + more))
    print_facts(facts)
    by_bin = counts.theta_counts
    measured = [lower for lower, count in by_bin.items() if lower is not None and count]
    if measured:
        click.echo("any θ:" if parsed.numbers("theta") or parsed.numbers("signal") else "θ:")
    most = max(by_bin.values(), default=0)
    bars = [
        (f"{lower}-{lower + BIN_DEGREES}°", by_bin.get(lower, 0))
        for lower in range(min(measured, default=0), max(measured, default=-1) + 1, BIN_DEGREES)
    ]
    bars += [("no θ", count) for lower, count in by_bin.items() if lower is None and count]
    for label, count in bars:
        click.echo(f"{label:>7} {'█' * round(BAR_WIDTH * count / most):{BAR_WIDTH}} {count:,}")
