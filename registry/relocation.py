"""Moves of a registry to another database, and to another place for its blobs.

Files are copied first, while the registry is used. Then all writers wait while the remaining files and the rows are
copied. The rows are committed last, in one transaction: an interrupted move leaves a new database without rows, and a
later run copies only the files that are missing. The old database and the old files stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

from organs.registry.catalog.copying import check_empty, copy_rows
from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.blobs import files_after
from organs.registry.catalog.register.submissions import remove_uploads
from organs.registry.digest import Digest
from organs.registry.errors import CorruptBlob, MissingBlob, StoreError
from organs.registry.progress import Progress, no_progress
from organs.registry.store import BlobStore
from organs.registry.upkeep import Fault

COPIES_AT_ONCE = 8
"""Files that are copied at the same time: a request to an object store is mostly waiting."""


@dataclass(slots=True)
class RelocationReport:
    """The result of a move."""

    rows: int = 0
    files: int = 0
    """Files in the new place that the registry needs."""
    copied: int = 0
    """Files that this run copied. Earlier runs copied the others."""
    copied_bytes: int = 0
    faults: list[Fault] = field(default_factory=list)
    """Files that are missing or damaged in the old place. Their rows are copied, and the files are missing also in the
    new place."""


def relocate(
    catalog: Catalog,
    blobs: BlobStore,
    *,
    new_catalog: Catalog | None = None,
    new_blobs: BlobStore | None = None,
    progress: Progress = no_progress,
) -> RelocationReport:
    """Copy the files of the registry to `new_blobs`, and its rows to the empty database `new_catalog`.

    Without one of them, that part stays where it is. Uploads that are not registered yet are lost if the bucket
    changes: contributors send them again. `progress` gets the stored size of each file. Raises Conflict if the new
    database has rows; Busy while a sweep or a backup runs; DiskFull, StoreUnwritable, StoreUnreachable.
    """
    report = RelocationReport()
    loses_uploads = new_blobs is not None and (blobs.backend.is_remote or new_blobs.backend.is_remote)
    if new_catalog is not None:
        with new_catalog.reading() as session:
            check_empty(session)  # before files are copied, which can take hours
    with blobs.backend.sweeping():
        copy = None if new_blobs is None else _Copy(catalog, blobs, new_blobs)
        if copy is not None:
            copy.run(report, progress)
        if new_catalog is not None:
            with catalog.writing() as source:
                if copy is not None:
                    copy.run(report)  # files that were added meanwhile; the progress has counted the others
                with new_catalog.writing() as target:
                    report.rows = copy_rows(source, target)
                    if loses_uploads:
                        remove_uploads(target)
        elif loses_uploads:
            with catalog.writing() as session:
                remove_uploads(session)
    return report


class _Copy:
    """The files that are copied, and those that are in the new place already."""

    def __init__(self, catalog: Catalog, source: BlobStore, target: BlobStore) -> None:
        self._catalog = catalog
        self._source = source
        self._target = target
        target.backend.prepare()
        self._sizes = {stray.file: stray.size_bytes for stray in target.backend.walk() if stray.file is not None}
        """The sizes of the files in the new place, in bytes."""

    def run(self, report: RelocationReport, progress: Progress = no_progress) -> None:
        """Copy the files that the new place lacks, and describe the result in `report`."""
        report.files, report.faults = 0, []
        named = self._named()
        with ThreadPoolExecutor(COPIES_AT_ONCE, thread_name_prefix="copy") as pool:
            while chunk := list(islice(named, 8 * COPIES_AT_ONCE)):
                for (file, size_bytes), error in zip(chunk, pool.map(self._copy_if_needed, chunk), strict=True):
                    if error is None:
                        report.files += 1
                        if self._sizes.get(file) != size_bytes:
                            report.copied += 1
                            report.copied_bytes += size_bytes
                            self._sizes[file] = size_bytes
                    else:
                        report.faults.append(Fault(Digest(file[3:67]), str(error), ()))
                    progress(size_bytes)

    def _named(self) -> Iterator[tuple[str, int]]:
        """Yield the names of all files that rows name, and their sizes. Each page has its own session."""
        last: int | None = 0
        while last is not None:
            with self._catalog.reading() as session:
                page = files_after(session, last)
            yield from ((file, size_bytes) for _, file, size_bytes in page)
            last = page[-1][0] if page else None

    def _copy_if_needed(self, named: tuple[str, int]) -> StoreError | None:
        """Copy a file; return the error if it is damaged or missing."""
        file, size_bytes = named
        if self._sizes.get(file) == size_bytes:
            return None
        try:
            self._target.copy_file(self._source, file, size_bytes)
        except (MissingBlob, CorruptBlob) as error:
            return error
        return None
