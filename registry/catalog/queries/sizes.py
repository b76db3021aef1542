"""The sizes of a model, and the sensitivities of its groups of organs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.model_lists import is_projector, quantisations_of
from organs.registry.catalog.rows import first
from organs.registry.catalog.tables import ModelRow, SensitivityRow, SizeRow
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.entities.base import prepared
from organs.registry.entities.sizes import FOUND, SizeCurve, SizePoint, SizeReading
from organs.registry.names import ModelName


def sensitivities_of(
    session: Session, file_digest: str, texts: str, tokens: int, runtime: str, importances: str = ""
) -> dict[tuple[str, str], str]:
    """Return the stored readings (JSON) of a file, by group of organs and tensor type."""
    same = {
        "file_digest": file_digest,
        "texts": texts,
        "tokens": tokens,
        "runtime": runtime,
        "importances": importances,
    }
    statement = select(SensitivityRow.organs, SensitivityRow.dtype, SensitivityRow.reading).filter_by(**same)
    return {(organs, dtype): reading for organs, dtype, reading in session.execute(statement)}


def sizes_of(session: Session, source_model_id: int) -> list[SizePoint]:
    """Return the measured sizes of a model, the smallest first; a size whose model is not reachable has no name."""
    return _points(session, SizeRow.source_model_id == source_model_id)


def source_of_size(session: Session, model_id: int) -> str | None:
    """Return the full name of the model of which `model_id` is a measured size; None if it is none."""
    statement = select(ModelRow).join(SizeRow, SizeRow.source_model_id == ModelRow.id)
    source = first(session, statement.where(SizeRow.model_id == model_id, ModelRow.state.in_(REACHABLE_STATES)))
    return None if source is None else source.full_name


def size_by_tag(session: Session, source_model_id: int, tag: str) -> SizePoint | None:
    """Return the measured size with a tag, in any case; None if there is none."""
    points = _points(session, SizeRow.source_model_id == source_model_id)
    return next((point for point in points if point.tag.casefold() == tag.casefold()), None)


def size_curve(session: Session, source: ModelRow) -> SizeCurve:
    """Return the measured sizes of a model, and its other registered quantisations that are smaller."""
    measured = sizes_of(session, source.id)
    newest = select(SizeRow.runtime, SizeRow.texts).where(SizeRow.source_model_id == source.id)
    row = session.execute(newest.order_by(SizeRow.created_at.desc(), SizeRow.id.desc()).limit(1)).first()
    runtime, texts = ("", "") if row is None else row
    return SizeCurve(
        source=source.full_name,
        source_size_bytes=source.size_bytes,
        runtime=runtime,
        texts=texts,
        points=tuple(sorted([*measured, *_found(session, source, measured)], key=lambda point: point.size_bytes)),
    )


def _found(session: Session, source: ModelRow, measured: Sequence[SizePoint]) -> Iterator[SizePoint]:
    """Yield the quantisations of a model by their names that are smaller and not among the measured ones."""
    known = {word for point in measured if point.model for word in (point.tag.casefold(), point.model)}
    for row in quantisations_of(session, ModelName(source.namespace, source.stem_of_sizes)):
        word = row.quantisation or ""
        is_known = word.casefold() in known or row.full_name in known
        if row.size_bytes < source.size_bytes and not is_known and not is_projector(row):
            yield SizePoint(
                bits=round(8 * row.size_bytes / max(1, row.parameters), 3),
                kind=FOUND,
                label=word,
                tag=word,
                size_bytes=row.size_bytes,
                model=row.full_name,
            )


def _points(session: Session, condition: ColumnElement[bool]) -> list[SizePoint]:
    statement = (
        select(SizeRow, ModelRow)
        .outerjoin(ModelRow, (ModelRow.id == SizeRow.model_id) & ModelRow.state.in_(REACHABLE_STATES))
        .where(condition)
        .order_by(SizeRow.size_bytes, SizeRow.tag)
    )
    return [_point(row, model) for row, model in session.execute(statement)]


def _point(row: SizeRow, model: ModelRow | None) -> SizePoint:
    reading = msgspec.json.decode(row.reading, type=prepared(SizeReading))
    return SizePoint(
        **msgspec.structs.asdict(reading),
        kind=row.kind,
        label=row.label,
        tag=row.tag,
        size_bytes=row.size_bytes,
        model=None if model is None else model.full_name,
    )
