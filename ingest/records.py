"""Conversion of the results of a run to the record that the catalog registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from organs.ingest.checking import UNSAFE, flags_of, nonfinite_findings, places_of
from organs.ingest.dissect import DissectedFile, Front
from organs.ingest.pipeline import FileDigests, Gathered, organ_key
from organs.registry.amounts import names_text
from organs.registry.anatomy import OrganType, place_of
from organs.registry.catalog.records import FileRecord, ModelRecord, ParentRecord, PartRecord, PlacementRecord
from organs.registry.digest import Digest, model_digest
from organs.registry.entities.finding import FileFinding
from organs.registry.gguf import Header
from organs.registry.gguf.blocks import further_blocks, stated_blocks
from organs.registry.gguf.header import field_type_text, field_value_text
from organs.registry.gguf.types import UNQUANTISED
from organs.registry.input_files import Origin
from organs.registry.kinds import FileKind
from organs.registry.names import ModelName
from organs.registry.relatives.declared import DeclaredParent, declared_parents, folded


def model_record(
    name: ModelName, files: Sequence[DissectedFile], gathered: Gathered, findings: Sequence[FileFinding]
) -> ModelRecord:
    """Return the record of the model in `files`, with the metadata of the first; `gathered` covers all pieces.

    `findings` are those of `ingest.checking.file_findings`.
    """
    fronts = [file.front for file in files]
    digests = [found.file for found in gathered.files]
    origin = _origin(files, gathered.files)
    experts = {key: replace(gathered.measurements[key], nonfinite=gathered.nonfinite[key]) for key in gathered.experts}
    record = record_of_fronts(name, fronts, findings, digests, nonfinite_tensors(files, gathered), origin)
    records = (_file_record(file, found, gathered) for file, found in zip(files, gathered.files, strict=True))
    return replace(record, files=tuple(records), experts=experts)


def record_of_fronts(
    name: ModelName,
    fronts: Sequence[Front],
    findings: Sequence[FileFinding],
    digests: Sequence[Digest],
    nonfinite: Mapping[str, int],
    origin: Origin | None = None,
) -> ModelRecord:
    """Return the record, without its files, of the model whose files have these fronts, in order.

    `findings` are those of all files, `digests` their SHA-256; `nonfinite` counts values by tensor.
    """
    headers = [front.header for front in fronts]
    header, kind = headers[0], headers[0].kind(has_tensors=any(header.tensors for header in headers))
    flags, parents = list(flags_of(findings)), list[ParentRecord]()
    if origin is not None:
        edit = f"with edited tensors: {names_text(origin.edited)}" if origin.edited else "that was edited"
        flags.append(f"made from a folder of {origin.name} {edit}")
        parents.append(ParentRecord(origin.name, "grafted" if origin.edited else "relative", origin.sha256))
    parents += (ParentRecord(parent.text, _relation(header, kind, parent)) for parent in declared_parents(header))
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
        tags=fronts[0].tags,
        parents=tuple(parents),
        flags=tuple(dict.fromkeys([*flags, *(item.text for item in nonfinite_findings(nonfinite))])),
        unassemblable=tuple(item.sentence for item in findings if item.code == UNSAFE),
        complete=is_complete(headers),
    )


def nonfinite_tensors(files: Sequence[DissectedFile], gathered: Gathered) -> dict[str, int]:
    """Return the number of NaN or infinite values by tensor, in the order of the files."""
    counts = {}
    for file, digests in zip(files, gathered.files, strict=True):
        for tensor in file.header.tensors:
            digest = digests.pieces[file.tensor_span(tensor).offset]
            if count := gathered.nonfinite[organ_key(digest, tensor)]:
                counts[tensor.name] = count
    return counts


def is_complete(headers: Sequence[Header]) -> bool:
    """Return whether the model in files with these headers has its embedding and all blocks that it needs to run."""
    header, places = headers[0], places_of(headers)
    announced = stated_blocks(header)
    if announced is None or header.kind(has_tensors=bool(places)) != FileKind.MODEL:
        return True
    needed = announced - further_blocks(header)
    blocks = {place.block for place in places if place.block is not None and place.block < needed}
    kinds = {place.type for place in places}
    return len(blocks) >= needed and {OrganType.EMBED, OrganType.SKELETON} <= kinds


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
    for tensor in file.header.tensors:
        span = file.tensor_span(tensor)
        digest = digests.pieces[span.offset]
        key = organ_key(digest, tensor)
        placements.append(
            PlacementRecord(
                name=tensor.name,
                place=place_of(tensor.name),
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


def _relation(header: Header, kind: str, parent: DeclaredParent) -> str:
    """Return the declared relation to `parent`; a parent with the model's own name has the same weights, encoded
    differently. An importance matrix belongs to its parent and has no weights.
    """
    if kind == "adapter":
        return "adapter"
    if kind == FileKind.IMATRIX:
        return "relative"
    name, version = (folded(header.text(f"general.{key}") or "") for key in ("name", "version"))
    if not name or name != folded(parent.name) or (version and parent.version and version != folded(parent.version)):
        return "finetune"
    quantised = any(tensor.dtype.name not in UNQUANTISED for tensor in header.tensors)
    return "quantized" if quantised or header.text("general.quantized_by") else "relative"
