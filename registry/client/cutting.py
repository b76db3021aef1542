"""A model from elsewhere in shards: its whole file is fetched and checked, then cut here."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from organs.registry.client.checking import READ_BYTES, own_file
from organs.registry.client.connection import Connection
from organs.registry.client.fetching import FileToFetch, Progress, check_all_fits, fetched
from organs.registry.client.heads import fetch_head
from organs.registry.digest import Digest
from organs.registry.errors import BadReply
from organs.registry.gguf import ByteSource, Header, padded, read_header
from organs.registry.gguf.split import (
    Shard,
    cut,
)
from organs.registry.store.files import (
    UnplacedFile,
    placed,
)


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
