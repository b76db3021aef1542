"""Rows of sizes and of sensitivities."""

from __future__ import annotations

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.rows import first, insert_missing
from organs.registry.catalog.tables import ModelRow, SensitivityRow, SizeRow, now
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.entities.base import encode
from organs.registry.entities.sizes import SizeReading


def record_sensitivity(
    session: Session,
    file_digest: str,
    organs: str,
    dtype: str,
    texts: str,
    tokens: int,
    runtime: str,
    reading: str,
    importances: str = "",
) -> None:
    """Store what a tensor type of one group of organs does to a file (JSON), unless it is stored already."""
    row = {
        "file_digest": file_digest,
        "organs": organs,
        "dtype": dtype,
        "importances": importances,
        "texts": texts,
        "tokens": tokens,
        "runtime": runtime,
        "reading": reading,
        "created_at": now(),
    }
    insert_missing(session, SensitivityRow, [row])


def record_size(
    session: Session,
    source_model_id: int,
    model_id: int | None,
    kind: str,
    label: str,
    tag: str,
    size_bytes: int,
    reading: SizeReading,
    texts: str,
    runtime: str,
) -> None:
    """Store a measured size of a model, in place of an earlier one with the same tag.

    A size in the namespace of its source is not replaced by one in another namespace, whose owner made it.
    """
    key = {"source_model_id": source_model_id, "tag": tag}
    if _is_owned(session, source_model_id, tag) and not _is_in_namespace(session, source_model_id, model_id):
        return
    values = {
        "model_id": model_id,
        "kind": kind,
        "label": shown_text(label, 96),
        "size_bytes": size_bytes,
        "reading": encode(reading).decode(),
        "texts": texts,
        "runtime": shown_text(runtime, 256),
        "created_at": now(),
    }
    insert_missing(session, SizeRow, [key | values])
    session.execute(update(SizeRow).filter_by(**key).values(values))


def _is_owned(session: Session, source_model_id: int, tag: str) -> bool:
    """Return whether the stored size with this tag is a visible model in the namespace of its source."""
    stored = select(SizeRow.model_id).join(ModelRow, ModelRow.id == SizeRow.model_id)
    model_id = first(
        session,
        stored.where(SizeRow.source_model_id == source_model_id, SizeRow.tag == tag, ModelRow.state == "visible"),
    )
    return model_id is not None and _is_in_namespace(session, source_model_id, model_id)


def _is_in_namespace(session: Session, source_model_id: int, model_id: int | None) -> bool:
    source = session.get_one(ModelRow, source_model_id)
    model = None if model_id is None else session.get_one(ModelRow, model_id)
    return model is None or model.namespace == source.namespace
