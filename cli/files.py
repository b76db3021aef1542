"""Files: `organ ingest`, `assemble`, `measure` and `extract`."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import partial
from functools import partial as bind
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from organs.cli import fast_imports
from organs.cli.arguments import OriginalSpellings, local_registry, organ_words, selected_registry
from organs.cli.console import (
    INDENT,
    ProgressBar,
    exit_status,
    one_line,
    plain,
    print_error,
    print_failure,
    print_json,
    print_json_line,
    print_path,
    print_sentence,
    print_table,
    progress_bar,
    status_line,
)
from organs.cli.local_tools import TOOL_NAMES, tool_options
from organs.cli.outputs import (
    WrittenPath,
    folder_of,
    gguf_targets,
    output_option,
    print_beside_file,
    shard_size,
    stem_of,
    with_bases,
    write_files,
)
from organs.registry.amounts import count_text, plural_text, share_text, size_text, theta_text
from organs.registry.anatomy import Component, Place
from organs.registry.catalog.vocabulary import ORGAN_TYPES
from organs.registry.digest import Digest
from organs.registry.errors import (
    BadInput,
    BadName,
    BadSource,
    ConversionFailed,
    CorruptBlob,
    DiskFull,
    Incomplete,
    NameTaken,
    NotAssemblable,
    NotFound,
    OrganError,
    StoreUnwritable,
)
from organs.registry.names import ModelName, parse_model_name, parse_new_name
from organs.registry.reports.formats import sheet_lines
from organs.registry.settings import DEBUG_VARIABLE

if TYPE_CHECKING:
    from organs.cli.composing import ComposeOptions
    from organs.ingest.directory.extract import Content, ExtractReport
    from organs.ingest.directory.opening import VirtualFile
    from organs.ingest.measuring import (
        MeasuredFile,
        MeasuredModel,
        MeasuredTensor,
        MeasureOptions,
        MeasureOutcome,
        ReadPlan,
        Wanted,
    )
    from organs.ingest.service import IngestOutcome, IngestReport, PlannedModel
    from organs.ingest.sources import ModelSource, Skipped
    from organs.ingest.urls import Hub
    from organs.registry.entities.report import ReportTable
    from organs.registry.reports.groups import TensorReading

TOKEN_MAX_BYTES = 4096
CONVERTER_VARIABLE = "CONVERT_HF_TO_GGUF"
MEASURED_TABLES = ("types", "components", "blocks", "wells")
"""The tables of `organ report` that `organ measure` also has."""
PLAIN_COMPONENTS = frozenset(
    {
        *(Component.EMBEDDINGS, Component.ATTENTION, Component.DENSE),
        *(Component.NORMS, Component.ADAPTERS, Component.OTHER),
    }
)
"""Components that are the same as types of tensors."""


@click.command()
@click.argument("paths", nargs=-1, metavar="FILE...")
@click.option(
    "--name", help="Register the model as NAMESPACE/NAME; for one model only. [default: local/ and the file's name]"
)
@tool_options("Ingest the models of")
@click.option("--base", metavar="MODEL", help="The base of a PEFT folder: a model, a GGUF file or a folder.")
@click.option("--convert", is_flag=True, help="Convert a model in safetensors files first, with convert_hf_to_gguf.py.")
@click.option("--new-version", is_flag=True, help="If the name is taken, register the file as its next version.")
@click.option(
    "--delete-after", is_flag=True, help="Remove each GGUF file when its stored bytes were read back and are the same."
)
@click.option(
    "--dry-run", is_flag=True, help="Print what would be ingested, and whether a name is taken; store nothing."
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each model.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the names of the models.")
def ingest(
    paths: tuple[str, ...],
    name: str | None,
    tools: tuple[str, ...],
    base: str | None,
    convert: bool,
    new_version: bool,
    delete_after: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Split GGUF files into organs, store each organ once, measure it, and register the model.

    FILE is a GGUF file, a folder of GGUF files, a quoted pattern, any shard of a split model, or an organ directory
    from `organ extract`. Organs in an organ directory may be edited. FILE can also be a folder that PEFT saved, with
    adapter_config.json and adapter_model.safetensors: it becomes a LoRA adapter. --base names its base, a registered
    model, a GGUF file or a folder with config.json; it is needed if no config.json of the base is on this machine.

    With --convert, FILE is a folder with a model in safetensors files. The program convert_hf_to_gguf.py of llama.cpp,
    in PATH or named by the variable CONVERT_HF_TO_GGUF, converts it to a temporary file.

    FILE can also be an address: https://HOST/FILE.gguf
    or hf://NAMESPACE/NAME[/FILE][@REVISION]. Its files are fetched one at a time into the folder of the registry, and
    each is removed before the next one is fetched. HF_TOKEN and HF_ENDPOINT are used as by `hf`.

    --ollama, --lmstudio, --llama-cpp, --hf-cache and --gpt4all ingest all models that these tools keep on this machine,
    --all-tools those of all five. Their names come from the tools: manifests, repositories, folders of publishers.
    `organ scan` shows them first. Files that were read before, and have not changed, are not read again.

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
        from organs.ingest.sources import skipped_files
        from organs.ingest.urls import is_url

    with ExitStack() as opened:
        hub = opened.enter_context(hub_of_environment()) if any(map(is_url, paths)) else None
        if tools and delete_after:
            raise click.UsageError("--delete-after would remove files that the other tools still need")
        if convert:
            sources = [opened.enter_context(_converted(paths, dry_run=dry_run, quiet=quiet or as_json))]
            has_problems = False
        else:
            sources, has_problems = _sources(paths, tools, hub)
            sources = _based(sources, base)
        chosen = None if name is None else parse_new_name(name)
        if chosen is not None and chosen.version is not None:
            raise click.UsageError("--name takes no @version: the registry chooses the next free version")
        if chosen is not None and len(sources) > 1:
            raise click.UsageError(f"--name is for one model; {len(sources)} were found")
        options = _IngestOptions(chosen, new_version, delete_after, as_json, quiet)
        if dry_run:
            return _preview(sources, options)
        failures: list[OrganError] = []
        reports: list[IngestReport] = []
        for outcome in _ingested(sources, options):
            failures += [outcome.error] if outcome.error is not None else []
            reports += [outcome.report] if outcome.report is not None else []
            has_problems |= bool(outcome.kept)
            _print_ingested(outcome, as_json=as_json, quiet=quiet)
    if not quiet:
        _print_skipped(skipped_files(paths))
    if not quiet and not as_json:
        _print_total(reports)
    return exit_status(failures, len(sources)) or int(has_problems)


@dataclass(frozen=True, slots=True)
class _IngestOptions:
    name: ModelName | None
    new_version: bool
    delete_after: bool
    as_json: bool
    quiet: bool

    def asks_about(self, source: ModelSource) -> bool:
        """Return whether a person is asked if the name of `source` is taken."""
        is_silent = self.new_version or self.quiet or self.as_json or bool(source.remote)
        return not is_silent and sys.stdin.isatty() and sys.stderr.isatty()


def _ingested(sources: Sequence[ModelSource], options: _IngestOptions) -> Iterator[IngestOutcome]:
    """Ingest files on this machine, with a progress bar, then those on servers; yield the outcomes."""
    with fast_imports():
        from organs.ingest.service import always, ingest_all, never, total_bytes

    quiet = options.quiet or options.as_json
    local = [source for source in sources if not source.remote]
    with local_registry() as registry:
        with progress_bar("ingest", total_bytes(local), quiet=quiet or not local) as advance:
            asks = any(map(options.asks_about, local))
            decide = always if options.new_version else partial(_ask, advance) if asks else never
            yield from ingest_all(registry, local, options.name, advance, decide, delete_after=options.delete_after)
        decide = always if options.new_version else never
        for source in sources:
            if source.remote:
                with _download_line(source, "ingest", "stored", quiet=quiet) as advance_line:
                    outcomes = list(ingest_all(registry, [source], options.name, advance_line, decide))
                yield from outcomes


@contextmanager
def _download_line(source: ModelSource, label: str, done: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show on stderr how much of `source` was downloaded and `done`; print how much was downloaded at the end."""
    client = source.remote[0].hub.client
    requests, received_bytes, begin = client.requests, client.received_bytes, time.monotonic()
    done_bytes = 0

    def downloaded() -> str:
        count = plural_text(client.requests - requests, "request", "requests")
        return f"{size_text(client.received_bytes - received_bytes)} in {count}"

    with status_line(label, quiet=quiet) as say:

        def advance(size_bytes: int) -> None:
            nonlocal done_bytes
            done_bytes += size_bytes
            say(f"{size_text(done_bytes)} {done}, downloaded {downloaded()}")

        yield advance
    if not quiet and client.received_bytes > received_bytes:
        print_sentence(f"{plain(source.label)}: downloaded {downloaded()}, {time.monotonic() - begin:.0f} s", err=True)


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
    parts += [f"{plural_text(copies, 'file was a second copy', 'files were second copies')}"] if copies else []
    listing = shlex.join([*organ_words(), "models"])
    print_sentence(f"{'; '.join(parts)}. See: {listing}")


