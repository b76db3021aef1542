"""Downloaded files of models: checked organ by organ, cut into shards, or assembled from the parts of a lock."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from organs.registry.client.address import API, parse_full_name
from organs.registry.client.connection import Connection
from organs.registry.client.fetching import (
    FileToFetch,
    Interruptions,
    PartialFile,
    Progress,
    check_all_fits,
    chunks_of,
    fetch,
    fetch_head,
    fetched,
    no_progress,
    partial_file,
)
from organs.registry.compose.lock import Lock, LockedTensor, checked_header, lock_of
from organs.registry.digest import Digest, digest_of
from organs.registry.entities.model import ModelSummary
from organs.registry.entities.organ import Digests, KnownOrgans
from organs.registry.errors import BadGguf, BadInput, BadReply, NotAssemblable, NotFound, Unreachable
from organs.registry.gguf import ByteSource, Header, padded, read_header
from organs.registry.gguf.split import (
    Shard,
    cut,
)
from organs.registry.output_files import NamedFile, OutputFiles, SourceModel
from organs.registry.store.files import placed

if TYPE_CHECKING:
    from organs.registry.client.remote import RemoteRegistry

READ_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _FileSource:
    """A downloaded file (`registry.gguf.ByteSource`); no other process writes to it."""

    name: str
    descriptor: int
    size_bytes: int

    def read_at(self, offset: int, size: int) -> bytes:
        data = os.pread(self.descriptor, size, offset)
        if len(data) != size:
            raise BadGguf(self.name, "data", offset, f"{size} bytes requested, {len(data)} read")
        return data


def check_organs(organs: Mapping[str, Digest]) -> Callable[[Path], None]:
    """Return a check that a GGUF file has exactly `organs`, the digests by the names of the tensors."""

    def check_file(path: Path) -> None:
        _check_digests(path, lambda _header, _source: organs)

    return check_file


def check_lock(lock_id: Digest) -> Callable[[Path], None]:
    """Return a check that a GGUF file has the lock `lock_id` and all organs of this lock.

    A user who knows this digest does not have to trust the registry.
    """

    def organs(header: Header, source: ByteSource) -> Mapping[str, Digest]:
        lock = lock_of(header, source)
        if lock is None or lock.id != lock_id:
            raise BadReply(f"the downloaded file is not that of the lock {lock_id}; nothing was written")
        return {tensor.spec.name: tensor.digest for tensor in lock.tensors}

    def check_file(path: Path) -> None:
        _check_digests(path, organs)

    return check_file


@contextmanager
def downloaded_file(path: Path) -> Iterator[ByteSource]:
    """Open a downloaded file for the block; a damaged file raises BadReply."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield _FileSource("the downloaded file", descriptor, os.fstat(descriptor).st_size)
    except BadInput as error:
        raise BadReply(f"the downloaded file is damaged: {error}; nothing was written") from error
    finally:
        os.close(descriptor)


def _check_digests(path: Path, organs_of: Callable[[Header, ByteSource], Mapping[str, Digest]]) -> None:
    with downloaded_file(path) as source:
        header = read_header(source)
        expected = organs_of(header, source)
        if {info.name for info in header.tensors} != expected.keys():
            raise BadReply("the downloaded file has other organs than the registry promised; nothing was written")
        for info in header.tensors:
            digest = hashlib.sha256()
            begin = header.data_offset + info.offset
            for offset in range(begin, begin + info.size_bytes, READ_BYTES):
                digest.update(source.read_at(offset, min(READ_BYTES, begin + info.size_bytes - offset)))
            if digest.hexdigest() != expected[info.name]:
                raise BadReply(f"the organ {info.name!r} has other bytes than were promised; nothing was written")


@dataclass(frozen=True, slots=True)
class FileInShards:
    """A file to download, and the shards that it is cut into."""

    file: FileToFetch
    head: bytes
    """The bytes of its header. The shards are planned from it before the download."""
    shards: tuple[Shard, ...]

    @property
    def room_bytes(self) -> int:
        """The bytes needed on the disk: the whole file exists beside its shards until the last one is written."""
        return self.file.size_bytes + sum(shard.size_bytes for shard in self.shards)


def file_in_shards(
    connection: Connection,
    file: FileToFetch,
    stem: str,
    shard_bytes: int,
    sleep: Callable[[float], None] = time.sleep,
) -> FileInShards | None:
    """Return the shards of `file`, as `registry.gguf.split.cut` makes them; None if it stays one file.

    Only its header is downloaded. Raises NotAssemblable for too many shards, BadReply, Unreachable.
    """
    header, source = fetch_head(connection, file, sleep)
    shards = cut(source, header, header.tensors, stem, shard_bytes)
    return None if shards is None else FileInShards(file, source.header, tuple(shards))


