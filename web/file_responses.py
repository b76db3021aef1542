"""Downloads: files or ranges of them (RFC 9110), each blob checked while it is sent, file names, and counts."""

from __future__ import annotations

import errno
import os
import re
import threading
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from logging import Logger
from threading import BoundedSemaphore, Lock
from time import thread_time
from typing import Any, Protocol
from urllib.parse import quote

from flask import Flask, Response, current_app, request

from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.blobs import KnownBlob
from organs.registry.catalog.register.counts import add_downloads
from organs.registry.catalog.tables import now
from organs.registry.digest import Digest
from organs.registry.errors import OrganError
from organs.registry.local import LocalRegistry
from organs.registry.upkeep import set_aside
from organs.web.answer_cache import reveal_headers
from organs.web.metrics import METRICS_KEY, Meters
from organs.web.rate_limits import charge_of_reader
from organs.web.responses import registry, settings
from organs.web.server.gateway import MAY_DOWNLOAD, OPENS_LATER, REFUSED_DOWNLOAD
from organs.web.settings import RETRY_SECONDS

HEADER_MAX_LENGTH = 200
"""The longest `Range` header that is read. A range of two numbers of 63 bits has 45 characters."""
TAGS_MAX_LENGTH = 4096

_ONE_RANGE = re.compile(r"bytes=(?P<first>[0-9]{0,80})-(?P<last>[0-9]{0,80})", re.ASCII | re.IGNORECASE)
_TAG = re.compile(r'(?P<weak>W/)?"(?P<tag>[\x21\x23-\x7e\x80-\xff]*)"')


def requested_span(header: str | None, size_bytes: int) -> range | None:
    """Return the offsets that a `Range` header requests of a file of `size_bytes`; None for the whole file.

    Like every server may (RFC 9110), it ignores a header that is not one valid range. The result is empty if the file
    has no byte in the range.
    """
    if header is None or len(header) > HEADER_MAX_LENGTH:
        return None
    match = _ONE_RANGE.fullmatch(header.strip(" \t"))
    if match is None:
        return None
    first, last = match["first"], match["last"]
    if not first and not last:
        return None
    if not first:  # the last bytes of the file
        return range(size_bytes - min(int(last), size_bytes), size_bytes)
    if last and int(last) < int(first):
        return None
    end = min(int(last) + 1, size_bytes) if last else size_bytes
    return range(min(int(first), end), end)


def still_holds(if_range: str | None, tag: str) -> bool:
    """Return whether a range may be served: there is no `If-Range`, or it is the strong `tag` of the file.

    A date is never valid, because the answers have no `Last-Modified`.
    """
    return if_range is None or if_range.strip(" \t") == f'"{tag}"'


def has_strong(header: str, tag: str) -> bool:
    """Return whether an `If-Match` header names `tag`, by strong comparison, or any file."""
    return header.strip(" \t") == "*" or (tag, False) in _tags(header)


def has_weak(header: str, tag: str) -> bool:
    """Return whether an `If-None-Match` header names `tag`, by weak comparison, or any file."""
    return header.strip(" \t") == "*" or any(tag == other for other, _ in _tags(header))


def _tags(header: str) -> list[tuple[str, bool]]:
    """Return the tags of a list, each with True if it is weak."""
    return [(match["tag"], match["weak"] is not None) for match in _TAG.finditer(header[:TAGS_MAX_LENGTH])]


NAME_MAX_LENGTH = 180

_UNWANTED = re.compile(r"[^A-Za-z0-9._+@ -]+", re.ASCII)
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.ASCII | re.IGNORECASE)


def attachment(name: str) -> str:
    """Return a `Content-Disposition` header that saves a file as `name`, or under a safe name similar to it.

    The name is never a path or a device, and cannot add a header. A name that is not ASCII is also sent
    percent-encoded; in it, characters other than letters, digits and `._+@ -` become underscores.
    """
    plain = safe_name(name)
    header = f'attachment; filename="{plain}"'
    wide = _cut("".join(letter if letter.isalnum() or letter in "._+@ -" else "_" for letter in name))
    return header if wide == plain or not wide else f"{header}; filename*=UTF-8''{quote(wide, safe='')}"


