"""Tests of a sweep with concurrent writers, with another sweep, and of a killed sweep."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import combinations, count
from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from organs.registry.catalog.queries.blobs import KnownBlob, blobs_by_digest, unneeded_blobs
from organs.registry.catalog.register.counts import add_to_totals, blob_changes
from organs.registry.catalog.register.organs import (
    begin_ingest,
    doom_blobs,
    end_ingest,
    lease_blobs,
    mark_corrupt,
    reclaim_blob,
    record_blobs,
    renew_ingest,
)
from organs.registry.catalog.tables import Blob, Ingest, OrganRow
from organs.registry.digest import digest_of
from organs.registry.errors import MissingBlob, StoreError
from organs.registry.local import LocalRegistry
from organs.registry.settings import GRACE
from organs.registry.store import StoredBlob
from organs.registry.upkeep import SweepReport, sweep
from tests.faults.failing import (
    LARGE,
    Crash,
    SteppedCatalog,
    SteppedFiles,
    act_at_step,
    add_unneeded_blobs,
    assert_comes_back,
    assert_no_orphans,
    assert_sweeps_leave_no_rest,
    blob_rows,
    blob_states,
    crash,
    files_below,
    ingest_path,
    let_leases_expire,
    let_time_pass,
    litter,
    overwrite,
    random_bytes,
    run_sweep,
    verify_all,
    with_files,
    without_syncing,
    write_model,
)

AT_ONCE = timedelta(0)
STATES = ["absent", "unneeded", "doomed", "corrupt", "corrupt and doomed"]


@pytest.fixture
def quick(registry: LocalRegistry) -> LocalRegistry:
    """Return the registry without syncs, for tests of very many transactions."""
    return without_syncing(registry)


# A sweep while the same content is added again.


@dataclass(slots=True)
class Race:
    """One sweeper and one writer of the same bytes, step by step."""

    registry: LocalRegistry
    plain: bytes
    doomed: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    row: KnownBlob | None = None
    fresh: StoredBlob | None = None
    ingest_id: int = 0

    @property
    def digest(self) -> str:
        return digest_of(self.plain)

    def doom(self) -> None:
        with self.registry.catalog.writing() as session:
            doom_blobs(session, GRACE)

    def find(self) -> None:
        moment = datetime.now(UTC)
        with self.registry.catalog.reading() as session:
            self.doomed = [blob.id for blob in unneeded_blobs(session, ["doomed"], moment, moment)]

    def reclaim(self) -> None:
        for blob_id in self.doomed:
            with self.registry.catalog.writing() as session:
                file = reclaim_blob(session, blob_id)
            self.files += [file] if file else []

    def unlink(self) -> None:
        for file in self.files:
            self.registry.blobs.backend.remove(file)

    def look(self) -> None:
        with self.registry.catalog.writing() as session:
            self.ingest_id = begin_ingest(session, "the writer")
        with self.registry.catalog.reading() as session:
            self.row = blobs_by_digest(session, [self.digest]).get(digest_of(self.plain))

    def lease(self) -> None:
        if self.row is None or self.row.state == "corrupt":
            self.row = None
            return
        with self.registry.catalog.writing() as session:
            self.row = blobs_by_digest(session, [self.digest]).get(digest_of(self.plain))
            if self.row is not None:
                lease_blobs(session, self.ingest_id, [self.row.id])

    def store(self) -> None:
        if self.row is None or not self._intact(self.row):
            self.fresh = self.registry.blobs.put(self.plain)

    def record(self) -> None:
        if self.fresh is None:
            return
        with self.registry.catalog.writing() as session:
            unused = record_blobs(session, self.ingest_id, [self.fresh])
        for file in unused:
            self.registry.blobs.backend.remove(file)

    def register(self) -> None:
        with self.registry.catalog.writing() as session:
            blob_id = blobs_by_digest(session, [self.digest])[digest_of(self.plain)].id
            session.add(OrganRow(blob_id=blob_id, dtype="I8", shape=str(len(self.plain)), elements=len(self.plain)))
            end_ingest(session, self.ingest_id, "finished")

    def _intact(self, row: KnownBlob) -> bool:
        try:
            with self.registry.blobs.open(row) as reader:
                reader.verify()
        except StoreError:
            with self.registry.catalog.writing() as session:
                mark_corrupt(session, row)
            return False
        return True

    @property
    def is_lost(self) -> bool:
        """Return whether the writer's organ cannot be read although the writer has succeeded."""
        with self.registry.catalog.reading() as session:
            row = blobs_by_digest(session, [self.digest]).get(digest_of(self.plain))
        if row is None or row.state != "present":
            return True
        try:
            with self.registry.blobs.open(row) as reader:
                return reader.read() != self.plain
        except StoreError:
            return True


