"""`organ transplant` and `organ graft`: copy tensors between files, without a registry."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from organs.cli.console import (
    is_chosen,
    is_for_people,
    output_options,
    print_sentence,
    printed_for_programs,
    progress_bar,
    status_line,
)
from organs.cli.inputs import is_file, one_source
from organs.cli.options import accept_option, flag, lock_option, original_spelling
from organs.cli.outputs import (
    check_fits,
    check_folder_free,
    check_free,
    force_option,
    gguf_targets,
    output_option,
    write_text,
)
from organs.cli.plans import print_plan, refuse, refuse_recipe, result_of
from organs.registry.amounts import size_text
from organs.registry.anatomy import EXAMPLE_SLOTS
from organs.registry.catalog.vocabulary import GRAFTED_TYPES
from organs.registry.digest import Digest
from organs.registry.entities.chimera import WrittenFile
from organs.registry.errors import BadRecipe, BadSource

if TYPE_CHECKING:
    from organs.ingest.transplant import Transplant
    from organs.registry.compose.recipe import Recipe

Write = Callable[["Transplant", Callable[[int], None]], Digest]
"""Writes what was composed, and returns the SHA-256 of its GGUF file."""


def _transplant_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments and options of both commands."""

    decorators = [
        original_spelling("donors", "--source"),  # where organs come from
        original_spelling("base", "--target"),  # receives them, and stays as it is
        click.argument("base", metavar="BASE"),
        click.argument("donors", nargs=-1, required=True, metavar="DONOR..."),
        click.option(
            "--layers", "--blocks", "layers", multiple=True, metavar="BLOCKS",
            help="Copy only tensors of these blocks (layers), such as 5-20 or 0,4-7. Give it once, or once "
            "for each donor in order. [default: all]",
        ),
        click.option(
            "--type", "kinds", multiple=True, type=click.Choice(GRAFTED_TYPES),
            help="Copy only tensors of this type. Repeatable. [default: organ (feed-forward), unless --slot is given]",
        ),
        click.option(
            "--slot", "slots", multiple=True, metavar="SLOT",
            help=f"Copy only tensors in this slot, such as {EXAMPLE_SLOTS[0]}; * stands for any text. Repeatable.",
        ),
        click.option(
            "--experts", multiple=True, metavar="EXPERTS",
            help="Copy only these experts of stacks of experts, such as 5,17 or 0-3. Repeatable. "
            "[default: whole stacks]",
        ),
        accept_option,
        flag("-y", "--yes", "Accept every warning."),
        lock_option,
        flag("--dry-run", "Print the plan; write nothing."),
        force_option("Replace an existing file or organ directory."),
        output_options(json="Print the plan and the result as JSON.", quiet="Print the path only."),
    ]  # fmt: skip
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


@click.command()
@output_option("OUT", "The GGUF file to write.", required=True)
@_transplant_options
def transplant(base: str, donors: tuple[str, ...], output: Path, **params: Any) -> None:
    """Write a GGUF file: BASE with tensors of each DONOR.

    BASE and DONOR are GGUF files, any shard of a split model, or organ directories. The command opens no registry. It
    prints the same findings as `organ compose`, and writes the same lock and the same bytes.
    """
    from organs.ingest.transplant import place_virtual

    def write(done: Transplant, advance: Callable[[int], None]) -> Digest:
        return place_virtual(done.file, done.file.path, advance)

    _transplant(base, donors, lambda name: gguf_targets(output, [name])[0], write, **params)


@click.command()
@output_option("DIR", "The folder to create.", required=True)
@_transplant_options
def graft(base: str, donors: tuple[str, ...], output: Path, **params: Any) -> None:
    """Write an organ directory: BASE with tensors of each DONOR.

    BASE and DONOR are organ directories from `organ extract`, or GGUF files. The command opens no registry. If it
    fails, it leaves no incomplete DIR. `organ assemble DIR` writes the same GGUF file as `organ transplant`.
    """
    from organs.ingest.directory.extract import extract, file_contents
    from organs.ingest.dissect import dissect

    def target(_name: str) -> Path:
        check_folder_free(output)
        return output

    def write(done: Transplant, advance: Callable[[int], None]) -> Digest:
        contents = file_contents([dissect(done.file.placed_at(output / done.plan.file_name))])
        return extract(contents, output, force=is_chosen("force"), progress=advance).files[0][2]

    _transplant(base, donors, target, write, **params)


