"""What a registry asks of the disk, written down: every call that changes something, and every commit, in order.

A journal is what `crash_states` makes crash states of. Calls go through one lock, so that their order is the true one.
SQLite's own files are not in it: a commit with `synchronous = FULL` is taken to be durable when it returns, and
possible from the moment it begins; the database after each commit is kept as one value.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session

from organs.registry.catalog.engine import Catalog
from organs.registry.local import LocalRegistry
from organs.registry.store import BlobStore
from organs.registry.store.files import PRIVATE_FILE, PRIVATE_FOLDER, Buffer, Files
from tests.faults.failing import Crash


@dataclass(frozen=True, slots=True)
class MadeFolder:
    path: str


@dataclass(frozen=True, slots=True)
class Created:
    path: str
    inode: int


@dataclass(frozen=True, slots=True)
class Written:
    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncated:
    inode: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MadeReadOnly:
    inode: int


@dataclass(frozen=True, slots=True)
class Synced:
    inode: int


@dataclass(frozen=True, slots=True)
class Renamed:
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class SyncedFolder:
    path: str


@dataclass(frozen=True, slots=True)
class Unlinked:
    path: str


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction begins to commit; `database` is the key of the database that it leads to."""

    database: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The caller has been told that it is done."""


Operation = (
    MadeFolder
    | Created
    | Written
    | Truncated
    | MadeReadOnly
    | Synced
    | Renamed
    | SyncedFolder
    | Unlinked
    | Committed
    | Acknowledged
)


class Journal:
    """The operations below `root`, whose files at the beginning count as durable. Paths are relative to it."""

    def __init__(self, root: Path, database: Path | None = None) -> None:
        self.root = root
        self.operations: list[Operation] = []
        self.databases: dict[str, bytes] = {}
        self.first_folders = frozenset(str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir())
        files = [path for path in root.rglob("*") if path.is_file() and "sqlite3" not in path.name]
        self.first_files = {str(path.relative_to(root)): path.read_bytes() for path in files}
        self.lock = threading.RLock()
        self._database = database
        self._inodes = 0
        self._dies_at = -1
        self.is_dead = False
        self.first_database = self._keep_database()

    def die_at(self, number: int) -> None:
        """The process dies before the operation `number`, counted from 0: this and every later call raise Crash."""
        self._dies_at = number

    def revive(self) -> None:
        """Another process goes on: with what the operating system has, durable or not."""
        self._dies_at = -1
        self.is_dead = False

    def about_to(self) -> None:
        """Called before each operation, with the lock held."""
        if self.is_dead or len(self.operations) == self._dies_at:
            self.is_dead = True
            raise Crash

    def note(self, operation: Operation) -> None:
        self.operations.append(operation)

    def new_inode(self) -> int:
        self._inodes += 1
        return self._inodes

    def name(self, path: Path) -> str:
        """`path` as the journal calls it; all that lies outside has one name."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else ".."

    def begin_commit(self) -> int:
        """The place of a commit in the journal: where it begins, for from then on it may be durable."""
        with self.lock:
            self.about_to()
            self.note(Committed(""))
            return len(self.operations) - 1

    def committed(self, place: int) -> None:
        """It has returned."""
        self.operations[place] = Committed(self._keep_database())

    def _keep_database(self) -> str:
        if self._database is None:
            return ""
        with closing(sqlite3.connect(self._database)) as connection:
            data = connection.serialize()
        key = hashlib.sha256(data).hexdigest()
        self.databases[key] = data
        return key


