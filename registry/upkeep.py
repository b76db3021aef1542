"""Maintenance of a registry: verify that every row has its bytes, set faulty blobs aside and take them back, sweep.

A blob is removed by two runs of the sweep. The first run dooms blobs that nothing has needed for the grace period. A
later run deletes the rows of blobs that are still doomed and unneeded, commits, and only then unlinks their files. A
writer may store the same bytes between these steps: it spares the row, or it writes a file with another name. Names of
files are never reused, so the sweep cannot unlink the new file.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from threadpoolctl import threadpool_limits

from organs.registry.catalog.engine import Catalog, database_now
from organs.registry.catalog.queries.blobs import (
    PAGES_OF_BLOBS,
    UNDOOMED,
    KnownBlob,
    blobs_after,
    blobs_by_digest,
    blobs_by_id,
    known_files,
    names_of_blob,
    oldest_living_ingest,
    unneeded_blobs,
)
from organs.registry.catalog.queries.organs import partly_measured_organs, shape_of, uncounted_organs
from organs.registry.catalog.queries.reports import counted_totals, running_totals
from organs.registry.catalog.register.counts import differences, repair_totals
from organs.registry.catalog.register.models import forget_unused
from organs.registry.catalog.register.organs import (
    count_nonfinite_tensors,
    doom_blobs,
    mark_corrupt,
    mark_present,
    reclaim_blob,
    record_measures,
    record_nonfinite,
    replace_fingerprints,
)
from organs.registry.digest import Digest
from organs.registry.errors import CorruptBlob, FaultyParent, MissingBlob, OrganError, StoreError
from organs.registry.gguf.types import dtype_by_name
from organs.registry.measure import Measurement, count_nonfinite_in, measure
from organs.registry.progress import Progress, no_progress
from organs.registry.settings import GRACE
from organs.registry.store import BlobAddress, BlobStore, RangeReader

CLOCK_SLACK = timedelta(minutes=1)
"""How far the clock of the store's file system may be behind the clocks of processes that ingest."""

TAKE_BACK_ATTEMPTS = 5
TAKE_BACK_PAUSE_SECONDS = 0.2

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fault:
    """A blob with wrong, missing or unreadable bytes, and the organs and files that need it."""

    digest: Digest
    reason: str
    needed_by: tuple[str, ...]