def _transplant(
    base: str,
    donors: tuple[str, ...],
    target_of: Callable[[str], Path],
    write: Write,
    *,
    yes: bool,
    lock: Path | None,
    dry_run: bool,
    **selection: Any,
) -> None:
    """Plan, print and write the tensors of `donors` in `base`; exit if that is refused."""
    from organs.ingest.sources import source_size_bytes
    from organs.ingest.transplant import FileLibrary
    from organs.ingest.transplant import transplant as composed_of_files
    from organs.registry.compose.plan import planned_recipe
    from organs.registry.compose.planner import plan_recipe

    if len(selection["layers"]) not in (0, 1, len(donors)):
        raise click.UsageError(f"give --layers once, or once for each of the {len(donors)} donors")
    for text in (base, *donors):
        if not is_file(text):
            raise BadSource(f"{text}: not a GGUF file or an organ directory; for registered models use organ compose")
    with ExitStack() as opened:
        library = FileLibrary(opened, {text: one_source(text, "transplant") for text in (base, *donors)})
        try:
            recipe = _recipe(base, donors, **selection)
        except BadRecipe as error:
            refuse_recipe(error)
        sizes = {text: source_size_bytes(source) for text, source in library.sources.items()}
        with progress_bar("measure", sum(sizes.values())) as advance:
            for text, size_bytes in sizes.items():
                library.parent(text)
                advance(size_bytes)
        with status_line("plan"):
            plan = plan_recipe(recipe, library)
        if yes:
            plan = plan.accepting_all()
        target = target_of(plan.file_name)
        if lock is not None:
            check_free(lock)
        result = result_of(planned_recipe(plan), target)
        if is_for_people():
            print_plan(result)
        if not plan.refusals:
            check_fits(target, plan.size_bytes)
        if plan.can_be_made and not dry_run:
            done = composed_of_files(plan, library, target)
            with progress_bar("write", done.file.size_bytes) as advance:
                digest = write(done, advance)
            if lock is not None:
                write_text(lock, done.lock.canonical())
            made = WrittenFile(file=str(target), size_bytes=done.file.size_bytes, sha256=digest, lock_id=done.lock.id)
            result = structs.replace(result, made=made)
    if not printed_for_programs(result, [target] if result.made else []) and result.made is not None:
        click.echo()
        print_sentence(f"{target}: {size_text(result.made.size_bytes)}, sha256:{result.made.sha256}")
        click.echo(f"  lock  sha256:{result.made.lock_id}")
    if not plan.can_be_made:
        refuse(result, shown=is_for_people())


def _recipe(
    base: str,
    donors: tuple[str, ...],
    *,
    layers: tuple[str, ...],
    kinds: tuple[str, ...],
    slots: tuple[str, ...],
    experts: tuple[str, ...],
    accept: tuple[str, ...],
) -> Recipe:
    """Return the recipe of the options. It is read with short names, then gets the paths, which may be any text."""
    from organs.registry.compose.recipe import parse_blocks, recipe_of_values

    graft = {
        "from": "donor",
        "type": [*(kinds or (() if slots else ("organ",)))],
        "slot": [*slots],
        "experts": [word.strip() for text in experts for word in text.split(",")],
    }
    selected = {key: value for key, value in graft.items() if value}
    values = {"base": "base", "grafts": [selected] * len(donors), "accept": list(dict.fromkeys(accept))}
    recipe = recipe_of_values(values, "options")
    blocks_of_donors = layers * len(donors) if len(layers) == 1 else layers or ("",) * len(donors)
    named = [
        structs.replace(graft, donor=donor, blocks=parse_blocks(blocks) if blocks else ())
        for graft, donor, blocks in zip(recipe.grafts, donors, blocks_of_donors, strict=True)
    ]
    return structs.replace(recipe, base=base, grafts=tuple(named))
