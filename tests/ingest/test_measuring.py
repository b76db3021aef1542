"""Tests of measuring without a registry: the result is that of an ingest, and a bad file does not stop the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select

from organs.ingest.measuring import measure_all, measure_model
from organs.ingest.sources import ModelSource, find_sources, source_size_bytes
from organs.registry.anatomy import OrganType, Place
from organs.registry.catalog.tables import MeasurementRow, Placement
from organs.registry.errors import BadGguf, BadSplit
from organs.registry.gguf import TensorSpec, dtype_by_name, padded
from organs.registry.local import LocalRegistry
from tests.gguf_files import file_bytes, raw_header, raw_tensor
from tests.small_models import ingest_file, small_model, weight_tensor

ZOO = Path(__file__).parents[2] / "examples" / "zoo"


def source_of(path: Path) -> ModelSource:
    (source,) = find_sources([str(path)])
    return source


def written(folder: Path, data: bytes, name: str = "a.gguf") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


@pytest.mark.parametrize("name", ["Zoo-C-1M-v1.0-Q8_0.gguf", "Zoo-A-2M-Code-LoRA-v1.0-F32.gguf"])
def test_the_measures_equal_those_that_an_ingest_records(name: str, registry: LocalRegistry) -> None:
    model = measure_model(source_of(ZOO / name))
    ingest_file(registry, ZOO / name)
    with registry.catalog.reading() as session:
        placements = session.scalars(select(Placement).order_by(Placement.position)).all()
        z1 = {row.organ_id: row for row in session.scalars(select(MeasurementRow).where(MeasurementRow.method == "z1"))}
        assert [tensor.name for tensor in model.tensors] == [placement.name for placement in placements]
        for tensor, placement in zip(model.tensors, placements, strict=True):
            reading = tensor.measurement
            for column in ("theta", "magnitude", "signal", "spectral_signal", "stable_rank"):
                assert getattr(reading, column) == pytest.approx(getattr(placement, column), abs=1e-9)
            for column in ("entropy", "kurtosis", "coherence", "mean", "standard_deviation", "minimum", "maximum"):
                assert getattr(reading, column) == pytest.approx(getattr(z1[placement.organ_id], column), abs=1e-9)
            assert (tensor.place.type, tensor.place.block) == (placement.type, placement.block)
            assert reading.sample_size == z1[placement.organ_id].sample_size


def test_only_selected_tensors_are_measured_and_all_are_counted(tmp_path: Path) -> None:
    def wanted(_name: str, place: Place) -> bool:
        return place.type is OrganType.NORM

    model = measure_model(source_of(written(tmp_path, small_model())), wanted)
    names = [tensor.name for tensor in model.tensors]
    assert names == ["blk.0.attn_norm.weight", "blk.1.attn_norm.weight", "output_norm.weight"]
    assert (model.tensor_count, model.parameters) == (10, 64 * 96 + 2 * (64 + 64 * 64 + 4 * 64 * 64) + 64)


def test_a_bad_file_does_not_stop_the_others(tmp_path: Path) -> None:
    written(tmp_path, small_model(), "1.gguf")
    written(tmp_path, b"GGUFrubbish" * 9, "2.gguf")
    for number in (1, 2):
        written(tmp_path, small_model(seed=1), f"3-0000{number}-of-00002.gguf")
    written(tmp_path, small_model(seed=1), "4.gguf")
    outcomes = list(measure_all(find_sources([str(tmp_path)])))
    assert [type(outcome.error) for outcome in outcomes] == [type(None), BadGguf, BadSplit, type(None)]
    assert [outcome.model is None for outcome in outcomes] == [False, True, True, False]


def test_the_reported_progress_adds_up_to_the_size_of_the_source(tmp_path: Path) -> None:
    source = source_of(written(tmp_path, small_model()))
    reported: list[int] = []
    measure_model(source, None, reported.append)
    assert sum(reported) == source_size_bytes(source)
    assert len(reported) == 11


def test_only_the_sample_of_a_tensor_is_read(tmp_path: Path) -> None:
    spec = TensorSpec("blk.0.ffn_up.weight", (1 << 16, 1 << 16), dtype_by_name("Q8_0"))
    header = raw_header([], [raw_tensor(spec.name.encode(), spec.shape, spec.dtype.id)])
    front = header.ljust(padded(len(header), 32), b"\0")
    path = tmp_path / "large.gguf"
    with path.open("wb") as file:
        file.write(front)
        file.truncate(len(front) + spec.size_bytes)  # 4.6 GB that use no disk space
    model = measure_model(source_of(path))
    (tensor,) = model.tensors
    assert tensor.elements == 1 << 32
    assert tensor.measurement.sample_size == 98_304
    assert (tensor.measurement.constant, tensor.measurement.theta) == (True, 0.0)


def test_a_tensor_without_a_kernel_is_reported_and_the_others_are_measured(tmp_path: Path) -> None:
    opaque = dtype_by_name("Q8_K")
    tensors = [(TensorSpec("a", (256,), opaque), bytes(opaque.block_bytes)), weight_tensor("b", (64, 64))]
    first, second = measure_model(source_of(written(tmp_path, file_bytes([], tensors)))).tensors
    assert (first.measurement.theta, first.measurement.reason) == (
        None,
        "no kernel reads the values of tensor type Q8_K",
    )
    assert second.measurement.theta is not None
