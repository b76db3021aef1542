"""The path from a parsed request to the WSGI application and back: the environment, the body and the answer.

`call` and the reading methods of `BodyPipe` run in threads.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from threading import Condition
from typing import Any
from urllib.parse import unquote_to_bytes

MAY_DOWNLOAD = "organ.may_download"
"""Key of the environment: False if the client already has its maximum of downloads in progress and may not start
another."""
OPENS_LATER = "organ.opens_later"
"""Key of the environment: whether the application may return a download before its first bytes were read. The
`opens_later` of that download is then True. The server asks for the first piece before it sends the header. If that
fails, it calls the application again with False here."""
REFUSED_DOWNLOAD = "organ.refused_download"
"""Key of the environment: the application sets it to True when it refuses a download because of MAY_DOWNLOAD."""
COLLECT_BYTES = 128 * 1024
"""An answer of unknown length is collected in memory up to this size. A longer answer is sent piece by piece."""

Headers = list[tuple[str, str]]
_FORBIDDEN = re.compile(r"[\r\n\x00]|[^\x00-\xff]")


@dataclass(slots=True)
class HttpRequest:
    """A request as it was received. The names of headers are in lower case; all bytes are decoded as Latin-1."""

    method: str = ""
    target: str = ""
    version: str = "1.1"
    headers: Headers = field(default_factory=list)
    body: BodyPipe | io.BytesIO = field(default_factory=io.BytesIO)
    peer: tuple[str, int] = ("", 0)
    server: tuple[str, int] = ("", 0)
    may_download: bool = True
    opens_later: bool = True

    def header(self, name: str, *, lower: bool = False) -> str | None:
        """Return the values of a header, joined by commas, or None if there are none. `name` is in lower case."""
        values = [value for key, value in self.headers if key == name]
        joined = ",".join(values)
        return (joined.lower() if lower else joined) if values else None

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for 100 before it sends its body."""
        return self.version != "1.0" and self.header("expect", lower=True) == "100-continue"

    @property
    def path(self) -> str:
        """The path of the target, still percent-encoded."""
        return split_target(self.target)[0]


@dataclass(slots=True)
class Answer:
    """The answer of the application. `rest` yields the bytes that follow `pieces`; `close` ends the answer."""

    status: str
    headers: Headers
    pieces: list[bytes]
    rest: Iterator[bytes] | None = None
    source: Any = None
    """The iterable of the application, which may have `close` and `pause`."""
    refuses_download: bool = False
    """Whether the answer says that the client has too many downloads in progress."""

    @property
    def length(self) -> int | None:
        """The `Content-Length` that the application set, or None."""
        return next((int(value) for name, value in self.headers if name.lower() == "content-length"), None)

    @property
    def opens_later(self) -> bool:
        """Whether the first piece has not been read yet. Reading it may fail."""
        return bool(getattr(self.source, "opens_later", False))

    def close(self) -> None:
        """Release what the application holds for this answer."""
        close = getattr(self.source, "close", None)
        if close is not None:
            close()


class BodyTooSlow(TimeoutError):
    """The client did not send its body in time."""


class BodyPipe(io.RawIOBase):
    """A body that is not complete yet: the event loop adds received bytes, and a thread reads them.

    `drained` is called in the reading thread after each read, because the loop may then receive more. Reading raises
    the error that was passed to `fail`.
    """

    def __init__(self, drained: Callable[[], None]) -> None:
        super().__init__()
        self._drained = drained
        self._buffer = bytearray()
        self._ended = False
        self._error: OSError | None = None
        self._changed = Condition()
        self.is_read = False
        """Whether a thread has begun to read."""

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        with self._changed:
            self._buffer += data
            self._changed.notify()

    def finish(self) -> None:
        """Note that the body is complete."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def fail(self, error: OSError) -> None:
        """Let the reader raise `error` after the received bytes."""
        with self._changed:
            self._error = error
            self._changed.notify()

    @property
    def held_bytes(self) -> int:
        """The number of bytes that were received and not read yet."""
        return len(self._buffer)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for some bytes and return their number; return 0 at the end of the body."""
        with self._changed:
            self.is_read = True
            if not self._buffer:
                self._drained()
            while not self._buffer and not self._ended:
                if self._error is not None:
                    raise self._error
                self._changed.wait()
            size = min(len(buffer), len(self._buffer))
            with memoryview(self._buffer) as held:
                buffer[:size] = held[:size]
            del self._buffer[:size]
        self._drained()
        return size


def split_target(target: str) -> tuple[str, str]:
    """Return path and query of a request's target; both are empty if the target has no path (RFC 9112, 3.2)."""
    if not target.startswith("/"):
        scheme, colon, rest = target.partition("://")
        if not colon or scheme.lower() not in ("http", "https"):
            return "", ""
        slash = rest.find("/")
        target = rest[slash:] if slash >= 0 else "/"
    path, _, query = target.partition("#")[0].partition("?")
    return path, query


def environment(request: HttpRequest) -> dict[str, Any]:
    """Return the WSGI environment of `request` (PEP 3333).

    Headers with an underscore in their names are left out. In the environment they would have the same key as the
    header with a hyphen, and a proxy checks only the header with a hyphen.
    """
    path, query = split_target(request.target)
    environ: dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "QUERY_STRING": query,
        "SERVER_NAME": request.server[0],
        "SERVER_PORT": str(request.server[1]),
        "SERVER_PROTOCOL": f"HTTP/{request.version}",
        "REMOTE_ADDR": request.peer[0],
        "REMOTE_PORT": str(request.peer[1]),
        MAY_DOWNLOAD: request.may_download,
        OPENS_LATER: request.opens_later,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": request.body,
        "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    for name, value in request.headers:
        if "_" in name:
            continue
        key = name.upper().replace("-", "_")
        if key not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            key = f"HTTP_{key}"
        if key in environ:
            separator = "; " if key == "HTTP_COOKIE" else ","
            value = f"{environ[key]}{separator}{value}"
        environ[key] = value
    return environ


def call(application: Any, request: HttpRequest) -> Answer:
    """Call `application` and return its answer to `request`.

    A short answer is collected completely. Of a long answer only the beginning is collected.

    Raises what the application raises, and ValueError for a header that HTTP does not allow.
    """
    started: list[Any] = []
    written: list[bytes] = []

    def start_response(status: str, headers: Headers, exc_info: Any = None) -> Callable[[bytes], None]:
        if any(_FORBIDDEN.search(part) for part in (status, *chain.from_iterable(headers))):
            raise ValueError("a header of an answer has a line break or a character that HTTP does not allow")
        started[:] = [status, headers]
        return written.append

    environ = environment(request)
    source: Iterable[bytes] = application(environ, start_response)
    try:
        iterator = iter(source)
        answer = Answer("", [], written, iterator, source, refuses_download=environ.get(REFUSED_DOWNLOAD, False))
        if answer.opens_later:
            answer.status, answer.headers = started
            return answer
        size = 0
        for piece in iterator:
            answer.pieces.append(piece)
            size += len(piece)
            answer.status, answer.headers = started
            length = answer.length
            if size >= COLLECT_BYTES and size != length:
                return answer
        answer.status, answer.headers = started
        answer.rest = None
    except BaseException:
        Answer("", [], [], None, source).close()
        raise
    answer.close()
    return answer