def safe_name(name: str) -> str:
    """Return `name`, changed so that every file system accepts it."""
    return _cut(_UNWANTED.sub("_", name)) or "download"


def is_plain_name(name: str) -> bool:
    """Return whether every file system accepts `name`."""
    return safe_name(name) == name


def _cut(name: str) -> str:
    stem, dot, ending = name.strip(" ").rpartition(".")
    if len(name) > NAME_MAX_LENGTH and dot and 0 < len(ending) <= 10:
        name = f"{stem[: NAME_MAX_LENGTH - len(ending) - 1]}.{ending}"
    clean = name[:NAME_MAX_LENGTH].lstrip(". -").rstrip(". ")
    return f"_{clean}" if _DEVICE.fullmatch(clean) else clean


STREAMS_KEY = "organ_streams"
THREADS = 12
"""The default number of threads; uploads may use half of them."""
PIECE_BYTES = 512 * 1024
"""The size of the pieces that the server sends."""
SMALL_BYTES = 16 * 1024
"""Up to this size, the thread that answers the request reads the file immediately."""
TOO_MANY = "Too many downloads to this address are in progress; try again in a few seconds."
IMMUTABLE = "public, max-age=31536000, immutable"
OCTETS, PLAIN_TEXT = "application/octet-stream", "text/plain; charset=utf-8"