def _print_skipped(skipped: Skipped) -> None:
    """Print on stderr how many files of the folders were skipped."""
    from organs.ingest.sources import CONVERT

    if skipped.files:
        converted = f", {skipped.safetensors} of them safetensors. {CONVERT}" if skipped.safetensors else ""
        print_sentence(f"skipped {skipped.files} files that are not GGUF{converted}", err=True)


def _ask(bar: ProgressBar, taken: NameTaken) -> bool:
    """Ask at the terminal whether to register the file as the next version of a taken name."""
    question = f"The name {taken.name} is taken by another file, {taken.taken_by}. Register this file as version"
    with bar.hidden():
        return click.confirm(plain(f"{question} {taken.version}?"), default=False, err=True)


def _sources(paths: tuple[str, ...], tools: tuple[str, ...], hub: Hub | None) -> tuple[list[ModelSource], bool]:
    """Return the models in `paths` and of `tools`, and whether some models of the tools cannot be read."""
    from organs.ingest.sources import find_sources
    from organs.ingest.tools import find_tool_models, sources_of
    from organs.ingest.tools.places import this_machine

    if not paths and not tools:
        raise click.UsageError("give a FILE, or a tool such as --ollama; organ scan shows what is on this machine")
    sources = find_sources(paths, hub=hub)
    findings = list(find_tool_models(this_machine(), tools))
    for sentence in (sentence for part in findings for sentence in part.problems):
        click.echo(f"organ: {plain(sentence)}", err=True)
    for sentence in (sentence for part in findings for sentence in part.notes):
        click.echo(f"note: {plain(sentence)}", err=True)
    found = sources_of(findings)
    has_problems = any(part.problems for part in findings)
    if not found and not sources:
        places = "; ".join(f"{part.folder}: {'no GGUF file' if part.is_there else 'not there'}" for part in findings)
        raise BadSource(f"no model of {' or '.join(TOOL_NAMES[tool] for tool in tools)} on this machine: {places}")
    return [*sources, *found], has_problems


def _based(sources: list[ModelSource], base: str | None) -> list[ModelSource]:
    """Return `sources` with the base of their PEFT folders, which --base names."""
    from organs.ingest.bases import chosen_base

    if base is None:
        return sources
    if all(source.adapter is None for source in sources):
        raise click.UsageError("--base is for a folder with adapter_config.json")
    with local_registry() as registry:
        return with_bases(sources, chosen_base(registry, base))


@contextmanager
def _converted(paths: tuple[str, ...], *, dry_run: bool, quiet: bool) -> Iterator[ModelSource]:
    """Convert the model in safetensors files with the program of the user; return it as a GGUF file."""
    from organs.ingest.convert import PROGRAM, converted

    if len(paths) != 1 or dry_run:
        raise click.UsageError("--convert is for one FOLDER, and not with --dry-run")
    program = os.environ.get(CONVERTER_VARIABLE) or shutil.which(PROGRAM)
    if program is None:
        raise ConversionFailed(f"no {PROGRAM} in PATH: install llama.cpp, or set {CONVERTER_VARIABLE} to its path")
    with local_registry() as registry:
        spool = registry.settings.spool
    with ExitStack() as opened:
        with status_line("convert", quiet=quiet) as say:
            say(f"{paths[0]}: {program} is running")
            python = shutil.which("python3") or sys.executable
            source = opened.enter_context(converted(Path(paths[0]), program, python, spool))
        yield source


