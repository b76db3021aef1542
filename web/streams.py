"""Downloads: files as answers, whole or a range of them, each blob checked while it is sent.

A blob that is found faulty before the first byte is an error with a sentence. Later the connection is closed early: the
client was promised a length, and sees that it did not get it. Either way the blob is set aside, so that the next
request is an error at once.
"""

from __future__ import annotations

import errno
import os
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import BoundedSemaphore, Lock
from typing import Protocol

from flask import Flask, Response, abort, current_app, request

from organs.registry.catalog.queries.blobs import BlobRow
from organs.registry.digest import Digest
from organs.registry.errors import MissingBlob, OrganError
from organs.registry.upkeep import set_aside
from organs.web.answers import registry
from organs.web.counting import counter_of
from organs.web.filenames import attachment
from organs.web.gateway import MAY_DOWNLOAD, OPENS_LATER, REFUSED_DOWNLOAD
from organs.web.memory import reveal_headers
from organs.web.ranges import Span, Unsatisfiable, asked_span, has_strong, has_weak, still_holds

STREAMS_KEY = "organ_streams"
THREADS = 12
"""Of which uploads may keep half, unless the server says otherwise."""
PIECE_BYTES = 256 * 1024
"""Given to the server at once."""
SMALL_BYTES = 16 * 1024
"""Up to this size a file is read at once, by the thread that answers the request."""
RETRY_SECONDS = 5
TOO_MANY = "Too many downloads of this address are in progress; try again in a few seconds."
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
    """What the downloads and uploads of one process share.

    Downloads share the threads that decode; how many of them hold buffers at once, the server decides
    (`web.concurrency.DownloadPlaces`). An upload keeps the thread that reads its body, so uploads are limited here.
    """

    def __init__(self, threads: int) -> None:
        self.pool = ThreadPoolExecutor(os.cpu_count() or 2, thread_name_prefix="decode")
        self._uploads = BoundedSemaphore(max(1, threads // 2))
        self._uploads_of_one = max(1, threads // 4)
        self._counts = Counter[int]()
        self._lock = Lock()

    def begin_upload(self, contributor_id: int) -> bool:
        """Take a place for the body of an upload; False when all are taken, or half of them by this contributor."""
        with self._lock:
            if self._counts[contributor_id] >= self._uploads_of_one or not self._uploads.acquire(blocking=False):
                return False
            self._counts[contributor_id] += 1
            return True

    def end_upload(self, contributor_id: int) -> None:
        """Release the place."""
        with self._lock:
            self._counts[contributor_id] -= 1
            self._counts += Counter[int]()  # removes contributors without a place
            self._uploads.release()


def streams() -> Streams:
    """Return the streams of this application."""
    found: Streams = current_app.extensions[STREAMS_KEY]
    return found


def allow_streams(app: Flask, threads: int) -> None:
    """Set up the streams of `app`, whose uploads may keep half of `threads`."""
    app.extensions[STREAMS_KEY] = Streams(threads)


def hand_out(content: Content, more: Mapping[str, str] | None = None, busy: int = 503) -> Response:
    """Return the answer to this request for `content`: 200, 206, 304, 412 or 416, with the headers `more`.

    `busy` is the status by which the server refuses it when the client has too many downloads in progress. Raises
    CorruptBlob or MissingBlob for a blob that is found faulty before the first byte.
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


def _begin(content: Content, span: Span, busy: int) -> FileBody:
    """Return the bytes of `span`, of which the first have been read and checked."""
    if not request.environ.get(MAY_DOWNLOAD, True):
        request.environ[REFUSED_DOWNLOAD] = True
        headers = {"Retry-After": str(RETRY_SECONDS)}
        abort(Response(f"{TOO_MANY}\n", busy, headers, content_type="text/plain; charset=utf-8"))
    finished = counter_of(content.model_id) if span.end == content.size_bytes else None
    app = current_app._get_current_object()  # type: ignore[attr-defined]
    return FileBody(content, span, app, finished, busy)


class FileBody:
    """The bytes of a file as pieces that a server sends one by one.

    `pause` closes what it holds (two chunks in memory, open files), between two pieces; the next piece opens it again
    where it was. Iterating raises ConnectionResetError when a blob turns out to be faulty: the connection must be
    closed. `close` and `pause` may be called from any thread, `close` more than once.
    """

    def __init__(
        self, content: Content, span: Span, app: Flask, finished: Callable[[], None] | None, busy_status: int
    ) -> None:
        self.busy_status = busy_status
        """The status of an answer that the server gives instead, when the client has too many downloads."""
        self._content = content
        self._app = app
        self._finished = finished
        self._position, self._end = span.begin, span.end
        self._source: ByteSource | None = None
        self._pieces: Iterator[bytes] = iter(())
        self._is_closed = False
        self._lock = Lock()
        self.opens_later = request.environ.get(OPENS_LATER, False) and span.size_bytes > SMALL_BYTES
        """Whether the first piece is read when it is asked for, not now."""
        self._first: bytes | None = None
        if not self.opens_later:
            with self._reported():
                self._first = self._read()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._lock:
            first, self._first = self._first, None
            if first is not None:
                return first
            if self._is_closed or self._position >= self._end:
                self._finish()
                raise StopIteration
            try:
                with self._reported():
                    return self._read()
            except OrganError as error:
                raise ConnectionResetError(errno.ECONNRESET, f"{self._content.name}: {error}") from error

    def pause(self) -> None:
        """Close what it holds until the next piece is asked for."""
        with self._lock:
            self._release()

    def close(self) -> None:
        """Stop reading."""
        with self._lock:
            self._is_closed = True
            self._release()

    def _read(self) -> bytes:
        if self._source is None:
            with self._app.app_context():
                source = self._content.open(self._position, self._end)
            source.__enter__()
            self._source, self._pieces = source, _pieces(source)
        piece = next(self._pieces, b"")
        self._position += len(piece)
        if not piece:
            self._end = self._position  # shorter than it should be: the server notices
        return piece

    def _finish(self) -> None:
        if not self._is_closed and self._finished is not None:
            self._finished()
        self._is_closed = True
        self._release()

    def _release(self) -> None:
        source, self._source, self._pieces = self._source, None, iter(())
        if source is not None:
            source.__exit__()

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Log what is wrong with the source, and set faulty blobs aside, except those that are gone with the store."""
        try:
            yield
        except BaseException as error:
            source = self._source
            self._is_closed = True
            self._release()
            if isinstance(error, OrganError) and source is not None:
                with self._app.app_context():
                    _report(error, self._content.name, source.faults)
            raise


def _report(error: OrganError, name: str, faults: list[BlobRow]) -> None:
    current_app.logger.error("%s cannot be handed out whole: %s", name, error)
    if not faults or (isinstance(error, MissingBlob) and not registry().blobs.local.is_prepared()):
        return
    try:
        set_aside(registry().catalog, faults)
    except OrganError:
        current_app.logger.exception("%s: the faulty blob could not be marked", name)


def _pieces(source: ByteSource) -> Iterator[bytes]:
    for view in source:
        for begin in range(0, len(view), PIECE_BYTES):
            yield bytes(view[begin : begin + PIECE_BYTES])
