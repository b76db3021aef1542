"""What is stored how, and how many bytes this saves: what `organ storage` prints."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from organs.cli.arguments import organ_words
from organs.cli.console import print_commands, print_facts, print_sentence, print_table
from organs.registry.amounts import percent_text, plural_text, size_text

if TYPE_CHECKING:
    from organs.registry.entities.storage import Storage, StoredFamily, StoredModel

HEADERS = "headers, vocabularies"
_NUMBERS = ("models", "parts", "files", "different", "plain", "on disk", "share", "own", "saved")


def print_storage(result: Storage) -> None:
    """Print the totals, then families, models and encodings, those with the most bytes on the disk first."""
    if not result.parts:
        print_sentence("Nothing is stored yet. To begin: organ ingest FILE.gguf", err=True)
        return
    _print_totals(result)
    _print_families(result)
    _print_models(result)
    _print_encodings(result)
    if result.unneeded_bytes:
        click.echo()
        print_commands([(shlex.join([*organ_words(), "sweep"]), "list what can be removed")])


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
    print_facts(facts)


def _print_families(result: Storage) -> None:
    if not result.families:
        return
    click.echo()
    rows = [
        (row.name, row.models, size_text(row.files_bytes), size_text(row.size_bytes), *_on_disk(row))
        for row in result.families
    ]
    columns = ("family", "models", "files", "different", "on disk", "share")
    print_table(columns, rows, _NUMBERS, leave_out=("different",))
    _print_left_out(result.families_left_out, "family", "families")


def _print_models(result: Storage) -> None:
    click.echo()
    rows = [
        (
            row.name if row.state == "visible" else f"{row.name} ({row.state})",
            *(size_text(row.files_bytes), size_text(row.own_bytes), *_on_disk(row)),
        )
        for row in result.models
    ]
    print_table(("model", "files", "own", "on disk", "share"), rows, _NUMBERS)
    _print_left_out(result.models_left_out, "model", "models")
    print_sentence(
        "own: bytes on the disk that only this model needs, also those of parents of removed models", err=True
    )


def _print_encodings(result: Storage) -> None:
    click.echo()
    rows = [
        (
            *(row.way.label, row.dtype or HEADERS, row.parts),
            *(
                size_text(row.size_bytes),
                size_text(row.saved_bytes),
                size_text(row.stored_bytes),
                percent_text(row.share),
            ),
        )
        for row in result.encodings
    ]
    columns = ("stored", "tensor type", "parts", "plain", "saved", "on disk", "share")
    print_table(columns, rows, _NUMBERS, leave_out=("saved",))


def _on_disk(row: StoredFamily | StoredModel) -> tuple[str, str]:
    return size_text(row.stored_bytes), percent_text(row.share)


def _print_left_out(count: int, singular: str, plural: str) -> None:
    if count:
        print_sentence(
            f"{plural_text(count, f'smaller {singular}', f'smaller {plural}')} left out; see --limit", err=True
        )
