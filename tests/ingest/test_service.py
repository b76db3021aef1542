"""Tests of whole ingests: new rows, known bytes, reports, and failures."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from sqlalchemy import select, update

from organs.ingest.service import IngestReport, ingest_all
from organs.ingest.sources import find_sources
from organs.registry.catalog.tables import (
    Blob,
    Fingerprint,
    Ingest,
    MeasurementRow,
    ModelRow,
    OrganRow,
    Placement,
)
from organs.registry.digest import digest_of
from organs.registry.errors import BadGguf, BadName, NameTaken
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.upkeep import Share, verify
from tests.faults.failing import flip_bit
from tests.gguf_files import file_bytes, text, unsigned
from tests.ingest.one_source import ingest_path
from tests.small_models import assemble_model, assert_round_trip, ingest_file, row_counts, small_model, weight_tensor

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
    first = write(tmp_path, small_model())
    for name in ("local/a--b", "a-.b/c"):
        with pytest.raises(BadName, match="clients of the Hugging Face hub refuse it"):
            ingest_path(registry, first, name)
    second = write(tmp_path, small_model(seed=1), "My model – chat.gguf")
    assert ingest_path(registry, second).model == "local/My-model-chat@1"
    ingest_path(registry, first)
    with registry.catalog.writing() as session:  # a name of an earlier version of this program
        session.execute(update(ModelRow).where(ModelRow.name == "a").values(name="a--b"))
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


def test_the_same_bytes_get_a_second_name_on_request(registry: LocalRegistry, tmp_path: Path) -> None:
    path = write(tmp_path, small_model())
    ingest_file(registry, path)
    before = row_counts(registry)
    report = ingest_file(registry, path, "mine/other")
    after = row_counts(registry)
    assert (report.model, report.created, report.new_blobs) == ("mine/other@1", True, 0)
    assert after["models"] == before["models"] + 1
    assert after["placements"] == 2 * before["placements"]
    for table in ("blobs", "inline_blobs", "organs", "measurements", "fingerprints"):
        assert after[table] == before[table]
    assert not ingest_file(registry, path, "mine/other").created


def test_an_organ_of_two_models_is_stored_once(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_file(registry, write(tmp_path, small_model("A")))
    before = row_counts(registry)
    report = ingest_file(registry, write(tmp_path, small_model("B", blocks=3), "b.gguf"))
    after = row_counts(registry)
    assert report.new_blobs == 4 + 1, "the third block, and what the header says"
    assert after["organs"] == before["organs"] + 4
    assert after["placements"] == before["placements"] + 14
    assert after["measurements"] - before["measurements"] == 4 + 3, "a vector has no spectrum"


def test_equal_tensors_within_a_file_are_stored_and_measured_once(registry: LocalRegistry, tmp_path: Path) -> None:
    spec, data = weight_tensor("blk.0.attn_q.weight", (64, 64))
    twins = [(TensorSpec(f"blk.{block}.attn_q.weight", spec.shape, spec.dtype), data) for block in range(5)]
    report = ingest_file(registry, write(tmp_path, file_bytes([], twins)))
    counts = row_counts(registry)
    assert (report.organs, report.new_blobs) == (5, 2)
    assert (counts["placements"], counts["organs"], counts["fingerprints"]) == (5, 1, 1)
    assert report.known_bytes == 4 * len(data)


def test_the_same_bytes_with_another_shape_or_type_are_another_organ_of_one_blob(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    _, data = weight_tensor("x", (1024,), dtype="F32")
    kinds = [((1024,), "F32"), ((32, 32), "F32"), ((1024,), "I32"), ((1024,), "F32")]
    specs = [
        TensorSpec(f"blk.{block}.attn_q.weight", shape, dtype_by_name(dtype))
        for block, (shape, dtype) in enumerate(kinds)
    ]
    assert_round_trip(registry, write(tmp_path, file_bytes([], [(spec, data) for spec in specs])), tmp_path / "back")
    with registry.catalog.reading() as session:
        organs = session.scalars(select(OrganRow)).all()
    assert sorted((organ.dtype, organ.shape) for organ in organs) == [
        ("F32", "1024"),
        ("F32", "32x32"),
        ("I32", "1024"),
    ]
    assert len({organ.blob_id for organ in organs}) == 1
    measured = measurements(registry)
    assert len(measured) == 4
    assert measured["blk.0.attn_q.weight"].theta != measured["blk.2.attn_q.weight"].theta


# Measures.


def test_a_tensor_without_measures_is_stored_with_the_reason_and_left_out_of_the_mean(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    opaque = TensorSpec("blk.0.attn_q.weight", (1024,), dtype_by_name("Q8_K"))
    nothing = TensorSpec("blk.1.attn_q.weight", (64, 64), F32)
    tensors = [
        (opaque, np.random.default_rng(0).bytes(opaque.size_bytes)),
        (nothing, b"\xff" * nothing.size_bytes),
        weight_tensor("blk.0.attn_k.weight", (64, 64)),
    ]
    assert_round_trip(registry, write(tmp_path, file_bytes([], tensors)), tmp_path / "back")
    measured = measurements(registry)
    unread, no_number = measured[opaque.name], measured[nothing.name]
    assert (unread.theta, unread.reason) == (None, "no kernel reads the values of tensor type Q8_K")
    assert (no_number.theta, no_number.nan_count) == (None, 4096)
    assert no_number.reason
    with registry.catalog.reading() as session:
        placements = session.scalars(select(Placement).where(Placement.name.in_([opaque.name, nothing.name]))).all()
        model = session.scalars(select(ModelRow)).one()
    assert [(placement.theta, placement.signal) for placement in placements] == [(None, None)] * 2
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
        own = z_measures[placement.name]
        assert (placement.theta, placement.magnitude, placement.signal) == (own.theta, own.magnitude, own.signal)
        spectrum = spectra.get(placement.name)
        if spectrum is None:
            assert (placement.spectral_signal, placement.stable_rank) == (None, None)
        else:
            copied = (placement.spectral_signal, placement.stable_rank)
            assert copied == (spectrum.spectral_signal, spectrum.stable_rank)
    thetas = [placement.theta for placement in placements if placement.theta is not None]
    assert model.mean_theta == pytest.approx(sum(thetas) / len(thetas))
    assert spectra.keys() == set(prints) == {name for name in z_measures if "norm" not in name}, "vectors of 64 values"


# Reports.


def test_the_report_adds_up(registry: LocalRegistry, tmp_path: Path) -> None:
    data = small_model()
    seen: list[int] = []
    report = ingest_path(registry, write(tmp_path, data), progress=seen.append)
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


def test_the_record_of_an_ingest_contains_its_report(registry: LocalRegistry, tmp_path: Path) -> None:
    path = write(tmp_path, small_model())
    report = ingest_file(registry, path)
    with registry.catalog.reading() as session:
        row = session.scalars(select(Ingest)).one()
    assert (row.state, row.source, row.model_id) == ("finished", str(path), 1)
    assert row.finished_at is not None
    assert row.finished_at >= row.started_at
    assert msgspec.json.decode(row.report or "", type=IngestReport) == report


@pytest.mark.folder
def test_the_catalog_and_the_store_agree_on_stored_bytes(registry: LocalRegistry, tmp_path: Path) -> None:
    large = [weight_tensor(f"blk.{block}.ffn_up.weight", (256, 512)) for block in range(3)]
    report = ingest_file(
        registry, write(tmp_path, file_bytes([], [*large, weight_tensor("output_norm.weight", (64,))]))
    )
    with registry.catalog.reading() as session:
        blobs = session.scalars(select(Blob)).all()
    assert len(blobs) == report.new_blobs == 5
    assert sum(blob.stored_bytes for blob in blobs) == report.stored_bytes
    assert sum(blob.size_bytes for blob in blobs) == report.new_bytes
    in_files = [blob for blob in blobs if blob.file is not None]
    assert sorted(path.stat().st_size for path in stored_files(registry)) == sorted(
        blob.stored_bytes for blob in in_files
    )
    assert len(in_files) == 3
    assert sound(registry)


def test_each_source_has_one_outcome_and_a_bad_one_does_not_stop_the_others(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    write(tmp_path, small_model("A"), "1.gguf")
    write(tmp_path, b"GGUFrubbish" * 9, "2.gguf")
    write(tmp_path, b"", "3.gguf")
    write(tmp_path, small_model("B", seed=1), "4.gguf")
    sources = find_sources([str(tmp_path / "*.gguf")])
    outcomes = list(ingest_all(registry, sources))
    assert [outcome.source for outcome in outcomes] == sources
    assert [outcome.report and outcome.report.model for outcome in outcomes] == ["local/1@1", None, None, "local/4@1"]
    assert [type(outcome.error) for outcome in outcomes] == [type(None), BadGguf, BadGguf, type(None)]
    counts = row_counts(registry)
    assert (counts["models"], counts["ingests"], counts["blob_leases"]) == (2, 2, 0)


# Failures and interruptions.


class Interrupt:
    """A progress callback that acts like Ctrl-C after so many calls."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, _size: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def big_model(count: int = 24) -> bytes:
    entries = [text("general.architecture", "llama"), unsigned("llama.block_count", count)]
    return file_bytes(entries, [weight_tensor(f"blk.{block}.ffn_up.weight", (256, 160)) for block in range(count)])


