"""Tests of θ, |Z| and their indicators, method z1."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from organs.registry.measure.zmeasure import ZReading, summarise, zmeasure

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]
DRAWS: dict[str, Draw] = {
    "uniform": lambda random, size: random.uniform(size=size),
    "gaussian": lambda random, size: random.standard_normal(size),
    "laplace": lambda random, size: random.laplace(size=size),
    "student": lambda random, size: random.standard_t(3, size),
    "few levels": lambda random, size: random.integers(0, 4, size).astype(np.float64),
}
# Size, distribution, mean θ and its standard deviation: the table of bench/results/measures.md.


def reading_of(values: NDArray[np.float32] | NDArray[np.float64]) -> ZReading:
    return zmeasure(summarise(values))


def drawn(name: str, size: int, seed: int = 0) -> NDArray[np.float32]:
    return DRAWS[name](np.random.default_rng(seed), size).astype(np.float32)


def laplace_quantiles(size: int) -> NDArray[np.float32]:
    """Return evenly spaced quantiles of the Laplace distribution: a deterministic sample."""
    shares = (np.arange(size) + 0.5) / size
    return (np.sign(shares - 0.5) * np.log(1 - np.abs(2 * shares - 1))).astype(np.float32)


@pytest.mark.parametrize("size", [300, 1000, 5000, 98_304])
@pytest.mark.parametrize("name", sorted(DRAWS))
def test_the_reading_agrees_with_a_naive_implementation_of_the_definitions(size: int, name: str) -> None:
    values = drawn(name, size).astype(np.float64)
    reading, plain = reading_of(values), naive_reading(values)
    assert reading.theta == pytest.approx(plain["theta"], abs=1e-9)
    assert reading.magnitude == pytest.approx(plain["magnitude"], abs=1e-9)
    assert reading.entropy == pytest.approx(plain["entropy"], abs=1e-9)
    assert reading.kurtosis == pytest.approx(plain["kurtosis"], rel=1e-9)
    assert reading.coherence == pytest.approx(plain["coherence"], rel=1e-9)
    assert reading.signal == pytest.approx(math.sin(math.radians(plain["theta"])), abs=1e-9)


def test_a_deterministic_sample_has_the_recorded_reading() -> None:
    # The same on every machine to 1e-6; a change here is a new method.
    reading = reading_of(laplace_quantiles(10_000))
    assert reading.theta == pytest.approx(72.460564, abs=1e-5)
    assert reading.magnitude == pytest.approx(0.99961823, abs=1e-6)
    assert reading.entropy == pytest.approx(0.83535204, abs=1e-6)
    assert reading.kurtosis == pytest.approx(2.9221685, abs=1e-5)
    assert reading.coherence == pytest.approx(5.4222578, abs=1e-5)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -1e-40, 3e38])
@pytest.mark.parametrize("size", [64, 255, 256, 98_304])
def test_a_constant_carries_no_information(value: float, size: int) -> None:
    reading = reading_of(np.full(size, value, np.float32))
    assert (reading.theta, reading.magnitude, reading.signal) == (0.0, 0.0, 0.0)
    assert reading.reason == "every sampled value is the same"


@pytest.mark.parametrize("size", [0, 1, 63])
def test_fewer_than_64_values_are_not_measured_and_the_reason_is_given(size: int) -> None:
    reading = reading_of(drawn("gaussian", size))
    assert (reading.theta, reading.magnitude, reading.signal, reading.entropy) == (None, None, None, None)
    assert reading.reason == "fewer than 64 finite values"


@pytest.mark.parametrize(("size", "measured"), [(255, False), (256, True)])
def test_the_magnitude_needs_256_values(size: int, measured: bool) -> None:
    reading = reading_of(drawn("gaussian", size))
    assert reading.theta is not None
    assert (reading.magnitude is not None) is measured
    assert (reading.reason is None) is measured


def naive_reading(values: NDArray[np.float64]) -> dict[str, float]:
    """Return the readings by the definitions of method z1 with functions of numpy, one sort and one pass each."""
    size = values.size
    low, high = np.quantile(values, [0.0005, 0.9995])
    clipped = np.clip(values, low, high)

    def entropy_bits(bins: int) -> float:
        counts = np.histogram(clipped, bins=bins, range=(low, high))[0]
        shares = counts[counts > 0] / size
        return float(-(shares * np.log2(shares)).sum() + (shares.size - 1) / (2 * size * math.log(2)))

    bins = min(max(2 ** math.floor(math.log2(size / 16)), 8), 256)
    entropy = entropy_bits(bins) / math.log2(bins)
    deviations = values - values.mean()
    kurtosis = float((deviations**4).mean() / (deviations**2).mean() ** 2 - 3)
    gaps = min(max(size // 16, 8), 256)
    ordered = np.sort(values)
    spacings = np.array([ordered[(i + 1) * (size - 1) // gaps] - ordered[i * (size - 1) // gaps] for i in range(gaps)])
    coherence = float(spacings.std() / spacings.mean())
    levels = [level for level in range(4, 11) if 2**level <= size / 8]
    scores = [(0.95 - entropy) / 0.25, (abs(kurtosis) - 1.2) / 1.8, (coherence - 0.5) / 0.5]
    return {
        "theta": 90 * float(np.clip(scores, 0, 1).mean()),
        "magnitude": float(np.polyfit(levels, [entropy_bits(2**level) for level in levels], 1)[0]),
        "entropy": entropy,
        "kurtosis": kurtosis,
        "coherence": coherence,
    }
