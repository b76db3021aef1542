"""The measures of one organ: the entry point, the record, and the fingerprint for the search of relatives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice

import numpy as np

from organs.registry.gguf.quants import Floats, can_dequantize, decode
from organs.registry.gguf.types import DType
from organs.registry.measure.sample import (
    RUN_ELEMENTS,
    Patches,
    Read,
    read_values,
    run_spans,
    sample_runs,
    spectral_patches,
    spread,
)
from organs.registry.measure.spectral import Products, SpectralReading, mean_reading, products_of, spectral_readings
from organs.registry.measure.zmeasure import ZReading, summarise, zmeasure
from organs.registry.measures import SPECTRAL_METHOD, THETA_METHOD
from organs.registry.similarity import VALUES, fingerprint_of

MEASURED_TOGETHER = 4
"""How many tensors a thread should measure together, until one is a stack. With more, the times are the same."""


def fingerprint(sample: Floats) -> bytes | None:
    """Return the fingerprint of 256 values that are spread evenly over `sample`; None if it has fewer values.

    `sample` is flat, in the order of the tensor.
    """
    if sample.size < VALUES:
        return None
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return fingerprint_of(sample[list(spread(sample.size, VALUES))].astype(np.float64))


@dataclass(frozen=True, slots=True)
class Measurement(ZReading):
    """The measures of one organ, with their methods. A measure without a value is None; `reason` says why.

    The measures differ between machines by about 1e-6: compare them with a tolerance. Only the fingerprint is exact.
    """

    method: str = THETA_METHOD
    """The method of the Z-measure."""
    sample_size: int = 0
    """The number of values in the sample, including NaN and infinities."""
    nan_count: int = 0
    infinite_count: int = 0
    constant: bool = False
    """Whether all finite values of the sample are equal."""
    mean: float | None = None
    standard_deviation: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    spectral_method: str | None = None
    """The spectral method. This field and the next five are None for vectors and for dtypes that cannot be decoded."""
    spectral_signal: float | None = None
    """The share of the energy above the level of chance, 0 to 1.

    For a stack of experts, this field and the next two are the mean over the experts.
    """
    stable_rank: float | None = None
    effective_rank: float | None = None
    spectral_rows: int | None = None
    spectral_columns: int | None = None
    fingerprint: bytes | None = None
    """The fingerprint (`registry.similarity`); None for fewer than 256 values."""
    nonfinite: int | None = None
    """The number of NaN and infinite values in all the data; None from `measure`, which only reads the sample."""


@dataclass(frozen=True, slots=True)
class Measurable:
    """A tensor to measure."""

    read: Read
    shape: Sequence[int]
    """GGUF order: row length first."""
    dtype: DType

    @property
    def is_stack(self) -> bool:
        """Whether it has matrices of its own to measure together, which take as much memory as that many tensors."""
        return len(self.shape) > 2


def measure(read: Read, shape: Sequence[int], dtype: DType) -> Measurement:
    """Measure a tensor of `shape` (GGUF order: row length first) and `dtype`; `read` returns its bytes.

    Makes at most 384 reads, and 256 more for each of up to 8 matrices. No content makes it raise; for a dtype without a
    kernel, `reason` says so. The caller limits the threads of BLAS.
    """
    return measure_together([Measurable(read, shape, dtype)])[0]


def measure_together(tensors: Sequence[Measurable]) -> list[Measurement]:
    """Measure several tensors as `measure` does, while other threads can run (`spectral_readings`)."""
    # The spectra come first. Their scratch space is then free for the samples, and fewer new pages are used.
    loaded = [_Loaded.of(tensor) for tensor in tensors]
    readings = iter(spectral_readings([products for one in loaded for products in one.products]))
    return [_measured(one, list(islice(readings, len(one.products)))) for one in loaded]


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A tensor with what its spectrum is found by."""

    tensor: Measurable
    patches: Patches | None
    products: tuple[Products, ...]
    """One for each patch."""
    values: Floats | None
    """All values of a small tensor, which are read once."""

    @classmethod
    def of(cls, tensor: Measurable) -> _Loaded:
        if not can_dequantize(tensor.dtype):
            return cls(tensor, None, (), None)
        patches, runs = spectral_patches(tensor.shape), sample_runs(math.prod(tensor.shape))
        values = read_values(tensor.read, runs, tensor.dtype) if len(runs) == 1 else None
        products = () if patches is None else tuple(_products(tensor, patches, values))
        return cls(tensor, patches, products, values)


