"""Images of cards, as bytes, and a card that shows one."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from PIL import Image

from organs.ingest.card_images import CardImageBytes, change_with_images
from organs.registry.catalog.records import Edits
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.model_changes import edit_model
from organs.registry.catalog.tables import ModelRow
from organs.registry.digest import Digest, digest_of
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name

NAME = "images/plot.png"
CARD = f"# Weaver\n\n![A plot]({NAME})\n"


def image_bytes(form: str = "PNG", size: tuple[int, int] = (3, 2), mode: str = "RGB", **options: Any) -> bytes:
    out = BytesIO()
    Image.new(mode, size, options.pop("colour", 0)).save(out, form, **options)
    return out.getvalue()


POINTS = image_bytes()
"""A small PNG."""


def put_card(registry: LocalRegistry, model: str, data: bytes = POINTS, text: str = CARD) -> Digest:
    """Give a model a card with its image, which no program has written again; return the digest of the image."""

    def change(session: Any) -> Any:
        named = parse_model_name(model)
        found = session.query(ModelRow).filter_by(namespace=named.namespace, name=named.name)
        row = found.filter_by(version=named.version or 1).one()
        edit_model(session, row, Edits(description=text), LOCAL)
        return row

    assert change_with_images(registry, change, {NAME: CardImageBytes(data, "png", 3, 2)}, LOCAL)
    return digest_of(data)
