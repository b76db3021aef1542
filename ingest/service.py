"""Ingest of models from their files to their rows, with a report for each; and publication of a hidden model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import ColumnElement, false
from sqlalchemy.orm import Session

from organs.ingest.adapted_base import base_by_name, local_base
from organs.ingest.cards import Card, add_card, read_card
from organs.ingest.checking import UNSAFE, file_findings, flags_of, front_findings, nonfinite_findings
from organs.ingest.dissect import (
    DissectedFile,
    OpenGguf,
    TensorCount,
    check_tensor_sizes,
    dissect,
    read_front,
)
from organs.ingest.hashing import Stages
from organs.ingest.peft import read_config
from organs.ingest.pipeline import BUFFERS, Gathered, Pipeline, Threads
from organs.ingest.records import model_record, nonfinite_tensors, record_of_fronts
from organs.ingest.removal import SourceFiles, check_removable
from organs.ingest.sources import (
    GGUF_SUFFIX,
    ModelSource,
    in_order,
    open_headers,
    open_unordered,
)
from organs.ingest.spool import spooled
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
from organs.registry.chat_templates import begin_trials
from organs.registry.digest import Digest, digest_of
from organs.registry.entities.base import prepared
from organs.registry.entities.finding import FileFinding
from organs.registry.errors import DiskFull, NameTaken, OrganError, StoreUnwritable
from organs.registry.gguf import read_header
from organs.registry.gguf.split import (
    SPLIT_COUNT_KEY,
    SPLIT_NUMBER_KEY,
    check_shards,
    is_shard,
    parse_shard_name,
)
from organs.registry.input_files import FileSource, sample_spans
from organs.registry.interface import Registry
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.progress import Progress, no_progress
from organs.registry.relatives import record_relatives, resolve_declared, settle_sources

if TYPE_CHECKING:
    from organs.ingest.contributions.inspection import Inspection


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
    new_blobs: int = 0
    size_bytes: int = 0
    new_bytes: int = 0
    known_bytes: int = 0
    stored_bytes: int = 0
    healed_blobs: int = 0
    seconds: float = 0.0
    stages: dict[str, dict[str, float]] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
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
        return tuple(item.text for item in nonfinite_findings(self.nonfinite))


NewVersion = Callable[[NameTaken], bool]
"""Returns whether a model becomes the next version of a name that has other bytes. False refuses the model."""


def never(_taken: NameTaken) -> bool:
    """Refuse every model whose name is taken."""
    return False


def always(_taken: NameTaken) -> bool:
    """Let a model become the next version of a name that is taken."""
    return True


OnStored = Callable[[DissectedFile, int, Digest], None]
"""Called with a file, the id of its model and its SHA-256, after the transaction that registers it."""


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
    settle: Callable[[ModelRecord], ModelRecord] = lambda record: record
    """Checks and completes the record before it is registered."""
    measurer: Inspection | None = None
    """The confined process that measures the tensors; None: this process."""
    buffers: int = BUFFERS
    """Number of buffers of 4 MiB that the ingest can use."""
    progress: Progress = no_progress
    stored: OnStored | None = None
    """Called for each file when it is stored. With it, `ingest_model` stores shards one at a time."""


@dataclass(frozen=True, slots=True)
class IngestOutcome:
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
    progress: Progress = no_progress,
    new_version: NewVersion = never,
    *,
    delete_after: bool = False,
    card: Card | None = None,
) -> Iterator[IngestOutcome]:
    """Ingest `sources` one after another; an error does not stop the next one. `name` is for a single source.

    `new_version` decides about a model whose name is taken by another file: see `ingest_model`. With `delete_after`,
    each file is removed when its stored bytes have been read back (`ingest.removal`). `card` replaces the description
    of the model; without it, a new model has that of its source.
    Raises DiskFull and StoreUnwritable, which would stop the other sources as well.
    """
    for source in sources:
        files = SourceFiles(registry, is_named=name is not None, removes=delete_after)
        report, failure = None, None
        try:
            if delete_after:
                check_removable(source)
            report = ingest_model(registry, source, name, progress, new_version, stored=files.add)
            report = _with_card(registry, source, report, card)
        except (DiskFull, StoreUnwritable):
            raise
        except OrganError as error:
            failure = error
        yield IngestOutcome(source, report, failure, tuple(files.removed), tuple(files.kept), tuple(files.stored))


def _with_card(registry: LocalRegistry, source: ModelSource, report: IngestReport, card: Card | None) -> IngestReport:
    """Give the model of `report` the card that was chosen, or the one of its source if it is new."""
    if report.incomplete or (card is None and not (report.created and source.card)):
        return report
    used = card if card is not None or source.card is None else read_card(source.card)
    lacking = None if used is None else add_card(registry, report.model, used, replaces=card is not None)
    if lacking is None:
        return report
    found = () if card is not None else (f"its card is {source.card}",)
    lacking = tuple(f"an image of its card is not shown: {reason}" for reason in lacking)
    return replace(report, notes=(*report.notes, *found, *lacking))


def ingest_model(
    registry: LocalRegistry,
    source: ModelSource,
    name: ModelName | None = None,
    progress: Progress = no_progress,
    new_version: NewVersion = never,
    *,
    stored: OnStored | None = None,
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
    intake = Intake(
        source.label,
        name or source.name,
        keep_name=name is not None,
        new_version=new_version,
        settle=partial(check_stated, source),
        progress=progress,
        stored=stored,
    )
    with registry.catalog.reading() as session:
        check_model_name(session, intake.name)
        known = known_model(session, source) if source.tool and name is None else None
        report = None if known is None else _unread_report(known, known.tensors, known.size_bytes)
    if source.remote:
        return _ingest_remote(registry, source, intake)
    if report is None:
        report = _ingest_local(registry, source, intake)
    else:
        progress(report.size_bytes)
    if name is not None or report.incomplete:
        return report
    renamed = add_facts(registry, source, report.model)
    notes = (f"renamed from {report.model}",) if renamed != report.model else ()
    if not source.tool and leads_to(registry, source.name, renamed):
        notes = (*notes, f"{source.name} is another name of {renamed}: the same bytes")
    return replace(report, model=renamed, notes=(*report.notes, *notes))


def _ingest_local(registry: LocalRegistry, source: ModelSource, intake: Intake) -> IngestReport:
    """Read the files of `source`, which are on this machine, and ingest them: together, or shards one at a time.

    Shards come one at a time if some are missing, if others are stored, or if each is reported as soon as it is stored.
    """
    stages = Stages()
    with ExitStack() as opened:
        with stages.timed("open"):
            files = open_unordered(opened, source)
        by_shards = _are_shards(source, files)
        if by_shards:
            order = check_shards(source.name.name, [(file.source.path.name, file.header) for file in files])
            with registry.catalog.reading() as session:
                is_begun = incomplete_model(session, intake.name) is not None
            by_shards = is_begun or len(order.shards) < order.count or intake.stored is not None
        if not by_shards:
            return ingest_files(registry, in_order(source.name.name, files), intake, stages)
    shards = _ShardIngest(registry, intake, _NameCheck(registry, intake))
    for path in source.paths:
        with FileSource(path) as file:  # one at a time, so that a file that is removed frees its disk
            shards.add(dissect(file))
    return shards.report()


def _are_shards(source: ModelSource, files: Sequence[OpenGguf]) -> bool:
    """Return whether `files` are shards in files of their own, not those of an organ directory."""
    return any(is_shard(file.header) for file in files) and not any(path.is_dir() for path in source.paths)


def with_base(registry: Registry | None, source: ModelSource) -> ModelSource:
    """Return the source of an adapter folder with the base that it names.

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
    stages: Stages | None = None,
    names: _NameCheck | None = None,
) -> IngestReport:
    """Ingest the open files of one model, in order; raises the errors of `ingest_model` and of `settle`."""
    names = names or _NameCheck(registry, intake)
    run = _IngestRun(registry, files, intake, stages or Stages())
    size_bytes = sum(file.header.file_size_bytes for file in files)
    # Ask before anything is stored, unless a file of the same size is registered: then only the digest decides.
    names.ask(lambda session: has_visible_model_of_size(session, size_bytes))
    with run.stored(intake.label) as record:

        def is_registered(session: Session) -> bool:
            return existing_model(session, record, intake.keep_name) is not None

        names.ask(is_registered)
        with registry.catalog.writing() as session:
            if not is_registered(session):
                names.refuse_taken(session)
            with run.stages.timed("register"):
                registered = register_model(session, record, keep_name=intake.keep_name)
            if registered.created and registered.model.state == "visible":
                run.link_relatives(session, registered.model)
            report = run.report(registered)
            run.end(session, report, registered.model)
            model_id = registered.model.id
    if report.created:
        with suppress(OrganError):  # the model is registered; the next repack tries again
            settle_sources(registry.catalog, registry.blobs, [model_id])
    run.tell_stored(model_id)
    return report


