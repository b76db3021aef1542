"""Tests of whole ingests: new rows, known bytes, reports, and failures."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from sqlalchemy import select, update

from organs.ingest.service import IngestReport
from organs.registry.catalog.tables import (
    Fingerprint,
    Ingest,
    MeasurementRow,
    ModelRow,
    Placement,
)
from organs.registry.digest import digest_of
from organs.registry.errors import BadName, NameTaken
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.upkeep import Share, verify
from tests.gguf_files import file_bytes
from tests.ingest.one_source import ingest_path
from tests.small_models import assert_round_trip, ingest_file, row_counts, small_model, weight_tensor

F32 = dtype_by_name("F32")


def write(folder: Path, data: bytes, name: str = "a.gguf") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def measurements(registry: LocalRegistry, method: str = "z1") -> dict[str, MeasurementRow]:
    """Return the measures by the name of the tensor."""
    with registry.catalog.reading() as session:
        rows = session.execute(
            select(Placement.name, MeasurementRow)
            .join(MeasurementRow, MeasurementRow.organ_id == Placement.organ_id)
            .where(MeasurementRow.method == method)
        ).all()
    return {row[0]: row[1] for row in rows}


def sound(registry: LocalRegistry) -> bool:
    report = verify(registry.catalog, registry.blobs, read_data=Share(1, 1))
    return not report.faults and not report.orphans


def stored_files(registry: LocalRegistry) -> list[Path]:
    root = registry.settings.blobs
    return sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else []


def test_a_new_name_that_stock_clients_refuse_is_not_registered_and_an_old_one_stays_valid(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    path = write(tmp_path, small_model(), "My model – chat.gguf")
    with pytest.raises(BadName, match="clients of the Hugging Face hub refuse it"):
        ingest_path(registry, path, "local/a--b")
    assert ingest_path(registry, path).model == "local/My-model-chat@1"
    with registry.catalog.writing() as session:  # a name of an earlier version of this program
        session.execute(update(ModelRow).values(name="a--b"))
    assert ingest_file(registry, write(tmp_path, small_model(seed=2)), "local/a--b").model == "local/a--b@2"


# New rows and blobs.


def test_the_same_bytes_again_add_only_the_record_of_the_ingest(registry: LocalRegistry, tmp_path: Path) -> None:
    first = ingest_file(registry, write(tmp_path, small_model()))
    before, files = row_counts(registry), stored_files(registry)
    again = ingest_file(registry, write(tmp_path, small_model(), "copy/a.gguf"))
    after = row_counts(registry)
    known_files = after["known_files"]  # a file that was written just before is not recorded
    assert after == before | {"ingests": before["ingests"] + 1, "known_files": known_files}
    assert known_files <= 2
    assert stored_files(registry) == files
    assert (first.created, again.created) == (True, False)
    assert again.model == first.model
    assert (again.new_blobs, again.new_bytes, again.stored_bytes) == (0, 0, 0)
    assert again.known_bytes == first.new_bytes


def test_equal_tensors_within_a_file_are_stored_and_measured_once(registry: LocalRegistry, tmp_path: Path) -> None:
    spec, data = weight_tensor("blk.0.attn_q.weight", (64, 64))
    twins = [(TensorSpec(f"blk.{block}.attn_q.weight", spec.shape, spec.dtype), data) for block in range(5)]
    report = ingest_file(registry, write(tmp_path, file_bytes([], twins)))
    counts = row_counts(registry)
    assert (report.organs, report.new_blobs) == (5, 2)
    assert (counts["placements"], counts["organs"], counts["fingerprints"]) == (5, 1, 1)
    assert report.known_bytes == 4 * len(data)


# Measures.


def test_a_tensor_without_measures_is_stored_with_the_reason_and_left_out_of_the_mean(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    opaque = TensorSpec("blk.0.attn_q.weight", (1024,), dtype_by_name("Q8_K"))
    tensors = [
        (opaque, np.random.default_rng(0).bytes(opaque.size_bytes)),
        weight_tensor("blk.0.attn_k.weight", (64, 64)),
    ]
    assert_round_trip(registry, write(tmp_path, file_bytes([], tensors)), tmp_path / "back")
    measured = measurements(registry)
    unread = measured[opaque.name]
    assert (unread.theta, unread.reason) == (None, "no kernel reads the values of tensor type Q8_K")
    with registry.catalog.reading() as session:
        placement = session.scalars(select(Placement).where(Placement.name == opaque.name)).one()
        model = session.scalars(select(ModelRow)).one()
    assert (placement.theta, placement.signal) == (None, None)
    assert model.mean_theta == measured["blk.0.attn_k.weight"].theta


def test_measures_are_copied_to_every_placement_and_averaged_in_the_model(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    ingest_file(registry, write(tmp_path, small_model()))
    z_measures, spectra = measurements(registry), measurements(registry, "mp1")
    with registry.catalog.reading() as session:
        placements = session.scalars(select(Placement)).all()
        model = session.scalars(select(ModelRow)).one()
        prints = session.scalars(
            select(Placement.name).join(Fingerprint, Fingerprint.organ_id == Placement.organ_id)
        ).all()
    assert len(placements) == len(z_measures) == 10
    for placement in placements:
        own, spectrum = z_measures[placement.name], spectra.get(placement.name)
        assert (placement.theta, placement.magnitude, placement.signal) == (own.theta, own.magnitude, own.signal)
        of_spectrum = (spectrum.spectral_signal, spectrum.stable_rank) if spectrum else (None, None)
        assert (placement.spectral_signal, placement.stable_rank) == of_spectrum
    thetas = [placement.theta for placement in placements if placement.theta is not None]
    assert model.mean_theta == pytest.approx(sum(thetas) / len(thetas))
    assert spectra.keys() == set(prints) == {name for name in z_measures if "norm" not in name}, "vectors of 64 values"


# Reports.


def test_the_report_adds_up_and_is_recorded(registry: LocalRegistry, tmp_path: Path) -> None:
    data = small_model()
    path = write(tmp_path, data)
    seen: list[int] = []
    report = ingest_path(registry, path, progress=seen.append)
    assert (report.model, report.digest, report.created) == ("local/a@1", digest_of(data), True)
    assert (report.organs, report.new_blobs) == (10, 11)
    assert report.size_bytes == len(data)
    assert len(data) - 31 * 11 < report.new_bytes <= len(data)
    assert 0 < report.stored_bytes < report.new_bytes
    assert report.known_bytes == 0
    assert report.seconds > 0
    assert report.flags == ()
    assert sum(seen) == report.new_bytes
    for stage in ("read", "hash file", "encode", "measure"):
        assert report.stages[stage]["seconds"] >= 0
    assert report.stages["read"]["bytes"] == report.stages["hash file"]["bytes"] == len(data)
    assert report.stages["encode"]["bytes"] == report.new_bytes
    assert row_counts(registry)["blob_leases"] == 0
    with registry.catalog.reading() as session:
        row = session.scalars(select(Ingest)).one()
    assert (row.state, row.source, row.model_id) == ("finished", str(path), 1)
    assert row.finished_at is not None
    assert row.finished_at >= row.started_at
    assert msgspec.json.decode(row.report or "", type=IngestReport) == report


# Failures and interruptions.


# Taken names.


@pytest.mark.parametrize(
    "other", [small_model(blocks=3), small_model(seed=1)], ids=["of another size", "of the same size"]
)
def test_another_file_under_a_taken_name_is_a_question_that_is_asked_once(
    other: bytes, registry: LocalRegistry, tmp_path: Path
) -> None:
    ingest_file(registry, write(tmp_path, small_model()))
    before = row_counts(registry)
    path = write(tmp_path, other)
    with pytest.raises(NameTaken, match="the name local/a is taken by local/a@1") as refused:
        ingest_path(registry, path)
    assert refused.value.version == 2
    if len(other) != len(small_model()):
        assert row_counts(registry) == before, "it is refused before anything is stored"
    questions: list[NameTaken] = []
    report = ingest_path(registry, path, new_version=lambda taken: not questions.append(taken))
    assert (report.model, len(questions)) == ("local/a@2", 1)
    assert not ingest_path(registry, path).created, "the same file again is no question"
    assert ingest_path(registry, write(tmp_path, other, "b.gguf")).model == "local/a@2", "its bytes have a name"


def test_a_name_registered_while_the_file_is_read_is_refused(registry: LocalRegistry, tmp_path: Path) -> None:
    other = write(tmp_path, small_model(blocks=3), "other/a.gguf")
    seen: list[int] = []

    def take_the_name(size_bytes: int) -> None:
        if not seen:
            seen.append(size_bytes)
            ingest_file(registry, other)

    with pytest.raises(NameTaken):
        ingest_path(registry, write(tmp_path, small_model()), progress=take_the_name)
    assert row_counts(registry)["models"] == 1
