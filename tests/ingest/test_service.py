"""Tests of whole ingests: new rows, known bytes, reports, and failures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest
from sqlalchemy import select, update

from organs.ingest.service import IngestReport, always, ingest_all, ingest_model
from organs.ingest.sources import find_sources, source_size_bytes
from organs.registry.catalog.queries.blobs import blobs_by_digest
from organs.registry.catalog.tables import (
    Blob,
    BlobLease,
    Fingerprint,
    Ingest,
    MeasurementRow,
    ModelRow,
    OrganRow,
    Placement,
)
from organs.registry.digest import digest_of
from organs.registry.errors import BadGguf, BadName, NameTaken
from organs.registry.gguf import TensorSpec, ValueType, dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.similarity import is_fine
from organs.registry.upkeep import Share, verify
from tests.gguf_files import array, file_bytes, tensor, text, unsigned, vocabulary
from tests.small_models import assemble_model, ingest_file, row_counts, small_model, weight_tensor

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
    (first,) = find_sources([str(write(tmp_path, small_model(), "x.gguf"))])
    (second,) = find_sources([str(write(tmp_path, small_model(seed=1), "My model – chat.gguf"))])
    for name in (ModelName("local", "a--b"), ModelName("a-.b", "c")):
        with pytest.raises(BadName, match="clients of the Hugging Face hub refuse it"):
            ingest_model(registry, first, name)
    assert ingest_model(registry, second).model == "local/My-model-chat@1"
    ingest_model(registry, first, ModelName("local", "a"))
    with registry.catalog.writing() as session:  # a name of an earlier version of this program
        session.execute(update(ModelRow).where(ModelRow.name == "a").values(name="a--b"))
    (third,) = find_sources([str(write(tmp_path, small_model(seed=2), "x.gguf"))])
    assert ingest_model(registry, third, ModelName("local", "a--b"), new_version=always).model == "local/a--b@2"


# New rows and blobs.


def test_the_same_file_again_adds_only_the_record_of_the_ingest(registry: LocalRegistry, tmp_path: Path) -> None:
    path = write(tmp_path, small_model())
    first = ingest_file(registry, path)
    before, files = row_counts(registry), stored_files(registry)
    again = ingest_file(registry, path)
    after = row_counts(registry)
    assert after.pop("ingests") == before.pop("ingests") + 1 == 2
    assert after.pop("known_files") <= 1, "not recorded if the file was written just before"
    before.pop("known_files")
    assert after == before
    assert stored_files(registry) == files
    assert (first.created, again.created) == (True, False)
    assert again.model == first.model
    assert (again.new_blobs, again.new_bytes, again.stored_bytes) == (0, 0, 0)
    assert again.known_bytes == first.new_bytes


def test_the_same_bytes_in_another_file_are_the_registered_model(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_file(registry, write(tmp_path, small_model()))
    report = ingest_file(registry, write(tmp_path, small_model(), "copy of a.gguf"))
    assert (report.model, report.created) == ("local/a@1", False)
    assert row_counts(registry)["models"] == 1


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


def test_other_bytes_under_the_same_name_are_the_next_version(registry: LocalRegistry, tmp_path: Path) -> None:
    reports = [ingest_file(registry, write(tmp_path, small_model(seed=seed))) for seed in range(3)]
    assert [report.model for report in reports] == ["local/a@1", "local/a@2", "local/a@3"]
    for seed in range(3):
        (back,) = assemble_model(registry, f"a@{seed + 1}", tmp_path / f"back {seed}")
        assert back.read_bytes() == small_model(seed=seed)


def test_an_organ_of_two_models_is_stored_once(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_file(registry, write(tmp_path, small_model("A")))
    before = row_counts(registry)
    report = ingest_file(registry, write(tmp_path, small_model("B", blocks=3), "b.gguf"))
    after = row_counts(registry)
    assert report.new_blobs == 4 + 1, "the third block, and what the header says"
    assert after["organs"] == before["organs"] + 4
    assert after["placements"] == before["placements"] + 14
    assert after["measurements"] - before["measurements"] == 4 + 3, "a vector has no spectrum"


def test_a_vocabulary_of_two_models_is_stored_once(registry: LocalRegistry, tmp_path: Path) -> None:
    tokens = array("tokenizer.ggml.tokens", ValueType.STRING, vocabulary(3_000))
    ingest_file(registry, write(tmp_path, small_model("A", more=[tokens])))
    report = ingest_file(registry, write(tmp_path, small_model("B", seed=1, more=[tokens]), "b.gguf"))
    assert report.known_bytes > 20_000
    assert report.known_bytes < 60_000


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
    tensors = [
        (TensorSpec("blk.0.attn_q.weight", (1024,), F32), data),
        (TensorSpec("blk.1.attn_q.weight", (32, 32), F32), data),
        (TensorSpec("blk.2.attn_q.weight", (1024,), dtype_by_name("I32")), data),
        (TensorSpec("blk.3.attn_q.weight", (1024,), F32), data),
    ]
    path = write(tmp_path, file_bytes([], tensors))
    ingest_file(registry, path)
    with registry.catalog.reading() as session:
        organs = session.execute(select(OrganRow.dtype, OrganRow.shape).order_by(OrganRow.id)).all()
        blob_ids = set(session.scalars(select(OrganRow.blob_id)))
    assert sorted(map(tuple, organs)) == [("F32", "1024"), ("F32", "32x32"), ("I32", "1024")]
    assert len(blob_ids) == 1
    measured = measurements(registry)
    assert len(measured) == 4
    assert measured["blk.0.attn_q.weight"].theta != measured["blk.2.attn_q.weight"].theta
    (back,) = assemble_model(registry, "a", tmp_path / "back")
    assert back.read_bytes() == path.read_bytes()


# Measures.


@pytest.mark.parametrize("name", ["Q8_K", "Q8_1"])
def test_a_tensor_without_a_kernel_is_stored_and_the_reason_for_no_measures_is_recorded(
    name: str, registry: LocalRegistry, tmp_path: Path
) -> None:
    dtype = dtype_by_name(name)
    data = np.random.default_rng(0).bytes(4 * dtype.block_bytes)
    spec = TensorSpec("blk.0.attn_q.weight", (4 * dtype.block_elements,), dtype)
    path = write(tmp_path, file_bytes([], [(spec, data), weight_tensor("blk.0.attn_k.weight", (64, 64))]))
    ingest_file(registry, path)
    measured = measurements(registry)
    assert measured["blk.0.attn_q.weight"].theta is None
    assert measured["blk.0.attn_q.weight"].reason == f"no kernel reads the values of tensor type {name}"
    assert measured["blk.0.attn_k.weight"].theta is not None
    with registry.catalog.reading() as session:
        (blob,) = blobs_by_digest(session, [digest_of(data)]).values()
        placement = session.scalars(select(Placement).where(Placement.name == "blk.0.attn_q.weight")).one()
        model = session.scalars(select(ModelRow)).one()
    assert blob.codec in {"opaque", "raw"}
    assert (placement.theta, placement.signal) == (None, None)
    assert model.mean_theta == measured["blk.0.attn_k.weight"].theta
    (back,) = assemble_model(registry, "a", tmp_path / "back")
    assert back.read_bytes() == path.read_bytes()


def test_nonfinite_weights_are_counted_and_stored_unchanged(registry: LocalRegistry, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    values[:3], values[3], values[4:6] = np.nan, np.inf, -np.inf
    spec = TensorSpec("blk.0.attn_q.weight", (64, 64), F32)
    nothing = TensorSpec("blk.1.attn_q.weight", (64, 64), F32)
    path = write(tmp_path, file_bytes([], [(spec, values.tobytes()), (nothing, b"\xff" * nothing.size_bytes)]))
    ingest_file(registry, path)
    measured = measurements(registry)
    odd, none = measured["blk.0.attn_q.weight"], measured["blk.1.attn_q.weight"]
    assert (odd.nan_count, odd.infinite_count) == (3, 3)
    assert odd.theta is not None
    assert 0 <= odd.theta <= 90
    assert (none.nan_count, none.theta) == (4096, None)
    assert none.reason
    for measurement in measured.values():
        for column in ("theta", "signal", "mean", "standard_deviation", "minimum", "maximum", "kurtosis"):
            value = getattr(measurement, column)
            assert value is None or math.isfinite(value)
    (back,) = assemble_model(registry, "a", tmp_path / "back")
    assert back.read_bytes() == path.read_bytes()


def test_measures_are_copied_to_every_placement_and_averaged_in_the_model(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    ingest_file(registry, write(tmp_path, small_model()))
    z_measures, spectra = measurements(registry), measurements(registry, "mp1")
    with registry.catalog.reading() as session:
        placements = session.scalars(select(Placement)).all()
        model = session.scalars(select(ModelRow)).one()
    assert len(placements) == len(z_measures) == 10
    for placement in placements:
        own = z_measures[placement.name]
        assert (placement.theta, placement.magnitude, placement.signal) == (own.theta, own.magnitude, own.signal)
        spectrum = spectra.get(placement.name)
        assert placement.spectral_signal == (None if spectrum is None else spectrum.spectral_signal)
    thetas = [placement.theta for placement in placements if placement.theta is not None]
    assert model.mean_theta == pytest.approx(sum(thetas) / len(thetas))
    assert spectra.keys() == {name for name in z_measures if "norm" not in name}


def test_an_organ_of_256_values_or_more_has_a_fingerprint(registry: LocalRegistry, tmp_path: Path) -> None:
    sizes = (255, 256, 4096)
    ingest_file(registry, write(tmp_path, file_bytes([], [weight_tensor(f"blk.{size}.a", (size,)) for size in sizes])))
    with registry.catalog.reading() as session:
        prints = session.execute(
            select(Placement.name, Fingerprint.values).join(Fingerprint, Fingerprint.organ_id == Placement.organ_id)
        ).all()
    assert sorted(name for name, _ in prints) == ["blk.256.a", "blk.4096.a"]
    assert all(is_fine(values) for _, values in prints)


# Reports.


def test_the_report_adds_up(registry: LocalRegistry, tmp_path: Path) -> None:
    data = small_model()
    seen: list[int] = []
    (source,) = find_sources([str(write(tmp_path, data))])
    report = ingest_model(registry, source, None, seen.append)
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


def test_the_total_size_of_sources_leaves_out_unreadable_files(tmp_path: Path) -> None:
    write(tmp_path, b"12345", "a.gguf")
    sources = find_sources([str(tmp_path)])
    (tmp_path / "b.gguf").symlink_to(tmp_path / "nowhere")
    assert sum(map(source_size_bytes, [*sources, *find_sources([str(tmp_path / "b.gguf")])])) == 5


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
    (source,) = find_sources([str(path)])
    with pytest.raises(KeyboardInterrupt):
        ingest_model(registry, source, None, Interrupt(after))
    counts = row_counts(registry)
    assert counts["models"] == counts["organs"] == counts["placements"] == counts["blob_leases"] == 0
    assert counts["blobs"] == len(stored_files(registry)), "no half-written file, no file without a row"
    assert not list((registry.settings.blobs / "tmp").iterdir())
    assert sound(registry)
    with registry.catalog.reading() as session:
        assert session.scalars(select(Ingest.state)).one() == "interrupted"
    report = ingest_model(registry, source)
    assert report.created
    assert report.new_blobs == 25 - counts["blobs"], "what was stored is not stored again"
    assert (report.known_bytes > 0) == (counts["blobs"] > 0)
    (back,) = assemble_model(registry, "a", tmp_path / "back")
    assert back.read_bytes() == path.read_bytes()


def test_an_ingest_interrupted_late_keeps_most_of_its_blobs(registry: LocalRegistry, tmp_path: Path) -> None:
    (source,) = find_sources([str(write(tmp_path, big_model(100)))])
    with pytest.raises(KeyboardInterrupt):
        ingest_model(registry, source, None, Interrupt(95))
    assert row_counts(registry)["blobs"] >= 50, "all but those that were on their way, of which there are few"


def test_a_failed_ingest_leaves_no_file_and_no_blob(registry: LocalRegistry, tmp_path: Path) -> None:
    def fail(_size: int) -> None:
        raise MemoryError("no more")

    (source,) = find_sources([str(write(tmp_path, big_model()))])
    with pytest.raises(MemoryError):
        ingest_model(registry, source, None, fail)
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
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def truncate_file(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.folder
@pytest.mark.parametrize("damage", [corrupt_file, truncate_file, Path.unlink])
def test_an_ingest_of_the_same_bytes_repairs_a_damaged_blob(
    damage: Callable[[Path], None], registry: LocalRegistry, tmp_path: Path
) -> None:
    path = write(tmp_path, big_model(3))
    ingest_file(registry, path)
    damage(stored_files(registry)[1])
    assert not sound(registry)
    report = ingest_file(registry, path)
    assert (report.created, report.new_blobs) == (False, 1)
    assert sound(registry)
    (back,) = assemble_model(registry, "a", tmp_path / "back")
    assert back.read_bytes() == path.read_bytes()


def test_a_finished_ingest_has_no_leases(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_file(registry, write(tmp_path, small_model()))
    with registry.catalog.reading() as session:
        assert session.scalars(select(BlobLease)).all() == []


# Unusual sizes.


def test_a_file_with_only_a_header_is_an_empty_vocabulary(registry: LocalRegistry, tmp_path: Path) -> None:
    path = write(tmp_path, file_bytes())
    report = ingest_file(registry, path)
    assert (report.organs, report.new_blobs) == (0, 1)
    (back,) = assemble_model(registry, "a", tmp_path / "back")
    assert back.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("elements", [1, 2, 63, 64, 65])
def test_a_tensor_of_a_few_values_is_stored(elements: int, registry: LocalRegistry, tmp_path: Path) -> None:
    path = write(tmp_path, file_bytes([], [weight_tensor("blk.0.a", (elements,))]))
    ingest_file(registry, path)
    assert (measurements(registry)["blk.0.a"].theta is None) == (elements < 64)
    (back,) = assemble_model(registry, "a", tmp_path / "back")
    assert back.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_tensors_around_the_size_of_a_chunk_are_stored(extra: int, registry: LocalRegistry, tmp_path: Path) -> None:
    elements = (4 << 20) + extra
    values = np.random.default_rng(0).integers(-20, 20, elements, dtype=np.int8).tobytes()
    tensors = [(TensorSpec("blk.0.a", (elements,), dtype_by_name("I8")), values), tensor("blk.0.b", (16,))]
    path = write(tmp_path, file_bytes([], tensors))
    ingest_file(registry, path)
    (back,) = assemble_model(registry, "a", tmp_path / "back")
    assert back.read_bytes() == path.read_bytes()


def test_a_file_of_the_reference_writer_is_accepted(registry: LocalRegistry, tmp_path: Path) -> None:
    path = tmp_path / "reference.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("By the reference")
    values: np.ndarray[Any, Any] = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
    writer.add_tensor("blk.0.attn_q.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    report = ingest_file(registry, path)
    assert (report.organs, report.flags) == (1, ())
    with registry.catalog.reading() as session:
        assert set(blobs_by_digest(session, [digest_of(values.tobytes())])) == {digest_of(values.tobytes())}
    (back,) = assemble_model(registry, "reference", tmp_path / "back")
    assert back.read_bytes() == path.read_bytes()


def test_another_file_under_a_taken_name_is_refused_before_anything_is_stored(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    ingest_file(registry, write(tmp_path, small_model()))
    before = row_counts(registry)
    (source,) = find_sources([str(write(tmp_path, small_model(blocks=3)))])
    with pytest.raises(NameTaken, match="the name local/a is taken by local/a@1") as refused:
        ingest_model(registry, source)
    assert refused.value.version == 2
    assert row_counts(registry) == before


def test_another_file_of_the_same_size_is_distinguished_by_its_digest(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_file(registry, write(tmp_path, small_model()))
    (source,) = find_sources([str(write(tmp_path, small_model(seed=1)))])
    with pytest.raises(NameTaken):
        ingest_model(registry, source)
    assert row_counts(registry)["models"] == 1
    questions: list[NameTaken] = []
    report = ingest_model(registry, source, new_version=lambda taken: not questions.append(taken))
    assert (report.model, len(questions)) == ("local/a@2", 1)
    assert not ingest_model(registry, source).created, "the same file again is no question"


def test_the_question_about_a_new_version_is_asked_once(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_file(registry, write(tmp_path, small_model()))
    (source,) = find_sources([str(write(tmp_path, small_model(blocks=3)))])
    questions: list[NameTaken] = []
    assert ingest_model(registry, source, new_version=lambda taken: not questions.append(taken)).model == "local/a@2"
    assert len(questions) == 1


def test_a_file_registered_under_another_name_gets_no_new_name(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_file(registry, write(tmp_path, small_model()))
    ingest_file(registry, write(tmp_path, small_model(blocks=3), "b.gguf"))
    (source,) = find_sources([str(write(tmp_path, small_model(blocks=3)))])
    report = ingest_model(registry, source)
    assert (report.model, report.created) == ("local/b@1", False)


def test_a_name_registered_while_the_file_is_read_is_refused(registry: LocalRegistry, tmp_path: Path) -> None:
    (source,) = find_sources([str(write(tmp_path, small_model()))])
    other = tmp_path / "other"
    other.mkdir()
    seen: list[int] = []

    def take_the_name(size_bytes: int) -> None:
        if not seen:
            seen.append(size_bytes)
            ingest_file(registry, write(other, small_model(blocks=3)))

    with pytest.raises(NameTaken):
        ingest_model(registry, source, progress=take_the_name)
    assert row_counts(registry)["models"] == 1
