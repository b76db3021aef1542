"""Files: `organ ingest`, `assemble`, `measure` and `extract`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import partial
from functools import partial as bind
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from organs.cli.arguments import OriginalSpellings, local_registry, selected_registry
from organs.cli.console import (
    ProgressBar,
    exit_status,
    in_lines,
    plain,
    print_json,
    print_json_line,
    print_path,
    print_table,
    progress_bar,
    status_line,
)
from organs.cli.outputs import (
    WrittenPath,
    folder_of,
    gguf_targets,
    print_beside_file,
    shard_size,
    stem_of,
    write_files,
)
from organs.registry.amounts import count_text, share_text, size_text, theta_text
from organs.registry.anatomy import Place
from organs.registry.catalog.vocabulary import ORGAN_TYPES
from organs.registry.digest import Digest
from organs.registry.errors import BadName, BadSource, CorruptBlob, NameTaken, NotAssemblable, NotFound, OrganError
from organs.registry.names import parse_model_name
from organs.registry.reports.formats import sheet_lines
from organs.registry.settings import DEBUG_VARIABLE

if TYPE_CHECKING:
    from organs.cli.composing import ComposeOptions
    from organs.ingest.directory.extract import Content, ExtractReport
    from organs.ingest.directory.opening import VirtualFile
    from organs.ingest.measuring import MeasuredModel, MeasuredTensor, MeasureOutcome, Wanted
    from organs.ingest.service import Outcome
    from organs.ingest.sources import ModelSource, Skipped
    from organs.ingest.urls import Hub

TOKEN_MAX_BYTES = 4096


@click.command()
@click.argument("paths", nargs=-1, metavar="FILE...")
@click.option(
    "--name", help="Register the model as NAMESPACE/NAME; for one model only. [default: local/ and the file's name]"
)
@click.option("--hf-cache", is_flag=True, help="Ingest every GGUF file in the Hugging Face cache of this machine.")
@click.option("--new-version", is_flag=True, help="If the name is taken, register the file as its next version.")
@click.option("--dry-run", is_flag=True, help="Print what would be ingested; store nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each model.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the names of the models.")
def ingest(
    paths: tuple[str, ...],
    name: str | None,
    hf_cache: bool,
    new_version: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Split GGUF files into organs, store each organ once, measure it, and register the model.

    FILE is a GGUF file, a folder of GGUF files, a quoted pattern, any shard of a split model, or an organ directory
    from `organ extract`. Organs in an organ directory may be edited.

    If another file already has the name of a model, the command asks whether to register this file as the next
    version. Without a terminal it refuses the file; give --new-version to register it.

    If a file is refused, the command continues with the next. The exit status is then 1; for a single FILE it is the
    status of the error. A second ingest of the same file adds nothing. To continue an interrupted ingest, run the same
    command again.
    """
    from organs.ingest.service import always, ingest_all, never, total_bytes
    from organs.ingest.sources import skipped_files

    sources = _sources(paths, hf_cache)
    chosen = None if name is None else parse_model_name(name)
    if chosen is not None and chosen.version is not None:
        raise click.UsageError("--name takes no @version: the registry chooses the next free version")
    if chosen is not None and len(sources) > 1:
        raise click.UsageError(f"--name is for one model; {len(sources)} were found")
    if dry_run:
        named = [replace(source, name=chosen or source.name) for source in sources]
        return _preview(named, as_json=as_json, quiet=quiet)
    failures: list[OrganError] = []
    with local_registry() as registry, progress_bar("ingest", total_bytes(sources), quiet=quiet or as_json) as advance:
        asks = not (as_json or quiet) and sys.stdin.isatty() and sys.stderr.isatty()
        decide = always if new_version else partial(_ask, advance) if asks else never
        for outcome in ingest_all(registry, sources, chosen, advance, decide):
            failures += [outcome.error] if outcome.error is not None else []
            _print_ingested(outcome, as_json=as_json, quiet=quiet)
    if not quiet:
        _print_skipped(skipped_files(paths))
    return exit_status(failures, len(sources))