SWEEPER = (Race.doom, Race.find, Race.reclaim, Race.unlink)
WRITER = (Race.look, Race.lease, Race.store, Race.record, Race.register)
Step = Callable[[Race], None]


def interleavings(first: Sequence[Step], second: Sequence[Step]) -> Iterator[list[Step]]:
    """Yield every order of all steps that keeps the order of each side."""
    for places in combinations(range(len(first) + len(second)), len(first)):
        order = list(second)
        for place, step in zip(places, first, strict=True):
            order.insert(place, step)
        yield order


def prepared(registry: LocalRegistry, state: str, plain: bytes) -> None:
    """Create an unneeded blob of `plain` in the state `state`."""
    if state == "absent":
        return
    blob = registry.blobs.put(plain)
    add_unneeded_blobs(registry, blob)
    long_ago = datetime.now(UTC) - 3 * GRACE
    with registry.catalog.writing() as session:
        own = update(Blob).where(Blob.digest == blob.digest)
        session.execute(own.values(touched_at=long_ago, state="doomed" if "doomed" in state else "present"))
        if "doomed" in state:
            add_to_totals(session, blob_changes([], [blob]))
        if state == "corrupt":
            assert mark_corrupt(session, blobs_by_digest(session, [blob.digest])[blob.digest])
    if "corrupt" in state:
        overwrite(registry.settings.blobs / (blob.file or ""), bytes(blob.stored_bytes))


@pytest.mark.parametrize("state", STATES)
def test_every_order_of_a_sweep_and_a_writer_of_the_same_bytes_keeps_them(state: str, quick: LocalRegistry) -> None:
    orders = list(interleavings(SWEEPER, WRITER))
    assert len(orders) == 126
    for number, order in enumerate(orders):
        race = Race(quick, random_bytes(66_000, number))
        prepared(quick, state, race.plain)
        for step in order:
            step(race)
        assert not race.is_lost, [step.__name__ for step in order]
    for _ in range(2):
        run_sweep(quick)
    assert (len(blob_rows(quick)), verify_all(quick).faults) == (126, [])
    let_time_pass(quick)
    run_sweep(quick)
    assert_no_orphans(quick)


def test_the_same_orders_detect_the_loss_when_files_are_removed_before_rows(quick: LocalRegistry) -> None:
    def unlink_doomed(race: Race) -> None:
        with race.registry.catalog.reading() as session:
            found = list(session.scalars(select(Blob.file).where(Blob.id.in_(race.doomed))))
        for file in found:
            race.registry.blobs.backend.remove(file or "")

    def loses(number: int, order: list[Step]) -> bool:
        race = Race(quick, random_bytes(66_000, number))
        prepared(quick, "doomed", race.plain)
        for step in order:
            step(race)
        return race.is_lost

    wrong = (Race.doom, Race.find, unlink_doomed, Race.reclaim)
    assert any(loses(number, order) for number, order in enumerate(interleavings(wrong, WRITER)))


def leave_all_blobs(registry: LocalRegistry, path: Path) -> None:
    """Store everything of the model in `path` except the model: an ingest that ends before its last transaction."""

    def count_blobs() -> int:
        with registry.catalog.reading() as session:
            return session.scalar(select(func.count()).select_from(Blob)) or 0

    at_least = count_blobs()

    def interrupt_once() -> None:
        nonlocal at_least
        if count_blobs() > at_least:
            at_least = 1_000_000
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest_path(
            LocalRegistry(registry.settings, SteppedCatalog(registry.catalog, interrupt_once), registry.blobs), path
        )


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("state", ["unneeded", "doomed"])
def test_sweeps_without_a_grace_period_at_the_steps_of_an_ingest_lose_nothing(
    state: str, stride: int, quick: LocalRegistry, tmp_path: Path
) -> None:
    for number in count(1, stride):
        is_reached = False
        path = write_model(tmp_path / "little.gguf", seed=number)
        leave_all_blobs(quick, path)
        if state == "doomed":
            assert run_sweep(quick, AT_ONCE).doomed > 0

        def sweep_twice() -> None:
            nonlocal is_reached
            is_reached = True
            for _ in range(2):
                run_sweep(quick, AT_ONCE)

        ingest_path(
            LocalRegistry(quick.settings, SteppedCatalog(quick.catalog, act_at_step(number, sweep_twice)), quick.blobs),
            path,
        )
        assert_comes_back(quick, path)
        if not is_reached:
            break
    assert number > 8, "the steps before and after at least four transactions"
    assert verify_all(quick).faults == []