def fetch_in_shards(
    connection: Connection,
    source: FileInShards,
    targets: Sequence[Path],
    progress: Progress | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Digest]:
    """Write the shards to `targets`, replacing existing files, and return their SHA-256.

    The file is downloaded as by `fetch`, beside the first target, and deleted afterwards. An interrupted download
    continues at the next call. `progress` reports every byte twice. Raises as `fetch` does.
    """
    check_all_fits(connection.url, [source.file], targets[0], source.room_bytes)
    with fetched(connection, source.file, targets[0], progress, sleep) as path, downloaded_file(path) as file:
        if file.read_at(0, min(len(source.head), file.size_bytes)) != source.head:
            raise BadReply("the downloaded file has another header than the registry promised; nothing was written")
        header = read_header(file)
        return [
            _write_shard(file, header, shard, target, progress or no_progress)
            for shard, target in zip(source.shards, targets, strict=True)
        ]


def _write_shard(source: ByteSource, header: Header, shard: Shard, target: Path, progress: Progress) -> Digest:
    """Write one shard with tensors of `source`, whose header is `header`, and return its SHA-256."""
    offsets = {info.name: header.data_offset + info.offset for info in header.tensors}
    digest = hashlib.sha256(shard.header)
    with placed(target, shard.size_bytes) as file:
        file.truncate(shard.size_bytes)
        file.write_at(shard.header, 0)
        end = len(shard.header)
        for tensor in shard.tensors:
            for begin in range(0, tensor.size_bytes, READ_BYTES):
                data = source.read_at(offsets[tensor.name] + begin, min(READ_BYTES, tensor.size_bytes - begin))
                digest.update(data)
                file.write_at(data, end + begin)
            padded_bytes = padded(tensor.size_bytes, header.alignment)
            digest.update(b"\0" * (padded_bytes - tensor.size_bytes))
            end += padded_bytes
            progress(padded_bytes)
    return Digest(digest.hexdigest())


class FetchedFiles(OutputFiles):
    """Files that are downloaded."""

    def __init__(
        self, connection: Connection, files: Sequence[tuple[str, FileToFetch]], model: SourceModel | None = None
    ) -> None:
        super().__init__(
            (NamedFile(name, file.size_bytes, file.sha256, file.check is None) for name, file in files), model
        )
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


LOOKUP_MAX = 1000
"""Digests in one request for the organs that the registry lacks."""
MISSING_SHOWN = 20
"""Missing organs in the message."""


@dataclass(frozen=True, slots=True)
class FileOfLock:
    """The file of a lock, to be assembled; the registry has all of its parts."""

    lock: Lock
    header: bytes
    """The bytes of the header, with padding."""
    alignment: int
    size_bytes: int


class FetchedLock(OutputFiles):
    """The file of a lock, which is downloaded as one file or assembled on this machine."""

    def __init__(self, connection: Connection, lock: Lock, source: FileToFetch | FileOfLock) -> None:
        sha256 = source.sha256 if isinstance(source, FileToFetch) else None
        super().__init__([NamedFile(f"{lock.id}.gguf", source.size_bytes, sha256)])
        self._connection, self._source = connection, source

    def place(self, targets: Sequence[Path | None], progress: Progress | None = None) -> tuple[Digest | None, ...]:
        (target,) = targets
        return (None if target is None else fetch_locked(self._connection, self._source, target, progress),)


def file_of_lock(remote: RemoteRegistry, lock: Lock) -> OutputFiles:
    """Return the file of a lock, ready to be downloaded; raises as `locked_file` does."""
    return FetchedLock(remote.connection, lock, locked_file(remote, lock))


def locked_file(remote: RemoteRegistry, lock: Lock) -> FileToFetch | FileOfLock:
    """Return the file of `lock`: that of the registered chimera, or one to assemble. Only headers are downloaded.

    Raises NotAssemblable with all parts that the registry lacks, BadLock for a lock that describes no valid file,
    BadReply.
    """
    try:
        return replace(remote.whole_file(f"sha256:{lock.id}"), check=check_lock(lock.id))
    except NotFound:
        return file_of_parts(remote, lock)


def file_of_parts(remote: RemoteRegistry, lock: Lock) -> FileOfLock:
    """Return the file of `lock` to assemble from the base's header and the organs; raises as `locked_file` does."""
    missing = []
    try:
        base = remote.connection.read(ModelSummary, f"{API}/headers/{lock.header}")
    except NotFound:
        base = None
        missing = [f"no model has the header {lock.header[:12]} of its base"]
    missing += _missing(remote.connection, lock)
    if missing or base is None:
        raise NotAssemblable(f"the lock {lock.id[:12]}", missing)
    _, file = remote.own_files(str(parse_full_name(base.name))).files[0]
    header, source = fetch_head(remote.connection, file)
    if digest_of(source.header) != lock.header:
        raise BadReply(f"{remote.connection.url} sent another header than {lock.header}")
    data, size_bytes = checked_header(header, source, lock)
    return FileOfLock(lock, data, header.alignment, size_bytes)


