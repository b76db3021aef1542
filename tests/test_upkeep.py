"""Tests of verify and sweep: faults are named, needed blobs are kept, unneeded ones are removed in two runs.

For sweeps with concurrent writers, other sweeps and kills see `tests/faults/test_sweep.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.blobs import blobs_by_digest
from organs.registry.catalog.register.organs import (
    begin_ingest,
    lease_blobs,
)
from organs.registry.catalog.tables import Blob, CardImageRow, ContributorRow, InlineBlob, ModelRow, OrganRow
from organs.registry.digest import digest_of
from organs.registry.local import LocalRegistry
from organs.registry.settings import GRACE
from organs.registry.upkeep import Share, SweepReport, verify
from tests.clocks import local_clock
from tests.faults.failing import (
    EVERYTHING,
    LARGE,
    SMALL,
    SteppedFiles,
    add_unneeded_blobs,
    assert_no_orphans,
    blob_rows,
    blob_states,
    files_below,
    ingest_path,
    let_time_pass,
    random_bytes,
    run_sweep,
    verify_all,
    with_files,
    write_model,
)
from tests.small_models import assemble_model


def test_shares_read_every_blob_exactly_once(registry: LocalRegistry) -> None:
    blobs = [registry.blobs.put(random_bytes(SMALL, seed)) for seed in range(60)]
    add_unneeded_blobs(registry, *blobs)
    shares = [verify(registry.catalog, registry.blobs, read_data=Share(number, 7)) for number in range(1, 8)]
    assert [share.blobs for share in shares] == [60] * 7, "each looks at all of them"
    assert sum(share.read_bytes for share in shares) == 60 * SMALL
    for blob in blobs:
        assert [Share(number, 7).takes(blob.digest) for number in range(1, 8)].count(True) == 1


@pytest.mark.folder
def test_verify_changes_nothing_without_repair(registry: LocalRegistry) -> None:
    blob = registry.blobs.put(random_bytes(LARGE))
    add_unneeded_blobs(registry, blob)
    (registry.settings.blobs / (blob.file or "")).unlink()
    assert len(verify(registry.catalog, registry.blobs).faults) == 1
    assert blob_states(registry) == {blob.digest: "present"}
    report = verify(registry.catalog, registry.blobs, repair=True)
    assert (len(report.faults), report.quarantined) == (1, 1)
    assert blob_states(registry) == {blob.digest: "corrupt"}


def test_a_blob_swept_while_verify_runs_is_not_a_fault(registry: LocalRegistry) -> None:
    needless = [registry.blobs.put(random_bytes(LARGE, seed)) for seed in range(3)]
    add_unneeded_blobs(registry, *needless)
    let_time_pass(registry)
    run_sweep(registry)

    def sweep_once(call: int, _name: str) -> None:
        if call == 1:
            run_sweep(registry)

    swept = with_files(registry, SteppedFiles(sweep_once)).blobs
    report = verify(registry.catalog, swept, read_data=EVERYTHING, repair=True)
    assert blob_rows(registry) == []
    assert (report.blobs, report.faults, report.quarantined) == (3, [], 0)


@pytest.mark.folder
def test_a_blob_restored_while_verify_runs_is_not_set_aside(registry: LocalRegistry, tmp_path: Path) -> None:
    path = write_model(tmp_path / "little.gguf")
    ingest_path(registry, path)
    lost = [row for row in blob_rows(registry) if row.file is not None]
    for row in lost:
        (registry.settings.blobs / (row.file or "")).unlink()

    def heal(call: int, _name: str) -> None:
        if call == 2 * len(lost):  # verify tries twice to open a file; this is the last time
            ingest_path(registry, path)

    report = verify(registry.catalog, with_files(registry, SteppedFiles(heal)).blobs, repair=True)
    faulty = {fault.digest for fault in report.faults}
    assert faulty < {row.digest for row in lost}
    assert len(faulty) == len(lost) - 1, "the last one is found at its present place"
    assert report.quarantined == 0
    assert verify_all(registry).faults == []


def test_a_sweep_dooms_blobs_and_the_next_sweep_removes_them(registry: LocalRegistry) -> None:
    large, small = registry.blobs.put(random_bytes(LARGE)), registry.blobs.put(random_bytes(SMALL))
    add_unneeded_blobs(registry, large, small)
    with local_clock(100):
        assert run_sweep(registry).doomed == 0, "touched within the grace, by the clock of the database"
    let_time_pass(registry)
    first = run_sweep(registry)
    assert (first.doomed, first.doomed_bytes) == (2, large.stored_bytes + small.stored_bytes)
    assert (first.removed, first.stray_files) == (0, 0)
    assert set(blob_states(registry).values()) == {"doomed"}
    assert verify_all(registry).faults == [], "what is doomed is still there"
    second = run_sweep(registry)
    assert (second.removed, second.removed_bytes) == (2, large.stored_bytes + small.stored_bytes)
    assert (blob_rows(registry), files_below(registry)) == ([], [])
    with registry.catalog.reading() as session:
        assert session.scalars(select(InlineBlob.blob_id)).all() == []
    assert run_sweep(registry) == SweepReport(dry_run=False)


def needed_by_an_organ(session: Session, blob_id: int) -> None:
    session.add(OrganRow(blob_id=blob_id, dtype="F32", shape="4", elements=4))


def needed_by_a_blob(session: Session, blob_id: int) -> None:
    moment = datetime.now(UTC)
    values = {"size_bytes": 1, "stored_bytes": 1, "codec": "bytes", "codec_version": 1, "state": "present"}
    child = Blob(digest=digest_of(b"child"), depends_on=blob_id, created_at=moment, touched_at=moment, **values)
    session.add(child)
    session.flush()
    needed_by_an_organ(session, child.id)


def needed_by_a_card(session: Session, blob_id: int) -> None:
    moment = datetime.now(UTC)
    owner = ContributorRow(name="ada", created_at=moment)
    session.add(owner)
    session.flush()
    values = {"kind": "model", "size_bytes": 1, "tensors": 1, "parameters": 1, "complete": True, "state": "visible"}
    model = ModelRow(namespace="ada", name="a", version=1, digest=digest_of(b"a"), contributor_id=owner.id, **values)
    model.created_at, model.tags, model.flags, model.unassemblable = moment, (), (), ()
    session.add(model)
    session.flush()
    session.add(CardImageRow(model_id=model.id, name="a.png", blob_id=blob_id, format="png", width=1, height=1))


def needed_by_a_living_ingest(session: Session, blob_id: int) -> None:
    lease_blobs(session, begin_ingest(session, "another"), [blob_id])


@pytest.mark.folder
@pytest.mark.parametrize("needed", [needed_by_an_organ, needed_by_a_blob, needed_by_a_card, needed_by_a_living_ingest])
@pytest.mark.parametrize("doomed", [False, True])
def test_a_needed_blob_is_kept_at_every_stage(
    doomed: bool, needed: Callable[[Session, int], None], registry: LocalRegistry
) -> None:
    blob = registry.blobs.put(random_bytes(LARGE))
    add_unneeded_blobs(registry, blob)
    let_time_pass(registry)
    if doomed:
        assert run_sweep(registry).doomed == 1
    with registry.catalog.writing() as session:
        needed(session, blobs_by_digest(session, [blob.digest])[blob.digest].id)
    for _ in range(3):
        let_time_pass(registry)
        assert run_sweep(registry).removed == 0
    assert blob.digest in blob_states(registry)
    assert blob.file in files_below(registry)


@pytest.mark.folder
def test_headers_and_vocabularies_are_kept_with_their_model(registry: LocalRegistry, tmp_path: Path) -> None:
    path = write_model(tmp_path / "little.gguf")
    ingest_path(registry, path)
    add_unneeded_blobs(registry, registry.blobs.put(random_bytes(LARGE)))
    before = len(blob_rows(registry))
    for _ in range(3):
        let_time_pass(registry)
        run_sweep(registry)
    assert len(blob_rows(registry)) == before - 1
    assert_no_orphans(registry)
    (back,) = assemble_model(registry, "local/little", tmp_path / "back")
    assert back.read_bytes() == path.read_bytes()


@pytest.mark.folder
def test_files_without_a_row_and_temporary_files_are_removed_after_the_grace_period(registry: LocalRegistry) -> None:
    orphan = registry.blobs.put(random_bytes(LARGE))
    pending = registry.blobs.backend.begin(digest_of(b"x"), 5)
    pending.append([b"half"])
    assert len(files_below(registry)) == 2
    assert run_sweep(registry).stray_files == 0
    let_time_pass(registry, GRACE - timedelta(hours=1))
    assert run_sweep(registry).stray_files == 0
    let_time_pass(registry, GRACE + timedelta(hours=1))
    swept = run_sweep(registry)
    assert (swept.stray_files, swept.stray_bytes) == (2, orphan.stored_bytes)
    assert files_below(registry) == []
    pending.discard()


@pytest.mark.folder
def test_foreign_files_are_never_removed(registry: LocalRegistry) -> None:
    orphan = registry.blobs.put(random_bytes(LARGE))
    root = registry.settings.blobs
    (root / "README").write_text("mine")
    (root / "ab").mkdir(exist_ok=True)
    (root / "ab" / "notes.txt").write_text("mine")
    (root / "mine").mkdir()
    (root / "mine" / "a").write_text("mine")
    let_time_pass(registry)
    assert run_sweep(registry).stray_files == 1
    assert sorted(path.name for path in root.rglob("*") if path.is_file()) == ["README", "a", "notes.txt", "sweep.lock"]
    assert not (root / (orphan.file or "")).exists()