def test_sweeps_without_a_grace_period_between_writes_of_an_ingest_lose_nothing(
    quick: LocalRegistry, tmp_path: Path
) -> None:
    for number in range(1, 28, 2):
        path = write_model(tmp_path / "little.gguf", seed=number)

        def sweep_then(call: int, _name: str, number: int = number) -> None:
            if call == number:
                for _ in range(2):
                    run_sweep(quick, AT_ONCE)

        ingest_path(with_files(quick, SteppedFiles(sweep_then)), path)
    assert verify_all(quick).faults == []
    assert_no_orphans(quick)


# A sweep that is killed.


def test_a_sweep_that_dies_at_any_transaction_is_finished_by_the_next(quick: LocalRegistry, tmp_path: Path) -> None:
    ingest_path(quick, write_model(tmp_path / "little.gguf"))
    keep = {row.digest for row in blob_rows(quick)}
    died = number = 0
    while died == number:
        number += 1
        litter(quick, number)
        try:
            sweep(SteppedCatalog(quick.catalog, act_at_step(number, crash)), quick.blobs, dry_run=False)
        except Crash:
            died += 1
        assert_sweeps_leave_no_rest(quick)
        assert {row.digest for row in blob_rows(quick)} == keep
    assert died == 14, "before and after: the list, two rows, the unneeded, the doomed, the list of files, unused names"


@pytest.mark.parametrize("after", [False, True])
def test_a_sweep_that_dies_at_any_removal_is_finished_by_the_next(
    after: bool, quick: LocalRegistry, tmp_path: Path
) -> None:
    ingest_path(quick, write_model(tmp_path / "little.gguf"))
    keep = {row.digest for row in blob_rows(quick)}

    class Dying(SteppedFiles):
        def unlink(self, path: Path) -> None:
            if after:
                os.unlink(path)
            self.step("unlink")
            if not after:
                os.unlink(path)

    died = number = 0
    while died == number:
        number += 1
        litter(quick, number)
        step = act_at_step(number, crash)
        dying = Dying(lambda _number, name, step=step: step() if name == "unlink" else None)
        try:
            run_sweep(with_files(quick, dying))
        except Crash:
            died += 1
        assert_sweeps_leave_no_rest(quick)
        assert {row.digest for row in blob_rows(quick)} == keep
    assert died == 3, "the doomed file, the orphan, the temporary"


# An ingest that takes longer than the grace period.


def test_a_renewed_lease_protects_beyond_the_grace_period(registry: LocalRegistry) -> None:
    blob = registry.blobs.put(random_bytes(LARGE))
    with registry.catalog.writing() as session:
        ingest_id = begin_ingest(session, "a slow upload")
        record_blobs(session, ingest_id, [blob])
    for _ in range(3):
        let_time_pass(registry)
        with registry.catalog.writing() as session:
            session.execute(update(Ingest).values(lease_expires_at=datetime.now(UTC) + timedelta(seconds=1)))
            renew_ingest(session, ingest_id)
        assert run_sweep(registry) == SweepReport(dry_run=False)
    assert blob_states(registry) == {blob.digest: "present"}
    let_leases_expire(registry)
    assert run_sweep(registry).doomed == 1
    assert run_sweep(registry).removed == 1
    assert files_below(registry) == []


@pytest.mark.folder
def test_files_without_a_row_are_protected_while_their_ingest_runs(registry: LocalRegistry) -> None:
    with registry.catalog.writing() as session:
        ingest_id = begin_ingest(session, "a slow upload")
    blob = registry.blobs.put(random_bytes(LARGE))
    pending = registry.blobs.backend.begin(digest_of(b"x"), 5)
    let_time_pass(registry)  # it began three days ago, and has written since then
    assert run_sweep(registry).stray_files == 0
    assert run_sweep(registry, AT_ONCE).stray_files == 0
    with registry.catalog.writing() as session:
        record_blobs(session, ingest_id, [blob])
    assert verify_all(registry).faults == []
    let_leases_expire(registry)
    assert run_sweep(registry).stray_files == 1
    pending.discard()


def test_an_ingest_whose_lease_expired_and_blobs_were_swept_fails_and_can_be_run_again(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "little.gguf")
    swept: list[SweepReport] = []

    def sleep() -> None:
        if blob_rows(registry) and not swept:
            let_leases_expire(registry)
            let_time_pass(registry)
            swept.extend(run_sweep(registry) for _ in range(2))

    with pytest.raises(MissingBlob, match="run it again"):
        ingest_path(LocalRegistry(registry.settings, SteppedCatalog(registry.catalog, sleep), registry.blobs), path)
    assert (blob_rows(registry), files_below(registry)) == ([], [])
    assert ingest_path(registry, path).created
    assert verify_all(registry).faults == []
