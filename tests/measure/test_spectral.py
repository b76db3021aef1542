"""Tests of the spectral measures of method mp1: the share of a matrix's energy above chance, and the stable rank."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from organs.registry.gguf.quants import Floats
from organs.registry.measure.spectral import SpectralReading, products_of, spectral_readings

SHAPES = [(256, 2048), (256, 256), (2048, 256), (128, 768), (64, 64), (8, 256), (16, 16), (3, 3), (2, 2)]


def spectral_reading(matrix: Floats) -> SpectralReading:
    """Return the reading of `matrix` alone."""
    return spectral_readings([products_of(matrix)])[0]


def gaussian(rows: int, columns: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def low_rank_plus_noise(rows: int, columns: int, rank: int, strength: float, seed: int = 0) -> NDArray[np.float32]:
    """Return structure of rank `rank` with `strength` times the energy of the noise, plus noise of variance 1."""
    structure = gaussian(rows, rank, seed) @ gaussian(rank, columns, seed + 1)
    return structure * np.float32(np.sqrt(strength / rank)) + gaussian(rows, columns, seed + 2)


@pytest.mark.parametrize("shape", [(256, 2048), (64, 64), (8, 256), (2, 2)])
def test_random_weights_read_zero_to_three_digits(shape: tuple[int, int]) -> None:
    signals = [spectral_reading(gaussian(*shape, seed)).signal for seed in range(40)]
    assert float(np.mean(signals)) < 0.0005
    assert sum(signal == 0.0 for signal in signals) >= 36


@pytest.mark.parametrize("shape", SHAPES)
def test_the_reading_agrees_with_singular_values(shape: tuple[int, int]) -> None:
    matrix = low_rank_plus_noise(*shape, rank=2, strength=1.0)
    reading = spectral_reading(matrix)
    exact = matrix.astype(np.float64)
    energies = np.linalg.svd(exact - exact.mean(), compute_uv=False) ** 2
    smaller, larger = sorted(shape)
    sides = np.sqrt(smaller) + np.sqrt(larger)
    variance = energies.sum() / (smaller * larger)
    steps = (energies / variance - sides**2) / (sides * (smaller**-0.5 + larger**-0.5) ** (1 / 3))
    share = (energies * np.clip((steps - 2) / 2, 0, 1)).sum() / energies.sum()
    assert reading.signal == pytest.approx(share, abs=1e-6)
    assert reading.stable_rank == pytest.approx(energies.sum() / energies.max(), rel=1e-6)
    shares = np.sqrt(energies) / np.sqrt(energies).sum()
    assert reading.effective_rank == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-4)


@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-20, 1.0, 1e20, 1e30, 1e37])
def test_the_reading_does_not_change_with_scale_up_to_the_ends_of_float32(scale: float) -> None:
    signs = np.sign(low_rank_plus_noise(64, 128, 2, 2.0))
    reading, plain = spectral_reading(signs * np.float32(scale)), spectral_reading(signs)
    assert plain.signal > 0.1
    assert reading.signal == pytest.approx(plain.signal, abs=1e-5)


@pytest.mark.parametrize("exponent", [-1060, -300, 300, 1020])
def test_doubles_far_beyond_float32_are_read(exponent: int) -> None:
    matrix = low_rank_plus_noise(64, 128, 2, 2.0).round().astype(np.float64)
    reading = spectral_reading(np.ldexp(matrix, exponent))
    assert reading.signal == pytest.approx(spectral_reading(matrix).signal, abs=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, -3e38, 1e-45])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_matrix_without_variance_reads_zero(value: float, kind: type[np.float32] | type[np.float64]) -> None:
    assert spectral_reading(np.full((37, 53), value, kind)) == SpectralReading(0.0, 0.0, 0.0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_elements_that_are_not_finite_count_as_the_mean(value: float) -> None:
    matrix = low_rank_plus_noise(64, 256, 2, 1.0) + np.float32(3.0)
    expected = spectral_reading(matrix)
    matrix[5, ::16] = value
    reading = spectral_reading(matrix)
    assert reading.signal == pytest.approx(expected.signal, abs=0.01)
    assert reading.stable_rank == pytest.approx(expected.stable_rank, rel=0.02)


PROBE = """
import numpy as np
from organs.registry.measure.spectral import products_of, spectral_readings
random = np.random.default_rng(7)
matrix = random.standard_normal((256, 20)) @ random.standard_normal((20, 1024)) + random.standard_normal((256, 1024))
reading, = spectral_readings([products_of(matrix.astype(np.float32))])
print(reading.signal, reading.stable_rank)
"""


def test_kernels_for_other_processors_agree_to_a_millionth() -> None:
    readings = []
    for kernels in ("PRESCOTT", "HASWELL"):  # other processors' BLAS than OpenBLAS ignores this
        environment = os.environ | {"OPENBLAS_CORETYPE": kernels}
        output = subprocess.run(
            [sys.executable, "-c", PROBE], env=environment, check=True, capture_output=True, text=True
        ).stdout
        readings.append([float(word) for word in output.split()])
    old, new = readings
    assert old[0] > 0.5
    assert new == pytest.approx(old, rel=1e-6)
