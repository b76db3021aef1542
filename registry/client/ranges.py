"""A file at an http(s) address or in an object store, read by range. The server is not trusted.

Each answer must be exactly the requested bytes of the file that was opened: its range, its size and its ETag are
checked. A read has a time limit that includes its retries. A redirect may lead to another host, as those of the
Hugging Face hub do, but the token is sent to the first host only, and no redirect leads from https to http.

Objects in S3, Google Cloud Storage and Azure Blob Storage are read through obstore (the extra `s3`). It takes
credentials, the region and the address of the service from the environment variables of these services, such as
AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL. It signs requests and repeats those that failed.
"""

from __future__ import annotations

import re
import threading
import time
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import unquote, urljoin, urlsplit

from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from organs.registry.client.address import ADDRESS_MAX_LENGTH, Address, url_origin, without_secrets
from organs.registry.client.connection import (
    backoff_seconds,
    connection_pool,
    may_repeat,
    reason_text,
    user_agent,
    wait_seconds,
)
from organs.registry.digest import Digest
from organs.registry.errors import BadHubToken, BadSetting, BadSource, NoSuchFile, NotAllowed, OrganError, Unreachable
from organs.registry.input_files import ReadableFile
from organs.registry.store.bucket import open_bucket, short_reason

if TYPE_CHECKING:
    from obstore.store import ObjectStore

