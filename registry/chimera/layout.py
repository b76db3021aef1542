"""New files from a model's tensors: one file merged from shards, or shards cut at a size.

The tensors' bytes stay what they are; headers are written anew from the metadata of the model's first file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from registry.catalog.queries.blobs import BlobRow, blobs_by_id
from registry.catalog.queries.models import files_of, tensor_blobs_of
from registry.catalog.tables import Model, ModelFile
from registry.chimera.plan import FilePlan, PlannedSlice, check_assemblable, check_usable, plan_file, plan_model
from registry.chimera.stream import FileStream
from registry.errors import CorruptBlob, NotAssemblable
from registry.gguf import (
    Header,
    HeaderSource,
    KeyValue,
    TensorSpec,
    ValueType,
    carry_over,
    encode_header,
    padded,
    read_header,
)
from registry.gguf.split import SPLIT_COUNT_KEY, SPLIT_KEYS, SPLIT_NUMBER_KEY, SPLIT_TENSORS_KEY, ShardName
from registry.gguf.write import Metadata
from registry.store import BlobStore

SHARDS_MAX = 65_535
"""`split.count` is a 16-bit number."""


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
    return [_plan(name, _metadata(parsed), tensors, parsed.header.alignment, _tensor_rows(session, model))]


def plan_shards(session: Session, store: BlobStore, model: Model, stem: str, shard_bytes: int) -> list[FilePlan]:
    """Shards `stem-00001-of-0000N.gguf` whose tensors add up to at most `shard_bytes` each, or to one tensor.

    Raises NotAssemblable when there would be too many.
    """
    parsed, tensors = _contents(session, store, model)
    alignment = parsed.header.alignment
    groups = _cut(tensors, shard_bytes, alignment)
    if len(groups) == 1:
        return plan_merged(session, store, model, f"{stem}.gguf")
    if len(groups) > SHARDS_MAX:
        raise NotAssemblable(model.name, [f"it would be {len(groups)} shards; a split set has at most {SHARDS_MAX}"])
    plans = []
    rows = _tensor_rows(session, model)
    for number, group in enumerate(groups):
        split: list[Metadata] = [
            KeyValue(SPLIT_NUMBER_KEY, ValueType.UINT16, number),
            KeyValue(SPLIT_COUNT_KEY, ValueType.UINT16, len(groups)),
            KeyValue(SPLIT_TENSORS_KEY, ValueType.INT32, len(tensors)),
        ]
        metadata = [*_metadata(parsed), *split] if number == 0 else split
        name = str(ShardName(stem, number + 1, len(groups)))
        plans.append(_plan(name, metadata, group, alignment, rows))
    return plans


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


def _metadata(parsed: ReadHeader) -> list[Metadata]:
    return [carry_over(parsed.source, field) for field in parsed.header.fields if field.key not in SPLIT_KEYS]


def _cut(tensors: Sequence[TensorSpec], shard_bytes: int, alignment: int) -> list[list[TensorSpec]]:
    groups: list[list[TensorSpec]] = [[]]
    filled = 0
    for tensor in tensors:
        size = padded(tensor.size_bytes, alignment)
        if groups[-1] and filled + size > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += size
    return groups


def _tensor_rows(session: Session, model: Model) -> dict[str, BlobRow]:
    ids = tensor_blobs_of(session, model.id)
    rows = blobs_by_id(session, ids.values())
    for name, blob_id in ids.items():
        check_usable(rows[blob_id], name)
    return {name: rows[blob_id] for name, blob_id in ids.items()}


def _plan(
    name: str,
    metadata: Sequence[Metadata],
    tensors: Sequence[TensorSpec],
    alignment: int,
    rows: Mapping[str, BlobRow],
) -> FilePlan:
    header = encode_header(metadata, tensors, alignment)
    return plan_new_file(name, header, tensors, alignment, [rows[tensor.name] for tensor in tensors])
