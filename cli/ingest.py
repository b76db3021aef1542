"""`organ ingest`: split GGUF files into tensors, and register them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len

from organs.cli import fast_imports
from organs.cli.console import (
    INDENT,
    SHORTENED_MIN,
    is_attended,
    is_confirmed,
    is_for_people,
    is_quiet,
    organ_command,
    output_options,
    plain,
    print_failure,
    print_json_line,
    print_remark,
    print_sentence,
    prints_json,
    progress_bar,
    shortened,
    status_line,
    terminal_width,
)
from organs.cli.hints import exit_status
from organs.cli.inputs import (
    chosen_tools,
    download_line,
    hub_of_environment,
    tool_models,
    tool_options,
    with_bases,
)
from organs.cli.options import flag
from organs.cli.registries import local_registry
from organs.registry.amounts import plural_text, size_text
from organs.registry.errors import BadSource, ConversionFailed, NameTaken, OrganError
from organs.registry.names import ModelName, parse_new_name
from organs.registry.settings import DEBUG_VARIABLE

if TYPE_CHECKING:
    from organs.ingest.cards import Card
    from organs.ingest.service import IngestOutcome, IngestReport, PlannedModel
    from organs.ingest.sources import ModelSource
    from organs.ingest.urls import Hub

CONVERTER_VARIABLE = "CONVERT_HF_TO_GGUF"


@click.command()
@click.argument("paths", nargs=-1, metavar="FILE...")
@click.option(
    "--name", help="Register the model as NAMESPACE/NAME; for one model only. [default: local/ and the file's name]"
)
@tool_options("Ingest the models of")
@click.option("--base", metavar="MODEL", help="The base of an adapter folder: a model, a GGUF file or a folder.")
@click.option("--card", metavar="FILE", help="The description of the model, in Markdown; for one model only.")
@flag("--convert", "Convert a model in safetensors files first, with convert_hf_to_gguf.py.")
@flag("--new-version", "If the name is taken, register the file as its next version.")
@flag("--delete-after", "Remove each GGUF file when its stored bytes were read back and are the same.")
@flag("--dry-run", "Print what would be ingested, and whether a name is taken; store nothing.")
@output_options(json="Print one line of JSON for each model.", quiet="Print only the names of the models.")
def ingest(
    paths: tuple[str, ...],
    name: str | None,
    base: str | None,
    card: str | None,
    convert: bool,
    new_version: bool,
    delete_after: bool,
    dry_run: bool,
) -> int:
    """Split GGUF files into tensors, store each tensor once, measure it, and register the model.

    FILE is a GGUF file, a folder of GGUF files, a quoted pattern, any shard of a split model, or an organ directory
    from `organ extract`. Tensors in an organ directory may be edited. FILE can also be a folder that PEFT or
    MLX saved, with adapter_config.json and its weights: it becomes an adapter. --base names its base, a registered
    model, a GGUF file or a folder with config.json; it is needed if no config.json of the base is on this machine.

    With --convert, FILE is a folder with a model in safetensors files. The program convert_hf_to_gguf.py of llama.cpp,
    in PATH or named by the variable CONVERT_HF_TO_GGUF, converts it to a temporary file.

    FILE can also be an address: https://HOST/FILE.gguf
    or hf://NAMESPACE/NAME[/FILE][@REVISION]. Its files are fetched one at a time into the folder of the registry, and
    each is removed before the next one is fetched. HF_TOKEN and HF_ENDPOINT are used as by `hf`.

    --ollama, --lmstudio, --llama-cpp, --hf-cache and --gpt4all ingest all models that these tools keep on this machine,
    --all-tools those of all five. Their names come from the tools: manifests, repositories, folders of publishers.
    `organ scan` shows them first. Files that were read before, and have not changed, are not read again.

    In a FOLDER, the one README.md beside the files of a new model becomes its card: its description, and the license,
    base and tags of its front matter if the file has none. --card chooses a card, also for a model that is registered.
    The images below the folder of a card that it shows by their paths are taken too (PNG, JPEG, WebP or GIF).

    Shards of a split model may be missing. The model is incomplete, and cannot be used, until its last shard is
    ingested; the order does not matter. --delete-after removes each file as soon as it is stored and its stored bytes
    were read back, so room for one shard is enough. A shard stands for all shards of its set in its folder: they are
    also ingested and removed. --delete-after refuses symbolic links and organ directories.

    If another file already has the name of a model, the command asks whether to register this file as the next
    version. Without a terminal, and for an address, it refuses the file; give --new-version to register it.

    If a file is refused, the command continues with the next. The exit status is then 1; for a single FILE it is the
    status of the error. A second ingest of the same file adds nothing. To continue an interrupted ingest, run the same
    command again.
    """
    with fast_imports():
        from organs.ingest.cards import read_card
        from organs.ingest.sources import CONVERT, skipped_files
        from organs.ingest.urls import is_url

    with ExitStack() as opened:
        tools = chosen_tools()
        if tools and delete_after:
            raise click.UsageError(
                "--delete-after would remove files that the other tools still need; use organ reclaim"
            )
        has_problems = False
        if convert:
            if len(paths) != 1 or dry_run:
                raise click.UsageError("--convert is for one FOLDER, and not with --dry-run")
            sources = [_converted(opened, paths[0])]
        else:
            hub = opened.enter_context(hub_of_environment()) if any(map(is_url, paths)) else None
            sources, has_problems = _find_sources(paths, tools, hub, base)
        chosen = None if name is None else parse_new_name(name)
        if chosen is not None and chosen.version is not None:
            raise click.UsageError("--name takes no @version: the registry chooses the next free version")
        if chosen is not None and len(sources) > 1:
            raise click.UsageError(f"--name is for one model; {len(sources)} were found")
        if card is not None and len(sources) > 1:
            raise click.UsageError(f"--card is for one model; {len(sources)} were found")
        chosen_card = None if card is None else read_card(Path(card))
        if dry_run:
            return _preview(sources, chosen, new_version) or int(has_problems)
        failures: list[OrganError] = []
        reports: list[IngestReport] = []
        for outcome in _ingested(sources, chosen, new_version, delete_after, chosen_card):
            failures += [outcome.error] if outcome.error is not None else []
            reports += [outcome.report] if outcome.report is not None else []
            has_problems |= bool(outcome.kept)
            _print_ingested(outcome)
    skipped = skipped_files(paths)
    if skipped.files and not is_quiet():
        converted = f", {skipped.safetensors} of them safetensors. {CONVERT}" if skipped.safetensors else ""
        print_remark(f"skipped {skipped.files} files that are not GGUF{converted}")
    if is_for_people():
        _print_total(reports)
    return exit_status(failures, len(sources)) or int(has_problems)


def _ingested(
    sources: Sequence[ModelSource],
    name: ModelName | None,
    new_version: bool,
    delete_after: bool,
    card: Card | None,
) -> Iterator[IngestOutcome]:
    """Ingest files on this machine, with a progress bar, then those on servers; yield the outcomes."""
    with fast_imports():
        from organs.ingest.service import always, ingest_all, never
        from organs.ingest.sources import source_size_bytes

    local = [source for source in sources if not source.remote]
    decide = always if new_version else never
    with local_registry() as registry:
        with progress_bar("ingest", sum(map(source_size_bytes, local))) as advance:

            def ask(taken: NameTaken) -> bool:
                """Ask at the terminal whether to register the file as the next version of a taken name."""
                question = f"The name {taken.name} is taken by another file, {taken.taken_by}. Register this file as"
                with advance.hidden():
                    return is_confirmed(f"{question} version {taken.version}?")

            asks = any(_asks_about(source, new_version) for source in local)
            decided = ask if asks else decide
            yield from ingest_all(registry, local, name, advance, decided, delete_after=delete_after, card=card)
        for source in sources:
            if source.remote:
                with download_line(source, "ingest", "stored") as advance_line:
                    outcomes = list(ingest_all(registry, [source], name, advance_line, decide, card=card))
                yield from outcomes


def _print_total(reports: Sequence[IngestReport]) -> None:
    """Print how many of several models are new, how many were registered before, and where they are listed."""
    new = {report.model for report in reports if report.created}
    found = [report.model for report in reports if not report.created and not report.incomplete]
    known = len(set(found) - new)
    copies = len(found) - known
    if len(reports) < 2 or not found:
        return
    parts = [f"{plural_text(len(new), 'model was', 'models were')} added" if new else "nothing was added"]
    parts += [f"{plural_text(known, 'model was', 'models were')} already registered"] if known else []
    parts += [plural_text(copies, "file was a second copy", "files were second copies")] if copies else []
    print_sentence(f"{'; '.join(parts)}. See: {organ_command('models')}")


def _converted(opened: ExitStack, folder: str) -> ModelSource:
    """Convert the model in safetensors files with the program of the user; return it as a GGUF file."""
    from organs.ingest.sources import PROGRAM, converted

    program = os.environ.get(CONVERTER_VARIABLE) or shutil.which(PROGRAM)
    if program is None:
        raise ConversionFailed(f"no {PROGRAM} in PATH: install llama.cpp, or set {CONVERTER_VARIABLE} to its path")
    with local_registry() as registry:
        spool = registry.settings.spool
    with status_line("convert") as say:
        say(f"{folder}: {program} is running")
        python = shutil.which("python3") or sys.executable
        return opened.enter_context(converted(Path(folder), program, python, spool))


def _find_sources(
    paths: tuple[str, ...], tools: Sequence[str], hub: Hub | None, base: str | None
) -> tuple[list[ModelSource], bool]:
    """Return the models in `paths` and of `tools`, and whether some paths have none or some models cannot be read.

    Adapter folders come last, because their bases may be among the models, and get the base that --base names.
    """
    from organs.ingest.adapted_base import chosen_base
    from organs.ingest.cards import with_cards
    from organs.ingest.sources import find_sources

    if not paths and not tools:
        raise click.UsageError("give a FILE, or a tool such as --ollama; organ scan shows what is on this machine")
    empty: list[BadSource] = []
    sources = find_sources(paths, hub=hub, problems=empty)
    sources = with_cards(sources, [folder for folder in map(Path, filter(None, paths)) if folder.is_dir()])
    if empty and not sources and not tools:
        raise empty[0]
    for error in empty:
        print_failure(error)
    found, has_problems = tool_models(tools, required=not sources)
    sources = sorted([*sources, *found], key=lambda source: source.adapter is not None)  # after their bases
    if base is not None:
        if all(source.adapter is None for source in sources):
            raise click.UsageError("--base is for a folder with adapter_config.json")
        with local_registry() as registry:
            sources = with_bases(sources, chosen_base(registry, base))
    return sources, has_problems or bool(empty)


def _asks_about(source: ModelSource, new_version: bool) -> bool:
    """Return whether a person is asked if the name of `source` is taken."""
    return is_attended() and is_for_people() and not new_version and not source.remote


def _preview(sources: list[ModelSource], name: ModelName | None, new_version: bool) -> int:
    """Print what an ingest of each source would do."""
    from organs.ingest.service import IngestOutcome, plan_model

    failures: list[OrganError] = []
    with local_registry() as registry:
        for source in sources:
            try:
                planned = plan_model(registry, source, name)
                if planned.taken is not None and not new_version and not _asks_about(source, new_version):
                    raise planned.taken
            except OrganError as error:
                failures.append(error)
                _print_ingested(IngestOutcome(source, None, error))
            else:
                _print_planned(source, planned, new_version)
    return exit_status(failures, len(sources))


def _print_planned(source: ModelSource, planned: PlannedModel, new_version: bool) -> None:
    files, taken = planned.files, planned.taken
    name = planned.name if taken is None else f"{taken.name}@{taken.version}"
    tensors, size = sum(file.tensors for file in files), sum(file.size_bytes for file in files)
    missing = [file.size_bytes for file in files if not file.is_stored]
    if prints_json():
        about: dict[str, Any] = {"file": source.locations[0], "model": name}
        about |= {"organs": tensors, "size_bytes": size, "new": None, "error": None}
        print_json_line(about | {"shards": files[0].shards, "files": [asdict(file) for file in files]})
        return
    if is_quiet():
        click.echo(name)
        return
    part = f", {len(files)} of {files[0].shards} shards" if len(files) < files[0].shards else ""
    stored = "stored already" if source.remote else "probably stored already"  # only the ingest reads all local bytes
    known = "" if missing else f", {stored}"
    print_sentence(f"{source.label}: would be {name}{part}, {tensors} tensors, {size_text(size)}{known}")
    if taken is not None and not new_version:
        sentence = f"the name {taken.name} is taken by {taken.taken_by}: the ingest would ask first"
        print_remark(sentence, INDENT)
    if source.remote:
        for file in files:
            known = f", {stored}" if file.is_stored else ""
            print_sentence(f"{file.name}: {size_text(file.size_bytes)}{known}", INDENT)
        click.echo(f"  would fetch {len(missing)} of {len(files)} files, {size_text(sum(missing))}")


def _print_ingested(outcome: IngestOutcome) -> None:
    report, error = outcome.report, outcome.error
    reason = None if error is None else str(error)
    if isinstance(error, NameTaken):
        reason = (
            f"{outcome.source.label}: {error}; give --new-version to add it as version {error.version}, or --name for "
            "another name"
        )
    if prints_json():
        print_json_line(
            {
                "file": outcome.source.locations[0],
                "model": None,
                "organs": None,
                "new": None if report is None else report.new_blobs,
                "error": reason,
                "removed": [str(path) for path in outcome.removed],
                "kept": list(outcome.kept),
                "stored": list(outcome.stored),
            }
            | ({} if report is None else asdict(report))
        )
        return
    if error is not None and os.environ.get(DEBUG_VARIABLE):
        raise error
    marked: list[tuple[str, object]] = []
    if report is None:
        print_failure(reason or "")
        marked += [("stored before", name) for name in outcome.stored]
    else:
        click.echo(report.model if is_quiet() else _summary(report))
        marked += [("note", flag) for flag in report.flags if report.created and not is_quiet()]
        marked += [("warning", warning) for warning in report.warnings]
        marked += [("note", note) for note in report.notes]
    marked += [("removed", path) for path in outcome.removed if not is_quiet()]
    for mark, text in marked:
        print_remark(text, f"  {mark}: ")
    for sentence in outcome.kept:
        print_failure(sentence)


def _summary(report: IngestReport) -> str:
    """Return the line about an ingested model. On a terminal where it does not fit, the name loses its middle."""
    if report.created:
        sizes = f"{size_text(report.new_bytes)} new, stored in {size_text(report.stored_bytes)}"
        subject = f"{report.incomplete}; added" if report.incomplete else f"{report.model}:"
        line = f"{subject} {report.organs} tensors, {sizes}, {report.seconds:.1f} s"
    else:
        parts = plural_text(report.healed_blobs, "damaged part", "damaged parts")
        healed = f"{parts} healed" if report.healed_blobs else "nothing added"
        subject = f"{report.incomplete};" if report.incomplete else f"{report.model}: already registered,"
        line = f"{subject} {healed}"
    printable, name, width = plain(line), plain(report.model), terminal_width()
    excess = 0 if width is None else cell_len(printable) - width
    if excess <= 0 or not printable.startswith(name):
        return printable
    return shortened(name, max(cell_len(name) - excess, SHORTENED_MIN)) + printable.removeprefix(name)
