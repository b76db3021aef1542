"""`organ extract`."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from organs.cli.arguments import (
    folder_registry,
    remote_registry,
)
from organs.cli.console import plain, print_json, print_path, progress_bar
from organs.ingest.files import FileSource
from organs.registry.errors import BadName, BadSource, NotFound
from organs.registry.names import ModelName, parse_model_name
from organs.registry.present.text import size_text

if TYPE_CHECKING:
    from organs.cli.composing import Asked
    from organs.ingest.directory.extract import Content, ExtractReport
    from organs.registry.client.remote import RemoteRegistry


@click.command()
@click.argument("what", metavar="FILE|MODEL")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The folder to be made."
)
@click.option("--force", is_flag=True, help="Replace an organ directory that is there, with all that is in it.")
@click.option("--json", "as_json", is_flag=True, help="What was written as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print the folder's path only.")
def extract(what: str, output: Path, force: bool, as_json: bool, quiet: bool) -> None:
    """Take a model apart into the folder DIR: a file for each tensor, and manifest.json.

    FILE is a GGUF file or any shard of a split set, and need not be registered; MODEL is a registered model, every part
    of which is checked on its way. DIR appears whole or not at all. `organ assemble DIR` gives the identical GGUF back,
    and `organ ingest DIR` registers it, also after organs in it were edited.

    A model of a registry elsewhere, which --registry names, is fetched beside DIR first, and gone afterwards.
    """
    from organs.cli.composing import Asked
    from organs.ingest.directory.extract import extract as take_apart

    with ExitStack() as opened:
        contents = _contents(opened, what, output, Asked(force=force, as_json=as_json, quiet=quiet))
        total = sum(content.header.file_size_bytes for content in contents)
        with progress_bar("extract", total, quiet=quiet or as_json) as advance:
            report = take_apart(contents, output, force=force, progress=advance)
    _print(report, output, as_json=as_json, quiet=quiet)


def _contents(opened: ExitStack, what: str, output: Path, asked: Asked) -> list[Content]:
    from organs.ingest.directory.extract import file_contents
    from organs.ingest.sources import GGUF_SUFFIX, find_sources, open_files

    if not what.endswith(GGUF_SUFFIX) and not Path(what).is_file():
        return _registered(opened, what, output, asked)
    sources = find_sources([what], "extract")
    if len(sources) != 1:
        raise click.UsageError(f"one model at a time; {what} gives {len(sources)}")
    return file_contents(open_files(opened, sources[0]))


def _registered(opened: ExitStack, what: str, output: Path, asked: Asked) -> list[Content]:
    from organs.ingest.directory.extract import registered_contents
    from organs.ingest.directory.folder import is_organ_directory

    try:
        name = parse_model_name(what)
        remote = remote_registry()
        if remote is not None:
            return _from_elsewhere(opened, opened.enter_context(remote), name, output, asked)
        registry = opened.enter_context(folder_registry())
        return registered_contents(registry, name)
    except (BadName, NotFound) as error:
        path = Path(what)
        if not path.is_dir():
            raise
        if is_organ_directory(path):
            hint = f"taken apart already: organ assemble {what} gives its GGUF, organ ingest {what} registers it"
        else:
            hint = "a folder, and no model of that name is registered: give one of the GGUF files in it"
        raise BadSource(f"{what}: {hint}") from error


def _from_elsewhere(
    opened: ExitStack, remote: RemoteRegistry, name: ModelName, output: Path, asked: Asked
) -> list[Content]:
    """The files as they came in, each under its name; they lie beside `output` as long as `opened` is."""
    from organs.cli.fetching import fetch_beside
    from organs.ingest.directory.extract import file_contents
    from organs.ingest.directory.folder import check_target
    from organs.ingest.dissect import dissect
    from organs.registry.gguf.split import check_split

    check_target(Path(os.path.abspath(output)), replace=asked.force)
    fetched = fetch_beside(opened, remote, str(name), output, asked)
    files = [dissect(opened.enter_context(FileSource(path))) for _, path in fetched]
    if len(files) > 1:
        check_split(str(name), [(told, file.header) for (told, _), file in zip(fetched, files, strict=True)])
    contents = zip(file_contents(files), fetched, strict=True)
    return [replace(content, name=told) for content, (told, _) in contents]


def _print(report: ExtractReport, output: Path, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        files = [{"name": name, "size_bytes": size, "sha256": sha256} for name, size, sha256 in report.files]
        values = {"directory": str(output), "tensors": report.tensors, "size_bytes": report.size_bytes, "files": files}
        print_json({"items": [values], "next": None})
    elif quiet:
        print_path(output)
    else:
        click.echo(f"{plain(output)}: {report.tensors} tensors, {size_text(report.size_bytes)}")
        for name, size, sha256 in report.files:
            click.echo(f"  {plain(name)}: {size_text(size)}, sha256:{sha256}")
