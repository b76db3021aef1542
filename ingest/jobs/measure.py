"""The kind `measure`: measure a registered model again from its stored bytes, and compare with the recorded values."""

from __future__ import annotations

from threadpoolctl import threadpool_limits

from organs.ingest.jobs.kind import WORK, JobKind, ReportProgress
from organs.registry.assembly import naming
from organs.registry.catalog.queries.model_contents import placements_of
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.queries.organs import blobs_by_digest
from organs.registry.digest import Digest
from organs.registry.entities.job import MeasuredDifference, MeasureJobResult, ModelRequest, RemeasuredTensor
from organs.registry.errors import MissingBlob
from organs.registry.gguf import dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.measure import measure
from organs.registry.measures import MEASURE_NAMES
from organs.registry.names import parse_model_name
from organs.registry.store import RangeReader

TENSORS_MAX = 2000
"""Limit of tensors that the result lists; all are measured."""


def current_version(registry: LocalRegistry, request: ModelRequest, _contributor: str) -> ModelRequest:
    """Return the request with the current version of the name; raises BadName, NotFound."""
    with registry.catalog.reading() as session:
        return ModelRequest(model=model_by_name(session, parse_model_name(request.model)).full_name)


def _run(
    registry: LocalRegistry, arguments: ModelRequest, report_progress: ReportProgress, _contributor: str
) -> MeasureJobResult:
    report_progress(0.0, "reading the list of tensors")
    with registry.catalog.reading() as session:
        placements = placements_of(session, model_by_name(session, parse_model_name(arguments.model)).id)
        blobs = blobs_by_digest(session, {digest for _, _, digest, _ in placements})
    tensors = []
    largest: dict[str, MeasuredDifference | None] = dict.fromkeys(MEASURE_NAMES)
    with threadpool_limits(1, "blas"):  # leaves the other processor for requests
        for number, (placement, shape, digest, _) in enumerate(placements):
            report_progress(number / len(placements), f"measuring {placement.name}")
            blob = blobs.get(Digest(digest))
            if blob is None:
                raise MissingBlob(f"{placement.name} has no stored bytes")
            with naming(placement.name, blob.digest), registry.blobs.open(blob) as reader:
                lengths = tuple(map(int, shape.split("x")))
                measured = measure(RangeReader(reader).read, lengths, dtype_by_name(placement.dtype))
            values = {name: getattr(measured, name) for name in MEASURE_NAMES}
            tensors.append(RemeasuredTensor(name=placement.name, **values))
            for name, value in values.items():
                recorded, known = getattr(placement, name), largest[name]
                if value is not None and recorded is not None:
                    difference = abs(value - recorded)
                    if known is None or difference > known.difference:
                        largest[name] = MeasuredDifference(difference=difference, tensor=placement.name)
    return MeasureJobResult(
        model=arguments.model,
        measured=len(tensors),
        differences=largest,
        tensors=tuple(tensors[:TENSORS_MAX]),
        tensors_left_out=max(0, len(tensors) - TENSORS_MAX),
    )


MEASURE = JobKind("measure", WORK, ModelRequest, _run, current_version)
"""Takes `model`; returns `tensors` with their measures, and `differences`, the largest difference of each measure from
its recorded value."""
