"""`organ compose`: make the chimera that a recipe describes. Other commands make chimeras with its functions."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec
from msgspec import structs

from organs.cli.console import (
    is_chosen,
    is_for_people,
    is_quiet,
    organ_command,
    output_options,
    plain,
    print_hint,
    print_json,
    print_remark,
    print_sentence,
    printed_for_programs,
    prints_json,
    progress_bar,
    status_line,
)
from organs.cli.options import FILE, accept_option, flag, lock_option, on_option, quick_look_option
from organs.cli.outputs import (
    SUFFIX,
    WrittenPath,
    check_fits,
    check_free,
    force_option,
    gguf_targets,
    output_option,
    write_files,
    write_text,
)
from organs.cli.plans import print_plan, print_quick_look, print_thetas, refuse, refuse_recipe, result_of
from organs.cli.registries import registry_address, selected_registry
from organs.registry.amounts import size_text
from organs.registry.entities.base import prepared
from organs.registry.entities.chimera import ComposeResult, WrittenFile
from organs.registry.entities.plan import PlannedChimera
from organs.registry.entities.validation import QuickLook
from organs.registry.errors import BadLock, BadRecipe, NotFound, OrganError
from organs.registry.input_files import FileSource

if TYPE_CHECKING:
    from organs.registry.compose.api import RecipeBuilder, RecipePlan
    from organs.registry.compose.recipe import Recipe
    from organs.registry.interface import Registry

Builder = TypeVar("Builder", bound="RecipeBuilder")
STDIN = "-"


@click.command()
@click.argument("recipe", required=False, metavar="[RECIPE]")
@output_option("OUT", "Also write the GGUF file OUT.")
@click.option(
    "--name", metavar="NAME", help="Register the chimera as NAMESPACE/NAME. [default: the name in the recipe]"
)
@accept_option
@flag("-y", "--yes", "Accept every warning. The stored recipe lists their codes.")
@flag("--dry-run", "Print the plan, and make nothing.")
@lock_option
@click.option("--write-recipe", type=FILE, metavar="FILE", help="Write the recipe to FILE, with the accepted warnings.")
@click.option(
    "--from-lock",
    type=FILE,
    metavar="LOCK",
    help="Write to OUT the GGUF file that LOCK describes. Needs -o; registers nothing.",
)
@click.option(
    "--propose",
    metavar="BASE",
    help="Print the recipe of the graft on BASE with the largest measured gain; makes nothing.",
)
@on_option
@quick_look_option
@force_option("Replace existing files.")
@output_options(json="Print the plan and the result as JSON.", quiet="Print the chimera's name only.")
def compose(
    recipe: str | None,
    output: Path | None,
    name: str | None,
    accept: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    lock: Path | None,
    write_recipe: Path | None,
    from_lock: Path | None,
    propose: str | None,
    on: str | None,
    quick_look: float | None,
) -> None:
    """Make the chimera that RECIPE describes, and register it.

    RECIPE is a file in YAML or JSON, or - for stdin. The command first prints the plan: the refusals, the warnings, the
    changed tensors, the size of the file, and what the weights say. A refusal stops the command. A warning stops it,
    too, unless you accept its code with --accept or in the recipe.

    Then it takes a quick look: llama.cpp runs the chimera and its base on a few windows of a few texts, and the command
    prints the change of perplexity on each, with its error. `organ validate` measures more.

    With -o, the command also writes the GGUF file. Without -o, `organ assemble` and `organ serve` can write it later.

    --lock writes a lock: the digests of all tensors and of the base. With --from-lock, the same lock gives the same
    file in every registry that has these tensors and this base.

    --propose prints the recipe of the validated chimera with the largest gain over BASE. With --on, only the gains on
    these kinds of text count. Save the recipe, change it, and compose it.
    """
    if propose is not None:
        if any((recipe, output, name, accept, yes, dry_run, lock, write_recipe, from_lock, is_chosen("force"))):
            raise click.UsageError("--propose takes only --on, --json and -q: it prints a recipe and makes nothing")
        _propose(propose, on)
        return
    if on is not None:
        raise click.UsageError("--on needs --propose BASE")
    if from_lock is not None:
        if recipe is not None or output is None or any((name, accept, yes, lock, write_recipe)):
            raise click.UsageError(
                "--from-lock takes -o OUT, and no RECIPE, name or accepted codes: the lock describes the whole file"
            )
        _write_from_lock(from_lock, output, dry_run=dry_run)
        return
    if recipe is None:
        raise click.UsageError("give a RECIPE, --from-lock LOCK or --propose BASE")
    options = ComposeOptions(output, dry_run, lock, write_recipe, yes, look_seconds=look_seconds(quick_look))
    with selected_registry() as registry:
        last = read_last_composition(registry, recipe, name, accept, dry_run=dry_run)
        result = make_chimera(registry, last, options)
        print_composed(registry, result, options)


def look_seconds(seconds: float | None) -> float:
    """Return how long a quick look may take; 0 without one: by option, with -q, and where llama.cpp is missing."""
    from organs.registry.validation.llama import LlamaCpp
    from organs.registry.validation.quick import SECONDS, LookBudget

    if seconds is None:
        has_runtime = registry_address() is not None or LlamaCpp.is_installed()
        return SECONDS if has_runtime and not is_quiet() else 0.0
    return LookBudget(seconds).seconds if seconds else 0.0  # refuses numbers out of range before anything is made


def _propose(base: str, on: str | None) -> None:
    """Print the recipe of the graft on `base` with the largest gain, of those whose parents are all available."""
    from organs.registry.compose.recipe import recipe_of, recipe_yaml

    best, after, is_last = None, None, False
    with selected_registry() as registry:
        while best is None and not is_last:
            page = registry.leaderboard(base, on=on, after=after)
            gaining = list(takewhile(lambda graft: graft.best.percent > 0.0, page))
            best = next((graft for graft in gaining if not graft.unavailable_parents), None)
            after = page.next
            is_last = after is None or len(gaining) < len(page)
    if best is None:
        where = f" on {on}" if on else ""
        raise NotFound(
            f"no graft on {base} has a measured gain{where} and parents that are all available; "
            f"see organ leaderboard {base} and organ compat {base}"
        )
    recipe = structs.replace(best.recipe, name=None)
    if is_for_people():
        loss = "" if best.worst is None else f" Largest loss: {best.worst}."
        click.echo(plain(f"# Measured gain of {best.chimera}: {best.best}.{loss}"))
        click.echo(plain(f"# Grafted: {best.grafted}. Other measured grafts: organ leaderboard {base}"))
    if prints_json():
        print_json(recipe)
    else:
        click.echo(recipe_yaml(recipe_of(recipe)), nl=False)


def _write_from_lock(path: Path, output: Path, *, dry_run: bool) -> None:
    """Write the GGUF file that the lock at `path` describes."""
    from organs.registry.compose.lock import LOCK_MAX_BYTES, parse_lock

    try:
        lock = parse_lock(_read_input(path, LOCK_MAX_BYTES).decode("ascii").removesuffix("\n"))
    except UnicodeDecodeError as error:
        raise BadLock(f"{path}: this is not a lock: it has bytes that are not ASCII") from error
    except BadLock as error:
        raise BadLock(f"{path}: {error}") from error
    (target,) = gguf_targets(output, [f"{lock.id}{SUFFIX}"])
    with selected_registry() as registry:
        files = registry.lock_files(lock)
        check_fits(target, files.work_bytes)
        (written,) = write_files(files, target, dry_run=dry_run)
    sha256 = None if dry_run else written.sha256
    file = WrittenFile(file=str(target), size_bytes=written.size_bytes, sha256=sha256, lock_id=lock.id)
    if not printed_for_programs({"items": [file], "next": None}, [target]):
        result = f", sha256:{sha256}" if sha256 else "; nothing was written"
        print_sentence(f"{target}: {size_text(written.size_bytes)}{result}")
        click.echo(f"  lock  sha256:{lock.id}")


def _read_input(path: Path, most_bytes: int) -> bytes:
    """Return the bytes of a file, at most one byte more than is allowed."""
    with FileSource(path) as file:
        return file.read_at(0, min(file.size_bytes, most_bytes + 1))


@dataclass(frozen=True, slots=True)
class ComposeOptions:
    """Options of the commands that make chimeras."""

    output: Path | None = None
    dry_run: bool = False
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


def read_last_composition(
    registry: Registry, path: str, name: str | None, accept: Sequence[str], *, dry_run: bool
) -> RecipeBuilder:
    """Return the composition of the recipe at `path`, or on stdin if that is `-`, with the options for name and codes.

    A configuration of mergekit may have several documents: all but the last are made first, and the name is that of the
    last one. Exits with the status of BadRecipe for an invalid recipe, and of NotComposable for one that is refused.
    """
    from organs.registry.compose.files import with_files
    from organs.registry.compose.mergekit import read_recipes
    from organs.registry.compose.recipe import RECIPE_LIMITS

    def block_count(model: str) -> int:
        return 1 + max((organ.block for organ in registry.organs_of(model) if organ.block is not None), default=-1)

    def resolved(values: object) -> object:
        return with_files(values, Path() if path == STDIN else Path(path).parent, registry)

    most = RECIPE_LIMITS.size_bytes
    text = sys.stdin.buffer.read(most + 1) if path == STDIN else _read_input(Path(path), most)
    try:
        *earlier, last = [
            registry.compose(item).accept(*accept) for item in read_recipes(text, path, block_count, resolved)
        ]
        last = last if name is None else last.named(name)
    except BadRecipe as error:
        refuse_recipe(error)
    if earlier and dry_run:
        raise click.UsageError("--dry-run is for one document: the others need the models that the first one makes")
    for composition in earlier:
        made = make_chimera(registry, composition, ComposeOptions(shows_plan=False)).made
        if made is not None and is_for_people():
            print_sentence(f"{made.model}: {size_text(made.size_bytes)}, for the next document")
    return last


def make_chimera(registry: Registry, composition: RecipeBuilder, options: ComposeOptions) -> ComposeResult:
    """Plan the chimera, print the plan, and make it; the caller prints the result and measures it.

    Exits with the status of NotComposable if it is refused.
    """
    from organs.registry.compose.recipe import recipe_yaml

    with status_line("plan"):
        plan: RecipePlan = composition.plan()
    if options.accept_all and plan.planned.unaccepted:
        plan = plan.accepting_all()
    target = None if options.output is None else gguf_targets(options.output, [plan.file_name])[0]
    for path in (options.lock, options.write_recipe):
        if path is not None:
            check_free(path)
    if is_for_people() and options.shows_plan:
        _print_verdict_on_same(registry, plan.chimera)
    if options.dry_run and options.write_recipe is not None:
        write_text(options.write_recipe, recipe_yaml(plan.recipe))
    result = check_plan(plan, target, options)
    if options.dry_run:
        return result
    with progress_bar("compose", plan.work_bytes(with_file=target is not None)) as advance:

        def progress(_what: str, size_bytes: int) -> None:
            advance(size_bytes)

        made = plan.register(progress) if target is None else plan.assemble(target, progress)
    if options.lock is not None:
        write_text(options.lock, registry.lock_text(made.lock_id))
    if options.write_recipe is not None:
        write_text(options.write_recipe, recipe_yaml(plan.recipe))
    written = WrittenFile(
        file=None if target is None else str(target),
        size_bytes=made.size_bytes,
        sha256=made.sha256,
        lock_id=made.lock_id,
        model=made.model,
        created=made.created,
    )
    return structs.replace(result, made=written, computed=registry.chimera(made.lock_id).computed)


def _print_verdict_on_same(registry: Registry, plan: PlannedChimera) -> None:
    """Print the verdict on the registered chimera with the same lock as a plan, if there is one."""
    if plan.lock_id is None:
        return
    try:
        chimera = registry.chimera(plan.lock_id)
    except OrganError:  # the plan is useful without it
        return
    if chimera.verdicts:
        best = chimera.verdicts[0]
        run = f"It was run on {best.created_at:%Y-%m-%d}: {best.verdict}. {best.reason}"
        print_sentence(f"{chimera.model} is the same chimera. {run}", "measured: ")
        click.echo()


def take_quick_look(registry: Registry, model: str | None, seconds: float) -> QuickLook | None:
    """Measure a new chimera for some seconds; without llama.cpp, and if that fails, print why it was not measured."""
    from organs.registry.validation.quick import LookBudget

    if not seconds or model is None:
        return None
    try:
        with status_line("quick look") as progress:
            return registry.quick_look(model, budget=LookBudget(seconds), progress=progress)
    except OrganError as error:
        print_remark(f"Not measured: {error}.")
        return None


def write_partial(
    registry: Registry, recipe: Recipe, accept: Sequence[str], output: Path, *, dry_run: bool = False
) -> WrittenPath:
    """Write the file of a partial model with its base, which `recipe` combines; exit if that is refused."""
    plan = registry.compose(recipe).accept(*accept).plan()
    (target,) = gguf_targets(output, [plan.file_name])
    check_plan(plan, target, ComposeOptions(shows_plan=False))
    if dry_run:
        return WrittenPath(target, plan.size_bytes, None, is_new=True)
    (written,) = write_files(plan.files(), target)
    return written


def check_plan(plan: RecipePlan, target: Path | None, options: ComposeOptions) -> ComposeResult:
    """Print a plan and check that its file fits on the disk; exit if it cannot be made."""
    result = result_of(plan.planned, target or options.folder)
    if options.base_label:  # the name of the base in a temporary registry says nothing to the user
        label = json.dumps(options.base_label)[1:-1]
        values = json.loads(json.dumps(msgspec.to_builtins(result)).replace(plan.chimera.base, label))
        values["plan"]["name"] = None
        result = msgspec.convert(values, prepared(ComposeResult))
    is_shown = is_for_people() and options.shows_plan
    if is_shown:
        print_plan(result)
    if target is not None and not result.refusals:
        check_fits(target, plan.size_bytes)
    if not plan.can_be_made:
        if prints_json():
            print_json(result)
        refuse(result, shown=is_shown)
    return result


def print_composed(registry: Registry, result: ComposeResult, options: ComposeOptions) -> None:
    """Print a new chimera and θ of its computed tensors; then measure it, which takes time, and print the result."""
    chimera, look = result.made, None
    if chimera is not None:
        if is_quiet() and not prints_json():
            click.echo(chimera.model)
        elif is_for_people():
            name = chimera.model or ""
            plain_name, _, version = name.partition("@")
            state = "registered" if chimera.created else "already registered, with the same bytes"
            if chimera.created and version != "1":
                state = f"registered as a new version of {plain_name}"
            click.echo(f"\n{name}: {state}")
            click.echo(f"  lock  sha256:{chimera.lock_id}")
            where = f"{chimera.file}, " if chimera.file is not None else ""
            print_sentence(f"{where}{size_text(chimera.size_bytes)}, sha256:{chimera.sha256}", "  file  ")
            page, address = f"/models/{plain_name}", registry_address()
            where = f"{page} in organ serve" if address is None else f"{address}{page}"
            print_remark(f"show it: {organ_command('show', name)}, or {where}")
            if chimera.file is None:
                print_hint(
                    "write the file", organ_command("assemble", name, "-o", f"{plain_name.partition('/')[2]}.gguf")
                )
            print_thetas(result)
        if result.plan is not None and result.plan.screen.relation == "same":
            if options.look_seconds and is_for_people():
                print_remark("Not measured: the weights are those of the base.")
        else:
            look = take_quick_look(registry, chimera.model, options.look_seconds)
    print_measured(result, look)


def print_measured(result: ComposeResult, look: QuickLook | None) -> None:
    """Print a quick look at a new chimera; for programs, all of `result` with it."""
    if prints_json():
        print_json(structs.replace(result, quick_look=look))
    elif look is not None and is_for_people():
        click.echo()
        print_quick_look(look)
