"""The images of the cards of models."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.blobs import KnownBlob, blobs_by_digest
from organs.registry.catalog.rows import first, rows_among
from organs.registry.catalog.tables import Blob, CardImageRow
from organs.registry.digest import Digest
from organs.registry.entities.published import CardImage


def card_images(session: Session, model_id: int) -> tuple[CardImage, ...]:
    """Return the images of the card of a model, by name."""
    return tuple(images_of_cards(session, [model_id]).get(model_id, ()))


def images_of_cards(session: Session, model_ids: Collection[int]) -> dict[int, list[CardImage]]:
    """Return the images of the cards of models, by name. Models without images are left out."""
    statement = select(CardImageRow, Blob.digest, Blob.size_bytes).join(Blob, Blob.id == CardImageRow.blob_id)
    rows = rows_among(session, statement.order_by(CardImageRow.name), CardImageRow.model_id, model_ids)
    found: dict[int, list[CardImage]] = {}
    for row, digest, size_bytes in rows:
        image = CardImage(
            name=row.name,
            digest=Digest(digest),
            format=row.format,
            width=row.width,
            height=row.height,
            size_bytes=size_bytes,
        )
        found.setdefault(row.model_id, []).append(image)
    return found


def image_blob(session: Session, model_id: int, digest: str, form: str) -> KnownBlob | None:
    """Return the bytes of the image of a model with this digest and format, if its card has it."""
    statement = select(CardImageRow.blob_id).join(Blob, Blob.id == CardImageRow.blob_id)
    is_requested = (CardImageRow.model_id == model_id, CardImageRow.format == form, Blob.digest == digest)
    if first(session, statement.where(*is_requested)) is None:
        return None
    return blobs_by_digest(session, [digest]).get(Digest(digest))