def _print_skipped(skipped: Skipped) -> None:
    """Print on stderr how many files of the folders were skipped."""
    from organs.ingest.sources import CONVERT

    if skipped.files:
        converted = f", {skipped.safetensors} of them safetensors. {CONVERT}" if skipped.safetensors else ""
        click.echo(f"skipped {skipped.files} files that are not GGUF{converted}", err=True)


def _ask(bar: ProgressBar, taken: NameTaken) -> bool:
    """Ask at the terminal whether to register the file as the next version of a taken name."""
    question = f"The name {taken.name} is taken by another file, {taken.taken_by}. Register this file as version"
    with bar.hidden():
        return click.confirm(plain(f"{question} {taken.version}?"), default=False, err=True)


def _sources(paths: tuple[str, ...], hf_cache: bool) -> list[ModelSource]:
    from organs.ingest.sources import find_hub_sources, find_sources

    if not paths and not hf_cache:
        raise click.UsageError("give a FILE or --hf-cache")
    sources = find_sources(paths)
    if hf_cache:
        cache = hub_cache()
        cached = find_hub_sources(cache)
        if not cached and not sources:
            raise BadSource(f"{cache}: no GGUF file in the Hugging Face cache")
        sources += cached
    return sources


def hub_cache() -> Path:
    """Return the folder of the Hugging Face cache, by the environment variables of its tools."""
    if hub := os.environ.get("HF_HUB_CACHE"):
        return Path(hub)
    return _hub_home() / "hub"


def _hub_home() -> Path:
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser()


def _hub_token() -> str | None:
    """Return the token of the Hugging Face tools: HF_TOKEN, or the file that `hf auth login` writes."""
    if token := os.environ.get("HF_TOKEN", "").strip():
        return token
    path = Path(os.environ.get("HF_TOKEN_PATH") or _hub_home() / "token").expanduser()
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
    with RangeClient() as client:
        yield Hub(client, endpoint, _hub_token())


def _preview(sources: list[ModelSource], *, as_json: bool, quiet: bool) -> int:
    from organs.ingest.service import Outcome

    failures: list[OrganError] = []
    for source in sources:
        try:
            tensors, size = _count_contents(source)
        except OrganError as error:
            failures.append(error)
            _print_ingested(Outcome(source, None, error), as_json=as_json, quiet=quiet)
            continue
        if as_json:
            about = {"file": source.locations[0], "model": str(source.name), "organs": tensors, "size_bytes": size}
            print_json_line(about | {"new": None, "error": None})
        elif quiet:
            click.echo(str(source.name))
        else:
            click.echo(f"{plain(source.label)}: would be {source.name}, {tensors} tensors, {size_text(size)}")
    return exit_status(failures, len(sources))


def _count_contents(source: ModelSource) -> tuple[int, int]:
    """Return the tensors and bytes of all files of `source`, which is checked as for an ingest; raises BadInput."""
    from organs.ingest.sources import open_files

    with ExitStack() as opened:
        headers = [file.header for file in open_files(opened, source)]
    return sum(len(header.tensors) for header in headers), sum(header.file_size_bytes for header in headers)


