"""Downloaded files of models: checked organ by organ, cut into shards, or assembled from the parts of a lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from organs.registry.client.address import parse_full_name
from organs.registry.client.connection import Connection
from organs.registry.client.fetching import (
    READ_BYTES,
    FileToFetch,
    Interruptions,
    PartialFile,
    check_all_fits,
    fetch,
    fetch_head,
    fetched,
    partial_file,
)
from organs.registry.compose.lock import Lock, LockedTensor, checked_header, lock_of
from organs.registry.digest import Digest, digest_of
from organs.registry.endpoints import downloads, models, organs
from organs.registry.entities.organ import Digests
from organs.registry.errors import BadGguf, BadInput, BadReply, NotAssemblable, NotFound, Unreachable
from organs.registry.gguf import ByteSource, Header, padded, read_header
from organs.registry.gguf.header import range_digest
from organs.registry.gguf.split import Shard, cut
from organs.registry.output_files import NamedFile, OutputFiles, SourceModel
from organs.registry.progress import Progress, no_progress
from organs.registry.store.files import placed

if TYPE_CHECKING:
    from organs.registry.client.remote import RemoteRegistry


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
        with downloaded_file(path) as source:
            _check_digests(read_header(source), source, organs)

    return check_file


def check_lock(lock_id: Digest) -> Callable[[Path], None]:
    """Return a check that a GGUF file has the lock `lock_id` and all organs of this lock.

    A user who knows this digest does not have to trust the registry.
    """

    def check_file(path: Path) -> None:
        with downloaded_file(path) as source:
            header = read_header(source)
            lock = lock_of(header, source)
            if lock is None or lock.id != lock_id:
                raise BadReply(f"the downloaded file is not that of the lock {lock_id}; nothing was written")
            _check_digests(header, source, {tensor.spec.name: tensor.digest for tensor in lock.tensors})

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


def _check_digests(header: Header, source: ByteSource, expected: Mapping[str, Digest]) -> None:
    """Raise BadReply unless a downloaded file has exactly the tensors in `expected`, with these digests."""
    if {info.name for info in header.tensors} != expected.keys():
        raise BadReply("the downloaded file has other tensors than the registry promised; nothing was written")
    for info in header.tensors:
        if range_digest(source, header.data_offset + info.offset, info.size_bytes) != expected[info.name]:
            raise BadReply(f"the tensor {info.name!r} has other bytes than were promised; nothing was written")


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

    def place(self, targets: Sequence[Path | None], progress: Progress = no_progress) -> tuple[Digest | None, ...]:
        return tuple(
            file.sha256 if target is None else fetch(self._connection, file, target, progress)
            for file, target in zip(self._sources, targets, strict=True)
        )


class FetchedShards(OutputFiles):
    """The shards of a file that is downloaded first; all of them are written together."""

    def __init__(
        self, connection: Connection, file: FileToFetch, head: bytes, shards: Sequence[Shard], model: SourceModel | None
    ) -> None:
        """`head` is the header of `file`, from which `shards` were planned."""
        super().__init__((NamedFile(shard.name, shard.size_bytes, None) for shard in shards), model)
        self._connection, self._file, self._head, self._shards = connection, file, head, shards

    @property
    def work_bytes(self) -> int:
        """The size of the file and of its shards: the file exists beside them until the last one is written."""
        return self._file.size_bytes + sum(shard.size_bytes for shard in self._shards)

    def place(self, targets: Sequence[Path | None], progress: Progress = no_progress) -> tuple[Digest | None, ...]:
        paths = [target for target in targets if target is not None]
        assert len(paths) == len(targets), "shards without a digest are never left out"
        check_all_fits(self._connection.url, [self._file], paths[0], self.work_bytes)
        with fetched(self._connection, self._file, paths[0], progress) as path, downloaded_file(path) as source:
            if source.read_at(0, min(len(self._head), source.size_bytes)) != self._head:
                raise BadReply("the downloaded file has another header than the registry promised; nothing was written")
            header = read_header(source)
            return tuple(
                _write_shard(source, header, shard, target, progress)
                for shard, target in zip(self._shards, paths, strict=True)
            )


def file_in_shards(
    connection: Connection, file: FileToFetch, stem: str, shard_bytes: int, model: SourceModel | None = None
) -> FetchedShards | None:
    """Return the shards of `file`, as `registry.gguf.split.cut` makes them; None if it stays one file.

    Only its header is downloaded. Raises NotAssemblable for too many shards, BadReply, Unreachable.
    """
    header, source = fetch_head(connection, file)
    shards = cut(source, header, header.tensors, stem, shard_bytes)
    return None if shards is None else FetchedShards(connection, file, source.header, shards, model)


def _write_shard(source: ByteSource, header: Header, shard: Shard, target: Path, progress: Progress) -> Digest:
    """Write one shard with tensors of `source`, whose header is `header`, and return its SHA-256."""
    offsets = {info.name: header.data_offset + info.offset for info in header.tensors}
    with placed(target, shard.size_bytes, progress=progress) as file:
        file.write(shard.header)
        for tensor in shard.tensors:
            for begin in range(0, tensor.size_bytes, READ_BYTES):
                file.write(source.read_at(offsets[tensor.name] + begin, min(READ_BYTES, tensor.size_bytes - begin)))
            file.write(b"\0" * (padded(tensor.size_bytes, header.alignment) - tensor.size_bytes))
    return file.sha256


LOOKUP_MAX = 1000
"""Digests in one request for the organs that the registry lacks."""
MISSING_SHOWN = 20
"""Missing organs in the message."""


def file_of_lock(remote: RemoteRegistry, lock: Lock) -> OutputFiles:
    """Return the file of `lock`: that of the registered chimera, or one to assemble. Only headers are downloaded.

    Raises NotAssemblable with all parts that the registry lacks, BadLock for a lock that describes no valid file,
    BadReply.
    """
    try:
        file = replace(remote.whole_file(f"sha256:{lock.id}"), check=check_lock(lock.id))
    except NotFound:
        return file_of_parts(remote, lock)
    return FetchedFiles(remote.connection, [(f"{lock.id}.gguf", file)])


def file_of_parts(remote: RemoteRegistry, lock: Lock) -> FetchedLock:
    """Return the file of `lock` to assemble from the base's header and the organs; raises as `file_of_lock` does."""
    missing = []
    try:
        base = models.header(remote.connection, lock.header)
    except NotFound:
        base = None
        missing = [f"no model has the header {lock.header[:12]} of its base"]
    digests = tuple(dict.fromkeys(tensor.digest for tensor in lock.tensors))
    absent: set[str] = set()
    for first in range(0, len(digests), LOOKUP_MAX):
        request = Digests(digests=digests[first : first + LOOKUP_MAX])
        absent |= set(organs.lookup(remote.connection, request).absent)
    lacking = [tensor for tensor in lock.tensors if tensor.digest in absent]
    missing += [
        f"the registry has no tensor {tensor.digest[:12]} of {tensor.spec.name}" for tensor in lacking[:MISSING_SHOWN]
    ]
    if len(lacking) > MISSING_SHOWN:
        missing.append(f"and {len(lacking) - MISSING_SHOWN} more")
    if missing or base is None:
        raise NotAssemblable(f"the lock {lock.id[:12]}", missing)
    _, file = remote.own_files(str(parse_full_name(base.name))).files[0]
    header, source = fetch_head(remote.connection, file)
    if digest_of(source.header) != lock.header:
        raise BadReply(f"{remote.connection.url} sent another header than {lock.header}")
    data, size_bytes = checked_header(header, source, lock)
    return FetchedLock(remote.connection, lock, data, header.alignment, size_bytes)


