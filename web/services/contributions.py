"""Uploads and submissions, for pages and the API. The headers of a request are checked before its body is received."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NoBase64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask import abort, current_app, request

from organs.ingest.contributions import submissions
from organs.ingest.contributions.intake import settle_abandoned
from organs.ingest.contributions.uploads import Chunk
from organs.registry.catalog.queries.submissions import (
    SubmissionWithJob,
    is_any_abandoned,
    known_contributor_id,
    submission_by_id,
    submissions_page,
)
from organs.registry.entities.submission import SubmissionMetadata, SubmissionPage, SubmissionRequest
from organs.registry.errors import BadInput, BadName, BadRequest, Busy, NotAllowed, NotFound
from organs.registry.names import ModelName, parse_new_name
from organs.registry.upload_limits import CHUNK_MAX_BYTES
from organs.web.auth import (
    ADMIN,
    UPLOAD,
    identity,
    need,
)
from organs.web.file_responses import (
    OCTETS,
    streams,
)
from organs.web.responses import (
    reading,
    registry,
    settings,
)

PORTION_BYTES = 1024 * 1024
RANGE_HEADER, DIGEST_HEADER = "Content-Range", "Content-Digest"

_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})", re.ASCII)
_SHA256 = re.compile(r"sha-256=:([0-9A-Za-z+/]{43}=):", re.ASCII)


def requested_chunk() -> Chunk:
    """Return the chunk that the headers describe, without reading the body.

    Raises BadRequest (400). Answers 411 to a body of unknown length, 413 to a body that is too long, and 415 to a body
    that is compressed or has another type than plain bytes.
    """
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        abort(415, "The body must not be compressed.")
    if request.mimetype != OCTETS:
        abort(415, f"The body must be plain bytes: send it with Content-Type: {OCTETS}.")
    length = request.content_length
    if length is None or "Transfer-Encoding" in request.headers:
        abort(411, "The header Content-Length is missing.")
    if length > CHUNK_MAX_BYTES:
        abort(413, f"A chunk has at most {CHUNK_MAX_BYTES:,} bytes.")
    begin, end, size = _requested_range()
    if end - begin != length:
        raise BadRequest(RANGE_HEADER, f"Content-Range has {end - begin:,} bytes, the body has {length:,}")
    return Chunk(begin, end, size, _requested_digest())


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


def _requested_range() -> tuple[int, int, int]:
    """Return begin, end (exclusive) and total size from the header `Content-Range`."""
    match = _RANGE.fullmatch(request.headers.get(RANGE_HEADER, "").strip())
    if match is None:
        raise BadRequest(RANGE_HEADER, "a chunk needs the header Content-Range: bytes FIRST-LAST/SIZE")
    first, last, size = map(int, match.groups())
    if not first <= last < size:
        raise BadRequest(RANGE_HEADER, f"bytes {first:,} to {last:,} of {size:,} do not exist")
    return first, last + 1, size


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


ID_MAX = 2**63 - 1
NOBODY = 0
"""An id that no contributor has. It is used for `local` in a registry without contributors."""


def submit(namespace: str, name: str, wanted: SubmissionRequest) -> SubmissionWithJob:
    """Submit a model of the user.

    Raises NotAllowed for the namespace of another account, BadName, and as `submissions.submit`.
    """
    account = need(UPLOAD).name or ""
    return own_submission(submissions.submit(registry(), account, own_name(namespace, name), wanted))


def publish(
    submission_id: int, metadata: SubmissionMetadata, name: str | None = None, accepted: tuple[str, ...] = ()
) -> SubmissionWithJob:
    """Publish a checked submission of the user, under `name` in their namespace if a name is given."""
    if name is not None:
        plain_name(name)
    submissions.publish(registry(), need(UPLOAD).name or "", submission_id, metadata, name, accepted)
    return own_submission(submission_id)


def withdraw(submission_id: int) -> SubmissionWithJob:
    """Withdraw a submission of the user."""
    submissions.withdraw(registry(), need(UPLOAD).name or "", submission_id)
    return own_submission(submission_id)


def own_submission(submission_id: int) -> SubmissionWithJob:
    """Return a submission of the user. Raises NotFound, also for submissions of others."""
    owner_id = _owner_id()
    with reading(settings().search_seconds) as session:
        return submission_by_id(session, submission_id, owner_id)


def shown_submission(submission_id: int) -> SubmissionWithJob:
    """Return a submission that the user may see; administrators see all submissions. Raises NotFound."""
    if not identity().may(ADMIN) or settings().read_only:
        return own_submission(submission_id)
    with reading(settings().search_seconds) as session:
        return submission_by_id(session, submission_id)


def own_submissions(limit: int, after: str | None = None) -> SubmissionPage:
    """Return a page of the user's submissions, newest first. Raises BadQuery."""
    owner_id = _owner_id()
    with reading(settings().search_seconds) as session:
        return submissions_page(session, limit, after, contributor_id=owner_id)


def own_name(namespace: str, name: str) -> ModelName:
    """Return a model's name in the user's namespace; `local` may use all namespaces. Raises NotAllowed, BadName."""
    account = need(UPLOAD)
    if not account.owns(namespace):
        raise NotAllowed(f"{namespace[:96]} is not your namespace: use {account.name}/{name[:96]}")
    plain_name(name)
    return parse_new_name(f"{namespace if account.is_local else account.name}/{name}")


def plain_name(name: str) -> str:
    """Return `name`, which must be a model's name without namespace and version. Raises BadName otherwise."""
    if "/" in name or "@" in name:
        raise BadName(f"{name[:100]!r} is not a valid name: give it without namespace and version")
    return parse_new_name(f"namespace/{name}").name


def parsed_submission(text: str) -> int:
    """Return the number of a submission from the text in a URL. Raises NotFound for an invalid number."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and 1 <= int(text) <= ID_MAX):
        raise NotFound(f"you have no submission {text[:20]}")
    return int(text)


def checked_name(value: Any) -> str | None:
    """Return the new name from a request body, or None if there is none. Raises BadInput, BadName."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadInput("name must be a text")
    return plain_name(value)


def _owner_id() -> int:
    """Return the contributor id of the user. Settles submissions whose job was interrupted first."""
    account = need(UPLOAD)
    with reading() as session:
        has_abandoned = is_any_abandoned(session)
    if has_abandoned and not settings().read_only:
        settle_abandoned(registry())
    if account.account is not None:
        return account.account.contributor_id
    with reading() as session:
        return known_contributor_id(session, account.name or "") or NOBODY
