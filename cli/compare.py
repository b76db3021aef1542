"""`organ compare` and `organ compat`: two models side by side, and what fits what."""

from __future__ import annotations

from collections.abc import Sequence

import click

from organs.cli.arguments import selected_registry
from organs.cli.console import plain, print_json, print_sentence, print_table
from organs.registry.amounts import share_text, theta_text
from organs.registry.entities.comparison import Comparison

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

    The likeness is the mean correlation of the weights of matrices that have the same place and shape in both: 1 for
    the same weights, 0 for unrelated models. It is estimated from fingerprints of 256 values of each organ, and does
    not say which model was first, or which is better.
    """
    from organs.registry.lineage import Kinship

    with selected_registry() as registry:
        result = registry.compare(first, second)
    if as_json:
        print_json(result)
        return
    print_sentence(result.sentence)
    if result.is_comparable:
        _print_header(result)
        _print_types(result)
        _print_blocks(result)
        if result.kinship != Kinship.UNRELATED:  # neither of two strangers was made from the other
            _print_changed(result)
        _print_left_out(result)
        _print_differences(result)


def _print_header(result: Comparison) -> None:
    from organs.registry.lineage import CLOSE, RELATED

    organs = result.organs
    matrices = _both(organs.first_matrices, organs.second_matrices)
    print_sentence(
        f"Alike: {share_text(result.likeness)}, the mean correlation over {organs.compared} of {matrices} matrices. "
        f"1 means the same weights; quantisations down to 4 bits and light fine-tunes have {CLOSE} or more; models "
        f"below {RELATED} are not related."
    )
    if not result.is_mostly_identical:  # then the first sentence says how many
        print_sentence(
            f"Same to the last byte: {organs.identical} of {_both(organs.first, organs.second)} organs, with vectors."
        )


def _both(first: int, second: int) -> str:
    return str(first) if first == second else f"{first} and {second}"


def _print_types(result: Comparison) -> None:
    click.echo()
    print_sentence(
        f"By type: the mean θ of {result.first} and of {result.second}, and how alike their matrices are. Vectors are "
        "not compared: unrelated models have similar ones."
    )
    rows = [
        (
            kind.type,
            theta_text(kind.first_theta),
            theta_text(kind.second_theta),
            "–" if kind.difference is None else f"{kind.difference:+.1f}°",
            share_text(kind.likeness),
            kind.compared,
        )
        for kind in result.types
    ]
    print_table(("type", "θ first", "θ second", "difference", "alike", "compared"), rows, _NUMBERS)


def _print_blocks(result: Comparison) -> None:
    from organs.registry.lineage import Kinship

    lowest = "" if result.kinship == Kinship.UNRELATED else "; the lowest changed most"
    click.echo()
    print_sentence(f"By block: the mean over the block's matrices{lowest}.")
    rows = [(block.label, share_text(block.likeness), block.compared) for block in result.blocks]
    print_table(("block", "alike", "compared"), rows[:BLOCKS_SHOWN], _NUMBERS)
    if len(rows) > BLOCKS_SHOWN:
        click.echo(f"… and {len(rows) - BLOCKS_SHOWN} more blocks, all of them with --json")


def _print_changed(result: Comparison) -> None:
    if not result.unequal:
        return
    click.echo()
    print_sentence(
        "Changed most: the matrices that are least alike. The number of one organ is uncertain, by 0.07 near 0 and by "
        "much less near 1."
    )
    rows = [
        (
            *(organ.name, organ.type, share_text(organ.likeness)),
            *(theta_text(organ.first_theta), theta_text(organ.second_theta)),
        )
        for organ in result.unequal[:CHANGED_SHOWN]
    ]
    print_table(("tensor", "type", "alike", "θ first", "θ second"), rows, _NUMBERS)


def _print_left_out(result: Comparison) -> None:
    _print_names(f"Only in {result.first}", result.only_first)
    _print_names(f"Only in {result.second}", result.only_second)
    differ = [f"{one.name} ({_shape(one.first)}, {_shape(one.second)})" for one in result.shapes_differ]
    _print_names("Other shapes", differ)


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _print_differences(result: Comparison) -> None:
    rows = [(one.what, one.first or "–", one.second or "–") for one in result.differs]
    if rows:
        click.echo()
        print_sentence("What else differs.")
        print_table(("what", "first", "second"), rows)


def _print_names(label: str, names: Sequence[str]) -> None:
    if names:
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        click.echo()
        print_sentence(f"{label}: {plain(', '.join(names[:NAMES_SHOWN]))}{more}")
