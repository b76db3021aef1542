"""Check what a fetched file holds, organ by organ, and cut a fetched model into shards."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from organs.registry.client.connection import Connection
from organs.registry.client.fetching import FileToFetch, Progress, check_all_fits, fetch, fetch_head, fetched
from organs.registry.compose.lock import lock_of
from organs.registry.digest import Digest
from organs.registry.errors import BadGguf, BadInput, BadReply
from organs.registry.gguf import ByteSource, Header, padded, read_header
from organs.registry.gguf.split import (
    Shard,
    cut,
)
from organs.registry.store.files import (
    NamedFile,
    OutputFiles,
    SourceModel,
    UnplacedFile,
    placed,
)

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


@dataclass(frozen=True, slots=True)
class FileInShards:
    """A file that is to come, and what it will be cut into."""

    file: FileToFetch
    head: bytes
    """Its header, which decides where it is cut."""
    shards: tuple[Shard, ...]

    @property
    def room_bytes(self) -> int:
        """What all needs on the disk: the whole file lies beside its shards until the last of them is written."""
        return self.file.size_bytes + sum(shard.size_bytes for shard in self.shards)


def file_in_shards(
    connection: Connection,
    file: FileToFetch,
    stem: str,
    shard_bytes: int,
    sleep: Callable[[float], None] = time.sleep,
) -> FileInShards | None:
    """What `file` is cut into, as by `registry.gguf.split.cut`; None where it is not cut at all.

    Nothing but its header is fetched. Raises NotAssemblable for too many shards, BadReply, Unreachable.
    """
    header, source = fetch_head(connection, file, sleep)
    shards = cut(source, header, header.tensors, stem, shard_bytes)
    return None if shards is None else FileInShards(file, source.header, tuple(shards))


def fetch_in_shards(
    connection: Connection,
    asked: FileInShards,
    targets: Sequence[Path],
    progress: Progress | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Digest]:
    """Bring the shards to `targets`, replacing what is there, each whole or not at all; their SHA-256.

    The file is fetched as by `fetch`, beside the first target, and is gone afterwards; what is cut is gone on with by
    the next call. `progress` is told of every byte twice. Raises what `fetch` does.
    """
    check_all_fits(connection.url, [asked.file], targets[0], asked.room_bytes)
    with fetched(connection, asked.file, targets[0], progress, sleep) as path, own_file(path) as source:
        if source.read_at(0, min(len(asked.head), source.size_bytes)) != asked.head:
            raise BadReply("the file that came has another header than was promised; nothing was written")
        header = read_header(source)
        return [
            _placed(source, header, shard, target, progress)
            for shard, target in zip(asked.shards, targets, strict=True)
        ]


def _placed(source: ByteSource, header: Header, shard: Shard, target: Path, progress: Progress | None) -> Digest:
    """One shard, of the tensors in `source`, of which `header` tells where they are."""
    offsets = {info.name: header.data_offset + info.offset for info in header.tensors}
    digest = hashlib.sha256(shard.header)
    with placed(target, shard.size_bytes) as file:
        file.truncate(shard.size_bytes)
        file.write_at(shard.header, 0)
        end = len(shard.header)
        for tensor in shard.tensors:
            _copy(source, offsets[tensor.name], tensor.size_bytes, file, end, digest)
            due = padded(tensor.size_bytes, header.alignment)
            digest.update(b"\0" * (due - tensor.size_bytes))
            end += due
            if progress is not None:
                progress(due)
    return Digest(digest.hexdigest())


def _copy(
    source: ByteSource, offset: int, size_bytes: int, file: UnplacedFile, target_offset: int, digest: hashlib._Hash
) -> None:
    for begin in range(0, size_bytes, READ_BYTES):
        data = source.read_at(offset + begin, min(READ_BYTES, size_bytes - begin))
        digest.update(data)
        file.write_at(data, target_offset + begin)


class FetchedFiles(OutputFiles):
    """Files that are downloaded."""

    def __init__(
        self, connection: Connection, files: Sequence[tuple[str, FileToFetch]], model: SourceModel | None = None
    ) -> None:
        super().__init__((NamedFile(name, file.size_bytes, file.sha256) for name, file in files), model)
        self._connection = connection
        self._sources = tuple(file for _, file in files)

    def place(self, targets: Sequence[Path | None], progress: Progress | None = None) -> tuple[Digest | None, ...]:
        return tuple(
            file.sha256 if target is None else fetch(self._connection, file, target, progress)
            for file, target in zip(self._sources, targets, strict=True)
        )


class FetchedShards(OutputFiles):
    """Shards that are cut from a downloaded file; all of them are written together."""

    def __init__(self, connection: Connection, source: FileInShards, model: SourceModel) -> None:
        super().__init__((NamedFile(shard.name, shard.size_bytes, None) for shard in source.shards), model)
        self._connection, self._source = connection, source

    @property
    def work_bytes(self) -> int:
        return self._source.room_bytes

    def place(self, targets: Sequence[Path | None], progress: Progress | None = None) -> tuple[Digest | None, ...]:
        paths = [target for target in targets if target is not None]
        assert len(paths) == len(targets), "shards without a digest are never left out"
        return tuple(fetch_in_shards(self._connection, self._source, paths, progress))
