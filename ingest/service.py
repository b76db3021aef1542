"""Ingest of models from their files to their rows, with a report for each; and publication of a hidden model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, false
from sqlalchemy.orm import Session

from organs.ingest.bases import base_by_name, local_base
from organs.ingest.dissect import DissectedFile, OpenGguf, TensorCount, check_tensor_sizes, dissect, read_front
from organs.ingest.files import FileSource
from organs.ingest.hashing import Stages, merged_stages
from organs.ingest.peft import read_config
from organs.ingest.pipeline import Gathered, Pipeline
from organs.ingest.records import StoredFront, model_record, nonfinite_flags, nonfinite_tensors, set_flags, split_record
from organs.ingest.removal import Removal, check_removable
from organs.ingest.sources import (
    GGUF_SUFFIX,
    ModelSource,
    in_order,
    notes_of,
    open_headers,
    open_unordered,
    source_size_bytes,
)
from organs.ingest.spool import spooled, stated_digest
from organs.ingest.tasks import BUFFERS, Measurer, Progress
from organs.ingest.tools.facts import add_facts, check_stated, known_model, leads_to
from organs.ingest.tools.places import hub_cache, this_machine
from organs.registry.assembly import FileStream, plan_file, stored_header
from organs.registry.catalog.queries.model_contents import (
    files_of,
    ingest_reports,
    nonfinite_organs,
    organ_sizes_of,
    parts_of,
)
from organs.registry.catalog.queries.model_names import (
    check_model_name,
    has_file,
    has_visible_model_of_size,
    incomplete_model,
    incompleteness,
    model_by_name,
    model_of_other_name,
    newest_reachable,
    next_version,
    visible_model_with_file,
)
from organs.registry.catalog.records import ModelRecord
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.model_changes import remove_model, show_model
from organs.registry.catalog.register.models import (
    Registered,
    add_shard,
    complete_model,
    existing_model,
    record_known_files,
    register_model,
)
from organs.registry.catalog.register.organs import (
    detach_ingests,
    end_ingest,
    recorded_ingest,
)
from organs.registry.catalog.tables import ModelFileRow, ModelRow
from organs.registry.digest import Digest, digest_of
from organs.registry.entities.base import prepared
from organs.registry.errors import DiskFull, NameTaken, OrganError, StoreUnwritable
from organs.registry.gguf import read_header
from organs.registry.gguf.split import (
    SPLIT_COUNT_KEY,
    SPLIT_NUMBER_KEY,
    check_shards,
    is_shard,
    parse_shard_name,
)
from organs.registry.interface import Registry
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.relatives import record_relatives, resolve_declared, settle_sources


def publish_model(session: Session, model: ModelRow, by: str) -> None:
    """Publish a quarantined or yanked model, find its relatives, and resolve declared parents from and to it.

    While a model is hidden, neither its own ingest nor that of a later model does this. A visible model is left
    unchanged. Raises Conflict for a removed model.
    """
    if model.state == "visible":
        return
    show_model(session, model, by)
    record_relatives(session, model)
    resolve_declared(session, model)


@dataclass(frozen=True, slots=True)
class IngestReport:
    """The result of one ingest: sizes in bytes, counts, and the time of each stage (seconds and MB/s of one thread)."""

    model: str
    digest: Digest
    created: bool
    organs: int
    new_blobs: int
    size_bytes: int
    new_bytes: int
    known_bytes: int
    stored_bytes: int
    healed_blobs: int
    seconds: float
    stages: dict[str, dict[str, float]]
    flags: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Notes on the source, not the model: an organ directory whose organs were edited."""
    nonfinite: dict[str, int] = field(default_factory=dict)
    """Number of NaN or infinite values by tensor."""
    incomplete: str = ""
    """The sentence about the missing shards of an incomplete model; empty for a complete one."""
    missing: tuple[int, ...] = ()
    """The numbers of the missing shards, from 1; the first ones of a long list."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on faults that make the model useless or dangerous."""
        return tuple(nonfinite_flags(self.nonfinite))


NewVersion = Callable[[NameTaken], bool]
"""Returns whether a model becomes the next version of a name that has other bytes. False refuses the model."""


