"""Keeping a registry sound: verify that every row has its bytes, set faulty blobs aside and take them back, sweep.

The sweep takes two runs to remove a blob. The first dooms what nobody has needed for the grace; a later one deletes the
row of what is still doomed and still unneeded, commits, and only then unlinks that physical file. Names are never used
twice, so a writer who brings the same bytes in between either spares the row or writes a file of another name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from threadpoolctl import threadpool_limits

from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.organs import (
    BlobRow,
    blobs_after,
    blobs_by_digest,
    blobs_by_id,
    known_files,
    names_of_blob,
    oldest_living_ingest,
    partly_measured_organs,
    uncounted_organs,
    unneeded_blobs,
)
from organs.registry.catalog.queries.reports import (
    counted_totals,
    running_totals,
)
from organs.registry.catalog.register.facets import (
    differences,
    repair_totals,
)
from organs.registry.catalog.register.organs import (
    count_nonfinite_tensors,
    doom_blobs,
    mark_corrupt,
    mark_present,
    reclaim_blob,
    record_measures,
    record_nonfinite,
)
from organs.registry.catalog.tables import Organ, now
from organs.registry.digest import Digest
from organs.registry.errors import CorruptBlob, MissingBlob, OrganError, StoreError
from organs.registry.gguf.types import dtype_by_name
from organs.registry.measure import Measurement, count_nonfinite_in, measure
from organs.registry.settings import GRACE
from organs.registry.store import BlobAddress, BlobReader, BlobStore, RangeReader

CLOCK_SLACK = timedelta(minutes=1)
"""By how much the clock of the store's file system may be behind the one of those who ingest."""

TAKE_BACK_ATTEMPTS = 5
TAKE_BACK_PAUSE_SECONDS = 0.2

logger = logging.getLogger(__name__)

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """A blob that does not give its bytes, and where it is needed."""

    digest: Digest
    reason: str
    needed_by: tuple[str, ...]