@dataclass(slots=True)
class VerifyReport:
    """The result of a verification."""

    blobs: int = 0
    read_bytes: int = 0
    orphans: int = 0
    faults: list[Fault] = field(default_factory=list)
    quarantined: int = 0
    recovered: list[Digest] = field(default_factory=list)
    """Blobs that were set aside and have the right bytes again; with `repair` they were taken back."""
    counted_organs: int = 0
    """Organs of an older version whose NaN and infinite values this run counted."""
    miscounted: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The running totals that were wrong: the stored and the counted value. `repair` corrects them."""


@dataclass(slots=True)
class SweepReport:
    """The result of a sweep; with `dry_run`, the result that a sweep would have."""

    dry_run: bool
    doomed: int = 0
    doomed_bytes: int = 0
    removed: int = 0
    removed_bytes: int = 0
    recent: int = 0
    """Unneeded blobs that a writer used within the grace period, so that they stay."""
    recent_bytes: int = 0
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
    progress: Progress = no_progress,
) -> VerifyReport:
    """Compare rows with stored bytes; with `read_data`, read that share of the plain bytes and hash it again.

    Parts of stacks are read with their stacks, in the shares of these. Blobs that were set aside before are always read
    and hashed. With `repair`, those whose bytes are right again are taken back, and blobs whose bytes are wrong or
    missing are set aside: they are read again before they are used, and an ingest of the same bytes stores them again.
    `repair` also corrects wrong running totals. With both options, NaN and infinite values are counted in the organs
    where their number is unknown. A blob that could not be read for another reason is reported, but not set aside,
    because the reason may be temporary.
    """
    report = VerifyReport()
    blobs = blobs.uncached()
    checks = _Checks(blobs, read_data, report, progress)
    suspects, recovered = [], []
    for row in all_blobs(catalog):
        report.blobs += not row.parts  # the bytes of a stack are those of its parts
        if checks.fault_of(row) is not None:
            suspects.append(row)
        elif row.is_set_aside and row.id in checks.read:
            recovered.append(row)
        if not row.parts and row.id not in checks.read:
            checks.progress(row.size_bytes)
    with catalog.reading() as session:
        named = known_files(session)
    report.orphans = sum(1 for stray in blobs.backend.walk() if stray.file is None or stray.file not in named)
    faulty = _confirm_faults(catalog, checks, suspects)
    report.recovered = [row.digest for row in recovered]
    if repair and faulty:
        report.quarantined = set_aside(catalog, faulty)
    if repair and recovered:
        with catalog.writing() as session:
            for row in recovered:
                mark_present(session, row)
    if repair and read_data is not None:
        report.counted_organs = _count_unknown(catalog, blobs, read_data)
    with catalog.reading() as session:
        report.miscounted = differences(running_totals(session), counted_totals(session))
    if report.miscounted and repair:
        with catalog.writing() as session:  # totals are counted again, now that no other process can write
            report.miscounted = repair_totals(session)
    return report


def sweep(catalog: Catalog, blobs: BlobStore, *, grace: timedelta = GRACE, dry_run: bool = True) -> SweepReport:
    """Remove blobs that nothing needs: reclaim those doomed by an earlier sweep, doom others, remove stray files.

    It also removes what was recorded about files and names of models that are gone (`forget_unused`).
    Raises Busy while another sweep runs.
    """
    report = SweepReport(dry_run)
    with blobs.backend.sweeping():
        with catalog.reading() as session:
            moment = database_now(session)
            # Those that an earlier sweep doomed, and that no writer has spared since then.
            doomed = [(blob.id, blob.stored_bytes) for blob in unneeded_blobs(session, ["doomed"], moment, moment)]
        for blob_id, stored_bytes in doomed:
            if not dry_run:
                with catalog.writing() as session:
                    file = reclaim_blob(session, blob_id)
                if file is None:
                    continue
                if file:
                    blobs.backend.remove(file)
            report.removed += 1
            report.removed_bytes += stored_bytes
        with catalog.reading() as session:
            moment = database_now(session)
            unneeded = unneeded_blobs(session, UNDOOMED, moment, moment)
            recent = [blob for blob in unneeded if blob.touched_at >= moment - grace]
        report.recent = len(recent)
        report.recent_bytes = sum(blob.stored_bytes for blob in recent)
        if dry_run:
            unneeded = [blob for blob in unneeded if blob.touched_at < moment - grace]
        else:
            with catalog.writing() as session:
                unneeded = doom_blobs(session, grace)
            with catalog.writing() as session:
                forget_unused(session)
        report.doomed = len(unneeded)
        report.doomed_bytes = sum(blob.stored_bytes for blob in unneeded)
        _remove_strays(catalog, blobs, grace, report)
    return report


def set_aside(catalog: Catalog, faulty: Iterable[KnownBlob]) -> int:
    """Set aside the `faulty` blobs whose rows still name the same stored bytes; return their number."""
    with catalog.writing() as session:
        return sum(mark_corrupt(session, row) for row in faulty)


def take_back(catalog: Catalog, blob: BlobAddress) -> None:
    """Mark a blob that was set aside as present, because its bytes are right again, and record the event.

    This function never waits long and never raises, because the caller can read the blob in any case. It tries up to 5
    times while other processes write. If no attempt succeeds, the blob stays set aside until it is read again.
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


def all_blobs(catalog: Catalog) -> Iterator[KnownBlob]:
    """Yield the rows of all stacks, then of blobs without a parent, then of others, each in the order of digests.

    Each page has its own session: a long session would delay cleanup of the database.
    """
    for condition, limit in PAGES_OF_BLOBS:
        after: str | None = ""
        while after is not None:
            with catalog.reading() as session:
                page = blobs_after(session, after, condition, limit)
            yield from page
            after = page[-1].digest if page else None


@dataclass(slots=True)
class _Checks:
    """Checks blobs, and counts the bytes that it reads."""

    blobs: BlobStore
    read_data: Share | None
    report: VerifyReport
    progress: Progress
    read: set[int] = field(default_factory=set)
    """The ids of sound blobs that were read: blobs, stacks, and parts of these."""
    due: dict[int, bool] = field(default_factory=dict)
    """Whether the share has a stack with a part, by the id of the part."""

    def fault_of(self, row: KnownBlob) -> StoreError | None:
        """Return the fault of a blob, or None for a sound blob.

        A blob that is set aside, or has a parent that is, is always read completely. The blob is not opened by
        `BlobStore.open`, which would take it back.
        """
        if row.id in self.read:
            return None
        is_due = False
        if self.read_data is not None:
            is_due = self.due.get(row.id, self.read_data.takes(row.digest))
            self.due.update((part.id, is_due or self.due.get(part.id, False)) for part in row.parts)
        try:
            with self.blobs.reader(row) as reader:
                if is_due or any(above.is_set_aside for above in row.lineage):
                    reader.verify()
                    for blob in row.parts or (row,):
                        if blob.id not in self.read:
                            self.read.add(blob.id)
                            self.report.read_bytes += blob.size_bytes
                            self.progress(blob.size_bytes)
                    self.read.add(row.id)
        except StoreError as error:
            # A faulty part of a stack is reported as a blob of its own.
            is_own = not row.parts or (isinstance(error, CorruptBlob) and error.where == row.digest)
            return error if is_own else None
        return None


