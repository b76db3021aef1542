"""`organ ingest`."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from organs.cli.arguments import folder_registry
from organs.cli.console import ProgressBar, exit_status, plain, print_json_line, progress_bar
from organs.registry.errors import BadSource, NameTaken, OrganError
from organs.registry.names import parse_model_name
from organs.registry.present.text import size_text
from organs.registry.settings import DEBUG_VARIABLE

if TYPE_CHECKING:
    from organs.ingest.service import Outcome
    from organs.ingest.sources import ModelSource, Skipped


@click.command()
@click.argument("paths", nargs=-1, metavar="FILE...")
@click.option("--name", help="NAMESPACE/NAME for a single model; by default local/ and the file's name.")
@click.option("--hf-cache", is_flag=True, help="Also every GGUF in the Hugging Face cache of this machine.")
@click.option("--new-version", is_flag=True, help="Add a file whose name is taken as the next version of that name.")
@click.option("--dry-run", is_flag=True, help="Say what would be ingested, and store nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a model, a line each.")
@click.option("-q", "--quiet", is_flag=True, help="Print the models' names only.")
def ingest(
    paths: tuple[str, ...],
    name: str | None,
    hf_cache: bool,
    new_version: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Take GGUF files apart: store each organ once, measure it, register the model.

    FILE is a file, a folder (searched through), a pattern, any shard of a split set, or an organ directory as
    `organ extract` writes it, also one whose organs were edited since. A file that is refused is named and the others
    go on; the exit status is 1 then, or for a single FILE that of the error. The same file again adds nothing, and an
    ingest that was cut short goes on. If another file has the name already, you are asked whether this one is its next
    version; without a terminal it is refused, unless --new-version is given.
    """
    from organs.ingest.service import always, ingest_all, never, total_bytes
    from organs.ingest.sources import skipped_files

    sources = _sources(paths, hf_cache)
    chosen = None if name is None else parse_model_name(name)
    if chosen is not None and chosen.version is not None:
        raise click.UsageError("--name has no @version: the next free one is given")
    if chosen is not None and len(sources) > 1:
        raise click.UsageError(f"--name is for one model; {len(sources)} were found")
    if dry_run:
        named = [replace(source, name=chosen or source.name) for source in sources]
        return _preview(named, as_json=as_json, quiet=quiet)
    failures: list[OrganError] = []
    with folder_registry() as registry, progress_bar("ingest", total_bytes(sources), quiet=quiet or as_json) as advance:
        asks = not (as_json or quiet) and sys.stdin.isatty() and sys.stderr.isatty()
        decide = always if new_version else partial(_ask, advance) if asks else never
        for outcome in ingest_all(registry, sources, chosen, advance, decide):
            failures += [outcome.error] if outcome.error is not None else []
            _print(outcome, as_json=as_json, quiet=quiet)
    if not quiet:
        _print_skipped(skipped_files(paths))
    return exit_status(failures, len(sources))


def _print_skipped(skipped: Skipped) -> None:
    """Say on stderr how many files of the folders were not taken."""
    from organs.ingest.sources import CONVERT

    if skipped.files:
        converted = f", {skipped.safetensors} of them safetensors. {CONVERT}" if skipped.safetensors else ""
        click.echo(f"skipped {skipped.files} files that are not GGUF{converted}", err=True)


def _ask(bar: ProgressBar, taken: NameTaken) -> bool:
    """Ask the person at the terminal."""
    question = f"The name {taken.name} is taken by {taken.taken_by}, which is another file. Add this one as version"
    with bar.hidden():
        return click.confirm(plain(f"{question} {taken.version}?"), default=False, err=True)


def _sources(paths: tuple[str, ...], hf_cache: bool) -> list[ModelSource]:
    from organs.ingest.sources import find_hub_sources, find_sources

    if not paths and not hf_cache:
        raise click.UsageError("give a FILE, or --hf-cache")
    sources = find_sources(paths)
    if hf_cache:
        cache = hub_cache()
        found = find_hub_sources(cache)
        if not found and not sources:
            raise BadSource(f"{cache}: no GGUF file in the Hugging Face cache")
        sources += found
    return sources


def hub_cache() -> Path:
    """The Hugging Face cache's folder, by the same variables as its own tools."""
    if hub := os.environ.get("HF_HUB_CACHE"):
        return Path(hub)
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"


def _preview(sources: list[ModelSource], *, as_json: bool, quiet: bool) -> int:
    from organs.ingest.service import Outcome

    failures: list[OrganError] = []
    for source in sources:
        try:
            tensors, size = _contents(source)
        except OrganError as error:
            failures.append(error)
            _print(Outcome(source, None, error), as_json=as_json, quiet=quiet)
            continue
        if as_json:
            about = {"file": str(source.paths[0]), "model": str(source.name), "organs": tensors, "size_bytes": size}
            print_json_line(about | {"new": None, "error": None})
        elif quiet:
            click.echo(str(source.name))
        else:
            click.echo(f"{plain(source.label)}: would be {source.name}, {tensors} tensors, {size_text(size)}")
    return exit_status(failures, len(sources))


def _contents(source: ModelSource) -> tuple[int, int]:
    """Tensors and bytes of all files of `source`, which is opened and looked at as for an ingest; raises BadInput."""
    from organs.ingest.sources import open_files

    with ExitStack() as opened:
        headers = [file.header for file in open_files(opened, source)]
    return sum(len(header.tensors) for header in headers), sum(header.file_size_bytes for header in headers)


def _print(outcome: Outcome, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json_line(_values(outcome))
        return
    report = outcome.report
    if outcome.error is not None and os.environ.get(DEBUG_VARIABLE):
        raise outcome.error
    if report is None:
        click.echo(f"organ: {plain(_sentence(outcome))}", err=True)
    elif quiet:
        click.echo(report.model)
    elif not report.created:
        healed = f"{report.healed_blobs} damaged parts healed" if report.healed_blobs else "nothing added"
        click.echo(f"{report.model}: known already, {healed}")
    else:
        gain = f"{size_text(report.new_bytes)} new, stored in {size_text(report.stored_bytes)}"
        click.echo(f"{report.model}: {report.organs} organs, {gain}, {report.seconds:.1f} s")
        for flag in report.flags:
            click.echo(f"  note: {plain(flag)}", err=True)
    if report is not None:
        for warning in report.warnings:
            click.echo(f"  warning: {plain(warning)}", err=True)
        for note in report.notes:
            click.echo(f"  note: {plain(note)}", err=True)


def _sentence(outcome: Outcome) -> str:
    """Why a file was refused, with what to do."""
    error = outcome.error
    if isinstance(error, NameTaken):
        return (
            f"{outcome.source.label}: {error}; give --new-version to add it as version {error.version}, or --name for "
            "another name"
        )
    return str(error)


def _values(outcome: Outcome) -> dict[str, Any]:
    report = outcome.report
    values = {} if report is None else asdict(report)
    return {
        "file": str(outcome.source.paths[0]),
        "model": None if report is None else report.model,
        "organs": None if report is None else report.organs,
        "new": None if report is None else report.new_blobs,
        "error": None if outcome.error is None else _sentence(outcome),
    } | values
