"""Bytes on their way out: whole or from any offset, each blob checked, cut off rather than wrong.

What is found faulty before the first byte is told in words. Later the connection is cut: the client was promised a
length and sees that it did not get it. Either way the blob is set aside, so that the next request is told at once.
"""

from __future__ import annotations

import errno
import os
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from logging import Logger
from threading import BoundedSemaphore, Lock
from typing import Protocol

from flask import Flask, Response, abort, current_app, request

from registry.catalog.queries.blobs import BlobRow
from registry.digest import Digest
from registry.errors import MissingBlob, OrganError
from registry.registry import Registry
from registry.upkeep import set_aside
from web.answers import registry
from web.counting import counter_of
from web.filenames import attachment
from web.memory import reveal_headers
from web.ranges import Span, Unsatisfiable, asked_span, has_strong, has_weak, still_holds

STREAMS_KEY = "organ_streams"
STREAMS_MAX = 12
"""Streams in flight in one process, unless its server says otherwise."""
PIECE_BYTES = 256 * 1024
"""Handed to the server at once. A client must take each within the server's time, so this sets the slowest rate."""
RETRY_SECONDS = 5
IMMUTABLE = "public, max-age=31536000, immutable"
OCTETS = "application/octet-stream"


class ByteSource(Protocol):
    """Bytes in order, as views that are valid until the next is asked for; and the blobs that were found faulty."""

    @property
    def faults(self) -> list[BlobRow]: ...
    def __enter__(self) -> ByteSource: ...
    def __exit__(self, *_: object) -> None: ...
    def __iter__(self) -> Iterator[memoryview]: ...


@dataclass(frozen=True, slots=True)
class Content:
    """A file to be handed out."""

    name: str
    size_bytes: int
    tag: str
    """Its strong ETag, without quotes: other bytes have another."""
    open: Callable[[int, int], ByteSource]
    """Its bytes from an offset to before another. Entering the source raises CorruptBlob for what is still faulty."""
    sha256: Digest | None = None
    """Of the whole, where it is known."""
    immutable: bool = False
    """Whether its address names these bytes and can never name others."""
    model_id: int | None = None
    """The model that was fetched when its last byte has been taken."""


