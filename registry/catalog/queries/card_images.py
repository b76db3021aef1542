"""The images of the cards of models."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.blobs import KnownBlob, blobs_by_digest
from organs.registry.catalog.rows import first
from organs.registry.catalog.tables import Blob, CardImageRow
from organs.registry.digest import Digest
from organs.registry.entities.published import CardImage


def card_images(session: Session, model_id: int) -> tuple[CardImage, ...]:
    """Return the images of the card of a model, by name."""
    statement = select(CardImageRow, Blob.digest, Blob.size_bytes).join(Blob, Blob.id == CardImageRow.blob_id)
    rows = session.execute(statement.where(CardImageRow.model_id == model_id).order_by(CardImageRow.name))
    return tuple(
        CardImage(
            name=row.name,
            digest=Digest(digest),
            format=row.format,
            width=row.width,
            height=row.height,
            size_bytes=size_bytes,
        )
        for row, digest, size_bytes in rows
    )


def image_blob(session: Session, model_id: int, digest: str, form: str) -> KnownBlob | None:
    """Return the bytes of the image of a model with this digest and format, if its card has it."""
    statement = select(CardImageRow.blob_id).join(Blob, Blob.id == CardImageRow.blob_id)
    is_requested = (CardImageRow.model_id == model_id, CardImageRow.format == form, Blob.digest == digest)
    if first(session, statement.where(*is_requested)) is None:
        return None
    return blobs_by_digest(session, [digest]).get(Digest(digest))