def never(_taken: NameTaken) -> bool:
    """Refuse every model whose name is taken."""
    return False


def always(_taken: NameTaken) -> bool:
    """Let a model become the next version of a name that is taken."""
    return True


def _keep_record(record: ModelRecord) -> ModelRecord:
    return record


def _ignore_model(_model: ModelRow) -> None:
    """Do nothing with the model."""


Stored = Callable[[DissectedFile, int, Digest], None]
"""Called with a file, the id of its model and its SHA-256, after the transaction that registers it."""


def keep_file(_file: DissectedFile, _model_id: int, _sha256: Digest) -> None:
    """Do nothing with the file."""


@dataclass(frozen=True, slots=True)
class Intake:
    """The settings of one ingest."""

    label: str
    """The source, for messages."""
    name: ModelName
    keep_name: bool = True
    """Whether the same bytes under another name become another model."""
    new_version: NewVersion = never
    """Decides about the next version of a name that is taken."""
    settle: Callable[[ModelRecord], ModelRecord] = _keep_record
    """Checks and completes the record before it is registered."""
    registered: Callable[[ModelRow], None] = _ignore_model
    """Called with the model, in the transaction that registers it or finds an existing one."""
    measurer: Measurer | None = None
    """Measures the tensors; None: this process."""
    buffers: int = BUFFERS
    """Number of buffers of 4 MiB that the ingest can use."""
    stored: Stored = keep_file
    """Called for each file when it is stored. Shards are stored one at a time, unless it is `keep_file`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one source: a report, or the error."""

    source: ModelSource
    report: IngestReport | None
    error: OrganError | None
    removed: tuple[Path, ...] = ()
    """Files that were removed because their bytes are stored and proved."""
    kept: tuple[str, ...] = ()
    """Sentences on files that were to be removed and are still there."""
    stored: tuple[str, ...] = ()
    """The names of the files that were stored, also if a later shard of the model was refused."""


def ingest_all(
    registry: LocalRegistry,
    sources: Iterable[ModelSource],
    name: ModelName | None = None,
    progress: Progress | None = None,
    new_version: NewVersion = never,
    *,
    delete_after: bool = False,
) -> Iterator[Outcome]:
    """Ingest `sources` one after another; an error does not stop the next one. `name` is for a single source.

    `new_version` decides about a model whose name is taken by another file: see `ingest_model`. With `delete_after`,
    each file is removed when its stored bytes have been read back (`ingest.removal`).
    Raises DiskFull and StoreUnwritable, which would stop the other sources as well.
    """
    for source in sources:
        yield _outcome(registry, source, name, progress, new_version, delete_after=delete_after)


def _outcome(
    registry: LocalRegistry,
    source: ModelSource,
    name: ModelName | None,
    progress: Progress | None,
    new_version: NewVersion,
    *,
    delete_after: bool,
) -> Outcome:
    removal = Removal(registry, is_named=name is not None)
    stored: list[str] = []

    def finish(file: DissectedFile, model_id: int, sha256: Digest) -> None:
        stored.append(file.source.name)
        if delete_after:
            removal.remove(file, model_id, sha256)

    report, failure = None, None
    try:
        if delete_after:
            check_removable(source)
        report = ingest_model(registry, source, name, progress, new_version, stored=finish)
    except (DiskFull, StoreUnwritable):
        raise
    except OrganError as error:
        failure = error
    return Outcome(source, report, failure, tuple(removal.removed), tuple(removal.kept), tuple(stored))


