"""From a parsed request to the WSGI application and back: the environment, the body, the answer. Runs in threads."""

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
"""In the environment: False where the client has as many downloads in progress as it may, and gets no other."""
OPENS_LATER = "organ.opens_later"
"""In the environment: whether a download may be returned before its first bytes were read. Its `opens_later` is True
then; the server asks for the first piece before it sends the header, and calls the application again, without this,
when that fails."""
REFUSED_DOWNLOAD = "organ.refused_download"
"""In the environment: the application sets it to True where it refuses a download because of MAY_DOWNLOAD."""
COLLECT_BYTES = 128 * 1024
"""An answer of unknown length is collected up to this size; a longer one is sent piece by piece."""

Headers = list[tuple[str, str]]
_FORBIDDEN = re.compile(r"[\r\n\x00]|[^\x00-\xff]")


@dataclass(slots=True)
class Request:
    """A request as it came: names of headers in lower case, all bytes as Latin-1."""

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
        """Return the values of a header, joined by commas; None without any. `name` is in lower case."""
        values = [value for one, value in self.headers if one == name]
        joined = ",".join(values)
        return (joined.lower() if lower else joined) if values else None

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for 100 before it sends its body."""
        return self.version != "1.0" and self.header("expect", lower=True) == "100-continue"

    @property
    def path(self) -> str:
        """The path of the target, still quoted."""
        return split_target(self.target)[0]


@dataclass(slots=True)
class Answer:
    """What the application answered; `rest` gives what is not in `pieces`, and `close` ends it."""

    status: str
    headers: Headers
    pieces: list[bytes]
    rest: Iterator[bytes] | None = None
    source: Any = None
    """The iterable of the application, which may have `close` and `pause`."""
    refuses_download: bool = False
    """Whether it says that the client has too many downloads in progress."""

    @property
    def length(self) -> int | None:
        """The `Content-Length` of the application."""
        return next((int(value) for name, value in self.headers if name.lower() == "content-length"), None)

    @property
    def opens_later(self) -> bool:
        """Whether its first piece has not been read, and may not be there."""
        return bool(getattr(self.source, "opens_later", False))

    def close(self) -> None:
        """Release what the application holds for this answer."""
        close = getattr(self.source, "close", None)
        if close is not None:
            close()


class BodyTooSlow(TimeoutError):
    """The client did not send its body in time."""


class BodyPipe(io.RawIOBase):
    """A body that is still coming: the event loop feeds it, and a thread reads it.

    `drained` is called, in the thread, when something was read: the loop may receive more. Reading raises the error
    that `fail` was given.
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
        """Bytes that have come and were not read."""
        return len(self._buffer)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for some bytes; return their number, 0 at the end."""
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
    """Return path and query of a request's target; both are empty where it has no path (RFC 9112, 3.2)."""
    if not target.startswith("/"):
        scheme, colon, rest = target.partition("://")
        if not colon or scheme.lower() not in ("http", "https"):
            return "", ""
        slash = rest.find("/")
        target = rest[slash:] if slash >= 0 else "/"
    path, _, query = target.partition("#")[0].partition("?")
    return path, query


def environment(request: Request) -> dict[str, Any]:
    """Return the WSGI environment of `request` (PEP 3333).

    Headers with an underscore in their names are left out: in the environment they would look like the same name with
    a hyphen, which a proxy checks.
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


def call(application: Any, request: Request) -> Answer:
    """Let `application` answer `request`. A short answer is collected whole; of a long one, the beginning.

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
            whole = answer.length
            if size >= COLLECT_BYTES and size != whole:
                return answer
        answer.status, answer.headers = started
        answer.rest = None
    except BaseException:
        Answer("", [], [], None, source).close()
        raise
    answer.close()
    return answer
