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
from organs.registry.entities.organ import Digests
from organs.registry.entities.submission import KnownDigests, Upload, UploadPage, UploadRequest
from organs.registry.errors import BadInput, BadRequest, Busy, DiskFull, NotFound
from organs.registry.upload_limits import CHUNK_MAX_BYTES, UPLOAD_NAME_MAX_LENGTH
from organs.web.api.operation import ACCEPTED, ROOT, api, operation, read_body, writing_operation
from organs.web.api.organs import requested_digests
from organs.web.auth import UPLOAD, identity
from organs.web.error_pages import refused
from organs.web.file_responses import OCTETS, streams
from organs.web.params import Parameter, path_parameter
from organs.web.responses import reading, registry, searching

PORTION_BYTES = 1024 * 1024
RANGE_HEADER, DIGEST_HEADER = "Content-Range", "Content-Digest"

_RANGE_TEXT = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})", re.ASCII)
_SHA256 = re.compile(r"sha-256=:([0-9A-Za-z+/]{43}=):", re.ASCII)


def requested_chunk() -> Chunk:
    """Return the chunk that the headers describe, without reading the body.

    Raises BadRequest (400). Answers 411 to a body of unknown length, 413 to a body that is too long, and 415 to a body
    of another type than plain bytes.
    """
    if request.mimetype != OCTETS:
        abort(415, f"The body must be plain bytes: send it with Content-Type: {OCTETS}.")
    length = request.content_length
    if length is None or "Transfer-Encoding" in request.headers:
        abort(411, "The header Content-Length is missing.")
    if length > CHUNK_MAX_BYTES:
        abort(413, f"A chunk has at most {CHUNK_MAX_BYTES:,} bytes.")
    match = _RANGE_TEXT.fullmatch(request.headers.get(RANGE_HEADER, "").strip())
    if match is None:
        raise BadRequest(RANGE_HEADER, "a chunk needs the header Content-Range: bytes FIRST-LAST/SIZE")
    first, last, size = map(int, match.groups())
    if not first <= last < size:
        raise BadRequest(RANGE_HEADER, f"bytes {first:,} to {last:,} of {size:,} do not exist")
    if last + 1 - first != length:
        raise BadRequest(RANGE_HEADER, f"Content-Range has {last + 1 - first:,} bytes, the body has {length:,}")
    return Chunk(first, last + 1, size, _requested_digest())


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


GROUP = "Uploads"
FULL = "the server has no free space at the moment; try again later"
EXAMPLES = {
    "open": "exampleUploadOpen-0001",
    "full": "exampleUploadFull-0001",
    "done": "exampleUploadDone-0001",
    "gone": "exampleUploadGone-0001",
}
EXAMPLE_BYTES = "organ"
"""All bytes of the uploads of the examples."""
EXAMPLE_DIGEST = "e0fb6e6c6305332dbd13cc4d4ee1f9782b60609b633b26510df200e9c311ea23"
UPLOAD_ID = path_parameter(
    "upload", "The `id` of the upload.", {"type": "string", "pattern": "^[0-9A-Za-z_-]{22}$"}, EXAMPLES["open"]
)
_RANGE = Parameter(
    RANGE_HEADER,
    "The first and the last byte of the chunk, and the size of the whole upload.",
    {"type": "string", "pattern": "^bytes [0-9]{1,18}-[0-9]{1,18}/[0-9]{1,18}$"},
    "bytes 0-4/5",
    where="header",
    required=True,
)
_CHUNK_DIGEST = Parameter(
    DIGEST_HEADER,
    "SHA-256 of the chunk (RFC 9530); a damaged chunk is refused.",
    {"type": "string", "pattern": "^sha-256=:[0-9A-Za-z+/]{43}=:$"},
    "",
    where="header",
)
_DIGEST = Parameter(
    "digest",
    "SHA-256 of the whole file, if it was not declared before.",
    {"type": "string", "pattern": "^(sha256:)?[0-9a-f]{64}$"},
    "",
)


@writing_operation(
    GROUP,
    "/uploads/lookup",
    "Look up pieces that need no upload",
    body=Digests,
    example='{"digests": ["aadb682ed7753b5fec72a33fc389862b81da701ff48d253886e5f8e37c7ca6d3"]}',
    is_shadowed=True,
)
def lookup_uploads() -> KnownDigests:
    """Return which of up to 1,000 digests need no upload: organs, header runs and metadata arrays of public models and
    of your own models, and pieces that you uploaded before.
    """
    digests = requested_digests()
    contributor = current_contributor_id()
    with searching() as session:
        known = known_digests(session, contributor, digests, database_now(session))
    return KnownDigests(known=tuple(digest for digest in dict.fromkeys(digests) if digest in known))