class FetchedLock(OutputFiles):
    """The file of a lock, which this machine assembles from a header and from downloaded organs."""

    def __init__(self, connection: Connection, lock: Lock, header: bytes, alignment: int, size_bytes: int) -> None:
        """`header` has its padding. The registry has all organs of the lock."""
        super().__init__([NamedFile(f"{lock.id}.gguf", size_bytes, None)])
        self._connection, self._lock, self._header, self._alignment = connection, lock, header, alignment

    def place(self, targets: Sequence[Path | None], progress: Progress = no_progress) -> tuple[Digest | None, ...]:
        (target,) = targets
        assert target is not None, "a file without a digest is never left out"
        (file,) = self.files
        with partial_file(target, f"{self._connection.url} lock {self._lock.id}", file.size_bytes) as partial:
            partial.take_up(file.size_bytes, progress)
            is_resumed = partial.size_bytes > 0
            interruptions = Interruptions(self._connection)  # of the requests for all organs
            self._fill(partial, progress, interruptions)
            try:
                self._check(partial.path)
            except BadReply:
                if not is_resumed:
                    raise
                progress(-partial.size_bytes)
                partial.begin_again()  # the earlier bytes may belong to another file
                self._fill(partial, progress, interruptions)
                self._check(partial.path)
            partial.place(target)
            return (partial.sha256,)

    def _fill(self, partial: PartialFile, progress: Progress, interruptions: Interruptions) -> None:
        """Download until the file has all bytes."""

        def append(data: bytes, offset: int) -> None:
            """Append `data`, which belongs at `offset`, without the bytes that the file already has."""
            missing = data[max(0, partial.size_bytes - offset) :]
            if missing:
                partial.append(missing)
                progress(len(missing))

        partial.is_kept = True
        try:
            append(self._header, 0)
            offset = len(self._header)
            for tensor in self._lock.tensors:
                self._download_organ(tensor, offset, partial, progress, interruptions)
                end = offset + tensor.spec.size_bytes
                offset += padded(tensor.spec.size_bytes, self._alignment)
                append(b"\0" * (offset - end), end)
        except BadReply:
            partial.is_kept = False
            raise
        partial.is_kept = False

    def _download_organ(
        self,
        tensor: LockedTensor,
        offset: int,
        partial: PartialFile,
        progress: Progress,
        interruptions: Interruptions,
    ) -> None:
        """Append the bytes of an organ, which begins at `offset` of the file, from where the file ends."""
        interruptions.failures = 0
        url, label, size_bytes = self._connection.url, f"the tensor {tensor.digest[:12]}", tensor.spec.size_bytes
        end = offset + size_bytes
        while (before := partial.size_bytes) < end:
            begin = before - offset
            try:
                headers = {"Range": f"bytes={begin}-"} if begin else {}
                with self._connection.download(downloads.organ_raw.address(digest=tensor.digest), headers) as reply:
                    sent, expected = reply.headers.get("content-range"), f"bytes {begin}-{size_bytes - 1}/{size_bytes}"
                    if reply.status != (206 if begin else 200) or (begin and sent != expected):
                        raise BadReply(f"{url} sends something other than {label}")
                    partial.append_all(reply, end, progress)
                error = Unreachable(f"{url} ends {label} too early at every attempt")
            except BadReply:
                raise
            except Unreachable as interruption:
                error = interruption
            if partial.size_bytes < end:
                interruptions.add(error, has_new_bytes=partial.size_bytes > before)

    def _check(self, path: Path) -> None:
        """Raise BadReply unless the file has the header and all organs of the lock."""
        with downloaded_file(path) as file:
            has_header = file.read_at(0, len(self._header)) == self._header
        if not has_header:
            raise BadReply(f"the downloaded file is not that of the lock {self._lock.id}; nothing was written")
        check_lock(self._lock.id)(path)
