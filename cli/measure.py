"""`organ measure`: measure GGUF files without registering them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from organs.cli.console import (
    first_of,
    is_attended,
    is_confirmed,
    is_quiet,
    output_options,
    plain,
    print_failure,
    print_json,
    print_json_line,
    print_remark,
    print_sentence,
    prints_json,
    progress_bar,
    status_line,
)
from organs.cli.hints import exit_status, print_error
from organs.cli.inputs import download_line, hub_of_environment, may_be_registered
from organs.cli.options import flag, original_spelling
from organs.cli.registries import local_registry
from organs.cli.tables import print_table
from organs.registry.amounts import count_text, size_text, theta_text
from organs.registry.anatomy import Component, Place
from organs.registry.catalog.vocabulary import ORGAN_TYPES
from organs.registry.columns import CellKind, Column
from organs.registry.errors import BadInput, CorruptBlob, Incomplete, NotFound, OrganError
from organs.registry.names import ModelName, parse_model_name
from organs.registry.reports.formats import sheet_lines
from organs.registry.settings import DEBUG_VARIABLE

if TYPE_CHECKING:
    from organs.ingest.measuring import (
        MeasuredModel,
        MeasuredTensor,
        MeasureOptions,
        MeasureOutcome,
        ReadPlan,
    )
    from organs.ingest.sources import ModelSource
    from organs.ingest.urls import Hub
    from organs.registry.entities.report import ReportTable
    from organs.registry.reports.groups import TensorReading

MEASURED_TABLES = ("types", "components", "blocks", "wells")
"""The tables of `organ report` that `organ measure` also has."""
PLAIN_COMPONENTS = frozenset(
    {
        Component.EMBEDDINGS,
        Component.ATTENTION,
        Component.DENSE,
        Component.NORMS,
        Component.ADAPTERS,
        Component.OTHER,
    }
)
"""Components that are the same as types of tensors."""
EXPLAINED = (
    "θ is the shape of the distribution of a tensor's values: 0° uniform, about 34° Gaussian (also untrained), 90° "
    "heavy tails. The spectral signal is the share of a matrix that is a pattern across rows and columns: 0.000 for "
    "random values. Neither tells how good a model is."
)
NO_TENSORS = "there are no tensors"
ASK_FROM_BYTES, ASK_FROM_REQUESTS = 1_000_000_000, 100_000
"""A download of more bytes or requests for --experts needs a confirmation."""
SHOWN_SHARDS = 10
"""The most numbers of missing shards in a message."""


@click.command()
@original_spelling("paths", "--model", "--dir")
@click.argument("paths", nargs=-1, metavar="[FILE]...")
@flag("--missing", "Measure the tensors in the registry that lack a measure; give no FILE.")
@click.option(
    "--table",
    "tables",
    multiple=True,
    type=click.Choice(MEASURED_TABLES),
    help="Print this table. Repeatable. [default: types; also components, if there are experts or latent attention]",
)
@flag("--tensors", "Print one row for each tensor instead of these tables.")
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
@flag("--experts", "Also measure each expert of each stack of experts, as a matrix.")
@flag("-y", "--yes", "Download without a question what --experts needs.")
@flag(
    "--delete-after",
    "Delete each shard on this machine when all its measurements are durable in the user's cache folder.",
)
@flag("--merge", "FILE is the output of --json: print one report of all these reports.")
@flag("--dry-run", "Print how many bytes would be read; read only the headers.")
@output_options(json="Print one line of JSON for each model, with every measure.")
@flag("--csv", "as_csv", "Print CSV: one row for each tensor, with every measure.")
@output_options(quiet="Print only the mean θ and the file.")
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
    as_csv: bool,
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
    from organs.ingest.measuring import MeasureOptions
    from organs.ingest.sources import ModelSource
    from organs.ingest.urls import is_url

    _check_usage(click.get_current_context().params)
    if missing:
        return _measure_missing()
    shown = ("tensors",) if tensors else tables
    if merge:
        return _print_merged(paths, shown, as_csv=as_csv)

    def wanted(name: str, place: Place) -> bool:
        fits = not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
        return fits and (not kinds or place.type.value in kinds)

    deleted: list[Path] = []
    options = MeasureOptions(wanted, experts, delete_after, deleted.append)
    is_table = not (prints_json() or as_csv or is_quiet())
    failures: list[OrganError] = []
    measured = 0
    with ExitStack() as opened:
        hub = opened.enter_context(hub_of_environment()) if any(map(is_url, paths)) else None
        names = [path for path in paths if may_be_registered(path)]
        sources = _measured_sources([path for path in paths if path not in names], hub)
        if names and (dry_run or experts or delete_after):
            option = "--dry-run" if dry_run else "--experts" if experts else "--delete-after"
            hint = f"; organ search 'model:{names[0]} expert>=0' lists its experts" if experts else ""
            raise click.UsageError(f"{option} is for files, and {names[0]} is not one{hint}")
        if dry_run:
            return _print_plans(sources, options)
        sources += [ModelSource((), parse_model_name(name)) for name in names]
        if as_csv:
            click.echo(sheet_lines([_csv_keys()]), nl=False)
        for number, source in enumerate(sources, 1):
            if source.remote and experts and not _accepts_cost(source, options, yes):
                failures.append(BadInput(f"{source.label}: not downloaded"))
                continue
            outcome = _measured(source, options, f"measure {number}/{len(sources)}", is_table)
            failures += [outcome.error] if outcome.error is not None else []
            measured += outcome.model is not None and bool(outcome.model.tensors)
            _print_measured(outcome, shown, as_csv=as_csv)
            if not is_quiet():
                for path in deleted:
                    print_remark(f"deleted {plain(path)}")
            deleted.clear()
            _print_journal(source, outcome, delete_after)
    if is_table and measured:
        print_remark(EXPLAINED)
    if not measured and not failures and (patterns or kinds):
        print_failure("no tensor matches --tensor and --type")
        return 1
    return exit_status(failures, len(sources))


def _check_usage(options: Mapping[str, Any]) -> None:
    """Raise UsageError for options that exclude each other; `options` has the parameters of the command."""
    from organs.ingest.urls import is_url

    selects, acts = ("patterns", "kinds"), ("experts", "delete_after", "dry_run")
    if options["missing"]:
        if any(options[name] for name in ("paths", "tables", "tensors", "as_csv", "merge", *selects, *acts)):
            raise click.UsageError("--missing takes no FILE; only --json and -q can be used with it")
        return
    if not options["paths"]:
        raise click.UsageError("Missing argument 'FILE...'")
    if sum(map(bool, (options["tables"], options["tensors"], options["as_csv"], prints_json(), is_quiet()))) > 1:
        raise click.UsageError("--table, --tensors, --json, --csv and -q exclude each other")
    if options["merge"] and any(options[name] for name in (*selects, *acts)):
        raise click.UsageError("only --table, --tensors, --json, --csv or -q can be used with --merge")
    if options["delete_after"] and (any(options[name] for name in selects) or any(map(is_url, options["paths"]))):
        raise click.UsageError("--delete-after is for all tensors of files on this machine")


def _measured_sources(paths: Sequence[str], hub: Hub | None) -> list[ModelSource]:
    """Return the models in `paths`, also split sets of which the named shard was measured and deleted."""
    from organs.ingest.measuring import find_measured_set
    from organs.ingest.service import with_base
    from organs.ingest.sources import find_sources

    sets = {path: found for path in paths if (found := find_measured_set(path)) is not None}
    others = []
    for source in find_sources([path for path in paths if path not in sets], "measure", hub):
        with suppress(BadInput):  # the measurement refuses an adapter folder without its base, with the reasons
            source = with_base(None, source)
        others.append(source)
    return [*dict.fromkeys(source for source in sets.values() if source not in others), *others]


def _accepts_cost(source: ModelSource, options: MeasureOptions, yes: bool) -> bool:
    """Print what the measurement of all experts of a model on a server costs; ask if it is much."""
    from organs.ingest.measuring import plan_reads

    plan = plan_reads(source, options)
    print_remark(_plan_text(source, plan))
    if yes or (plan.read_bytes <= ASK_FROM_BYTES and plan.reads <= ASK_FROM_REQUESTS):
        return True
    if not is_attended():
        raise click.UsageError("add -y to download this")
    return is_confirmed("Download this?")


def _print_journal(source: ModelSource, outcome: MeasureOutcome, delete_after: bool) -> None:
    """Print on stderr which shards of a set are missing, and where its measurements are kept."""
    from organs.ingest.measuring import set_journal_path

    model, journal = outcome.model, set_journal_path(source)
    if model is None or journal is None or not journal.is_file():
        return
    if model.missing_shards:
        measured = f"{len(model.files)} of {model.shard_count} shards were measured; missing: {_missing_text(model)}"
        print_remark(f"{plain(_label(outcome))}: incomplete: {measured}")
    if not is_quiet() and (model.missing_shards or delete_after):
        print_remark(f"the measurements are kept in {plain(journal)}; to forget them, delete this file")


def _missing_text(model: MeasuredModel) -> str:
    return first_of([f"{number:05d}" for number in model.missing_shards], SHOWN_SHARDS)


def _print_merged(paths: Sequence[str], tables: Sequence[str], *, as_csv: bool) -> int:
    """Print one report of all reports in `paths`, which are outputs of --json."""
    from organs.ingest.measuring import MeasureOutcome
    from organs.ingest.merging import merge_models, read_reports
    from organs.ingest.sources import ModelSource

    model = merge_models([(plain(path), model) for path in paths for model in read_reports(Path(path))])
    source = ModelSource(tuple(map(Path, paths)), ModelName("local", "merged"))
    if as_csv:
        click.echo(sheet_lines([_csv_keys()]), nl=False)
    _print_measured(MeasureOutcome(source, model, None), tables, as_csv=as_csv)
    if model.missing_shards:
        missing = f"{len(model.missing_shards)} of {model.shard_count} shards missing: {_missing_text(model)}"
        print_remark(f"incomplete: {missing}")
    return 0


def _print_plans(sources: list[ModelSource], options: MeasureOptions) -> int:
    """Print what a measurement of each source would read."""
    from organs.ingest.measuring import plan_reads

    failures: list[OrganError] = []
    for source in sources:
        try:
            plan = plan_reads(source, options)
        except OrganError as error:
            failures.append(error)
            print_failure(error)
            continue
        if prints_json():
            print_json_line({"file": source.locations[0], "files": list(source.locations)} | asdict(plan))
        else:
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


def _measure_missing() -> int:
    # with the catalog, which files do not need
    from organs.registry.catalog.queries.relatives import models_to_repack
    from organs.registry.relatives import measure_edges_again, settle_sources
    from organs.registry.upkeep import measure_missing

    examined = 0

    def count_organs(count: int) -> None:
        nonlocal examined
        examined += count
        say(f"{examined:,} tensors")

    with local_registry() as registry, status_line("measure") as say:
        report = measure_missing(registry.catalog, registry.blobs, count_organs)
        say("comparing relatives")
        measure_edges_again(registry.catalog)
        with registry.catalog.reading() as session:
            models = models_to_repack(session, everything=True)
        settle_sources(registry.catalog, registry.blobs, models)
    if prints_json():
        print_json(report)
    elif not is_quiet():
        if report.measured:
            click.echo(f"{report.measured:,} tensors measured")
        elif not report.unreadable:
            click.echo("every tensor has all measures that it can have")
    if report.unreadable:
        print_failure(f"the bytes of {report.unreadable:,} tensors cannot be read; run organ verify")
    return CorruptBlob.exit_code if report.unreadable else 0


def _measured(source: ModelSource, options: MeasureOptions, label: str, shows_progress: bool) -> MeasureOutcome:
    """Measure files, or read the stored measures of a registered model. Progress ends before anything is printed."""
    from organs.ingest.measuring import MeasureOutcome, journal_path, measure_model
    from organs.ingest.sources import source_size_bytes
    from organs.ingest.stored import stored_model

    if source.is_registered:
        with local_registry() as registry:
            try:
                name, model = stored_model(registry, source.name, options.wanted)
                return MeasureOutcome(replace(source, name=name), model, None)
            except Incomplete as error:
                return MeasureOutcome(source, None, error)
            except NotFound as error:
                return MeasureOutcome(source, None, NotFound(f"no such file, and {error}"))
            except OrganError as error:
                return MeasureOutcome(source, None, error)
    if source.remote:
        journal = journal_path(source.locations)
        if journal.is_file() and shows_progress:
            kept = f"an interrupted run has measurements in {plain(journal)}; to forget them, delete it"
            print_remark(kept)
        progress = download_line(source, label, "measured", quiet=not shows_progress)
    else:
        progress = progress_bar(label, source_size_bytes(source), quiet=not shows_progress)
    try:
        with progress as advance:
            return MeasureOutcome(source, measure_model(source, replace(options, progress=advance)), None)
    except OrganError as error:
        return MeasureOutcome(source, None, error)


def _print_measured(outcome: MeasureOutcome, tables: Sequence[str], *, as_csv: bool) -> None:
    from organs.registry.reports.groups import mean_of

    model = outcome.model
    if prints_json():
        print_json_line(_measured_values(outcome))
    elif model is None:
        assert outcome.error is not None, "without a model there is an error"
        if os.environ.get(DEBUG_VARIABLE):
            raise outcome.error
        print_error(outcome.error)
    elif as_csv:
        keys = _csv_keys()
        rows = ({"file": _locations(outcome)[0]} | _tensor_values(tensor) for tensor in _rows(model))
        cells = ([plain(row[key]) if isinstance(row[key], str) else row[key] for key in keys] for row in rows)
        click.echo(sheet_lines(cells), nl=False)
    elif is_quiet():
        theta = mean_of(tensor.measurement.theta for tensor in model.tensors)
        click.echo(f"{'-' if theta is None else f'{theta:.2f}'}\t{plain(_locations(outcome)[0])}")
    else:
        _print_tables(outcome, model, tables)


def _locations(outcome: MeasureOutcome) -> list[str]:
    """Return the paths or addresses of the measured files, also of deleted ones; of the source if there are none."""
    files = () if outcome.model is None else outcome.model.files
    return [file.location for file in files] or list(outcome.source.locations)


def _label(outcome: MeasureOutcome) -> str:
    first, *others = _locations(outcome)
    return first + (f" and {len(others)} more shards" if others else "")


def _print_tables(outcome: MeasureOutcome, model: MeasuredModel, tables: Sequence[str]) -> None:
    from organs.registry.measures import THETA_LEGEND
    from organs.registry.reports.formats import columns_and_rows
    from organs.registry.reports.groups import matrix_theta, mean_of

    content = (
        f"{count_text(model.parameters)} parameters in {model.tensor_count} tensors, {size_text(model.size_bytes)}"
    )
    unknown = "architecture not known without shard 1" if 1 in model.missing_shards else "no architecture"
    print_sentence(f"{_label(outcome)}: {model.architecture or unknown}, {content}")
    if not model.tensors:
        click.echo("no tensor matches --tensor and --type\n" if model.tensor_count else "nothing to measure\n")
        return
    readings = list(map(_reading, model.tensors))
    theta = mean_of(reading.theta for reading in readings)
    chosen = "" if len(readings) == model.tensor_count else f" of the {len(readings)} selected tensors"
    matrices = sum(reading.is_matrix for reading in readings)
    part = f"; of the {matrices} matrices alone: {theta_text(matrix_theta(readings))}" if matrices else ""
    click.echo(f"mean θ{chosen}: {theta_text(theta)}{part}\n")
    if not tables:  # the components, if they are more than the types
        has_more = any(reading.component not in PLAIN_COMPONENTS for reading in readings)
        tables = ("types", "components") if has_more else ("types",)
    for name in tables:
        if name == "tensors":
            print_table(_TENSOR_COLUMNS, map(_tensor_values, _rows(model)))
        else:
            table = _table_of(name, readings)
            if table.items:
                print_table(*columns_and_rows(table))
            else:
                click.echo(table.before[0])
        click.echo()
    if any(reading.caution for reading in readings):
        print_remark(THETA_LEGEND)
    if model.experts and "tensors" not in tables:
        print_table(_STACK_COLUMNS, _stacks(model))
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
    from organs.registry.reports.groups import distribution_of, mean_of

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


def _table_of(name: str, readings: Sequence[TensorReading]) -> ReportTable:
    """Return the table `name` of MEASURED_TABLES."""
    from organs.registry.entities.report import ORGANS_DEFAULT
    from organs.registry.reports.groups import blocks_of, components_of, types_of, wells_of

    match name:
        case "components":
            return components_of(readings, before="", empty=NO_TENSORS)
        case "blocks":
            return blocks_of(readings, empty="no block has attention, feed-forward tensors or norms with a θ")
        case "wells":
            return wells_of(readings, ORGANS_DEFAULT)
        case _:
            return types_of(readings, before="", empty=NO_TENSORS)


def _reading(tensor: MeasuredTensor) -> TensorReading:
    from organs.registry.reports.groups import TensorReading

    return TensorReading(
        name=tensor.name,
        place=tensor.place,
        dtype=tensor.dtype,
        shape="x".join(map(str, tensor.shape)),
        elements=tensor.elements,
        size_bytes=tensor.size_bytes,
        theta=tensor.measurement.theta,
        spectral_signal=tensor.measurement.spectral_signal,
    )


def _note(tensor: Mapping[str, Any]) -> str:
    notes = [f"{tensor['nan_count']} NaN"] if tensor["nan_count"] else []
    notes += [f"{tensor['infinite_count']} infinite"] if tensor["infinite_count"] else []
    if tensor["reason"] and (tensor["constant"] or tensor["theta_degrees"] is None):
        notes.append(tensor["reason"])
    return ", ".join(notes)


_TENSOR_COLUMNS = (
    Column("tensor", shown=lambda row: row["tensor"] if row["expert"] is None else f"  expert {row['expert']}"),
    Column("type"),
    Column("dtype"),
    Column("shape"),
    Column("theta_degrees", "θ", CellKind.DEGREES),
    Column("magnitude", "|Z|", CellKind.SHARE),
    Column("spectral_signal", "spectral", CellKind.SHARE),
    Column("note", shown=_note),
)
_STACK_COLUMNS = (
    Column("tensor", "stack of experts"),
    Column("experts_count", "experts", CellKind.COUNT),
    Column("mean_theta_degrees", "mean θ", CellKind.DEGREES),
    Column("theta_standard_deviation", "spread", CellKind.DEGREES),
    Column("minimum_theta_degrees", "lowest θ", CellKind.DEGREES),
    Column("minimum_expert", "of expert", CellKind.COUNT),
    Column("maximum_theta_degrees", "highest θ", CellKind.DEGREES),
    Column("maximum_expert", "of expert", CellKind.COUNT),
    Column("mean_spectral_signal", "spectral", CellKind.SHARE),
)


def _measured_values(outcome: MeasureOutcome) -> dict[str, Any]:
    from organs.registry.reports.groups import matrix_theta, mean_of

    model, locations = outcome.model, _locations(outcome)
    about: dict[str, Any] = {
        "file": locations[0],
        "files": locations,
        "error": None if outcome.error is None else str(outcome.error),
    }
    if model is None:
        return about
    readings = list(map(_reading, model.tensors))
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
        "tensors": list(map(_tensor_values, model.tensors)),
        "stacks": _stacks(model),
        "experts": list(map(_tensor_values, model.experts)),
        "shards_count": model.shard_count,
        "missing_shards": list(model.missing_shards),
        "set_tensors_count": model.set_tensor_count,
        "shards": to_builtins(model.files),
    }


def _tensor_values(tensor: MeasuredTensor) -> dict[str, Any]:
    place, measurement, reading = tensor.place, tensor.measurement, _reading(tensor)
    values: dict[str, Any] = {
        "tensor": tensor.name,
        "expert": tensor.expert,
        "type": place.type.value,
        "tower": place.tower.value,
        "block": place.block,
        "slot": place.slot,
        "dtype": tensor.dtype,
        "shape": reading.shape,
        "elements_count": tensor.elements,
        "size_bytes": tensor.size_bytes,
    }
    values |= {name: getattr(measurement, member) for member, name in _measures().items()}
    values["theta_caution"] = reading.caution
    return values | {"fingerprint": None if measurement.fingerprint is None else measurement.fingerprint.hex()}


def _measures() -> dict[str, str]:
    """Return the members of a measurement that are printed, with their names in JSON and CSV."""
    from organs.ingest.merging import JSON_NAMES
    from organs.registry.measure import Measurement

    names = [member.name for member in fields(Measurement) if member.name != "fingerprint"]
    return {name: JSON_NAMES.get(name, name) for name in names}


def _csv_keys() -> list[str]:
    place = ("file", "tensor", "expert", "type", "tower", "block", "slot", "dtype", "shape")
    return [*place, "elements_count", "size_bytes", *_measures().values(), "theta_caution"]
