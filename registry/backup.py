"""Backups: copies of a registry that are registries themselves, made while the registry is served and written to.

First the database is copied, in its state at one moment; then the file of every blob that this copy names. All these
files exist: no sweep can run during a backup, and nothing else removes a file that a sound row names. A later run into
the same folder copies only new files. The new database replaces the older database last. After that, files that only
the older database needs are removed. If the run fails at any moment, the folder has one complete copy, the older or
the newer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from organs.registry.catalog.copying import SIDE_FILES, checkpoint, open_snapshot, write_snapshot
from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.blobs import KnownBlob, blobs_by_digest, known_files
from organs.registry.catalog.register.submissions import remove_sessions, remove_uploads
from organs.registry.catalog.tables import now
from organs.registry.errors import BadInput, CorruptBlob, FaultyParent, MissingBlob, NotAllowed, StoreError
from organs.registry.progress import Progress, no_progress
from organs.registry.settings import Settings
from organs.registry.store import BlobStore
from organs.registry.store.files import Files, check_room, make_durable_folder, placed, translating
from organs.registry.upkeep import Fault, Share, all_blobs, verify

MARK = "backup.json"
"""The file that marks a folder as a backup. A backup never writes to a folder that has content but no mark."""
FORMAT = "organ registry backup 1"
DATABASE, BLOBS, FRESH = "registry.sqlite3", "blobs", "registry.new.sqlite3"
MARGIN_BYTES = 16 * 1024 * 1024
"""Bytes that must stay free in the file system of the copy."""
ATTEMPTS = 3
"""Attempts to copy the registry. An attempt fails if an ingest replaces a corrupt blob during it."""


@dataclass(slots=True)
class BackupReport:
    """The result of a backup."""

    folder: str
    blobs: int = 0
    """Blobs in the copy, including blobs that are stored in the database."""
    copied: int = 0
    """Files that this run copied. Earlier runs copied the others."""
    copied_bytes: int = 0
    removed: int = 0
    """Files that the copy no longer needed."""
    database_bytes: int = 0
    """0 if only the blobs were copied."""
    read_bytes: int = 0
    """Plain bytes of the copy that were read and hashed."""
    faults: list[Fault] = field(default_factory=list)
    """Blobs that cannot be read in the copy: they, or their parents, are damaged or missing in the registry."""


def back_up(
    catalog: Catalog,
    blobs: BlobStore,
    settings: Settings,
    folder: Path,
    *,
    read_back: bool = False,
    blobs_only: bool = False,
    files: Files | None = None,
    progress: Progress = no_progress,
) -> BackupReport:
    """Update the copy in `folder`, or create it. `progress` gets the stored bytes of each blob.

    With `read_back`, all bytes of the copy are read and hashed before it replaces the older copy. With `blobs_only`,
    the database is not copied, and nothing is removed. Raises NotAllowed for a folder that is not a backup, Busy while
    a sweep or another backup runs, DiskFull, StoreUnwritable.
    """
    folder = folder.expanduser().absolute()
    _check_folder(folder, settings)
    report, target = BackupReport(str(folder)), BlobStore(folder / BLOBS, files)
    _write_mark(folder, target.backend.files)
    run = _Run(catalog, blobs, target, report, progress)
    with blobs.backend.sweeping(), target.backend.sweeping():
        if blobs_only:
            faulty = run.copy_all(catalog)
            run.report_faults(catalog, faulty)
            if read_back:
                run.read_back(catalog)
        else:
            _copy_with_database(run, folder, read_back=read_back)
    return report


def _copy_with_database(run: _Run, folder: Path, *, read_back: bool) -> None:
    """Copy the database and the files that it names, then replace the older copy."""
    fresh = folder / FRESH
    for _ in range(ATTEMPTS):
        for file in (fresh, *(fresh.with_name(fresh.name + ending) for ending in SIDE_FILES)):
            file.unlink(missing_ok=True)
        write_snapshot(run.catalog, fresh)
        copy = open_snapshot(fresh)
        try:
            with copy.writing() as session:
                remove_uploads(session)
                remove_sessions(session)
            faulty = run.copy_all(copy)
            if faulty and run.were_replaced(faulty):
                continue
            run.report_faults(copy, faulty)
            if read_back:
                run.read_back(copy)
            with copy.reading() as session:
                needed = known_files(session)
        finally:
            copy.close()
        break
    else:
        raise StoreError("ingests replace corrupt blobs during the copy: wait until the ingests end, then try again")
    files, database = run.target.backend.files, folder / DATABASE
    with translating(database):  # replace the older database, atomically
        descriptor = files.open_to_read(fresh)
        try:
            run.report.database_bytes = files.size(descriptor)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        checkpoint(database)
        files.rename(fresh, database)
        files.sync_folder(folder)
    for stray in run.target.backend.walk():
        if stray.file not in needed:
            run.target.backend.remove(stray.name)
            run.report.removed += 1


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of a backup: what is copied, and where to."""

    catalog: Catalog
    source: BlobStore
    target: BlobStore
    report: BackupReport
    progress: Progress

    def copy_all(self, named_in: Catalog) -> list[tuple[KnownBlob, StoreError]]:
        """Copy the blobs of the database `named_in` that the target does not have; return the faulty blobs."""
        faulty: list[tuple[KnownBlob, StoreError]] = []
        self.report.blobs = 0
        self._check_room(named_in)
        for row in all_blobs(named_in):
            self.report.blobs += not row.parts
            try:
                self._copy_if_needed(row)
            except (MissingBlob, CorruptBlob) as error:
                faulty.append((row, error))
            self.progress(row.stored_bytes)
        return faulty

    def _copy_if_needed(self, row: KnownBlob) -> None:
        """Copy the file of a blob; raises CorruptBlob, MissingBlob.

        If the parent of a blob that is set aside is faulty, its own bytes cannot be checked, and may be right. They are
        copied where there is no copy, and never replace one. Then this raises FaultyParent.
        """
        unchecked: FaultyParent | None = None
        if row.is_set_aside:
            try:
                self.source.open(row).close()
            except FaultyParent as error:
                unchecked = error
        if row.file is not None:
            # A blob that was set aside is copied again: a copy of its wrong bytes may have the right size.
            is_copied = self.target.backend.size_of(row.file) == row.stored_bytes
            if not is_copied or (row.is_set_aside and unchecked is None):
                self._copy(row.file, row.stored_bytes)
        if unchecked is not None:
            raise unchecked

    def were_replaced(self, faulty: list[tuple[KnownBlob, StoreError]]) -> bool:
        """Return whether an ingest has stored the bytes of at least one of these blobs again."""
        with self.catalog.reading() as session:
            current = blobs_by_digest(session, [row.digest for row, _ in faulty])
        return any(row.digest in current and current[row.digest].file != row.file for row, _ in faulty)

    def report_faults(self, named_in: Catalog, faulty: list[tuple[KnownBlob, StoreError]]) -> None:
        """Report those of the `faulty` blobs, and of their dependants, that cannot be read in the copy."""
        if not faulty:
            return
        reasons = {row.digest: str(error) for row, error in faulty}
        faults = verify(named_in, self.target).faults
        with named_in.reading() as session:
            rows = blobs_by_digest(session, [fault.digest for fault in faults])
        for fault in faults:
            if fault.digest in rows and any(row.digest in reasons for row in rows[fault.digest].lineage):
                self.report.faults.append(replace(fault, reason=reasons.get(fault.digest, fault.reason)))

    def read_back(self, named_in: Catalog) -> None:
        """Read and hash all bytes of the copy; a file with wrong bytes is copied once more."""
        verified = verify(named_in, self.target, read_data=Share(1, 1))
        if verified.faults:
            with named_in.reading() as session:
                faulty = blobs_by_digest(session, [fault.digest for fault in verified.faults])
            for row in faulty.values():
                if row.file is not None and self.source.backend.size_of(row.file) == row.stored_bytes:
                    self._copy(row.file, row.stored_bytes)
            verified = verify(named_in, self.target, read_data=Share(1, 1))
        self.report.read_bytes, self.report.faults = verified.read_bytes, verified.faults

    def _copy(self, file: str, size_bytes: int) -> None:
        self.target.copy_file(self.source, file, size_bytes)
        self.report.copied += 1
        self.report.copied_bytes += size_bytes

    def _check_room(self, named_in: Catalog) -> None:
        backend, root = self.target.backend, Path(self.report.folder) / BLOBS
        copied = {stray.file for stray in backend.walk() if stray.file is not None}
        missing = (row for row in all_blobs(named_in) if row.file is not None and row.file not in copied)
        missing_bytes = sum(row.stored_bytes for row in missing)
        with translating(root):
            check_room(root, missing_bytes + MARGIN_BYTES, backend.files)


