"""The places where the files of blobs can be: what a folder (`folder`) and a bucket of an object store (`bucket`) do.

A file has a physical name, `ab/<sha256>.<nonce>`. The nonce is new for each file, so a name is never used twice, and
the bytes of a file never change. Therefore the store needs no conditional writes and no locks to write files.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from organs.registry.digest import Digest
from organs.registry.errors import CorruptBlob
from organs.registry.store.files import Buffer, Files

_PHYSICAL = re.compile(r"(?P<folder>[0-9a-f]{2})/(?P=folder)[0-9a-f]{62}\.[0-9a-f]{16}", re.ASCII)


@dataclass(frozen=True, slots=True)
class StrayFile:
    """A file of a backend, for the sweep, with the time of its last write in seconds since the epoch."""

    name: str
    """Its name inside of the backend, for `remove`."""
    file: str | None
    """Its physical name; None for a temporary file."""
    modified_at: float
    size_bytes: int


class PendingBlob(Protocol):
    """The file of a blob that is being written in order. `place` makes it durable and visible."""

    def append(self, pieces: Sequence[Buffer]) -> None:
        """Append `pieces`."""
        ...

    def place(self, front: bytes = b"") -> str:
        """Write the front, make the file durable, and return its physical name."""
        ...

    def discard(self) -> None:
        """Remove what was written. It is called after any error and is safe to call twice."""
        ...


FileVersion: TypeAlias = tuple[str | int, ...]


class OpenBlob(Protocol):
    """The stored bytes of a blob, for reads from several threads."""

    size_bytes: int

    def read_at(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`; raises CorruptBlob if the file is shorter."""
        ...

    @property
    def version(self) -> FileVersion:
        """The name of the file and what tells its writes apart: it changes with every write."""
        ...

    def drop_cached(self, offset: int, size: int) -> bool:
        """Drop cached copies of these bytes, which are wrong; return whether it is worth reading them again."""
        ...

    def close(self) -> None:
        """Free what is kept for reading."""
        ...


class BlobBackend(Protocol):
    """A place for the files of blobs."""

    files: Files
    """The system calls for files of this machine."""
    is_remote: bool
    """Whether the files are on other machines, which may not answer."""

    def prepare(self) -> None:
        """Create what is missing, durably; raises StoreUnwritable, StoreUnreachable."""
        ...

    def is_prepared(self) -> bool:
        """Return whether the place was prepared for blobs. The folder of an unmounted disk is not prepared."""
        ...

    def begin(self, digest: Digest, expected_bytes: int, front_bytes: int = 0) -> PendingBlob:
        """Begin a file for the blob `digest`; its first `front_bytes` are written last. Raises DiskFull."""
        ...

    def open(self, file: str) -> OpenBlob:
        """Open the file with the physical name `file`; raises MissingBlob, CorruptBlob, StoreUnreachable."""
        ...

    def size_of(self, file: str) -> int | None:
        """Return the size of the file `file` in bytes; None if it does not exist or is not a file of the store."""
        ...

    def write(self, file: str, size_bytes: int, pieces: Iterator[Buffer]) -> None:
        """Write the whole file `file` from `pieces`, durably, and replace an existing one."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if it still exists."""
        ...

    def walk(self) -> Iterator[StrayFile]:
        """Yield every file, including temporary files. Files may be created and removed meanwhile."""
        ...

    def sweeping(self) -> AbstractContextManager[None]:
        """Lock the place for one sweep or backup; raises Busy while another one runs."""
        ...

    def uncached(self) -> BlobBackend:
        """Return the same place without caches, so that a verification reads the stored bytes themselves."""
        ...


def new_file_name(digest: Digest) -> str:
    """Return a new physical name for a file of the blob `digest`."""
    return f"{digest[:2]}/{digest}.{secrets.token_hex(8)}"


def is_physical(name: str) -> bool:
    """Return whether `name` is a physical name."""
    return _PHYSICAL.fullmatch(name) is not None


def checked_name(file: str) -> str:
    """Return `file`; raises CorruptBlob if it is not a physical name."""
    if not is_physical(file):
        raise CorruptBlob(file[:100], "not a name of a file of the store")
    return file
