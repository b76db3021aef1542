"""Measurement of the tensors of files without a registry. Nothing is stored."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from threadpoolctl import threadpool_limits

from organs.ingest.dissect import DissectedFile
from organs.ingest.sources import (
    ModelSource,
    open_files,
    source_size_bytes,
)
from organs.ingest.tasks import Progress
from organs.registry.anatomy import Place, place_of
from organs.registry.errors import OrganError
from organs.registry.gguf import TensorInfo
from organs.registry.measure import Measurement, measure

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

    Memory does not depend on the size of tensors: a limited sample of each is read. There is one thread for each
    processor. `progress` is called with the number of newly processed bytes; their sum is the size of the source.
    """
    report_progress = progress or _no_progress
    with ExitStack() as opened:
        files = open_files(opened, source)
        selected = [(file, tensor) for file in files for tensor in file.header.tensors if _is_wanted(tensor, wanted)]
        reported_bytes = 0
        measured: list[MeasuredTensor] = []
        for result in _measure_in_threads(selected):
            measured.append(result)
            reported_bytes += result.size_bytes
            report_progress(result.size_bytes)
        for file in files:
            file.source.check_unchanged()
    report_progress(max(source_size_bytes(source) - reported_bytes, 0))
    tensors = [tensor for file in files for tensor in file.header.tensors]
    return MeasuredModel(
        architecture=files[0].header.architecture,
        title=files[0].header.text("general.name"),
        size_bytes=sum(file.header.file_size_bytes for file in files),
        tensor_count=len(tensors),
        parameters=sum(tensor.elements for tensor in tensors),
        tensors=tuple(measured),
    )


def _is_wanted(tensor: TensorInfo, wanted: Wanted | None) -> bool:
    return wanted is None or wanted(tensor.name, place_of(tensor.name))


def _measure_in_threads(selected: list[tuple[DissectedFile, TensorInfo]]) -> Iterator[MeasuredTensor]:
    workers = ThreadPoolExecutor(max(2, os.cpu_count() or 2), thread_name_prefix="measure")
    try:
        with threadpool_limits(1, "blas"):  # the threads of `workers` already use all processors
            yield from workers.map(_measure_tensor, selected)
    finally:
        workers.shutdown(cancel_futures=True)  # after Ctrl-C, tasks that have not begun are dropped


def _measure_tensor(file_and_tensor: tuple[DissectedFile, TensorInfo]) -> MeasuredTensor:
    file, tensor = file_and_tensor
    read = partial(_read, file, file.tensor_span(tensor).offset)
    return MeasuredTensor(
        name=tensor.name,
        place=place_of(tensor.name),
        dtype=tensor.dtype.name,
        shape=tensor.shape,
        elements=tensor.elements,
        size_bytes=tensor.size_bytes,
        measurement=measure(read, tensor.shape, tensor.dtype),
    )


def _read(file: DissectedFile, begin: int, offset: int, size: int) -> bytes:
    return file.source.read_at(begin + offset, size)


def _no_progress(_size_bytes: int) -> None:
    """Ignore progress."""
