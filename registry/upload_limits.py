"""Limits of uploads and submissions: their sizes, their counts, and how long they stay.

The two limits that depend on the registry are settings with these defaults (`registry.settings`): `ORGAN_UPLOAD_MAX`
and `ORGAN_QUOTA`. A client may send smaller packs than are allowed: `ingest.contributions.sending` has its sizes.
"""

from __future__ import annotations

from datetime import timedelta

UPLOAD_MAX_BYTES = 64 * 1000**3
"""The default of `ORGAN_UPLOAD_MAX`: the largest model that may be uploaded, and the largest single upload."""
QUOTA_BYTES = 100 * 1000**3
"""The default of `ORGAN_QUOTA`: what one contributor may store, including unfinished uploads."""

CHUNK_ADVISED_BYTES = 8 * 1024 * 1024
"""The advised size of a chunk. Each chunk waits once for the disk, so smaller chunks take longer in total."""
CHUNK_MAX_BYTES = 64 * 1024 * 1024
"""The largest chunk, which is the body of one request."""
CHUNKS_MAX = 20_000
"""The most chunks of an upload, because each can be an object of its own. With the advised size it has 167 GB."""


def chunk_min_bytes(size_bytes: int) -> int:
    """Return the size of the smallest chunk of an upload of `size_bytes`. Only the last chunk may be smaller."""
    return min(CHUNK_MAX_BYTES, -(-size_bytes // CHUNKS_MAX))


PACK_MAX_BYTES = 64 * 1024 * 1024
"""The largest upload with several small pieces."""
PACK_PIECES_MAX = 3000
"""The most pieces of a pack: the JSON that lists them fits into the body of a request."""
PACK_PIECE_MAX_BYTES = 64 * 1024 - 1
"""The largest piece of a pack."""

OPEN_UPLOADS_MAX = 64
"""The most unfinished uploads of one contributor. A program needs one for each of its connections."""
UPLOADS_MAX = 20_000
"""The most uploads of one contributor, including finished ones: more than the largest model has organs."""
PACKED_PIECES_MAX = 200_000
"""The most pieces in all packs of one contributor: ten times the organs of a model, and few enough to be counted."""
UPLOAD_LIFETIME = timedelta(days=7)
"""How long an upload stays after its last chunk. A finished upload that no model uses also expires."""
UPLOAD_NAME_MAX_LENGTH = 255
"""The most characters of the name of an uploaded file."""

OPEN_SUBMISSIONS_MAX = 50
"""The most open submissions of one contributor."""
SUBMISSION_MAX_BYTES = 8 * 1024 * 1024
"""The largest JSON of a submission."""
SUBMISSION_FILES_MAX = 4096
"""The most files of one submission."""
SUBMISSION_PIECES_MAX = 200_000
"""The most pieces of all files of one submission together."""
FILE_NAME_MAX_BYTES = 255
"""The longest name of a file of a submission, in UTF-8."""
FINDINGS_MAX = 100
"""The most findings of one submission. An unusual header can have one for each key; the others are left out."""
FINDING_MAX_LENGTH = 1000
"""The most characters of the sentence of a finding."""

CARD_IMAGES_MAX = 16
"""The most images of a card."""
CARD_IMAGE_MAX_BYTES = 4 * 1024 * 1024
"""The largest image of a card, as a file that is sent and as a file that is stored."""
CARD_IMAGES_MAX_BYTES = 16 * 1024 * 1024
"""The most bytes of all images of a card together."""
CARD_IMAGE_SIDE_MAX = 4096
"""The most pixels of an image of a card on each side. An image with as many on both has 64 MiB while it is decoded."""
CARD_IMAGE_NAME_MAX = 200
"""The most characters of the path by which a card names an image."""
