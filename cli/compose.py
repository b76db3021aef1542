"""`organ compose` and `organ purify`: make chimeras."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from organs.cli.arguments import selected_registry
from organs.cli.console import plain, print_json, print_path, progress_bar
from organs.cli.files import (
    SUFFIX,
    OutputOptions,
    check_fits,
    check_folder_free,
    gguf_targets,
    is_file,
    one_source,
    write_files,
)
from organs.ingest.files import FileSource
from organs.registry.amounts import size_text
from organs.registry.catalog.vocabulary import GRAFTED_TYPES
from organs.registry.entities.chimera import ComposeResult, WrittenFile
from organs.registry.errors import BadLock, BadRecipe, BadSource
from organs.registry.names import parse_model_name

if TYPE_CHECKING:
    from organs.cli.composing import Builder, ComposeOptions
    from organs.registry.compose.api import RecipeBuilder
    from organs.registry.compose.lock import Lock
    from organs.registry.local import LocalRegistry


_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("recipe", required=False, metavar="[RECIPE]")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OUT", help="Write the GGUF there too.")
@click.option("--name", metavar="NAME", help="Register it as NAMESPACE/NAME, instead of the recipe's name.")
@click.option("--accept", multiple=True, metavar="CODE", help="Accept a warning by its code.")
@click.option("-y", "--yes", is_flag=True, help="Accept every warning; the recipe that is kept names them.")
@click.option("--dry-run", is_flag=True, help="Say what it would be, and make nothing.")
@click.option("--lock", type=_FILE, metavar="FILE", help="Write the lock there.")
@click.option("--write-recipe", type=_FILE, metavar="FILE", help="Write the recipe there, as it was made.")
@click.option("--from-lock", type=_FILE, metavar="LOCK", help="Write the file of a lock; nothing is registered.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
@click.option("--json", "as_json", is_flag=True, help="The plan and what was made as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print the chimera's name only.")
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
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Make a chimera of what RECIPE says, and register it.

    RECIPE is a file, YAML or JSON, or - for stdin. All that is to be said of it is said before anything is made: what
    refuses it, what must be accepted, what becomes of which organ, the size, and what is predicted of the result.
    With -o the GGUF is written too; without, `organ assemble` and `organ serve` give it whenever it is wanted.

    A lock gives the same bytes on every machine that has its organs and its base: --from-lock.
    """
    from organs.cli.composing import ComposeOptions, make_chimera, print_composed, print_thetas, read_composition

    if from_lock is not None:
        if recipe is not None or output is None or any((name, accept, yes, lock, write_recipe)):
            raise click.UsageError("--from-lock takes -o OUT, and no RECIPE: a lock says all there is to say")
        _from_lock(from_lock, OutputOptions(output, force, dry_run, as_json, quiet))
        return
    if recipe is None:
        raise click.UsageError("give a RECIPE, or --from-lock")
    options = ComposeOptions(output, force, dry_run, as_json, quiet, lock, write_recipe, yes)
    with selected_registry() as registry:
        result = make_chimera(
            registry, read_composition(registry.compose, recipe, name, accept, as_json=as_json), options
        )
    print_composed(result, options)
    print_thetas(result, options)


def _from_lock(path: Path, options: OutputOptions) -> None:
    assert options.output is not None
    lock = _read_lock(path)
    (target,) = gguf_targets(options.output, [f"{lock.id}{SUFFIX}"], force=options.force)
    with selected_registry() as registry:
        files = registry.lock_files(lock)
        check_fits(target, files.work_bytes)
        (written,) = write_files(files, target, options)
    sha256 = None if options.dry_run else written.sha256
    if options.as_json:
        file = WrittenFile(file=str(target), size_bytes=written.size_bytes, sha256=sha256, lock_id=lock.id)
        print_json({"items": [file], "next": None})
    elif options.quiet:
        print_path(target)
    else:
        result = f", sha256:{sha256}" if sha256 else "; nothing was written"
        click.echo(f"{plain(target)}: {size_text(written.size_bytes)}{result}")
        click.echo(f"  lock  sha256:{lock.id}")


def _read_lock(path: Path) -> Lock:
    from organs.registry.compose.lock import LOCK_MAX_BYTES, parse_lock

    with FileSource(path) as file:
        data = file.read_at(0, min(file.size_bytes, LOCK_MAX_BYTES + 1))
    try:
        return parse_lock(data.decode("ascii").removesuffix("\n"))
    except UnicodeDecodeError as error:
        raise BadLock(f"{path}: it is no lock: a lock is ASCII") from error
    except BadLock as error:
        raise BadLock(f"{path}: {error}") from error


_METHODS = ("spectral", "fractal")
"""Those of `PurifyMethod`, which loads numpy; a test compares them."""