def _products(tensor: Measurable, patches: Patches, values: Floats | None) -> Iterator[Products]:
    """Yield the products of each patch; `values` are those of a small tensor."""
    for expert in patches.experts:
        if values is None:
            matrix = read_values(tensor.read, patches.runs(expert), tensor.dtype)
            matrix = matrix.reshape(len(patches.rows), patches.columns)
        else:
            stack = values.reshape(-1, patches.matrix_rows, patches.matrix_columns)
            matrix = stack[expert][list(patches.rows), : patches.columns]
        yield products_of(matrix, overwrite=True)


def _measured(loaded: _Loaded, readings: Sequence[SpectralReading]) -> Measurement:
    """Return the measurement of a tensor with these readings of its patches."""
    tensor, patches, sample = loaded.tensor, loaded.patches, loaded.values
    if not can_dequantize(tensor.dtype):
        return Measurement(reason=f"no kernel reads the values of tensor type {tensor.dtype.name}")
    if sample is None:
        sample = read_values(tensor.read, sample_runs(math.prod(tensor.shape)), tensor.dtype)
    summary = summarise(sample)
    # Without finite values a spectrum has no meaning: NaN and infinities were replaced by 0.
    spectrum = mean_reading(readings) if readings and summary.ascending.size else None
    return Measurement(
        **asdict(zmeasure(summary)),
        sample_size=summary.sample_size,
        nan_count=summary.nan_count,
        infinite_count=summary.infinite_count,
        constant=summary.constant,
        mean=summary.mean,
        standard_deviation=summary.standard_deviation,
        minimum=summary.minimum,
        maximum=summary.maximum,
        spectral_method=SPECTRAL_METHOD if patches else None,
        spectral_signal=spectrum.signal if spectrum else None,
        stable_rank=spectrum.stable_rank if spectrum else None,
        effective_rank=spectrum.effective_rank if spectrum else None,
        spectral_rows=len(patches.rows) if patches else None,
        spectral_columns=patches.columns if patches else None,
        fingerprint=fingerprint(sample),
    )


def read_fingerprint(read: Read, shape: Sequence[int], dtype: DType) -> bytes | None:
    """Return the fingerprint that `measure` returns; reads only the blocks with its 256 values.

    None for fewer values, and for a dtype without a kernel.
    """
    runs = sample_runs(math.prod(shape))
    sample = sum(count for _, count in runs)
    if sample < VALUES or not can_dequantize(dtype):
        return None
    places: Sequence[int] = spread(sample, VALUES)
    if len(runs) > 1:  # positions in the sample become positions in the tensor
        places = [runs[place // RUN_ELEMENTS][0] + place % RUN_ELEMENTS for place in places]
    size = dtype.block_elements
    blocks = b"".join(read(place // size * dtype.block_bytes, dtype.block_bytes) for place in places)
    values = decode(blocks, dtype).reshape(VALUES, size)
    return fingerprint(values[np.arange(VALUES), [place % size for place in places]])


def required_reads(shape: Sequence[int], dtype: DType) -> tuple[tuple[int, int], ...]:
    """Return the offset and the size in bytes of every read that `measure` makes, in order.

    The reads depend on shape and dtype only. So a process that has the bytes can pass exactly these bytes to the
    process that measures.
    """
    if not can_dequantize(dtype):
        return ()
    runs = list(sample_runs(math.prod(shape)))
    patches = spectral_patches(shape)
    if patches is not None and len(runs) > 1:
        runs = [run for expert in patches.experts for run in patches.runs(expert)] + runs
    return run_spans(tuple(runs), dtype)
