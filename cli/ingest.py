"""`organ ingest` and `organ measure`: GGUF files into the registry, or measured only."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from organs.cli.arguments import local_registry
from organs.cli.console import (
    ProgressBar,
    exit_status,
    in_lines,
    plain,
    print_json,
    print_json_line,
    print_table,
    progress_bar,
    status_line,
)
from organs.registry.amounts import count_text, share_text, size_text, theta_text
from organs.registry.anatomy import Place
from organs.registry.catalog.vocabulary import ORGAN_TYPES
from organs.registry.errors import BadSource, CorruptBlob, NameTaken, OrganError
from organs.registry.names import parse_model_name
from organs.registry.reports.formats import sheet_lines
from organs.registry.settings import DEBUG_VARIABLE

if TYPE_CHECKING:
    from organs.ingest.measuring import MeasuredModel, MeasuredTensor, MeasureOutcome, Wanted
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
            _print_ingested(Outcome(source, None, error), as_json=as_json, quiet=quiet)
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


def _ingested_values(outcome: Outcome) -> dict[str, Any]:
    report = outcome.report
    values = {} if report is None else asdict(report)
    return {
        "file": str(outcome.source.paths[0]),
        "model": None if report is None else report.model,
        "organs": None if report is None else report.organs,
        "new": None if report is None else report.new_blobs,
        "error": None if outcome.error is None else _sentence(outcome),
    } | values


_EXPLAINED = (
    "θ tells how the numbers of a tensor are spread: 0° evenly, about 34° like a bell curve, near 90° a few strong "
    "ones among many weak. The spectral signal is the share of a pattern across rows and columns: 0.000 for random "
    "numbers. Neither says how good a model is."
)


@click.command()
@click.argument("paths", nargs=-1, metavar="[FILE]...")
@click.option("--missing", is_flag=True, help="Measure organs of the registry that lack a measure, without FILE.")
@click.option("--tensors", is_flag=True, help="List every tensor, not only the types.")
@click.option("--tensor", "patterns", multiple=True, metavar="PATTERN", help="Only tensors so named: '*norm*'.")
@click.option("--type", "kinds", multiple=True, type=click.Choice(ORGAN_TYPES), help="Only tensors of this type.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a model with every measure, a line each.")
@click.option("--csv", "as_csv", is_flag=True, help="A row a tensor with every measure.")
@click.option("-q", "--quiet", is_flag=True, help="Print mean θ and the file only.")
def measure(
    paths: tuple[str, ...],
    missing: bool,
    tensors: bool,
    patterns: tuple[str, ...],
    kinds: tuple[str, ...],
    as_json: bool,
    as_csv: bool,
    quiet: bool,
) -> int:
    """Measure GGUF files without registering them; no registry is opened.

    With --missing, measure the organs of the registry that were registered by an earlier version, which did not know
    all of today's measures; what is measured already stays as it is. It can be interrupted and run again.

    FILE is a file, a folder (searched through), a pattern, or any shard of a split set. A file that is refused is
    named and the others go on; the exit status is 1 then, and where --tensor and --type leave nothing to measure. The
    numbers are those that an ingest would record.
    """
    from organs.ingest.sources import find_sources

    if missing:
        if paths or tensors or patterns or kinds or as_csv:
            raise click.UsageError(
                "--missing is about the registry: it takes no FILE, and of the options --json and -q"
            )
        return _measure_missing(as_json=as_json, quiet=quiet)
    if not paths:
        raise click.UsageError("Missing argument 'FILE...'")
    if as_json + as_csv + quiet + tensors > 1:
        raise click.UsageError("--tensors, --json, --csv and -q exclude each other")
    form = "json" if as_json else "csv" if as_csv else "quiet" if quiet else "tensors" if tensors else "types"

    def wanted(name: str, place: Place) -> bool:
        fits = not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
        return fits and (not kinds or place.type.value in kinds)

    sources = find_sources(paths, "measure")
    if as_csv:
        click.echo(sheet_lines([_csv_keys()]), nl=False)
    failed = found = 0
    for number, source in enumerate(sources, 1):
        outcome = _measured(source, wanted, f"measure {number}/{len(sources)}", quiet=form not in ("tensors", "types"))
        failed += outcome.error is not None
        found += outcome.model is not None and bool(outcome.model.tensors)
        _print_measured(outcome, form)
    if form in ("tensors", "types") and found:
        click.echo(in_lines(_EXPLAINED), err=True)
    if not found and not failed and (patterns or kinds):
        click.echo("organ: no tensor is so named and of that type", err=True)
        return 1
    return 1 if failed else 0


def _measure_missing(*, as_json: bool, quiet: bool) -> int:
    from organs.registry.upkeep import measure_missing  # with the catalog, which files do not need

    looked_at = 0

    def tell(count: int) -> None:
        nonlocal looked_at
        looked_at += count
        say(f"{looked_at:,} organs")

    with local_registry() as registry, status_line("measure", quiet=quiet or as_json) as say:
        report = measure_missing(registry.catalog, registry.blobs, tell)
    if as_json:
        print_json(report)
    elif not quiet:
        click.echo(f"{report.measured:,} organs measured" if looked_at else "no organ lacks a measure")
    if report.unreadable:
        click.echo(f"organ: the bytes of {report.unreadable:,} organs cannot be read: organ verify", err=True)
    return CorruptBlob.exit_code if report.unreadable else 0


def _measured(source: ModelSource, wanted: Wanted, label: str, *, quiet: bool) -> MeasureOutcome:
    """What became of `source`. Its bar is gone when this returns, so that nothing is printed into it."""
    from organs.ingest.measuring import measure_all
    from organs.ingest.sources import source_size_bytes

    with progress_bar(label, source_size_bytes(source), quiet=quiet) as advance:
        (outcome,) = measure_all([source], wanted, advance)
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
        theta = mean_of(one.measurement.theta for one in outcome.model.tensors)
        click.echo(f"{'-' if theta is None else f'{theta:.2f}'}\t{plain(_file(outcome))}")
    else:
        _print_tables(outcome, outcome.model, every=form == "tensors")


def _file(outcome: MeasureOutcome) -> str:
    return str(outcome.source.paths[0])


def _print_tables(outcome: MeasureOutcome, model: MeasuredModel, *, every: bool) -> None:
    from organs.registry.reports.statistics import mean_of

    theta = mean_of(one.measurement.theta for one in model.tensors)
    content = (
        f"{count_text(model.parameters)} parameters in {model.tensor_count} tensors, {size_text(model.size_bytes)}"
    )
    click.echo(f"{plain(outcome.source.label)}: {plain(model.architecture or 'no architecture')}, {content}")
    if not model.tensors:
        click.echo("no tensor is so named and of that type\n" if model.tensor_count else "nothing to measure\n")
        return
    chosen = "" if len(model.tensors) == model.tensor_count else f" of the {len(model.tensors)} that were chosen"
    matrices = [one.measurement.theta for one in model.tensors if one.measurement.spectral_signal is not None]
    part = f"; of the {len(matrices)} matrices alone: {theta_text(mean_of(matrices))}" if matrices else ""
    click.echo(f"mean θ{chosen}: {theta_text(theta)}{part}\n")
    if every:
        print_table(_TENSOR_COLUMNS, [_tensor_row(one) for one in model.tensors], _NUMBERS)
    else:
        print_table(_TYPE_COLUMNS, [_type_row(kind) for kind in _types(model)], _NUMBERS)
    click.echo()


def _types(model: MeasuredModel) -> list[dict[str, Any]]:
    """A row a type, in the order of their names."""
    from organs.registry.reports.statistics import mean_of, spread_of

    groups: dict[str, list[MeasuredTensor]] = {}
    for one in model.tensors:
        groups.setdefault(one.place.type.value, []).append(one)
    found: list[dict[str, Any]] = []
    for kind, group in sorted(groups.items()):
        spread = spread_of(one.measurement.theta for one in group if one.measurement.theta is not None)
        found.append(
            {
                "type": kind,
                "tensors_count": len(group),
                "size_bytes": sum(one.size_bytes for one in group),
                "measured_count": spread.count,
                "mean_theta_degrees": spread.mean,
                "minimum_theta_degrees": spread.minimum,
                "maximum_theta_degrees": spread.maximum,
                "mean_spectral_signal": mean_of(one.measurement.spectral_signal for one in group),
            }
        )
    return found


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


def _tensor_row(one: MeasuredTensor) -> tuple[object, ...]:
    reading = one.measurement
    notes = [f"{reading.nan_count} NaN"] if reading.nan_count else []
    if reading.infinite_count:
        notes.append(f"{reading.infinite_count} infinite")
    if reading.reason and (reading.constant or reading.theta is None):
        notes.append(reading.reason)
    return (
        one.name,
        one.place.type.value,
        one.dtype,
        _shape(one),
        theta_text(reading.theta),
        share_text(reading.magnitude),
        share_text(reading.spectral_signal),
        ", ".join(notes),
    )


def _shape(one: MeasuredTensor) -> str:
    return "x".join(map(str, one.shape))


def _measured_values(outcome: MeasureOutcome) -> dict[str, Any]:
    from organs.registry.reports.statistics import mean_of

    model = outcome.model
    about: dict[str, Any] = {
        "file": _file(outcome),
        "files": [str(path) for path in outcome.source.paths],
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
        "mean_theta_degrees": mean_of(one.measurement.theta for one in model.tensors),
        "matrix_mean_theta_degrees": mean_of(
            one.measurement.theta for one in model.tensors if one.measurement.spectral_signal is not None
        ),
        "mean_signal": mean_of(one.measurement.signal for one in model.tensors),
        "mean_spectral_signal": mean_of(one.measurement.spectral_signal for one in model.tensors),
        "types": _types(model),
        "tensors": [_tensor_values(one) for one in model.tensors],
    }


def _tensor_values(one: MeasuredTensor) -> dict[str, Any]:
    place, reading = one.place, one.measurement
    values: dict[str, Any] = {
        "tensor": one.name,
        "type": place.type.value,
        "tower": place.tower.value,
        "block": place.block,
        "slot": place.slot,
        "dtype": one.dtype,
        "shape": _shape(one),
        "elements_count": one.elements,
        "size_bytes": one.size_bytes,
    }
    values |= {_RENAMED.get(name, name): getattr(reading, name) for name in _measures()}
    return values | {"fingerprint": None if reading.fingerprint is None else reading.fingerprint.hex()}


def _print_rows(outcome: MeasureOutcome, model: MeasuredModel) -> None:
    keys = _csv_keys()
    rows = ({"file": _file(outcome)} | _tensor_values(one) for one in model.tensors)
    cells = ([plain(row[key]) if isinstance(row[key], str) else row[key] for key in keys] for row in rows)
    click.echo(sheet_lines(cells), nl=False)


_NUMBERS = ("tensors", "size", "mean θ", "lowest θ", "highest θ", "θ", "|Z|", "spectral")
_TYPE_COLUMNS = ("type", "tensors", "size", "mean θ", "lowest θ", "highest θ", "spectral")
_TENSOR_COLUMNS = ("tensor", "type", "dtype", "shape", "θ", "|Z|", "spectral", "note")
_RENAMED = {"theta": "theta_degrees", "sample_size": "sample_count"}


def _measures() -> list[str]:
    """The members of a measurement that are printed."""
    from organs.registry.measure import Measurement

    return [field.name for field in fields(Measurement) if field.name != "fingerprint"]


def _csv_keys() -> list[str]:
    place = ("file", "tensor", "type", "tower", "block", "slot", "dtype", "shape", "elements_count", "size_bytes")
    return [*place, *(_RENAMED.get(name, name) for name in _measures())]