@click.command()
@click.argument("model", metavar="MODEL|FILE|DIR")
@click.option("--method", required=True, type=click.Choice(_METHODS), help="How: see the documentation of recipes.")
@click.option("--keep", type=float, metavar="SHARE", help="The share of the energy that spectral keeps, 0.9 by itself.")
@click.option("--type", "kinds", multiple=True, type=click.Choice(GRAFTED_TYPES), help="Organs of this type.")
@click.option("--blocks", "--layers", "blocks", metavar="BLOCKS", help="Organs of these blocks, such as 5-20.")
@click.option("--slot", "slots", multiple=True, metavar="SLOT", help="Organs in this slot; * stands for any text.")
@click.option("--where", metavar="QUERY", help="Organs by what they measure: 'theta<38'.")
@click.option("--name", metavar="NAME", help="Register the result as NAMESPACE/NAME.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OUT", help="Write it there.")
@click.option("--accept", multiple=True, metavar="CODE", help="Accept a warning by its code.")
@click.option("-y", "--yes", is_flag=True, help="Accept every warning.")
@click.option("--dry-run", is_flag=True, help="Say what it would be, and make nothing.")
@click.option("--force", is_flag=True, help="Replace what is there.")
@click.option("--json", "as_json", is_flag=True, help="The plan and what was made as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print the new model's name only.")
def purify(
    model: str,
    method: str,
    keep: float | None,
    kinds: tuple[str, ...],
    blocks: str | None,
    slots: tuple[str, ...],
    where: str | None,
    name: str | None,
    output: Path | None,
    accept: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Purify organs of a registered model, and register the result, with each organ's θ before and after.

    The feed-forward organs, unless --type, --slot or --where says otherwise. With -o it is written as a GGUF too.

    A FILE or an organ directory DIR is purified without your registry, by way of a temporary one beside OUT: as a GGUF
    where OUT ends in .gguf, else as an organ directory.
    """
    from organs.cli.composing import ComposeOptions, make_chimera, print_composed, print_thetas, refuse_recipe

    options = ComposeOptions(output, force, dry_run, as_json, quiet, accept_all=yes)

    def composition(compose: Callable[[str], Builder], base: str) -> Builder:
        try:
            step = (
                compose(base)
                .accept(*accept)
                .purify(method, where=where or "", type=kinds or None, slot=slots or None, blocks=blocks, keep=keep)
            )
            return step if name is None else step.named(name)
        except BadRecipe as error:
            refuse_recipe(error, as_json=as_json)

    if not is_file(model):
        with selected_registry() as registry:
            result = make_chimera(registry, composition(registry.compose, model), options)
        print_composed(result, options)
        print_thetas(result, options)
        return
    if output is None or name is not None:
        raise click.UsageError("of a FILE or a DIR the result is written, not registered: give -o OUT, and no --name")
    with _temporary(model, output, options) as (registry, base):
        result = _written(registry, composition(registry.compose, base), replace(options, base_label=model), output)
    _print_written(result, options)
    print_thetas(result, options)


def _written(
    registry: LocalRegistry, composition: RecipeBuilder, options: ComposeOptions, output: Path
) -> ComposeResult:
    """Make a GGUF or an organ directory of a file; `registry` is a temporary one."""
    from organs.cli.composing import make_chimera
    from organs.ingest.directory.extract import extract, registered_contents

    if output.suffix == SUFFIX:
        result = make_chimera(registry, composition, options)
    else:
        result = make_chimera(registry, composition, replace(options, output=None, folder=output))
        if result.made is not None:
            contents = registered_contents(registry, parse_model_name(result.made.model or ""))
            with progress_bar("write", result.made.size_bytes, quiet=not options.prints) as advance:
                extract(contents, output, force=options.force, progress=advance)
    if result.made is None:
        return result
    made = msgspec.structs.replace(result.made, file=str(output), model=None, created=None)
    return msgspec.structs.replace(result, made=made)


def _print_written(result: ComposeResult, options: ComposeOptions) -> None:
    made = result.made
    if options.as_json:
        print_json(result)
    elif made is not None and options.quiet:
        print_path(made.file)
    elif made is not None:
        click.echo(f"\n{plain(made.file)}: {size_text(made.size_bytes)}, sha256:{made.sha256}")


@contextmanager
def _temporary(model: str, output: Path, options: ComposeOptions) -> Iterator[tuple[LocalRegistry, str]]:
    """A registry that holds the files `model` alone, and is gone afterwards; and the name that they have in it."""
    from organs.ingest.service import ingest_model
    from organs.ingest.sources import source_size_bytes
    from organs.registry.local import LocalRegistry

    source = one_source(model, "purify")
    size_bytes = source_size_bytes(source)
    if output.suffix == SUFFIX:
        gguf_targets(output, [output.name], force=options.force)
    else:
        check_folder_free(output, force=options.force)
    if not output.absolute().parent.is_dir():
        raise BadSource(f"{output.absolute().parent}: no such folder")
    check_fits(output.absolute(), 2 * size_bytes)
    folder = tempfile.TemporaryDirectory(prefix=".organ-", dir=output.absolute().parent)
    with folder as home, LocalRegistry.open(home) as registry:
        with progress_bar("ingest", size_bytes, quiet=not options.prints) as advance:
            name = ingest_model(registry, source, None, advance).model
        yield registry, name
