"""Ingest of models from their files to their rows, with a report for each; and publication of a hidden model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field

from sqlalchemy.orm import Session

from organs.ingest.dissect import DissectedFile
from organs.ingest.hashing import Stages
from organs.ingest.pipeline import Gathered, Pipeline
from organs.ingest.records import model_record, nonfinite_flags, nonfinite_tensors
from organs.ingest.sources import (
    ModelSource,
    notes_of,
    open_files,
    source_size_bytes,
)
from organs.ingest.tasks import BUFFERS, Measurer, Progress
from organs.registry.catalog.queries.models import (
    check_model_name,
    has_visible_model_of_size,
    newest_reachable,
    next_version,
)
from organs.registry.catalog.records import ModelRecord
from organs.registry.catalog.register.models import Registered, existing_model, register_model, show_model
from organs.registry.catalog.register.organs import (
    begin_ingest,
    end_ingest,
)
from organs.registry.catalog.tables import Model
from organs.registry.digest import Digest
from organs.registry.errors import DiskFull, NameTaken, OrganError, StoreUnwritable
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.relatives import record_relatives, resolve_declared


def publish_model(session: Session, model: Model, by: str) -> None:
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


def _ignore_model(_model: Model) -> None:
    """Do nothing with the model."""


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
    registered: Callable[[Model], None] = _ignore_model
    """Called with the model, in the transaction that registers it or finds an existing one."""
    measurer: Measurer | None = None
    """Measures the tensors; None: this process."""
    buffers: int = BUFFERS
    """Number of buffers of 4 MiB that the ingest can use."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one source: a report, or the error."""

    source: ModelSource
    report: IngestReport | None
    error: OrganError | None


def ingest_all(
    registry: LocalRegistry,
    sources: Iterable[ModelSource],
    name: ModelName | None = None,
    progress: Progress | None = None,
    new_version: NewVersion = never,
) -> Iterator[Outcome]:
    """Ingest `sources` one after another; an error does not stop the next one. `name` is for a single source.

    `new_version` decides about a model whose name is taken by another file: see `ingest_model`.
    Raises DiskFull and StoreUnwritable, which would stop the other sources as well.
    """
    for source in sources:
        try:
            yield Outcome(source, ingest_model(registry, source, name, progress, new_version), None)
        except (DiskFull, StoreUnwritable):
            raise
        except OrganError as error:
            yield Outcome(source, None, error)


def ingest_model(
    registry: LocalRegistry,
    source: ModelSource,
    name: ModelName | None = None,
    progress: Progress | None = None,
    new_version: NewVersion = never,
) -> IngestReport:
    """Split one model into organs, store and measure them, and register the model.

    Its name is `name`, or that of its file. Ingesting the same bytes again changes nothing. Other bytes under an
    existing name become its next version if `new_version` returns True (`always`, or a function that asks a person).
    It is called before anything is stored if the sizes differ, else before the model is registered.

    Raises BadInput for invalid files, NameTaken, StoreError if the store cannot be written; then nothing is registered.
    After an interruption, the next run continues.
    """
    stages = Stages()
    with registry.catalog.reading() as session:
        check_model_name(session, name or source.name)
    with ExitStack() as opened:
        with stages.timed("open"):
            files = open_files(opened, source)
        intake = Intake(source.label, name or source.name, keep_name=name is not None, new_version=new_version)
        return ingest_files(registry, files, intake, progress, stages)


def ingest_files(
    registry: LocalRegistry,
    files: Sequence[DissectedFile],
    intake: Intake,
    progress: Progress | None = None,
    stages: Stages | None = None,
) -> IngestReport:
    """Ingest the open files of one model, in order; raises the errors of `ingest_model` and of `settle`."""
    stages = stages or Stages()
    names = _NameCheck(registry, intake)
    names.check_size(sum(file.header.file_size_bytes for file in files))
    with registry.catalog.writing() as session:
        ingest_id = begin_ingest(session, intake.label)
    try:
        return _ingest(registry, files, ingest_id, intake, stages, progress or _no_progress, names)
    except BaseException as error:
        state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        # The caller must get the first error, also if the catalog cannot record the failure.
        with suppress(OrganError), registry.catalog.writing() as session:
            end_ingest(session, ingest_id, state, json.dumps({"error": str(error)[:1000]}))
        raise


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
) -> IngestReport:
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
        report = _report(registered, len(record.placements), files, gathered, stages)
        end_ingest(session, ingest_id, "finished", json.dumps(asdict(report)), registered.model.id)
    return report


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
        flags=tuple(dict.fromkeys(flag for file in files for flag in (*file.flags, *file.unassemblable))),
        notes=notes_of(
            files, {index: gathered_file.file for index, gathered_file in gathered.files.items()}, gathered.digests
        ),
        nonfinite=nonfinite_tensors(files, gathered),
    )


def _no_progress(_size_bytes: int) -> None:
    """Ignore progress."""


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
        if existing_model(session, record, self._intake.keep_name) is None and (taken := self._find_taken(session)):
            newest, error = taken
            if newest != self._allowed_over and self._intake.new_version is not always:
                raise error

    def _find_taken(self, session: Session) -> tuple[int, NameTaken] | None:
        newest = newest_reachable(session, self._intake.name)
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