def _print_ingested(outcome: Outcome, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json_line(_ingested_values(outcome))
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
        click.echo(f"{report.model}: already registered, {healed}")
    else:
        sizes = f"{size_text(report.new_bytes)} new, stored in {size_text(report.stored_bytes)}"
        click.echo(f"{report.model}: {report.organs} organs, {sizes}, {report.seconds:.1f} s")
        for flag in report.flags:
            click.echo(f"  note: {plain(flag)}", err=True)
    if report is not None:
        for warning in report.warnings:
            click.echo(f"  warning: {plain(warning)}", err=True)
        for note in report.notes:
            click.echo(f"  note: {plain(note)}", err=True)


def _sentence(outcome: Outcome) -> str:
    """Return the reason for a refusal, and what to do."""
    error = outcome.error
    if isinstance(error, NameTaken):
        return (
            f"{outcome.source.label}: {error}; give --new-version to add it as version {error.version}, or --name for "
            "another name"
        )
    return str(error)


def _ingested_values(outcome: Outcome) -> dict[str, Any]:
    report = outcome.report
    values = {} if report is None else asdict(report)
    return {
        "file": outcome.source.locations[0],
        "model": None if report is None else report.model,
        "organs": None if report is None else report.organs,
        "new": None if report is None else report.new_blobs,
        "error": None if outcome.error is None else _sentence(outcome),
    } | values


_EXPLAINED = (
    "θ is the shape of the distribution of a tensor's values: 0° uniform, about 34° Gaussian (also untrained), 90° "
    "heavy tails. The spectral signal is the share of a matrix that is a pattern across rows and columns: 0.000 for "
    "random values. Neither tells how good a model is."
)


@click.command(cls=OriginalSpellings, spellings={"--model": "paths", "--dir": "paths"})
@click.argument("paths", nargs=-1, metavar="[FILE]...")
@click.option("--missing", is_flag=True, help="Measure the organs in the registry that lack a measure; give no FILE.")
@click.option("--tensors", is_flag=True, help="Print one row for each tensor instead of one row for each type.")
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
@click.option("--dry-run", is_flag=True, help="Print how many bytes would be read; read only the headers.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each model, with every measure.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV: one row for each tensor, with every measure.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the mean θ and the file.")
def measure(
    paths: tuple[str, ...],
    missing: bool,
    tensors: bool,
    patterns: tuple[str, ...],
    kinds: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    as_csv: bool,
    quiet: bool,
) -> int:
    """Measure GGUF files without registering them. The command opens no registry.

    FILE is a GGUF file, a folder of GGUF files, a quoted pattern, or any shard of a split model. The measures are the
    same as those of `organ ingest`. If a file is refused, the command continues with the next, and the exit status is
    1. The exit status is also 1 if --tensor and --type match no tensor.

    FILE can also be an address: https://HOST/FILE.gguf, or hf://NAMESPACE/NAME[/FILE][@REVISION] for a model in the
    Hugging Face hub. Then only the headers and a sample of each tensor are downloaded, less than 1% of a large model.
    An interrupted measurement continues when you run the command again. HF_TOKEN and HF_ENDPOINT are used as by `hf`.

    With --missing, the command works on the registry instead of files. Use it after an update of the program: it adds
    the measures that older versions did not have, and changes no existing measure. You can interrupt it and run it
    again.
    """
    from organs.ingest.sources import find_sources
    from organs.ingest.urls import is_url

    if missing:
        if paths or tensors or patterns or kinds or as_csv or dry_run:
            raise click.UsageError("--missing takes no FILE; only --json and -q can be used with it")
        return _measure_missing(as_json=as_json, quiet=quiet)
    if not paths:
        raise click.UsageError("Missing argument 'FILE...'")
    if as_json + as_csv + quiet + tensors > 1:
        raise click.UsageError("--tensors, --json, --csv and -q exclude each other")
    form = "json" if as_json else "csv" if as_csv else "quiet" if quiet else "tensors" if tensors else "types"

    def wanted(name: str, place: Place) -> bool:
        fits = not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
        return fits and (not kinds or place.type.value in kinds)

    with ExitStack() as opened:
        hub = opened.enter_context(hub_of_environment()) if any(map(is_url, paths)) else None
        sources = find_sources(paths, "measure", hub)
        if dry_run:
            return _print_plans(sources, wanted, as_json=as_json)
        measured, failed = _measure_sources(sources, wanted, form)
    if not measured and not failed and (patterns or kinds):
        click.echo("organ: no tensor matches --tensor and --type", err=True)
        return 1
    return 1 if failed else 0


def _measure_sources(sources: list[ModelSource], wanted: Wanted, form: str) -> tuple[int, int]:
    """Measure and print `sources`; return how many have measured tensors, and how many failed."""
    if form == "csv":
        click.echo(sheet_lines([_csv_keys()]), nl=False)
    failed = measured = 0
    for number, source in enumerate(sources, 1):
        label = f"measure {number}/{len(sources)}"
        outcome = _measured(source, wanted, label, quiet=form not in ("tensors", "types"))
        failed += outcome.error is not None
        measured += outcome.model is not None and bool(outcome.model.tensors)
        _print_measured(outcome, form)
    if form in ("tensors", "types") and measured:
        click.echo(in_lines(_EXPLAINED), err=True)
    return measured, failed


def _print_plans(sources: list[ModelSource], wanted: Wanted, *, as_json: bool) -> int:
    """Print what a measurement of each source would read."""
    from organs.ingest.measuring import plan_reads

    failures: list[OrganError] = []
    for source in sources:
        try:
            plan = plan_reads(source, wanted)
        except OrganError as error:
            failures.append(error)
            click.echo(f"organ: {plain(error)}", err=True)
            continue
        if as_json:
            print_json_line({"file": source.locations[0], "files": list(source.locations)} | asdict(plan))
            continue
        share = f" ({plan.read_bytes / plan.size_bytes:.2%})" if plan.size_bytes else ""
        known = f", {plan.known_tensors:,} of them measured before" if plan.known_tensors else ""
        reads = "requests" if source.remote else "reads"
        click.echo(
            f"{plain(source.label)}: {plan.tensors:,} tensors{known}; would read {size_text(plan.read_bytes)} of "
            f"{size_text(plan.size_bytes)}{share} in {plan.reads:,} {reads}"
        )
    return exit_status(failures, len(sources))


def _measure_missing(*, as_json: bool, quiet: bool) -> int:
    from organs.registry.upkeep import measure_missing  # with the catalog, which files do not need

    examined = 0

    def count_organs(count: int) -> None:
        nonlocal examined
        examined += count
        say(f"{examined:,} organs")

    with local_registry() as registry, status_line("measure", quiet=quiet or as_json) as say:
        report = measure_missing(registry.catalog, registry.blobs, count_organs)
    if as_json:
        print_json(report)
    elif not quiet:
        click.echo(f"{report.measured:,} organs measured" if examined else "every organ has all measures")
    if report.unreadable:
        click.echo(f"organ: the bytes of {report.unreadable:,} organs cannot be read; run organ verify", err=True)
    return CorruptBlob.exit_code if report.unreadable else 0


def _measured(source: ModelSource, wanted: Wanted, label: str, *, quiet: bool) -> MeasureOutcome:
    """Measure `source`. Its progress bar ends before anything is printed."""
    from organs.ingest.measuring import measure_all
    from organs.ingest.sources import source_size_bytes

    if source.remote:
        return _measured_remote(source, wanted, label, quiet=quiet)
    with progress_bar(label, source_size_bytes(source), quiet=quiet) as advance:
        (outcome,) = measure_all([source], wanted, advance)
    return outcome


def _measured_remote(source: ModelSource, wanted: Wanted, label: str, *, quiet: bool) -> MeasureOutcome:
    """Measure files on a server; print how much was downloaded."""
    from organs.ingest.measuring import measure_all

    client = source.remote[0].hub.client
    requests, received_bytes, begin = client.requests, client.received_bytes, time.monotonic()
    done_bytes = 0

    def downloaded() -> str:
        return f"{size_text(client.received_bytes - received_bytes)} in {client.requests - requests:,} requests"

    with status_line(label, quiet=quiet) as say:

        def advance(size_bytes: int) -> None:
            nonlocal done_bytes
            done_bytes += size_bytes
            say(f"{size_text(done_bytes)} measured, downloaded {downloaded()}")

        (outcome,) = measure_all([source], wanted, advance)
    if not quiet:
        click.echo(f"{plain(source.label)}: downloaded {downloaded()}, {time.monotonic() - begin:.0f} s", err=True)
    return outcome


def _print_measured(outcome: MeasureOutcome, form: str) -> None:
    from organs.registry.reports.statistics import mean_of

    if form == "json":
        print_json_line(_measured_values(outcome))
    elif outcome.model is None:
        if outcome.error is not None and os.environ.get(DEBUG_VARIABLE):
            raise outcome.error
        click.echo(f"organ: {plain(outcome.error)}", err=True)
    elif form == "csv":
        _print_rows(outcome, outcome.model)
    elif form == "quiet":
        theta = mean_of(tensor.measurement.theta for tensor in outcome.model.tensors)
        click.echo(f"{'-' if theta is None else f'{theta:.2f}'}\t{plain(_file(outcome))}")
    else:
        _print_tables(outcome, outcome.model, every=form == "tensors")


def _file(outcome: MeasureOutcome) -> str:
    return outcome.source.locations[0]


def _print_tables(outcome: MeasureOutcome, model: MeasuredModel, *, every: bool) -> None:
    from organs.registry.reports.statistics import mean_of

    theta = mean_of(tensor.measurement.theta for tensor in model.tensors)
    content = (
        f"{count_text(model.parameters)} parameters in {model.tensor_count} tensors, {size_text(model.size_bytes)}"
    )
    click.echo(f"{plain(outcome.source.label)}: {plain(model.architecture or 'no architecture')}, {content}")
    if not model.tensors:
        click.echo("no tensor matches --tensor and --type\n" if model.tensor_count else "nothing to measure\n")
        return
    chosen = "" if len(model.tensors) == model.tensor_count else f" of the {len(model.tensors)} selected tensors"
    matrices = [tensor.measurement.theta for tensor in model.tensors if tensor.measurement.spectral_signal is not None]
    part = f"; of the {len(matrices)} matrices alone: {theta_text(mean_of(matrices))}" if matrices else ""
    click.echo(f"mean θ{chosen}: {theta_text(theta)}{part}\n")
    if every:
        print_table(_TENSOR_COLUMNS, [_tensor_row(tensor) for tensor in model.tensors], _NUMBERS)
    else:
        print_table(_TYPE_COLUMNS, [_type_row(kind) for kind in _types(model)], _NUMBERS)
    click.echo()


def _types(model: MeasuredModel) -> list[dict[str, Any]]:
    """Return one row for each type, in the order of their names."""
    from organs.registry.reports.statistics import distribution_of, mean_of

    groups: dict[str, list[MeasuredTensor]] = {}
    for tensor in model.tensors:
        groups.setdefault(tensor.place.type.value, []).append(tensor)
    rows: list[dict[str, Any]] = []
    for kind, group in sorted(groups.items()):
        spread = distribution_of(tensor.measurement.theta for tensor in group if tensor.measurement.theta is not None)
        rows.append(
            {
                "type": kind,
                "tensors_count": len(group),
                "size_bytes": sum(tensor.size_bytes for tensor in group),
                "measured_count": spread.count,
                "mean_theta_degrees": spread.mean,
                "minimum_theta_degrees": spread.minimum,
                "maximum_theta_degrees": spread.maximum,
                "mean_spectral_signal": mean_of(tensor.measurement.spectral_signal for tensor in group),
            }
        )
    return rows


def _type_row(kind: dict[str, Any]) -> tuple[object, ...]:
    return (
        kind["type"],
        kind["tensors_count"],
        size_text(kind["size_bytes"]),
        theta_text(kind["mean_theta_degrees"]),
        theta_text(kind["minimum_theta_degrees"]),
        theta_text(kind["maximum_theta_degrees"]),
        share_text(kind["mean_spectral_signal"]),
    )


def _tensor_row(tensor: MeasuredTensor) -> tuple[object, ...]:
    reading = tensor.measurement
    notes = [f"{reading.nan_count} NaN"] if reading.nan_count else []
    if reading.infinite_count:
        notes.append(f"{reading.infinite_count} infinite")
    if reading.reason and (reading.constant or reading.theta is None):
        notes.append(reading.reason)
    return (
        tensor.name,
        tensor.place.type.value,
        tensor.dtype,
        _shape(tensor),
        theta_text(reading.theta),
        share_text(reading.magnitude),
        share_text(reading.spectral_signal),
        ", ".join(notes),
    )


def _shape(tensor: MeasuredTensor) -> str:
    return "x".join(map(str, tensor.shape))


def _measured_values(outcome: MeasureOutcome) -> dict[str, Any]:
    from organs.registry.reports.statistics import mean_of

    model = outcome.model
    about: dict[str, Any] = {
        "file": _file(outcome),
        "files": list(outcome.source.locations),
        "error": None if outcome.error is None else str(outcome.error),
    }
    if model is None:
        return about
    return about | {
        "architecture": model.architecture,
        "title": model.title,
        "size_bytes": model.size_bytes,
        "tensors_count": model.tensor_count,
        "parameters_count": model.parameters,
        "mean_theta_degrees": mean_of(tensor.measurement.theta for tensor in model.tensors),
        "matrix_mean_theta_degrees": mean_of(
            tensor.measurement.theta for tensor in model.tensors if tensor.measurement.spectral_signal is not None
        ),
        "mean_signal": mean_of(tensor.measurement.signal for tensor in model.tensors),
        "mean_spectral_signal": mean_of(tensor.measurement.spectral_signal for tensor in model.tensors),
        "types": _types(model),
        "tensors": [_tensor_values(tensor) for tensor in model.tensors],
    }


def _tensor_values(tensor: MeasuredTensor) -> dict[str, Any]:
    place, reading = tensor.place, tensor.measurement
    values: dict[str, Any] = {
        "tensor": tensor.name,
        "type": place.type.value,
        "tower": place.tower.value,
        "block": place.block,
        "slot": place.slot,
        "dtype": tensor.dtype,
        "shape": _shape(tensor),
        "elements_count": tensor.elements,
        "size_bytes": tensor.size_bytes,
    }
    values |= {_RENAMED.get(name, name): getattr(reading, name) for name in _measures()}
    return values | {"fingerprint": None if reading.fingerprint is None else reading.fingerprint.hex()}


def _print_rows(outcome: MeasureOutcome, model: MeasuredModel) -> None:
    keys = _csv_keys()
    rows = ({"file": _file(outcome)} | _tensor_values(tensor) for tensor in model.tensors)
    cells = ([plain(row[key]) if isinstance(row[key], str) else row[key] for key in keys] for row in rows)
    click.echo(sheet_lines(cells), nl=False)


_NUMBERS = ("tensors", "size", "mean θ", "lowest θ", "highest θ", "θ", "|Z|", "spectral")
_TYPE_COLUMNS = ("type", "tensors", "size", "mean θ", "lowest θ", "highest θ", "spectral")
_TENSOR_COLUMNS = ("tensor", "type", "dtype", "shape", "θ", "|Z|", "spectral", "note")
_RENAMED = {"theta": "theta_degrees", "sample_size": "sample_count"}


def _measures() -> list[str]:
    """Return the members of a measurement that are printed."""
    from organs.registry.measure import Measurement

    return [field.name for field in fields(Measurement) if field.name != "fingerprint"]


def _csv_keys() -> list[str]:
    place = ("file", "tensor", "type", "tower", "block", "slot", "dtype", "shape", "elements_count", "size_bytes")
    return [*place, *(_RENAMED.get(name, name) for name in _measures())]


@click.command(cls=OriginalSpellings, spellings={"--model": "model", "--dir": "output"})
@click.argument("model", metavar="FILE|MODEL")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The folder to create."
)
@click.option("--force", is_flag=True, help="Replace an existing organ directory and all files in it.")
@click.option("--json", "as_json", is_flag=True, help="Print a report as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print the folder's path only.")
def extract(model: str, output: Path, force: bool, as_json: bool, quiet: bool) -> None:
    """Split a model into the organ directory DIR: a manifest.json, and one file for each tensor.

    FILE is a GGUF file or any shard of a split model. It does not have to be registered. MODEL is a registered model;
    its bytes are checked while they are read. If the command fails, it leaves no incomplete DIR.

    You can edit the organs in DIR. `organ assemble DIR` writes the GGUF file again; without edits it is identical to
    the original. `organ ingest DIR` registers it.

    A model of a remote registry is first downloaded to the folder that contains DIR. The downloaded files are deleted
    at the end.
    """
    from organs.ingest.directory.extract import extract as write_directory

    quiet_bars = quiet or as_json
    with ExitStack() as opened:
        contents = _contents(opened, model, output, force=force, quiet=quiet_bars)
        total = sum(content.header.file_size_bytes for content in contents)
        with progress_bar("extract", total, quiet=quiet_bars) as advance:
            report = write_directory(contents, output, force=force, progress=advance)
    _print_extracted(report, output, as_json=as_json, quiet=quiet)


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
            hint = "this is a folder, and no registered model has this name: give one GGUF file of the folder"
        raise BadSource(f"{model}: {hint}") from error


def _print_extracted(report: ExtractReport, output: Path, *, as_json: bool, quiet: bool) -> None:
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
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="OUT", help="The file or folder to write."
)
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
                    click.echo(f"  note: {plain(note)}", err=True)
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
        click.echo(f"{plain(result['file'])}: {size_text(size)}{digest}; {verb} {proof}")