def _confirm_faults(catalog: Catalog, checks: _Checks, suspects: Iterable[KnownBlob]) -> list[KnownBlob]:
    """Check the `suspects` again with their present rows, and report faults; return those with wrong or missing bytes.

    A blob that only its faulty parent makes unreadable is reported, not returned: its own bytes may be right. Rows are
    read again because a sweep may have removed a suspect, or an ingest may have stored its bytes again.
    """
    faulty = []
    with catalog.reading() as session:
        current = blobs_by_digest(session, [row.digest for row in suspects])
        for row in current.values():
            error = checks.fault_of(row)
            if error is not None:
                checks.report.faults.append(Fault(row.digest, str(error), tuple(names_of_blob(session, row.id))))
            if isinstance(error, CorruptBlob | MissingBlob) and not isinstance(error, FaultyParent):
                faulty.append(row)
    return faulty


@dataclass(frozen=True, slots=True)
class MissingReport:
    """The result of `measure_missing`, in numbers of organs."""

    measured: int
    unreadable: int
    """Organs whose stored bytes could not be read; `organ verify` lists them."""


def measure_missing(catalog: Catalog, blobs: BlobStore, progress: Progress = no_progress) -> MissingReport:
    """Measure organs without some measures, which an older version did not compute, from their stored bytes.

    Existing measures stay unchanged. A run that is interrupted loses at most one page of work. `progress` gets the
    number of organs of each page. Raises StoreError only for a store that cannot be opened.
    """
    measured, unreadable, after = 0, 0, 0
    with threadpool_limits(1, "blas"):
        while True:
            with catalog.reading() as session:
                page = partly_measured_organs(session, after)
                rows = blobs_by_id(session, [organ.blob_id for organ in page])
            if not page:
                return MissingReport(measured, unreadable)
            measurements: dict[int, Measurement] = {}
            for organ in page:
                row, dtype = rows.get(organ.blob_id), dtype_by_name(organ.dtype)
                if row is not None:
                    with suppress(StoreError), blobs.open(row) as reader:
                        measurements[organ.id] = measure(RangeReader(reader).read, shape_of(organ.shape), dtype)
            with catalog.writing() as session:
                changed = record_measures(session, measurements) | replace_fingerprints(session, measurements)
            # Some organs never get all measures: a vector of few values has a θ, and no magnitude.
            measured, unreadable = measured + len(changed), unreadable + len(page) - len(measurements)
            after = page[-1].id
            progress(len(page))


def _count_unknown(catalog: Catalog, blobs: BlobStore, share: Share) -> int:
    """Count the NaN and infinite values in the organs of the share where their number is unknown.

    Return the number of these organs, without organs whose bytes cannot be read.
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
                with suppress(StoreError), blobs.reader(row) as reader:
                    counts[organ.id] = count_nonfinite_in(reader.stream(), dtype_by_name(organ.dtype))
        with catalog.writing() as session:
            record_nonfinite(session, counts)
            if not page:
                count_nonfinite_tensors(session)
                return counted
        counted, after = counted + len(counts), page[-1].id


def _remove_strays(catalog: Catalog, blobs: BlobStore, grace: timedelta, report: SweepReport) -> None:
    """Remove files without a row, and temporary files, that are older than the grace period. They are left by crashes.

    Files that were written after the start of the oldest running ingest are spared: their rows may follow later. The
    start is read before the rows. So a file of an ingest that ends between the two reads is spared by its age, or has
    a row.
    """
    with catalog.reading() as session:
        moment = database_now(session)
        ingest_began = oldest_living_ingest(session, moment)
        named = known_files(session)
    limit = moment - grace
    if ingest_began is not None:
        limit = min(limit, ingest_began - CLOCK_SLACK)
    for stray in blobs.backend.walk():
        if stray.file in named or datetime.fromtimestamp(stray.modified_at, UTC) >= limit:
            continue
        if not report.dry_run:
            blobs.backend.remove(stray.name)
        report.stray_files += 1
        report.stray_bytes += stray.size_bytes
