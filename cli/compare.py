"""`organ compare` and `organ prove`: how two models differ, and from which one a quantisation was made."""

from __future__ import annotations

from collections.abc import Sequence

import click

from organs.cli.console import (
    first_of,
    output_options,
    print_json,
    print_left_out,
    print_remark,
    print_sentence,
    prints_json,
    status_line,
)
from organs.cli.registries import local_registry, selected_registry
from organs.cli.tables import print_table
from organs.registry.amounts import NO_VALUE, share_text, size_text, weight_change_text
from organs.registry.columns import CellKind, Column
from organs.registry.entities.comparison import (
    COMPARED_COLUMNS,
    PROVED_COLUMNS,
    ComparedStack,
    ComparedType,
    Comparison,
)
from organs.registry.measures import THETA_LEGEND

CHANGED_SHOWN = 10
EXPERTS_SHOWN = 8
NAMES_SHOWN = 10
BLOCKS_SHOWN = 100
ALIKE_COLUMNS = (Column("likeness", kind=CellKind.SHARE), Column("change", kind=CellKind.CHANGE))


@click.command()
@click.argument("first", metavar="MODEL")
@click.argument("second", metavar="MODEL")
@output_options(json="Print the whole comparison as JSON, with every tensor.")
def compare(first: str, second: str) -> None:
    """Compare two models: the change of their weights by type and block, and their differences.

    The change is the energy of the difference of two matrices at the same place, as a share of their energy: 0 for the
    same weights, 1e-5 for a light fine-tune, 2 for unrelated models. The likeness is their correlation: 1 and 0. Both
    are estimated from 256 values of each tensor, and do not tell which model is better.
    """
    from organs.registry.similarity import Kinship

    with selected_registry() as registry, status_line("compare"):
        result = registry.compare(first, second)
    if prints_json():
        print_json(result)
        return
    print_sentence(result.sentence)
    if result.is_comparable:
        _print_header(result)
        _print_types_and_blocks(result)
        if result.kinship != Kinship.UNRELATED:  # otherwise neither was made from the other
            _print_changed(result)
        _print_names(f"Only in {result.first}", result.only_first)
        _print_names(f"Only in {result.second}", result.only_second)
        differ = [
            f"{organ.name} ({'×'.join(map(str, organ.first))}, {'×'.join(map(str, organ.second))})"
            for organ in result.shapes_differ
        ]
        _print_names("Other shapes", differ)
        if result.differs:
            click.echo()
            print_sentence("Other differences.")
            print_table((Column("what", "property"), Column("first"), Column("second")), result.differs)


@click.command()
@click.argument("quantised", metavar="MODEL")
@click.option("--from", "source", metavar="MODEL", help="The model from which it was made, by default the likely one.")
@click.option(
    "--imatrix",
    "importances",
    metavar="FILE or MODEL",
    help="The importance matrix by which it was made: a file, or a registered one.",
)
@output_options(json="Print the proof as JSON, with every tensor that is not exact.")
def prove(quantised: str, source: str | None, importances: str | None) -> None:
    """Prove from which model a quantisation was made.

    The model in F16, BF16 or F32 is encoded again, and all blocks are compared. What is proved of each tensor is
    recorded: `organ show`, `organ compare` and the catalog say it, and recipes compute with the source. The exit status
    is 1 if some tensors are not explained, 3 if no source is found.
    """
    done = 0
    with local_registry() as registry, status_line("prove", quiet=False) as say:

        def report(size: int) -> None:
            nonlocal done
            done += size
            say(f"{size_text(done)} compared")

        proof = registry.prove(quantised, source, importances=importances, progress=report)
    if prints_json():
        print_json(proof)
    else:
        print_sentence(proof.sentence)
        print_sentence(f"Encoded by {proof.encoder}.")
        if proof.others:
            click.echo()
            print_table([column for column in PROVED_COLUMNS if not column.data_only], proof.others[:CHANGED_SHOWN])
            print_left_out(len(proof.others) - CHANGED_SHOWN, " tensors, all of them with --json")
    if not proof.is_complete:
        click.get_current_context().exit(1)