@dataclass(slots=True)
class VerifyReport:
    """What verify looked at and found."""

    blobs: int = 0
    read_bytes: int = 0
    orphans: int = 0
    faults: list[Fault] = field(default_factory=list)
    quarantined: int = 0
    recovered: list[Digest] = field(default_factory=list)
    """Blobs that were set aside and whose bytes are right again; with `repair` they were taken back."""
    counted_organs: int = 0
    """Organs that an older version registered, and whose values that are NaN or infinite were counted now."""
    miscounted: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The running totals that were wrong: as they were kept, and counted. `repair` puts them right."""


@dataclass(slots=True)
class SweepReport:
    """What a sweep did, or with `dry_run` would do."""

    dry_run: bool
    doomed: int = 0
    doomed_bytes: int = 0
    removed: int = 0
    removed_bytes: int = 0
    stray_files: int = 0
    stray_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """The `number`-th of `total` parts of all blobs, divided by digest: 1/7 on Monday, 2/7 on Tuesday."""

    number: int
    total: int

    def takes(self, digest: Digest) -> bool:
        """Whether the blob belongs to this part."""
        return int(digest[:8], 16) % self.total == self.number - 1


def verify(
    catalog: Catalog,
    blobs: BlobStore,
    *,
    read_data: Share | None = None,
    repair: bool = False,
    progress: Progress | None = None,
) -> VerifyReport:
    """Compare rows with stored bytes; with `read_data`, read that share of the plain bytes and hash it again.

    Blobs that were set aside before are always read and hashed. With `repair`, those whose bytes are right again are
    taken back, and blobs whose bytes are wrong or missing are set aside: they are read again before they are used, and
    an ingest of the same bytes stores them anew. With both, values that are NaN or infinite are counted in the organs
    of which that is unknown. A blob that could not be read for another reason is a fault that may
    pass, and is not set aside. Running totals that are wrong are corrected.
    """
    report = VerifyReport()
    suspects, recovered = [], []
    for row in _all_blobs(catalog):
        report.blobs += 1
        if _check(blobs, row, read_data, report) is not None:
            suspects.append(row)
        elif row.is_set_aside:
            recovered.append(row)
        if progress is not None:
            progress(row.size_bytes)
    with catalog.reading() as session:
        known = known_files(session)
    report.orphans = sum(1 for stray in blobs.local.walk() if stray.file is None or stray.file not in known)
    faulty = _look_again(catalog, blobs, suspects, read_data, report)
    report.recovered = [row.digest for row in recovered]
    if repair and faulty:
        report.quarantined = set_aside(catalog, faulty)
    if repair and recovered:
        with catalog.writing() as session:
            for row in recovered:
                mark_present(session, row)
    if repair and read_data is not None:
        report.counted_organs = _count_unknown(catalog, blobs, read_data)
    report.miscounted = _miscounted(catalog, repair)
    return report


def sweep(catalog: Catalog, blobs: BlobStore, *, grace: timedelta = GRACE, dry_run: bool = True) -> SweepReport:
    """Remove what nothing needs: reclaim what an earlier sweep doomed, doom what is unneeded now, remove stray files.

    Raises Busy while another sweep runs.
    """
    report = SweepReport(dry_run)
    with blobs.local.sweeping():
        for blob_id, stored_bytes in _doomed(catalog):
            file = "" if dry_run else _reclaim(catalog, blob_id)
            if file is None:
                continue
            if file:
                blobs.local.remove(blobs.local.path(file))
            report.removed += 1
            report.removed_bytes += stored_bytes
        _doom(catalog, grace, report)
        _remove_strays(catalog, blobs, grace, report)
    return report


def set_aside(catalog: Catalog, faulty: Iterable[BlobRow]) -> int:
    """Set aside the blobs that still point at the stored bytes that were found faulty; return how many."""
    with catalog.writing() as session:
        return sum(mark_corrupt(session, row) for row in faulty)


def take_back(catalog: Catalog, blob: BlobAddress) -> None:
    """Mark a blob as present whose bytes were set aside and are right again, and record the event.

    It never waits long and never raises: the caller reads the blob, which is sound whatever becomes of its mark. While
    others write it tries some times; if none of them succeeds, the blob stays marked until it is read again.
    """
    for attempt in range(TAKE_BACK_ATTEMPTS):
        if attempt:
            time.sleep(TAKE_BACK_PAUSE_SECONDS)
        try:
            with catalog.writing(waits=False) as session:
                mark_present(session, blob)
        except OrganError as error:
            logger.warning("%s is sound again, but could not be marked as present: %s", blob.digest, error)
        else:
            return


def _all_blobs(catalog: Catalog) -> Iterator[BlobRow]:
    """Every row by digest, a page a session: reading for hours in one would keep the database from tidying up."""
    page: Sequence[BlobRow] = ()
    after = ""
    while True:
        with catalog.reading() as session:
            page = blobs_after(session, after)
        yield from page
        if not page:
            return
        after = page[-1].digest


def _look_again(
    catalog: Catalog, blobs: BlobStore, suspects: Iterable[BlobRow], read_data: Share | None, report: VerifyReport
) -> list[BlobRow]:
    """Report the `suspects` that are faulty by what the catalog says now; those whose bytes are wrong or gone.

    While the others were read, a sweep may have removed a blob, or an ingest healed it.
    """
    faulty = []
    with catalog.reading() as session:
        current = blobs_by_digest(session, [row.digest for row in suspects])
        for row in current.values():
            error = _check(blobs, row, read_data, report)
            if error is not None:
                report.faults.append(Fault(row.digest, str(error), tuple(names_of_blob(session, row.id))))
            if isinstance(error, CorruptBlob | MissingBlob):
                faulty.append(row)
    return faulty


@dataclass(frozen=True, slots=True)
class MissingReport:
    """What became of organs that lacked measures."""

    measured: int
    unreadable: int
    """Organs whose stored bytes could not be read; `organ verify` says which."""


def measure_missing(catalog: Catalog, blobs: BlobStore, progress: Progress = lambda _count: None) -> MissingReport:
    """Measure the organs that were registered before some measure was known, from their stored bytes.

    What is measured already stays as it is. It can be interrupted, and goes on where it was. `progress` gets how many
    organs were looked at. Raises StoreError only for a store that cannot be opened.
    """
    measured, unreadable, after = 0, 0, 0
    while True:
        with catalog.reading() as session:
            page = partly_measured_organs(session, after)
            rows = blobs_by_id(session, [organ.blob_id for organ in page])
        if not page:
            return MissingReport(measured, unreadable)
        found: dict[int, Measurement] = {}
        for organ in page:
            row = rows.get(organ.blob_id)
            with suppress(StoreError):
                if row is not None:
                    found[organ.id] = _measure_again(blobs, row, organ)
        with catalog.writing() as session:
            record_measures(session, found)
        measured, unreadable = measured + len(found), unreadable + len(page) - len(found)
        after = page[-1].id
        progress(len(page))


def _measure_again(blobs: BlobStore, row: BlobRow, organ: Organ) -> Measurement:
    shape = tuple(map(int, organ.shape.split("x")))
    with blobs.open(row) as reader, threadpool_limits(1, "blas"):
        return measure(RangeReader(reader).read, shape, dtype_by_name(organ.dtype))


def _count_unknown(catalog: Catalog, blobs: BlobStore, share: Share) -> int:
    """Count the values that are NaN or infinite in the organs of the share of which that is unknown.

    Return how many organs were counted; those whose bytes cannot be read are left out.
    """
    counted, after = 0, 0
    while True:
        with catalog.reading() as session:
            page = uncounted_organs(session, after)
            rows = blobs_by_id(session, [organ.blob_id for organ in page])
        counts = {}
        for organ in page:
            row = rows.get(organ.blob_id)
            if row is not None and share.takes(row.digest):
                with suppress(StoreError), BlobReader(blobs, row) as reader:
                    counts[organ.id] = count_nonfinite_in(reader.stream(), dtype_by_name(organ.dtype))
        with catalog.writing() as session:
            record_nonfinite(session, counts)
            if not page:
                count_nonfinite_tensors(session)
                return counted
        counted, after = counted + len(counts), page[-1].id


def _miscounted(catalog: Catalog, repair: bool) -> dict[str, tuple[int, int]]:
    with catalog.reading() as session:
        wrong = differences(running_totals(session), counted_totals(session))
    if not (wrong and repair):
        return wrong
    with catalog.writing() as session:  # counted once more, while nobody else can write
        return repair_totals(session)


def _check(blobs: BlobStore, row: BlobRow, read_data: Share | None, report: VerifyReport) -> StoreError | None:
    """What is wrong with a blob; None for a sound one. One that is set aside is always read whole.

    It is opened without `BlobStore.open`, which would take it back.
    """
    try:
        with BlobReader(blobs, row) as reader:
            if row.is_set_aside or (read_data is not None and read_data.takes(row.digest)):
                reader.verify()
                report.read_bytes += row.size_bytes
    except StoreError as error:
        return error
    return None


def _doomed(catalog: Catalog) -> list[tuple[int, int]]:
    """Id and stored bytes of the blobs that an earlier sweep doomed and nobody has spared since."""
    present = now()
    with catalog.reading() as session:
        return [(blob.id, blob.stored_bytes) for blob in unneeded_blobs(session, "doomed", present, present)]


def _reclaim(catalog: Catalog, blob_id: int) -> str | None:
    with catalog.writing() as session:
        return reclaim_blob(session, blob_id)


def _doom(catalog: Catalog, grace: timedelta, report: SweepReport) -> None:
    if report.dry_run:
        present = now()
        with catalog.reading() as session:
            unneeded = [
                *unneeded_blobs(session, "present", present - grace, present),
                *unneeded_blobs(session, "corrupt", present - grace, present),
            ]
    else:
        with catalog.writing() as session:
            unneeded = doom_blobs(session, grace)
    report.doomed = len(unneeded)
    report.doomed_bytes = sum(blob.stored_bytes for blob in unneeded)


def _remove_strays(catalog: Catalog, blobs: BlobStore, grace: timedelta, report: SweepReport) -> None:
    """Files without a row, and temporaries, that nobody has written to within the grace: a crash left them.

    What was written since the oldest living ingest began may be its own, with a row that is still to come. The time is
    taken before the rows are read: what an ingest that ended in between has written is spared by its age or has a row.
    """
    limit = now() - grace
    with catalog.reading() as session:
        begun = oldest_living_ingest(session, now())
        known = known_files(session)
    if begun is not None:
        limit = min(limit, begun - CLOCK_SLACK)
    for stray in blobs.local.walk():
        if stray.file in known or datetime.fromtimestamp(stray.modified_at, UTC) >= limit:
            continue
        if not report.dry_run:
            blobs.local.remove(stray.path)
        report.stray_files += 1
        report.stray_bytes += stray.size_bytes
