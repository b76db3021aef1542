"""What a fetched file holds, where its own digest does not prove it: every organ by its digest, and the lock."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from organs.registry.compose.lock import lock_of
from organs.registry.digest import Digest
from organs.registry.errors import BadGguf, BadInput, BadReply
from organs.registry.gguf import ByteSource, Header, read_header

READ_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _FileSource:
    """A file of ours (`registry.gguf.ByteSource`): nobody else writes to it."""

    name: str
    descriptor: int
    size_bytes: int

    def read_at(self, offset: int, size: int) -> bytes:
        data = os.pread(self.descriptor, size, offset)
        if len(data) != size:
            raise BadGguf(self.name, "data", offset, f"{size} bytes wanted, {len(data)} there")
        return data


def check_organs(organs: Mapping[str, Digest]) -> Callable[[Path], None]:
    """A check that a GGUF file holds exactly `organs`, by the names of their tensors, to the last byte."""

    def check(path: Path) -> None:
        _checked(path, lambda _header, _source: organs)

    return check


def check_lock(lock_id: Digest) -> Callable[[Path], None]:
    """A check that a GGUF file is of the chimera whose lock has the digest `lock_id`: its lock, and the lock's organs.

    So who knows that digest from elsewhere need not trust the registry.
    """

    def organs(header: Header, source: ByteSource) -> Mapping[str, Digest]:
        lock = lock_of(header, source)
        if lock is None or lock.id != lock_id:
            raise BadReply(f"the file that came is not of the lock {lock_id}; nothing was written")
        return {one.spec.name: one.digest for one in lock.tensors}

    def check(path: Path) -> None:
        _checked(path, organs)

    return check


@contextmanager
def own_file(path: Path) -> Iterator[ByteSource]:
    """The bytes of a file that came, for the block; what is no sound file in there is raised as BadReply."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield _FileSource("the file that came", descriptor, os.fstat(descriptor).st_size)
    except BadInput as error:
        raise BadReply(f"what came is no sound file: {error}; nothing was written") from error
    finally:
        os.close(descriptor)


def _checked(path: Path, organs_of: Callable[[Header, ByteSource], Mapping[str, Digest]]) -> None:
    with own_file(path) as source:
        header = read_header(source)
        due = organs_of(header, source)
        if {info.name for info in header.tensors} != due.keys():
            raise BadReply("the file that came has other organs than were promised; nothing was written")
        for info in header.tensors:
            if _digest(source, header.data_offset + info.offset, info.size_bytes) != due[info.name]:
                raise BadReply(f"the organ {info.name!r} that came has other bytes than promised; nothing was written")


def _digest(source: ByteSource, offset: int, size_bytes: int) -> Digest:
    digest = hashlib.sha256()
    end = offset + size_bytes
    while offset < end:
        digest.update(data := source.read_at(offset, min(READ_BYTES, end - offset)))
        offset += len(data)
    return Digest(digest.hexdigest())
