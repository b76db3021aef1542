"""Fetch a file, or only its header: checked, resumed after an interruption, written whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from organs.registry.client.connection import Connection, Reply
from organs.registry.digest import Digest
from organs.registry.errors import BadGguf, BadInput, BadReply, Busy, StoreUnwritable, TooMany, Unreachable
from organs.registry.gguf import Header, HeaderSource, read_header
from organs.registry.names import ModelName
from organs.registry.store.files import (
    Files,
    check_room,
    placing_error,
)

READ_BYTES = 1024 * 1024


class PartialFile:
    """The bytes that have come so far, hashed; they are always the first ones of the file."""

    def __init__(self, path: Path, descriptor: int, files: Files) -> None:
        self.path = path
        self.size_bytes = 0
        self.is_kept = False
        """Whether it stays for the next attempt when this one fails."""
        self._descriptor = descriptor
        self._files = files
        self._digest = hashlib.sha256()

    def take_up(self, most_bytes: int, progress: Callable[[int], None]) -> None:
        """Hash what an earlier attempt has left; more than `most_bytes` of it can only be something else."""
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

    def begin_again(self) -> None:
        """Throw away what has come."""
        self._files.truncate(self._descriptor, 0)
        self.size_bytes = 0
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> Digest:
        """Of all that has come."""
        return Digest(self._digest.hexdigest())

    def place(self, target: Path) -> None:
        """Bring it to its name, durable, instead of what is there."""
        self._files.sync(self._descriptor)
        self._files.rename(self.path, target)
        self._files.sync_folder(target.parent)

    def remove(self) -> None:
        """Away with it: it has served."""
        self._files.unlink(self.path)


def partial_path(target: Path, key: str) -> Path:
    """Where the beginning of the file that `key` tells from others waits to come to `target`."""
    name = hashlib.sha256(f"{key}\n{target.name}".encode()).hexdigest()[:16]
    return target.parent / f".organ-{name}.part"


@contextmanager
def partial_file(target: Path, key: str, size_bytes: int, files: Files | None = None) -> Iterator[PartialFile]:
    """The partial file for `target`; `key` tells the bytes of one file from those of another.

    A block that raises leaves it only where it said so by `is_kept`. Raises Busy when another process fetches the same,
    StoreUnwritable, DiskFull when `size_bytes` do not fit.
    """
    files = files or Files()
    path = partial_path(target, key)
    if target.is_dir():
        raise StoreUnwritable(f"{target}: a folder is there")
    try:
        descriptor = _opened(path)
        partial = PartialFile(path, descriptor, files)
        try:
            check_room(path.parent, size_bytes - files.size(descriptor), files)
            yield partial
        except BaseException:
            if not partial.is_kept or not partial.size_bytes:
                with suppress(OSError):  # the first error tells what happened
                    files.unlink(path)
            raise
        finally:
            os.close(descriptor)
    except OSError as error:
        raise placing_error(error, target) from error


def _opened(path: Path) -> int:
    """The file, new or as it was left, for this process alone."""
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        descriptor = os.open(path, flags, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise StoreUnwritable(f"{path}: something else is there; move it away")
            # Whoever had the lock may have brought the file to its place meanwhile: then this is not ours to write.
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
"""The largest headers, with vocabularies of a quarter of a million words, have some 16 MB."""
HEADER_CHUNK_BYTES = 64 * 1024


@dataclass(slots=True)
class _Beginning:
    """A file of which as much has come as was read (`registry.gguf.ByteSource`)."""

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


def fetch_head(
    connection: Connection, file: FileToFetch, sleep: Callable[[float], None] = time.sleep
) -> tuple[Header, HeaderSource]:
    """The header of `file`, and the source that it was read of, which has nothing behind the header.

    What it says is the registry's word until the whole file has come. Raises BadReply for what is no header,
    Unreachable for a line that is cut every time.
    """
    for attempt in range(1, TRIES):
        try:
            return _fetched(connection, file)
        except BadReply:
            raise
        except Unreachable:
            sleep(backoff(attempt))
    return _fetched(connection, file)


def _fetched(connection: Connection, file: FileToFetch) -> tuple[Header, HeaderSource]:
    with (
        connection.download(file.path) as reply,
        closing(reply.stream(HEADER_CHUNK_BYTES)) as chunks,  # type: ignore[type-var]  # a generator has `close`
    ):
        if reply.status != 200:
            raise BadReply(f"{connection.url} answers {reply.status} where a file was promised")
        beginning = _Beginning("the file that comes", file.size_bytes, chunks)
        try:
            header = read_header(beginning)
            head = beginning.read_at(0, header.end)
        except BadInput as error:
            raise BadReply(f"what came is no sound file: {error}") from error
    return header, HeaderSource(head, file.size_bytes, beginning.name)


Progress = Callable[[int], None]
"""Told of bytes that have come, or are there from an earlier attempt; below zero for those that come once more."""

TRIES = 5
"""In a row that bring nothing."""
CUTS_MAX = 500
"""Of one file, however much each attempt brings."""
BACKOFF_SECONDS = 0.4
FILE_CHUNK_BYTES = 256 * 1024
TAG_MAX_LENGTH = 200


@dataclass(frozen=True, slots=True)
class FileToFetch:
    """A file that the registry has promised."""

    path: str
    """Its address, below the registry's own."""
    size_bytes: int
    sha256: Digest | None = None
    """None where it is put together anew and nobody knows beforehand; then `check` looks at it."""
    check: Callable[[Path], None] | None = None
    """Told of the whole file before it gets its name; raises BadReply."""

    def key(self, url: str) -> str:
        """What tells its bytes from those of any other file, where they come from the registry at `url`."""
        return f"{url}{self.path} {self.sha256}"


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """The original files of a model."""

    model: ModelName
    """With its version."""
    files: tuple[tuple[str, FileToFetch], ...]
    """Each with its name, which is safe as a file name."""
    digest: Digest
    """SHA-256 of the model's bytes."""
    lock_id: Digest | None
    """SHA-256 of the lock; None unless the model is a chimera."""
    yanked: str | None = None
    """Why it was yanked; None unless it was."""


