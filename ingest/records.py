"""Conversion of the results of a run to the record that the catalog registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from organs.ingest.dissect import DissectedFile, places
from organs.ingest.files import Origin
from organs.ingest.pipeline import FileDigests, Gathered, organ_key
from organs.registry.amounts import names_text
from organs.registry.anatomy import OrganType, Place
from organs.registry.catalog.records import FileRecord, ModelRecord, ParentRecord, PartRecord, PlacementRecord
from organs.registry.digest import Digest, model_digest
from organs.registry.gguf import Header
from organs.registry.gguf.blocks import block_faults, further_blocks, stated_blocks
from organs.registry.gguf.header import field_type_text, field_value_text
from organs.registry.gguf.split import SPLIT_COUNT_KEY, is_shard
from organs.registry.gguf.tokenizer import embedding_faults
from organs.registry.gguf.types import UNQUANTISED
from organs.registry.kinds import FileKind
from organs.registry.names import ModelName
from organs.registry.relatives.resolve import DeclaredParent, declared_parents, folded

NONFINITE_SHOWN = 5
"""Limit of tensor names in a sentence about NaN or infinite values."""


@dataclass(frozen=True, slots=True)
class StoredShard:
    """What an ingest uses of the header of a stored shard; the members are those of `DissectedFile`."""

    header: Header
    tags: tuple[str, ...]
    flags: tuple[str, ...]
    unassemblable: tuple[str, ...]
    sha256: Digest


def model_record(name: ModelName, files: Sequence[DissectedFile], gathered: Gathered) -> ModelRecord:
    """Return the record of the model in `files`, with the metadata of the first; `gathered` covers all pieces."""
    digests = [gathered.files[index] for index in range(len(files))]
    origin = _origin(files, digests)
    experts = {key: replace(gathered.measurements[key], nonfinite=gathered.nonfinite[key]) for key in gathered.experts}
    record = _record(name, files, [found.file for found in digests], nonfinite_tensors(files, gathered), origin)
    records = (_file_record(file, found, gathered) for file, found in zip(files, digests, strict=True))
    return replace(record, files=tuple(records), experts=experts)


def split_record(name: ModelName, shards: Sequence[StoredShard], nonfinite: Mapping[str, int]) -> ModelRecord:
    """Return the record of the model with these stored `shards`, in order, without its files.

    It has the values that `model_record` gives for the files together. `nonfinite` counts values by tensor.
    """
    return _record(name, shards, [shard.sha256 for shard in shards], nonfinite, None)


def _record(
    name: ModelName,
    files: Sequence[DissectedFile] | Sequence[StoredShard],
    digests: Sequence[Digest],
    nonfinite: Mapping[str, int],
    origin: Origin | None,
) -> ModelRecord:
    headers = [file.header for file in files]
    header, tensor_places = headers[0], [place for header in headers for place in places(header)]
    kind = header.kind(has_tensors=bool(tensor_places))
    flags = [flag for file in files for flag in file.flags]
    flags += set_flags(headers)
    if origin is not None:
        edit = f"with edited organs: {names_text(origin.edited)}" if origin.edited else "that was edited"
        flags.append(f"made from a folder of {origin.name} {edit}")
    return ModelRecord(
        name=name,
        digest=model_digest(digests),
        architecture=header.architecture,
        title=header.text("general.name"),
        description=header.text("general.description"),
        license=header.text("general.license"),
        size_label=header.text("general.size_label"),
        metadata=tuple((field.key, field_type_text(field), field_value_text(field)) for field in header.fields),
        kind=kind,
        files=(),
        tags=files[0].tags,
        parents=tuple(_parents(header, kind, origin)),
        flags=tuple(dict.fromkeys([*flags, *nonfinite_flags(nonfinite)])),
        unassemblable=tuple(reason for file in files for reason in file.unassemblable),
        complete=is_complete(header, tensor_places),
    )


def nonfinite_tensors(files: Sequence[DissectedFile], gathered: Gathered) -> dict[str, int]:
    """Return the number of NaN or infinite values by tensor, in the order of the files."""
    counts = {}
    for index, file in enumerate(files):
        for tensor in file.header.tensors:
            digest = gathered.files[index].pieces[file.tensor_span(tensor).offset]
            if count := gathered.nonfinite[organ_key(digest, tensor)]:
                counts[tensor.name] = count
    return counts


def nonfinite_flags(tensors: Mapping[str, int]) -> Iterator[str]:
    """Yield one sentence about `tensors`, counts by name; yield nothing if it is empty."""
    if tensors:
        names = [f"{name} ({count:,})" for name, count in islice(tensors.items(), NONFINITE_SHOWN)]
        more = f" and {len(tensors) - len(names)} more tensors" if len(tensors) > len(names) else ""
        yield f"weights that are NaN or infinite in {', '.join(names)}{more}"


def is_complete(header: Header, places: Sequence[Place]) -> bool:
    """Return whether a model with tensors at `places` has its embedding and all blocks that it needs to run."""
    announced = stated_blocks(header)
    if announced is None or header.kind(has_tensors=bool(places)) != FileKind.MODEL:
        return True
    needed = announced - further_blocks(header)
    blocks = {place.block for place in places if place.block is not None and place.block < needed}
    kinds = {place.type for place in places}
    return len(blocks) >= needed and {OrganType.EMBED, OrganType.SKELETON} <= kinds


def set_flags(headers: Sequence[Header]) -> Iterator[str]:
    """Yield sentences on unusual properties of a model that only all of its files show; none if shards are missing."""
    first = headers[0]
    count = first.integer(SPLIT_COUNT_KEY) if is_shard(first) else 1
    tensor_places = [place for header in headers for place in places(header)]
    if count == len(headers) and first.kind(has_tensors=bool(tensor_places)) == FileKind.MODEL:
        yield from block_faults(first, tensor_places)
        yield from embedding_faults(first, (tensor for header in headers for tensor in header.tensors))


def _file_record(file: DissectedFile, digests: FileDigests, gathered: Gathered) -> FileRecord:
    parts, position = [], 0
    for span in file.literals():
        if span.size_bytes:
            parts.append(PartRecord(span.offset, span.size_bytes, digests.literal, position))
        position += span.size_bytes
    parts += (PartRecord(array.offset, array.size_bytes, digests.pieces[array.offset], 0) for array in file.arrays)
    for offset, data in file.paddings:
        parts.append(PartRecord(offset, len(data), digests.literal, position))
        position += len(data)
    placements = []
    for tensor, place in zip(file.header.tensors, places(file.header), strict=True):
        span = file.tensor_span(tensor)
        digest = digests.pieces[span.offset]
        key = organ_key(digest, tensor)
        placements.append(
            PlacementRecord(
                name=tensor.name,
                place=place,
                digest=digest,
                dtype=tensor.dtype.name,
                shape=tensor.shape,
                size_bytes=tensor.size_bytes,
                offset_bytes=span.offset,
                measurement=gathered.measurements.get(key),
                nonfinite=gathered.nonfinite[key],
            )
        )
    return FileRecord(
        name=file.source.path.name,
        size_bytes=file.header.file_size_bytes,
        sha256=digests.file,
        header_sha256=digests.header,
        header_bytes=file.header.end,
        parts=tuple(parts),
        placements=tuple(placements),
    )


def _origin(files: Sequence[DissectedFile], digests: Sequence[FileDigests]) -> Origin | None:
    """Return the original of edited `files`: the name of its first file, its digest as a model, and all edited organs.

    Return None if the original of a file is unknown, or if nothing was edited.
    """
    all_origins = [file.source.origin(found.pieces) for file, found in zip(files, digests, strict=True)]
    origins = [origin for origin in all_origins if origin is not None]
    if len(origins) < len(files) or [origin.sha256 for origin in origins] == [found.file for found in digests]:
        return None
    edited = tuple(name for origin in origins for name in origin.edited)
    return Origin(origins[0].name, model_digest([origin.sha256 for origin in origins]), edited)


def _parents(header: Header, kind: str, origin: Origin | None) -> Iterator[ParentRecord]:
    """Return the original of an edited model, and the parents that the metadata declares."""
    if origin is not None:
        yield ParentRecord(origin.name, "grafted" if origin.edited else "relative", origin.sha256)
    for parent in declared_parents(header):
        yield ParentRecord(parent.text, _relation(header, kind, parent))


def _relation(header: Header, kind: str, parent: DeclaredParent) -> str:
    """Return the declared relation to `parent`; a parent with the model's own name has the same weights, encoded
    differently.
    """
    if kind == "adapter":
        return "adapter"
    name, version = (folded(header.text(f"general.{key}") or "") for key in ("name", "version"))
    if not name or name != folded(parent.name) or (version and parent.version and version != folded(parent.version)):
        return "finetune"
    quantised = any(tensor.dtype.name not in UNQUANTISED for tensor in header.tensors)
    return "quantized" if quantised or header.text("general.quantized_by") else "relative"
