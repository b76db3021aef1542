"""Uploads: a look-up of pieces that need no upload, and sessions that receive the others in chunks."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NoBase64
from collections.abc import Iterator
from contextlib import contextmanager

from flask import Response, abort, current_app, g, request
from msgspec import structs

from organs.ingest.contributions import uploads as sessions
from organs.ingest.contributions.uploads import Chunk, WrongOffset, check_request, is_received
from organs.registry.catalog.engine import database_now
from organs.registry.catalog.queries.accounts import contributor_by_name
from organs.registry.catalog.queries.submissions import known_digests, open_uploads, upload_entity
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.events import contributor_id
from organs.registry.digest import parse_digest
from organs.registry.endpoints import uploads as endpoints
from organs.registry.endpoints.uploads import DIGEST_HEADER, DIGEST_PATTERN, RANGE_HEADER, RANGE_PATTERN
from organs.registry.entities.organ import Digests
from organs.registry.entities.submission import KnownDigests, Upload, UploadPage, UploadRequest
from organs.registry.errors import BadInput, BadRequest, Busy, DiskFull, NotFound
from organs.registry.upload_limits import CHUNK_MAX_BYTES, UPLOAD_NAME_MAX_LENGTH
from organs.web.api.operation import api, serves
from organs.web.auth import identity
from organs.web.error_pages import refused
from organs.web.file_responses import OCTETS, streams
from organs.web.responses import reading, registry, searching

PORTION_BYTES = 1024 * 1024

_RANGE_TEXT = re.compile(RANGE_PATTERN, re.ASCII)
_SHA256 = re.compile(DIGEST_PATTERN, re.ASCII)


def requested_chunk() -> Chunk:
    """Return the chunk that the headers describe, without reading the body.

    Raises BadRequest (400), and answers as `length_of_bytes`.
    """
    length = length_of_bytes("A chunk", CHUNK_MAX_BYTES)
    match = _RANGE_TEXT.fullmatch(request.headers.get(RANGE_HEADER, "").strip())
    if match is None:
        raise BadRequest(RANGE_HEADER, "a chunk needs the header Content-Range: bytes FIRST-LAST/SIZE")
    first, last, size = map(int, match.groups())
    if not first <= last < size:
        raise BadRequest(RANGE_HEADER, f"bytes {first:,} to {last:,} of {size:,} do not exist")
    if last + 1 - first != length:
        raise BadRequest(RANGE_HEADER, f"Content-Range has {last + 1 - first:,} bytes, the body has {length:,}")
    return Chunk(first, last + 1, size, _requested_digest())


def length_of_bytes(what: str, most_bytes: int) -> int:
    """Return the length of a body of plain bytes, without reading it.

    Answers 411 to a body of unknown length, 413 to a body that is too long, and 415 to a body of another type.
    """
    if request.mimetype != OCTETS:
        abort(415, f"The body must be plain bytes: send it with Content-Type: {OCTETS}.")
    length = request.content_length
    if length is None or "Transfer-Encoding" in request.headers:
        abort(411, "The header Content-Length is missing.")
    if length > most_bytes:
        abort(413, f"{what} has at most {most_bytes:,} bytes.")
    return length


def portions(chunk: Chunk) -> Iterator[bytes]:
    """Yield the body in pieces of at most PORTION_BYTES. Raises BadInput if it ends too early."""
    request.max_content_length = CHUNK_MAX_BYTES  # only for this request; other bodies have a smaller limit
    left = chunk.end - chunk.begin
    while left:
        data = request.stream.read(min(PORTION_BYTES, left))
        if not data:
            raise BadInput(f"the body ended {left:,} bytes too early")
        left -= len(data)
        yield data


@contextmanager
def receiving(contributor_id: int) -> Iterator[None]:
    """Hold one of the places for uploads while the block runs.

    Raises Busy if no place is free, or if the contributor already has half of the places.
    """
    places = streams()
    if not places.begin_upload(contributor_id):
        raise Busy("the server is receiving too many uploads; try again in a few seconds")
    try:
        yield
    finally:
        places.end_upload(contributor_id)


def _requested_digest() -> bytes | None:
    """Return the SHA-256 in the header `Content-Digest` (RFC 9530), or None without the header.

    Other digests in the header are ignored.
    """
    text = request.headers.get(DIGEST_HEADER)
    if text is None:
        return None
    digests = [match for part in text.split(",") if (match := _SHA256.fullmatch(part.strip()))]
    try:
        if len(digests) == 1:
            return b64decode(digests[0][1], validate=True)
    except NoBase64 as error:
        current_app.logger.debug("%s", error)
    raise BadRequest(DIGEST_HEADER, "Content-Digest must have one digest of the form sha-256=:BASE64:")


FULL = "the server has no free space at the moment; try again later"


@serves(endpoints.lookup_uploads)
def lookup_uploads(body: Digests) -> KnownDigests:
    digests = [parse_digest(text) for text in body.digests]
    contributor = current_contributor_id()
    with searching() as session:
        known = known_digests(session, contributor, digests, database_now(session))
    return KnownDigests(known=tuple(digest for digest in dict.fromkeys(digests) if digest in known))


@serves(endpoints.begin_upload)
def begin_upload(body: UploadRequest) -> Upload:
    name = body.name
    if name is not None and (not name.isprintable() or "/" in name or "\\" in name or name in (".", "..")):
        raise BadRequest(
            "name", f"name must be the name of a file, 1 to {UPLOAD_NAME_MAX_LENGTH} characters, without a path."
        )
    try:
        check_request(body)
    except BadInput as error:
        raise BadRequest(None, f"{error}.") from error
    contributor = current_contributor_id()
    with _busy_if_full():
        return upload_entity(sessions.open_upload(registry(), contributor, body))


@serves(endpoints.uploads)
def uploads() -> UploadPage:
    g.not_cached = True
    contributor = current_contributor_id()
    with reading() as session:
        rows = open_uploads(session, contributor, database_now(session))
        return UploadPage(items=tuple(map(upload_entity, rows)), next=None)


@serves(endpoints.upload)
def upload(upload: str) -> Upload:
    g.not_cached = True
    return upload_entity(sessions.look_up(registry(), current_contributor_id(), upload))


@serves(endpoints.receive_chunk)
def receive_chunk(upload: str) -> Upload:
    chunk, contributor = requested_chunk(), current_contributor_id()
    result = sessions.look_up(registry(), contributor, upload)
    is_received(result, chunk)  # refuses a wrong offset before the body is read
    with receiving(contributor), _busy_if_full():
        return upload_entity(sessions.receive(registry(), contributor, upload, chunk, portions(chunk)))


@serves(endpoints.finish_upload)
def finish_upload(upload: str, digest: str | None) -> Upload:
    contributor, known = current_contributor_id(), None if digest is None else parse_digest(digest)
    with receiving(contributor), _busy_if_full():
        return upload_entity(sessions.finish(registry(), contributor, upload, known))


@serves(endpoints.cancel_upload)
def cancel_upload(upload: str) -> Upload:
    return upload_entity(sessions.cancel(registry(), current_contributor_id(), upload))


@api.errorhandler(WrongOffset)
def refused_offset(error: WrongOffset) -> Response:
    """Return 416. The problem document also has the members of the upload."""
    answer = refused(error, structs.asdict(upload_entity(error.upload)))
    if error.received_bytes:
        answer.headers["Range"] = f"bytes=0-{error.received_bytes - 1}"
    return answer


def current_contributor_id() -> int:
    """Return the id of the current contributor. On a local server, add the contributor `local` when it is missing."""
    account = identity().account
    if account is not None:
        return account.contributor_id
    try:
        with reading() as session:
            return contributor_by_name(session, LOCAL).id
    except NotFound:
        with registry().catalog.writing() as session:
            return contributor_id(session, LOCAL)


@contextmanager
def _busy_if_full() -> Iterator[None]:
    """Raise Busy if the disk is full. Only the log has the details."""
    try:
        yield
    except DiskFull as error:
        raise Busy(FULL) from error