def fetch(
    connection: Connection,
    file: FileToFetch,
    target: Path,
    progress: Progress | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Digest:
    """Bring `file` to `target`, replacing what is there; its SHA-256.

    What is cut is gone on with, here or by the next call with the same file and place; its beginning waits in a file
    beside `target`. Raises BadReply for other bytes than were promised, Unreachable, NotFound, Busy, DiskFull,
    StoreUnwritable; then `target` is as it was.
    """
    with partial_file(target, file.key(connection.url), file.size_bytes) as partial:
        _Fetching(connection, file, partial, progress or _no_progress, sleep).complete()
        partial.place(target)
        return partial.sha256


@contextmanager
def fetched(
    connection: Connection,
    file: FileToFetch,
    place: Path,
    progress: Progress | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Path]:
    """`file` for the block, whole and checked, under a name of its own beside `place`; it is gone afterwards.

    As by `fetch`, what is cut is gone on with. What a block leaves by an error stays for the next call, where its
    digest is known. Raises what `fetch` does.
    """
    with partial_file(place, file.key(connection.url), file.size_bytes) as partial:
        _Fetching(connection, file, partial, progress or _no_progress, sleep).complete()
        partial.is_kept = file.sha256 is not None
        yield partial.path
        partial.remove()


def check_all_fits(url: str, files: Sequence[FileToFetch], place: Path, room_bytes: int) -> None:
    """Raise DiskFull where `room_bytes` are not free beside `place`, with what earlier attempts have brought there.

    The `files` come from the registry at `url` by way of `place`.
    """
    try:
        begun = (partial_path(place, file.key(url)) for file in files)
        there = sum(path.lstat().st_size for path in begun if path.exists())
        check_room(place.parent, room_bytes - there, Files())
    except OSError as error:
        raise placing_error(error, place) from error


@dataclass(slots=True)
class _Fetching:
    """One file under way."""

    connection: Connection
    file: FileToFetch
    partial: PartialFile
    progress: Progress
    sleep: Callable[[float], None]
    tag: str | None = None
    """The strong ETag of the file, with its quotes, once it is known."""

    def complete(self) -> None:
        """Until all of it is there, and is what it should be."""
        resumed = False
        if self.file.sha256 is not None:
            self.tag = f'"{self.file.sha256}"'
            self.partial.take_up(self.file.size_bytes, self.progress)
            resumed = self.partial.size_bytes > 0
        else:
            self.partial.begin_again()
        self._fill()
        if resumed and self.partial.sha256 != self.file.sha256:
            self._begin_again()  # what lay there need not have been of this file
            self._fill()
        self.partial.is_kept = False
        if self.file.sha256 not in (None, self.partial.sha256):
            raise BadReply(
                f"{self.connection.url} sent other bytes than it promised: their SHA-256 is {self.partial.sha256}, "
                f"{self.file.sha256} is due; nothing was written"
            )
        if self.file.check is not None:
            self.file.check(self.partial.path)

    def _fill(self) -> None:
        """Ask until all bytes are there."""
        failures = cuts = 0
        while self.partial.size_bytes < self.file.size_bytes or (self.file.size_bytes == 0 and not cuts):
            before = self.partial.size_bytes
            try:
                self._ask()
                error: Exception = Unreachable(f"{self.connection.url} ends {self.file.path} too early, every time")
            except BadReply:
                self.partial.is_kept = False
                raise
            except (Unreachable, TooMany, Busy, KeyboardInterrupt) as cut:
                self.partial.is_kept = self.file.sha256 is not None
                if not isinstance(cut, Unreachable):
                    raise
                error = cut
            cuts += 1
            failures = 0 if self.partial.size_bytes > before else failures + 1
            if self.partial.size_bytes < self.file.size_bytes:
                if failures >= TRIES or cuts >= CUTS_MAX:
                    raise error
                if failures:
                    self.sleep(backoff(failures))

    def _ask(self) -> None:
        """One request, for what is missing."""
        begin = self.partial.size_bytes
        headers = {"Range": f"bytes={begin}-", "If-Range": self.tag} if begin and self.tag else {}
        with self.connection.download(self.file.path, headers) as reply:
            if reply.status == 206 and headers:
                self._check_range(reply, begin)
            elif reply.status == 200:
                self._begin_again()
                self._check_length(reply)
            else:
                raise BadReply(f"{self.connection.url} answers {reply.status} where a file was promised")
            self._note_tag(reply)
            with closing(reply.stream(FILE_CHUNK_BYTES)) as chunks:  # type: ignore[type-var]  # a generator has `close`
                for chunk in chunks:
                    if self.partial.size_bytes + len(chunk) > self.file.size_bytes:
                        raise BadReply(f"{self.connection.url} sends more than the {self.file.size_bytes} bytes due")
                    self.partial.append(chunk)
                    self.progress(len(chunk))

    def _begin_again(self) -> None:
        if self.partial.size_bytes:
            self.progress(-self.partial.size_bytes)
            self.partial.begin_again()

    def _check_range(self, reply: Reply, begin: int) -> None:
        due = f"bytes {begin}-{self.file.size_bytes - 1}/{self.file.size_bytes}"
        sent = reply.headers.get("content-range", "")
        if sent != due:
            raise BadReply(f"{self.connection.url} sends {sent[:80]!r} of the file, {due!r} was asked for")

    def _check_length(self, reply: Reply) -> None:
        sent = reply.headers.get("content-length")
        if sent is not None and sent != str(self.file.size_bytes):
            raise BadReply(f"{self.connection.url} sends {sent[:40]} bytes, {self.file.size_bytes} were promised")

    def _note_tag(self, reply: Reply) -> None:
        """Only a strong tag holds a range to its file."""
        sent = reply.headers.get("etag", "")
        strong = sent.startswith('"') and sent.endswith('"') and 2 < len(sent) <= TAG_MAX_LENGTH
        if self.file.sha256 is None:
            self.tag = sent if strong and sent.isascii() and sent.isprintable() else None


def backoff(failures: int) -> float:
    return BACKOFF_SECONDS * float(2 ** (failures - 1)) * (0.75 + random.random() / 2)  # noqa: S311  # spread, not secret


def _no_progress(_size_bytes: int) -> None:
    """Nobody watches."""
