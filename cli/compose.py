"""`organ compose`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from organs.cli.arguments import any_registry, folder_registry, remote_registry
from organs.cli.console import plain, print_json, print_path, progress_bar
from organs.cli.files import check_fits, gguf_targets
from organs.ingest.files import FileSource
from organs.registry.amounts import size_text
from organs.registry.entities.chimera import WrittenFile
from organs.registry.errors import BadLock

if TYPE_CHECKING:
    from organs.registry.compose.lock import Lock

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
    from organs.cli.composing import Asked, begun, composed, print_composed, print_thetas

    if from_lock is not None:
        if recipe is not None or output is None or any((name, accept, yes, lock, write_recipe)):
            raise click.UsageError("--from-lock takes -o OUT, and no RECIPE: a lock says all there is to say")
        _from_lock(from_lock, output, dry_run=dry_run, force=force, as_json=as_json, quiet=quiet)
        return
    if recipe is None:
        raise click.UsageError("give a RECIPE, or --from-lock")
    asked = Asked(output, lock, write_recipe, yes, dry_run, force, as_json, quiet)
    with any_registry() as registry:
        result = composed(registry, begun(registry.compose, recipe, name, accept, as_json=as_json), asked)
    print_composed(result, asked)
    print_thetas(result, asked)


def _from_lock(path: Path, output: Path, *, dry_run: bool, force: bool, as_json: bool, quiet: bool) -> None:
    from organs.cli.composing import Asked
    from organs.cli.fetching import fetch_lock
    from organs.registry.chimera.place import place_file
    from organs.registry.compose.build import plan_lock

    lock = _read_lock(path)
    (target,) = gguf_targets(output, [f"{lock.id}.gguf"], force=force)
    remote = remote_registry()
    if remote is not None:
        with remote:
            found = fetch_lock(remote, lock, target, Asked(dry_run=dry_run, as_json=as_json, quiet=quiet))
        size_bytes, digest = found.size_bytes, None if dry_run else found.sha256
    else:
        with folder_registry() as registry:
            with registry.catalog.reading() as session:
                plan = plan_lock(session, registry.blobs, lock, target.name)
            size_bytes, digest = plan.size_bytes, None
            check_fits(target, size_bytes)
            if not dry_run:
                with progress_bar("compose", size_bytes, quiet=quiet or as_json) as advance:
                    digest = place_file(registry.blobs, plan, target, advance)
    if as_json:
        written = WrittenFile(file=str(target), size_bytes=size_bytes, sha256=digest, lock_id=lock.id)
        print_json({"items": [written], "next": None})
    elif quiet:
        print_path(target)
    else:
        told = f", sha256:{digest}" if digest else "; nothing was written"
        click.echo(f"{plain(target)}: {size_text(size_bytes)}{told}")
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