class BodySource(Protocol):
    """Bytes in order, as views that are valid until the next view is requested; and the blobs that are faulty."""

    @property
    def faults(self) -> list[KnownBlob]: ...
    def wasted_seconds(self, sent_bytes: int) -> float:
        """Return the processor time that was used for other bytes than the first `sent_bytes`."""
        ...

    def __enter__(self) -> BodySource: ...
    def __exit__(self, *_: object) -> None: ...
    def __iter__(self) -> Iterator[memoryview]: ...


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file to send."""

    name: str
    size_bytes: int
    tag: str
    """The strong ETag, without quotes: different bytes have different tags."""
    open: Callable[[int, int], BodySource]
    """Opens the bytes from one offset to another. Entering the source raises CorruptBlob if a blob is still faulty."""
    sha256: Digest | None = None
    """The SHA-256 of the whole file, if it is known."""
    immutable: bool = False
    """Whether its address always names these bytes."""
    model_id: int | None = None
    """The model whose download is counted when the last byte is sent."""


class Streams:
    """The threads and limits that the downloads and uploads of one process share.

    Downloads share the threads that decode; the server limits how many of them hold buffers at once
    (`web.server.scheduling.DownloadPlaces`). An upload keeps the thread that reads its body, so uploads are limited
    here.
    """

    def __init__(self, threads: int) -> None:
        self.pool = ThreadPoolExecutor(os.cpu_count() or 2, thread_name_prefix="decode")
        self._uploads = BoundedSemaphore(max(1, threads // 2))
        self._uploads_per_contributor = max(1, threads // 4)
        self._counts = Counter[int]()
        self._lock = Lock()

    def begin_upload(self, contributor_id: int) -> bool:
        """Take a place for the body of an upload; return False if none is free or this contributor has half of them."""
        with self._lock:
            if self._counts[contributor_id] >= self._uploads_per_contributor or not self._uploads.acquire(
                blocking=False
            ):
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
    table: Streams = current_app.extensions[STREAMS_KEY]
    return table


def allow_streams(app: Flask, threads: int) -> None:
    """Set up the streams of `app`; uploads may use half of `threads`."""
    app.extensions[STREAMS_KEY] = Streams(threads)


def hand_out(content: FileContent, more: Mapping[str, str] | None = None, busy: int = 503) -> Response:
    """Return the answer to this request for `content`: 200, 206, 304, 412 or 416, with the headers `more`.

    `busy` is the status of the refusal if the client has too many downloads in progress. Raises CorruptBlob or
    MissingBlob if a blob is found to be faulty before the first byte.
    """
    reveal_headers()
    headers = {
        "Content-Type": OCTETS,
        "ETag": f'"{content.tag}"',
        "Accept-Ranges": "bytes",
        "Cache-Control": IMMUTABLE if content.immutable else "no-cache",
        "Content-Disposition": attachment(content.name),
    }
    if content.sha256 is not None:
        headers["Repr-Digest"] = f"sha-256=:{b64encode(bytes.fromhex(content.sha256)).decode('ascii')}:"
    headers |= more or {}
    if_match, if_none_match = request.headers.get("If-Match"), request.headers.get("If-None-Match")
    if if_match is not None and not has_strong(if_match, content.tag):
        return _error_response(412, "This file is not the one that If-Match names.", headers)
    if if_none_match is not None and has_weak(if_none_match, content.tag):
        names = ("ETag", "Cache-Control", "Accept-Ranges")
        return Response(status=304, headers={name: headers[name] for name in names})
    size, span = content.size_bytes, None
    if request.method != "HEAD" and still_holds(request.headers.get("If-Range"), content.tag):
        span = requested_span(request.headers.get("Range"), size)
    if span is not None:
        headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{size}" if span else f"bytes */{size}"
        if not span:
            return _error_response(416, f"This file has {size} bytes; none of them is in that range.", headers)
    sent = range(size) if span is None else span
    headers["Content-Length"] = str(len(sent))
    if request.method == "HEAD":
        with content.open(0, size):  # raises the error that a GET would raise before the first byte
            body: Iterable[bytes] = ()
    else:
        if not request.environ.get(MAY_DOWNLOAD, True):
            request.environ[REFUSED_DOWNLOAD] = True
            retry = {"Retry-After": str(RETRY_SECONDS)}
            return Response(f"{TOO_MANY}\n", busy, retry, content_type=PLAIN_TEXT)
        finished = counter_of(content.model_id) if sent.stop == size else None
        # The first piece has been read and checked when this returns, unless the server opens it later.
        body = FileBody(content, sent, current_app._get_current_object(), finished, busy)  # type: ignore[attr-defined]
    return Response(body, status=200 if span is None else 206, headers=headers, direct_passthrough=True)


def _error_response(status: int, sentence: str, headers: Mapping[str, str]) -> Response:
    """Return a refusal as one line of text, for programs."""
    kept = {name: value for name, value in headers.items() if name in ("ETag", "Accept-Ranges", "Content-Range")}
    return Response(f"{sentence}\n", status=status, headers={**kept, "Content-Type": PLAIN_TEXT})


class FileBody:
    """The bytes of a file as pieces that a server sends one by one.

    Between two pieces, `pause` releases the memory (two chunks) and the open files; the next piece opens them again at
    the same position. The client is charged for each opening, and for what was decoded and not sent: one byte costs a
    chunk. Iterating raises ConnectionResetError if a blob is found to be faulty: the connection must then be closed.
    `close` and `pause` may be called from any thread, `close` more than once.
    """

    def __init__(
        self, content: FileContent, span: range, app: Flask, finished: Callable[[], None] | None, busy_status: int
    ) -> None:
        self.busy_status = busy_status
        """The status of the server's refusal if the client has too many downloads."""
        self._content = content
        self._app = app
        self._finished = finished
        self._position, self._end = span.start, span.stop
        self._charge = charge_of_reader()
        self._opened_at = span.start
        self._source: BodySource | None = None
        self._pieces: Iterator[bytes] = iter(())
        self._is_closed = False
        self._lock = Lock()
        self.opens_later = request.environ.get(OPENS_LATER, False) and len(span) > SMALL_BYTES
        """Whether the first piece is read when it is requested, not when this object is created."""
        self._first: bytes | None = None
        if not self.opens_later:
            with self._reporting_faults():
                self._first = self._read()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._lock:
            first, self._first = self._first, None
            if first is not None:
                return first
            if self._is_closed or self._position >= self._end:
                if not self._is_closed and self._finished is not None:
                    self._finished()
                self._is_closed = True
                self._release()
                raise StopIteration
            opens, began = self._source is None, thread_time()
            try:
                with self._reporting_faults():
                    piece = self._read()
            except OrganError as error:
                raise ConnectionResetError(errno.ECONNRESET, f"{self._content.name}: {error}") from error
            if opens:  # it reads the plan of the file, which takes some milliseconds
                self._charge(thread_time() - began)
            return piece

    def pause(self) -> None:
        """Release memory and open files until the next piece is requested."""
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
            pieces = (
                bytes(view[begin : begin + PIECE_BYTES])
                for view in source
                for begin in range(0, len(view), PIECE_BYTES)
            )
            self._source, self._pieces, self._opened_at = source, pieces, self._position
        piece = next(self._pieces, b"")
        self._position += len(piece)
        if not piece:
            self._end = self._position  # the body is too short, which the server detects
        return piece

    def _release(self) -> None:
        source, self._source, self._pieces = self._source, None, iter(())
        if source is not None:
            source.__exit__()
            self._charge(source.wasted_seconds(self._position - self._opened_at))

    @contextmanager
    def _reporting_faults(self) -> Iterator[None]:
        """Log an error of the source and set its faulty blobs aside, unless the whole store is missing."""
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


