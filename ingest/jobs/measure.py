"""The kind `measure`: measure a registered model again from its stored bytes, and compare with the recorded values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from threadpoolctl import threadpool_limits

from organs.ingest.jobs.kind import (
    WORK,
    Inputs,
    JobKind,
    ReportProgress,
    check_members,
    text_or_none,
)
from organs.registry.assembly import naming
from organs.registry.catalog.queries.models import model_by_name, placements_of
from organs.registry.catalog.queries.organs import (
    BlobRow,
    blobs_by_digest,
)
from organs.registry.catalog.tables import Placement
from organs.registry.digest import Digest
from organs.registry.entities.job import MeasuredDifference, MeasureJobResult, ModelRequest, RemeasuredTensor
from organs.registry.errors import BadInput, MissingBlob
from organs.registry.gguf import dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.measure import Measurement, measure
from organs.registry.measures import MEASURE_NAMES
from organs.registry.names import MODEL_TEXT_MAX_LENGTH, parse_model_name
from organs.registry.store import RangeReader

TENSORS_MAX = 2000
"""Limit of tensors that the result lists; all are measured."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor with its recorded measures."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    recorded: dict[str, float | None]
    blob: BlobRow | None


def checked_model(arguments: Inputs) -> ModelRequest:
    """Return the arguments of a kind that takes `model` alone; raises BadInput, BadName."""
    check_members(arguments, ("model",))
    model = text_or_none(arguments, "model", MODEL_TEXT_MAX_LENGTH)
    if model is None:
        raise BadInput("model is missing: the name of a registered model")
    return ModelRequest(model=str(parse_model_name(model)))


def settled_model(registry: LocalRegistry, arguments: ModelRequest, _contributor: str) -> ModelRequest:
    """Return the arguments with the current version of the name; raises NotFound."""
    with registry.catalog.reading() as session:
        return ModelRequest(model=model_by_name(session, parse_model_name(arguments.model)).full_name)


def _run(
    registry: LocalRegistry, arguments: ModelRequest, report_progress: ReportProgress, _contributor: str
) -> MeasureJobResult:
    report_progress(0.0, "reading the list of tensors")
    tensors = _tensors(registry, arguments.model)
    pairs = []
    with threadpool_limits(1, "blas"):  # leaves the other processor for requests
        for number, tensor in enumerate(tensors):
            report_progress(number / len(tensors), f"measuring {tensor.name}")
            pairs.append((tensor, _remeasured(tensor.name, _measure_stored(registry, tensor))))
    return MeasureJobResult(
        model=arguments.model,
        measured=len(pairs),
        differences={name: _largest_difference(pairs, name) for name in MEASURE_NAMES},
        tensors=tuple(tensor for _, tensor in pairs[:TENSORS_MAX]),
        tensors_left_out=max(0, len(pairs) - TENSORS_MAX),
    )


def _tensors(registry: LocalRegistry, name: str) -> list[_Tensor]:
    with registry.catalog.reading() as session:
        placements = placements_of(session, model_by_name(session, parse_model_name(name)).id)
        blobs = blobs_by_digest(session, {digest for _, _, digest, _ in placements})
        return [_tensor(placement, shape, digest, blobs) for placement, shape, digest, _ in placements]


def _tensor(placement: Placement, shape: str, digest: str, blobs: dict[Digest, BlobRow]) -> _Tensor:
    lengths = tuple(map(int, shape.split("x")))
    recorded = {measure_name: getattr(placement, measure_name) for measure_name in MEASURE_NAMES}
    return _Tensor(placement.name, placement.dtype, lengths, recorded, blobs.get(Digest(digest)))


def _measure_stored(registry: LocalRegistry, tensor: _Tensor) -> Measurement:
    if tensor.blob is None:
        raise MissingBlob(f"{tensor.name} has no stored bytes")
    with naming(tensor.name, tensor.blob.digest), registry.blobs.open(tensor.blob) as reader:
        return measure(RangeReader(reader).read, tensor.shape, dtype_by_name(tensor.dtype))


def _remeasured(name: str, measurement: Measurement) -> RemeasuredTensor:
    return RemeasuredTensor(name=name, **{measure: getattr(measurement, measure) for measure in MEASURE_NAMES})


def _largest_difference(tensors: Iterable[tuple[_Tensor, RemeasuredTensor]], measure: str) -> MeasuredDifference | None:
    """Return the largest difference of a measure from its recorded value; None if no tensor has both."""
    pairs = ((tensor, tensor.recorded[measure], getattr(remeasured, measure)) for tensor, remeasured in tensors)
    differences = [
        (abs(now - before), tensor.name) for tensor, before, now in pairs if now is not None and before is not None
    ]
    if not differences:
        return None
    difference, name = max(differences, key=lambda pair: pair[0])
    return MeasuredDifference(difference=difference, tensor=name)


MEASURE = JobKind("measure", WORK, ModelRequest, checked_model, _run, settled_model)
"""Takes `model`; returns `tensors` with their measures, and `differences`, the largest difference of each measure from
its recorded value."""
