"""`organ pull`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from organs.cli.arguments import named_remote
from organs.cli.console import plain, print_json, print_path
from organs.cli.files import check_free
from organs.registry.digest import looks_like_prefix, parse_prefix
from organs.registry.errors import BadName, BadReply, BadSource, NotFound
from organs.registry.names import ModelName
from organs.registry.present.text import size_text
from organs.registry.present.values import Values

if TYPE_CHECKING:
    from organs.cli.composing import Asked
    from organs.cli.fetching import Fetched
    from organs.registry.client.fetching import FileToFetch
    from organs.registry.client.remote import OwnFiles, RemoteRegistry
    from organs.registry.compose.recipe import Recipe

DIGEST = "sha256:"
RAW = ".raw"


@dataclass(frozen=True, slots=True)
class _Found:
    """What is to be pulled."""

    model: ModelName | None
    """With its version; None for an organ."""
    files: Sequence[tuple[str, FileToFetch]]
    recipe: Recipe | None = None
    """Of a model with only some organs, what it is with its base."""


@click.command()
@click.argument("what", metavar="MODEL|DIGEST")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OUT", help="A file or a folder; else here.")
@click.option("--shards", metavar="SIZE", help="Cut a model into shards of at most SIZE (2G, 500M) of tensors each.")
@click.option("--partial", is_flag=True, help="Of a model with only some organs: the file that came in.")
@click.option("--accept", multiple=True, metavar="CODE", help="Of a model with only some organs: accept a warning.")
@click.option("--ingest", "ingests", is_flag=True, help="Register the model in your own registry too.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
@click.option("--json", "as_json", is_flag=True, help="The files as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print the files' paths only.")
def pull(
    what: str,
    output: Path | None,
    shards: str | None,
    partial: bool,
    accept: tuple[str, ...],
    ingests: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Fetch a model, a chimera or an organ from a registry elsewhere, which --registry names.

    A model is named NAMESPACE/NAME, with @VERSION if need be, or by sha256: and a digest: of its file, or of the lock
    of a chimera, whose file is then checked against that lock. 8 or more characters of an organ's digest give its plain
    bytes. Every byte is checked; what was cut goes on where it was when it is run again, and appears under its name
    whole or not at all.

    A model that has only some organs comes with all others of the base that it names, as `organ assemble` makes it;
    with --partial, and by a digest of it, as the file that it is.
    """
    from organs.cli.composing import Asked

    asked = Asked(force=force, as_json=as_json, quiet=quiet, shows_plan=False)
    with named_remote() as remote:
        found = _found(remote, what, with_base=not (partial or shards))
        _check_use(found, shards, accept, ingests=ingests)
        fetched = _fetched(remote, found, output or Path(), shards, accept, asked)
    files = [{"file": str(one.path), "size_bytes": one.size_bytes, "sha256": one.sha256} for one in fetched]
    ingested = _ingested(found.model, [one.path for one in fetched]) if ingests and found.model is not None else None
    model = None if found.model is None else str(found.model)
    _print({"items": files, "next": None, "model": model, "ingested": ingested}, as_json=as_json, quiet=quiet)


def _check_use(found: _Found, shards: str | None, accept: Sequence[str], *, ingests: bool) -> None:
    if found.model is None and (ingests or shards):
        raise click.UsageError("--ingest and --shards are for a model: an organ alone has no place in one")
    if accept and found.recipe is None:
        raise click.UsageError("--accept is for a model that has only some organs")
    if ingests and found.recipe is not None:
        raise click.UsageError("--ingest registers the file of a model with only some organs: give --partial too")


def _fetched(
    remote: RemoteRegistry, found: _Found, output: Path, shards: str | None, accept: Sequence[str], asked: Asked
) -> list[Fetched]:
    from organs.cli.fetching import fetch_files, fetch_shards, fetch_with_its_base

    if found.recipe is not None:
        return [fetch_with_its_base(remote, found.recipe, accept, output, asked)]
    if found.model is None:
        return fetch_files(remote, found.files, output, asked, _organ_targets)
    if shards is None:
        return fetch_files(remote, found.files, output, asked)
    whole = found.files[0][1] if len(found.files) == 1 else remote.whole_file(str(found.model))
    return fetch_shards(remote, found.model.name, whole, output, shards, asked)


def _found(remote: RemoteRegistry, what: str, *, with_base: bool) -> _Found:
    """The model that `what` means, or the organ; as `organ show` understands it, but that a model comes first."""
    try:
        own = remote.own_files(what)
        if own.yanked is not None:
            click.echo(f"{plain(own.model)} was yanked: {plain(own.yanked)}", err=True)
    except (BadName, NotFound):
        if not looks_like_prefix(what):
            raise
        file = remote.organ_file(what)
        return _Found(None, [(f"{file.sha256}{RAW}", file)])
    if not what.startswith(DIGEST):
        return _Found(own.model, own.files, remote.with_its_base(str(own.model)) if with_base else None)
    return _Found(own.model, _proven(own, parse_prefix(what)))


def _proven(own: OwnFiles, prefix: str) -> Sequence[tuple[str, FileToFetch]]:
    """The files of the model that was asked for by a digest, which is held against what comes."""
    from organs.registry.client.checking import check_lock

    if own.lock_id is not None and own.lock_id.startswith(prefix):
        return [(name, replace(file, check=check_lock(own.lock_id))) for name, file in own.files]
    if not any(digest.startswith(prefix) for digest in (own.digest, *(str(file.sha256) for _, file in own.files))):
        raise BadReply(f"the registry gives {own.model} for {prefix}, which is no digest of it")
    return own.files


def _organ_targets(output: Path, names: Sequence[str], *, force: bool) -> list[Path]:
    target = output / names[0] if output.is_dir() else output
    check_free(target, force=force)
    if not target.parent.is_dir():
        raise BadSource(f"{target.parent}: no such folder")
    return [target]


def _ingested(model: ModelName, files: Sequence[Path]) -> str:
    """The name under which one's own registry has it now."""
    from organs.ingest.service import always, ingest_model
    from organs.ingest.sources import find_sources
    from organs.registry.registry import Registry

    (source,) = find_sources([str(files[0])])
    with Registry.open() as registry:
        return ingest_model(registry, source, replace(model, version=None), new_version=always).model


def _print(values: Values, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json(values)
        return
    for file in values["items"]:
        if quiet:
            print_path(file["file"])
        else:
            click.echo(f"{plain(file['file'])}: {size_text(file['size_bytes'])}, sha256:{file['sha256']}")
    if values["ingested"] is not None and not quiet:
        click.echo(f"{values['ingested']} is in your own registry", err=True)