@pytest.mark.folder
@pytest.mark.parametrize("after", [1, 6, 18])
def test_an_interrupted_ingest_registers_nothing_and_keeps_its_blobs_for_the_next_run(
    after: int, registry: LocalRegistry, tmp_path: Path
) -> None:
    path = write(tmp_path, big_model())
    with pytest.raises(KeyboardInterrupt):
        ingest_path(registry, path, progress=Interrupt(after))
    counts = row_counts(registry)
    assert counts["models"] == counts["organs"] == counts["placements"] == counts["blob_leases"] == 0
    assert counts["blobs"] == len(stored_files(registry)), "no half-written file, no file without a row"
    assert not list((registry.settings.blobs / "tmp").iterdir())
    assert sound(registry)
    with registry.catalog.reading() as session:
        assert session.scalars(select(Ingest.state)).one() == "interrupted"
    report = ingest_path(registry, path)
    assert report.created
    assert report.new_blobs == 25 - counts["blobs"], "what was stored is not stored again"
    assert (report.known_bytes > 0) == (counts["blobs"] > 0)
    (back,) = assemble_model(registry, "a", tmp_path / "back")
    assert back.read_bytes() == path.read_bytes()


def test_a_failed_ingest_leaves_no_file_and_no_blob(registry: LocalRegistry, tmp_path: Path) -> None:
    def fail(_size: int) -> None:
        raise MemoryError("no more")

    with pytest.raises(MemoryError):
        ingest_path(registry, write(tmp_path, big_model()), progress=fail)
    counts = row_counts(registry)
    assert counts.pop("ingests") == 1
    assert set(counts.values()) == {0}
    assert stored_files(registry) == []
    with registry.catalog.reading() as session:
        row = session.scalars(select(Ingest)).one()
    assert (row.state, json.loads(row.report or "")) == ("failed", {"error": "no more"})
    assert row.finished_at is not None


def corrupt_file(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(flip_bit(path.read_bytes(), 4 * path.stat().st_size))


def truncate_file(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, path.stat().st_size - 10)


@pytest.mark.folder
@pytest.mark.parametrize("damage", [corrupt_file, truncate_file, Path.unlink])
def test_an_ingest_of_the_same_bytes_repairs_a_damaged_blob(
    damage: Callable[[Path], None], registry: LocalRegistry, tmp_path: Path
) -> None:
    path = write(tmp_path, big_model(3))
    ingest_file(registry, path)
    damage(stored_files(registry)[1])
    assert not sound(registry)
    report = assert_round_trip(registry, path, tmp_path / "back")
    assert (report.created, report.new_blobs) == (False, 1)
    assert sound(registry)


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