def _print_header(result: Comparison) -> None:
    from organs.registry.similarity import CLOSE, RELATED

    def both(first: int, second: int) -> str:
        return str(first) if first == second else f"{first} and {second}"

    organs = result.organs
    matrices = both(organs.first_matrices, organs.second_matrices)
    print_sentence(
        f"Change: {weight_change_text(result.change, result.likeness)}, the energy of the difference as a share of "
        f"the energy of the weights, the mean over {organs.compared} of {matrices} matrices. 1e-5 is light tuning, "
        f"0.002 a rounding to 4 bits, 2 not related. Likeness: {share_text(result.likeness)}, the mean correlation: "
        f"{CLOSE} or more is close, below {RELATED} is not related."
    )
    if result.change is None:
        print_sentence(
            "A model was measured by an older version, so small changes are not resolved: organ measure --missing."
        )
    if not result.is_mostly_identical:  # otherwise the first sentence has the number
        print_sentence(
            f"Same to the last byte: {organs.identical} of {both(organs.first, organs.second)} tensors, with vectors."
        )


def _print_types_and_blocks(result: Comparison) -> None:
    click.echo()
    print_sentence(
        f"By type: the mean θ of {result.first} and of {result.second}, and the likeness of their matrices. Vectors "
        "are not compared: unrelated models have similar ones."
    )
    print_table(
        (
            Column("type"),
            Column("first_theta", "θ first", CellKind.DEGREES),
            Column("second_theta", "θ second", CellKind.DEGREES),
            Column("difference", kind=CellKind.FIGURE, rank=1, shown=_difference_text),
            *ALIKE_COLUMNS,
            Column("compared", kind=CellKind.COUNT, rank=2),
        ),
        result.types,
    )
    if any(kind.first_caution or kind.second_caution for kind in result.types):
        print_remark(THETA_LEGEND)
    click.echo()
    print_sentence("By block: the mean over the block's matrices.")
    columns = (Column("label", "block", CellKind.FIGURE), *ALIKE_COLUMNS, Column("compared", kind=CellKind.COUNT))
    print_table(columns, result.blocks[:BLOCKS_SHOWN])
    print_left_out(len(result.blocks) - BLOCKS_SHOWN, " blocks, all of them with --json")


def _difference_text(kind: ComparedType) -> str:
    return NO_VALUE if kind.difference is None else f"{kind.difference:+.1f}°"


def _print_changed(result: Comparison) -> None:
    """Print the tensors that changed most, and in which experts the stacks differ."""
    if result.unequal:
        click.echo()
        print_sentence(
            "Changed most: the matrices with the largest change. The change of a single tensor is uncertain, by a "
            "tenth or more of it."
        )
        columns = [column for column in COMPARED_COLUMNS if not column.data_only]
        print_table(columns, result.unequal[:CHANGED_SHOWN])
    if result.stacks:
        click.echo()
        print_sentence(f"Experts: {result.experts_sentence} With the change of each in brackets:")
        stack_columns = (
            Column("name", "stack", CellKind.NAME),
            Column("differ", shown=lambda stack: f"{stack.differ} of {stack.experts}"),
            Column("changed", "experts", shown=_experts_text),
        )
        print_table(stack_columns, result.stacks[:CHANGED_SHOWN])
        print_left_out(len(result.stacks) - CHANGED_SHOWN, " stacks, all of them with --json")


def _experts_text(stack: ComparedStack) -> str:
    experts = [
        f"{expert.expert} ({weight_change_text(expert.change, expert.likeness)})"
        for expert in stack.changed[:EXPERTS_SHOWN]
    ]
    if stack.differ > len(experts):
        experts.append(f"and {stack.differ - len(experts)} more")
    return ", ".join(experts)


def _print_names(label: str, names: Sequence[str]) -> None:
    if names:
        click.echo()
        print_sentence(f"{label}: {first_of(names, NAMES_SHOWN)}")
