"""An organ's values as a histogram beside the normal distribution of the same mean and deviation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from organs.registry.gguf import DType
from organs.registry.gguf.quants import can_dequantize
from organs.registry.measure.sample import Run, read_values, sample_runs, spread
from organs.registry.measure.zmeasure import QUANTILES, THETA_MIN_VALUES
from organs.registry.store import BlobReader
from organs.registry.store.codec import StoredChunk
from organs.web.charts.drawing import Axis, Chart, Line, drawn

CHUNKS_MAX = 32
"""128 MiB of plain bytes, a tenth of a second to decode. Larger organs are seen through some of their sample."""


def sampled_values(reader: BlobReader, dtype: DType, elements: int) -> NDArray[np.floating]:
    """The values of the organ's sample, or of the part of it in 32 chunks; raises CorruptBlob, UnsupportedDType."""
    source = _Chunks(reader)
    runs = [run for run in sample_runs(elements) if _is_near(run, dtype, source)]
    values: NDArray[np.floating] = read_values(source.read, runs, dtype)
    return values


def can_be_sampled(dtype: DType) -> bool:
    """Whether the values of `dtype` can be read here."""
    return can_dequantize(dtype)


class _Chunks:
    """Plain bytes by offset, the last decoded chunk kept: runs come in rising order."""

    def __init__(self, reader: BlobReader) -> None:
        self._reader = reader
        self._chunks = reader.chunks
        self._buffer = memoryview(bytearray(min(reader.head.codec.chunk_bytes, reader.size_bytes)))
        self._decoded: StoredChunk | None = None
        self.chosen = {self._chunks[place].plain_offset_bytes for place in spread(len(self._chunks), CHUNKS_MAX)}

    def read(self, offset: int, size: int) -> bytes:
        """`size` plain bytes from `offset`."""
        parts = []
        for chunk in self.overlapping(offset, size):
            if chunk is not self._decoded:
                self._decoded = None
                self._reader.read_chunk(chunk, self._buffer[: chunk.plain_size_bytes])
                self._decoded = chunk
            begin = chunk.plain_offset_bytes
            parts.append(
                bytes(self._buffer[max(0, offset - begin) : min(offset + size - begin, chunk.plain_size_bytes)])
            )
        return b"".join(parts)

    def overlapping(self, offset: int, size: int) -> list[StoredChunk]:
        """The chunks that these bytes lie in; all but the last are of one size."""
        if not size:
            return []
        first, last = (place // self._chunks[0].plain_size_bytes for place in (offset, offset + size - 1))
        return list(self._chunks[first : last + 1])


def _is_near(run: Run, dtype: DType, source: _Chunks) -> bool:
    start, count = (number // dtype.block_elements * dtype.block_bytes for number in run)
    return all(chunk.plain_offset_bytes in source.chosen for chunk in source.overlapping(start, count))


WIDTH, HEIGHT = 720, 260
BINS = 60
CURVE_POINTS = 121
TICKS_ABOUT = 6


@dataclass(frozen=True, slots=True)
class Weights:
    """A histogram of the finite values of a sample between two quantiles; what lies beyond is counted apart."""

    looked_at: int
    """Values of the sample, with those that are none."""
    mean: float
    deviation: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    bell: tuple[float, ...]
    """How many values of each bin a bell curve of that mean and deviation would have."""
    beyond: int
    """Finite values outside the range."""


def weights_of(values: NDArray[np.floating]) -> Weights | str:
    """The histogram of `values`, flat; a sentence that says why there is none."""
    finite = np.asarray(values, np.float64)
    finite = finite[np.isfinite(finite)]
    if finite.size < THETA_MIN_VALUES:
        return f"There is no picture of fewer than {THETA_MIN_VALUES} finite values."
    low, high = (float(edge) for edge in np.quantile(finite, QUANTILES))
    if not low < high or not math.isfinite(high - low) or (high - low) / BINS <= abs(low) * 1e-12:
        return "Nearly all values are one and the same: there is nothing to draw."
    with np.errstate(over="ignore"):
        mean, deviation = float(finite.mean()), float(finite.std())
    if not (math.isfinite(mean) and math.isfinite(deviation)):
        return "The values are too large to be drawn."
    counts, edges = np.histogram(finite, BINS, (low, high))
    shares = [_below((edge - mean) / deviation) for edge in edges]
    bell = tuple(finite.size * (upper - lower) for lower, upper in pairwise(shares))
    beyond = int(finite.size - counts.sum())
    return Weights(int(values.size), mean, deviation, tuple(map(float, edges)), tuple(map(int, counts)), bell, beyond)


def weights_chart(weights: Weights) -> bytes:
    """The picture: grey steps are the values, the line is the bell curve."""
    edges, top = weights.edges, max(*weights.counts, *weights.bell)
    steps = [(edges[0], 0.0)]
    for (lower, upper), count in zip(pairwise(edges), weights.counts, strict=True):
        steps += [(lower, float(count)), (upper, float(count))]
    steps.append((edges[-1], 0.0))
    width = (edges[-1] - edges[0]) / BINS
    scale = weights.looked_at * width / (weights.deviation * math.sqrt(2 * math.pi))
    xs = [edges[0] + (edges[-1] - edges[0]) * step / (CURVE_POINTS - 1) for step in range(CURVE_POINTS)]
    curve = [(x, scale * math.exp(-(((x - weights.mean) / weights.deviation) ** 2) / 2)) for x in xs]
    return drawn(
        Chart(
            "How the values of this organ are distributed",
            *(WIDTH, HEIGHT),
            x=Axis(edges[0], edges[-1], ticks_between(edges[0], edges[-1]), "value"),
            y=Axis(0.0, top, ticks_between(0.0, top, whole=True), f"values of {weights.looked_at:,}"),
            lines=(Line(steps, "area"), Line(curve, "dashed")),
        )
    )


def ticks_between(low: float, high: float, *, whole: bool = False) -> tuple[tuple[float, str], ...]:
    """Round numbers from `low` to `high`, some six of them, as they are written."""
    rough = (high - low) / TICKS_ABOUT
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * 0.999)
    step = max(step, 1.0) if whole else step
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return tuple((number * step, _number(number * step, step)) for number in numbers)


def _number(value: float, step: float) -> str:
    if value == 0:
        return "0"
    if step >= 1 and abs(value) < 1e6:
        return f"{value:,.0f}".replace("-", "−")
    digits = max(0, -math.floor(math.log10(step)))
    text = f"{value:.{digits}f}" if digits <= 4 and abs(value) < 1e6 else f"{value:.3g}"
    return text.replace("-", "−")


def _below(deviations: float) -> float:
    """The share of a bell curve below so many deviations from its middle."""
    return 0.5 * (1 + math.erf(deviations / math.sqrt(2)))
