"""Plan recipes and make chimeras for several commands: print plans, findings and results."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
import msgspec
from rich.console import Console
from rich.text import Text

from organs.cli.arguments import organ_words, registry_address
from organs.cli.console import (
    INDENT,
    WIDTH_MAX,
    plain,
    print_failure,
    print_hint,
    print_json,
    print_sentence,
    print_table,
    progress_bar,
    status_line,
    waiting,
    wrapped,
)
from organs.cli.outputs import (
    OutputOptions,
    WrittenPath,
    check_fits,
    check_free,
    free_bytes,
    gguf_targets,
    write_files,
    write_text,
)
from organs.ingest.files import FileSource
from organs.registry.amounts import share_text, size_text, theta_text
from organs.registry.entities.base import prepared
from organs.registry.entities.chimera import ComposeResult, ComputedOrgan, OutputFile, WrittenFile
from organs.registry.entities.finding import ARCHITECTURE_DIFFERS, Finding, Severity, in_order
from organs.registry.entities.plan import (
    GIVERS_SEPARATOR,
    MadeChimera,
    PlanChange,
    PlannedChimera,
    PlannedRecipe,
    Screen,
)
from organs.registry.entities.quick_look import QuickLook
from organs.registry.errors import BadRecipe, NotComposable, OrganError

if TYPE_CHECKING:
    from organs.registry.compose.api import RecipeBuilder, RecipePlan
    from organs.registry.compose.recipe import Recipe
    from organs.registry.entities.chimera import Chimera
    from organs.registry.interface import Registry

_STYLES = {"refuse": "bold red", "warn": "yellow", "info": "dim"}


def print_findings(findings: Iterable[Finding], *, err: bool = False) -> None:
    """Print findings on stdout, or with `err` on stderr: severity, code, the field if there is one, the sentence."""
    console = Console(stderr=err, highlight=False)
    for finding in findings:
        severity = finding.severity.value
        code = f"{finding.code} (accepted)" if finding.accepted else finding.code
        field = f" {finding.field}:" if finding.field else ""
        mark, sentence = plain(f"{severity} {code}:{field} "), plain(finding.sentence)
        is_wrapped = console.is_terminal
        text = Text(
            wrapped(sentence, min(WIDTH_MAX, console.width), mark, INDENT * 2) if is_wrapped else mark + sentence
        )
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


def refuse(planned: PlannedRecipe, *, shown: bool, exit_code: int = NotComposable.exit_code) -> NoReturn:
    """Print on stderr why nothing is made, and exit. `shown`: whether the findings were printed before."""
    if not shown:
        print_findings(print_architectures(serious(planned.findings), err=True), err=True)
    refusals = len(planned.refusals)
    if refusals:
        print_failure(f"refused for {refusals} reason{'s' if refusals > 1 else ''}; nothing was composed")
    else:
        print_failure(f"not composed: first accept the warnings {', '.join(planned.unaccepted)}")
        print_hint("       try", _accepting(planned.unaccepted))
    raise click.exceptions.Exit(exit_code)


def serious(findings: Iterable[Finding]) -> list[Finding]:
    """Return the refusals and warnings."""
    return [finding for finding in findings if finding.severity is not Severity.INFO]


def _accepting(codes: Sequence[str]) -> str:
    """Return the current command with options that accept `codes`."""
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    options = [word for code in codes for word in ("--accept", code)]
    return shlex.join(["organ", *words[:end], *options, *words[end:]])


ROWS_MAX = 6
"""Changed or computed organs that are listed one by one; more are shown as one line for each run of blocks."""
_NUMBERS = ("block", "blocks", "organs", "θ before", "θ", "spectral", "size")


def print_plan(result: ComposeResult, output: Path | None) -> None:
    """Print a plan; `output` is where its file would be written. For a refused recipe only the reasons are printed."""
    plan = result.plan
    if plan is None or result.refusals:
        print_findings(print_architectures(serious(result.findings)))
        return
    parents = ", ".join(parent.model for parent in plan.parents[1:])
    print_sentence(f"{plan.base}{f' with {parents}' if parents else ''}; licenses: {plan.license}")
    if result.findings:
        click.echo()
        print_findings(result.findings)
    if plan.changed:
        click.echo()
        _print_changes(plan)
    click.echo()
    _print_sizes(plan, result.out, output)
    print_screen(plan.screen)


def print_screen(screen: Screen) -> None:
    """Print what the weights say about a change."""
    print_sentence(screen.sentence, "screen: ")
    if screen.size:
        print_sentence(screen.size, "size: ")


def blocks_text(change: PlanChange) -> str:
    """Return the blocks of a change: `3`, `5-20`, or a dash outside the blocks."""
    first, last = change.first_block, change.last_block
    if first is None:
        return "–"
    return str(first) if first == last else f"{first}-{last}"


def print_changes(changes: Iterable[PlanChange]) -> None:
    """Print a table with a line for each run of blocks in which the same is done."""
    rows = [
        (
            blocks_text(change),
            change.type,
            change.organs,
            GIVERS_SEPARATOR.join(change.givers),
            change.acts_text,
            theta_text(change.theta_before),
            theta_text(change.theta),
            size_text(change.size_bytes),
        )
        for change in changes
    ]
    columns = ("blocks", "type", "organs", "from", "done", "θ before", "θ", "size")
    print_table(columns, rows, _NUMBERS, leave_out=("size", "θ before", "θ"))


def _print_changes(plan: PlannedChimera) -> None:
    parts = [part for part in plan.parts if part.acts]
    if len(parts) > max(ROWS_MAX, len(plan.changes)):
        print_changes(plan.changes)
        return
    rows = [
        (
            "–" if part.block is None else part.block,
            part.slot,
            GIVERS_SEPARATOR.join(part.givers),
            part.acts_text,
            part.dtype if part.dtype == part.dtype_before else f"{part.dtype_before} → {part.dtype}",
            theta_text(part.theta_before),
            theta_text(part.theta),
            share_text(part.spectral_signal),
            size_text(part.size_bytes),
        )
        for part in parts
    ]
    headings = ("block", "slot", "from", "done", "dtype", "θ before", "θ", "spectral", "size")
    print_table(headings, rows, _NUMBERS, leave_out=("spectral", "size", "dtype", "θ before", "θ"))


def _print_sizes(plan: PlannedChimera, out: OutputFile | None, output: Path | None) -> None:
    changed = f"{plan.changed} of {plan.organs} organs change"
    computed = f", {plan.to_compute} of them computed" if plan.to_compute else ""
    size = f"{size_text(plan.size_bytes)} ({plan.size_bytes:,} bytes), the base {size_text(plan.base_size_bytes)}"
    free = None if out is None else out.free_bytes
    room = f"; {size_text(free)} free there" if free is not None else ""
    print_sentence(f"{'The file' if output is None else output}: {size}{room}; {changed}{computed}")


_COMPUTED_NUMBERS = ("block", "blocks", "organs", "θ before", "θ")


def print_thetas(result: ComposeResult, options: ComposeOptions) -> None:
    """Print θ of the computed organs before and after, for people; nothing if nothing was computed."""
    if not options.prints or not result.computed:
        return
    click.echo()
    if len(result.computed) > ROWS_MAX:
        runs = _computed_runs(result)
        rows = [(blocks_text(run), run.type, run.organs, *_thetas(run)) for run in runs]
        print_table(("blocks", "type", "organs", "θ before", "θ"), rows, _COMPUTED_NUMBERS)
    else:
        organs = [
            ("–" if organ.block is None else organ.block, organ.slot, organ.dtype, *_thetas(organ))
            for organ in result.computed
        ]
        print_table(("block", "slot", "dtype", "θ before", "θ"), organs, _COMPUTED_NUMBERS)


def _computed_runs(result: ComposeResult) -> tuple[PlanChange, ...]:
    """Return the computed organs in runs of blocks, with θ of what they were computed from."""
    from organs.registry.compose.plan import summarize_changes

    assert result.plan is not None
    computed = {organ.name: organ for organ in result.computed}
    parts = [
        msgspec.structs.replace(part, theta_before=computed[part.name].theta_before, theta=computed[part.name].theta)
        for part in result.plan.parts
        if part.name in computed
    ]
    return summarize_changes(parts)


def _thetas(row: PlanChange | ComputedOrgan) -> tuple[str, str]:
    return theta_text(row.theta_before), theta_text(row.theta)


Builder = TypeVar("Builder", bound="RecipeBuilder")
STDIN = "-"


@dataclass(frozen=True, slots=True)
class ComposeOptions(OutputOptions):
    """Options of the commands that make chimeras."""

    lock: Path | None = None
    write_recipe: Path | None = None
    accept_all: bool = False
    shows_plan: bool = True
    base_label: str = ""
    """The name for the base in messages, if its registry is a temporary one."""
    folder: Path | None = None
    """The organ directory that the caller writes, instead of a GGUF at `output`."""
    look_seconds: float = 0.0
    """How long to measure the new chimera; 0: not at all."""


def recipe_bytes(path: str) -> bytes:
    """Return the text of a recipe in a file, or on stdin if `path` is `-`; at most one byte more than is allowed."""
    from organs.registry.compose.recipe_io import RECIPE_LIMITS

    if path == STDIN:
        return sys.stdin.buffer.read(RECIPE_LIMITS.size_bytes + 1)
    with FileSource(Path(path)) as file:
        return file.read_at(0, min(file.size_bytes, RECIPE_LIMITS.size_bytes + 1))


def read_composition(
    compose: Callable[[Recipe], Builder], path: str, name: str | None, accept: Sequence[str], *, as_json: bool
) -> Builder:
    """Return a composition of the recipe at `path`, with the name and the accepted codes of the options.

    Exits with the status of BadRecipe for an invalid recipe.
    """
    from organs.registry.compose.recipe_io import read_recipe

    try:
        composition = compose(read_recipe(recipe_bytes(path), path)).accept(*accept)
        return composition if name is None else composition.named(name)
    except BadRecipe as error:
        refuse_recipe(error, as_json=as_json)


def make_chimera(registry: Registry, composition: RecipeBuilder, options: ComposeOptions) -> ComposeResult:
    """Plan the chimera, print the plan, and make it; the caller prints the result and measures it.

    Exits with the status of NotComposable if it is refused.
    """
    from organs.registry.compose.recipe_io import recipe_yaml

    with waiting("plan", quiet=not options.prints):
        plan: RecipePlan = composition.plan()
    if options.accept_all and plan.planned.unaccepted:
        plan = plan.accepting_all()
    target = None if options.output is None else gguf_targets(options.output, [plan.file_name], force=options.force)[0]
    for path in (options.lock, options.write_recipe):
        if path is not None:
            check_free(path, force=options.force)
    measured = _measured(registry, plan.planned.plan) if options.prints and options.shows_plan else None
    result = check_plan(plan, target, options, measured)
    if options.dry_run:
        return result
    chimera = _made(plan, target, options)
    if options.lock is not None:
        write_text(options.lock, registry.lock_text(chimera.lock_id))
    if options.write_recipe is not None:
        write_text(options.write_recipe, recipe_yaml(plan.recipe))
    computed = registry.chimera(chimera.lock_id).computed
    return msgspec.structs.replace(result, made=_written(chimera, target), computed=computed)


def take_quick_look(registry: Registry, model: str | None, options: ComposeOptions) -> QuickLook | None:
    """Measure a new chimera for some seconds; without llama.cpp, and if that fails, print why it was not measured."""
    from organs.registry.validation.quick import LookBudget

    if not options.look_seconds or model is None:
        return None
    try:
        with status_line("quick look", quiet=not options.prints) as progress:
            return registry.quick_look(model, budget=LookBudget(options.look_seconds), progress=progress)
    except OrganError as error:
        print_sentence(f"Not measured: {error}.", err=True)
        return None


def print_quick_look(look: QuickLook) -> None:
    """Print a quick look: the result in a sentence, and a line for each text."""
    print_sentence(look.sentence, "quick look: ")
    if not look.texts:
        return
    rows = [text.cells for text in look.texts]
    columns = [*rows[0]]
    click.echo()
    print_table(
        columns, [[*row.values()] for row in rows], columns[1:], leave_out=("tokens", "same top token", "divergence")
    )
    click.echo()
    print_sentence(look.notes)


def write_partial(
    registry: Registry, recipe: Recipe, accept: Sequence[str], output: Path, options: ComposeOptions
) -> WrittenPath:
    """Write the file of a partial model with its base, which `recipe` combines; exit if that is refused."""
    plan = registry.compose(recipe).accept(*accept).plan()
    (target,) = gguf_targets(output, [plan.file_name], force=options.force)
    check_plan(plan, target, options)
    if options.dry_run:
        return WrittenPath(target, plan.size_bytes, None, is_new=True)
    (written,) = write_files(plan.files(), target, options)
    return written


def _measured(registry: Registry, plan: PlannedChimera | None) -> Chimera | None:
    """Return the registered chimera with the same lock as a plan, if it was validated."""
    if plan is None or plan.lock_id is None:
        return None
    try:
        chimera = registry.chimera(plan.lock_id)
    except OrganError:  # the plan is useful without it
        return None
    return chimera if chimera.verdicts else None


def check_plan(
    plan: RecipePlan, target: Path | None, options: ComposeOptions, measured: Chimera | None = None
) -> ComposeResult:
    """Print a plan and check that its file fits on the disk; exit if it cannot be made.

    `measured` is a registered chimera with the same lock, and a verdict.
    """
    result = result_of(plan.planned, target or options.folder)
    if options.base_label:
        result = _called(result, plan.chimera.base, options.base_label)
    is_shown = options.prints and options.shows_plan
    if is_shown:
        if measured is not None:
            _print_measured(measured)
        print_plan(result, target or options.folder)
    if target is not None and not result.refusals:
        check_fits(target, plan.size_bytes)
    if not plan.can_be_made:
        if options.as_json:
            print_json(result)
        refuse(result, shown=is_shown)
    return result


def _print_measured(chimera: Chimera) -> None:
    best = chimera.verdicts[0]
    when = f"{best.created_at:%Y-%m-%d}"
    print_sentence(
        f"{chimera.model} is the same chimera. It was run on {when}: {best.verdict}. {best.reason}", "measured: "
    )
    click.echo()


def result_of(planned: PlannedRecipe, target: Path | None) -> ComposeResult:
    """Return a plan with the organs that change, and where its file would be written."""
    plan = planned.plan
    if plan is not None:
        plan = msgspec.structs.replace(plan, parts=tuple(part for part in plan.parts if part.acts))
    return ComposeResult(
        can_be_made=planned.can_be_made,
        findings=planned.findings,
        unaccepted=planned.unaccepted,
        plan=plan,
        left_out=planned.left_out,
        out=_output(target),
    )


def print_composed(registry: Registry, result: ComposeResult, options: ComposeOptions) -> None:
    """Print a new chimera and θ of its computed organs; then measure it, which takes time, and print the result."""
    chimera = result.made
    if chimera is not None and options.quiet and not options.as_json:
        click.echo(chimera.model)
    elif chimera is not None and options.prints:
        _print_made(chimera)
        print_thetas(result, options)
    look = None if chimera is None else take_quick_look(registry, chimera.model, options)
    print_measured(result, look, options)


def print_measured(result: ComposeResult, look: QuickLook | None, options: ComposeOptions) -> None:
    """Print a quick look at a new chimera; for programs, all of `result` with it."""
    if options.as_json:
        print_json(msgspec.structs.replace(result, quick_look=look))
    elif look is not None and options.prints:
        click.echo()
        print_quick_look(look)


def refuse_recipe(error: BadRecipe, *, as_json: bool) -> NoReturn:
    """Print everything that is wrong with the text of a recipe, and exit."""
    from organs.registry.compose.recipe_io import recipe_findings

    result = ComposeResult(can_be_made=False, findings=in_order(recipe_findings(error)), plan=None)
    if as_json:
        print_json(result)
    refuse(result, shown=False, exit_code=BadRecipe.exit_code)


def _called(result: ComposeResult, label: str, name: str) -> ComposeResult:
    """Return `result` with `name` for `label`, a name in a temporary registry, and no name for the chimera."""
    values = _renamed(msgspec.to_builtins(result), label, name)
    values["plan"]["name"] = None
    return msgspec.convert(values, prepared(ComposeResult))


def _renamed(value: Any, label: str, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _renamed(item, label, name) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_renamed(item, label, name) for item in value]
    return value.replace(label, name) if isinstance(value, str) else value


def _output(target: Path | None) -> OutputFile:
    if target is None:
        return OutputFile(file=None, free_bytes=None)
    return OutputFile(file=str(target), free_bytes=free_bytes(target.parent) if target.parent.is_dir() else None)


def _made(plan: RecipePlan, target: Path | None, options: ComposeOptions) -> MadeChimera:
    total = plan.work_bytes(with_file=target is not None)
    with progress_bar("compose", total, quiet=not options.prints) as advance:

        def progress(_what: str, size_bytes: int) -> None:
            advance(size_bytes)

        return plan.register(progress) if target is None else plan.assemble(target, progress)


def _written(chimera: MadeChimera, target: Path | None) -> WrittenFile:
    return WrittenFile(
        file=None if target is None else str(target),
        size_bytes=chimera.size_bytes,
        sha256=chimera.sha256,
        lock_id=chimera.lock_id,
        model=chimera.model,
        created=chimera.created,
    )


def _print_made(chimera: WrittenFile) -> None:
    """Print the chimera's name, lock, digest and file, and where to see it on stderr."""
    name = chimera.model or ""
    plain_name, _, version = name.partition("@")
    state = "registered" if chimera.created else "already registered, with the same bytes"
    if chimera.created and version != "1":
        state = f"registered as a new version of {plain_name}"
    click.echo(f"\n{name}: {state}")
    click.echo(f"  lock  sha256:{chimera.lock_id}")
    where = f"{chimera.file}, " if chimera.file is not None else ""
    print_sentence(f"{where}{size_text(chimera.size_bytes)}, sha256:{chimera.sha256}", "  file  ")
    page = f"/models/{plain_name}"
    address = registry_address()
    where = f"{page} in organ serve" if address is None else f"{address}{page}"
    organ = shlex.join(organ_words())
    print_sentence(f"show it: {organ} show {name}, or {where}", err=True)
    if chimera.file is None:
        file = f"{plain_name.partition('/')[2]}.gguf"
        print_hint("write the file", f"{organ} assemble {name} -o {file}")
