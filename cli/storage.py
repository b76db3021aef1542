"""`organ storage`: what is stored how, and how many bytes this saves."""

from __future__ import annotations

import click

from organs.cli.console import (
    organ_command,
    output_options,
    print_commands,
    print_facts,
    print_json,
    print_remark,
    print_sentence,
    prints_json,
    status_line,
)
from organs.cli.options import limit_option
from organs.cli.registries import selected_registry
from organs.cli.tables import print_table
from organs.registry.amounts import percent_text, plural_text, size_text
from organs.registry.entities.storage import (
    ENCODING_COLUMNS,
    FAMILY_COLUMNS,
    MODEL_COLUMNS,
    ROWS_DEFAULT,
    ROWS_MAX,
    SHARE,
    Storage,
)


@click.command()
@limit_option("Print at most N families and N models.", ROWS_DEFAULT, ROWS_MAX)
@output_options(json="Print everything as JSON.")
def storage(limit: int) -> None:
    """Show what the registry stores, how it is stored, and how many bytes this saves.

    Equal parts of models are stored once. A part is stored alone (compressed), by its difference to a parent of the
    same tensor type, or derived from a parent of a finer tensor type. Families and models with the most bytes on the
    disk come first. The column `own` has the bytes that only this model needs.

    On a server, this needs a token with the scope `admin`.
    """
    with selected_registry() as registry, status_line("storage"):
        result = registry.storage(limit=limit)
    if prints_json():
        print_json(result)
    elif not result.parts:
        print_remark("Nothing is stored yet. To begin: organ ingest FILE.gguf")
    else:
        _print_totals(result)
        _print_tables(result)
        if result.unneeded_bytes:
            click.echo()
            print_commands([(organ_command("sweep"), "list what can be removed")])


def _print_totals(result: Storage) -> None:
    models = plural_text(result.models_count, "model", "models")
    print_sentence(
        f"{size_text(result.files_bytes)} of files ({models}) take {size_text(result.needed_bytes)} on the disk "
        f"({percent_text(result.share)})."
    )
    facts = [
        ("equal parts stored once", f"save {size_text(result.once_bytes)}"),
        ("compression", f"saves {size_text(result.compression_bytes)}"),
        ("differences to other parts", f"save {size_text(result.parents_bytes)}"),
    ]
    if result.kept_bytes:
        facts.append(("parents of removed models", f"take {size_text(result.kept_bytes)} of this"))
    if result.unneeded_bytes:
        facts.append(("not needed by any model", size_text(result.unneeded_bytes)))
    if result.run_files_bytes:
        facts.append(("files that organ run keeps", f"take {size_text(result.run_files_bytes)} more"))
    print_facts(facts)


def _print_tables(result: Storage) -> None:
    """Print families, models and encodings, those with the most bytes on the disk first."""
    if result.families:
        click.echo()
        print_table((*FAMILY_COLUMNS, SHARE), result.families)
        _print_left_out(result.families_left_out, "family", "families")
    click.echo()
    print_table((*MODEL_COLUMNS, SHARE), result.models)
    _print_left_out(result.models_left_out, "model", "models")
    print_remark("own: bytes on the disk that only this model needs, also those of parents of removed models")
    click.echo()
    print_table((*ENCODING_COLUMNS, SHARE), result.encodings)


def _print_left_out(count: int, singular: str, plural: str) -> None:
    if count:
        print_remark(f"{plural_text(count, f'smaller {singular}', f'smaller {plural}')} left out; see --limit")