class JournalFiles(Files):
    """The real calls without waiting for the disk; each one that changes something goes into the journal."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._inodes: dict[int, int] = {}

    @contextmanager
    def _noted(self, make: Callable[[], Operation]) -> Iterator[None]:
        with self.journal.lock:
            self.journal.about_to()
            yield
            self.journal.note(make())

    def make_folder(self, path: Path, mode: int = PRIVATE_FOLDER) -> None:
        for folder in (*reversed(path.parents), path):
            if not folder.exists():
                with self._noted(lambda folder=folder: MadeFolder(self.journal.name(folder))):
                    folder.mkdir(mode, exist_ok=True)

    def create(self, path: Path, mode: int = PRIVATE_FILE) -> int:
        with self.journal.lock:
            self.journal.about_to()
            descriptor = super().create(path, mode)
            self._inodes[descriptor] = self.journal.new_inode()
            self.journal.note(Created(self.journal.name(path), self._inodes[descriptor]))
        return descriptor

    def create_direct(self, path: Path) -> int:
        return self.create(path)

    def truncate(self, descriptor: int, size: int) -> None:
        with self._noted(lambda: Truncated(self._inodes[descriptor], size)):
            super().truncate(descriptor, size)

    def write_at(self, descriptor: int, pieces: Sequence[Buffer], offset: int) -> int:
        data = b"".join(pieces)
        with self._noted(lambda: Written(self._inodes[descriptor], offset, data)):
            return super().write_at(descriptor, pieces, offset)

    def make_read_only(self, descriptor: int) -> None:
        with self._noted(lambda: MadeReadOnly(self._inodes[descriptor])):
            super().make_read_only(descriptor)

    def sync(self, descriptor: int) -> None:
        with self._noted(lambda: Synced(self._inodes[descriptor])):
            """Real syncs would only cost time: what counts is when it is asked for."""

    def close(self, descriptor: int) -> None:
        self._inodes.pop(descriptor, None)
        super().close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        with self._noted(lambda: Renamed(self.journal.name(source), self.journal.name(target))):
            super().rename(source, target)

    def sync_folder(self, path: Path) -> None:
        with self._noted(lambda: SyncedFolder(self.journal.name(path))):
            """As with files."""

    def unlink(self, path: Path) -> None:
        with self._noted(lambda: Unlinked(self.journal.name(path))):
            os.unlink(path)


class WithoutFileSync(JournalFiles):
    """A mutant: files are renamed and recorded, and nobody has waited for their bytes."""

    def sync(self, descriptor: int) -> None:
        """Forgotten."""


class WithoutFolderSync(JournalFiles):
    """A mutant: nobody waits for the names."""

    def sync_folder(self, path: Path) -> None:
        """Forgotten."""


class RowsFirst(JournalFiles):
    """A mutant: files are made durable only after the commit of their rows."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self._late: list[Callable[[], None]] = []
        self._later: list[Callable[[], None]] = []

    def sync(self, descriptor: int) -> None:
        self._later.append(lambda: JournalFiles.sync(self, descriptor))

    def rename(self, source: Path, target: Path) -> None:
        self._later.append(lambda: JournalFiles.rename(self, source, target))

    def sync_folder(self, path: Path) -> None:
        self._later.append(lambda: JournalFiles.sync_folder(self, path))

    def close(self, descriptor: int) -> None:
        self._later.append(lambda: JournalFiles.close(self, descriptor))

    def catch_up(self) -> None:
        """After a commit: what was put off before the one before."""
        late, self._late, self._later = self._late, self._later, []
        for call in late:
            call()


class JournalCatalog(Catalog):
    """The catalog of a registry, whose commits go into the journal."""

    def __init__(self, catalog: Catalog, files: JournalFiles) -> None:
        super().__init__(catalog.reader, catalog.writer)
        object.__setattr__(self, "files", files)

    @contextmanager
    def writing(self) -> Iterator[Session]:
        files: JournalFiles = self.files
        with files.journal.lock:
            files.journal.about_to()
        with super().writing() as session:
            yield session
            session.flush()
            place = files.journal.begin_commit()
        files.journal.committed(place)
        if isinstance(files, RowsFirst):
            files.catch_up()


def on_journal(registry: LocalRegistry, files: JournalFiles) -> LocalRegistry:
    """The same registry, with all that it writes in the journal of `files`."""
    blobs = BlobStore(registry.settings.blobs, files)
    return LocalRegistry(registry.settings, JournalCatalog(registry.catalog, files), blobs)
