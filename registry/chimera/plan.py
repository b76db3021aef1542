"""What a file will be made of. A plan names blobs and never holds their bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.blobs import BlobRow, blobs_by_id
from organs.registry.catalog.queries.models import Segment, files_of, parts_of, tensors_of
from organs.registry.catalog.tables import Model, ModelFile
from organs.registry.digest import Digest
from organs.registry.errors import CorruptBlob, MissingBlob, NotAssemblable
from organs.registry.store import BlobStore


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
    return [plan_file(session, file) for file in files_of(session, model.id)]


def plan_file(session: Session, file: ModelFile, begin_bytes: int = 0, end_bytes: int | None = None) -> FilePlan:
    """One file as it came in, or its bytes from `begin_bytes` to `end_bytes` as a file of their own.

    Only the blobs that these bytes need are looked up. Raises MissingBlob.
    """
    end = file.size_bytes if end_bytes is None else end_bytes
    found = [*parts_of(session, file.id), *tensors_of(session, file.id)]
    needed = [one for one in found if one.offset_bytes < end and one.offset_bytes + one.size_bytes > begin_bytes]
    slices = resolve(session, sorted(needed, key=_offset))
    return clipped(FilePlan(file.name, file.size_bytes, Digest(file.sha256), b"", slices), begin_bytes, end)


def clipped(plan: FilePlan, begin_bytes: int, end_bytes: int) -> FilePlan:
    """The bytes of `plan` from `begin_bytes` to `end_bytes`, as a file of their own."""
    assert 0 <= begin_bytes <= end_bytes <= plan.size_bytes
    if (begin_bytes, end_bytes) == (0, plan.size_bytes):
        return plan
    slices = []
    for piece in plan.slices:
        first = max(begin_bytes, piece.offset_bytes)
        last = min(end_bytes, piece.offset_bytes + piece.size_bytes)
        if first < last:
            start = piece.blob_offset_bytes + first - piece.offset_bytes
            cut = replace(piece, offset_bytes=first - begin_bytes, size_bytes=last - first, blob_offset_bytes=start)
            slices.append(cut)
    return FilePlan(plan.name, end_bytes - begin_bytes, None, plan.literal[begin_bytes:end_bytes], tuple(slices))


def plan_digest(plan: FilePlan) -> Digest:
    """What the bytes of `plan` are a function of, hashed: two plans with one digest make the same file."""
    digest = hashlib.sha256(f"{plan.size_bytes} {len(plan.literal)}\n".encode())
    digest.update(plan.literal)
    for piece in plan.slices:
        place = f"{piece.offset_bytes} {piece.size_bytes} {piece.blob_offset_bytes}"
        digest.update(f"{piece.blob.digest} {place}\n".encode())
    return Digest(digest.hexdigest())


def check_assemblable(model: Model) -> None:
    """Raise NotAssemblable when loaders must not be given this model."""
    reasons = json.loads(model.unassemblable)
    if reasons:
        raise NotAssemblable(f"{model.namespace}/{model.name}", reasons)


def resolve(session: Session, segments: Sequence[Segment]) -> tuple[PlannedSlice, ...]:
    """`segments` with the rows of their blobs; empty ones are left out. Raises MissingBlob for a blob without a row.

    Blobs that are set aside are in it too: reading them looks at their bytes again.
    """
    blobs = blobs_by_id(session, [segment.blob_id for segment in segments])
    slices = []
    for segment in segments:
        blob = blobs.get(segment.blob_id)
        if blob is None:
            raise MissingBlob(f"blob {segment.blob_id} has no row any more")
        if segment.size_bytes:
            offset, begin = segment.offset_bytes, segment.blob_offset_bytes
            slices.append(PlannedSlice(offset, segment.size_bytes, blob, begin, segment.what))
    return tuple(slices)


@contextmanager
def naming(what: str, digest: Digest) -> Iterator[None]:
    """Name the tensor `what` in the CorruptBlob or MissingBlob that the block raises for the blob `digest`."""
    try:
        yield
    except CorruptBlob as error:
        raise CorruptBlob(f"of {what} ({digest[:12]})", error.reason) from error
    except MissingBlob as error:
        raise MissingBlob(f"{what} ({digest[:12]}) is missing from the store") from error


def check_readable(store: BlobStore, blob: BlobRow, what: str) -> None:
    """Read a blob that is set aside again, and return if its bytes are right. Raises CorruptBlob, MissingBlob.

    One that is not set aside is not read.
    """
    if blob.is_set_aside:
        with naming(what, blob.digest):
            store.open(blob).close()


def _offset(segment: Segment) -> int:
    return segment.offset_bytes