def _check_folder(folder: Path, settings: Settings) -> None:
    """Raise NotAllowed if the folder has content and is not a backup, or overlaps with the registry."""
    own = {settings.home.resolve(), settings.blobs.resolve()}  # a bucket is not on this machine
    resolved = folder.resolve()
    if any(resolved == path or resolved in path.parents or path in resolved.parents for path in own):
        raise NotAllowed(f"{folder} is the folder of the registry, is inside it or contains it: choose another folder")
    with translating(folder):
        try:
            if not folder.exists() or not any(folder.iterdir()):
                return
            mark = json.loads((folder / MARK).read_text("utf-8"))
        except NotADirectoryError as error:
            raise BadInput(f"{folder} is not a folder") from error
        except (FileNotFoundError, ValueError):
            mark = None
    if not isinstance(mark, dict) or mark.get("form") != FORMAT:
        raise NotAllowed(f"{folder} has files in it and is not a backup: choose an empty folder")


def _write_mark(folder: Path, files: Files) -> None:
    """Create the folder, and mark it as a backup before anything else is written to it."""
    with translating(folder):
        make_durable_folder(files, folder)
    if not (folder / MARK).exists():
        text = json.dumps({"form": FORMAT, "begun_at": now().isoformat()}) + "\n"
        with placed(folder / MARK, len(text), files) as file:
            file.write(text.encode("ascii"))
