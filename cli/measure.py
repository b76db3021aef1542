"""`organ measure`."""

from __future__ import annotations

import os
from dataclasses import fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import click

from organs.cli.arguments import folder_registry
from organs.cli.console import in_lines, plain, print_json, print_json_line, print_table, progress_bar, status_line
from organs.registry.anatomy import Place
from organs.registry.catalog.vocabulary import ORGAN_TYPES
from organs.registry.errors import CorruptBlob
from organs.registry.present.text import count_text, share_text, size_text, theta_text
from organs.registry.present.values import Values
from organs.registry.reports.formats import sheet_lines
from organs.registry.settings import DEBUG_VARIABLE

if TYPE_CHECKING:
    from organs.ingest.measuring import MeasuredModel, MeasuredTensor, MeasureOutcome, Wanted
    from organs.ingest.sources import ModelSource

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
        _print(outcome, form)
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

    with folder_registry() as registry, status_line("measure", quiet=quiet or as_json) as say:
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


def _print(outcome: MeasureOutcome, form: str) -> None:
    from organs.registry.reports.statistics import mean_of

    if form == "json":
        print_json_line(_values(outcome))
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


def _types(model: MeasuredModel) -> list[Values]:
    """A row a type, in the order of their names."""
    from organs.registry.reports.statistics import mean_of, spread_of

    groups: dict[str, list[MeasuredTensor]] = {}
    for one in model.tensors:
        groups.setdefault(one.place.type.value, []).append(one)
    found: list[Values] = []
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


def _type_row(kind: Values) -> tuple[object, ...]:
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


def _values(outcome: MeasureOutcome) -> Values:
    from organs.registry.reports.statistics import mean_of

    model = outcome.model
    about: Values = {
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


def _tensor_values(one: MeasuredTensor) -> Values:
    place, reading = one.place, one.measurement
    values: Values = {
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
