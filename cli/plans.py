"""Plans of chimeras as commands print them: findings, refusals, changed tensors, screens and quick looks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import click
from msgspec import structs
from rich.console import Console
from rich.text import Text

from organs.cli.console import (
    INDENT,
    WIDTH_MAX,
    again,
    is_for_people,
    plain,
    print_failure,
    print_hint,
    print_json,
    print_sentence,
    prints_json,
    wrapped,
)
from organs.cli.tables import print_table
from organs.registry.amounts import size_text
from organs.registry.columns import CellKind, Column
from organs.registry.entities.chimera import ComposeResult, OutputFile
from organs.registry.entities.finding import ARCHITECTURE_DIFFERS, Finding, Severity, in_order
from organs.registry.entities.plan import (
    CHANGE_COLUMNS,
    KEPT_COLUMNS,
    PART_COLUMNS,
    QUANTISED,
    RUN_COLUMNS,
    THETA_COLUMNS,
    PlanChange,
    PlannedRecipe,
    PlanPart,
    Screen,
)
from organs.registry.entities.validation import QuickLook
from organs.registry.errors import BadRecipe, NotComposable

_STYLES = {"refuse": "bold red", "warn": "yellow", "info": "dim"}
ROWS_MAX = 6
"""Changed or computed tensors that are listed one by one; more are shown as one line for each run of blocks."""


TYPE_COLUMNS = (
    Column("slot"),
    Column("dtype_before", "from"),
    Column("dtype", "to"),
    Column("organs", "tensors", CellKind.FIGURE),
    Column("size_bytes_before", "before", CellKind.SIZE),
    Column("size_bytes", "after", CellKind.SIZE),
)


def print_findings(findings: Iterable[Finding], *, err: bool = False) -> None:
    """Print findings on stdout, or with `err` on stderr: severity, code, the field if there is one, the sentence."""
    console = Console(stderr=err, highlight=False)
    for finding in findings:
        severity = finding.severity.value
        code = f"{finding.code} (accepted)" if finding.accepted else finding.code
        field = f" {finding.field}:" if finding.field else ""
        mark, sentence = plain(f"{severity} {code}:{field} "), plain(finding.sentence)
        line = mark + sentence
        if console.is_terminal:
            line = wrapped(sentence, min(WIDTH_MAX, console.width), mark, INDENT * 2)
        text = Text(line)
        text.stylize(_STYLES[finding.severity], 0, len(severity))
        console.print(text, soft_wrap=True)


def print_architectures(findings: Sequence[Finding], *, err: bool = False) -> list[Finding]:
    """Print first, as a plain sentence, that models have different architectures; return the other findings."""
    others = [finding for finding in findings if finding.code != ARCHITECTURE_DIFFERS]
    for finding in findings:
        if finding.code == ARCHITECTURE_DIFFERS:
            print_sentence(finding.sentence, err=err)
    if others and len(others) < len(findings):
        click.echo(err=err)
    return others


def print_serious(findings: Iterable[Finding], *, err: bool = False) -> None:
    """Print the refusals and warnings."""
    serious = [finding for finding in findings if finding.severity is not Severity.INFO]
    print_findings(print_architectures(serious, err=err), err=err)


def result_of(planned: PlannedRecipe, target: Path | None) -> ComposeResult:
    """Return a plan with the tensors that change, and where its file would be written."""
    from organs.registry.store.files import Files

    plan, free_bytes = planned.plan, None
    if plan is not None:
        plan = structs.replace(plan, parts=tuple(part for part in plan.parts if part.acts))
    if target is not None and target.parent.is_dir():
        free_bytes = Files().free_bytes(target.parent)
    return ComposeResult(
        can_be_made=planned.can_be_made,
        findings=planned.findings,
        unaccepted=planned.unaccepted,
        plan=plan,
        left_out=planned.left_out,
        out=OutputFile(file=None if target is None else str(target), free_bytes=free_bytes),
    )


def refuse(planned: PlannedRecipe, *, shown: bool, exit_code: int = NotComposable.exit_code) -> NoReturn:
    """Print on stderr why nothing is made, and exit. `shown`: whether the findings were printed before."""
    if not shown:
        print_serious(planned.findings, err=True)
    refusals = len(planned.refusals)
    if refusals:
        print_failure(f"refused for {refusals} reason{'s' if refusals > 1 else ''}; nothing was composed")
    else:
        print_failure(f"not composed: first accept the warnings {', '.join(planned.unaccepted)}")
        options = [word for code in planned.unaccepted for word in ("--accept", code)]
        print_hint("       try", again(*options))
    raise click.exceptions.Exit(exit_code)


def refuse_recipe(error: BadRecipe) -> NoReturn:
    """Print everything that is wrong with the text of a recipe, and exit."""
    from organs.registry.compose.recipe import recipe_findings

    result = ComposeResult(can_be_made=False, findings=in_order(recipe_findings(error)), plan=None)
    if prints_json():
        print_json(result)
    refuse(result, shown=False, exit_code=BadRecipe.exit_code)


def print_plan(result: ComposeResult) -> None:
    """Print a plan; for a refused recipe only the reasons."""
    plan = result.plan
    if plan is None or result.refusals:
        print_serious(result.findings)
        return
    parents = ", ".join(parent.model for parent in plan.parents[1:])
    print_sentence(f"{plan.base}{f' with {parents}' if parents else ''}; licenses: {plan.license}")
    if result.findings:
        click.echo()
        print_findings(result.findings)
    if plan.changed:
        click.echo()
        parts = [part for part in plan.parts if part.acts]
        if len(parts) > max(ROWS_MAX, len(plan.changes)):
            print_changes(plan.changes)
        else:
            print_table(PART_COLUMNS, parts)
        print_types(part for part in parts if QUANTISED in part.acts)
    if plan.kept:
        click.echo()
        print_table(KEPT_COLUMNS, plan.kept)
    click.echo()
    file, free = (None, None) if result.out is None else (result.out.file, result.out.free_bytes)
    size = f"{size_text(plan.size_bytes)} ({plan.size_bytes:,} bytes; the base has {plan.base_size_bytes:,})"
    room = "" if free is None else f"; {size_text(free)} free there"
    computed = f", {plan.to_compute} of them computed" if plan.to_compute else ""
    changed = f"{plan.changed} of {plan.organs} tensors change{computed}"
    print_sentence(f"{'The file' if file is None else file}: {size}{room}; {changed}")
    print_screen(plan.screen)


def print_types(parts: Iterable[PlanPart]) -> None:
    """Print which types the quantised tensors of each slot get, and how many bytes they have; nothing without any."""
    groups: dict[tuple[str, str, str], list[PlanPart]] = {}
    for part in parts:
        groups.setdefault((part.slot, part.dtype_before, part.dtype), []).append(part)
    rows = [
        {
            "slot": slot,
            "dtype_before": before,
            "dtype": after,
            "organs": len(own),
            "size_bytes_before": sum(part.size_bytes_before for part in own),
            "size_bytes": sum(part.size_bytes for part in own),
        }
        for (slot, before, after), own in groups.items()
    ]
    if rows:
        click.echo()
        print_table(TYPE_COLUMNS, rows)


def print_screen(screen: Screen) -> None:
    """Print what the weights say about a change."""
    print_sentence(screen.sentence, "screen: ")
    if screen.size:
        print_sentence(screen.size, "size: ")


def print_changes(changes: Iterable[PlanChange]) -> None:
    """Print a table with a line for each run of blocks in which the same is done."""
    print_table(CHANGE_COLUMNS, changes)


def print_thetas(result: ComposeResult) -> None:
    """Print θ of the computed tensors before and after, for people; nothing if nothing was computed."""
    from organs.registry.compose.plan import summarize_changes

    if not is_for_people() or not result.computed:
        return

    click.echo()
    if len(result.computed) <= ROWS_MAX:
        columns = (Column("block", kind=CellKind.FIGURE), Column("slot"), Column("dtype"), *THETA_COLUMNS)
        print_table(columns, result.computed)
        return
    assert result.plan is not None
    computed = {organ.name: organ for organ in result.computed}
    runs = summarize_changes(
        [
            structs.replace(part, theta_before=computed[part.name].theta_before, theta=computed[part.name].theta)
            for part in result.plan.parts
            if part.name in computed
        ]
    )
    print_table((*RUN_COLUMNS, *THETA_COLUMNS), runs)


def print_quick_look(look: QuickLook) -> None:
    """Print a quick look: the result in a sentence, and a line for each text."""
    print_sentence(look.sentence, "quick look: ")
    if not look.texts:
        return
    rows = look.rows
    click.echo()
    ranks = {"tokens": 3, "same top token": 2, "divergence": 1} if look.from_source is None else {"tokens": 1}
    first, *others = rows[0]
    columns = [Column(first), *(Column(name, kind=CellKind.FIGURE, rank=ranks.get(name, 0)) for name in others)]
    print_table(columns, rows)
    click.echo()
    print_sentence(look.notes)
