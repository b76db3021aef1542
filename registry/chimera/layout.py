"""New files from a model's tensors: one file merged from shards, or shards cut at a size.

The tensors' bytes stay what they are; headers are written anew from the metadata of the model's first file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.blobs import BlobRow, blobs_by_id
from organs.registry.catalog.queries.models import files_of, tensor_blobs_of
from organs.registry.catalog.tables import Model, ModelFile
from organs.registry.chimera.plan import FilePlan, PlannedSlice, check_assemblable, plan_file, plan_model
from organs.registry.chimera.stream import FileStream
from organs.registry.errors import CorruptBlob
from organs.registry.gguf import Header, HeaderSource, TensorSpec, encode_header, padded, read_header
from organs.registry.gguf.split import (
    cut,
    whole_metadata,
)
from organs.registry.store import BlobStore


@dataclass(frozen=True, slots=True)
class ReadHeader:
    """The header of one file of a model, and the source of which it was read."""

    file: ModelFile
    source: HeaderSource
    header: Header


def plan_merged(session: Session, store: BlobStore, model: Model, name: str) -> list[FilePlan]:
    """One file `name` with all tensors of `model`, without the keys of a split set; of one file, that file itself."""
    if len(files_of(session, model.id)) == 1:
        return plan_model(session, model)
    parsed, tensors = _contents(session, store, model)
    header = encode_header(whole_metadata(parsed.source, parsed.header), tensors, parsed.header.alignment)
    rows = _tensor_rows(session, model)
    return [plan_new_file(name, header, tensors, parsed.header.alignment, [rows[one.name] for one in tensors])]


def plan_shards(session: Session, store: BlobStore, model: Model, stem: str, shard_bytes: int) -> list[FilePlan]:
    """Shards `stem-00001-of-0000N.gguf` whose tensors add up to at most `shard_bytes` each, or to one tensor.

    Raises NotAssemblable when there would be too many.
    """
    parsed, tensors = _contents(session, store, model)
    shards = cut(parsed.source, parsed.header, tensors, stem, shard_bytes)
    if shards is None:
        return plan_merged(session, store, model, f"{stem}.gguf")
    rows, alignment = _tensor_rows(session, model), parsed.header.alignment
    return [
        plan_new_file(one.name, one.header, one.tensors, alignment, [rows[tensor.name] for tensor in one.tensors])
        for one in shards
    ]


def first_header(session: Session, store: BlobStore, model: Model) -> ReadHeader:
    """The header of a model's first file, which has all of its metadata. Raises CorruptBlob, MissingBlob."""
    file = files_of(session, model.id)[0]
    return _parse(store, plan_file(session, file, 0, file.header_bytes), file)


def plan_new_file(
    name: str, header: bytes, tensors: Sequence[TensorSpec], alignment: int, blobs: Sequence[BlobRow]
) -> FilePlan:
    """A file of `header`, padding included, and `tensors` behind it, whose bytes are those of `blobs`, one each."""
    slices = []
    offset = len(header)
    for tensor, blob in zip(tensors, blobs, strict=True):
        slices.append(PlannedSlice(offset, tensor.size_bytes, blob, 0, tensor.name))
        offset += padded(tensor.size_bytes, alignment)
    return FilePlan(name, offset, None, header, tuple(slices))


def _contents(session: Session, store: BlobStore, model: Model) -> tuple[ReadHeader, list[TensorSpec]]:
    """The first file's header, and the tensors of all files in order."""
    check_assemblable(model)
    parsed = [
        _parse(store, plan, file)
        for plan, file in zip(plan_model(session, model), files_of(session, model.id), strict=True)
    ]
    tensors = [TensorSpec(tensor.name, tensor.shape, tensor.dtype) for one in parsed for tensor in one.header.tensors]
    return parsed[0], tensors


def _parse(store: BlobStore, plan: FilePlan, file: ModelFile) -> ReadHeader:
    header_bytes = file.header_bytes
    collected = bytearray()
    head = FilePlan(plan.name, header_bytes, None, b"", tuple(_up_to(plan.slices, header_bytes)))
    with FileStream(store, head) as stream:
        for view in stream:
            collected += view
    source = HeaderSource(bytes(collected), file.size_bytes, plan.name)
    header = read_header(source)
    if header.end != header_bytes:
        raise CorruptBlob(plan.name, f"its header ends at {header.end}, {header_bytes} is recorded")
    return ReadHeader(file, source, header)


def _up_to(slices: Sequence[PlannedSlice], end: int) -> list[PlannedSlice]:
    return [piece for piece in slices if piece.offset_bytes < end]


def _tensor_rows(session: Session, model: Model) -> dict[str, BlobRow]:
    ids = tensor_blobs_of(session, model.id)
    rows = blobs_by_id(session, ids.values())
    return {name: rows[blob_id] for name, blob_id in ids.items()}