def _hub_token() -> str | None:
    """Return the token of the Hugging Face tools: HF_TOKEN, or the file that `hf auth login` writes."""
    if token := os.environ.get("HF_TOKEN", "").strip():
        return token
    from organs.ingest.tools.places import hub_home, this_machine

    path = Path(os.environ.get("HF_TOKEN_PATH") or hub_home(this_machine()) / "token").expanduser()
    try:
        with path.open("rb") as file:
            token = file.read(TOKEN_MAX_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return token or None


@contextmanager
def hub_of_environment() -> Iterator[Hub]:
    """Open connections for models at addresses; HF_ENDPOINT names another hub than huggingface.co."""
    from organs.ingest.urls import HUB, Hub
    from organs.registry.client.ranges import RangeClient

    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB
    allows_http = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")
    object_endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    with RangeClient() as client:
        yield Hub(client, endpoint, _hub_token(), allows_http, object_endpoint)


def _preview(sources: list[ModelSource], options: _IngestOptions) -> int:
    """Print what an ingest of each source would do."""
    from organs.ingest.service import IngestOutcome, plan_model

    failures: list[OrganError] = []
    with local_registry() as registry:
        for source in sources:
            try:
                planned = plan_model(registry, source, options.name)
                if planned.taken is not None and not options.new_version and not options.asks_about(source):
                    raise planned.taken
            except OrganError as error:
                failures.append(error)
                _print_ingested(IngestOutcome(source, None, error), as_json=options.as_json, quiet=options.quiet)
            else:
                _print_planned(source, planned, options)
    return exit_status(failures, len(sources))


def _print_planned(source: ModelSource, planned: PlannedModel, options: _IngestOptions) -> None:
    files, taken = planned.files, planned.taken
    name = planned.name if taken is None else f"{taken.name}@{taken.version}"
    tensors, size = sum(file.tensors for file in files), sum(file.size_bytes for file in files)
    missing = [file.size_bytes for file in files if not file.is_stored]
    if options.as_json:
        about: dict[str, Any] = {"file": source.locations[0], "model": name}
        about |= {"organs": tensors, "size_bytes": size, "new": None, "error": None}
        print_json_line(about | {"shards": files[0].shards, "files": [asdict(file) for file in files]})
        return
    if options.quiet:
        click.echo(name)
        return
    part = f", {len(files)} of {files[0].shards} shards" if len(files) < files[0].shards else ""
    stored = "stored already" if source.remote else "probably stored already"  # only the ingest reads all local bytes
    known = "" if missing else f", {stored}"
    print_sentence(f"{source.label}: would be {name}{part}, {tensors} tensors, {size_text(size)}{known}")
    if taken is not None and not options.new_version:
        print_sentence(
            f"the name {taken.name} is taken by {taken.taken_by}: the ingest would ask first", INDENT, err=True
        )
    if source.remote:
        for file in files:
            known = f", {stored}" if file.is_stored else ""
            print_sentence(f"{file.name}: {size_text(file.size_bytes)}{known}", INDENT)
        click.echo(f"  would fetch {len(missing)} of {len(files)} files, {size_text(sum(missing))}")


def _print_ingested(outcome: IngestOutcome, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json_line(_ingested_values(outcome))
        return
    report = outcome.report
    if outcome.error is not None and os.environ.get(DEBUG_VARIABLE):
        raise outcome.error
    if report is None:
        print_failure(_sentence(outcome))
        _print_marked("stored before", outcome.stored)
    else:
        click.echo(report.model if quiet else one_line(_summary(report), report.model))
        flags = report.flags if report.created and not quiet else ()
        _print_marked("note", flags)
        _print_marked("warning", report.warnings)
        _print_marked("note", report.notes)
    _print_marked("removed", () if quiet else outcome.removed)
    for sentence in outcome.kept:
        print_failure(sentence)


def _print_marked(mark: str, items: Iterable[object]) -> None:
    for item in items:
        print_sentence(str(item), f"  {mark}: ", err=True)


def _summary(report: IngestReport) -> str:
    """Return the line about an ingested model."""
    if not report.created:
        parts = plural_text(report.healed_blobs, "damaged part", "damaged parts")
        healed = f"{parts} healed" if report.healed_blobs else "nothing added"
        return (
            f"{report.incomplete}; {healed}" if report.incomplete else f"{report.model}: already registered, {healed}"
        )
    sizes = f"{size_text(report.new_bytes)} new, stored in {size_text(report.stored_bytes)}"
    subject = f"{report.incomplete}; added" if report.incomplete else f"{report.model}:"
    return f"{subject} {report.organs} organs, {sizes}, {report.seconds:.1f} s"


def _sentence(outcome: IngestOutcome) -> str:
    """Return the reason for a refusal, and what to do."""
    error = outcome.error
    if isinstance(error, NameTaken):
        return (
            f"{outcome.source.label}: {error}; give --new-version to add it as version {error.version}, or --name for "
            "another name"
        )
    return str(error)


def _ingested_values(outcome: IngestOutcome) -> dict[str, Any]:
    report = outcome.report
    values = {} if report is None else asdict(report)
    return {
        "file": outcome.source.locations[0],
        "model": None if report is None else report.model,
        "organs": None if report is None else report.organs,
        "new": None if report is None else report.new_blobs,
        "error": None if outcome.error is None else _sentence(outcome),
        "removed": [str(path) for path in outcome.removed],
        "kept": list(outcome.kept),
        "stored": list(outcome.stored),
    } | values


_EXPLAINED = (
    "θ is the shape of the distribution of a tensor's values: 0° uniform, about 34° Gaussian (also untrained), 90° "
    "heavy tails. The spectral signal is the share of a matrix that is a pattern across rows and columns: 0.000 for "
    "random values. Neither tells how good a model is."
)


@click.command(cls=OriginalSpellings, spellings={"--model": "paths", "--dir": "paths"})
@click.argument("paths", nargs=-1, metavar="[FILE]...")
@click.option("--missing", is_flag=True, help="Measure the organs in the registry that lack a measure; give no FILE.")
@click.option(
    "--table",
    "tables",
    multiple=True,
    type=click.Choice(MEASURED_TABLES),
    help="Print this table. Repeatable. [default: types; also components, if there are experts or latent attention]",
)
@click.option("--tensors", is_flag=True, help="Print one row for each tensor instead of these tables.")
@click.option(
    "--tensor",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Only tensors whose name matches PATTERN, such as '*norm*'. Repeatable.",
)
@click.option(
    "--type", "kinds", multiple=True, type=click.Choice(ORGAN_TYPES), help="Only tensors of this type. Repeatable."
)
@click.option("--experts", is_flag=True, help="Also measure each expert of each stack of experts, as a matrix.")
@click.option("-y", "--yes", is_flag=True, help="Download without a question what --experts needs.")
@click.option(
    "--delete-after",
    is_flag=True,
    help="Delete each shard on this machine when all its measurements are durable in the user's cache folder.",
)
@click.option("--merge", is_flag=True, help="FILE is the output of --json: print one report of all these reports.")
@click.option("--dry-run", is_flag=True, help="Print how many bytes would be read; read only the headers.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each model, with every measure.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV: one row for each tensor, with every measure.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the mean θ and the file.")
def measure(
    paths: tuple[str, ...],
    missing: bool,
    tables: tuple[str, ...],
    tensors: bool,
    patterns: tuple[str, ...],
    kinds: tuple[str, ...],
    experts: bool,
    yes: bool,
    delete_after: bool,
    merge: bool,
    dry_run: bool,
    as_json: bool,
    as_csv: bool,
    quiet: bool,
) -> int:
    """Measure GGUF files without registering them. For files, the command opens no registry.

    FILE is a GGUF file, a folder of GGUF files, a quoted pattern, or any shard of a split model. The measures are the
    same as those of `organ ingest`. If a file is refused, the command continues with the next, and the exit status is
    1. The exit status is also 1 if --tensor and --type match no tensor.

    FILE can also be the name of a registered model. The command then prints its stored measures, after those of the
    files. An existing file or folder with this name comes first.

    FILE can also be an address: https://HOST/FILE.gguf, hf://NAMESPACE/NAME[/FILE][@REVISION] for a model in the
    Hugging Face hub, or s3://BUCKET/KEY, gs://BUCKET/KEY or az://CONTAINER/KEY in an object store (with the extra
    `s3`). Then only the headers and a sample of each tensor are downloaded, less than 1% of a large model. An
    interrupted measurement continues when you run the command again. HF_TOKEN and HF_ENDPOINT are used as by `hf`.
    The command names the file in the user's cache folder that it continues from; delete this file to start again.

    If shards of a split model are missing, the others are measured, and their measurements are kept in the user's cache
    folder. When you measure the next shard, also after you deleted the first, the report has both. So a model can be
    measured with room for one shard. --delete-after deletes each measured shard, also those beside the named one that
    belong to its set.

    With --missing, the command works on the registry instead of files. Use it after an update of the program: it adds
    the measures that older versions did not have, and changes no existing measure. You can interrupt it and run it
    again.
    """
    from organs.ingest.sources import ModelSource
    from organs.ingest.urls import is_url

    _check_usage(click.get_current_context().params)
    if missing:
        return _measure_missing(as_json=as_json, quiet=quiet)
    form = "json" if as_json else "csv" if as_csv else "quiet" if quiet else "tensors" if tensors else "tables"
    if merge:
        return _print_merged(paths, form, tables)

    def wanted(name: str, place: Place) -> bool:
        fits = not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
        return fits and (not kinds or place.type.value in kinds)

    with ExitStack() as opened:
        hub = opened.enter_context(hub_of_environment()) if any(map(is_url, paths)) else None
        names = [path for path in paths if _may_be_registered(path)]
        sources = _measured_sources([path for path in paths if path not in names], hub)
        settings = _MeasureSettings(wanted, form, tables, experts=experts, delete_after=delete_after, yes=yes)
        if names and (dry_run or experts or delete_after):
            option = "--dry-run" if dry_run else "--experts" if experts else "--delete-after"
            hint = f"; organ search 'model:{names[0]} expert>=0' lists its experts" if experts else ""
            raise click.UsageError(f"{option} is for files, and {names[0]} is not one{hint}")
        if dry_run:
            return _print_plans(sources, settings, as_json=as_json)
        sources += [ModelSource((), parse_model_name(name)) for name in names]
        measured, failures = _measure_sources(sources, settings)
    if not measured and not failures and (patterns or kinds):
        print_failure("no tensor matches --tensor and --type")
        return 1
    return exit_status(failures, len(sources))


def _may_be_registered(path: str) -> bool:
    """Return whether `path` is no file, folder, pattern or address, and can be the name of a model."""
    from organs.ingest.sources import is_gguf_name

    if is_gguf_name(path) or os.path.lexists(path):
        return False
    with suppress(BadName):
        parse_model_name(path)
        return True
    return False


def _check_usage(options: Mapping[str, Any]) -> None:
    """Raise UsageError for options of `organ measure` that exclude each other, by the names of its parameters."""
    from organs.ingest.urls import is_url

    selecting, acting = ("patterns", "kinds"), ("experts", "delete_after", "dry_run")
    if options["missing"]:
        if any(options[name] for name in ("paths", "tables", "tensors", "as_csv", "merge", *selecting, *acting)):
            raise click.UsageError("--missing takes no FILE; only --json and -q can be used with it")
        return
    if not options["paths"]:
        raise click.UsageError("Missing argument 'FILE...'")
    if sum(bool(options[name]) for name in ("tables", "tensors", "as_json", "as_csv", "quiet")) > 1:
        raise click.UsageError("--table, --tensors, --json, --csv and -q exclude each other")
    if options["merge"] and any(options[name] for name in (*selecting, *acting)):
        raise click.UsageError("only --table, --tensors, --json, --csv or -q can be used with --merge")
    if options["delete_after"] and (any(options[name] for name in selecting) or any(map(is_url, options["paths"]))):
        raise click.UsageError("--delete-after is for all tensors of files on this machine")


@dataclass(frozen=True, slots=True)
class _MeasureSettings:
    """What `organ measure` measures, and what it does besides."""

    wanted: Wanted
    form: str
    tables: tuple[str, ...]
    experts: bool
    delete_after: bool
    yes: bool
    deleted: list[Path] = field(default_factory=list)
    """The files that were deleted."""

    @property
    def options(self) -> MeasureOptions:
        from organs.ingest.measuring import MeasureOptions

        return MeasureOptions(self.experts, self.delete_after, self.deleted.append)


def _with_base(source: ModelSource) -> ModelSource:
    """Return a PEFT folder with the base that the files on this machine have."""
    from organs.ingest.service import with_base

    with suppress(BadInput):  # the measurement refuses the folder with the reasons
        return with_base(None, source)
    return source


def _measured_sources(paths: Sequence[str], hub: Hub | None) -> list[ModelSource]:
    """Return the models in `paths`, also split sets of which the named shard was measured and deleted."""
    from organs.ingest.measuring import find_measured_set
    from organs.ingest.sources import find_sources

    sets = {path: found for path in paths if (found := find_measured_set(path)) is not None}
    others = [
        _with_base(source) for source in find_sources([path for path in paths if path not in sets], "measure", hub)
    ]
    return [*dict.fromkeys(source for source in sets.values() if source not in others), *others]


def _measure_sources(sources: list[ModelSource], settings: _MeasureSettings) -> tuple[int, list[OrganError]]:
    """Measure and print `sources`; return how many have measured tensors, and the errors."""
    form = settings.form
    if form == "csv":
        click.echo(sheet_lines([_csv_keys()]), nl=False)
    measured = 0
    failures: list[OrganError] = []
    for number, source in enumerate(sources, 1):
        label = f"measure {number}/{len(sources)}"
        if source.remote and settings.experts and not _accepts_cost(source, settings):
            failures.append(BadInput(f"{source.label}: not downloaded"))
            continue
        outcome = _measured(source, settings, label, quiet=form not in ("tensors", "tables"))
        failures += [outcome.error] if outcome.error is not None else []
        measured += outcome.model is not None and bool(outcome.model.tensors)
        _print_measured(outcome, form, settings.tables)
        _print_set_notes(source, outcome, settings)
    if form in ("tensors", "tables") and measured:
        print_sentence(_EXPLAINED, err=True)
    return measured, failures


def _accepts_cost(source: ModelSource, settings: _MeasureSettings) -> bool:
    """Print what the measurement of all experts of a model on a server costs; ask if it is much."""
    from organs.ingest.measuring import plan_reads

    plan = plan_reads(source, settings.wanted, settings.options)
    print_sentence(_plan_text(source, plan), err=True)
    if settings.yes or (plan.read_bytes <= ASK_FROM_BYTES and plan.reads <= ASK_FROM_REQUESTS):
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError("add -y to download this")
    return click.confirm("Download this?", default=False, err=True)


def _print_set_notes(source: ModelSource, outcome: MeasureOutcome, settings: _MeasureSettings) -> None:
    """Print on stderr which shards are missing, which files were deleted, and where the measurements are kept."""
    from organs.ingest.measuring import set_journal_path

    if settings.form != "quiet":
        for path in settings.deleted:
            print_sentence(f"deleted {plain(path)}", err=True)
    settings.deleted.clear()
    model = outcome.model
    journal = set_journal_path(source)
    if model is None or journal is None or not journal.is_file():
        return
    if missing := model.missing_shards:
        numbers = _some([f"{number:05d}" for number in missing])
        measured = f"{len(model.files)} of {model.shard_count} shards were measured; missing: {numbers}"
        print_sentence(f"{plain(_label(outcome))}: incomplete: {measured}", err=True)
    if settings.form != "quiet" and (missing or settings.delete_after):
        print_sentence(f"the measurements are kept in {plain(journal)}; to forget them, delete this file", err=True)


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN_SHARDS
    return ", ".join(names[:SHOWN_SHARDS]) + (f" and {more} more" if more > 0 else "")


def _print_merged(paths: Sequence[str], form: str, tables: Sequence[str]) -> int:
    """Print one report of all reports in `paths`, which are outputs of --json."""
    from organs.ingest.measuring import MeasureOutcome
    from organs.ingest.merging import merge_models, read_reports
    from organs.ingest.sources import ModelSource
    from organs.registry.names import ModelName

    reports = [(plain(path), model) for path in paths for model in read_reports(Path(path))]
    source = ModelSource(tuple(map(Path, paths)), ModelName("local", "merged"))
    outcome = MeasureOutcome(source, merge_models(reports), None)
    if form == "csv":
        click.echo(sheet_lines([_csv_keys()]), nl=False)
    _print_measured(outcome, form, tables)
    assert outcome.model is not None
    if missing := outcome.model.missing_shards:
        numbers = _some([f"{number:05d}" for number in missing])
        print_sentence(f"incomplete: {len(missing)} of {outcome.model.shard_count} shards missing: {numbers}", err=True)
    return 0


def _print_plans(sources: list[ModelSource], settings: _MeasureSettings, *, as_json: bool) -> int:
    """Print what a measurement of each source would read."""
    from organs.ingest.measuring import plan_reads

    failures: list[OrganError] = []
    for source in sources:
        try:
            plan = plan_reads(source, settings.wanted, settings.options)
        except OrganError as error:
            failures.append(error)
            print_failure(str(error))
            continue
        if as_json:
            print_json_line({"file": source.locations[0], "files": list(source.locations)} | asdict(plan))
            continue
        click.echo(_plan_text(source, plan))
    return exit_status(failures, len(sources))


def _plan_text(source: ModelSource, plan: ReadPlan) -> str:
    share = f" ({plan.read_bytes / plan.size_bytes:.2%})" if plan.size_bytes else ""
    experts = f" and {plan.experts:,} experts" if plan.experts else ""
    before = plan.known_tensors + plan.known_experts
    known = f", {before:,} of them measured before" if before else ""
    reads = "requests" if source.remote else "reads"
    is_small = source.remote and plan.read_bytes > plan.size_bytes / 2
    advice = "; it is faster to download the file and to measure the copy" if is_small else ""
    return (
        f"{plain(source.label)}: {plan.tensors:,} tensors{experts}{known}; would read {size_text(plan.read_bytes)} of "
        f"{size_text(plan.size_bytes)}{share} in {plan.reads:,} {reads}{advice}"
    )


def _measure_missing(*, as_json: bool, quiet: bool) -> int:
    # with the catalog, which files do not need
    from organs.registry.catalog.queries.relatives import models_to_repack
    from organs.registry.relatives import measure_edges_again, settle_sources
    from organs.registry.upkeep import measure_missing

    examined = 0

    def count_organs(count: int) -> None:
        nonlocal examined
        examined += count
        say(f"{examined:,} organs")

    with local_registry() as registry, status_line("measure", quiet=quiet or as_json) as say:
        report = measure_missing(registry.catalog, registry.blobs, count_organs)
        say("comparing relatives")
        measure_edges_again(registry.catalog)
        with registry.catalog.reading() as session:
            models = models_to_repack(session, everything=True)
        settle_sources(registry.catalog, registry.blobs, models)
    if as_json:
        print_json(report)
    elif not quiet:
        click.echo(f"{report.measured:,} organs measured" if examined else "every organ has all measures")
    if report.unreadable:
        print_failure(f"the bytes of {report.unreadable:,} organs cannot be read; run organ verify")
    return CorruptBlob.exit_code if report.unreadable else 0


def _measured(source: ModelSource, settings: _MeasureSettings, label: str, *, quiet: bool) -> MeasureOutcome:
    """Measure `source`. Its progress bar ends before anything is printed."""
    from organs.ingest.measuring import measure_all
    from organs.ingest.sources import source_size_bytes

    if source.is_registered:
        return _stored(source, settings.wanted)
    if source.remote:
        return _measured_remote(source, settings, label, quiet=quiet)
    with progress_bar(label, source_size_bytes(source), quiet=quiet) as advance:
        (outcome,) = measure_all([source], settings.wanted, advance, settings.options)
    return outcome


def _stored(source: ModelSource, wanted: Wanted) -> MeasureOutcome:
    """Return the stored measures of a registered model."""
    from organs.ingest.measuring import MeasureOutcome
    from organs.ingest.stored import stored_model

    with local_registry() as registry:
        try:
            name, model = stored_model(registry, source.name, wanted)
            return MeasureOutcome(replace(source, name=name), model, None)
        except Incomplete as error:
            return MeasureOutcome(source, None, error)
        except NotFound as error:
            return MeasureOutcome(source, None, NotFound(f"no such file, and {error}"))
        except OrganError as error:
            return MeasureOutcome(source, None, error)


def _measured_remote(source: ModelSource, settings: _MeasureSettings, label: str, *, quiet: bool) -> MeasureOutcome:
    """Measure files on a server; print how much was downloaded."""
    from organs.ingest.journal import journal_path
    from organs.ingest.measuring import measure_all

    journal = journal_path(source.locations)
    if journal.is_file() and not quiet:
        print_sentence(f"an interrupted run has measurements in {plain(journal)}; to forget them, delete it", err=True)
    with _download_line(source, label, "measured", quiet=quiet) as advance:
        (outcome,) = measure_all([source], settings.wanted, advance, settings.options)
    return outcome


def _print_measured(outcome: MeasureOutcome, form: str, tables: Sequence[str]) -> None:
    from organs.registry.reports.statistics import mean_of

    if form == "json":
        print_json_line(_measured_values(outcome))
    elif outcome.model is None:
        if outcome.error is not None and os.environ.get(DEBUG_VARIABLE):
            raise outcome.error
        assert outcome.error is not None, "without a model there is an error"
        print_error(outcome.error)
    elif form == "csv":
        _print_rows(outcome, outcome.model)
    elif form == "quiet":
        theta = mean_of(tensor.measurement.theta for tensor in outcome.model.tensors)
        click.echo(f"{'-' if theta is None else f'{theta:.2f}'}\t{plain(_file(outcome))}")
    else:
        _print_tables(outcome, outcome.model, ("tensors",) if form == "tensors" else tables)


def _locations(outcome: MeasureOutcome) -> list[str]:
    """Return the paths or addresses of the measured files, also of deleted ones; of the source if there are none."""
    files = () if outcome.model is None else outcome.model.files
    return [file.location for file in files] or list(outcome.source.locations)


def _file(outcome: MeasureOutcome) -> str:
    return _locations(outcome)[0]


def _label(outcome: MeasureOutcome) -> str:
    first, *others = _locations(outcome)
    return first + (f" and {len(others)} more shards" if others else "")


def _print_tables(outcome: MeasureOutcome, model: MeasuredModel, tables: Sequence[str]) -> None:
    from organs.registry.measures import THETA_LEGEND
    from organs.registry.reports.groups import matrix_theta
    from organs.registry.reports.statistics import mean_of

    content = (
        f"{count_text(model.parameters)} parameters in {model.tensor_count} tensors, {size_text(model.size_bytes)}"
    )
    unknown = "architecture not known without shard 1" if 1 in model.missing_shards else "no architecture"
    print_sentence(f"{_label(outcome)}: {model.architecture or unknown}, {content}")
    if not model.tensors:
        click.echo("no tensor matches --tensor and --type\n" if model.tensor_count else "nothing to measure\n")
        return
    readings = _readings(model)
    theta = mean_of(reading.theta for reading in readings)
    chosen = "" if len(readings) == model.tensor_count else f" of the {len(readings)} selected tensors"
    matrices = sum(reading.is_matrix for reading in readings)
    part = f"; of the {matrices} matrices alone: {theta_text(matrix_theta(readings))}" if matrices else ""
    click.echo(f"mean θ{chosen}: {theta_text(theta)}{part}\n")
    for name in tables or _default_tables(readings):
        if name == "tensors":
            print_table(_TENSOR_COLUMNS, [_tensor_row(tensor) for tensor in _rows(model)], _NUMBERS)
        else:
            _print_table(_table_of(name, readings))
        click.echo()
    if any(reading.caution for reading in readings):
        print_sentence(THETA_LEGEND, err=True)
    if model.experts and "tensors" not in tables:
        print_table(_STACK_COLUMNS, [_stack_row(stack) for stack in _stacks(model)], _STACK_COLUMNS[1:])
        click.echo()


def _rows(model: MeasuredModel) -> Iterator[MeasuredTensor]:
    """Yield the tensors of a model; after each stack, its experts."""
    experts = _by_stack(model)
    for tensor in model.tensors:
        yield tensor
        yield from experts.get(tensor.name, ())


def _by_stack(model: MeasuredModel) -> dict[str, list[MeasuredTensor]]:
    """Return the measured experts by the name of their stack."""
    experts: dict[str, list[MeasuredTensor]] = {}
    for expert in model.experts:
        experts.setdefault(expert.name, []).append(expert)
    return experts


def _stacks(model: MeasuredModel) -> list[dict[str, Any]]:
    """Return one row for each stack of experts: the distribution of θ over its experts."""
    from organs.registry.reports.statistics import distribution_of, mean_of

    rows: list[dict[str, Any]] = []
    for name, experts in _by_stack(model).items():
        thetas = sorted(
            (expert.measurement.theta, expert.expert) for expert in experts if expert.measurement.theta is not None
        )
        spread = distribution_of(theta for theta, _ in thetas)
        rows.append(
            {
                "tensor": name,
                "experts_count": len(experts),
                "measured_count": spread.count,
                "mean_theta_degrees": spread.mean,
                "theta_standard_deviation": spread.deviation,
                "minimum_theta_degrees": spread.minimum,
                "minimum_expert": thetas[0][1] if thetas else None,
                "maximum_theta_degrees": spread.maximum,
                "maximum_expert": thetas[-1][1] if thetas else None,
                "mean_spectral_signal": mean_of(expert.measurement.spectral_signal for expert in experts),
            }
        )
    return rows


def _stack_row(stack: dict[str, Any]) -> tuple[object, ...]:
    return (
        stack["tensor"],
        stack["experts_count"],
        theta_text(stack["mean_theta_degrees"]),
        theta_text(stack["theta_standard_deviation"]),
        theta_text(stack["minimum_theta_degrees"]),
        _text_or_dash(stack["minimum_expert"]),
        theta_text(stack["maximum_theta_degrees"]),
        _text_or_dash(stack["maximum_expert"]),
        share_text(stack["mean_spectral_signal"]),
    )


def _text_or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def _readings(model: MeasuredModel) -> list[TensorReading]:
    from organs.registry.reports.groups import TensorReading

    return [
        TensorReading(
            name=tensor.name,
            place=tensor.place,
            dtype=tensor.dtype,
            shape=_shape(tensor),
            elements=tensor.elements,
            size_bytes=tensor.size_bytes,
            theta=tensor.measurement.theta,
            spectral_signal=tensor.measurement.spectral_signal,
        )
        for tensor in model.tensors
    ]


def _default_tables(readings: Iterable[TensorReading]) -> tuple[str, ...]:
    """Return the tables to print: that of components only if it has more than that of types."""
    has_more = any(reading.component not in PLAIN_COMPONENTS for reading in readings)
    return ("types", "components") if has_more else ("types",)


def _table_of(name: str, readings: Sequence[TensorReading]) -> ReportTable:
    """Return the table `name` of MEASURED_TABLES."""
    from organs.registry.entities.report import ORGANS_DEFAULT
    from organs.registry.reports.groups import blocks_of, components_of, types_of, wells_of

    match name:
        case "components":
            return components_of(readings, before="", empty=_NO_TENSORS)
        case "blocks":
            return blocks_of(readings, empty="no block has attention, feed-forward tensors or norms with a θ")
        case "wells":
            return wells_of(readings, ORGANS_DEFAULT)
        case _:
            return types_of(readings, before="", empty=_NO_TENSORS)


def _print_table(table: ReportTable) -> None:
    """Print the rows of a table, without its explanations."""
    from organs.registry.reports.formats import grid

    texts = grid(table)
    if not texts.rows:
        click.echo(table.before[0])
        return
    headings = [plain(heading) for heading in texts.headings]
    print_table(headings, texts.rows, [heading for heading, right in zip(headings, texts.right, strict=True) if right])


def _tensor_row(tensor: MeasuredTensor) -> tuple[object, ...]:
    reading = tensor.measurement
    notes = [f"{reading.nan_count} NaN"] if reading.nan_count else []
    if reading.infinite_count:
        notes.append(f"{reading.infinite_count} infinite")
    if reading.reason and (reading.constant or reading.theta is None):
        notes.append(reading.reason)
    return (
        tensor.name if tensor.expert is None else f"  expert {tensor.expert}",
        tensor.place.type.value,
        tensor.dtype,
        _shape(tensor),
        theta_text(reading.theta, _caution(tensor)),
        share_text(reading.magnitude),
        share_text(reading.spectral_signal),
        ", ".join(notes),
    )


def _caution(tensor: MeasuredTensor) -> str:
    from organs.registry.measures import theta_caution

    return theta_caution(tensor.measurement.theta, tensor.dtype, tensor.elements)


def _shape(tensor: MeasuredTensor) -> str:
    return "x".join(map(str, tensor.shape))


def _measured_values(outcome: MeasureOutcome) -> dict[str, Any]:
    from organs.registry.reports.groups import matrix_theta
    from organs.registry.reports.statistics import mean_of

    model = outcome.model
    about: dict[str, Any] = {
        "file": _file(outcome),
        "files": _locations(outcome),
        "error": None if outcome.error is None else str(outcome.error),
    }
    if model is None:
        return about
    readings = _readings(model)
    return about | {
        "architecture": model.architecture,
        "title": model.title,
        "size_bytes": model.size_bytes,
        "tensors_count": model.tensor_count,
        "parameters_count": model.parameters,
        "mean_theta_degrees": mean_of(reading.theta for reading in readings),
        "matrix_mean_theta_degrees": matrix_theta(readings),
        "mean_signal": mean_of(tensor.measurement.signal for tensor in model.tensors),
        "mean_spectral_signal": mean_of(reading.spectral_signal for reading in readings),
        **{name: list(_table_of(name, readings).items) for name in MEASURED_TABLES},
        "tensors": [_tensor_values(tensor) for tensor in model.tensors],
        "stacks": _stacks(model),
        "experts": [_tensor_values(expert) for expert in model.experts],
        "shards_count": model.shard_count,
        "missing_shards": list(model.missing_shards),
        "set_tensors_count": model.set_tensor_count,
        "shards": [_file_values(file) for file in model.files],
    }


def _file_values(file: MeasuredFile) -> dict[str, Any]:
    return {
        "file": file.location,
        "shard": file.shard,
        "size_bytes": file.size_bytes,
        "tensors_count": file.tensor_count,
        "selected_count": file.selected_count,
        "parameters_count": file.parameters,
    }


def _tensor_values(tensor: MeasuredTensor) -> dict[str, Any]:
    place, reading = tensor.place, tensor.measurement
    values: dict[str, Any] = {
        "tensor": tensor.name,
        "expert": tensor.expert,
        "type": place.type.value,
        "tower": place.tower.value,
        "block": place.block,
        "slot": place.slot,
        "dtype": tensor.dtype,
        "shape": _shape(tensor),
        "elements_count": tensor.elements,
        "size_bytes": tensor.size_bytes,
    }
    values |= {name: getattr(reading, member) for member, name in _measures().items()}
    values["theta_caution"] = _caution(tensor)
    return values | {"fingerprint": None if reading.fingerprint is None else reading.fingerprint.hex()}


def _print_rows(outcome: MeasureOutcome, model: MeasuredModel) -> None:
    keys = _csv_keys()
    rows = ({"file": _file(outcome)} | _tensor_values(tensor) for tensor in _rows(model))
    cells = ([plain(row[key]) if isinstance(row[key], str) else row[key] for key in keys] for row in rows)
    click.echo(sheet_lines(cells), nl=False)


_NO_TENSORS = "there are no tensors"
_NUMBERS = ("θ", "|Z|", "spectral")
_TENSOR_COLUMNS = ("tensor", "type", "dtype", "shape", "θ", "|Z|", "spectral", "note")
_STACK_COLUMNS = (
    *("stack of experts", "experts", "mean θ", "spread", "lowest θ", "of expert", "highest θ", "of expert"),
    "spectral",
)
ASK_FROM_BYTES, ASK_FROM_REQUESTS = 1_000_000_000, 100_000
"""A download of more bytes or requests for --experts needs a confirmation."""
SHOWN_SHARDS = 10
"""The most numbers of missing shards in a message."""


def _measures() -> dict[str, str]:
    """Return the members of a measurement that are printed, with their names in JSON and CSV."""
    from organs.ingest.merging import JSON_NAMES
    from organs.registry.measure import Measurement

    names = [member.name for member in fields(Measurement) if member.name != "fingerprint"]
    return {name: JSON_NAMES.get(name, name) for name in names}


def _csv_keys() -> list[str]:
    place = ("file", "tensor", "expert", "type", "tower", "block", "slot", "dtype", "shape")
    return [*place, "elements_count", "size_bytes", *_measures().values(), "theta_caution"]


@click.command(cls=OriginalSpellings, spellings={"--model": "model", "--dir": "output"})
@click.argument("model", metavar="FILE|FOLDER|MODEL")
@output_option("DIR", "The folder to create.", required=True)
@click.option("--force", is_flag=True, help="Replace an existing organ directory and all files in it.")
@click.option("--json", "as_json", is_flag=True, help="Print a report as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print the folder's path only.")
def extract(model: str, output: Path, force: bool, as_json: bool, quiet: bool) -> int:
    """Split a model into the organ directory DIR: a manifest.json, and one file for each tensor.

    FILE is a GGUF file or any shard of a split model. It does not have to be registered. MODEL is a registered model;
    its bytes are checked while they are read. If the command fails, it leaves no incomplete DIR.

    Each model in FOLDER becomes an organ directory of its own in DIR, named after its file. If a model is refused, the
    command continues with the next, and the exit status is 1.

    You can edit the organs in DIR. `organ assemble DIR` writes the GGUF file again; without edits it is identical to
    the original. `organ ingest DIR` registers it.

    A model of a remote registry is first downloaded to the folder that contains DIR. The downloaded files are deleted
    at the end.
    """
    sources = _models_in(model)
    if sources:
        return _extract_folder(sources, output, force=force, as_json=as_json, quiet=quiet)
    with ExitStack() as opened:
        contents = _contents(opened, model, output, force=force, quiet=quiet or as_json)
        report = _extracted(contents, output, "extract", force=force, quiet=quiet or as_json)
    _print_extracted([(output, report)], as_json=as_json, quiet=quiet)
    return 0


def _models_in(folder: str) -> list[ModelSource]:
    """Return the models in a folder, without organ directories; none if `folder` is something else."""
    from organs.ingest.directory.folder import is_organ_directory
    from organs.ingest.sources import find_sources, is_gguf_name

    path = Path(folder)
    if not path.is_dir() or is_organ_directory(path):
        return []
    with suppress(BadSource):  # a folder without models can have the name of a registered model
        return [source for source in find_sources([folder], "extract") if is_gguf_name(source.paths[0].name)]
    return []


def _extract_folder(sources: Sequence[ModelSource], output: Path, *, force: bool, as_json: bool, quiet: bool) -> int:
    """Extract each of `sources` into its own folder in `output`."""
    from organs.ingest.directory.extract import file_contents
    from organs.ingest.directory.folder import is_organ_directory
    from organs.ingest.sources import open_files

    if is_organ_directory(output):
        raise BadSource(f"{output}: this is an organ directory; choose another folder for {len(sources)} of them")
    _make_folder(output)
    failures: list[OrganError] = []
    extracted: list[tuple[Path, ExtractReport]] = []
    for number, (name, source) in enumerate(_folder_names(sources).items(), 1):
        target, label = output / name, f"extract {number}/{len(sources)}"
        try:
            with ExitStack() as opened:
                contents = file_contents(open_files(opened, source))
                report = _extracted(contents, target, label, force=force, quiet=quiet or as_json)
        except (DiskFull, StoreUnwritable):
            raise
        except OrganError as error:
            failures.append(error)
            print_failure(str(error))
            continue
        extracted.append((target, report))
        if not as_json:
            _print_extracted([(target, report)], as_json=False, quiet=quiet)
    if as_json:
        _print_extracted(extracted, as_json=True, quiet=quiet)
    return exit_status(failures, len(sources))


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(exist_ok=True)
    except FileExistsError:
        raise BadSource(f"{path}: exists, and is not a folder") from None
    except OSError as error:
        raise StoreUnwritable(f"{path}: {error.strerror}") from error


def _folder_names(sources: Sequence[ModelSource]) -> dict[str, ModelSource]:
    """Return `sources` by different names of folders: that of the model, with a number if another one has it."""
    named: dict[str, ModelSource] = {}
    taken: set[str] = set()
    for source in sources:
        name, number = source.name.name, 1
        while name.lower() in taken:  # some file systems ignore the case
            number += 1
            name = f"{source.name.name}-{number}"
        taken.add(name.lower())
        named[name] = source
    return named


def _extracted(contents: Sequence[Content], target: Path, label: str, *, force: bool, quiet: bool) -> ExtractReport:
    from organs.ingest.directory.extract import extract as write_directory

    total = sum(content.header.file_size_bytes for content in contents)
    with progress_bar(label, total, quiet=quiet) as advance:
        return write_directory(contents, target, force=force, progress=advance)


def _contents(opened: ExitStack, model: str, output: Path, *, force: bool, quiet: bool) -> list[Content]:
    from organs.ingest.directory.extract import file_contents
    from organs.ingest.sources import GGUF_SUFFIX, find_sources, open_files

    if not model.endswith(GGUF_SUFFIX) and not Path(model).is_file():
        return _registered_contents(opened, model, output, force=force, quiet=quiet)
    sources = find_sources([model], "extract")
    if len(sources) != 1:
        raise click.UsageError(f"give one model; {model} has {len(sources)}")
    return file_contents(open_files(opened, sources[0]))


def _registered_contents(opened: ExitStack, model: str, output: Path, *, force: bool, quiet: bool) -> list[Content]:
    from organs.ingest.directory.extract import model_contents
    from organs.ingest.directory.folder import is_organ_directory

    try:
        name = parse_model_name(model)
        registry = opened.enter_context(selected_registry())
        show_download = bind(progress_bar, "download", quiet=quiet)
        return model_contents(opened, registry, name, output, replaces=force, show_download=show_download)
    except (BadName, NotFound) as error:
        path = Path(model)
        if not path.is_dir():
            raise
        if is_organ_directory(path):
            hint = (
                f"this is an organ directory: organ assemble {model} writes its GGUF, organ ingest {model} registers it"
            )
        else:
            hint = "this is a folder without GGUF files, and no registered model has this name"
        raise BadSource(f"{model}: {hint}") from error


def _print_extracted(extracted: Sequence[tuple[Path, ExtractReport]], *, as_json: bool, quiet: bool) -> None:
    """Print the folders with their reports."""
    if as_json:
        print_json({"items": [_extracted_values(output, report) for output, report in extracted], "next": None})
        return
    for output, report in extracted:
        if quiet:
            print_path(output)
            continue
        print_sentence(f"{output}: {report.tensors} tensors, {size_text(report.size_bytes)}")
        for name, size, sha256 in report.files:
            print_sentence(f"{name}: {size_text(size)}, sha256:{sha256}", INDENT)


def _extracted_values(output: Path, report: ExtractReport) -> dict[str, object]:
    files = [{"name": name, "size_bytes": size, "sha256": sha256} for name, size, sha256 in report.files]
    return {"directory": str(output), "tensors": report.tensors, "size_bytes": report.size_bytes, "files": files}


RECIPE_SUFFIXES = (".yaml", ".yml", ".json")
_PROOFS = {
    "identical": "the original file, byte for byte",
    "as made": "the composed chimera, byte for byte",
    "new file": "a new file",
    "not compared yet": "compared with the original file",
}
_ACCEPT_MISPLACED = "--accept is only for a RECIPE or a partial model"


@dataclass(frozen=True, slots=True)
class _ModelFiles:
    """Which files of a registered model are written."""

    merge: bool
    shards: str | None
    partial: bool
    accept: tuple[str, ...]


@click.command(cls=OriginalSpellings, spellings={"--dir": "model"})
@click.argument("model", metavar="MODEL|DIR|RECIPE")
@output_option("OUT", "The file or folder to write.", required=True)
@click.option("--shards", metavar="SIZE", help="Write shards with at most SIZE (2G, 500M) of tensors in each.")
@click.option("--merge", is_flag=True, help="Write one file for a model that was ingested as shards.")
@click.option(
    "--accept",
    multiple=True,
    metavar="CODE",
    help="Accept the warning CODE of a RECIPE or a partial model. Repeatable.",
)
@click.option("--partial", is_flag=True, help="Write the original file of a partial model, without its base.")
@click.option("--force", is_flag=True, help="Replace existing files.")
@click.option("--dry-run", is_flag=True, help="Print what would be written, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the files as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print the files' paths only.")
def assemble(
    model: str,
    output: Path,
    shards: str | None,
    merge: bool,
    accept: tuple[str, ...],
    partial: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the GGUF file of a registered model, an organ directory or a recipe.

    MODEL is a registered model. The result is identical to the ingested file: the command checks every organ, and the
    SHA-256 of the whole file. A model that was ingested as shards gives the same shards, in the folder OUT or with
    names that begin like the file OUT. --merge and --shards write new files with the same tensors. A chimera can also
    be named by `sha256:` and the digest of its lock.

    A partial model has only some organs. The command grafts them into the base that the model names.

    DIR is an organ directory from `organ extract`. No registry is needed. The result is compared with the original
    file; edited organs are listed.

    RECIPE is a file that ends in .yaml, .yml or .json. The chimera is composed and registered first, as by `organ
    compose`.

    If the command fails, it leaves no incomplete file.
    """
    with fast_imports():
        from organs.cli.composing import ComposeOptions
        from organs.ingest.directory.folder import is_organ_directory
        from organs.ingest.sources import GGUF_SUFFIX

    if shards and merge:
        raise click.UsageError("--shards and --merge exclude each other")
    is_recipe = model.endswith(RECIPE_SUFFIXES) and Path(model).is_file()
    options = ComposeOptions(output, force, dry_run, as_json, quiet, shows_plan=False)
    if is_organ_directory(Path(model)):
        if shards or merge:
            raise click.UsageError("--shards and --merge are for registered models: organ ingest DIR first")
        results = _from_directory(Path(model), output, options)
    elif is_recipe:
        if shards or merge:
            raise click.UsageError("--shards and --merge are for registered models: organ compose RECIPE first")
        results = _from_recipe(model, accept, options)
    elif model.endswith(GGUF_SUFFIX) and Path(model).is_file():
        raise BadSource(f"{model}: this is a GGUF file already; organ ingest, extract and transplant read it")
    else:
        results = _from_registry(model, _ModelFiles(merge, shards, partial, accept), output, options)
    _print_assembled(results, dry_run=dry_run, as_json=as_json, quiet=quiet)


def _from_recipe(path: str, accept: Sequence[str], options: ComposeOptions) -> list[dict[str, object]]:
    from organs.cli.composing import make_chimera, read_composition

    with selected_registry() as registry:
        composition = read_composition(registry.compose, path, None, accept, as_json=options.as_json)
        result = make_chimera(registry, composition, options)
    assert result.out is not None
    assert result.out.file is not None
    assert result.plan is not None
    sha256 = None if result.made is None else result.made.sha256
    return [_result(Path(result.out.file), result.plan.size_bytes, sha256, "new file")]


def _from_registry(
    model: str, files_wanted: _ModelFiles, output: Path, options: ComposeOptions
) -> list[dict[str, object]]:
    from organs.cli.composing import write_partial

    proof = "new file"
    written: list[WrittenPath]
    with selected_registry() as registry:
        keeps_files = files_wanted.partial or files_wanted.shards or files_wanted.merge
        recipe = None if keeps_files else registry.partial_recipe(model)
        if recipe is not None:
            written = [write_partial(registry, recipe, files_wanted.accept, output, options)]
        else:
            if files_wanted.accept:
                raise click.UsageError(_ACCEPT_MISPLACED)
            shard_bytes = shard_size(files_wanted.shards)
            # Not registry.assemble(): it always writes one file, while a model that came in shards gives its shards
            # here, and --dry-run, --force and --json need the names and sizes before anything is written.
            files = registry.files(model, merge=files_wanted.merge, shard_bytes=shard_bytes, stem=stem_of(output))
            proof = "as made" if files.model is not None and files.model.is_chimera else "identical"
            print_beside_file(files.model)
            written = write_files(files, output, options)
    return [_result(file.path, file.size_bytes, file.sha256, "new file" if file.is_new else proof) for file in written]


def _from_directory(path: Path, output: Path, options: ComposeOptions) -> list[dict[str, object]]:
    from organs.ingest.transplant import place_virtual

    results = []
    with ExitStack() as opened:
        files = _virtual_files(opened, path)
        targets = gguf_targets(output, [file.path.name for file in files], force=options.force)
        total = sum(file.size_bytes for file in files)
        quiet = options.dry_run or not options.prints
        with folder_of(targets, dry_run=options.dry_run), progress_bar("write", total, quiet=quiet) as advance:
            for file, target in zip(files, targets, strict=True):
                digest = None if options.dry_run else place_virtual(file, target, advance)
                results.append(_result(target, file.size_bytes, digest, _proof(file, digest)))
                for note in _notes(file, digest):
                    print_sentence(note, "  note: ", err=True)
    return results


def _virtual_files(opened: ExitStack, path: Path) -> list[VirtualFile]:
    from organs.ingest.directory.opening import VirtualFile
    from organs.ingest.sources import directory_source, open_files

    files = open_files(opened, directory_source(path))
    if reasons := [reason for file in files for reason in file.unassemblable]:
        raise NotAssemblable(str(path), reasons)
    return [file.source for file in files if isinstance(file.source, VirtualFile)]


def _proof(file: VirtualFile, digest: Digest | None) -> str:
    from organs.registry.compose.lock import LOCK_KEY
    from organs.registry.gguf import read_header

    if digest is None and not file.remarks:
        return "not compared yet"
    if digest is None or digest != file.sha256:
        return "new file"
    return "identical" if read_header(file).field(LOCK_KEY) is None else "as made"


def _notes(file: VirtualFile, digest: Digest | None) -> Iterable[str]:
    """Return the notes that an ingest prints. The search for edited organs reads every file again: only if needed."""
    if digest is None:
        return file.remarks
    return file.notes(digest, {} if digest == file.sha256 else file.organ_digests())


def _result(target: Path, size_bytes: int, digest: Digest | None, proof: str) -> dict[str, object]:
    return {"file": str(target), "size_bytes": size_bytes, "sha256": digest, "proof": proof}


def _print_assembled(results: list[dict[str, object]], *, dry_run: bool, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json({"items": results, "next": None})
        return
    for result in results:
        if quiet:
            print_path(result["file"])
            continue
        size = result["size_bytes"]
        assert isinstance(size, int)
        verb = "would be" if dry_run else "is"
        proof = _PROOFS[str(result["proof"])]
        digest = f", sha256:{result['sha256']}" if result["sha256"] else ""
        print_sentence(f"{result['file']}: {size_text(size)}{digest}; {verb} {proof}")