def fetch_locked(
    connection: Connection,
    source: FileToFetch | FileOfLock,
    target: Path,
    progress: Progress | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Digest:
    """Write the file to `target`, replacing an existing file, and return its SHA-256.

    Each organ is checked. An interrupted download continues at the next call. Raises as `fetch` does; then `target` is
    unchanged.
    """
    if isinstance(source, FileToFetch):
        return fetch(connection, source, target, progress, sleep)
    key = f"{connection.url} lock {source.lock.id}"
    with partial_file(target, key, source.size_bytes) as partial:
        assembly = _RemoteAssembly(connection, source, partial, progress or no_progress, Interruptions(sleep))
        partial.take_up(source.size_bytes, assembly.progress)
        is_resumed = partial.size_bytes > 0
        assembly.fill()
        try:
            assembly.check()
        except BadReply:
            if not is_resumed:
                raise
            assembly.progress(-partial.size_bytes)
            partial.begin_again()  # the earlier bytes may belong to another file
            assembly.fill()
            assembly.check()
        partial.place(target)
        return partial.sha256


@dataclass(slots=True)
class _RemoteAssembly:
    """One file that is assembled from downloaded organs."""

    connection: Connection
    source: FileOfLock
    partial: PartialFile
    progress: Progress
    interruptions: Interruptions
    """Of the requests for all organs."""

    def fill(self) -> None:
        """Download until the file has all bytes."""
        try:
            self._append(self.source.header, 0)
            offset = len(self.source.header)
            for tensor in self.source.lock.tensors:
                self._download_organ(tensor, offset)
                end = offset + tensor.spec.size_bytes
                offset += padded(tensor.spec.size_bytes, self.source.alignment)
                self._append(b"\0" * (offset - end), end)
        except BadReply:
            self.partial.is_kept = False
            raise
        except BaseException:
            self.partial.is_kept = True
            raise
        self.partial.is_kept = False

    def check(self) -> None:
        """Raise BadReply unless the file has the header and all organs of the lock."""
        with downloaded_file(self.partial.path) as file:
            has_header = file.read_at(0, len(self.source.header)) == self.source.header
        if not has_header:
            raise BadReply(f"the downloaded file is not that of the lock {self.source.lock.id}; nothing was written")
        check_lock(self.source.lock.id)(self.partial.path)

    def _append(self, data: bytes, offset: int) -> None:
        """Append `data`, which belongs at `offset`, without the bytes that the file already has."""
        missing = data[max(0, self.partial.size_bytes - offset) :]
        if missing:
            self.partial.append(missing)
            self.progress(len(missing))

    def _download_organ(self, tensor: LockedTensor, offset: int) -> None:
        self.interruptions.failures = 0
        end = offset + tensor.spec.size_bytes
        while (before := self.partial.size_bytes) < end:
            try:
                self._request(tensor, before - offset, end)
                error = Unreachable(
                    f"{self.connection.url} ends the organ {tensor.digest[:12]} too early at every attempt"
                )
            except BadReply:
                raise
            except Unreachable as cut:
                error = cut
            if self.partial.size_bytes == end:
                return
            self.interruptions.add(error, has_new_bytes=self.partial.size_bytes > before)

    def _request(self, tensor: LockedTensor, begin: int, end: int) -> None:
        """Send one request for the bytes of an organ from `begin` to its end."""
        headers = {"Range": f"bytes={begin}-"} if begin else {}
        with self.connection.download(f"/organs/{tensor.digest}.raw", headers) as reply:
            expected = f"bytes {begin}-{tensor.spec.size_bytes - 1}/{tensor.spec.size_bytes}"
            if reply.status != (206 if begin else 200) or (begin and reply.headers.get("content-range") != expected):
                raise BadReply(f"{self.connection.url} sends something other than the organ {tensor.digest[:12]}")
            for chunk in chunks_of(reply):
                if self.partial.size_bytes + len(chunk) > end:
                    raise BadReply(f"{self.connection.url} sends more bytes than the organ {tensor.digest[:12]} has")
                self.partial.append(chunk)
                self.progress(len(chunk))


def _missing(connection: Connection, lock: Lock) -> list[str]:
    """Return a sentence for each tensor whose organ the registry lacks, up to a limit."""
    digests = tuple(dict.fromkeys(tensor.digest for tensor in lock.tensors))
    absent: set[str] = set()
    for first in range(0, len(digests), LOOKUP_MAX):
        request = Digests(digests=digests[first : first + LOOKUP_MAX])
        absent |= set(connection.post(KnownOrgans, f"{API}/organs/lookup", request).absent)
    reasons = [
        f"the registry has no organ {tensor.digest[:12]} of {tensor.spec.name}"
        for tensor in lock.tensors
        if tensor.digest in absent
    ]
    more = len(reasons) - MISSING_SHOWN
    return reasons[:MISSING_SHOWN] + ([f"and {more} more"] if more > 0 else [])
