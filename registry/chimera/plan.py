"""What a file will be made of. A plan names blobs and never holds their bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from registry.catalog.queries.blobs import BlobRow, blobs_by_id
from registry.catalog.queries.models import Segment, files_of, parts_of, tensors_of
from registry.catalog.tables import Model
from registry.digest import Digest
from registry.errors import CorruptBlob, MissingBlob, NotAssemblable


@dataclass(frozen=True, slots=True)
class PlannedSlice:
    """`size_bytes` plain bytes of a blob, from `blob_offset_bytes` on, at `offset_bytes` of the file."""

    offset_bytes: int
    size_bytes: int
    blob: BlobRow
    blob_offset_bytes: int
    what: str = "header"
    """What it is, for errors: a tensor's name, or the header."""


@dataclass(frozen=True, slots=True)
class FilePlan:
    """A file: `literal` at its beginning, then slices in the order of their offsets, zeros everywhere else."""

    name: str
    size_bytes: int
    sha256: Digest | None
    """What the bytes must have, where it is known beforehand."""
    literal: bytes
    slices: tuple[PlannedSlice, ...]


def plan_model(session: Session, model: Model) -> list[FilePlan]:
    """The files of `model` as they came in; raises NotAssemblable for one that is never handed out, MissingBlob."""
    check_assemblable(model)
    plans = []
    for file in files_of(session, model.id):
        segments = sorted([*parts_of(session, file.id), *tensors_of(session, file.id)], key=_offset)
        slices = resolve(session, segments)
        plans.append(FilePlan(file.name, file.size_bytes, Digest(file.sha256), b"", slices))
    return plans


def check_assemblable(model: Model) -> None:
    """Raise NotAssemblable when loaders must not be given this model."""
    reasons = json.loads(model.unassemblable)
    if reasons:
        raise NotAssemblable(f"{model.namespace}/{model.name}", reasons)


def resolve(session: Session, segments: Sequence[Segment]) -> tuple[PlannedSlice, ...]:
    """`segments` with the rows of their blobs; empty ones are left out.

    Raises MissingBlob, and CorruptBlob for what has been set aside.
    """
    blobs = blobs_by_id(session, [segment.blob_id for segment in segments])
    slices = []
    for segment in segments:
        blob = blobs.get(segment.blob_id)
        if blob is None:
            raise MissingBlob(f"blob {segment.blob_id} has no row any more")
        check_usable(blob, segment.what)
        if segment.size_bytes:
            offset, begin = segment.offset_bytes, segment.blob_offset_bytes
            slices.append(PlannedSlice(offset, segment.size_bytes, blob, begin, segment.what))
    return tuple(slices)


def check_usable(blob: BlobRow, what: str) -> None:
    """Raise CorruptBlob when the blob has been found faulty before: it is not handed out until it is healed."""
    if blob.state == "corrupt":
        raise CorruptBlob(f"of {what} ({blob.digest[:12]})", "it was set aside as faulty")


def _offset(segment: Segment) -> int:
    return segment.offset_bytes
