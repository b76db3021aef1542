"""A copy of the registry that is a registry itself, made while it is served and written to.

First the database is copied, as it was at one moment; then every blob's file that this copy names. The sweep is kept
out meanwhile, and nobody else removes a file that a sound row names, so all of them are there. Run again into the same
folder, only new files are copied. The database takes its place last, and files that only the older one needed go after
that: whatever happens on the way, the folder holds one whole copy, the older or the newer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from organs.registry.assembly import check_readable
from organs.registry.catalog.engine import (
    OWN_FILES,
    Catalog,
    can_snapshot,
    open_snapshot,
    settle,
    write_snapshot,
)
from organs.registry.catalog.queries.organs import (
    BlobRow,
    blobs_after,
    blobs_by_digest,
    known_files,
)
from organs.registry.catalog.register.submissions import leave_out_uploads
from organs.registry.catalog.tables import now
from organs.registry.errors import BadInput, CorruptBlob, MissingBlob, NotAllowed, StoreError
from organs.registry.settings import Settings
from organs.registry.store import BlobStore
from organs.registry.store.files import (
    Files,
    check_room,
    make_durable_folder,
    placed,
    translated,
)
from organs.registry.store.local import (
    copy_blob,
    has_copy,
)
from organs.registry.upkeep import Fault, Share, verify

MARK = "backup.json"
"""What tells a folder of copies from any other, which is never written into."""
FORM = "organ registry backup 1"
DATABASE, BLOBS, FRESH = "registry.sqlite3", "blobs", "registry.new.sqlite3"
MARGIN_BYTES = 16 * 1024 * 1024
ATTEMPTS = 3
"""At a moment at which no blob is being healed."""
NO_SQLITE = (
    "the database is no SQLite file: copy it with pg_dump first, then the blobs with organ backup --blobs-only FOLDER"
)

Progress = Callable[[int], None]


@dataclass(slots=True)
class BackupReport:
    """What a backup did."""

    folder: str
    blobs: int = 0
    """That the copy has, those in the database among them."""
    copied: int = 0
    """Files; the others were there."""
    copied_bytes: int = 0
    removed: int = 0
    """Files that the copy needs no more."""
    database_bytes: int = 0
    """0 where only the blobs were copied."""
    read_bytes: int = 0
    """Plain bytes that were read back and hashed."""
    faults: list[Fault] = field(default_factory=list)
    """Blobs that the registry itself does not have whole: the copy lacks them too."""


def back_up(
    catalog: Catalog,
    blobs: BlobStore,
    settings: Settings,
    folder: Path,
    *,
    read_back: bool = False,
    blobs_only: bool = False,
    files: Files | None = None,
    progress: Progress | None = None,
) -> BackupReport:
    """Bring the copy in `folder` up to date; it is made if it is not there. `progress` is told of stored bytes.

    With `read_back`, all bytes of the copy are read and hashed before it counts. With `blobs_only`, the database is
    left to whoever keeps it, and nothing is removed. Raises NotAllowed for another database than SQLite and for a
    folder that is none of ours, Busy while a sweep or another backup runs, DiskFull, StoreUnwritable.
    """
    if not blobs_only and not can_snapshot(catalog):
        raise NotAllowed(NO_SQLITE)
    folder = folder.expanduser().absolute()
    _check_folder(folder, settings)
    report, target = BackupReport(str(folder)), BlobStore(folder / BLOBS, files)
    _mark(folder, target.local.files)
    run = _Run(catalog, blobs, target, report, progress or (lambda _size: None))
    with blobs.local.sweeping(), target.local.sweeping():
        if blobs_only:
            faulty = run.copy_all(catalog)
            run.tell(catalog, faulty)
            if read_back:
                run.read_back(catalog)
        else:
            _with_database(run, folder, read_back=read_back)
    return report


def _with_database(run: _Run, folder: Path, *, read_back: bool) -> None:
    """A copy of the database, the files that it names, and then the exchange."""
    fresh = folder / FRESH
    for _ in range(ATTEMPTS):
        _forget(fresh)
        write_snapshot(run.catalog, fresh)
        copy = open_snapshot(fresh)
        try:
            with copy.writing() as session:
                leave_out_uploads(session)
            faulty = run.copy_all(copy)
            if faulty and run.were_healed(faulty):
                continue
            run.tell(copy, faulty)
            if read_back:
                run.read_back(copy)
            with copy.reading() as session:
                needed = known_files(session)
        finally:
            copy.close()
        break
    else:
        raise StoreError("blobs are being healed all the time: let the ingests that do it end, and try again")
    _exchange(fresh, folder, run)
    for stray in run.target.local.walk():
        if stray.file not in needed:
            run.target.local.remove(stray.path)
            run.report.removed += 1


@dataclass(frozen=True, slots=True)
class _Run:
    catalog: Catalog
    source: BlobStore
    target: BlobStore
    report: BackupReport
    progress: Progress

    def copy_all(self, named_in: Catalog) -> list[tuple[BlobRow, StoreError]]:
        """Copy what the target lacks of the blobs in that database; those that the source does not have whole."""
        faulty: list[tuple[BlobRow, StoreError]] = []
        self.report.blobs = 0
        self._check_room(named_in)
        for row in _rows(named_in):
            self.report.blobs += 1
            try:
                check_readable(self.source, row, "blob")
                # A copy that was made while the bytes were wrong has the right size: it is made anew.
                there = row.file is None or has_copy(self.target.local, row.file, row.stored_bytes)
                if row.file is not None and (row.is_set_aside or not there):
                    self._copy(row.file, row.stored_bytes)
            except (MissingBlob, CorruptBlob) as error:
                faulty.append((row, error))
            self.progress(row.stored_bytes)
        return faulty

    def were_healed(self, faulty: list[tuple[BlobRow, StoreError]]) -> bool:
        """Whether one of them has other stored bytes by now: an ingest has brought them anew."""
        with self.catalog.reading() as session:
            current = blobs_by_digest(session, [row.digest for row, _ in faulty])
        return any(row.digest in current and current[row.digest].file != row.file for row, _ in faulty)

    def tell(self, named_in: Catalog, faulty: list[tuple[BlobRow, StoreError]]) -> None:
        """Report the blobs that the copy lacks; one that nobody needs any more is none."""
        if not faulty:
            return
        found = verify(named_in, self.target)
        lacking = {row.digest for row, _ in faulty}
        self.report.faults = [fault for fault in found.faults if fault.digest in lacking]

    def read_back(self, named_in: Catalog) -> None:
        """Read and hash all bytes of the copy; a file that is not what it should be is copied once more."""
        found = verify(named_in, self.target, read_data=Share(1, 1))
        if found.faults:
            with named_in.reading() as session:
                again = blobs_by_digest(session, [fault.digest for fault in found.faults])
            for row in again.values():
                if row.file is not None and has_copy(self.source.local, row.file, row.stored_bytes):
                    self._copy(row.file, row.stored_bytes)
            found = verify(named_in, self.target, read_data=Share(1, 1))
        self.report.read_bytes, self.report.faults = found.read_bytes, found.faults

    def _copy(self, file: str, size_bytes: int) -> None:
        copy_blob(self.source.local, self.target.local, file, size_bytes)
        self.report.copied += 1
        self.report.copied_bytes += size_bytes

    def _check_room(self, named_in: Catalog) -> None:
        local = self.target.local
        there = {stray.file for stray in local.walk() if stray.file is not None}
        lacking = sum(row.stored_bytes for row in _rows(named_in) if row.file is not None and row.file not in there)
        try:
            check_room(local.root, lacking + MARGIN_BYTES, local.files)
        except OSError as error:
            raise translated(error, local.root) from error


def _rows(catalog: Catalog) -> Iterator[BlobRow]:
    """Every row by digest, a page a session."""
    after = ""
    while True:
        with catalog.reading() as session:
            page = blobs_after(session, after)
        yield from page
        if not page:
            return
        after = page[-1].digest


def _exchange(fresh: Path, folder: Path, run: _Run) -> None:
    """The new database takes the place of the older one, at once."""
    files, place = run.target.local.files, folder / DATABASE
    try:
        descriptor = files.open_to_read(fresh)
        try:
            run.report.database_bytes = files.size(descriptor)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        settle(place)
        files.rename(fresh, place)
        files.sync_folder(folder)
    except OSError as error:
        raise translated(error, place) from error


def _check_folder(folder: Path, settings: Settings) -> None:
    """Raise NotAllowed for a folder with anything in it that is no copy of ours, or that is the registry's own."""
    own = {settings.home.resolve(), settings.blobs.resolve()}
    resolved = folder.resolve()
    if resolved in own or any(one in own for one in resolved.parents) or own & set(_below(resolved, own)):
        raise NotAllowed(f"{folder} is the registry's own folder, lies in it or has it in it: choose another")
    try:
        if not folder.exists() or not any(folder.iterdir()):
            return
        said = json.loads((folder / MARK).read_text("utf-8"))
    except NotADirectoryError as error:
        raise BadInput(f"{folder} is no folder") from error
    except (FileNotFoundError, ValueError):
        said = None
    except OSError as error:
        raise translated(error, folder) from error
    if not isinstance(said, dict) or said.get("form") != FORM:
        raise NotAllowed(f"{folder} has files in it, and is no backup: choose an empty folder")


def _below(folder: Path, paths: set[Path]) -> list[Path]:
    return [path for path in paths if folder in path.parents]


def _mark(folder: Path, files: Files) -> None:
    """Make the folder and say what it is, before anything else lies in it."""
    try:
        make_durable_folder(files, folder)
    except OSError as error:
        raise translated(error, folder) from error
    if not (folder / MARK).exists():
        text = json.dumps({"form": FORM, "begun_at": now().isoformat()}) + "\n"
        with placed(folder / MARK, len(text), files) as file:
            file.write_at(text.encode("ascii"), 0)


def _forget(path: Path) -> None:
    for one in (path, *(path.with_name(path.name + ending) for ending in OWN_FILES)):
        one.unlink(missing_ok=True)
