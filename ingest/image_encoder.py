"""A separate program that reads an image of a card and writes it again. It runs confined, and is not trusted.

    python -m organs.ingest.image_encoder < image        a line of JSON, then the bytes of the new image

The new image has the pixels of the first frame, upright, and nothing else of the file: no text, no profile, no place
where it was taken, no bytes after its end. It is a PNG if it has transparent pixels or few colours, else a JPEG.
"""

from __future__ import annotations

import json
import sys
from io import BytesIO

from PIL import Image, ImageOps, UnidentifiedImageError

from organs.registry.upload_limits import CARD_IMAGE_MAX_BYTES, CARD_IMAGE_SIDE_MAX

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
FEW_COLOURS = 4096
"""Up to so many colours, an image is a drawing, which a JPEG would blur."""
QUALITY = 90
KIND, SIDE, DAMAGED, LARGE = "kind", "side", "damaged", "large"
"""Why an image is refused."""


class _Refused(Exception):
    """The image is refused; the argument is the reason."""


def main() -> None:
    """Read one image, and write it again or say why not."""
    data = sys.stdin.buffer.read(CARD_IMAGE_MAX_BYTES + 1)
    try:
        about, body = encoded(data)
    except _Refused as error:
        about, body = {"refused": str(error)}, b""
    sys.stdout.buffer.write(json.dumps(about).encode() + b"\n" + body)


def encoded(data: bytes) -> tuple[dict[str, str | int], bytes]:
    """Return the format, width and height of the new image, and its bytes. Only for a confined process."""
    Image.MAX_IMAGE_PIXELS = CARD_IMAGE_SIDE_MAX**2
    _check_canvas(data)
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as opened:
            _check_side(*opened.size)
            is_photo = opened.format not in ("PNG", "GIF", "WEBP")
            opened.load()
            upright = ImageOps.exif_transpose(opened)
        image = _plain(upright)
    except UnidentifiedImageError:
        raise _Refused(KIND) from None
    except Image.DecompressionBombError:
        raise _Refused(SIDE) from None
    except _Refused:
        raise
    except Exception:  # noqa: BLE001  # decoders raise anything about damaged files
        raise _Refused(DAMAGED) from None
    has_alpha = image.mode == "RGBA"
    written = b""
    if has_alpha or (not is_photo and image.getcolors(FEW_COLOURS) is not None):
        form, written = "png", _written(image, "PNG")
    if not has_alpha and not 0 < len(written) <= CARD_IMAGE_MAX_BYTES:
        form, written = "jpeg", _written(image if image.mode == "L" else image.convert("RGB"), "JPEG", quality=QUALITY)
    if len(written) > CARD_IMAGE_MAX_BYTES:
        raise _Refused(LARGE)
    return {"format": form, "width": image.width, "height": image.height}, written


def _check_canvas(data: bytes) -> None:
    """Refuse a WebP by the size in its header: its decoder takes the memory of the canvas when it is opened."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        return
    kind, front = data[12:16], data[20:32]
    if kind == b"VP8X":
        size = [1 + int.from_bytes(front[begin : begin + 3], "little") for begin in (4, 7)]
    elif kind == b"VP8L":
        bits = int.from_bytes(front[1:5], "little")
        size = [1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)]
    else:
        size = [int.from_bytes(front[begin : begin + 2], "little") & 0x3FFF for begin in (6, 8)]
    _check_side(*size)


def _check_side(width: int, height: int) -> None:
    if max(width, height) > CARD_IMAGE_SIDE_MAX:
        raise _Refused(SIDE)


def _plain(image: Image.Image) -> Image.Image:
    """Return the pixels with 8 bits a channel, as RGBA if some are transparent, and without other data."""
    if image.has_transparency_data:
        image = image.convert("RGBA")
        opaque = image.getchannel("A").getextrema() == (255, 255)
        image = image.convert("RGB") if opaque else image
    elif image.mode.startswith("I"):
        image = image.point(lambda value: value / 257).convert("L")
    elif image.mode not in ("L", "P", "RGB"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    image.info = {}
    return image


def _written(image: Image.Image, form: str, **options: int) -> bytes:
    out = BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


if __name__ == "__main__":
    main()