class Streams:
    """The streams of one process: how many there may be, and the threads that decode for all of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.pool = ThreadPoolExecutor(os.cpu_count() or 2, thread_name_prefix="stream")
        self._free = BoundedSemaphore(limit)
        self.uploads = BoundedSemaphore(max(1, limit // 2))
        """Places for bodies of uploads. Each takes one of the others too, so that downloads cannot be shut out."""
        self._of_one_max = max(1, limit // 4)
        self._of_one = Counter[int]()
        self._lock = Lock()

    def begin_upload(self, contributor_id: int) -> bool:
        """Take a place for a body of that contributor; False when all are taken, or half of them by the same one."""
        with self._lock:
            if self._of_one[contributor_id] >= self._of_one_max or not self.uploads.acquire(blocking=False):
                return False
            self._of_one[contributor_id] += 1
            return True

    def end_upload(self, contributor_id: int) -> None:
        """Give it back."""
        with self._lock:
            self._of_one[contributor_id] -= 1
            self._of_one += Counter[int]()  # keep none that has no place
            self.uploads.release()

    def begin(self) -> bool:
        """Take a place; False when all are taken."""
        return self._free.acquire(blocking=False)

    def end(self) -> None:
        """Give the place back."""
        self._free.release()


def streams() -> Streams:
    """The streams of this application."""
    held: Streams = current_app.extensions[STREAMS_KEY]
    return held


def allow_streams(app: Flask, limit: int) -> None:
    """Let `app` have `limit` streams at once."""
    app.extensions[STREAMS_KEY] = Streams(limit)


def hand_out(content: Content, more: Mapping[str, str] | None = None, busy: int = 503) -> Response:
    """The answer to this request for `content`: 200, 206, 304, 412 or 416, with the headers `more`.

    `busy` is the status when no stream is free; that is raised as an HTTPException. Raises CorruptBlob or MissingBlob
    for a blob that is found faulty before the first byte.
    """
    reveal_headers()
    headers = {**_headers(content), **(more or {})}
    if_match, if_none_match = request.headers.get("If-Match"), request.headers.get("If-None-Match")
    if if_match is not None and not has_strong(if_match, content.tag):
        return _told(412, "This file is not the one that If-Match names.", headers)
    if if_none_match is not None and has_weak(if_none_match, content.tag):
        kept = ("ETag", "Cache-Control", "Accept-Ranges")
        return Response(status=304, headers={name: headers[name] for name in kept})
    try:
        span = _span(content)
    except Unsatisfiable:
        told = {**headers, "Content-Range": f"bytes */{content.size_bytes}"}
        return _told(416, f"This file has {content.size_bytes} bytes; none of them is in that range.", told)
    wanted = span or Span(0, content.size_bytes)
    if span is not None:
        headers["Content-Range"] = f"bytes {span.begin}-{span.end - 1}/{content.size_bytes}"
    headers["Content-Length"] = str(wanted.size_bytes)
    body = _no_body(content) if request.method == "HEAD" else _begin(content, wanted, busy)
    return Response(body, status=200 if span is None else 206, headers=headers, direct_passthrough=True)


def _span(content: Content) -> Span | None:
    if request.method == "HEAD" or not still_holds(request.headers.get("If-Range"), content.tag):
        return None
    return asked_span(request.headers.get("Range"), content.size_bytes)


def _headers(content: Content) -> dict[str, str]:
    headers = {
        "Content-Type": OCTETS,
        "ETag": f'"{content.tag}"',
        "Accept-Ranges": "bytes",
        "Cache-Control": IMMUTABLE if content.immutable else "no-cache",
        "Content-Disposition": attachment(content.name),
    }
    if content.sha256 is not None:
        headers["Repr-Digest"] = f"sha-256=:{b64encode(bytes.fromhex(content.sha256)).decode('ascii')}:"
    return headers


def _told(status: int, sentence: str, headers: Mapping[str, str]) -> Response:
    """A refusal in one line: whoever sends such headers is a program."""
    kept = {name: value for name, value in headers.items() if name in ("ETag", "Accept-Ranges", "Content-Range")}
    return Response(f"{sentence}\n", status=status, headers={**kept, "Content-Type": "text/plain; charset=utf-8"})


def _no_body(content: Content) -> tuple[()]:
    """Nothing, after looking whether a GET would be refused at once."""
    with content.open(0, content.size_bytes):
        return ()


def _begin(content: Content, span: Span, busy: int) -> _Body:
    """The bytes of `span`, of which the first have been read and checked."""
    held = streams()
    if not held.begin():
        sentence = "As many files as this server can send at once are on their way; try again in some seconds."
        abort(Response(f"{sentence}\n", busy, {"Retry-After": str(RETRY_SECONDS)}, content_type="text/plain"))
    try:
        source = content.open(span.begin, span.end)
        taken = counter_of(content.model_id) if span.end == content.size_bytes else None
        return _Body(source, _Told(registry(), current_app.logger, content.name), held.end, taken)
    except BaseException:
        held.end()
        raise


@dataclass(frozen=True, slots=True)
class _Told:
    """Whom to tell when a stream fails; the request is over by then."""

    registry: Registry
    logger: Logger
    name: str

    def failed(self, error: OrganError, faults: list[BlobRow]) -> None:
        """Log `error`; set the faulty blobs aside, except those that are gone with the whole folder."""
        self.logger.error("%s cannot be handed out whole: %s", self.name, error)
        if not faults or (isinstance(error, MissingBlob) and not self.registry.blobs.local.is_prepared()):
            return
        try:
            set_aside(self.registry.catalog, faults)
        except OrganError:
            self.logger.exception("%s: the faulty blob could not be marked", self.name)


class _Body:
    """The pieces of a source as the server wants them: bytes, not too long. `close` may be called twice."""

    def __init__(
        self, source: ByteSource, told: _Told, end: Callable[[], None], taken: Callable[[], None] | None
    ) -> None:
        self._source = source
        self._told = told
        self._taken = taken
        self._end: Callable[[], None] | None = end
        self._pieces = _pieces(source)
        source.__enter__()
        try:
            self._first = next(self._pieces, None)
        except BaseException as error:
            source.__exit__()
            if isinstance(error, OrganError):
                told.failed(error, source.faults)
            raise

    def __iter__(self) -> Iterator[bytes]:
        if self._first is not None:
            yield self._first
        self._first = None
        try:
            yield from self._pieces
            if self._taken is not None:
                self._taken()
        except OrganError as error:
            self._told.failed(error, self._source.faults)
            raise ConnectionResetError(errno.ECONNRESET, f"{self._told.name}: {error}") from error
        finally:
            self.close()

    def close(self) -> None:
        """Stop reading, and give the place back to the next."""
        if self._end is not None:
            end, self._end = self._end, None
            try:
                self._source.__exit__()
            finally:
                end()


def _pieces(source: ByteSource) -> Iterator[bytes]:
    for view in source:
        for begin in range(0, len(view), PIECE_BYTES):
            yield bytes(view[begin : begin + PIECE_BYTES])