def ingest_model(
    registry: LocalRegistry,
    source: ModelSource,
    name: ModelName | None = None,
    progress: Progress | None = None,
    new_version: NewVersion = never,
    *,
    stored: Stored = keep_file,
) -> IngestReport:
    """Split one model into organs, store and measure them, and register the model.

    Its name is `name`, or that of its file. Ingesting the same bytes again changes nothing. Other bytes under an
    existing name become its next version if `new_version` returns True (`always`, or a function that asks a person).
    It is called before anything is stored if the sizes differ, else before the model is registered.

    A split model may lack shards: those that are there are stored, and the model is incomplete until the last one is
    ingested. Files on a server are fetched one at a time (`ingest.spool`).

    Raises BadInput for invalid files, NameTaken, StoreError if the store cannot be written; then nothing is registered,
    except shards that were stored before. After an interruption, the next run continues.
    """
    source = with_base(registry, source)
    progress = progress or _no_progress
    intake = Intake(
        source.label,
        name or source.name,
        keep_name=name is not None,
        new_version=new_version,
        settle=partial(check_stated, source),
        stored=stored,
    )
    with registry.catalog.reading() as session:
        check_model_name(session, intake.name)
    if source.remote:
        return _ingest_remote(registry, source, intake, progress)
    known = known_model(registry, source) if source.tool and name is None else None
    if known is not None:
        report = _unread_report(registry, known)
        progress(report.size_bytes)
    else:
        report = _ingest_local(registry, source, intake, progress)
    if name is not None or report.incomplete:
        return report
    renamed = add_facts(registry, source, report.model)
    notes = (f"renamed from {report.model}",) if renamed != report.model else ()
    if not source.tool and leads_to(registry, source.name, renamed):
        notes = (*notes, f"{source.name} is another name of {renamed}: the same bytes")
    return replace(report, model=renamed, notes=(*report.notes, *notes))


def _ingest_local(registry: LocalRegistry, source: ModelSource, intake: Intake, progress: Progress) -> IngestReport:
    """Read the files of `source`, which are on this machine, and ingest them."""
    stages = Stages()
    with ExitStack() as opened:
        with stages.timed("open"):
            files = open_unordered(opened, source)
        if not _comes_by_shards(registry, source, files, intake):
            return ingest_files(registry, in_order(source.name.name, files), intake, progress, stages)
    shards = _ShardIngest(registry, intake, progress)
    for path in source.paths:
        with FileSource(path) as file:  # one at a time, so that a file that is removed frees its disk
            shards.add(dissect(file))
    return shards.report()


def with_base(registry: Registry | None, source: ModelSource) -> ModelSource:
    """Return the source of a PEFT folder with the base that it names.

    It is described by a file beside the adapter or in the cache of the Hugging Face tools, or else registered.
    """
    if source.adapter is None or source.base is not None:
        return source
    stated = read_config(source.adapter).base_text
    base = local_base(stated, source.adapter, hub_cache(this_machine()))
    if base is None and registry is not None:
        base = base_by_name(registry, stated)
    return replace(source, base=base)


def ingest_files(
    registry: LocalRegistry,
    files: Sequence[DissectedFile],
    intake: Intake,
    progress: Progress | None = None,
    stages: Stages | None = None,
) -> IngestReport:
    """Ingest the open files of one model, in order; raises the errors of `ingest_model` and of `settle`."""
    names = _NameCheck(registry, intake)
    return _ingest_whole(registry, files, intake, progress or _no_progress, stages or Stages(), names)


def _ingest_whole(
    registry: LocalRegistry,
    files: Sequence[DissectedFile],
    intake: Intake,
    progress: Progress,
    stages: Stages,
    names: _NameCheck,
) -> IngestReport:
    names.check_size(sum(file.header.file_size_bytes for file in files))
    with recorded_ingest(registry.catalog, intake.label) as ingest_id:
        report, model_id, gathered = _ingest(registry, files, ingest_id, intake, stages, progress, names)
    if report.created:
        with suppress(OrganError):  # the model is registered; the next repack tries again
            settle_sources(registry.catalog, registry.blobs, [model_id])
    for index, file in enumerate(files):
        intake.stored(file, model_id, gathered.files[index].file)
    return report


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that an ingest would store."""

    name: str
    size_bytes: int
    tensors: int
    shards: int
    """The number of files of the complete model."""
    is_stored: bool
    """Whether a model has a file with its SHA-256, if a hub states it, or else with its size, header and samples.

    A file on a server is then not fetched; an ingest of a local file reads all of it.
    """


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model that an ingest would register, or that is registered already."""

    name: str
    files: tuple[PlannedFile, ...]
    taken: NameTaken | None
    """Why the ingest would ask for a new version, or refuse the model; None if it would not."""


