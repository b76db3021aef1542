"""Measurement of the tensors of files without a registry. Nothing is stored."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from threadpoolctl import threadpool_limits

from organs.ingest.dissect import OpenGguf
from organs.ingest.journal import Journal, Key, file_version, journal_path, open_journal, read_journal
from organs.ingest.sources import ModelSource, open_headers
from organs.ingest.tasks import Progress
from organs.registry.anatomy import Place, place_of
from organs.registry.errors import OrganError
from organs.registry.gguf import TensorInfo
from organs.registry.measure import Measurement, measure, required_reads

WAITING_THREADS = 2
"""Additional threads that wait for a server."""
Wanted = Callable[[str, Place], bool]
"""Returns whether to measure the tensor of that name and place."""


@dataclass(frozen=True, slots=True)
class MeasuredTensor:
    """A tensor with its place and its measurement. `shape` has the row length first."""

    name: str
    place: Place
    dtype: str
    shape: tuple[int, ...]
    elements: int
    size_bytes: int
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model with its selected tensors, in the order of the files."""

    architecture: str | None
    title: str | None
    size_bytes: int
    """Size of all its files."""
    tensor_count: int
    """Number of all its tensors, selected or not."""
    parameters: int
    """Number of values of all its tensors, selected or not."""
    tensors: tuple[MeasuredTensor, ...]


@dataclass(frozen=True, slots=True)
class MeasureOutcome:
    """The result for one source: a measured model, or the error."""

    source: ModelSource
    model: MeasuredModel | None
    error: OrganError | None


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What a measurement reads, besides the headers."""

    size_bytes: int
    """Size of all files of the model."""
    tensors: int
    """Number of the selected tensors."""
    known_tensors: int
    """Number of those that an interrupted run has measured."""
    reads: int
    """Number of reads, which are requests if the files are on a server."""
    read_bytes: int


def measure_all(
    sources: Iterable[ModelSource], wanted: Wanted | None = None, progress: Progress | None = None
) -> Iterator[MeasureOutcome]:
    """Measure `sources` one after another; an error does not stop the next one."""
    for source in sources:
        try:
            yield MeasureOutcome(source, measure_model(source, wanted, progress), None)
        except OrganError as error:
            yield MeasureOutcome(source, None, error)


def measure_model(source: ModelSource, wanted: Wanted | None = None, progress: Progress | None = None) -> MeasuredModel:
    """Measure the tensors of one model, in threads; raises BadInput for invalid files.

    Memory does not depend on the size of tensors: a limited sample of each is read. `progress` is called with the
    number of newly processed bytes; their sum is the size of the source. Measurements of files on a server are kept in
    a journal until all are done: after an interruption, the next call continues. Raises Unreachable, NotFound,
    NotAllowed for these.
    """
    report_progress = progress or _no_progress
    with ExitStack() as opened:
        files = open_headers(opened, source)
        journal = opened.enter_context(open_journal(journal_path(source.locations))) if source.remote else None
        tensors = [_Selected(file, tensor) for file in files for tensor in file.header.tensors]
        selected = [item for item in tensors if item.is_wanted(wanted)]
        reported_bytes = 0
        measured: list[MeasuredTensor] = []
        for result in _measure_in_threads(selected, journal):
            measured.append(result)
            reported_bytes += result.size_bytes
            report_progress(result.size_bytes)
        for file in files:
            file.source.check_unchanged()
        if journal is not None and journal.known.keys() <= {item.key for item in selected}:
            journal.delete()  # the journal of a larger selection stays for the run that continues it
    report_progress(max(sum(file.header.file_size_bytes for file in files) - reported_bytes, 0))
    return MeasuredModel(
        architecture=files[0].header.architecture,
        title=files[0].header.text("general.name"),
        size_bytes=sum(file.header.file_size_bytes for file in files),
        tensor_count=len(tensors),
        parameters=sum(item.tensor.elements for item in tensors),
        tensors=tuple(measured),
    )


def plan_reads(source: ModelSource, wanted: Wanted | None = None) -> ReadPlan:
    """Return what `measure_model` would read of `source`; only the headers are read. Raises as `measure_model`."""
    from organs.registry.client.ranges import merged  # with urllib3, which local files do not need

    with ExitStack() as opened:
        files = open_headers(opened, source)
        known = read_journal(journal_path(source.locations)) if source.remote else {}
        items = [_Selected(file, tensor) for file in files for tensor in file.header.tensors]
        selected = [item for item in items if item.is_wanted(wanted)]
        missing = [item for item in selected if item.key not in known]
        reads = [span for item in missing for span in (merged(item.spans) if source.remote else item.spans)]
        return ReadPlan(
            size_bytes=sum(file.header.file_size_bytes for file in files),
            tensors=len(selected),
            known_tensors=len(selected) - len(missing),
            reads=len(reads),
            read_bytes=sum(size for _, size in reads),
        )


@dataclass(frozen=True, slots=True)
class _Selected:
    """A tensor to measure, with its file."""

    file: OpenGguf
    tensor: TensorInfo

    def is_wanted(self, wanted: Wanted | None) -> bool:
        return wanted is None or wanted(self.tensor.name, place_of(self.tensor.name))

    @property
    def key(self) -> Key:
        """The key of its measurement in the journal."""
        source = self.file.source
        return file_version(source.name, source.size_bytes, source.version), self.tensor.name

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The reads of its measurement, relative to its start."""
        return required_reads(self.tensor.shape, self.tensor.dtype)

    def measure(self) -> Measurement:
        """Read its sample, with all reads at once, and measure it."""
        begin = self.file.tensor_span(self.tensor).offset
        spans = list(dict.fromkeys(self.spans))
        data = self.file.source.read_ranges([(begin + offset, size) for offset, size in spans])
        sample = dict(zip(spans, data, strict=True))
        return measure(lambda offset, size: sample[offset, size], self.tensor.shape, self.tensor.dtype)

    def result(self, measurement: Measurement) -> MeasuredTensor:
        tensor = self.tensor
        return MeasuredTensor(
            name=tensor.name,
            place=place_of(tensor.name),
            dtype=tensor.dtype.name,
            shape=tensor.shape,
            elements=tensor.elements,
            size_bytes=tensor.size_bytes,
            measurement=measurement,
        )


def _measure_in_threads(selected: list[_Selected], journal: Journal | None) -> Iterator[MeasuredTensor]:
    """Yield the measured tensors in order. There is one thread for each processor, and more to wait for a server."""
    threads = max(2, os.cpu_count() or 2) + (0 if journal is None else WAITING_THREADS)
    workers = ThreadPoolExecutor(threads, thread_name_prefix="measure")
    try:
        with threadpool_limits(1, "blas"):  # the threads of `workers` already use all processors
            yield from workers.map(partial(_measure_tensor, journal), selected)
    finally:
        workers.shutdown(cancel_futures=True)  # after Ctrl-C, tasks that have not begun are dropped


def _measure_tensor(journal: Journal | None, item: _Selected) -> MeasuredTensor:
    if journal is None:
        return item.result(item.measure())
    measurement = journal.known.get(item.key)
    if measurement is None:
        measurement = item.measure()
        if item.file.source.version:  # without it, a later run cannot know whether the file is the same
            journal.add(item.key, measurement)
    return item.result(measurement)


def _no_progress(_size_bytes: int) -> None:
    """Ignore progress."""