@dataclass(slots=True)
class _IngestRun:
    """One ingest of open files: its row in the catalog, and what it stores and measures."""

    registry: LocalRegistry
    files: Sequence[DissectedFile]
    intake: Intake
    stages: Stages
    gathered: Gathered = field(default_factory=Gathered)
    findings: Sequence[FileFinding] = ()
    """Findings on the files without their weights."""
    ingest_id: int = 0

    @contextmanager
    def stored(self, label: str) -> Iterator[ModelRecord]:
        """Add the row, store and measure everything, and give the block the record of the model.

        The block registers the model and calls `end`. An error, also of the block, is recorded in the row.
        """
        with recorded_ingest(self.registry.catalog, label) as self.ingest_id:
            intake = self.intake
            threads = Threads(self.registry, self.stages, intake.progress, intake.measurer, intake.buffers)
            pipeline = Pipeline(self.registry, self.ingest_id, self.files, self.stages, intake.progress, threads)
            requires_sandbox = self.registry.settings.requires_sandbox
            begin_trials(self.files[0].source, self.files[0].header, required=requires_sandbox)
            self.gathered = pipeline.run()
            self.findings = file_findings(self.files, requires_sandbox=requires_sandbox)
            for file in self.files:
                file.source.check_unchanged()
            yield intake.settle(model_record(intake.name, self.files, self.gathered, self.findings))

    def link_relatives(self, session: Session, model: ModelRow) -> None:
        """Find the relatives of a new model, in its transaction: of two concurrent ones, the second finds the first."""
        with self.stages.timed("relatives"):
            record_relatives(session, model)
            resolve_declared(session, model)

    def report(self, registered: Registered) -> IngestReport:
        """Return the report on the files."""
        model, files, gathered = registered.model, self.files, self.gathered
        unsafe = [item.sentence for item in self.findings if item.code == UNSAFE]
        return IngestReport(
            model=model.full_name,
            digest=Digest(model.digest),
            created=registered.created,
            organs=sum(len(file.header.tensors) for file in files),
            new_blobs=gathered.new_blobs,
            size_bytes=sum(file.header.file_size_bytes for file in files),
            new_bytes=gathered.new_bytes,
            known_bytes=gathered.known_bytes,
            stored_bytes=gathered.stored_bytes,
            healed_blobs=gathered.healed_blobs,
            seconds=round(self.stages.wall_seconds, 4),
            stages=self.stages.summary(),
            flags=(*flags_of(self.findings), *unsafe),
            notes=tuple(
                note
                for file, digests in zip(files, gathered.files, strict=True)
                for note in file.source.notes(digests.file, digests.pieces)
            ),
            nonfinite=nonfinite_tensors(files, gathered),
        )

    def end(self, session: Session, report: IngestReport, model: ModelRow) -> None:
        """Record the end of the ingest, and the digests of files, so that those of a tool need not be read again."""
        digests = {
            stamp: found.file
            for file, found in zip(self.files, self.gathered.files, strict=True)
            if isinstance(file.source, FileSource) and (stamp := file.source.stamp) is not None
        }
        record_known_files(session, digests)
        end_ingest(session, self.ingest_id, "finished", json.dumps(asdict(report)), model.id)

    def tell_stored(self, model_id: int) -> None:
        """Call `Intake.stored` for each file, after the transaction."""
        if self.intake.stored is not None:
            for file, found in zip(self.files, self.gathered.files, strict=True):
                self.intake.stored(file, model_id, found.file)


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
    shards = _ShardIngest(registry, intake, _NameCheck(registry, intake))
    with registry.catalog.reading() as session:
        check_model_name(session, intake.name)
    with ExitStack() as opened:
        files: Sequence[OpenGguf] = open_headers(opened, source) if source.remote else open_unordered(opened, source)
        by_shards = _are_shards(source, files)
        if by_shards:
            check_shards(intake.name.name, [(file.source.path.name, file.header) for file in files])
        else:
            files = in_order(intake.name.name, files)
        reports = [shards.stored_model(file, file.source.stated_sha256) for file in files]
        taken = None
        try:
            for file, report in zip(files, reports, strict=True):
                if report is None and by_shards:
                    shards.check(file, is_new=True)
                elif report is None:
                    shards.names.ask()
        except NameTaken as error:
            taken = error
        stored = None if None in reports else reports[0]
        planned = tuple(
            PlannedFile(
                file.source.path.name,
                file.header.file_size_bytes,
                len(file.header.tensors),
                _count(file),
                report is not None,
            )
            for file, report in zip(files, reports, strict=True)
        )
        return PlannedModel(str(intake.name) if stored is None else stored.model, planned, taken)