def plan_model(registry: LocalRegistry, source: ModelSource, name: ModelName | None = None) -> PlannedModel:
    """Return what `ingest_model` would do without a new version; only headers and samples are read.

    Raises BadInput, and Unreachable for files on a server.
    """
    source = with_base(registry, source)
    intake = Intake(source.label, name or source.name, keep_name=name is not None)
    names, shards = _NameCheck(registry, intake), _ShardIngest(registry, intake, _no_progress)
    with registry.catalog.reading() as session:
        check_model_name(session, intake.name)
    with ExitStack() as opened:
        files: Sequence[OpenGguf] = open_headers(opened, source) if source.remote else open_unordered(opened, source)
        by_shards = any(is_shard(file.header) for file in files) and not any(path.is_dir() for path in source.paths)
        if by_shards:
            check_shards(intake.name.name, [(file.source.path.name, file.header) for file in files])
        else:
            files = in_order(intake.name.name, files)
        reports = [shards.stored_model(file, stated_digest(file.source)) for file in files]
        taken = None
        try:
            for file, report in zip(files, reports, strict=True):
                if report is None and by_shards:
                    shards.check(file, is_new=True)
                elif report is None:
                    names.check()
        except NameTaken as error:
            taken = error
        stored = None if None in reports else reports[0]
        planned = tuple(_planned(file, report is not None) for file, report in zip(files, reports, strict=True))
        return PlannedModel(str(intake.name) if stored is None else stored.model, planned, taken)


def _planned(file: OpenGguf, is_stored: bool) -> PlannedFile:
    header = file.header
    return PlannedFile(file.source.path.name, header.file_size_bytes, len(header.tensors), _count(file), is_stored)


def total_bytes(sources: Sequence[ModelSource]) -> int:
    """Return the bytes to read, for progress; unreadable files count as 0."""
    return sum(source_size_bytes(source) for source in sources)


def _ingest(
    registry: LocalRegistry,
    files: Sequence[DissectedFile],
    ingest_id: int,
    intake: Intake,
    stages: Stages,
    progress: Progress,
    names: _NameCheck,
) -> tuple[IngestReport, int, Gathered]:
    """Return the report, the id of the model, and the digests of its files."""
    pipeline = Pipeline(registry, ingest_id, files, stages, progress, intake.measurer, intake.buffers)
    gathered = pipeline.run()
    for file in files:
        file.source.check_unchanged()
    record = intake.settle(model_record(intake.name, files, gathered))
    names.check_digest(record)
    with registry.catalog.writing() as session:
        names.check_again(session, record)
        with stages.timed("register"):
            registered = register_model(session, record, keep_name=intake.keep_name)
        if registered.created and registered.model.state == "visible":
            with stages.timed("relatives"):  # in this transaction: of two concurrent models, the second finds the first
                record_relatives(session, registered.model)
                resolve_declared(session, registered.model)
        intake.registered(registered.model)
        _record_read(session, files, gathered)
        report = _report(registered, len(record.placements), files, gathered, stages)
        model_id = registered.model.id
        end_ingest(session, ingest_id, "finished", json.dumps(asdict(report)), model_id)
    return report, model_id, gathered


def _report(
    registered: Registered, organs: int, files: Sequence[DissectedFile], gathered: Gathered, stages: Stages
) -> IngestReport:
    model = registered.model
    return IngestReport(
        model=model.full_name,
        digest=Digest(model.digest),
        created=registered.created,
        organs=organs,
        new_blobs=gathered.new_blobs,
        size_bytes=sum(file.header.file_size_bytes for file in files),
        new_bytes=gathered.new_bytes,
        known_bytes=gathered.known_bytes,
        stored_bytes=gathered.stored_bytes,
        healed_blobs=gathered.healed_blobs,
        seconds=round(stages.wall_seconds, 4),
        stages=stages.summary(),
        flags=tuple(dict.fromkeys(flag for file in files for flag in (*file.flags, *file.unassemblable)))
        + tuple(set_flags([file.header for file in files])),
        notes=notes_of(
            files, {index: gathered_file.file for index, gathered_file in gathered.files.items()}, gathered.digests
        ),
        nonfinite=nonfinite_tensors(files, gathered),
    )


