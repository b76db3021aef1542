"""The journal of a measurement that is not complete: the next run with the same source continues after it.

A run can be incomplete because it was interrupted, or because shards of a split set are missing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import platformdirs

from organs.registry.entities.base import prepared
from organs.registry.errors import BadSource, Busy, StoreUnwritable
from organs.registry.measure import Measurement
from organs.registry.measures import SPECTRAL_METHOD, THETA_METHOD

LINE_MAX_BYTES = 1024 * 1024
_FORMAT = f"organ measure 2 {THETA_METHOD} {SPECTRAL_METHOD}"


class Key(NamedTuple):
    """The key of a measurement."""

    file: str
    """The version of a file (see `file_version`)."""
    tensor: str
    expert: int | None = None
    """The number of an expert in the tensor, from 0; None for the whole tensor."""


class JournalEntry(msgspec.Struct, frozen=True, tag="tensor"):
    """A measured tensor, or a measured expert of it."""

    file: str
    tensor: str
    expert: int | None
    position: int
    """The place of the tensor in its file, from 0."""
    dtype: str
    shape: tuple[int, ...]
    """Row length first; that of the expert if it is one."""
    measurement: Measurement
    foreign_bytes: int = 0
    """The size of a tensor of a foreign type, which does not follow from its shape; else 0."""

    @property
    def key(self) -> Key:
        return Key(self.file, self.tensor, self.expert)


class ShardEntry(msgspec.Struct, frozen=True, kw_only=True, tag="shard"):
    """A shard of which measurements are in the journal; the shard itself may be deleted."""

    file: str
    """The version of the file."""
    location: str
    number: int
    """From 1."""
    shard_count: int
    """The number of shards of the complete set."""
    set_tensor_count: int | None
    """The number of tensors in the complete set, as the header states it."""
    tensors_sha256: str
    """A digest of the names, types and shapes of its tensors."""
    tensor_count: int
    expert_count: int
    """The number of experts in its stacks of experts."""
    parameters: int
    size_bytes: int
    architecture: str | None
    title: str | None


def journal_path(sources: Sequence[str]) -> Path:
    """Return the path of the journal for the files with these addresses, in the user's cache folder."""
    name = hashlib.sha256("\n".join(sources).encode()).hexdigest()[:32]
    return Path(platformdirs.user_cache_dir("organ-registry")) / "measure" / f"{name}.jsonl"


def file_version(address: str, size_bytes: int, version: str) -> str:
    """Return a digest that changes when the file at `address` changes, if its server sends its `version`."""
    return hashlib.sha256(f"{address}\n{size_bytes}\n{version}".encode()).hexdigest()


@dataclass(slots=True)
class Journal:
    """The measurements of a run so far. Each is written at once, so a run that is killed loses at most one."""

    known: dict[Key, JournalEntry]
    """The measurements of earlier runs and of this run."""
    shards: dict[int, ShardEntry]
    """The shards by number; of several versions of one shard, the last."""
    path: Path
    _descriptor: int

    def add(self, entry: JournalEntry) -> None:
        """Write a measurement; raises StoreUnwritable. Several threads may call it."""
        self._write(entry)
        self.known[entry.key] = entry

    def add_shard(self, entry: ShardEntry) -> None:
        """Write a shard; raises StoreUnwritable."""
        self._write(entry)
        self.shards[entry.number] = entry

    def sync(self) -> None:
        """Make all that was written durable; raises StoreUnwritable."""
        try:
            os.fsync(self._descriptor)
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise StoreUnwritable(f"{self.path}: {error.strerror}") from error

    def delete(self) -> None:
        """Delete the journal: all its measurements were used."""
        with suppress(OSError):
            self.path.unlink()

    def _write(self, entry: JournalEntry | ShardEntry) -> None:
        line = msgspec.json.encode(entry) + b"\n"
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            raise StoreUnwritable(f"the journal cannot be written: {error.strerror}") from error
        if written < len(line):
            raise StoreUnwritable("the journal cannot be written: the disk is full")


@contextmanager
def open_journal(path: Path, *, is_kept: bool = False) -> Iterator[Journal]:
    """Open the journal at `path`, or create it.

    An incomplete last line is discarded, and a journal of other methods too; if `is_kept`, such a journal raises
    BadSource, because the measured files may be deleted. Raises Busy if another process measures the same source,
    StoreUnwritable.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StoreUnwritable(f"{path}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb+", buffering=0) as file:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy("another process measures this source: wait until it is done") from error
        known, shards, size_bytes = _read_lines(path)
        if is_kept and not size_bytes and os.fstat(descriptor).st_size > len(_FORMAT) + 1:
            raise BadSource(f"{path}: this journal is of another version of the program; move it away to start again")
        file.truncate(size_bytes)
        if not size_bytes:
            file.write(_FORMAT.encode() + b"\n")
        yield Journal(known, shards, path, descriptor)


def read_journal(path: Path) -> Mapping[Key, JournalEntry]:
    """Return the measurements in the journal at `path`; none if there is no journal."""
    try:
        return _read_lines(path)[0]
    except OSError:
        return {}


def _read_lines(path: Path) -> tuple[dict[Key, JournalEntry], dict[int, ShardEntry], int]:
    """Return the entries in the valid lines at the beginning of a journal, and the size of these lines in bytes."""
    known: dict[Key, JournalEntry] = {}
    shards: dict[int, ShardEntry] = {}
    decoder = msgspec.json.Decoder(prepared(JournalEntry | ShardEntry))
    with path.open("rb") as file:
        first = file.readline(LINE_MAX_BYTES)
        if first != _FORMAT.encode() + b"\n":
            return {}, {}, 0
        size_bytes = len(first)
        while (line := file.readline(LINE_MAX_BYTES)).endswith(b"\n"):
            try:
                entry = decoder.decode(line)
            except msgspec.DecodeError:
                break
            if isinstance(entry, ShardEntry):
                shards[entry.number] = entry
            else:
                known[entry.key] = entry
            size_bytes += len(line)
    return known, shards, size_bytes
