"""Uploads: which pieces need not be sent, and sessions in which the rest comes, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

from flask import Response, g, request

from organs.ingest.contributions import uploads as sessions
from organs.ingest.contributions.uploads import (
    Declared,
    WrongOffset,
    is_received,
)
from organs.registry.catalog.clock import now
from organs.registry.catalog.queries.accounts import contributor_by_name
from organs.registry.catalog.queries.submissions import (
    known_digests,
    open_uploads,
)
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.register.submissions import Pieces
from organs.registry.catalog.vocabulary import UPLOAD_KINDS
from organs.registry.digest import Digest, parse_digest
from organs.registry.errors import BadDigest, BadInput, BadRequest, Busy, DiskFull, NotFound
from organs.registry.present.uploads import upload_values, uploads_values
from organs.registry.present.values import Values
from organs.web.api.blueprint import ROOT, api
from organs.web.api.operation import Parameter, operation
from organs.web.api.organs import asked_digests
from organs.web.api.params import json_body
from organs.web.api.writing import ACCEPTED, writing_operation
from organs.web.auth import (
    UPLOAD,
    identity,
)
from organs.web.errors import refused
from organs.web.receiving import DIGEST_HEADER, RANGE_HEADER, asked_chunk, portions, receiving
from organs.web.responses import (
    reading,
    registry,
    settings,
)

NAME_MAX_LENGTH = 255


def asked_declaration() -> Declared:
    """The body; raises BadRequest (400) for what cannot be sent. Whether it may be, the catalog knows."""
    given = json_body(("kind", "size_bytes", "digest", "name", "pieces"))
    kind, size_bytes = given.get("kind"), given.get("size_bytes")
    if kind not in UPLOAD_KINDS:
        raise BadRequest("kind", f"kind is to be {', '.join(UPLOAD_KINDS[:-1])} or {UPLOAD_KINDS[-1]}.")
    if not _is_size(size_bytes):
        raise BadRequest("size_bytes", "size_bytes is to be a whole number from 1 on.")
    digest, name, pieces = given.get("digest"), given.get("name"), given.get("pieces")
    try:
        return Declared(
            kind,
            size_bytes,
            None if digest is None else _digest(digest, "digest"),
            None if name is None else _name(name),
            () if pieces is None else _pieces(pieces),
        )
    except BadRequest:
        raise
    except BadInput as error:
        raise BadRequest(None, f"{error}.") from error


def _is_size(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 62


def _digest(value: Any, field: str) -> Digest:
    try:
        return parse_digest(value if isinstance(value, str) else "")
    except BadDigest as error:
        raise BadRequest(field, f"{field} is to be a SHA-256 digest of 64 hexadecimal characters.") from error


def _name(value: Any) -> str:
    """What a file is called: shown to people, and never a path."""
    is_name = isinstance(value, str) and 1 <= len(value) <= NAME_MAX_LENGTH and value.isprintable()
    if not is_name or "/" in value or "\\" in value or value in (".", ".."):
        raise BadRequest("name", f"name is to be what a file is called, of 1 to {NAME_MAX_LENGTH} characters, no path.")
    return str(value)


def _pieces(value: Any) -> Pieces:
    if not isinstance(value, list) or not value:
        raise BadRequest("pieces", "pieces is to be a list of [size_bytes, digest].")
    found = []
    for place, one in enumerate(value):
        if not (isinstance(one, list) and len(one) == 2 and _is_size(one[0])):
            raise BadRequest(f"pieces[{place}]", "a piece is [size_bytes, digest].")
        found.append((int(one[0]), _digest(one[1], f"pieces[{place}]")))
    return tuple(found)


GROUP = "Uploads"
FULL = "the server has no room for this just now; try again later"
EXAMPLES = {
    "open": "exampleUploadOpen-0001",
    "full": "exampleUploadFull-0001",
    "done": "exampleUploadDone-0001",
    "gone": "exampleUploadGone-0001",
}
EXAMPLE_BYTES = "organ"
"""All bytes of the uploads of the examples."""
EXAMPLE_DIGEST = "e0fb6e6c6305332dbd13cc4d4ee1f9782b60609b633b26510df200e9c311ea23"
UPLOAD_ID = Parameter(
    "upload",
    "The upload, as its `id` says.",
    {"type": "string", "pattern": "^[0-9A-Za-z_-]{22}$"},
    EXAMPLES["open"],
    where="path",
    required=True,
)
_RANGE = Parameter(
    RANGE_HEADER,
    "Which bytes: the first, the last, and how many there are in all.",
    {"type": "string", "pattern": "^bytes [0-9]{1,18}-[0-9]{1,18}/[0-9]{1,18}$"},
    "bytes 0-4/5",
    where="header",
    required=True,
)
_CHUNK_DIGEST = Parameter(
    DIGEST_HEADER,
    "SHA-256 of the chunk (RFC 9530): a chunk that was damaged on its way is refused.",
    {"type": "string", "pattern": "^sha-256=:[0-9A-Za-z+/]{43}=:$"},
    "",
    where="header",
)
_DIGEST = Parameter(
    "digest",
    "SHA-256 of all of it, for a file that was declared without.",
    {"type": "string", "pattern": "^(sha256:)?[0-9a-f]{64}$"},
    "",
)


@writing_operation(
    "/uploads/lookup",
    group=GROUP,
    summary="Which pieces need not be sent",
    body="Digests",
    answer="DigestsKnown",
    example='{"digests": ["aadb682ed7753b5fec72a33fc389862b81da701ff48d253886e5f8e37c7ca6d3"]}',
    is_shadowed=True,
)
def lookup_uploads() -> Values:
    """Up to 1,000 digests at once. Known are organs, header runs and metadata arrays of models that anybody can see,
    and of the asker's own, and pieces that the asker has sent before. Everything else counts as absent.
    """
    digests = asked_digests(json_body(("digests",)).get("digests"))
    asker = asker_id()
    with reading(settings().search_seconds) as session:
        known = known_digests(session, asker, digests, now())
    return {"known": [digest for digest in dict.fromkeys(digests) if digest in known]}


@writing_operation(
    "/uploads",
    group=GROUP,
    summary="Begin an upload",
    body="UploadAsked",
    answer="Upload",
    status=ACCEPTED,
    example=f'{{"kind": "piece", "size_bytes": 5, "digest": "{EXAMPLE_DIGEST}"}}',
)
def begin_upload() -> Values:
    """Declare what is going to be sent. One that is under way for the same already is answered as it is, so that a
    program that starts again goes on where it was. 413 for more than the quota allows, 429 for too many at once.
    """
    declared = asked_declaration()
    asker = asker_id()
    with _room():
        return upload_values(sessions.open_upload(registry(), asker, declared))


@operation(
    "/uploads",
    group=GROUP,
    summary="Uploads under way",
    answer="Uploads",
    example=f"{ROOT}/uploads",
    scope=UPLOAD,
)
def uploads() -> Values:
    """The asker's own that are not finished, newest first."""
    g.unkept = True
    asker = asker_id()
    with reading() as session:
        return uploads_values(open_uploads(session, asker, now()))