@dataclass(slots=True)
class _ShardIngest:
    """Ingests shards of one model one after another, each with a transaction of its own.

    A shard joins the incomplete model of its name, or begins it. The last shard makes the model visible.
    """

    registry: LocalRegistry
    intake: Intake
    names: _NameCheck
    reports: list[IngestReport] = field(default_factory=list)

    def check(self, file: OpenGguf, *, is_new: bool = False) -> None:
        """Check the header of a shard before its bytes are read: its name, and the shards that are stored.

        With `is_new`, no model has the shard yet. Raises NameTaken, BadSplit, TooManyTensors.
        """
        matches = (false(),) if is_new else _same_header(file)
        with self.registry.catalog.reading() as session:
            model = incomplete_model(session, self.intake.name)
            if model is not None:
                self._check_fits(session, model, file, matches)
                return
            is_known = self._visible(session, file, *matches) is not None
        check_shards(self.intake.name.name, [(file.source.path.name, file.header)])
        if not is_known:
            self.names.ask()

    def stored_model(self, file: OpenGguf, sha256: Digest | None) -> IngestReport | None:
        """Return a report without new bytes if the shard is stored, else None.

        It is recognized by its SHA-256, or if that is None, by its size, its header and samples of its bytes.
        """
        matches = _same_header(file) if sha256 is None else (ModelFileRow.sha256 == sha256,)
        with self.registry.catalog.reading() as session:
            model = incomplete_model(session, self.intake.name) or self._visible(session, file, *matches)
            if model is None or not has_file(session, model.id, _number(file), *matches):
                return None
            if sha256 is None:  # compare some ranges of bytes, spread over the file
                row = next(row for row in files_of(session, model.id) if row.position == _number(file))
                spans = sample_spans(row.size_bytes)
                for (offset, size), found in zip(spans, file.source.read_ranges(spans), strict=True):
                    plan = plan_file(session, row, offset, offset + size)
                    with FileStream(self.registry.blobs, plan, workers=1) as stream:
                        if b"".join(map(bytes, stream)) != found:
                            return None
            report = _unread_report(model, len(file.header.tensors), file.header.file_size_bytes)
            return _with_missing(session, model, report) if model.state == "incomplete" else report

    def skip(self, report: IngestReport) -> None:
        """Count a shard that is stored already."""
        self.reports.append(report)
        self.intake.progress(report.size_bytes)

    def add(self, file: DissectedFile) -> None:
        """Store, measure and register a shard; raises BadInput, NameTaken, StoreError."""
        self.check(file)
        run = _IngestRun(self.registry, [file], self.intake, Stages())
        with run.stored(file.source.name) as record, self.registry.catalog.writing() as session:
            registered = self._register(session, file, record, run)
            report = own = run.report(registered)
            if registered.model.state == "incomplete":
                report = own = _with_missing(session, registered.model, own)
            elif registered.created:
                report = _whole_report(session, registered.model, own)
                own = replace(own, flags=report.flags, nonfinite=report.nonfinite)
                detach_ingests(session, registered.model.id)
            run.end(session, own, registered.model)
            model_id = registered.model.id
        self.reports.append(report)
        run.tell_stored(model_id)

    def report(self) -> IngestReport:
        """Return the report on the model after the last shard: on all of its shards if this run completed it."""
        last = self.reports[-1]
        added = [report for report in self.reports if report.created]
        completed = [report for report in added if not report.incomplete]
        if completed:
            return completed[-1]
        return replace(_merged_report(added or self.reports), incomplete=last.incomplete, missing=last.missing)

    def _register(self, session: Session, file: DissectedFile, record: ModelRecord, run: _IngestRun) -> Registered:
        """Add the shard to its model, and complete the model with its last shard."""
        (shard,) = record.files
        number, count = _number(file), _count(file)
        model = incomplete_model(session, record.name)
        if model is None:
            known = self._visible(session, file, ModelFileRow.sha256 == shard.sha256)
            if known is not None:
                return Registered(known, created=False)
            self.names.refuse_taken(session)
        else:
            same = (ModelFileRow.sha256 == shard.sha256,)
            if has_file(session, model.id, number, *same):
                return Registered(model, created=False)
            self._check_fits(session, model, file, same)
        parsed = parse_shard_name(shard.name)
        if parsed is None or (parsed.number, parsed.count) != (number + 1, count):
            shard = replace(shard, name=f"{record.name.name}-{number + 1:05d}-of-{count:05d}{GGUF_SUFFIX}")
        with run.stages.timed("register"):
            model = add_shard(session, replace(record, files=(shard,)), number, count)
        tensors = TensorCount(model.full_name)
        for organ_id, size_bytes in organ_sizes_of(session, model.id):
            tensors.add(organ_id, size_bytes)
        rows = files_of(session, model.id)
        return Registered(model, created=True) if len(rows) < count else self._complete(session, model, rows, run)

    def _complete(self, session: Session, model: ModelRow, rows: Sequence[ModelFileRow], run: _IngestRun) -> Registered:
        """Make a model visible whose shards are all stored, unless it was ingested as a whole meanwhile."""
        stored = []
        for row in rows:
            source = stored_header(session, self.registry.blobs, row).source
            odd_padding = any(part.offset_bytes >= row.header_bytes for part in parts_of(session, row.id))
            stored.append((source, read_front(source), odd_padding))
        findings = front_findings(stored, requires_sandbox=self.registry.settings.requires_sandbox)
        fronts = [front for _, front, _ in stored]
        with run.stages.timed("register"):
            name = ModelName(model.namespace, model.name)
            digests = [Digest(row.sha256) for row in rows]
            whole = record_of_fronts(name, fronts, findings, digests, nonfinite_organs(session, model.id))
            existing = existing_model(session, whole, self.intake.keep_name)
            if existing is not None:
                reason = f"all shards arrived, and they are the same files as {existing.full_name}"
                remove_model(session, model, reason, LOCAL)
                return Registered(existing, created=False)
            complete_model(session, model, whole)
        run.link_relatives(session, model)
        return Registered(model, created=True)

    def _visible(self, session: Session, file: OpenGguf, *matches: ColumnElement[bool]) -> ModelRow | None:
        name = self.intake.name if self.intake.keep_name else None
        return visible_model_with_file(session, name, _number(file), _count(file), *matches)

    def _check_fits(
        self, session: Session, model: ModelRow, file: OpenGguf, same: Sequence[ColumnElement[bool]]
    ) -> None:
        """Check a shard with the stored shards of `model`, except the one with its number that has the `same` values.

        Raises BadSplit, TooManyTensors.
        """
        is_same = has_file(session, model.id, _number(file), *same)
        rows = [row for row in files_of(session, model.id) if not (is_same and row.position == _number(file))]
        stored = [(f"the stored {row.name}", stored_header(session, self.registry.blobs, row).header) for row in rows]
        shards = [*stored, (file.source.path.name, file.header)]
        check_shards(model.full_name, shards)
        check_tensor_sizes(model.full_name, (tensor.size_bytes for _, header in shards for tensor in header.tensors))