@writing_operation(
    GROUP,
    "/uploads",
    "Start an upload",
    status=ACCEPTED,
    body=UploadRequest,
    example=f'{{"kind": "piece", "size_bytes": 5, "digest": "{EXAMPLE_DIGEST}"}}',
)
def begin_upload() -> Upload:
    """Declare a file or a piece to upload. If the same upload is open already, it is returned, so that a client can
    resume after a restart. 413 for more than the quota allows, 429 for too many open uploads.
    """
    wanted = read_body(UploadRequest)
    name = wanted.name
    if name is not None and (not name.isprintable() or "/" in name or "\\" in name or name in (".", "..")):
        raise BadRequest(
            "name", f"name must be the name of a file, 1 to {UPLOAD_NAME_MAX_LENGTH} characters, without a path."
        )
    try:
        check_request(wanted)
    except BadInput as error:
        raise BadRequest(None, f"{error}.") from error
    contributor = current_contributor_id()
    with _busy_if_full():
        return upload_entity(sessions.open_upload(registry(), contributor, wanted))


@operation(GROUP, "/uploads", "List open uploads", scope=UPLOAD)
def uploads() -> UploadPage:
    """Return your open uploads, newest first."""
    g.not_cached = True
    contributor = current_contributor_id()
    with reading() as session:
        rows = open_uploads(session, contributor, database_now(session))
        return UploadPage(items=tuple(map(upload_entity, rows)), next=None)


@operation(GROUP, "/uploads/{upload}", "Get an upload", UPLOAD_ID, refusals=(404,), scope=UPLOAD)
def upload(upload: str) -> Upload:
    """Return an upload. The next chunk begins at `received_bytes`. 404 for uploads of other contributors."""
    g.not_cached = True
    return upload_entity(sessions.look_up(registry(), current_contributor_id(), upload))


@writing_operation(
    GROUP,
    "/uploads/{upload}",
    "Send a chunk",
    UPLOAD_ID,
    _RANGE,
    _CHUNK_DIGEST,
    method="patch",
    status=ACCEPTED,
    bytes_example=EXAMPLE_BYTES,
    example=f"{ROOT}/uploads/{EXAMPLES['full']}",
    refusals=(404, 409, 411, 416),
)
def receive_chunk(upload: str) -> Upload:
    """Send a chunk as the body. The answer comes when the bytes are durable. A repeated chunk is compared with the
    stored bytes: the same bytes get the same answer, other bytes get 409. A chunk that does not begin at
    `received_bytes` gets 416. A chunk that arrives while another one is being received gets 409. A refused chunk does
    not change the upload.
    """
    chunk, contributor = requested_chunk(), current_contributor_id()
    result = sessions.look_up(registry(), contributor, upload)
    is_received(result, chunk)  # refuses a wrong offset before the body is read
    with receiving(contributor), _busy_if_full():
        return upload_entity(sessions.receive(registry(), contributor, upload, chunk, portions(chunk)))


@writing_operation(
    GROUP,
    "/uploads/{upload}",
    "Finish an upload",
    UPLOAD_ID,
    _DIGEST,
    method="put",
    status=201,
    example=f"{ROOT}/uploads/{EXAMPLES['done']}",
    refusals=(404, 409),
)
def finish_upload(upload: str) -> Upload:
    """Finish an upload whose bytes were all sent. The server reads the bytes again and compares them with the declared
    digests. 400 if they differ; then the upload does not change until it is deleted or expires. Finishing twice changes
    nothing.
    """
    text, contributor = request.args.get("digest"), current_contributor_id()
    digest = None if text is None else parse_digest(text)
    with receiving(contributor), _busy_if_full():
        return upload_entity(sessions.finish(registry(), contributor, upload, digest))


@writing_operation(
    GROUP,
    "/uploads/{upload}",
    "Remove an upload",
    UPLOAD_ID,
    method="delete",
    example=f"{ROOT}/uploads/{EXAMPLES['gone']}",
    refusals=(404, 409),
)
def cancel_upload(upload: str) -> Upload:
    """Remove an upload with all its bytes, finished or not. Return it as it was."""
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
