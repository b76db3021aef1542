"""A journal of the disk operations of a registry: every call that changes something, and every commit, in order.

`crash_states` makes crash states from a journal. Calls go through one lock, so that their order is the true one. The
files of SQLite are not in it: a commit with `synchronous = FULL` counts as durable when it returns, and as possible
from its beginning; the database after each commit is stored as one value.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy.orm import Session

from organs.registry.catalog.engine import Catalog
from organs.registry.local import LocalRegistry
from organs.registry.store import BlobStore
from organs.registry.store.files import PRIVATE_FILE, PRIVATE_FOLDER, Buffer, Files
from tests.faults.failing import Crash, current_blob


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
    """A transaction begins to commit; `database` is the key of the database after it."""

    database: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The caller has received the success."""


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
        """Let the process die before the operation `number`, counted from 0: this and every later call raise Crash."""
        self._dies_at = number

    def revive(self) -> None:
        """Let another process continue with the state of the operating system, durable or not."""
        self._dies_at = -1
        self.is_dead = False

    def about_to(self) -> None:
        """Record an operation before it happens, with the lock held."""
        if self.is_dead or len(self.operations) == self._dies_at:
            self.is_dead = True
            raise Crash

    def note(self, operation: Operation) -> None:
        self.operations.append(operation)

    def new_inode(self) -> int:
        self._inodes += 1
        return self._inodes

    def name(self, path: Path) -> str:
        """Return the name of `path` in the journal; all paths outside have one name."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else ".."

    def begin_commit(self) -> int:
        """Return the position of a commit in the journal: its beginning, because it may be durable from then on."""
        with self.lock:
            self.about_to()
            self.note(Committed(""))
            return len(self.operations) - 1

    def committed(self, place: int) -> None:
        """Record that the commit has returned."""
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
    """The real calls without waiting for the disk; each change is recorded in the journal."""

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

    def create_direct(self, path: Path, mode: int = PRIVATE_FILE) -> int:
        return self.create(path, mode)

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
            """Real syncs would only take time: the moment of the call matters."""

    def close(self, descriptor: int) -> None:
        self._inodes.pop(descriptor, None)
        super().close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        with self._noted(lambda: Renamed(self.journal.name(source), self.journal.name(target))):
            super().rename(source, target)

    def sync_folder(self, path: Path) -> None:
        with self._noted(lambda: SyncedFolder(self.journal.name(path))):
            """As for files."""

    def unlink(self, path: Path) -> None:
        with self._noted(lambda: Unlinked(self.journal.name(path))):
            os.unlink(path)


class WithoutFileSync(JournalFiles):
    """A mutant that renames and records files without syncing their bytes."""

    def sync(self, descriptor: int) -> None:
        """Do nothing."""


class WithoutFolderSync(JournalFiles):
    """A mutant that does not sync names."""

    def sync_folder(self, path: Path) -> None:
        """Do nothing."""


class RowsFirst(JournalFiles):
    """A mutant that syncs files only after the commit of their rows."""

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
        """Make the delayed calls of the commit before the last."""
        late, self._late, self._later = self._late, self._later, []
        for call in late:
            call()


class JournalCatalog(Catalog):
    """The catalog of a registry whose commits are recorded in the journal."""

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
    """Return the same registry with all of its writes in the journal of `files`."""
    blobs = BlobStore(registry.settings.blobs, files, current=partial(current_blob, registry))
    return LocalRegistry(registry.settings, JournalCatalog(registry.catalog, files), blobs)
