"""Rows of sizes and of sensitivities."""

from __future__ import annotations

from sqlalchemy import update
from sqlalchemy.orm import Session

from organs.registry.catalog.rows import insert_missing
from organs.registry.catalog.tables import SensitivityRow, SizeRow, now
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
    """Store a measured size of a model, in place of an earlier one with the same tag."""
    key = {"source_model_id": source_model_id, "tag": tag}
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
