"""`organ compare`: two registered models side by side."""

from __future__ import annotations

from collections.abc import Sequence

import click

from organs.cli.console import plain, print_json, print_table
from organs.cli.elsewhere import comparison_there
from organs.cli.place import folder_registry, remote_registry
from organs.cli.prose import print_sentence
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.lineage import CLOSE, RELATED, Kinship
from organs.registry.names import ModelName, parse_model_name
from organs.registry.present.comparison import comparison, registered_model
from organs.registry.present.text import share_text, theta_text
from organs.registry.present.values import Values

CHANGED_SHOWN = 10
NAMES_SHOWN = 10
BLOCKS_SHOWN = 100
_NUMBERS = ("θ first", "θ second", "difference", "alike", "compared", "block")


@click.command()
@click.argument("first", metavar="MODEL")
@click.argument("second", metavar="MODEL")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON, every organ among it.")
def compare(first: str, second: str, as_json: bool) -> None:
    """Show two models side by side: how alike their weights are, by type and block, and what changed.

    Alike is the mean correlation of the weights of matrices that have one shape and one place in both: 1 for the same
    weights, 0 for strangers. It is estimated from fingerprints of 256 values an organ, and does not say which of the
    two was there first, nor which is better.
    """
    values = _compared(parse_model_name(first), parse_model_name(second))
    if as_json:
        print_json(values)
        return
    print_sentence(values["sentence"])
    if not values["same_bytes"] and values["kinship"] != Kinship.INCOMPARABLE:
        _print_header(values)
        _print_types(values)
        _print_blocks(values)
        if values["kinship"] != Kinship.UNRELATED:  # of strangers nothing was changed into the other
            _print_changed(values)
        _print_left_out(values)
        _print_differences(values)


def _compared(first: ModelName, second: ModelName) -> Values:
    remote = remote_registry()
    if remote is not None:
        with remote:
            return comparison_there(remote, first, second)
    with folder_registry() as registry, registry.catalog.reading() as session:
        sides = [registered_model(session, model_by_name(session, name)) for name in (first, second)]
    return comparison(*sides)


def _print_header(values: Values) -> None:
    organs = values["organs"]
    matrices = organs["first_matrices"]
    if organs["second_matrices"] != matrices:
        matrices = f"{matrices} and {organs['second_matrices']}"
    print_sentence(
        f"Alike: {share_text(values['likeness'])}, the mean correlation over {organs['compared']} of {matrices} "
        f"matrices. 1 is the same weights; quantisations down to 4 bits and light fine-tunes have {CLOSE} and more; "
        f"below {RELATED} nothing is called related."
    )
    organ_counts = str(organs["first"])
    if organs["second"] != organs["first"]:
        organ_counts += f" and {organs['second']}"
    if values["sentence"].startswith(f"{organs['identical']} of "):
        return
    print_sentence(f"Same to the last byte: {organs['identical']} of {organ_counts} organs, vectors among them.")


def _print_types(values: Values) -> None:
    click.echo()
    print_sentence(
        f"By type: the mean θ of {values['first']} and of {values['second']} (0° noise, 90° signal), and how alike "
        "their matrices are; vectors are not compared, because strangers have similar ones."
    )
    rows = [
        (
            kind["type"],
            theta_text(kind["first_theta"]),
            theta_text(kind["second_theta"]),
            "–" if kind["difference"] is None else f"{kind['difference']:+.1f}°",
            share_text(kind["likeness"]),
            kind["compared"],
        )
        for kind in values["types"]
    ]
    print_table(("type", "θ first", "θ second", "difference", "alike", "compared"), rows, _NUMBERS)


def _print_blocks(values: Values) -> None:
    lowest = "" if values["kinship"] == Kinship.UNRELATED else "; the lowest changed most"
    click.echo()
    print_sentence(f"By block: the mean over the block's matrices{lowest}.")
    rows = [(_block_label(block), share_text(block["likeness"]), block["compared"]) for block in values["blocks"]]
    print_table(("block", "alike", "compared"), rows[:BLOCKS_SHOWN], _NUMBERS)
    if len(rows) > BLOCKS_SHOWN:
        click.echo(f"… and {len(rows) - BLOCKS_SHOWN} more blocks, all of them with --json")


def _block_label(block: Values) -> str:
    label = "outside" if block["block"] is None else str(block["block"])
    return label if block["tower"] == "text" else f"{block['tower']} {label}"


def _print_changed(values: Values) -> None:
    changed = [organ for organ in values["changed"] if not organ["identical"]]
    if not changed:
        return
    click.echo()
    print_sentence(
        "Changed most: the matrices that are least alike. One organ's number is uncertain, by 0.07 near 0 and by far "
        "less near 1."
    )
    rows = [
        (organ["name"], organ["type"], share_text(organ["likeness"]), *map(theta_text, _thetas(organ)))
        for organ in changed[:CHANGED_SHOWN]
    ]
    print_table(("tensor", "type", "alike", "θ first", "θ second"), rows, _NUMBERS)


def _thetas(organ: Values) -> tuple[float | None, float | None]:
    return organ["first_theta"], organ["second_theta"]


def _print_left_out(values: Values) -> None:
    for side in ("first", "second"):
        _print_names(f"Only in {values[side]}", values[f"only_{side}"])
    differ = [f"{one['name']} ({one['first']}, {one['second']})" for one in values["shapes_differ"]]
    _print_names("Other shapes", differ)


def _print_differences(values: Values) -> None:
    rows = [(one["what"], one["first"] or "–", one["second"] or "–") for one in values["differs"]]
    if rows:
        click.echo()
        print_sentence("What else differs.")
        print_table(("what", "first", "second"), rows)


def _print_names(label: str, names: Sequence[str]) -> None:
    if names:
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        click.echo()
        print_sentence(f"{label}: {plain(', '.join(names[:NAMES_SHOWN]))}{more}")
