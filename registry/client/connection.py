"""Requests to one remote registry, with limits of size and time. The token is sent only to this registry.

The server is not trusted. An answer in JSON has a maximum size, and a redirect to another origin is not followed. There
is a time limit for the header of an answer, for a whole answer in JSON, and for each MiB of a download. A request that
was interrupted is repeated only if that has the same effect as one request.
"""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cache, partial
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import urllib3
import urllib3.connection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NameResolutionError, NewConnectionError, SSLError
from urllib3.response import BaseHTTPResponse

from organs.registry.client.address import parse_address
from organs.registry.entities.base import E, decode, encode
from organs.registry.entities.problem import error_of
from organs.registry.errors import BadReply, BadSetting, NoRegistry, Unreachable
from organs.registry.tokens import parse_token

ANSWER_MAX_BYTES = 16 * 1024 * 1024
"""The largest answer in JSON; compression is not requested, so it cannot expand."""
PROBLEM_MAX_BYTES = 1024 * 1024
"""The largest problem document of a refusal. A larger one is ignored; then only the status is used."""
CONNECT_SECONDS, READ_SECONDS = 15.0, 120.0
"""Time limits. The first is for connecting, and for each block that is sent. The second is for the whole header of an
answer, and for each read after it."""
ANSWER_SECONDS = 120.0
"""Time limit for the whole body of an answer in JSON."""
LOWEST_BYTES_A_SECOND = 4096
"""The minimum speed of a download, after READ_SECONDS for each chunk. A slower download is interrupted."""
BLOCK_BYTES = 64 * 1024
"""Bytes in one send. The time limit is for one block, so that an upload on a slow line is not interrupted."""
CONNECTIONS_MAX = 16
TRIES = 4
BACKOFF_SECONDS = 0.4
WAIT_MAX_SECONDS = 60.0
"""The longest total wait, in seconds, while the registry answers that it is busy."""
REDIRECTS_MAX = 4
CHUNK_BYTES = 1024 * 1024
_REPEATABLE = frozenset(("GET", "HEAD", "PUT", "DELETE"))
_AS_DATA = frozenset((304, 416))
"""Statuses that are answers, not errors, when bytes are sent or downloaded."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of a download; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    _response: BaseHTTPResponse = field(repr=False)
    _read_seconds: float = READ_SECONDS

    def stream(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        """Yield the bytes of a download.

        Raises Unreachable if they end too early, stop, or are slower than LOWEST_BYTES_A_SECOND.
        """
        pieces = self._response.stream(chunk_bytes, decode_content=False)
        seconds = self._read_seconds + chunk_bytes / LOWEST_BYTES_A_SECOND
        while True:
            try:
                with deadline(seconds, self._response.shutdown):
                    piece = next(pieces, None)
            except (HTTPError, OSError) as error:
                raise Unreachable(f"the download was cut: {reason_text(error)}") from error
            if piece is None:
                return
            yield piece


class AnswerTooSlow(HTTPError):
    """An answer did not arrive in time. It is not requested again, because that would only take the same time."""


@contextmanager
def deadline(seconds: float, cut: Callable[[], None]) -> Iterator[None]:
    """Call `cut`, which shuts a socket down, if the block takes longer than `seconds`; the block then raises
    AnswerTooSlow.

    The timeout of a socket is for one read: a server that sends one byte a second never reaches it.
    """
    is_over = threading.Event()

    def end() -> None:
        is_over.set()
        with suppress(OSError, ValueError, RuntimeError):  # closed, or returned to the pool in the meantime
            cut()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (HTTPError, HTTPException, OSError, ValueError) as error:  # from a socket that was shut down during a read
        if is_over.is_set():
            raise AnswerTooSlow(f"it took more than {seconds:g} seconds") from error
        raise
    finally:
        timer.cancel()
    if is_over.is_set():
        raise AnswerTooSlow(f"it took more than {seconds:g} seconds")


class _HeaderInTime:
    """A connection with a time limit for the whole header of an answer."""

    sock: socket.socket | None
    timeout: float | None

    def getresponse(self) -> Any:
        sock = self.sock
        if sock is None or self.timeout is None:
            return super().getresponse()  # type: ignore[misc]
        # Longer than the timeout of a read, whose error says more if the server sends nothing.
        with deadline(1.25 * self.timeout, partial(sock.shutdown, socket.SHUT_RDWR)):
            return super().getresponse()  # type: ignore[misc]


class _HttpConnection(_HeaderInTime, urllib3.connection.HTTPConnection):
    pass


class _HttpsConnection(_HeaderInTime, urllib3.connection.HTTPSConnection):
    pass


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


def connection_pool(
    connections: int, read_seconds: float, headers: Mapping[str, str] | None = None
) -> urllib3.PoolManager:
    """Return a pool with up to `connections` open connections to each host, which repeats no request by itself.

    `read_seconds` is the longest wait for the next bytes, and, with a quarter more, for the whole header of an answer.
    """
    timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=read_seconds)
    pool = urllib3.PoolManager(2, headers, maxsize=connections, timeout=timeout, retries=False, blocksize=BLOCK_BYTES)
    pool.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
    return pool


class Connection:
    """Connections to a registry, with the token of the user. Safe to use from several threads."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        plain_http: bool = False,
        read_seconds: float = READ_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
        tries: int = TRIES,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare a connection; no request is sent.

        Raises BadSetting for an invalid address, and for a token that would be sent unencrypted unless `plain_http` is
        set; BadToken for an invalid token.
        """
        self.address = parse_address(url)
        headers = {"User-Agent": user_agent(), "Accept-Encoding": "identity"}
        if token is not None:
            parse_token(token)
            if not (self.address.is_private or plain_http):
                raise BadSetting(f"{self.address}: a token is not sent over plain http to another machine; use https")
            headers["Authorization"] = f"Bearer {token}"
        self._tries, self.sleep = tries, sleep
        self._read_seconds, self._answer_seconds = read_seconds, answer_seconds
        self._pool = connection_pool(CONNECTIONS_MAX, read_seconds, headers)

    @property
    def url(self) -> str:
        """The address of the registry, without a slash at its end."""
        return str(self.address)

    def close(self) -> None:
        """Close the sockets."""
        self._pool.clear()

    def send(
        self,
        kind: type[E],
        method: str,
        path: str,
        body: object = None,
        data: bytes | memoryview | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> E:
        """Send `body`, an entity or plain values, as JSON, or `data`, and return the entity in the answer.

        `registry.endpoints` have the paths. Raises the error in the answer of the registry
        (`registry.entities.problem.error_of`), Unreachable, and BadReply for an answer that is not an entity of `kind`.
        An answer to `data` with status 416 is no error. After Unreachable for `data`, the caller requests how many
        bytes have arrived, and continues after them.
        """
        headers = {"Accept": "application/json", **(headers or {})}
        if data is not None:
            headers["Content-Type"] = "application/octet-stream"
        elif body is not None:
            headers["Content-Type"] = "application/json"
        sent = encode(body) if data is None and body is not None else data
        with self._request(method, path, sent, headers, as_data=data is not None) as response:
            return self._entity(response, kind)

    def _entity(self, response: BaseHTTPResponse, kind: type[E]) -> E:
        data = self._body(response, ANSWER_MAX_BYTES)
        if data is None:
            raise BadReply(f"{self.address}: its answer has more than {ANSWER_MAX_BYTES} bytes; it is not read")
        try:
            return decode(data, kind)
        except ValueError as error:
            raise NoRegistry(f"{self.address} does not answer as a registry does: {str(error)[:300]}") from error

    @contextmanager
    def download(self, path: str, headers: Mapping[str, str] | None = None) -> Iterator[Reply]:
        """Open the answer at `path`; its bytes are streamed in the block. The statuses 304 and 416 are not errors."""
        with self._request("GET", path, None, headers or {}, as_data=True) as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            yield Reply(response.status, headers, response, self._read_seconds)

    @contextmanager
    def _request(
        self, method: str, path: str, data: bytes | memoryview | None, headers: Mapping[str, str], as_data: bool = False
    ) -> Iterator[BaseHTTPResponse]:
        """Open an answer whose body is not read yet; its connection is released after the block.

        Raises the error in a refusal.
        """
        response = self._send(method, self.address.of(path), data, headers)
        try:
            if response.status >= 300 and not (response.status in _AS_DATA and as_data):
                body = self._body(response, PROBLEM_MAX_BYTES)
                raise error_of(response.status, body or b"", str(self.address), wait_seconds(response) or 0)
            yield response
        finally:
            response.close()  # a response that was read to its end has already released its connection

    def _send(
        self, method: str, url: str, data: bytes | memoryview | None, headers: Mapping[str, str]
    ) -> BaseHTTPResponse:
        """Return an answer; repeat the request, up to the limits, while the registry is busy (429 or 503).

        The request is also repeated after a failed connection if that is safe. Redirects within the registry are
        followed. Raises Unreachable, BadReply.
        """
        all_headers = {**self._pool.headers, **headers}
        view = memoryview(b"" if data is None else data)
        if data is not None:
            all_headers["Content-Length"] = str(len(view))
        waited, redirects, attempt = 0.0, 0, 0
        while True:
            attempt += 1
            blocks = (bytes(view[begin : begin + BLOCK_BYTES]) for begin in range(0, len(view), BLOCK_BYTES))
            try:
                response = self._pool.request(
                    method,
                    url,
                    body=None if data is None else blocks,
                    headers=all_headers,
                    redirect=False,
                    preload_content=False,
                    decode_content=False,
                )
            except (HTTPError, OSError) as error:
                if attempt >= self._tries or not may_repeat(method, error):
                    raise Unreachable(f"{self.address} does not answer: {reason_text(error)}") from error
                self.sleep(backoff_seconds(attempt))
                continue
            if response.status in (301, 302, 303, 307, 308):
                redirects += 1
                location = response.headers.get("Location", "")
                response.close()
                target = self.address.redirected(url, location)
                if target is None:
                    raise BadReply(
                        f"{self.address} redirects to {location[:200]!r}, which is another registry: nothing is sent "
                        "there; give that address if you trust it"
                    )
                if redirects > REDIRECTS_MAX or method not in ("GET", "HEAD"):
                    raise BadReply(f"{self.address} redirects to {location[:200]!r}, which is not followed")
                url = target
                continue
            if response.status not in (429, 503) or attempt >= self._tries:
                return response
            seconds = wait_seconds(response)
            seconds = backoff_seconds(attempt) if seconds is None else seconds
            waited += seconds
            if waited > WAIT_MAX_SECONDS:
                return response
            response.close()
            self.sleep(seconds)

    def _body(self, response: BaseHTTPResponse, most_bytes: int) -> bytes | None:
        """Return the body of an answer; None if it has more than `most_bytes`. Raises Unreachable."""
        data = bytearray()
        try:
            with deadline(self._answer_seconds, response.shutdown):
                for chunk in response.stream(CHUNK_BYTES, decode_content=False):
                    data += chunk
                    if len(data) > most_bytes:
                        return None
        except (HTTPError, OSError) as error:
            raise Unreachable(f"{self.address}: its answer was cut: {reason_text(error)}") from error
        return bytes(data)


@cache
def user_agent() -> str:
    """Return the value of the header User-Agent: the program and its version."""
    try:
        return f"organ-registry/{version('organ-registry')}"
    except PackageNotFoundError:
        return "organ-registry/0"


def may_repeat(method: str, error: Exception) -> bool:
    """Return whether a repeated request is safe and may succeed."""
    if isinstance(error, NameResolutionError | SSLError | AnswerTooSlow):
        return False
    return method in _REPEATABLE or isinstance(error, NewConnectionError | ConnectTimeoutError)


def backoff_seconds(attempt: int) -> float:
    """Return the seconds to wait after that many failures in a row: exponential, with random spread."""
    jitter = 0.75 + random.random() / 2  # noqa: S311  # so that clients do not repeat at the same time
    return float(BACKOFF_SECONDS * 2 ** (attempt - 1) * jitter)


def wait_seconds(response: BaseHTTPResponse) -> float | None:
    """Return the seconds to wait from the header Retry-After; None if it is missing or invalid."""
    text = response.headers.get("Retry-After", "")[:64]
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def reason_text(error: Exception) -> str:
    """Return the text of an error, without the object that urllib3 prepends."""
    text = str(error) or type(error).__name__
    return re.sub(r"^\w*(?:Connection|Pool)\(.*?\): ", "", text)[:300]