CONNECTIONS = 32
"""Requests in parallel, of all files together."""
GAP_BYTES = 8 * 1024
"""Bytes that are read and discarded rather than sending another request."""
FIRST_BYTES = 64 * 1024
"""The first request also finds out the size of the file. Small headers need no second one."""
PIECE_BYTES = 4 * 1024 * 1024
"""Bytes of an answer that are in memory at a time."""
REDIRECTS_MAX = 5
TAG_MAX_LENGTH = 512
DOCUMENT_MAX_BYTES = 8 * 1024 * 1024
"""The longest list of the files of a model."""
LISTED_MAX = 10_000
"""The most objects of one listing."""
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)
_REDIRECTS = (301, 302, 303, 307, 308)
_OBJECT_ADDRESS = re.compile(
    r"(?P<bucket>(s3|gs|az)://[a-z0-9][a-z0-9._-]{1,254})/(?P<key>.*)", re.IGNORECASE | re.ASCII
)
_EXPIRED = (400, 401, 403, 404, 410)
"""Statuses of an address to which a redirect has led, once its signature has expired."""
Span = tuple[int, int]
"""Offset and size in bytes."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """The limits of one read."""

    tries: int = 5
    silence_seconds: float = 30.0
    """The longest wait for a connection, and for the next bytes of an answer."""
    total_seconds: float = 300.0
    """The time for a read with all its retries; a larger read has more, by `lowest_bytes_a_second`."""
    lowest_bytes_a_second: int = 16 * 1024

    def seconds(self, size: int) -> float:
        """Return the time limit for a read of `size` bytes, in seconds."""
        return self.total_seconds + size / self.lowest_bytes_a_second


class RangeClient:
    """Connections for reads by range, shared by all files of a run, and the counts of what they have read."""

    def __init__(
        self,
        *,
        connections: int = CONNECTIONS,
        limits: ReadLimits | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.limits = limits or ReadLimits()
        self.sleep = sleep
        self.connections = connections
        self.requests = 0
        self.received_bytes = 0
        self.stores: dict[str, ObjectStore] = {}
        """Connections to object stores by the address of the bucket."""
        self._pool = connection_pool(connections, self.limits.silence_seconds)
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="ranges")
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop requests that have not begun, and close the connections."""
        self._threads.shutdown(cancel_futures=True)
        self._pool.clear()

    def get(self, url: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        """Return the answer of one request, with an unread body; redirects are not followed."""
        self.count_request()
        all_headers = {"User-Agent": user_agent(), "Accept-Encoding": "identity", **headers}
        return self._pool.request(
            "GET", url, headers=all_headers, redirect=False, preload_content=False, decode_content=False
        )

    def count_request(self) -> None:
        """Count a request."""
        with self._lock:
            self.requests += 1

    def count(self, size_bytes: int) -> None:
        """Count bytes of a body."""
        with self._lock:
            self.received_bytes += size_bytes

    def in_parallel(self, read: Callable[[int, int], bytes], spans: Sequence[Span]) -> list[bytes]:
        """Return the results of `read(offset, size)` for `spans`, in order; the first error cancels the others."""
        futures = [self._threads.submit(read, offset, size) for offset, size in spans]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the reads for `spans`, in rising order: spans that are at most GAP_BYTES apart become one read."""
    runs: list[Span] = []
    for offset, size in sorted(spans):
        if runs and offset - sum(runs[-1]) <= GAP_BYTES:
            begin, length = runs[-1]
            runs[-1] = begin, max(length, offset + size - begin)
        else:
            runs.append((offset, size))
    return runs


def version_of(tag: str, changed: str) -> str:
    """Return the version of a file from its ETag `tag` and the time `changed` of its last change; empty if unknown.

    A weak ETag may stay the same when bytes change (RFC 9110, 8.8.1), so alone it identifies no version.
    """
    if tag and not tag.startswith("W/"):
        return tag[:TAG_MAX_LENGTH]
    return f"{tag} {changed}".strip()[:TAG_MAX_LENGTH] if changed else ""


class _Retry(Exception):
    """The request failed in a way that may pass."""

    def __init__(self, reason: str, seconds: float | None = None) -> None:
        super().__init__(reason)
        self.seconds = seconds
        """The wait that the server asks for."""


class _Resource:
    """Something at an http(s) address that is read with bounded retries."""

    _missing = "no such file on the server"

    def __init__(self, client: RangeClient, url: str, label: str | None, headers: Mapping[str, str] | None) -> None:
        """Prepare requests; `headers`, with the token, are sent to the host of `url` only.

        Raises BadSetting for an invalid address, and for a token that would be sent unencrypted to another machine.
        """
        origin = url_origin(url)
        self.name = (label or without_secrets(url))[:300]
        """The name in messages."""
        if origin is None:
            raise BadSetting(f"{self.name}: not an http or https address")
        if headers and not Address(*origin).is_private:
            raise BadSetting(
                f"{self.name}: a token is not sent over plain http to another machine, {Address(*origin)}; use https"
            )
        self.stated_sha256: Digest | None = None
        self._client, self._url, self._headers = client, url, dict(headers or {})
        self._server = Address(*origin)
        """The server of the last request, for messages."""

    def _in_tries(self, request: Callable[[float], bytes], seconds: float) -> bytes:
        """Return the result of `request(end)`, which gets the time of its end; repeat it while it raises _Retry."""
        limits = self._client.limits
        end = time.monotonic() + seconds
        for attempt in range(1, limits.tries + 1):
            try:
                try:
                    return request(end)
                except (HTTPError, HTTPException, OSError, ValueError) as error:
                    if not may_repeat("GET", error):
                        raise self._unreachable(reason_text(error)) from error
                    raise _Retry(reason_text(error)) from error
            except _Retry as error:
                wait = backoff_seconds(attempt) if error.seconds is None else error.seconds
                if attempt == limits.tries or time.monotonic() + wait > end:
                    raise self._unreachable(f"{error}; tried {attempt} times") from error
                self._client.sleep(wait)
        raise AssertionError("the last try returns or raises")

    def _follow(self, url: str, headers: Mapping[str, str]) -> tuple[BaseHTTPResponse, str]:
        """Return the answer after all redirects, with its address."""
        first, origin = url_origin(self._url), url_origin(url)
        for _ in range(REDIRECTS_MAX + 1):
            assert origin is not None, "the address was checked"
            self._server = Address(*origin)
            own = self._headers if origin == first else {}
            response = self._client.get(url, {**own, **headers})
            self._note_link(response)
            if response.status not in _REDIRECTS:
                return response, url
            location = response.headers.get("Location", "")
            response.close()
            target = urljoin(url, location[:ADDRESS_MAX_LENGTH])
            origin = url_origin(target)
            if origin is None:
                address = without_secrets(location)[:200]
                raise BadSource(f"{self.name}: redirects to {address!r}, which is not an http address")
            if url.startswith("https:") and origin[0] != "https":
                raise BadSource(f"{self.name}: redirects from https to http, to {Address(*origin)}; it is not followed")
            url = target
        raise BadSource(f"{self.name}: redirects more than {REDIRECTS_MAX} times")

    def _note_link(self, response: BaseHTTPResponse) -> None:
        tag = response.headers.get("X-Linked-Etag", "").strip('"')
        if re.fullmatch(r"[0-9a-f]{64}", tag):
            if self.stated_sha256 not in (None, tag):
                raise self._changed()
            self.stated_sha256 = Digest(tag)

    def _refuse_status(self, response: BaseHTTPResponse, expected: int) -> None:
        """Raise unless the status is `expected`."""
        status = response.status
        if status == expected:
            return
        if status in (408, 429) or status >= 500:
            raise _Retry(f"the server answers with the status {status}", wait_seconds(response))
        raise self._refusal(status, response.headers.get("X-Error-Code", ""))

    def _refusal(self, status: int, code: str) -> OrganError:
        match status:
            case 200:
                reason = "the server ignores Range and would send the whole file; download it, and give its path"
                return BadSource(f"{self.name}: {reason}")
            case 401 | 403 if code == "GatedRepo":
                hint = "" if self._headers else ", and give the token of your account"
                return NotAllowed(f"{self.name}: you must request access on its page first{hint} ({status})")
            case 401:
                hint = "" if self._headers else ", or the model does not exist"
                return BadHubToken(f"{self.name}: the server requires a valid token{hint} (401)")
            case 403:
                return NotAllowed(f"{self.name}: access is not allowed (403)")
            case 404 | 410:
                missing = {"RepoNotFound": "no such model", "RevisionNotFound": "no such revision"}
                return NoSuchFile(f"{self.name}: {missing.get(code, self._missing)} ({status})")
            case 416:
                return BadSource(f"{self.name}: the file is empty, or shorter than the server said (416)")
        return BadSource(f"{self.name}: the server answers with the status {status}")

    def _body(self, response: BaseHTTPResponse, most_bytes: int, end: float) -> bytes:
        """Return the body, or `most_bytes` and one more byte of a longer one."""
        data = bytearray()
        while len(data) <= most_bytes:
            piece = response.read1(most_bytes + 1 - len(data))
            if not piece:
                break
            self._client.count(len(piece))
            data += piece
            if time.monotonic() > end:
                raise self._unreachable(f"the server is too slow: only {len(data):,} bytes arrived in time")
        return bytes(data)

    def _unreachable(self, reason: str) -> Unreachable:
        at = "" if self.name.startswith(str(self._server)) else f" at {self._server}"
        return Unreachable(f"{self.name}{at}: {reason}")

    def _changed(self) -> BadSource:
        return BadSource(f"{self.name}: the file changed on the server while it was read; start again")


class HubListing(_Resource):
    """The list of the files of a model in a hub."""

    _missing = "no such model or revision"

    def read(self) -> bytes:
        """Return the list; raises NoSuchFile, NotAllowed, BadHubToken, Unreachable, BadSource if it is too long."""
        return self._in_tries(self._request, self._client.limits.total_seconds)

    def _request(self, end: float) -> bytes:
        response, _ = self._follow(self._url, {})
        try:
            self._refuse_status(response, 200)
            data = self._body(response, DOCUMENT_MAX_BYTES, end)
        finally:
            response.close()
        if len(data) > DOCUMENT_MAX_BYTES:
            raise BadSource(f"{self.name}: the answer is longer than {DOCUMENT_MAX_BYTES:,} bytes")
        return data


class RangedFile(ReadableFile):
    """A file that is read with requests for ranges. A subclass sends them: `_read`.

    Its version is that of `version_of`; if it is empty, two answers can be of two versions.
    """

    _client: RangeClient
    _first: bytes
    """The first bytes of the file, which are not requested again."""
    _tag: str
    """The ETag, also a weak one."""

    def _begin(self) -> None:
        """Request the first bytes, and with them the size and the version."""
        self.size_bytes, self.version, self._tag = -1, "", ""
        self._first = self._read(0, FIRST_BYTES)

    def _check_version(self, size_bytes: int, tag: str, changed: str) -> None:
        """Compare what an answer says of the file with the first answer; raise BadSource if they differ."""
        tag = tag[:TAG_MAX_LENGTH]
        found = (size_bytes, version_of(tag, changed), tag)
        if self.size_bytes < 0:
            self.size_bytes, self.version, self._tag = found
        elif found != (self.size_bytes, self.version, self._tag):
            raise self._changed()

    def read_at(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`.

        Raises BadSource if the file is shorter or has changed, Unreachable after several failed tries.
        """
        if offset + size > self.size_bytes:
            raise BadSource(f"{self.name}: ends at byte {self.size_bytes:,}, but {offset + size:,} are needed")
        if offset + size <= len(self._first):
            return self._first[offset : offset + size]
        return self._read(offset, size) if size else b""

    def read_ranges(self, spans: Sequence[Span]) -> list[bytes]:
        """Return the bytes of each of `spans`, requested in parallel; raises as `read_at` does.

        Spans that are at most GAP_BYTES apart are read with one request.
        """
        runs = merged(spans)
        data = self._client.in_parallel(self.read_at, runs)
        begins = [offset for offset, _ in runs]
        pieces = []
        for offset, size in spans:
            index = bisect_right(begins, offset) - 1
            pieces.append(data[index][offset - begins[index] : offset - begins[index] + size])
        return pieces

    def check_unchanged(self) -> None:
        """Raise BadSource if the file has changed since it was opened."""
        self._read(0, 1)

    def read_all(self, write: Callable[[int, bytes], None]) -> None:
        """Call `write(offset, data)` with all bytes of the file, which are of one version; raises as `read_at` does."""
        for offset in range(0, self.size_bytes, PIECE_BYTES):
            write(offset, self.read_at(offset, min(PIECE_BYTES, self.size_bytes - offset)))

    @abstractmethod
    def _read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes, or those up to the end of the file; raises as `read_at` does."""

    def _changed(self) -> BadSource:
        return _object_changed(self.name)


class HttpFile(_Resource, RangedFile):
    """A file at an http(s) address; several threads may read it. Nothing is written to disk."""

    def __init__(
        self, client: RangeClient, url: str, *, label: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Request the first bytes and the size of the file; `label` is its name in messages.

        `headers`, with the token, are sent to the host of `url` only. Raises BadSetting for an invalid address, and
        for a token that would be sent unencrypted to another machine; NoSuchFile, NotAllowed, BadHubToken, Unreachable,
        and BadSource for a server that does not answer with ranges.
        """
        _Resource.__init__(self, client, url, label, headers)
        self.path = PurePosixPath(unquote(urlsplit(url).path)[-255:])
        self._location = url
        """The address to which the last request was redirected."""
        self._begin()

    def read_all(self, write: Callable[[int, bytes], None]) -> None:
        """Call `write(offset, data)` with all bytes, from one answer; after a cut, it begins again at offset 0."""

        def request(end: float) -> bytes:
            with self._answer(0, self.size_bytes) as (response, expected):
                offset = 0
                while piece := self._body(response, min(PIECE_BYTES, expected - offset), end):
                    if not offset and not piece.startswith(self._first[: len(piece)]):
                        raise self._changed()
                    write(offset, piece)
                    offset += len(piece)
                self._check_length(offset, expected)
            return b""

        self._in_tries(request, self._client.limits.seconds(self.size_bytes))

    def check_unchanged(self) -> None:
        """Raise BadSource if the file has changed; without a version, only its size and first bytes can tell."""
        known = b"" if self.version else self._first
        if not self._read(0, max(1, len(known))).startswith(known):
            raise self._changed()

    def _read(self, offset: int, size: int) -> bytes:
        return self._in_tries(lambda end: self._request(offset, size, end), self._client.limits.seconds(size))

    def _request(self, offset: int, size: int, end: float) -> bytes:
        with self._answer(offset, size) as (response, expected):
            data = self._body(response, expected, end)
            self._check_length(len(data), expected)
        return data

    @contextmanager
    def _answer(self, offset: int, size: int) -> Iterator[tuple[BaseHTTPResponse, int]]:
        """Request a range; return a context manager for the checked answer, and the size of its body in bytes."""
        location = self._location
        response, url = self._follow(location, {"Range": f"bytes={offset}-{offset + size - 1}"})
        try:
            if response.status in _EXPIRED and location != self._url:
                self._location = self._url
                raise _Retry("the address to which the server redirects has expired", 0.0)
            self._refuse_status(response, 206)
            yield response, self._check_head(response, offset, size)
            self._location = url
        finally:
            response.close()  # an answer that was read to its end has already released its connection

    def _check_length(self, received_bytes: int, expected: int) -> None:
        if received_bytes > expected:
            raise BadSource(f"{self.name}: the server sends more bytes than it announced")
        if received_bytes < expected:
            raise _Retry(f"the answer was cut after {received_bytes:,} of {expected:,} bytes")

    def _check_head(self, response: BaseHTTPResponse, offset: int, size: int) -> int:
        """Check the header of an answer; return the size of its body in bytes."""
        headers = response.headers
        match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", "")[:80])
        if match is None or headers.get("Content-Encoding", "identity") != "identity":
            raise BadSource(f"{self.name}: the server does not answer with one range of bytes")
        begin, last, total = map(int, match.groups())
        self._check_version(total, headers.get("ETag", ""), headers.get("Last-Modified", ""))
        expected = min(size, total - offset)
        if (begin, last) != (offset, offset + expected - 1):
            raise BadSource(f"{self.name}: the server sends other bytes than those that were requested")
        length = headers.get("Content-Length")
        if length is not None and length != str(expected):
            raise BadSource(f"{self.name}: the server announces {length[:20]} bytes for a range of {expected:,}")
        return expected


def parse_object_address(address: str) -> tuple[str, str] | None:
    """Return the bucket (`s3://BUCKET`) and the key of an address `s3://`, `gs://` or `az://`; None for others."""
    match = _OBJECT_ADDRESS.fullmatch(address)
    if match is None:
        return None
    scheme, _, name = match["bucket"].partition("://")
    return f"{scheme.lower()}://{name}", match["key"]


class ObjectFile(RangedFile):
    """An object in a store; several threads may read it. Nothing is written to disk."""

    def __init__(self, client: RangeClient, address: str, *, allows_http: bool = False) -> None:
        """Request the first bytes and the size of the object; `allows_http` permits unencrypted requests.

        Raises MissingExtra without obstore, BadSource for an invalid address, NoSuchFile, NotAllowed, Unreachable.
        """
        parsed = parse_object_address(address)
        self.name = address[:300]
        if parsed is None:
            raise BadSource(f"{self.name}: not the address of an object")
        self.path = PurePosixPath(parsed[1][-255:])
        self._client, self._key = client, parsed[1]
        self._store = _open_bucket(client, parsed[0], allows_http=allows_http)
        self._begin()

    def _read(self, offset: int, size: int) -> bytes:
        return _object_request(self.name, lambda: self._request(offset, size))

    def _request(self, offset: int, size: int) -> bytes:
        import obstore

        # The condition makes the server refuse a changed object; weak tags cannot be compared.
        is_strong = self._tag and not self._tag.startswith("W/")
        self._client.count_request()
        result = obstore.get(
            self._store,
            self._key,
            options={"range": (offset, offset + size), **({"if_match": self._tag} if is_strong else {})},
        )
        meta = result.meta
        self._check_version(meta["size"], meta["e_tag"] or "", meta["last_modified"].isoformat())
        expected = min(size, self.size_bytes - offset)
        if tuple(result.range) != (offset, offset + expected):
            raise BadSource(f"{self.name}: the server sends other bytes than those that were requested")
        data = bytes(result.bytes())
        self._client.count(len(data))
        if len(data) != expected:
            raise BadSource(f"{self.name}: the server sends {len(data):,} bytes for a range of {expected:,}")
        return data


def list_objects(client: RangeClient, bucket: str, folder: str, *, allows_http: bool = False) -> list[str]:
    """Return the keys of all objects below `folder` in a bucket (`s3://BUCKET`); an empty folder is the whole bucket.

    Raises MissingExtra without obstore, BadSource for more than LISTED_MAX objects, NoSuchFile, NotAllowed,
    Unreachable.
    """
    name = f"{bucket}/{folder}"[:300]
    store = _open_bucket(client, bucket, allows_http=allows_http)

    def read() -> list[str]:
        import obstore

        keys: list[str] = []
        client.count_request()
        for chunk in obstore.list(store, prefix=folder or None):
            keys += [entry["path"] for entry in chunk]
            if len(keys) > LISTED_MAX:
                raise BadSource(f"{name}: more than {LISTED_MAX:,} objects; name a smaller folder")
        return keys

    return sorted(_object_request(name, read))


def _open_bucket(client: RangeClient, bucket: str, *, allows_http: bool) -> ObjectStore:
    """Return the connections to a bucket, which all its objects share."""
    if bucket not in client.stores:
        limits = client.limits
        try:
            client.stores[bucket] = open_bucket(
                bucket,
                allows_http=allows_http,
                connect_seconds=limits.silence_seconds,
                request_seconds=limits.total_seconds,
                retries=limits.tries - 1,
                retry_seconds=limits.total_seconds,
                purpose="read object stores",
            )
        except BadSetting as error:  # a person named the address
            raise BadSource(str(error)) from error
    return client.stores[bucket]


def _object_request(name: str, request: Callable[[], T]) -> T:
    """Return the result of `request`; its errors become those of this program."""
    from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError

    try:
        return request()
    except FileNotFoundError as error:
        raise NoSuchFile(f"{name}: no such object, or no such bucket") from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise NotAllowed(f"{name}: access is not allowed; set the credentials of the store") from error
    except PreconditionError as error:
        raise _object_changed(name) from error
    except ValueError as error:
        raise BadSource(f"{name}: {short_reason(str(error))}") from error
    except (BaseError, OSError) as error:
        raise Unreachable(f"{name}{_server_in(str(error))}: {short_reason(str(error))}") from error


def _server_in(text: str) -> str:
    """Return ` at ` and the server that a message of obstore names; an empty text if it names none."""
    address = re.search(r"https?://[^\s]+", text.partition("\n")[0])
    origin = None if address is None else url_origin(without_secrets(address[0]))
    return "" if origin is None else f" at {Address(*origin)}"


def _object_changed(name: str) -> BadSource:
    return BadSource(f"{name}: the object changed while it was read; start again")
