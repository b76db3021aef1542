"""Tests of measuring one organ from its bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from organs.registry.gguf.quants import quantize
from organs.registry.gguf.types import DTYPES, DType, dtype_by_name
from organs.registry.measure import Measurable, Measurement, measure, measure_together
from organs.registry.measure.measurement import fingerprint
from organs.registry.measure.sample import sample_runs, spectral_patches
from organs.registry.measure.zmeasure import summarise, zmeasure
from tests.measure.test_spectral import spectral_reading
from tests.random_files import PATIENT

F32 = dtype_by_name("F32")
BF16 = dtype_by_name("BF16")


def reader(data: bytes) -> Callable[[int, int], memoryview]:
    """Return a reader of `data` that checks the bounds of each read."""
    view = memoryview(data)

    def read(offset_bytes: int, size_bytes: int) -> memoryview:
        assert offset_bytes >= 0
        assert offset_bytes + size_bytes <= len(view)
        return view[offset_bytes : offset_bytes + size_bytes]

    return read


def gaussian(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def measured(values: NDArray[np.float32] | NDArray[np.float64], shape: tuple[int, ...], dtype: DType) -> Measurement:
    return measure(reader(quantize(values, dtype)), shape, dtype)


@dataclass
class CountedZeros:
    """A tensor of zeros of any size that records its reads."""

    size_bytes: int
    reads: list[tuple[int, int]] = field(default_factory=list)

    def read(self, offset_bytes: int, size_bytes: int) -> bytes:
        assert 0 <= offset_bytes <= offset_bytes + size_bytes <= self.size_bytes
        self.reads.append((offset_bytes, size_bytes))
        return bytes(size_bytes)


@pytest.mark.parametrize(
    ("shape", "reads", "elements"),
    [
        ((10**12,), 384, 98_304),
        ((10**6, 10**6), 384 + 256, 98_304 + 256 * 2048),
        ((10**4, 10**4, 10**4), 384 + 8 * 256, 98_304 + 8 * 256 * 2048),
        ((512, 256, 2 * 10**6, 4), 384 + 8, 98_304 + 8 * 256 * 512),
    ],
)
@pytest.mark.parametrize("name", ["BF16", "F64", "Q8_0", "Q4_K"])
def test_measuring_a_trillion_values_needs_few_reads_of_limited_size(
    shape: tuple[int, ...], reads: int, elements: int, name: str
) -> None:
    dtype = dtype_by_name(name)
    tensor = CountedZeros(math.prod(shape) // dtype.block_elements * dtype.block_bytes)
    measurement = measure(tensor.read, shape, dtype)
    assert len(tensor.reads) == reads
    assert sum(size for _, size in tensor.reads) == dtype.size_bytes(
        elements // dtype.block_elements * dtype.block_elements
    )
    assert measurement.constant


def test_the_measurement_of_a_large_matrix_has_every_figure() -> None:
    shape = (1024, 512)
    values = gaussian(1024 * 512)
    measurement = measured(values, shape, F32)
    sample = np.concatenate([values[start : start + count] for start, count in sample_runs(values.size)])
    summary, reading = summarise(sample), zmeasure(summarise(sample))
    patches = spectral_patches(shape)
    assert patches is not None
    spectrum = spectral_reading(values.reshape(512, 1024)[list(patches.rows)])
    assert measurement == Measurement(
        method="z1",
        sample_size=98_304,
        theta=reading.theta,
        magnitude=reading.magnitude,
        signal=reading.signal,
        entropy=reading.entropy,
        kurtosis=reading.kurtosis,
        coherence=reading.coherence,
        reason=None,
        mean=summary.mean,
        standard_deviation=summary.standard_deviation,
        minimum=summary.minimum,
        maximum=summary.maximum,
        spectral_method="mp1",
        spectral_signal=spectrum.signal,
        stable_rank=spectrum.stable_rank,
        effective_rank=spectrum.effective_rank,
        spectral_rows=256,
        spectral_columns=1024,
        fingerprint=fingerprint(sample),
    )


def test_tensors_are_measured_together_as_alone() -> None:
    shapes = [(1024, 512), (300, 256), (64, 48), (2048,), (512, 1024), (128, 64, 12), (64, 64)]
    contents = [quantize(gaussian(math.prod(shape), seed), F32) for seed, shape in enumerate(shapes)]
    tensors = [Measurable(reader(data), shape, F32) for data, shape in zip(contents, shapes, strict=True)]
    tensors.append(Measurable(reader(bytes(4096)), (32, 32), F32))
    tensors.append(Measurable(reader(bytes(4096)), (32, 32), dtype_by_name("Q8_K")))
    alone = [measure(tensor.read, tensor.shape, tensor.dtype) for tensor in tensors]
    assert measure_together(tensors) == alone
    assert alone[0].stable_rank != alone[4].stable_rank
    assert [one.spectral_rows for one in alone] == [256, 256, 48, None, 256, 64, 64, 32, None]


def test_a_small_matrix_is_read_once_and_measured_like_a_large_one() -> None:
    structure = np.outer(gaussian(256), gaussian(300, 1)) + gaussian(256 * 300, 2).reshape(256, 300)
    data = structure.tobytes()
    reads: list[tuple[int, int]] = []

    def read(offset_bytes: int, size_bytes: int) -> bytes:
        reads.append((offset_bytes, size_bytes))
        return data[offset_bytes : offset_bytes + size_bytes]

    measurement = measure(read, (300, 256), F32)
    assert reads == [(0, len(data))]
    assert measurement.spectral_signal == pytest.approx(spectral_reading(structure).signal, abs=1e-6)


def test_a_stack_of_experts_is_sampled_as_a_vector_and_its_spectrum_is_the_mean_of_eight() -> None:
    experts = gaussian(32 * 64 * 128).reshape(32, 64, 128)
    for index in range(32):  # later matrices have more structure
        experts[index] += np.float32(index / 16) * np.outer(gaussian(64, index), gaussian(128, index + 50))
    measurement = measured(experts.ravel(), (128, 64, 32), F32)
    patches = spectral_patches((128, 64, 32))
    assert patches is not None
    signals = [spectral_reading(experts[index]).signal for index in patches.experts]
    assert len(signals) == 8
    assert max(signals) - min(signals) > 0.3
    assert measurement.spectral_signal == pytest.approx(float(np.mean(signals)), abs=1e-6)
    sample = np.concatenate([experts.ravel()[start : start + count] for start, count in sample_runs(experts.size)])
    assert measurement.theta == zmeasure(summarise(sample)).theta


def test_a_dtype_without_a_kernel_is_not_read_and_the_reason_is_given() -> None:
    tensor = CountedZeros(10**6)
    measurement = measure(tensor.read, (256, 256), dtype_by_name("Q8_K"))
    assert measurement == Measurement(reason="no kernel reads the values of tensor type Q8_K")
    assert tensor.reads == []


@PATIENT
@given(data=st.data())
def test_any_bytes_of_any_dtype_give_finite_figures_without_errors_or_warnings(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([dtype for dtype in DTYPES.values() if dtype.name != "Q8_1"]))
    blocks = data.draw(st.sampled_from([1, 2, 8]))
    row = max(dtype.block_elements, 40) // dtype.block_elements * dtype.block_elements
    size_bytes = dtype.size_bytes(row * blocks)
    pattern = data.draw(st.binary(min_size=1, max_size=min(size_bytes, 300)))
    content = (pattern * (size_bytes // len(pattern) + 1))[:size_bytes]
    measurement = measure(reader(content), (row, blocks), dtype)
    figures = [value for value in asdict(measurement).values() if isinstance(value, float)]
    assert all(math.isfinite(figure) for figure in figures)


@PATIENT
@given(values=arrays(np.float32, st.integers(60, 400)), repeat=st.sampled_from([1, 7]))
def test_any_floats_give_measures_within_the_scale_without_errors_or_warnings(
    values: NDArray[np.float32], repeat: int
) -> None:
    array = np.tile(values, repeat)
    measurement = measure(reader(array.tobytes()), (values.size, repeat), F32)
    assert measurement.nan_count + measurement.infinite_count == int((~np.isfinite(array)).sum())
    assert measurement.theta is None or 0.0 <= measurement.theta <= 90.0
    assert measurement.spectral_signal is None or 0.0 <= measurement.spectral_signal <= 1.0
    assert (measurement.theta is None) is (int(np.isfinite(array).sum()) < 64)