def _no_progress(_size_bytes: int) -> None:
    """Ignore progress."""


def _comes_by_shards(
    registry: LocalRegistry, source: ModelSource, files: Sequence[DissectedFile], intake: Intake
) -> bool:
    """Return whether `files` are shards that are stored one at a time. Raises BadSplit if they do not fit together."""
    if not any(is_shard(file.header) for file in files) or any(path.is_dir() for path in source.paths):
        return False
    order = check_shards(source.name.name, [(file.source.path.name, file.header) for file in files])
    with registry.catalog.reading() as session:
        is_begun = incomplete_model(session, intake.name) is not None
    return is_begun or len(order.shards) < order.count or intake.stored is not keep_file


SAMPLES, SAMPLE_BYTES = 16, 4096
"""The ranges by which a file on a server is compared with a stored one if the server does not state its SHA-256."""


def _shard_file_name(name: str, model: ModelName, number: int, count: int) -> str:
    """Return the file name of shard `number`, from 0: `name` if it says so, else a name by convention."""
    parsed = parse_shard_name(name)
    is_usual = parsed is not None and (parsed.number, parsed.count) == (number + 1, count)
    return name if is_usual else f"{model.name}-{number + 1:05d}-of-{count:05d}{GGUF_SUFFIX}"


class _ShardIngest:
    """Ingests shards of one model one after another, each with a transaction of its own.

    A shard joins the incomplete model of its name, or begins it. The last shard makes the model visible.
    """

    def __init__(self, registry: LocalRegistry, intake: Intake, progress: Progress) -> None:
        self._registry, self._intake, self._progress = registry, intake, progress
        self._names = _NameCheck(registry, intake)
        self._reports: list[IngestReport] = []

    def check(self, file: OpenGguf, *, is_new: bool = False) -> None:
        """Check the header of a shard before its bytes are read: its name, and the shards that are stored.

        With `is_new`, no model has the shard yet. Raises NameTaken, BadSplit, TooManyTensors.
        """
        matches = (false(),) if is_new else same_header(file)
        with self._registry.catalog.reading() as session:
            model = incomplete_model(session, self._intake.name)
            if model is not None:
                self._check_fits(session, model, file, matches)
                return
            is_known = self._visible(session, file, *matches) is not None
        check_shards(self._intake.name.name, [(file.source.path.name, file.header)])
        if not is_known:
            self._names.check()

    def stored_model(self, file: OpenGguf, sha256: Digest | None) -> IngestReport | None:
        """Return a report without new bytes if the shard is stored, else None.

        It is recognized by its SHA-256, or if that is None, by its size, its header and samples of its bytes.
        """
        matches = same_header(file) if sha256 is None else (ModelFileRow.sha256 == sha256,)
        with self._registry.catalog.reading() as session:
            model = incomplete_model(session, self._intake.name) or self._visible(session, file, *matches)
            if model is None or not has_file(session, model.id, _number(file), *matches):
                return None
            if sha256 is None and not self._has_same_samples(session, model, file):
                return None
            return _known_report(session, model, file)

    def _has_same_samples(self, session: Session, model: ModelRow, file: OpenGguf) -> bool:
        """Return whether SAMPLES ranges of bytes, spread over `file`, are equal to the stored ones."""
        row = next(row for row in files_of(session, model.id) if row.position == _number(file))
        end = max(0, row.size_bytes - SAMPLE_BYTES)
        offsets = sorted({end * index // (SAMPLES - 1) for index in range(SAMPLES)})
        spans = [(offset, min(SAMPLE_BYTES, row.size_bytes - offset)) for offset in offsets]
        for (offset, size), found in zip(spans, file.source.read_ranges(spans), strict=True):
            with FileStream(self._registry.blobs, plan_file(session, row, offset, offset + size), workers=1) as stream:
                if b"".join(map(bytes, stream)) != found:
                    return False
        return True

    def skip(self, report: IngestReport) -> None:
        """Count a shard that is stored already."""
        self._reports.append(report)
        self._progress(report.size_bytes)

    def add(self, file: DissectedFile) -> None:
        """Store, measure and register a shard; raises BadInput, NameTaken, StoreError."""
        stages = Stages()
        self.check(file)
        with recorded_ingest(self._registry.catalog, file.source.name) as ingest_id:
            intake = self._intake
            pipeline = Pipeline(
                self._registry, ingest_id, [file], stages, self._progress, intake.measurer, intake.buffers
            )
            gathered = pipeline.run()
            file.source.check_unchanged()
            record = intake.settle(model_record(intake.name, [file], gathered))
            with self._registry.catalog.writing() as session:
                registered = self._register(session, file, record, stages)
                report = own = _report(registered, len(record.placements), [file], gathered, stages)
                if registered.model.state == "incomplete":
                    report = own = _with_missing(session, registered.model, own)
                elif registered.created:
                    report = _whole_report(session, registered.model, own)
                    own = replace(own, flags=report.flags, nonfinite=report.nonfinite)
                    detach_ingests(session, registered.model.id)
                model_id = registered.model.id
                _record_read(session, [file], gathered)
                end_ingest(session, ingest_id, "finished", json.dumps(asdict(own)), model_id)
        self._reports.append(report)
        intake.stored(file, model_id, gathered.files[0].file)

    def report(self) -> IngestReport:
        """Return the report on the model after the last shard: on all of its shards if this run completed it."""
        last = self._reports[-1]
        added = [report for report in self._reports if report.created]
        completed = [report for report in added if not report.incomplete]
        if completed:
            return completed[-1]
        return replace(merged_report(added or self._reports), incomplete=last.incomplete, missing=last.missing)

    def _register(self, session: Session, file: DissectedFile, record: ModelRecord, stages: Stages) -> Registered:
        """Add the shard to its model, and complete the model with its last shard."""
        (shard,) = record.files
        number, count = _number(file), _count(file)
        model = incomplete_model(session, record.name)
        if model is None:
            known = self._visible(session, file, ModelFileRow.sha256 == shard.sha256)
            if known is not None:
                return Registered(known, created=False)
            self._names.refuse_taken(session)
        else:
            same = (ModelFileRow.sha256 == shard.sha256,)
            if has_file(session, model.id, number, *same):
                return Registered(model, created=False)
            self._check_fits(session, model, file, same)
        named = replace(shard, name=_shard_file_name(shard.name, record.name, number, count))
        with stages.timed("register"):
            model = add_shard(session, replace(record, files=(named,)), number, count)
        _check_organs(session, model)
        rows = files_of(session, model.id)
        if len(rows) < count:
            return Registered(model, created=True)
        with stages.timed("register"):
            whole = split_record(record.name, self._stored_fronts(session, rows), nonfinite_organs(session, model.id))
            existing = existing_model(session, whole, self._intake.keep_name)
            if existing is not None:  # it was ingested as a whole meanwhile
                reason = f"all shards arrived, and they are the same files as {existing.full_name}"
                remove_model(session, model, reason, LOCAL)
                return Registered(existing, created=False)
            complete_model(session, model, whole)
        with stages.timed("relatives"):
            record_relatives(session, model)
            resolve_declared(session, model)
        return Registered(model, created=True)

    def _visible(self, session: Session, file: OpenGguf, *matches: ColumnElement[bool]) -> ModelRow | None:
        name = self._intake.name if self._intake.keep_name else None
        return visible_model_with_file(session, name, _number(file), _count(file), *matches)

    def _check_fits(
        self, session: Session, model: ModelRow, file: OpenGguf, same: Sequence[ColumnElement[bool]]
    ) -> None:
        """Check a shard with the stored shards of `model`, except the one with its number that has the `same` values.

        Raises BadSplit, TooManyTensors.
        """
        is_same = has_file(session, model.id, _number(file), *same)
        rows = [row for row in files_of(session, model.id) if not (is_same and row.position == _number(file))]
        stored = [(f"the stored {row.name}", stored_header(session, self._registry.blobs, row).header) for row in rows]
        shards = [*stored, (file.source.path.name, file.header)]
        check_shards(model.full_name, shards)
        check_tensor_sizes(model.full_name, (tensor.size_bytes for _, header in shards for tensor in header.tensors))

    def _stored_fronts(self, session: Session, rows: Sequence[ModelFileRow]) -> list[StoredFront]:
        fronts = []
        for row in rows:
            front = read_front(stored_header(session, self._registry.blobs, row).source)
            odd_padding = any(part.offset_bytes >= row.header_bytes for part in parts_of(session, row.id))
            fronts.append(StoredFront(front, odd_padding, Digest(row.sha256)))
        return fronts


def _number(file: OpenGguf) -> int:
    """Return the number of a file in its model, from 0."""
    return (file.header.integer(SPLIT_NUMBER_KEY) or 0) if is_shard(file.header) else 0


def _count(file: OpenGguf) -> int:
    """Return the number of files of the complete model."""
    return (file.header.integer(SPLIT_COUNT_KEY) or 1) if is_shard(file.header) else 1


def same_header(file: OpenGguf) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that a ModelFile has the size and the header of `file`."""
    digest = digest_of(file.source.read_at(0, file.header.end))
    return ModelFileRow.header_sha256 == digest, ModelFileRow.size_bytes == file.header.file_size_bytes


def _check_organs(session: Session, model: ModelRow) -> None:
    """Check the number of repeated organs in all shards of a model; raises TooManyTensors."""
    count = TensorCount(model.full_name)
    for organ_id, size_bytes in organ_sizes_of(session, model.id):
        count.add(organ_id, size_bytes)


def _with_missing(session: Session, model: ModelRow, report: IngestReport) -> IngestReport:
    error = incompleteness(session, model)
    return replace(report, incomplete=str(error), missing=error.missing)


def _known_report(session: Session, model: ModelRow, file: OpenGguf) -> IngestReport:
    """Return the report on a file that is stored already and was not read."""
    size_bytes = file.header.file_size_bytes
    report = IngestReport(
        model=model.full_name,
        digest=Digest(model.digest),
        created=False,
        organs=len(file.header.tensors),
        new_blobs=0,
        size_bytes=size_bytes,
        new_bytes=0,
        known_bytes=size_bytes,
        stored_bytes=0,
        healed_blobs=0,
        seconds=0.0,
        stages={},
        flags=(),
    )
    return _with_missing(session, model, report) if model.state == "incomplete" else report


def _whole_report(session: Session, model: ModelRow, last: IngestReport) -> IngestReport:
    """Return the report on a model whose `last` shard was added, with the sums of the ingests of all its shards."""
    earlier = []
    for text in ingest_reports(session, model.id):
        with suppress(msgspec.DecodeError):  # another version of this program wrote it
            earlier.append(msgspec.json.decode(text, type=prepared(IngestReport)))
    report = merged_report([*(report for report in earlier if report.created), last])
    flags = [*model.flags, *model.unassemblable]
    counts = nonfinite_organs(session, model.id)
    warnings = set(nonfinite_flags(counts))
    return replace(
        report,
        flags=tuple(dict.fromkeys(flag for flag in flags if flag not in warnings)),
        nonfinite=counts,
        incomplete="",
        missing=(),
    )


_SUMS = ("organs", "new_blobs", "size_bytes", "new_bytes", "known_bytes", "stored_bytes", "healed_blobs")


def merged_report(reports: Sequence[IngestReport]) -> IngestReport:
    """Return the report on several shards of one model: the last one, with the sums of all."""
    sums: dict[str, Any] = {name: sum(getattr(report, name) for report in reports) for name in _SUMS}
    return replace(
        reports[-1],
        created=any(report.created for report in reports),
        seconds=round(sum(report.seconds for report in reports), 4),
        stages=merged_stages([report.stages for report in reports]),
        flags=tuple(dict.fromkeys(flag for report in reports for flag in report.flags)),
        notes=tuple(dict.fromkeys(note for report in reports for note in report.notes)),
        nonfinite={name: count for report in reports for name, count in report.nonfinite.items()},
        **sums,
    )


def _unread_report(registry: LocalRegistry, name: ModelName) -> IngestReport:
    """Return the report on a registered model whose files were not read again."""
    with registry.catalog.reading() as session:
        model = model_by_name(session, name)
        return IngestReport(
            model=model.full_name,
            digest=Digest(model.digest),
            created=False,
            organs=model.tensors,
            new_blobs=0,
            size_bytes=model.size_bytes,
            new_bytes=0,
            known_bytes=model.size_bytes,
            stored_bytes=0,
            healed_blobs=0,
            seconds=0.0,
            stages={},
            flags=(),
        )


def _record_read(session: Session, files: Sequence[DissectedFile], gathered: Gathered) -> None:
    """Record the SHA-256 of files on this machine, so that the same files of a tool need not be read again."""
    digests = {
        stamp: gathered.files[index].file
        for index, file in enumerate(files)
        if isinstance(file.source, FileSource) and (stamp := file.source.stamp) is not None
    }
    record_known_files(session, digests)


def _ingest_remote(registry: LocalRegistry, source: ModelSource, intake: Intake, progress: Progress) -> IngestReport:
    """Fetch the files of `source` one at a time, ingest each, and remove it before the next one is fetched."""
    names, shards = _NameCheck(registry, intake), _ShardIngest(registry, intake, progress)
    for remote in source.remote:
        served = OpenGguf(file := remote.open(), read_header(file))
        stated_sha256 = stated_digest(file)
        stored = shards.stored_model(served, stated_sha256)
        if stored is not None:
            shards.skip(stored)
            continue
        is_whole = len(source.remote) == 1 and not is_shard(served.header)
        if is_whole:
            names.check()
        else:
            shards.check(served, is_new=True)
        with spooled(registry.settings.spool, remote, file, stated_sha256, progress) as copy:
            dissected = dissect(copy)
            if is_whole:
                return _ingest_whole(registry, [dissected], intake, progress, Stages(), names)
            shards.add(dissected)
    return shards.report()


class _NameCheck:
    """Asks once whether a model can become the next version of an existing name. Raises NameTaken."""

    def __init__(self, registry: LocalRegistry, intake: Intake) -> None:
        self._registry, self._intake = registry, intake
        self._allowed_over: int | None = None
        """The id of the newest version that was allowed."""

    def check_size(self, size_bytes: int) -> None:
        """Ask before anything is stored, unless a file of the same size is registered: then only the digest decides."""
        with self._registry.catalog.reading() as session:
            taken = None if has_visible_model_of_size(session, size_bytes) else self._find_taken(session)
        self._ask(taken)

    def check_digest(self, record: ModelRecord) -> None:
        """Ask before the model is registered, unless it already is."""
        with self._registry.catalog.reading() as session:
            taken = None if existing_model(session, record, self._intake.keep_name) else self._find_taken(session)
        self._ask(taken)

    def check_again(self, session: Session, record: ModelRecord) -> None:
        """Refuse a model whose name was taken meanwhile: the transaction that registers it cannot ask."""
        if existing_model(session, record, self._intake.keep_name) is None:
            self.refuse_taken(session)

    def check(self) -> None:
        """Ask before the first shard of a model, or a file on a server, is stored."""
        with self._registry.catalog.reading() as session:
            taken = self._find_taken(session)
        self._ask(taken)

    def refuse_taken(self, session: Session) -> None:
        """Refuse a name that was taken after the question."""
        if taken := self._find_taken(session):
            newest, error = taken
            if newest != self._allowed_over and self._intake.new_version is not always:
                raise error

    def _find_taken(self, session: Session) -> tuple[int, NameTaken] | None:
        newest = newest_reachable(session, self._intake.name) or model_of_other_name(session, self._intake.name)
        if newest is None:
            return None
        name, version = self._intake.name, next_version(session, self._intake.name)
        return newest.id, NameTaken(f"{name.namespace}/{name.name}", newest.full_name, version)

    def _ask(self, taken: tuple[int, NameTaken] | None) -> None:
        if taken is None or taken[0] == self._allowed_over:
            return
        if not self._intake.new_version(taken[1]):
            raise taken[1]
        self._allowed_over = taken[0]
