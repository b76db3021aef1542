"""Giving images to cards, and dropping those that a card does not name any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from organs.registry.amounts import names_text, size_text
from organs.registry.card_text import image_names
from organs.registry.catalog.queries.blobs import blobs_by_digest
from organs.registry.catalog.queries.card_images import card_images
from organs.registry.catalog.register.events import record_event
from organs.registry.catalog.tables import CardImageRow, ModelRow, now
from organs.registry.catalog.vocabulary import Action
from organs.registry.digest import Digest
from organs.registry.errors import BadImage
from organs.registry.upload_limits import CARD_IMAGES_MAX, CARD_IMAGES_MAX_BYTES


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """An image that a card names, or is to name."""

    name: str
    digest: Digest
    size_bytes: int
    format: str
    width: int
    height: int


def set_images(session: Session, model: ModelRow, images: Sequence[ImageRecord], by: str) -> bool:
    """Add `images`, whose blobs are recorded, to the card of `model`, or replace those of the same name.

    Return whether any differs. Raises BadImage, as `new_images`.
    """
    changed = new_images(session, model, images)
    if not changed:
        return False
    rows = blobs_by_digest(session, [image.digest for image in changed])
    for image in changed:
        row = CardImageRow(model_id=model.id, name=image.name, blob_id=rows[image.digest].id, format=image.format)
        row.width, row.height = image.width, image.height
        session.merge(row)
    model.changed_at = now()
    note = f"images {names_text([image.name for image in changed])}"
    record_event(session, by, Action.EDIT, model.full_name, note, model_id=model.id)
    session.flush()
    return True


def new_images(session: Session, model: ModelRow, images: Sequence[ImageRecord]) -> list[ImageRecord]:
    """Return those of `images` that the card of `model` does not have yet.

    Raises BadImage for an image that the card does not name, and if there would be too many or too large ones.
    """
    named = image_names(model.description or "")
    for image in images:
        if image.name not in named:
            raise BadImage(f"the card of {model.full_name} shows no image {image.name[:200]!r}")
    before = {image.name: image for image in card_images(session, model.id)}
    changed = [image for image in images if image.name not in before or before[image.name].digest != image.digest]
    sizes = {name: image.size_bytes for name, image in before.items()}
    sizes |= {image.name: image.size_bytes for image in changed}
    if changed and (len(sizes) > CARD_IMAGES_MAX or sum(sizes.values()) > CARD_IMAGES_MAX_BYTES):
        most = f"{CARD_IMAGES_MAX} images, of {size_text(CARD_IMAGES_MAX_BYTES)} together"
        raise BadImage(f"the card of {model.full_name} would have too many or too large images; it has at most {most}")
    return changed


def drop_unnamed_images(session: Session, model: ModelRow) -> None:
    """Remove the images of `model` that its card does not name. A sweep frees their bytes."""
    names = set(session.scalars(select(CardImageRow.name).where(CardImageRow.model_id == model.id)))
    unnamed = names.difference(image_names(model.description or "")) if names else names
    session.execute(delete(CardImageRow).where(CardImageRow.model_id == model.id, CardImageRow.name.in_(unnamed)))