@operation(
    "/uploads/{upload}",
    group=GROUP,
    summary="How far an upload is",
    parameters=(UPLOAD_ID,),
    answer="Upload",
    refusals=(404,),
    example=f"{ROOT}/uploads/{EXAMPLES['open']}",
    scope=UPLOAD,
)
def upload(upload: str) -> Values:
    """`received_bytes` is where the next chunk begins. An upload of somebody else's is answered as one that never
    was."""
    g.unkept = True
    return upload_values(sessions.look_up(registry(), asker_id(), upload))


@writing_operation(
    "/uploads/{upload}",
    method="patch",
    group=GROUP,
    summary="Send a chunk",
    parameters=(UPLOAD_ID, _RANGE, _CHUNK_DIGEST),
    bytes_example=EXAMPLE_BYTES,
    answer="Upload",
    status=ACCEPTED,
    refusals=(404, 409, 411, 416),
    example=f"{ROOT}/uploads/{EXAMPLES['full']}",
)
def receive_chunk(upload: str) -> Values:
    """The body is the bytes. When this is answered they are on the disk. A repeated chunk is compared with the
    stored bytes: the same bytes are answered as before, other bytes get 409. A chunk that begins elsewhere than at
    `received_bytes` gets 416. 409 is also for a chunk that comes while another is on its way. Whatever is refused
    leaves the upload as it was.
    """
    chunk, asker = asked_chunk(), asker_id()
    found = sessions.look_up(registry(), asker, upload)
    is_received(found, chunk)  # refuses a wrong offset before the body is read
    with receiving(asker), _room():
        return upload_values(sessions.receive(registry(), asker, upload, chunk, portions(chunk)))


@writing_operation(
    "/uploads/{upload}",
    method="put",
    group=GROUP,
    summary="Finish an upload",
    parameters=(UPLOAD_ID, _DIGEST),
    answer="Upload",
    status=201,
    refusals=(404, 409),
    example=f"{ROOT}/uploads/{EXAMPLES['done']}",
)
def finish_upload(upload: str) -> Values:
    """All has been sent: its bytes are read again and held against the digests that were declared. 400 where they are
    others; then it stays as it is until it is deleted or expires. To finish twice changes nothing.
    """
    text, asker = request.args.get("digest"), asker_id()
    digest = None if text is None else parse_digest(text)
    with receiving(asker), _room():
        return upload_values(sessions.finish(registry(), asker, upload, digest))


@writing_operation(
    "/uploads/{upload}",
    method="delete",
    group=GROUP,
    summary="Remove an upload",
    parameters=(UPLOAD_ID,),
    answer="Upload",
    refusals=(404, 409),
    example=f"{ROOT}/uploads/{EXAMPLES['gone']}",
)
def cancel_upload(upload: str) -> Values:
    """With all that has come of it, finished or not. The answer is what it was."""
    return upload_values(sessions.cancel(registry(), asker_id(), upload))


@api.errorhandler(WrongOffset)
def refused_offset(error: WrongOffset) -> Response:
    """Return 416 with the upload as it is: its members stand beside those of the problem document."""
    answer = refused(error, upload_values(error.upload))
    if error.received_bytes:
        answer.headers["Range"] = f"bytes=0-{error.received_bytes - 1}"
    return answer


def asker_id() -> int:
    """The contributor who asks, who may write; `local`, on a server of one's own, is made when it is first needed."""
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
def _room() -> Iterator[None]:
    """A full disk is for the server's keeper to know in full; who sends something is told to come again."""
    try:
        yield
    except DiskFull as error:
        raise Busy(FULL) from error
