"""`organ transplant` and `organ graft`: organs from files into a file or a folder, without a registry."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from organs.cli.console import plain, print_json, print_path, progress_bar
from organs.cli.files import (
    check_fits,
    check_folder_free,
    check_free,
    gguf_targets,
    is_file,
    one_source,
    write_text,
)
from organs.registry.amounts import size_text
from organs.registry.catalog.vocabulary import GRAFTED_TYPES
from organs.registry.digest import Digest
from organs.registry.entities.chimera import ComposeResult, WrittenFile
from organs.registry.errors import BadRecipe, BadSource

if TYPE_CHECKING:
    from organs.ingest.transplant import FileLibrary, Transplant
    from organs.registry.compose.plan import Plan
    from organs.registry.compose.recipe import Recipe

TYPE_DEFAULT = "organ"

Command = Callable[..., None]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is to be done with the files that are given."""

    models: tuple[str, ...]
    """The base, then the donors."""
    output: Path
    layers: tuple[str, ...]
    kinds: tuple[str, ...]
    slots: tuple[str, ...]
    accept: tuple[str, ...]
    yes: bool
    lock: Path | None
    dry_run: bool
    force: bool
    as_json: bool
    quiet: bool


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What both commands take."""

    given = [
        click.argument("base", metavar="BASE"),
        click.argument("donors", nargs=-1, required=True, metavar="DONOR..."),
        click.option(
            "--layers", "--blocks", "layers", multiple=True, metavar="BLOCKS",
            help="The blocks to take, such as 5-20 or 0,4-7; all, if left out. For several donors one each, in turn.",
        ),
        click.option(
            "--type", "kinds", multiple=True, type=click.Choice(GRAFTED_TYPES),
            help="The type to take: organ (feed-forward) if neither --type nor --slot is given.",
        ),
        click.option("--slot", "slots", multiple=True, metavar="SLOT", help="The slot to take; * stands for any text."),
        click.option("--accept", multiple=True, metavar="CODE", help="Accept a warning by its code."),
        click.option("-y", "--yes", is_flag=True, help="Accept every warning."),
        click.option("--lock", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write the lock."),
        click.option("--dry-run", is_flag=True, help="Say what it would be, and write nothing."),
        click.option("--force", is_flag=True, help="Replace what is there."),
        click.option("--json", "as_json", is_flag=True, help="The plan and what was written as JSON."),
        click.option("-q", "--quiet", is_flag=True, help="Print the path only."),
    ]  # fmt: skip
    for option in reversed(given):
        command = option(command)
    return command


@click.command()
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="OUT", help="The GGUF.")
@_options
def transplant(base: str, donors: tuple[str, ...], output: Path, **given: Any) -> None:
    """Write a GGUF that is BASE with organs of each DONOR in their places.

    BASE and DONOR are GGUF files, any shard of a split set, or organ directories; no registry is opened. The lock, and
    so every byte, is that of the same chimera composed in a registry. What is found is as for `organ compose`.
    """
    from organs.ingest.transplant import place_virtual

    _check_blocks(given["layers"], donors)
    asked = _Asked(models=(base, *donors), output=output, **given)

    def write(done: Transplant, advance: Callable[[int], None]) -> Digest:
        return place_virtual(done.file, done.file.path, advance)

    _run(asked, lambda name: gguf_targets(output, [name], force=asked.force)[0], write)


@click.command()
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="DIR", help="To be made.")
@_options
def graft(base: str, donors: tuple[str, ...], output: Path, **given: Any) -> None:
    """Write an organ directory that is BASE with organs of each DONOR in their places.

    BASE and DONOR are organ directories, as `organ extract` writes them, or GGUF files; no registry is opened. DIR
    appears whole or not at all. `organ assemble DIR` makes a GGUF of it, the one that `organ transplant` writes.
    """
    from organs.ingest.directory.extract import extract, file_contents
    from organs.ingest.dissect import dissect

    _check_blocks(given["layers"], donors)
    asked = _Asked(models=(base, *donors), output=output, **given)

    def target(_name: str) -> Path:
        check_folder_free(output, force=asked.force)
        return output

    def write(done: Transplant, advance: Callable[[int], None]) -> Digest:
        named = done.file.placed_at(output / done.plan.file_name)
        contents = file_contents([dissect(named)])
        return extract(contents, output, force=asked.force, progress=advance).files[0][2]

    _run(asked, target, write)


def _check_blocks(layers: Sequence[str], donors: Sequence[str]) -> None:
    if len(layers) not in (0, 1, len(donors)):
        raise click.UsageError(f"--layers once, or once for each of the {len(donors)} donors")


def _run(
    asked: _Asked, target_of: Callable[[str], Path], write: Callable[[Transplant, Callable[[int], None]], Digest]
) -> None:
    from organs.cli.composing import print_plan, refuse, result_of
    from organs.ingest.transplant import FileLibrary
    from organs.ingest.transplant import transplant as composed_of_files
    from organs.registry.compose.plan import planned_recipe

    prints = not (asked.as_json or asked.quiet)
    with ExitStack() as opened:
        library = FileLibrary(opened, {text: one_source(_checked(text), "transplant") for text in asked.models})
        plan = _plan(asked, library, quiet=not prints)
        target = target_of(plan.file_name)
        if asked.lock is not None:
            check_free(asked.lock, force=asked.force)
        result = result_of(planned_recipe(plan), target)
        if prints:
            print_plan(result, target)
        if not plan.refusals:
            check_fits(target, plan.size_bytes)
        if plan.can_be_made and not asked.dry_run:
            done = composed_of_files(plan.recipe, library, target)
            with progress_bar("write", done.file.size_bytes, quiet=not prints) as advance:
                digest = write(done, advance)
            if asked.lock is not None:
                write_text(asked.lock, done.lock.canonical())
            made = WrittenFile(file=str(target), size_bytes=done.file.size_bytes, sha256=digest, lock_id=done.lock.id)
            result = msgspec.structs.replace(result, made=made)
    _print(result, asked)
    if not plan.can_be_made:
        refuse(result, shown=prints)


def _checked(text: str) -> str:
    if not is_file(text):
        raise BadSource(f"{text}: no GGUF file and no organ directory; registered models: organ compose")
    return text


def _plan(asked: _Asked, library: FileLibrary, *, quiet: bool) -> Plan:
    from organs.cli.composing import refuse_recipe
    from organs.ingest.sources import source_size_bytes
    from organs.registry.compose.planner import plan_recipe

    try:
        recipe = _recipe(asked)
    except BadRecipe as error:
        refuse_recipe(error, as_json=asked.as_json)
    sizes = {text: source_size_bytes(source) for text, source in library.sources.items()}
    with progress_bar("measure", sum(sizes.values()), quiet=quiet) as advance:
        for text, size_bytes in sizes.items():
            library.parent(text)
            advance(size_bytes)
    plan = plan_recipe(recipe, library)
    if asked.yes and plan.unaccepted:
        codes = dict.fromkeys((*recipe.accept, *(finding.code for finding in plan.unaccepted)))
        plan = replace(plan, recipe=replace(recipe, accept=tuple(codes)))
    return plan


def _recipe(asked: _Asked) -> Recipe:
    """The recipe that the options come to. It is read with short names, as paths may be anything; then they are set."""
    from organs.registry.compose.recipe_io import parse_blocks, read_recipe

    base, *donors = asked.models
    kinds = asked.kinds or (() if asked.slots else (TYPE_DEFAULT,))
    layers = asked.layers * len(donors) if len(asked.layers) == 1 else asked.layers or ("",) * len(donors)
    grafts = [
        {"from": "donor", **({"type": [*kinds]} if kinds else {}), **({"slot": [*asked.slots]} if asked.slots else {})}
        for _ in donors
    ]
    text = json.dumps({"base": "base", "grafts": grafts, "accept": list(dict.fromkeys(asked.accept))})
    recipe = read_recipe(text, "options")
    named = [
        replace(one, donor=donor, selection=replace(one.selection, blocks=parse_blocks(blocks) if blocks else ()))
        for one, donor, blocks in zip(recipe.grafts, donors, layers, strict=True)
    ]
    return replace(recipe, base=base, grafts=tuple(named))


def _print(result: ComposeResult, asked: _Asked) -> None:
    made = result.made
    if asked.as_json:
        print_json(result)
    elif made is not None and asked.quiet:
        print_path(made.file)
    elif made is not None:
        click.echo(f"\n{plain(made.file)}: {size_text(made.size_bytes)}, sha256:{made.sha256}")
        click.echo(f"  lock  sha256:{made.lock_id}")
