"""`organ search`: find tensors. What its tables have in common with those of `organ models` is also here."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import click
from msgspec import structs

from organs.cli.console import (
    F,
    is_for_people,
    output_options,
    print_facts,
    print_hint,
    print_remark,
    print_sentence,
    printed_for_programs,
    prints_json,
    status_line,
)
from organs.cli.options import QueryCommand, after_option, flag, limit_option
from organs.cli.registries import selected_registry
from organs.cli.tables import print_page, print_table
from organs.registry.amounts import CHANGE_LEGEND
from organs.registry.anatomy import EXAMPLE_SLOTS
from organs.registry.catalog.vocabulary import BIN_DEGREES
from organs.registry.columns import Column, for_people
from organs.registry.entities.model import ModelSummary
from organs.registry.entities.organ import COLUMNS, FacetCounts, PlacedOrgan
from organs.registry.entities.query import SavedQueries
from organs.registry.errors import NotFound
from organs.registry.measures import THETA_LEGEND
from organs.registry.names import nearest
from organs.registry.search.language import GAIN, LIKENESS, ORGANS, Query, parse_query

BAR_WIDTH = 40
VALUES_SHOWN = 12
SAVED_COMMANDS = {"models": "organ models", "organs": "organ search"}
"""The command that lists the results of queries for each list."""
LEGENDS = {
    GAIN: "gain +5.7%: the perplexity of the chimera is 5.7% lower than that of its base; more is better",
    LIKENESS: "likeness: 1 for the same weights, below 0.2 for unrelated weights",
    "change": CHANGE_LEGEND,
}
"""Printed below a table with this column."""


SAVED_MARK = "@"
"""What the name of a saved query begins with in a query."""


def saving_options(command: F) -> F:
    """Return `command` with the options that save queries under names, list them and delete them."""
    for option in (
        flag("--saved", "List the saved queries."),
        click.option("--forget", metavar="NAME", help="Delete the saved query NAME."),
        click.option("--save", metavar="NAME", help="Save the query; later, @NAME stands for it in a query."),
    ):
        command = option(command)
    return command


def changes_saved(kind: str, text: str, save: str | None, forget: str | None, *, saved: bool) -> bool:
    """Do what `saving_options` ask for with the queries for the list `kind`; return False if they ask for nothing."""
    if [save is not None, forget is not None, saved].count(True) > 1:
        raise click.UsageError("choose one of --save, --saved and --forget")
    if save is None and forget is None and not saved:
        return False
    if save is not None and not text.strip():
        raise click.UsageError(f"write the query to save: {SAVED_COMMANDS[kind]} --save {save} 'QUERY'")
    with selected_registry() as registry:
        if saved:
            items = tuple(query for query in registry.saved_queries().items if query.kind == kind)
            found = SavedQueries(items=items)
            if printed_for_programs(found, (query.name for query in items)):
                return True
            print_facts((f"{SAVED_MARK}{query.name}", query.query) for query in items)
            if not items:
                print_hint("no query is saved; to save one", f"{SAVED_COMMANDS[kind]} --save NAME 'QUERY'")
            return True
        if save is not None:
            changed = registry.save_query(kind, save.removeprefix(SAVED_MARK), text)
        else:
            changed = registry.delete_query(kind, (forget or "").removeprefix(SAVED_MARK))
    if not printed_for_programs(changed, (changed.name,)):
        if save is None:
            print_remark(f"The query {changed.name} was deleted.")
        else:
            print_hint("saved", f"{SAVED_COMMANDS[kind]} {SAVED_MARK}{changed.name}")
    return True


def query_text(kind: str, words: Sequence[str]) -> str:
    """Return the query in `words`, in which `@NAME` stands for a saved query for the list `kind`. Raises NotFound."""
    if not any(word.startswith(SAVED_MARK) for word in words):
        return " ".join(words)
    with selected_registry() as registry:
        saved = {query.name: query.query for query in registry.saved_queries().items if query.kind == kind}
    texts = []
    for word in words:
        name = word.removeprefix(SAVED_MARK)
        if word.startswith(SAVED_MARK) and name not in saved:
            close = nearest(name, saved)
            hint = f"; did you mean {SAVED_MARK}{close}?" if close else f"; {SAVED_COMMANDS[kind]} --saved lists them"
            raise NotFound(f"no query for {kind} is saved as {name[:80]!r}{hint}")
        texts.append(saved[name] if word.startswith(SAVED_MARK) else word)
    return " ".join(texts)


@click.command(
    cls=QueryCommand,
    fields={field.name: field.meaning for field in ORGANS.fields.values()},
    epilog="Any other word is searched in the names, titles, tags and descriptions of models.\n\n\b\n"
    f"  slot:{','.join(EXAMPLE_SLOTS)}   either value       -type:norm      exclude a value\n"
    "  block:5-20             a range            theta>=45       a bound\n"
    "  sort:-spectral         the highest first  unique:organ    each tensor once\n"
    "  like:DIGEST            tensors like this one, the most similar first",
)
@click.argument("query", nargs=-1)
@limit_option("Tensors on a page.", 20)
@after_option
@flag("--facets", "Also count the results by type, slot, tensor type, architecture, license and θ.")
@saving_options
@output_options(json="Print the page as JSON.", quiet="Print digests only.")
def search(
    query: tuple[str, ...],
    limit: int,
    after: str | None,
    facets: bool,
    save: str | None,
    forget: str | None,
    saved: bool,
) -> None:
    """Find tensors: `organ search type:organ theta:35-60 sort:-spectral`.

    Without a query, the feed-forward tensors with the most structure are listed; with --json or -q, all tensors.

    `type:organ` means feed-forward tensors, `type:skeleton` attention. Without `sort:`, the tensors with
    the highest θ come first. θ is the shape of the distribution of a tensor's weights: 0° uniform, about 34° Gaussian
    (also untrained), 90° heavy tails. It does not tell how good a tensor is.

    With a base (`fits:MODEL` or `kin:MODEL`), the table has the change of each tensor from the tensor of the base at
    the same place, and without `sort:` the most similar tensors come first, for example
    `organ search fits:acme/base likeness:0.5-0.99`.

    `organ search --save NAME 'QUERY'` saves a query; then `organ search @NAME` runs it, alone or with further terms.
    """
    text = query_text("organs", query)
    if changes_saved("organs", text, save, forget, saved=saved):
        return
    begins = not query and is_for_people()
    text = ORGANS.start if begins else text
    parsed = parse_query(text)
    with selected_registry() as registry, status_line("search"):
        page = registry.search(text, limit=limit, after=after)
        shows_total = page.next is not None and parsed.like is None and not prints_json()  # "more of 238"
        counts = registry.count(text) if facets or shows_total else None

    def print_organs(organs: Sequence[PlacedOrgan]) -> None:
        _print_organs(organs, parsed)
        if begins:
            print_hint("feed-forward tensors first; all tensors", "organ search sort:-theta")
        if facets and counts is not None:
            _print_counts(counts, parsed)

    total = counts.total if counts is not None and counts.exact and not parsed.unique else None
    print_page(structs.replace(page, facets=counts), lambda organ: organ.digest, print_organs, total=total)


def _print_organs(organs: Sequence[PlacedOrgan], parsed: Query) -> None:
    if not organs:
        print_remark("Nothing matches. organ search --help lists the fields.")
        return
    print_found(COLUMNS, organs, parsed.wanted())


def print_found(
    columns: Sequence[Column], items: Sequence[PlacedOrgan] | Sequence[ModelSummary], wanted: Collection[str]
) -> None:
    """Print tensors or models as a table, and on stderr what its uncertain values and its columns mean."""
    shown = for_people(columns, items, wanted)
    print_table(shown, items)
    if any(item.theta_caution for item in items):
        print_remark(THETA_LEGEND)
    for column in shown:
        if column.name in LEGENDS:
            print_remark(LEGENDS[column.name])


def _print_counts(counts: FacetCounts, parsed: Query) -> None:
    about = "" if counts.exact else "about "
    total = "too many to count" if counts.total is None else f"{about}{counts.total:,} (each place of a tensor counts)"
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
