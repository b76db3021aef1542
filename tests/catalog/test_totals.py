"""Tests of the running totals: they equal a full count after ingests, losses, repairs and sweeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from organs.registry.catalog.queries.blobs import blobs_by_digest
from organs.registry.catalog.queries.reports import (
    running_totals,
)
from organs.registry.catalog.register.counts import add_to_totals
from organs.registry.catalog.register.organs import (
    begin_ingest,
    lease_blobs,
    mark_corrupt,
    record_blobs,
)
from organs.registry.entities.server import RegistryTotals
from organs.registry.local import LocalRegistry
from organs.registry.upkeep import verify
from tests.catalog.counts import assert_counts_are_right
from tests.faults.failing import (
    LARGE,
    SMALL,
    add_unneeded_blobs,
    blob_rows,
    ingest_path,
    let_time_pass,
    random_bytes,
    run_sweep,
    write_model,
)
from tests.gguf_files import file_bytes
from tests.related_models import ingest_bytes
from tests.small_models import ingest_file, small_model, weight_tensor


def exact(registry: LocalRegistry) -> RegistryTotals:
    """Return the totals after asserting that all counts equal a full count."""
    with registry.catalog.reading() as session:
        assert_counts_are_right(session)
        return running_totals(session)


def test_models_that_share_organs_count_all_placements_and_each_organ_once(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    assert exact(registry) == RegistryTotals(0, 0, 0, 0, 0, 0)
    spec, data = weight_tensor("blk.0.ffn_up.weight", (64, 64))
    twin, _ = weight_tensor("blk.1.ffn_up.weight", (64, 64))
    for name, content, placements, organs in (
        ("a", small_model(), 10, 10),
        ("longer", small_model("Longer", blocks=3), 14, 4),
        ("other", small_model("Other", seed=1), 10, 10),
        ("empty", file_bytes([], []), 0, 0),
        ("twins", file_bytes([], [(spec, data), (twin, data)]), 2, 1),
        ("a", small_model(), 0, 0),
        ("other/name", small_model(), 10, 0),
    ):
        before = exact(registry)
        path = tmp_path / f"{name.partition('/')[0]}.gguf"
        path.write_bytes(content)
        assert ingest_file(registry, path, name).created == (placements > 0 or name == "empty")
        after = exact(registry)
        assert (after.placements, after.organs) == (before.placements + placements, before.organs + organs)
        assert (after == before) == (placements == 0 and name == "a")
    assert (after.models, after.blobs - after.organs) == (6, 5), "a header for each file, but that of the known one"
    assert after.size_bytes == before.size_bytes
    assert 0 < after.stored_bytes < after.size_bytes


def test_blobs_of_a_failed_ingest_count_until_they_are_doomed(registry: LocalRegistry) -> None:
    add_unneeded_blobs(registry, registry.blobs.put(random_bytes(LARGE)), registry.blobs.put(random_bytes(SMALL)))
    assert exact(registry).blobs == 2
    assert exact(registry).size_bytes == LARGE + SMALL
    let_time_pass(registry)
    assert run_sweep(registry).doomed == 2
    assert exact(registry) == RegistryTotals(0, 0, 0, 0, 0, 0)
    assert run_sweep(registry).removed == 2
    assert exact(registry) == RegistryTotals(0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("by", ["a lease", "its bytes"])
def test_a_doomed_blob_that_is_spared_counts_again(by: str, registry: LocalRegistry) -> None:
    add_unneeded_blobs(registry, registry.blobs.put(random_bytes(LARGE)))
    let_time_pass(registry)
    run_sweep(registry)
    assert exact(registry).blobs == 0
    (row,) = blob_rows(registry)
    again = registry.blobs.put(random_bytes(LARGE))
    with registry.catalog.writing() as session:
        ingest_id = begin_ingest(session, "a test")
        if by == "a lease":
            lease_blobs(session, ingest_id, [row.id, row.id])
        else:
            record_blobs(session, ingest_id, [again])
    assert exact(registry).blobs == 1


def test_a_blob_that_is_set_aside_counts_and_repairing_it_counts_its_new_bytes(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "little.gguf")
    ingest_path(registry, path)
    before = exact(registry)
    with registry.catalog.writing() as session:
        for row in blob_rows(registry):
            assert mark_corrupt(session, row)
    assert exact(registry) == before
    ingest_path(registry, path)
    assert {row.state for row in blob_rows(registry)} == {"present"}
    assert exact(registry) == before


def test_a_blob_that_is_stored_again_with_another_size_counts_with_that_size(registry: LocalRegistry) -> None:
    blob = registry.blobs.put(random_bytes(LARGE))
    add_unneeded_blobs(registry, blob)
    with registry.catalog.writing() as session:
        assert mark_corrupt(session, blob_rows(registry)[0])
    add_unneeded_blobs(registry, replace(blob, stored_bytes=blob.stored_bytes + 7))
    assert exact(registry) == RegistryTotals(0, 0, 0, 1, LARGE, blob.stored_bytes + 7)


def test_a_doomed_blob_that_is_found_corrupt_counts_until_it_is_doomed_again(
    registry: LocalRegistry,
) -> None:
    add_unneeded_blobs(registry, registry.blobs.put(random_bytes(LARGE)))
    let_time_pass(registry)
    run_sweep(registry)
    with registry.catalog.writing() as session:
        assert mark_corrupt(session, blob_rows(registry)[0])
    assert exact(registry).blobs == 1
    let_time_pass(registry)
    run_sweep(registry)
    assert exact(registry).blobs == 0


def test_the_same_blob_twice_in_one_batch_counts_once(registry: LocalRegistry) -> None:
    twice = [registry.blobs.put(random_bytes(LARGE)), registry.blobs.put(random_bytes(LARGE))]
    with registry.catalog.writing() as session:
        record_blobs(session, begin_ingest(session, "a test"), twice)
        assert len(blobs_by_digest(session, [twice[0].digest])) == 1
    assert exact(registry).blobs == 1


def test_verify_reports_wrong_totals_and_repair_corrects_them(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_bytes(registry, tmp_path, "a", small_model())
    right = exact(registry)
    assert verify(registry.catalog, registry.blobs, repair=True).miscounted == {}
    with registry.catalog.writing() as session:
        add_to_totals(session, {"models": 3, "size_bytes": -1})
    wrong = {"models": (4, 1), "size_bytes": (right.size_bytes - 1, right.size_bytes)}
    assert verify(registry.catalog, registry.blobs).miscounted == wrong
    assert verify(registry.catalog, registry.blobs, repair=True).miscounted == wrong
    assert exact(registry) == right
    assert verify(registry.catalog, registry.blobs).miscounted == {}
