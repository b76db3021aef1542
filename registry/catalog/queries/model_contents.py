"""The contents of a model: files, tensors, header, texts, and sums over its types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, case, func, or_, select
from sqlalchemy.orm import Session

from organs.registry.amounts import count_text
from organs.registry.catalog.rows import entity_of, first, rows_among, scalars_among
from organs.registry.catalog.tables import (
    Blob,
    BlobPart,
    Expert,
    FilePart,
    Ingest,
    KnownFile,
    ModelFileRow,
    ModelMetadata,
    ModelRow,
    OrganRow,
    Placement,
    RuntimeTextRow,
)
from organs.registry.catalog.vocabulary import PRIVATE_TEXT_KINDS, REACHABLE_STATES
from organs.registry.digest import Digest
from organs.registry.entities import model as entities
from organs.registry.entities.model import TypeSummary
from organs.registry.measures import FEW_NUMBERS, caution_of_mean, theta_caution


@dataclass(frozen=True, slots=True)
class FileSegment:
    """A slice of a blob, and its offset in a file."""

    offset_bytes: int
    size_bytes: int
    blob_id: int
    blob_offset_bytes: int
    content: str
    """The name of a tensor, or `header` for all bytes around the tensors."""


def files_of(session: Session, model_id: int) -> Sequence[ModelFileRow]:
    """Return the files of a model in order."""
    return files_by_model(session, [model_id])[model_id]


def parts_of(session: Session, file_id: int) -> list[FileSegment]:
    """Return header and padding of a file, by offset."""
    statement = select(FilePart).where(FilePart.file_id == file_id).order_by(FilePart.offset_bytes)
    return [
        FileSegment(part.offset_bytes, part.size_bytes, part.blob_id, part.blob_offset_bytes, "header")
        for part in session.scalars(statement)
    ]


def tensors_of(session: Session, file_id: int) -> list[FileSegment]:
    """Return the tensors of a file, by offset."""
    statement = (
        select(Placement.offset_bytes, Placement.size_bytes, OrganRow.blob_id, Placement.name)
        .join(OrganRow, OrganRow.id == Placement.organ_id)
        .where(Placement.file_id == file_id)
        .order_by(Placement.offset_bytes)
    )
    return [FileSegment(offset, size, blob_id, 0, name) for offset, size, blob_id, name in session.execute(statement)]


def tensor_blobs_of(session: Session, model_id: int) -> dict[str, int]:
    """Return the blob ids of all tensors of a model, by name."""
    statement = select(Placement.name, OrganRow.blob_id).join(OrganRow, OrganRow.id == Placement.organ_id)
    return dict(session.execute(statement.where(Placement.model_id == model_id)).all())


def placements_of(
    session: Session, model_id: int, limit: int | None = None, after: int = -1
) -> Sequence[Row[Placement, str, str, int | None]]:
    """Return the placements in order, all or the first `limit` after the position `after`.

    Each row also has shape, digest, and number of NaN and infinite values of its organ.
    """
    statement = (
        select(Placement, OrganRow.shape, Blob.digest, OrganRow.nonfinite)
        .join(OrganRow, OrganRow.id == Placement.organ_id)
        .join(Blob, Blob.id == OrganRow.blob_id)
        .where(Placement.model_id == model_id, Placement.position > after)
        .order_by(Placement.position)
    )
    return session.execute(statement.limit(limit)).all()


def count_experts(session: Session, model_id: int) -> int:
    """Return the number of experts of a model that are recorded one by one."""
    experts = select(func.count()).select_from(Expert).where(Expert.model_id == model_id)
    return session.scalar(experts.with_hint(Expert, "INDEXED BY ix_experts_model", "sqlite")) or 0


def dtype_counts(session: Session, model_id: int) -> dict[str, int]:
    """Return the number of tensors of each dtype in a model."""
    counted = select(Placement.dtype, func.count()).where(Placement.model_id == model_id).group_by(Placement.dtype)
    return dict(session.execute(counted).all())


def metadata_of(session: Session, model_id: int) -> Sequence[ModelMetadata]:
    """Return the metadata in header order."""
    statement = select(ModelMetadata).where(ModelMetadata.model_id == model_id).order_by(ModelMetadata.position)
    return session.scalars(statement).all()


def metadata_of_models(
    session: Session, model_ids: Collection[int], keys: Collection[str], kind: str | None = None
) -> dict[int, dict[str, str]]:
    """Return the stored values of `keys` in the headers of each model, by key: of any type, or of the type `kind`."""
    values: dict[int, dict[str, str]] = {model_id: {} for model_id in model_ids}
    statement = select(ModelMetadata.model_id, ModelMetadata.key, ModelMetadata.value)
    statement = statement.where(ModelMetadata.key.in_(sorted(keys))).order_by(ModelMetadata.position)
    if kind is not None:
        statement = statement.where(ModelMetadata.type == kind)
    for model_id, key, value in rows_among(session, statement, ModelMetadata.model_id, model_ids):
        values[model_id].setdefault(key, value)
    return values


def runtime_texts(
    session: Session, model_ids: Collection[int], *, private: bool = False
) -> dict[int, tuple[entities.RuntimeText, ...]]:
    """Return the texts that other tools keep beside each model; those that stay on this machine only if `private`."""
    texts: dict[int, tuple[entities.RuntimeText, ...]] = dict.fromkeys(model_ids, ())
    statement = select(RuntimeTextRow).order_by(RuntimeTextRow.model_id, RuntimeTextRow.position)
    if not private:
        statement = statement.where(RuntimeTextRow.kind.not_in(PRIVATE_TEXT_KINDS))
    for row in scalars_among(session, statement, RuntimeTextRow.model_id, model_ids):
        texts[row.model_id] += (entity_of(entities.RuntimeText, row),)
    return texts


def digests_by_stamp(session: Session, stamps: Collection[str]) -> dict[str, Digest]:
    """Return the SHA-256 of the files with these stamps that an ingest has read."""
    rows = rows_among(session, select(KnownFile.stamp, KnownFile.sha256), KnownFile.stamp, stamps)
    return {stamp: Digest(sha256) for stamp, sha256 in rows}


def has_damaged_blobs(session: Session, model_id: int) -> bool:
    """Return whether a blob of the model was set aside because its stored bytes are wrong or missing."""
    damaged = select(Blob.id).where(Blob.state == "corrupt")
    files = select(ModelFileRow.id).where(ModelFileRow.model_id == model_id)
    in_parts = select(FilePart.blob_id).where(FilePart.file_id.in_(files), FilePart.blob_id.in_(damaged))
    stacked = select(BlobPart.blob_id).where(BlobPart.part_id.in_(damaged))
    in_places = (
        select(OrganRow.blob_id)
        .join(Placement, Placement.organ_id == OrganRow.id)
        .where(Placement.model_id == model_id, or_(OrganRow.blob_id.in_(damaged), OrganRow.blob_id.in_(stacked)))
    )
    return any(session.scalar(statement.limit(1)) is not None for statement in (in_parts, in_places))


@dataclass(frozen=True, slots=True)
class TypeFigures:
    """The tensors of one type and one tensor type in a model."""

    model_id: int
    type: str
    dtype: str
    tensors: int
    measured: int
    theta_sum: float
    signal_sum: float
    few: int
    """Measured tensors with few values."""


def type_figures(session: Session, model_ids: Collection[int]) -> list[TypeFigures]:
    """Return a row for each type and tensor type in these models, by model and type."""
    theta = Placement.theta
    sums = (
        func.count(),
        func.count(theta),
        func.coalesce(func.sum(theta), 0.0),
        func.coalesce(func.sum(Placement.signal), 0.0),
        func.sum(case((and_(theta.is_not(None), OrganRow.elements < FEW_NUMBERS), 1), else_=0)),
    )
    keys = (Placement.model_id, Placement.type, Placement.dtype)
    statement: Any = (
        select(*keys, *sums).join(OrganRow, OrganRow.id == Placement.organ_id).group_by(*keys).order_by(*keys)
    )
    return [TypeFigures(*row) for row in rows_among(session, statement, Placement.model_id, model_ids)]


def caution_of_types(parts: Iterable[TypeFigures]) -> str:
    """Return why the mean θ over `parts` is uncertain; empty if it is not."""
    rows = list(parts)
    uncertain = sum(row.measured if theta_caution(0.0, row.dtype, FEW_NUMBERS) else row.few for row in rows)
    return caution_of_mean(uncertain, sum(row.measured for row in rows))


def type_summaries(session: Session, model_id: int) -> tuple[TypeSummary, ...]:
    """Return a summary of each type in a model, by the name of the type."""
    statement = (
        select(
            Placement.type,
            func.count(),
            func.sum(Placement.size_bytes),
            func.avg(Placement.theta),
            func.avg(Placement.spectral_signal),
        )
        .where(Placement.model_id == model_id)
        .group_by(Placement.type)
        .order_by(Placement.type)
    )
    parts = type_figures(session, [model_id])
    return tuple(
        TypeSummary(
            type=kind,
            tensors=count,
            size_bytes=int(size),
            mean_theta=theta,
            theta_caution=caution_of_types(part for part in parts if part.type == kind),
            mean_spectral_signal=spectral,
        )
        for kind, count, size, theta, spectral in session.execute(statement)
    )


def ingest_reports(session: Session, model_id: int) -> Sequence[str]:
    """Return the reports of the finished ingests of a model, as JSON, in order."""
    statement = select(Ingest.report).where(Ingest.model_id == model_id, Ingest.state == "finished")
    return [report for report in session.scalars(statement.order_by(Ingest.id)) if report is not None]


def organ_sizes_of(session: Session, model_id: int) -> Sequence[Row[int, int]]:
    """Return the id and the size in bytes of the organ of each tensor of a model."""
    return session.execute(select(Placement.organ_id, Placement.size_bytes).where(Placement.model_id == model_id)).all()


def nonfinite_organs(session: Session, model_id: int) -> dict[str, int]:
    """Return the number of NaN and infinite values of the tensors that have any, by name, in the order of the model."""
    statement = select(Placement.name, OrganRow.nonfinite).join(OrganRow, OrganRow.id == Placement.organ_id)
    statement = statement.where(Placement.model_id == model_id, OrganRow.nonfinite > 0).order_by(Placement.position)
    return {name: count or 0 for name, count in session.execute(statement)}


def ingest_of(session: Session, model_id: int) -> Ingest | None:
    """Return the ingest that registered the model, or None."""
    return first(session, select(Ingest).where(Ingest.model_id == model_id).order_by(Ingest.id))


DTYPES_MAX = 6
"""The most dtypes in the facts of a model."""


def facts_of(
    model: ModelRow, metadata: Iterable[ModelMetadata], dtypes: Iterable[str] | Mapping[str, int]
) -> dict[str, str]:
    """Return at most ten facts of a model as short texts, by name, in the order of display.

    `dtypes` has the dtype of each tensor, or the number of tensors of each dtype.
    """
    texts = {row.key: row.value for row in metadata}
    prefix = f"{model.architecture}."
    tokens = texts.get("tokenizer.ggml.tokens", "")  # a list of tokens is stored as `[2048 × string]`
    tokenizer = filter(None, (texts.get("tokenizer.ggml.model"), texts.get("tokenizer.ggml.pre")))
    counts = sorted(Counter(dtypes).items(), key=lambda pair: (-pair[1], pair[0]))
    dtype_texts = [f"{number:,} {dtype}" for dtype, number in counts[:DTYPES_MAX]]
    facts = {
        "kind": model.kind if model.complete else "partial",
        "architecture": model.architecture,
        "license": model.license,
        "parameters": count_text(model.parameters),
        "dtypes": ", ".join(dtype_texts + ["…"] * (len(counts) > DTYPES_MAX)),
        "blocks": texts.get(prefix + "block_count"),
        "embedding length": _grouped(texts.get(prefix + "embedding_length")),
        "context length": _grouped(texts.get(prefix + "context_length")),
        "vocabulary": _grouped(
            tokens[1:].split(" ", 1)[0] if tokens.startswith("[") else texts.get(prefix + "vocab_size")
        ),
        "tokenizer": ", ".join(dict.fromkeys(tokenizer)),
    }
    return {name: text for name, text in facts.items() if text}


def _grouped(text: str | None) -> str | None:
    """Return a whole number with separators; any other text unchanged."""
    return f"{int(text):,}" if text is not None and text.isascii() and text.isdigit() else text


def has_public_place() -> ColumnElement[bool]:
    """Return the condition that a visible or yanked model has the OrganRow of the outer statement."""
    places = select(Placement.id).join(ModelRow, ModelRow.id == Placement.model_id)
    experts = select(Expert.id).join(ModelRow, ModelRow.id == Expert.model_id)
    return or_(
        places.where(Placement.organ_id == OrganRow.id, ModelRow.state.in_(REACHABLE_STATES)).exists(),
        experts.where(Expert.organ_id == OrganRow.id, ModelRow.state.in_(REACHABLE_STATES)).exists(),
    )


def organs_by_name(session: Session, model_id: int) -> dict[str, int]:
    """Return the ids of the organs of a model by the names of its tensors."""
    return dict(session.execute(select(Placement.name, Placement.organ_id).where(Placement.model_id == model_id)).all())


def files_by_model(session: Session, model_ids: Collection[int]) -> dict[int, list[ModelFileRow]]:
    """Return the files of each model, in their order."""
    files: dict[int, list[ModelFileRow]] = {model_id: [] for model_id in model_ids}
    statement = select(ModelFileRow).order_by(ModelFileRow.model_id, ModelFileRow.position)
    for file in scalars_among(session, statement, ModelFileRow.model_id, model_ids):
        files[file.model_id].append(file)
    return files


def name_of_organ(session: Session, organ_id: int, name: str | None) -> str | None:
    """Return the tensor name of the oldest public place of the organ, or None without a public place.

    An expert has the name of its stack. With `name`, only places with this tensor name count.
    """
    statement = select(Placement.name).join(ModelRow, ModelRow.id == Placement.model_id)
    statement = statement.where(ModelRow.state.in_(REACHABLE_STATES)).order_by(Placement.id)
    if name is not None:
        statement = statement.where(Placement.name == name)
    experts = statement.join(Expert, Expert.placement_id == Placement.id).where(Expert.organ_id == organ_id)
    whole = first(session, statement.where(Placement.organ_id == organ_id))
    return first(session, experts) if whole is None else whole