def _report(error: OrganError, name: str, faults: list[KnownBlob]) -> None:
    current_app.logger.error("%s cannot be handed out whole: %s", name, error)
    if not faults or not registry().blobs.backend.is_prepared():  # for example, its disk is not mounted
        return
    try:
        set_aside(registry().catalog, faults)
    except OrganError:
        current_app.logger.exception("%s: the faulty blob could not be marked", name)


COUNTING_KEY = "organ_counting"
FLUSH_SECONDS = 10.0


class DownloadCounts:
    """The downloads that this process has counted and not yet added to the catalog."""

    def __init__(self, catalog: Catalog, logger: Logger, seconds: float = FLUSH_SECONDS) -> None:
        self._catalog = catalog
        self._logger = logger
        self._seconds = seconds
        self._counted: Counter[tuple[int, str]] = Counter()
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def count(self, model_id: int) -> None:
        """Count one download of a model."""
        with self._lock:
            self._counted[model_id, now().date().isoformat()] += 1
            self._start_timer()

    def flush(self) -> None:
        """Add the counts to the catalog. If this fails, they are kept for the next time."""
        with self._writing:
            with self._lock:
                counted, self._counted = self._counted, Counter()
            if not counted:
                return
            try:
                with self._catalog.writing() as session:
                    add_downloads(session, counted)
            except OrganError as error:
                self._logger.warning("%d downloads could not be counted yet: %s", counted.total(), error)
                with self._lock:
                    self._counted += counted

    def _start_timer(self) -> None:
        """Start the timer that flushes the counts, unless it is running."""
        if self._timer is None:
            self._timer = threading.Timer(self._seconds, self._run_timer)
            self._timer.daemon = True
            self._timer.start()

    def _run_timer(self) -> None:
        with self._lock:
            self._timer = None
        self.flush()
        with self._lock:
            if self._counted:
                self._start_timer()


def count_downloads(app: Flask, registry: LocalRegistry) -> None:
    """Let `app` count its downloads."""
    app.extensions[COUNTING_KEY] = DownloadCounts(registry.catalog, app.logger)


def counter_of(model_id: int | None) -> Callable[[], None] | None:
    """Return the function to call when the last byte of the model is sent; None if this download is not counted."""
    downloads: DownloadCounts | None = current_app.extensions.get(COUNTING_KEY)
    if model_id is None or downloads is None or settings().read_only:
        return None
    meters: Meters = current_app.extensions[METRICS_KEY]

    def count() -> None:
        meters.downloads.inc()
        downloads.count(model_id)

    return count


def worker_exit(_server: object, worker: Any) -> None:
    """Write the counts of a process that ends (a hook of gunicorn)."""
    app = getattr(worker, "wsgi", None)
    downloads = app.extensions.get(COUNTING_KEY) if isinstance(app, Flask) else None
    if downloads is not None:
        downloads.flush()
