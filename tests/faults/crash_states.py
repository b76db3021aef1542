"""Every state that a journal allows a disk to be in after a power cut; pure.

The rules are those of POSIX with what every journalling file system adds:

- Bytes are durable after a sync of their file. Before, each write may be present, missing, or replaced by zeros; the
  last one may be present in part.
- A name (created, renamed, removed) is durable after a sync of its folder. Before, each change may have happened or
  not, independently of the others. A rename is atomic: a file with one durable name never has both names or none.
- A commit of the database is durable when it has returned, and possible from its beginning.

With up to `SUBSETS_MAX` unsynced names all combinations are tried, with more: none, all, each alone, all but each, and
every prefix. Files with unsynced bytes are handled likewise, with `PRODUCT_MAX`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, product
from pathlib import PurePosixPath

from tests.faults.journal import (
    Acknowledged,
    Committed,
    Created,
    Journal,
    MadeFolder,
    MadeReadOnly,
    Operation,
    Renamed,
    Synced,
    SyncedFolder,
    Truncated,
    Unlinked,
    Written,
)

SUBSETS_MAX = 8
PRODUCT_MAX = 2
SECTOR_BYTES = 4096
"""A write may be torn at a multiple of this size."""

Contents = dict[str, bytes]
"""Contents by their SHA-256."""


@dataclass(frozen=True, slots=True)
class CrashState:
    """The state of the disk after a power cut: files as pairs of a path and the SHA-256 of their bytes; folders; the
    rows.
    """

    files: tuple[tuple[str, str], ...]
    folders: tuple[str, ...]
    database: str
    acknowledged: bool


@dataclass(slots=True)
class _Inode:
    durable: bytes = b""
    pending: list[Written | Truncated] = field(default_factory=list)
    variants: list[str] | None = None
    """Keys of the possible contents: first all bytes, then no unsynced bytes, then the rest."""


@dataclass(slots=True)
class _Name:
    """A change of a name; a sync of `folder` makes it durable."""

    operation: MadeFolder | Created | Renamed | Unlinked
    folder: str
    inode: int
    is_durable: bool = False


class Disk:
    """The disk during the replay of a journal: durable and unsynced changes."""

    def __init__(self, journal: Journal) -> None:
        self.contents: Contents = {}
        self._journal = journal
        self._inodes: dict[int, _Inode] = {}
        self._names: list[_Name] = []
        self._first: dict[str, int] = {}
        self._current: dict[str, int] = {}
        self._database = journal.first_database
        self._acknowledged = False
        for number, (path, data) in enumerate(journal.first_files.items(), 1):
            self._inodes[-number] = _Inode(data)
            self._first[path] = self._current[path] = -number

    def states(self) -> Iterator[CrashState]:
        """Yield the distinct states at any moment of the journal."""
        seen: set[CrashState] = set()
        for operation in (None, *self._journal.operations):
            if operation is not None:
                self.play(operation)
            if not isinstance(operation, Synced | SyncedFolder | MadeReadOnly):  # these operations only exclude states
                fresh = set(self._possible()) - seen
                seen |= fresh
                yield from fresh

    def whole(self) -> dict[str, str]:
        """Return the key of the bytes that every path of the journal should have now."""
        return {path: self._variants(inode)[0] for path, inode in self._current.items()}

    def play(self, operation: Operation) -> None:
        """Apply the next operation."""
        match operation:
            case Written() | Truncated():
                inode = self._inodes[operation.inode]
                inode.pending.append(operation)
                inode.variants = None
            case Synced():
                inode = self._inodes[operation.inode]
                inode.durable, inode.pending, inode.variants = _applied(inode.durable, inode.pending), [], None
            case SyncedFolder():
                self._sync_folder(operation.path)
            case Committed():
                self._database = operation.database
            case Acknowledged():
                self._acknowledged = True
            case MadeReadOnly():
                pass  # the mode is not used
            case _:
                self._change_name(operation)

    def _change_name(self, operation: MadeFolder | Created | Renamed | Unlinked) -> None:
        match operation:
            case Created():
                self._inodes[operation.inode] = _Inode()
                self._current[operation.path] = operation.inode
                self._names.append(_Name(operation, _parent(operation.path), operation.inode))
            case Renamed():
                inode = self._current.pop(operation.source)
                self._current[operation.target] = inode
                self._names.append(_Name(operation, _parent(operation.target), inode))
            case Unlinked():
                self._current.pop(operation.path)
                self._names.append(_Name(operation, _parent(operation.path), 0))
            case MadeFolder():
                self._names.append(_Name(operation, _parent(operation.path), 0))

    def _sync_folder(self, path: str) -> None:
        for name in self._names:
            name.is_durable = name.is_durable or name.folder == path
        # Earlier changes that a durable rename has replaced make no difference.
        moved = {name.inode for name in self._names if name.is_durable and isinstance(name.operation, Renamed)}
        self._names = [
            name
            for name in self._names
            if name.is_durable or not (isinstance(name.operation, Created) and name.inode in moved)
        ]

    def _possible(self) -> Iterator[CrashState]:
        pending = [number for number, name in enumerate(self._names) if not name.is_durable]
        for happened in _subsets(pending):
            chosen = set(happened)
            names = [name for number, name in enumerate(self._names) if name.is_durable or number in chosen]
            files, folders = self._tree(names)
            paths = sorted(files)
            for variants in self._combinations([files[path] for path in paths]):
                yield CrashState(tuple(zip(paths, variants, strict=True)), folders, self._database, self._acknowledged)

    def _tree(self, names: Sequence[_Name]) -> tuple[dict[str, int], tuple[str, ...]]:
        """Return files by path and folders; files in a lost folder are lost too."""
        files, folders = dict(self._first), set(self._journal.first_folders)
        for name in names:
            match name.operation:
                case Created(path=path):
                    files[path] = name.inode
                case Renamed(source=source, target=target):
                    if files.get(source) == name.inode:
                        del files[source]
                    files[target] = name.inode
                case Unlinked(path=path):
                    files.pop(path, None)
                case MadeFolder(path=path):
                    folders.add(path)
        existing = {path for path in folders if all(above in folders for above in _above(path))}
        found = {path: inode for path, inode in files.items() if all(above in existing for above in _above(path))}
        return found, tuple(sorted(existing))

    def _combinations(self, inodes: Sequence[int]) -> Iterator[tuple[str, ...]]:
        """Yield combinations of keys of contents, in the order of `inodes`."""
        variants = [self._variants(inode) for inode in inodes]
        loose = [place for place, keys in enumerate(variants) if len(keys) > 1]
        if len(loose) <= PRODUCT_MAX:
            yield from product(*variants)
            return
        written, lost = [keys[0] for keys in variants], [keys[min(1, len(keys) - 1)] for keys in variants]
        for base in (written, lost):
            yield tuple(base)
            for place in loose:
                for key in variants[place]:
                    yield (*base[:place], key, *base[place + 1 :])

    def _variants(self, number: int) -> list[str]:
        inode = self._inodes[number]
        if inode.variants is None:
            found = _data_variants(inode.durable, inode.pending)
            inode.variants = list(dict.fromkeys(self._keep(data) for data in found))
        return inode.variants

    def _keep(self, data: bytes) -> str:
        key = hashlib.sha256(data).hexdigest()
        self.contents[key] = data
        return key


def _data_variants(durable: bytes, pending: Sequence[Written | Truncated]) -> Iterator[bytes]:
    yield _applied(durable, pending)
    yield durable
    yield _applied(durable, [_zeroed(write) for write in pending])  # the sizes were written, the bytes were not
    for place, pending_write in enumerate(pending):
        others = (*pending[:place], *pending[place + 1 :])
        yield _applied(durable, others)
        yield _applied(durable, (*pending[:place], _zeroed(pending_write), *pending[place + 1 :]))
        yield _applied(durable, pending[:place])
        if isinstance(pending_write, Written) and len(pending_write.data) > SECTOR_BYTES:
            half = len(pending_write.data) // 2 // SECTOR_BYTES * SECTOR_BYTES
            torn = Written(pending_write.inode, pending_write.offset, pending_write.data[: max(half, SECTOR_BYTES)])
            yield _applied(durable, (*pending[:place], torn))


def _zeroed(one: Written | Truncated) -> Written | Truncated:
    return Written(one.inode, one.offset, bytes(len(one.data))) if isinstance(one, Written) else one


def _applied(durable: bytes, pending: Sequence[Written | Truncated]) -> bytes:
    data = bytearray(durable)
    for write in pending:
        if isinstance(write, Truncated):
            del data[write.size_bytes :]
            data.extend(bytes(write.size_bytes - len(data)))
        else:
            data.extend(bytes(max(0, write.offset - len(data))))
            data[write.offset : write.offset + len(write.data)] = write.data
    return bytes(data)


def _subsets(pending: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if len(pending) <= SUBSETS_MAX:
        yield from chain.from_iterable(combinations(pending, size) for size in range(len(pending) + 1))
        return
    yield from (tuple(pending[:size]) for size in range(len(pending) + 1))
    for place, change in enumerate(pending):
        yield (change,)
        yield (*pending[:place], *pending[place + 1 :])


def _parent(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _above(path: str) -> list[str]:
    """Return the parent folders of `path`, except the root."""
    return [str(folder) for folder in PurePosixPath(path).parents if str(folder) != "."]
