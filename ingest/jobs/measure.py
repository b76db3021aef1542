"""The kind `measure`: a registered model measured anew from its stored bytes, and held against what is recorded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from threadpoolctl import threadpool_limits

from organs.ingest.jobs.kind import (
    WORK,
    JobKind,
    Tell,
    Values,
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
from organs.registry.errors import BadInput, MissingBlob
from organs.registry.gguf import dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.measure import Measurement, measure
from organs.registry.measures import MEASURE_NAMES
from organs.registry.names import MODEL_TEXT_MAX_LENGTH, parse_model_name
from organs.registry.store import RangeReader

TENSORS_MAX = 2000
"""Tensors whose numbers are listed; all are measured."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor with what is recorded of it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    recorded: dict[str, float | None]
    blob: BlobRow | None


def checked_model(arguments: Values) -> Values:
    """The arguments of a kind that takes `model` alone; raises BadInput, BadName."""
    check_members(arguments, ("model",))
    model = text_or_none(arguments, "model", MODEL_TEXT_MAX_LENGTH)
    if model is None:
        raise BadInput("model is missing: the name of a registered model")
    return {"model": str(parse_model_name(model))}


def settled_model(registry: LocalRegistry, arguments: Values, _contributor: str) -> Values:
    """The same with the version that is meant now; raises NotFound."""
    with registry.catalog.reading() as session:
        return {"model": model_by_name(session, parse_model_name(arguments["model"])).full_name}


def _run(registry: LocalRegistry, arguments: Values, tell: Tell, _contributor: str) -> Values:
    tell(0.0, "looking the tensors up")
    tensors = _tensors(registry, arguments["model"])
    rows = []
    with threadpool_limits(1, "blas"):  # the machine's other processor answers requests
        for number, tensor in enumerate(tensors):
            tell(number / len(tensors), f"measuring {tensor.name}")
            rows.append(_row(tensor, _measured(registry, tensor)))
    return {
        "model": arguments["model"],
        "measured": len(rows),
        "differences": {number: _largest(rows, number) for number in MEASURE_NAMES},
        "tensors": [{key: row[key] for key in ("name", *MEASURE_NAMES)} for row in rows[:TENSORS_MAX]],
        "tensors_left_out": max(0, len(rows) - TENSORS_MAX),
    }


def _tensors(registry: LocalRegistry, name: str) -> list[_Tensor]:
    with registry.catalog.reading() as session:
        placements = placements_of(session, model_by_name(session, parse_model_name(name)).id)
        blobs = blobs_by_digest(session, {digest for _, _, digest, _ in placements})
        return [_tensor(placement, shape, digest, blobs) for placement, shape, digest, _ in placements]


def _tensor(placement: Placement, shape: str, digest: str, blobs: dict[Digest, BlobRow]) -> _Tensor:
    lengths = tuple(map(int, shape.split("x")))
    recorded = {number: getattr(placement, number) for number in MEASURE_NAMES}
    return _Tensor(placement.name, placement.dtype, lengths, recorded, blobs.get(Digest(digest)))


def _measured(registry: LocalRegistry, tensor: _Tensor) -> Measurement:
    if tensor.blob is None:
        raise MissingBlob(f"{tensor.name} is recorded without its bytes")
    with naming(tensor.name, tensor.blob.digest), registry.blobs.open(tensor.blob) as reader:
        return measure(RangeReader(reader).read, tensor.shape, dtype_by_name(tensor.dtype))


def _row(tensor: _Tensor, found: Measurement) -> Values:
    """The numbers as they are now, and by how much each differs from what is recorded; None where one is missing."""
    row: Values = {"name": tensor.name, "by": {}}
    for number in MEASURE_NAMES:
        now, before = getattr(found, number), tensor.recorded[number]
        row[number] = now
        row["by"][number] = None if now is None or before is None else abs(now - before)
    return row


def _largest(rows: Iterable[Values], number: str) -> Values | None:
    """The largest difference of one number, and whose it is; None where nothing could be held against each other."""
    known = [(row["by"][number], row["name"]) for row in rows if row["by"][number] is not None]
    if not known:
        return None
    difference, name = max(known, key=lambda pair: pair[0])
    return {"difference": difference, "tensor": name}


MEASURE = JobKind("measure", WORK, checked_model, _run, settled_model)
"""Takes `model`; gives `tensors` with their numbers, and `differences`, the largest of each number to what is
recorded."""