def _number(file: OpenGguf) -> int:
    """Return the number of a file in its model, from 0."""
    return (file.header.integer(SPLIT_NUMBER_KEY) or 0) if is_shard(file.header) else 0


def _count(file: OpenGguf) -> int:
    """Return the number of files of the complete model."""
    return (file.header.integer(SPLIT_COUNT_KEY) or 1) if is_shard(file.header) else 1


def _same_header(file: OpenGguf) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that a ModelFile has the size and the header of `file`."""
    digest = digest_of(file.source.read_at(0, file.header.end))
    return ModelFileRow.header_sha256 == digest, ModelFileRow.size_bytes == file.header.file_size_bytes


def _with_missing(session: Session, model: ModelRow, report: IngestReport) -> IngestReport:
    error = incompleteness(session, model)
    return replace(report, incomplete=str(error), missing=error.missing)


def _unread_report(model: ModelRow, organs: int, size_bytes: int) -> IngestReport:
    """Return the report on a model or a shard that is stored already and was not read."""
    digest = Digest(model.digest)
    return IngestReport(model.full_name, digest, False, organs, size_bytes=size_bytes, known_bytes=size_bytes)


def _whole_report(session: Session, model: ModelRow, last: IngestReport) -> IngestReport:
    """Return the report on a model whose `last` shard was added, with the sums of the ingests of all its shards."""
    earlier = []
    for text in ingest_reports(session, model.id):
        with suppress(msgspec.DecodeError):  # another version of this program wrote it
            earlier.append(msgspec.json.decode(text, type=prepared(IngestReport)))
    report = _merged_report([*(report for report in earlier if report.created), last])
    flags = [*model.flags, *model.unassemblable]
    counts = nonfinite_organs(session, model.id)
    warnings = {item.text for item in nonfinite_findings(counts)}
    return replace(
        report,
        flags=tuple(dict.fromkeys(flag for flag in flags if flag not in warnings)),
        nonfinite=counts,
        incomplete="",
        missing=(),
    )


_SUMS = ("organs", "new_blobs", "size_bytes", "new_bytes", "known_bytes", "stored_bytes", "healed_blobs")


def _merged_report(reports: Sequence[IngestReport]) -> IngestReport:
    """Return the report on several shards of one model: the last one, with the sums of all."""
    sums: dict[str, Any] = {name: sum(getattr(report, name) for report in reports) for name in _SUMS}
    stages = Stages()
    for report in reports:
        for stage, values in report.stages.items():
            stages.add(stage, values["seconds"], int(values["bytes"]))
    return replace(
        reports[-1],
        created=any(report.created for report in reports),
        seconds=round(sum(report.seconds for report in reports), 4),
        stages=stages.summary(),
        flags=tuple(dict.fromkeys(flag for report in reports for flag in report.flags)),
        notes=tuple(dict.fromkeys(note for report in reports for note in report.notes)),
        nonfinite={name: count for report in reports for name, count in report.nonfinite.items()},
        **sums,
    )


def _ingest_remote(registry: LocalRegistry, source: ModelSource, intake: Intake) -> IngestReport:
    """Fetch the files of `source` one at a time, ingest each, and remove it before the next one is fetched."""
    shards = _ShardIngest(registry, intake, _NameCheck(registry, intake))
    for remote in source.remote:
        served = OpenGguf(file := remote.open(), read_header(file))
        stored = shards.stored_model(served, file.stated_sha256)
        if stored is not None:
            shards.skip(stored)
            continue
        is_whole = len(source.remote) == 1 and not is_shard(served.header)
        if is_whole:
            shards.names.ask()
        else:
            shards.check(served, is_new=True)
        with spooled(registry.settings.spool, remote, file, file.stated_sha256, intake.progress) as copy:
            dissected = dissect(copy)
            if is_whole:
                return ingest_files(registry, [dissected], intake, names=shards.names)
            shards.add(dissected)
    return shards.report()


@dataclass(slots=True)
class _NameCheck:
    """Asks once whether a model can become the next version of an existing name. Raises NameTaken."""

    registry: LocalRegistry
    intake: Intake
    allowed_over: int | None = None
    """The id of the newest version that was allowed."""

    def ask(self, is_exempt: Callable[[Session], bool] = lambda _session: False) -> None:
        """Ask before something is stored or registered under a name that is taken, unless it is exempt."""
        with self.registry.catalog.reading() as session:
            taken = None if is_exempt(session) else self._find_taken(session)
        if taken is None or taken[0] == self.allowed_over:
            return
        if not self.intake.new_version(taken[1]):
            raise taken[1]
        self.allowed_over = taken[0]

    def refuse_taken(self, session: Session) -> None:
        """Refuse a name that was taken after the question: the transaction that registers the model cannot ask."""
        if taken := self._find_taken(session):
            newest, error = taken
            if newest != self.allowed_over and self.intake.new_version is not always:
                raise error

    def _find_taken(self, session: Session) -> tuple[int, NameTaken] | None:
        newest = newest_reachable(session, self.intake.name) or model_of_other_name(session, self.intake.name)
        if newest is None:
            return None
        name, version = self.intake.name, next_version(session, self.intake.name)
        return newest.id, NameTaken(f"{name.namespace}/{name.name}", newest.full_name, version)
