"""Download a file, or only its header. A download is checked, resumed after an interruption, and written atomically."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from organs.registry.client.connection import Connection, Reply, backoff_seconds
from organs.registry.digest import Digest
from organs.registry.errors import BadGguf, BadInput, BadReply, Busy, StoreUnwritable, TooMany, Unreachable
from organs.registry.gguf import Header, HeaderSource, read_header
from organs.registry.progress import Progress, no_progress
from organs.registry.store.files import Files, check_room, placing_error, translating

READ_BYTES = 1024 * 1024
HEADER_CHUNK_BYTES, FILE_CHUNK_BYTES = 64 * 1024, 256 * 1024


class PartialFile:
    """The first bytes of a file that is being downloaded, with their hash."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.size_bytes = 0
        self.is_kept = False
        """Whether it is kept for the next attempt if this one fails."""
        self._descriptor = descriptor
        self._files = Files()
        self._digest = hashlib.sha256()

    def take_up(self, most_bytes: int, progress: Progress) -> None:
        """Hash the bytes of an earlier attempt; more than `most_bytes` belong to another file and are deleted."""
        if self._files.size(self._descriptor) > most_bytes:
            self.begin_again()
        while data := self._files.read_at(self._descriptor, self.size_bytes, READ_BYTES):
            self._digest.update(data)
            self.size_bytes += len(data)
            progress(len(data))

    def append(self, data: bytes) -> None:
        """Write the next bytes."""
        self._files.write_at(self._descriptor, [data], self.size_bytes)
        self._digest.update(data)
        self.size_bytes += len(data)

    def append_all(self, reply: Reply, end: int, progress: Progress) -> None:
        """Append the bytes of a download; raises BadReply for bytes after `end`, where the file must end."""
        for chunk in reply.stream(FILE_CHUNK_BYTES):
            if self.size_bytes + len(chunk) > end:
                raise BadReply(f"the registry sends more than the {end} bytes that are expected")
            self.append(chunk)
            progress(len(chunk))

    def begin_again(self) -> None:
        """Delete all bytes."""
        self._files.truncate(self._descriptor, 0)
        self.size_bytes = 0
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> Digest:
        """SHA-256 of all bytes so far."""
        return Digest(self._digest.hexdigest())

    def place(self, target: Path) -> None:
        """Rename it to `target`, durably, and replace the file there."""
        self._files.sync(self._descriptor)
        self._files.rename(self.path, target)
        self._files.sync_folder(target.parent)


def partial_path(target: Path, key: str) -> Path:
    """Return the path of the partial file for `target`; `key` identifies its content."""
    name = hashlib.sha256(f"{key}\n{target.name}".encode()).hexdigest()[:16]
    return target.parent / f".organ-{name}.part"


@contextmanager
def partial_file(target: Path, key: str, size_bytes: int) -> Iterator[PartialFile]:
    """Open the partial file for `target`; `key` identifies its content.

    If the block raises, the file is deleted unless its `is_kept` is set. Raises Busy if another process fetches the
    same file, StoreUnwritable, DiskFull if `size_bytes` do not fit.
    """
    path = partial_path(target, key)
    if target.is_dir():
        raise StoreUnwritable(f"{target}: this is a folder")
    with translating(target, placing_error):
        descriptor = _opened(path)
        partial = PartialFile(path, descriptor)
        try:
            check_room(path.parent, size_bytes - os.fstat(descriptor).st_size, Files())
            yield partial
        except BaseException:
            if not partial.is_kept or not partial.size_bytes:
                with suppress(OSError):  # the first error is more important
                    path.unlink()
            raise
        finally:
            os.close(descriptor)


