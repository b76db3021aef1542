"""Receiving the bodies of uploads and submissions: headers are checked first, then the body is read.

Of such a body, the first bytes have come when a thread begins (`web.connection`, which also decides how slow a client
may be). The thread waits for the rest, so these bodies have places: uploads of one process have half of its threads at
most, those of one contributor a quarter (`web.streams`). Downloads wait for their clients in the event loop, and
are not counted here.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NoBase64
from collections.abc import Iterator
from contextlib import contextmanager

from flask import abort, current_app, request

from organs.ingest.contributions.uploads import Chunk
from organs.registry.entities.upload import CHUNK_MOST_BYTES
from organs.registry.errors import BadInput, BadRequest, Busy
from organs.web.streams import OCTETS, streams

PORTION_BYTES = 1024 * 1024
RANGE_HEADER, DIGEST_HEADER = "Content-Range", "Content-Digest"

_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})", re.ASCII)
_SHA256 = re.compile(r"sha-256=:([0-9A-Za-z+/]{43}=):", re.ASCII)


def asked_chunk() -> Chunk:
    """What the headers say of the body, of which nothing has been read.

    Raises BadRequest (400); answers 411 to a body of unknown length, 413 to one that is too long, 415 to one that is
    packed or no plain bytes by its type.
    """
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        abort(415, "A packed body is not accepted here: send it plain.")
    if request.mimetype != OCTETS:
        abort(415, f"The body is to be plain bytes: send it with Content-Type: {OCTETS}.")
    length = request.content_length
    if length is None or "Transfer-Encoding" in request.headers:
        abort(411, "The length of a chunk is to be told before it comes: send it with Content-Length.")
    if length > CHUNK_MOST_BYTES:
        abort(413, f"A chunk has at most {CHUNK_MOST_BYTES:,} bytes.")
    begin, end, size = _asked_range()
    if end - begin != length:
        raise BadRequest(RANGE_HEADER, f"Content-Range has {end - begin:,} bytes, the body has {length:,}")
    return Chunk(begin, end, size, _asked_digest())


def portions(chunk: Chunk) -> Iterator[bytes]:
    """The body, at most PORTION_BYTES at once; raises BadInput where it ends too early."""
    request.max_content_length = CHUNK_MOST_BYTES  # other bodies have a limit of their own
    left = chunk.end - chunk.begin
    while left:
        data = request.stream.read(min(PORTION_BYTES, left))
        if not data:
            raise BadInput(f"the body ended {left:,} bytes before its end")
        left -= len(data)
        yield data


@contextmanager
def receiving(contributor_id: int) -> Iterator[None]:
    """Hold one of the places for uploads while the block runs.

    Raises Busy when none is free, and when the contributor has half of them.
    """
    places = streams()
    if not places.begin_upload(contributor_id):
        raise Busy("the server is receiving as many uploads as it can; try again in a few seconds")
    try:
        yield
    finally:
        places.end_upload(contributor_id)


def _asked_range() -> tuple[int, int, int]:
    """Begin, end (not included) and size of the whole."""
    match = _RANGE.fullmatch(request.headers.get(RANGE_HEADER, "").strip())
    if match is None:
        raise BadRequest(RANGE_HEADER, "a chunk has the header Content-Range: bytes FIRST-LAST/SIZE")
    first, last, size = map(int, match.groups())
    if not first <= last < size:
        raise BadRequest(RANGE_HEADER, f"there are no bytes {first:,} to {last:,} of {size:,}")
    return first, last + 1, size


def _asked_digest() -> bytes | None:
    """The SHA-256 in `Content-Digest` (RFC 9530); other digests that stand there are not looked at."""
    text = request.headers.get(DIGEST_HEADER)
    if text is None:
        return None
    found = [match for part in text.split(",") if (match := _SHA256.fullmatch(part.strip()))]
    try:
        if len(found) == 1:
            return b64decode(found[0][1], validate=True)
    except NoBase64 as error:
        current_app.logger.debug("%s", error)
    raise BadRequest(DIGEST_HEADER, "Content-Digest is to have one digest of the form sha-256=:BASE64:")
