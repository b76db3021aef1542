"""Rows of the experts in the stacks of a model. They follow from the parts of the stacks' blobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from organs.registry.anatomy import OrganType, Place, Tower
from organs.registry.catalog.engine import batches
from organs.registry.catalog.queries.organs import BlobRow, blobs_by_id, shape_of
from organs.registry.catalog.records import OrganKey, PlacementRecord
from organs.registry.catalog.register.organs import measures_of, organ_key, register_organs
from organs.registry.catalog.tables import Blob, Expert, Model, Organ, Placement
from organs.registry.catalog.vocabulary import STACK_CODEC
from organs.registry.experts import expert_shape
from organs.registry.measure import Measurement
from organs.registry.measures import MEASURE_NAMES

_COPIED = ("model_id", "type", "tower", "block", "slot", "visible", "facet_id", "dtype")
"""The columns that an expert has from the placement of its stack."""


@dataclass(frozen=True, slots=True)
class _Stack:
    """A stack of experts at its place."""

    placement: Placement
    shape: tuple[int, ...]
    blob_id: int


def insert_experts(session: Session, model: Model, measured: Mapping[OrganKey, Measurement]) -> int:
    """Add the experts of `model` that have no rows yet, with their organs; return their number.

    `measured` has the measurements of experts that were not measured before.
    """
    count = 0
    stacks = _stacks_without_experts(session, model.id)
    # Some stacks at a time: the largest models have tens of thousands of experts.
    for batch in batches(stacks, 8):
        blobs = blobs_by_id(session, {stack.blob_id for stack in batch})
        for stack in batch:
            count += _insert(session, stack, blobs[stack.blob_id].parts, measured)
    return count


def _stacks_without_experts(session: Session, model_id: int) -> Sequence[_Stack]:
    statement = (
        select(Placement, Organ.shape, Organ.blob_id)
        .with_hint(Placement, "INDEXED BY ix_placements_model", "sqlite")
        .join(Organ, Organ.id == Placement.organ_id)
        .join(Blob, Blob.id == Organ.blob_id)
        .where(Placement.model_id == model_id, Blob.codec == STACK_CODEC)
        .where(~select(Expert.id).where(Expert.placement_id == Placement.id).exists())
        .order_by(Placement.position)
    )
    return [_Stack(placement, shape_of(shape), blob_id) for placement, shape, blob_id in session.execute(statement)]


def _insert(session: Session, stack: _Stack, parts: Sequence[BlobRow], measured: Mapping[OrganKey, Measurement]) -> int:
    if len(stack.shape) != 3 or len(parts) != stack.shape[2]:
        return 0  # the same bytes in another shape
    records = [_record(stack, part, measured) for part in parts]
    organs = register_organs(session, records, {part.digest: part for part in parts})
    numbers = measures_of(session, set(organs.values()))
    placement = stack.placement
    copied = {name: getattr(placement, name) for name in _COPIED}
    rows = []
    for expert, record in enumerate(records):
        organ_id = organs[organ_key(record)]
        row = {"placement_id": placement.id, "expert": expert, "organ_id": organ_id, "size_bytes": record.size_bytes}
        rows.append(row | copied | dict.fromkeys(MEASURE_NAMES) | numbers[organ_id])
    session.execute(insert(Expert), rows)
    return len(rows)


def _record(stack: _Stack, part: BlobRow, measured: Mapping[OrganKey, Measurement]) -> PlacementRecord:
    placement = stack.placement
    record = PlacementRecord(
        name=placement.name,
        place=Place(OrganType(placement.type), Tower(placement.tower), placement.block, placement.slot),
        digest=part.digest,
        dtype=placement.dtype,
        shape=expert_shape(stack.shape),
        size_bytes=part.size_bytes,
        offset_bytes=0,
        measurement=None,
    )
    reading = measured.get(organ_key(record))
    return record if reading is None else replace(record, measurement=reading, nonfinite=reading.nonfinite)