def _opened(path: Path) -> int:
    """Open and lock the partial file, new or from an earlier attempt."""
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        descriptor = os.open(path, flags, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise StoreUnwritable(f"{path}: this is not an unfinished download; move it away")
            # Another process with the lock may have renamed the file in the meantime. Then it must not be written.
            if status.st_nlink and os.path.samestat(status, path.stat()):
                return descriptor
        except BlockingIOError as error:
            os.close(descriptor)
            raise Busy(f"another process fetches {path.parent} already: wait until it is done") from error
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


HEAD_MAX_BYTES = 64 * 1024 * 1024
"""The largest header. Headers with vocabularies of a quarter of a million words have about 16 MB."""


@dataclass(slots=True)
class _Beginning:
    """A download that is read only as far as needed (`registry.gguf.ByteSource`)."""

    name: str
    size_bytes: int
    chunks: Iterator[bytes]
    data: bytearray = field(default_factory=bytearray)

    def read_at(self, offset: int, size: int) -> bytes:
        end = offset + size
        if end > HEAD_MAX_BYTES:
            raise BadGguf(self.name, "header", offset, f"it is longer than {HEAD_MAX_BYTES} bytes")
        while len(self.data) < end:
            chunk = next(self.chunks, b"")
            if not chunk:
                raise Unreachable(f"{self.name} ends too early")
            self.data += chunk
        return bytes(self.data[offset:end])


def fetch_head(connection: Connection, file: FileToFetch) -> tuple[Header, HeaderSource]:
    """Return the header of `file`, and a source that contains only the header.

    The header is not checked against a digest. Raises BadReply for an invalid header, Unreachable if each of several
    attempts is interrupted.
    """
    interruptions = Interruptions(connection)
    while True:
        try:
            with connection.download(file.path) as reply:
                if reply.status != 200:
                    raise BadReply(f"{connection.url} answers with the status {reply.status} instead of a file")
                beginning = _Beginning("the downloaded file", file.size_bytes, reply.stream(HEADER_CHUNK_BYTES))
                try:
                    header = read_header(beginning)
                    return header, HeaderSource(beginning.read_at(0, header.end), file.size_bytes, beginning.name)
                except BadInput as error:  # not a refusal of the registry: `download` raises those
                    raise BadReply(f"the downloaded file is damaged: {error}") from error
        except BadReply:
            raise
        except Unreachable as error:
            interruptions.add(error, has_new_bytes=False)


TRIES = 5
"""Attempts in a row without a new byte; after these, the download fails."""
CUTS_MAX = 500
"""Interruptions of one file, also if each attempt has new bytes; after these, the download fails."""
TAG_MAX_LENGTH = 200


@dataclass(frozen=True, slots=True)
class FileToFetch:
    """A file that the registry has announced."""

    path: str
    """Its address, relative to the registry's."""
    size_bytes: int
    sha256: Digest | None = None
    """None for a file that the registry assembles for the download; then `check` checks it."""
    check: Callable[[Path], None] | None = None
    """Called with the complete file before it is renamed; raises BadReply."""

    def key(self, url: str) -> str:
        """Return a text that identifies the bytes of this file of the registry at `url`."""
        return f"{url}{self.path} {self.sha256}"


def fetch(connection: Connection, file: FileToFetch, target: Path, progress: Progress = no_progress) -> Digest:
    """Download `file` to `target`, replacing an existing file; return its SHA-256.

    An interrupted download continues, in this call or in the next one for the same file and target; its first bytes
    are kept in a file beside `target`. Raises BadReply for wrong bytes, Unreachable, NotFound, Busy, DiskFull,
    StoreUnwritable; then `target` is unchanged.
    """
    with partial_file(target, file.key(connection.url), file.size_bytes) as partial:
        _FileDownload(connection, file, partial, progress).complete()
        partial.place(target)
        return partial.sha256


@contextmanager
def fetched(connection: Connection, file: FileToFetch, place: Path, progress: Progress) -> Iterator[Path]:
    """Download `file`, complete and checked, to a temporary name beside `place`, and delete it after the block.

    As with `fetch`, an interrupted download continues. If the block raises and the digest of the file is known, the
    file is kept for the next call. Raises as `fetch` does.
    """
    with partial_file(place, file.key(connection.url), file.size_bytes) as partial:
        _FileDownload(connection, file, partial, progress).complete()
        partial.is_kept = file.sha256 is not None
        yield partial.path
        partial.path.unlink()


def check_all_fits(url: str, files: Sequence[FileToFetch], place: Path, room_bytes: int) -> None:
    """Raise DiskFull unless `room_bytes` are free beside `place`; bytes of earlier attempts are counted as free.

    The `files` are those of the registry at `url` that are downloaded beside `place`.
    """
    with translating(place, placing_error):
        begun = (partial_path(place, file.key(url)) for file in files)
        kept_bytes = sum(path.lstat().st_size for path in begun if path.exists())
        check_room(place.parent, room_bytes - kept_bytes, Files())


@dataclass(slots=True)
class Interruptions:
    """Counts the interruptions of the requests for one file, and waits after each."""

    connection: Connection
    cuts: int = 0
    failures: int = 0
    """Those in a row without a new byte."""

    def add(self, error: Exception, *, has_new_bytes: bool) -> None:
        """Count an interruption; raise `error` after TRIES in a row without a new byte, and after CUTS_MAX in all."""
        self.cuts += 1
        self.failures = 0 if has_new_bytes else self.failures + 1
        if self.failures >= TRIES or self.cuts >= CUTS_MAX:
            raise error
        if self.failures:
            self.connection.sleep(backoff_seconds(self.failures))


@dataclass(slots=True)
class _FileDownload:
    """The download of one file."""

    connection: Connection
    file: FileToFetch
    partial: PartialFile
    progress: Progress
    tag: str | None = None
    """The strong ETag of the file, with its quotes, once it is known."""

    def complete(self) -> None:
        """Download and check the file; raises BadReply for wrong bytes."""
        resumed = False
        if self.file.sha256 is not None:
            self.tag = f'"{self.file.sha256}"'
            self.partial.take_up(self.file.size_bytes, self.progress)
            resumed = self.partial.size_bytes > 0
        else:
            self.partial.begin_again()
        self._fill()
        if resumed and self.partial.sha256 != self.file.sha256:
            self._begin_again()  # the earlier bytes may belong to another file
            self._fill()
        self.partial.is_kept = False
        if self.file.sha256 not in (None, self.partial.sha256):
            raise BadReply(
                f"{self.connection.url} sent other bytes than it promised: their SHA-256 is {self.partial.sha256}, "
                f"not {self.file.sha256}; nothing was written"
            )
        if self.file.check is not None:
            self.file.check(self.partial.path)

    def _fill(self) -> None:
        """Send requests until the file has all bytes."""
        interruptions = Interruptions(self.connection)
        is_requested = False  # an empty file is requested once
        while self.partial.size_bytes < self.file.size_bytes or (self.file.size_bytes == 0 and not is_requested):
            before = self.partial.size_bytes
            try:
                self._request()
                error = Unreachable(f"{self.connection.url} ends {self.file.path} too early at every attempt")
            except BadReply:
                self.partial.is_kept = False
                raise
            except (Unreachable, TooMany, Busy, KeyboardInterrupt) as cut:
                self.partial.is_kept = self.file.sha256 is not None
                if not isinstance(cut, Unreachable):
                    raise
                error = cut
            is_requested = True
            if self.partial.size_bytes < self.file.size_bytes:
                interruptions.add(error, has_new_bytes=self.partial.size_bytes > before)

    def _request(self) -> None:
        """Send one request for the missing bytes."""
        begin = self.partial.size_bytes
        headers = {"Range": f"bytes={begin}-", "If-Range": self.tag} if begin and self.tag else {}
        with self.connection.download(self.file.path, headers) as reply:
            # Only a strong ETag identifies the bytes of a file.
            sent_tag = reply.headers.get("etag", "")
            is_strong = sent_tag.startswith('"') and sent_tag.endswith('"') and 2 < len(sent_tag) <= TAG_MAX_LENGTH
            tag = sent_tag if is_strong and sent_tag.isascii() and sent_tag.isprintable() else None
            if reply.status == 206 and headers:
                expected = f"bytes {begin}-{self.file.size_bytes - 1}/{self.file.size_bytes}"
                sent = reply.headers.get("content-range", "")
                if sent != expected:
                    raise BadReply(f"{self.connection.url} sends {sent[:80]!r} of the file, not {expected!r}")
                if self.file.sha256 is None and tag != self.tag:
                    self._begin_again()  # the server does not honour If-Range: these bytes may be of another version
                    return
            elif reply.status == 200:
                self._begin_again()
                length = reply.headers.get("content-length")
                if length is not None and length != str(self.file.size_bytes):
                    raise BadReply(f"{self.connection.url} sends {length[:40]} bytes instead of {self.file.size_bytes}")
            else:
                raise BadReply(f"{self.connection.url} answers with the status {reply.status} instead of a file")
            if self.file.sha256 is None:
                self.tag = tag
            self.partial.append_all(reply, self.file.size_bytes, self.progress)

    def _begin_again(self) -> None:
        if self.partial.size_bytes:
            self.progress(-self.partial.size_bytes)
            self.partial.begin_again()
