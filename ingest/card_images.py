"""Images of cards: read beside a card, written again by a confined program, and stored with the rows that name them.

No image is decoded in this process. What the confined program (`ingest.image_encoder`) answers is not trusted either:
it may come from an image that escaped.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta
from sqlalchemy.orm import Session

from organs.registry.amounts import size_text
from organs.registry.card_text import image_names
from organs.registry.catalog.register.card_images import ImageRecord, new_images, set_images
from organs.registry.catalog.register.organs import begin_ingest, forget_ingest, record_blobs
from organs.registry.catalog.tables import ModelRow
from organs.registry.digest import digest_of
from organs.registry.entities.base import Entity, decode
from organs.registry.entities.published import ImageFormat
from organs.registry.errors import BadImage
from organs.registry.local import LocalRegistry
from organs.registry.sandbox.process import ProcessLimits, Sandbox, run_python
from organs.registry.upload_limits import (
    CARD_IMAGE_MAX_BYTES,
    CARD_IMAGE_SIDE_MAX,
    CARD_IMAGES_MAX,
    CARD_IMAGES_MAX_BYTES,
)

PROGRAM = "organs.ingest.image_encoder"
LIMITS = ProcessLimits(
    wall_seconds=60.0,
    cpu_seconds=15,
    address_space_bytes=1024**3,
    file_size_bytes=0,
    output_max_bytes=CARD_IMAGE_MAX_BYTES + 4096,
)
"""A usual image takes 0.3 s, most of it to start; the largest takes 3 s and 0.4 GiB."""
AT_ONCE = 2
"""Images that one process has written again at the same time; others wait."""
_MAGIC = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff"}
_REASONS = {
    "kind": "is no PNG, JPEG, WebP or GIF image",
    "side": f"has more than {CARD_IMAGE_SIDE_MAX:,} pixels on a side",
    "damaged": "is damaged or cut off",
    "large": f"has more than {size_text(CARD_IMAGE_MAX_BYTES)} when it is written again; make it smaller",
}
_places = threading.BoundedSemaphore(AT_ONCE)


@dataclass(frozen=True, slots=True)
class CardImageBytes:
    """An image that the confined program has written."""

    data: bytes
    format: ImageFormat
    width: int
    height: int


Side = Annotated[int, Meta(ge=1, le=CARD_IMAGE_SIDE_MAX)]


class _Written(Entity):
    """The first line of the confined program."""

    format: ImageFormat | None = None
    width: Side = 1
    height: Side = 1
    refused: Literal["kind", "side", "damaged", "large"] | None = None


def read_images(folder: Path, text: str) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the bytes of the images below `folder` that the card `text` names, by their names; and why others lack.

    Links are not followed: they could lead to private files.
    """
    found: dict[str, bytes] = {}
    lacking: list[str] = []
    names = image_names(text)
    if len(names) > CARD_IMAGES_MAX:
        lacking.append(f"the card shows {len(names)} images; the first {CARD_IMAGES_MAX} are taken")
    left = CARD_IMAGES_MAX_BYTES
    for name in names[:CARD_IMAGES_MAX]:
        try:
            data = _read_below(folder, name)
        except OSError as error:
            is_link = error.errno in (errno.ELOOP, errno.ENOTDIR)
            lacking.append(f"{name}: {'not a file, or a link' if is_link else error.strerror}")
            continue
        problem = _too_large(name, len(data), left)
        if problem is None:
            found[name] = data
            left -= len(data)
        else:
            lacking.append(problem)
    return found, tuple(lacking)


def checked_image(name: str, data: bytes, *, required: bool = False) -> CardImageBytes:
    """Return the image `data` as the confined program writes it. With `required`, it only runs with full protection.

    Raises BadImage, which names the image, and NoSandbox.
    """
    if len(data) > CARD_IMAGE_MAX_BYTES:
        raise BadImage(_too_large(name, len(data), CARD_IMAGES_MAX_BYTES) or name)
    with _places:
        result = run_python(PROGRAM, LIMITS, Sandbox(required=required), data)
    line, _, body = result.output.partition(b"\n")
    try:
        about = decode(line, _Written)
    except ValueError:
        about = _Written()
    if about.refused is not None:
        raise BadImage(f"{name} {_REASONS[about.refused]}")
    if result.stopped is not None:
        raise BadImage(f"{name} takes too long, or too much memory, to be read")
    is_image = about.format is not None and len(body) <= CARD_IMAGE_MAX_BYTES and body.startswith(_MAGIC[about.format])
    if about.format is None or not is_image or result.code != 0:
        raise BadImage(f"{name} cannot be read: the program that reads it ended without an image")
    return CardImageBytes(body, about.format, about.width, about.height)


def checked_images(
    images: Mapping[str, bytes], *, required: bool = False
) -> tuple[dict[str, CardImageBytes], tuple[str, ...]]:
    """Return those of `images` that can be read, as the confined program writes them, and why others cannot."""
    checked: dict[str, CardImageBytes] = {}
    refused: list[str] = []
    for name, data in images.items():
        try:
            checked[name] = checked_image(name, data, required=required)
        except BadImage as error:
            refused.append(str(error))
    return checked, tuple(refused)


def change_with_images(
    registry: LocalRegistry,
    change: Callable[[Session], ModelRow | None],
    images: Mapping[str, CardImageBytes],
    by: str,
) -> bool:
    """Call `change`, which returns a model, and give the model the images that its card names, in one transaction.

    `change` is called twice if there are images: what it did is first taken back, so that no bytes are stored if it or
    `new_images` raises. Return whether an image was added or replaced. Raises BadImage if there would be too many, or
    one that the card does not name.
    """
    records = [
        ImageRecord(name, digest_of(image.data), len(image.data), image.format, image.width, image.height)
        for name, image in images.items()
    ]
    new: list[ImageRecord] = []
    if images:
        with registry.catalog.writing() as session:
            model = change(session)
            new = [] if model is None else new_images(session, model, records)
            session.rollback()
    if not new:
        with registry.catalog.writing() as session:
            change(session)
        return False
    stored = [registry.blobs.put(data) for data in {images[image.name].data for image in new}]
    with registry.catalog.writing() as session:
        model = change(session)
        ingest_id = begin_ingest(session, "images of a card")  # of this transaction only: nobody sees it
        unused = record_blobs(session, ingest_id, stored)
        has_changed = model is not None and set_images(session, model, new, by)
        forget_ingest(session, ingest_id)
    for file in unused:
        registry.blobs.backend.remove(file)
    return has_changed


def _too_large(name: str, size_bytes: int, left_bytes: int) -> str | None:
    if size_bytes > CARD_IMAGE_MAX_BYTES:
        return f"{name} has more than {size_text(CARD_IMAGE_MAX_BYTES)}"
    if size_bytes > left_bytes:
        return f"{name} is too much: the images of a card have at most {size_text(CARD_IMAGES_MAX_BYTES)} together"
    return None


def _read_below(folder: Path, name: str) -> bytes:
    """Return the bytes of a file below `folder`, one more than an image may have; raises OSError, also for links."""
    *folders, last = name.split("/")
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        for part in folders:
            below = os.open(part, flags | os.O_DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        file = os.open(last, flags | os.O_NONBLOCK, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.ENOTDIR, "not a file")
        return opened.read(CARD_IMAGE_MAX_BYTES + 1)
