"""The spectral reading, method "mp1": how much of a matrix's energy stands above what chance gives.

The eigenvalues of A Aᵀ / n of a random m × n matrix (m ≤ n) with entries of variance σ² end at the Marchenko-Pastur
edge σ²(1 + √(m/n))². At finite size the largest one scatters about the edge by a step that Tracy and Widom gave; so an
eigenvalue begins to count two steps above the edge and counts in full from four. Chance then gives 0.000 (99 of 100
Gaussian matrices exactly 0), and the reading is continuous in the matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from organs.registry.gguf.quants import Floats
from organs.registry.measures import SPECTRAL_METHOD

METHOD = SPECTRAL_METHOD

STEPS_BEGIN, STEPS_FULL = 2.0, 4.0
"""Tracy-Widom steps above the edge between which an eigenvalue's weight rises from 0 to 1."""
SAFE_EXPONENTS = {np.dtype(np.float32): 30, np.dtype(np.float64): 150}
"""Peaks within 2^± these have squares and products that stay within the dtype's range."""


@dataclass(frozen=True, slots=True)
class SpectralReading:
    """The reading of one matrix. A matrix without variance has no energy: both figures are 0."""

    signal: float
    """The share of the energy above the edge, 0 to 1."""
    stable_rank: float
    """Energy over the largest eigenvalue: 1 to the smaller side; 0 without energy."""
    effective_rank: float
    """exp of the entropy of the singular values, normalised to sum 1: 1 to the smaller side; 0 without energy.

    O. Roy and M. Vetterli, "The effective rank: a measure of effective dimensionality" (2007).
    """


def spectral_reading(matrix: Floats, overwrite: bool = False) -> SpectralReading:
    """The reading of a two-dimensional matrix, about its mean. NaN and infinite cells count as the mean.

    The products are taken in the matrix's own precision (float32 costs half, and is within 2e-7), the rest in float64.
    `overwrite` allows the matrix itself to be used as scratch space, which saves the pages of a second one.
    """
    known, low, high = _all_finite(matrix)
    if low == high:
        return SpectralReading(0.0, 0.0, 0.0)
    centred = _centred(known, max(abs(low), abs(high)), overwrite and known.flags.writeable)
    wide = centred if centred.shape[0] <= centred.shape[1] else centred.T
    products = wide @ wide.T
    eigenvalues = np.maximum(np.linalg.eigvalsh(products.astype(np.float64)), 0.0)
    energy = float(eigenvalues.sum())
    rows, columns = wide.shape
    edge, step = _edge_and_step(energy, rows, columns)
    weights = ((eigenvalues - edge) / step - STEPS_BEGIN) / (STEPS_FULL - STEPS_BEGIN)
    above = float(eigenvalues @ np.clip(weights, 0.0, 1.0))
    return SpectralReading(above / energy, energy / float(eigenvalues[-1]), _effective_rank(eigenvalues))


def mean_reading(readings: Sequence[SpectralReading]) -> SpectralReading:
    """The mean over several matrices, such as the experts of a stack."""
    assert readings
    return SpectralReading(
        math.fsum(reading.signal for reading in readings) / len(readings),
        math.fsum(reading.stable_rank for reading in readings) / len(readings),
        math.fsum(reading.effective_rank for reading in readings) / len(readings),
    )


def _effective_rank(eigenvalues: NDArray[np.float64]) -> float:
    """Return exp of the entropy of the singular values, whose squares are the eigenvalues; at least one is above 0."""
    singular = np.sqrt(eigenvalues)
    shares = singular[singular > 0.0] / singular.sum()
    return math.exp(-float(shares @ np.log(shares)))


def _all_finite(matrix: Floats) -> tuple[Floats, float, float]:
    """The matrix with every cell that is not finite at the mean of the others, and its least and greatest cell.

    All zero when no cell is finite.
    """
    with np.errstate(invalid="ignore"):  # signalling NaNs
        low, high = float(matrix.min()), float(matrix.max())
    if math.isfinite(low) and math.isfinite(high):
        return matrix, low, high
    finite = np.isfinite(matrix)
    cells = matrix[finite].astype(np.float64)
    if cells.size == 0:
        return np.zeros_like(matrix), 0.0, 0.0
    # Halves, because the sum of cells near the end of float64's range would overflow.
    mean = 2.0 * (cells / (2.0 * cells.size)).sum()
    return np.where(finite, matrix, matrix.dtype.type(mean)), float(cells.min()), float(cells.max())


def _centred(matrix: Floats, peak: float, overwrite: bool) -> Floats:
    """The matrix minus the mean of its cells; scaled by a power of two if squares could leave the dtype's range."""
    exponent = int(np.frexp(peak)[1])
    near = matrix if abs(exponent) <= SAFE_EXPONENTS[matrix.dtype] else np.ldexp(matrix, -exponent)
    mean = near.dtype.type(near.mean(dtype=np.float64))
    return np.subtract(near, mean, out=near if overwrite else None)


def _edge_and_step(energy: float, rows: int, columns: int) -> tuple[float, float]:
    """The edge of Marchenko and Pastur and the step of Tracy and Widom for the eigenvalues of A Aᵀ.

    I. M. Johnstone, "On the distribution of the largest eigenvalue in principal components analysis" (2001): centre
    (√n + √m)², step (√n + √m)(1/√n + 1/√m)^(1/3), for entries of variance 1.
    """
    variance = energy / (rows * columns)
    sides = math.sqrt(rows) + math.sqrt(columns)
    step = sides * (1 / math.sqrt(rows) + 1 / math.sqrt(columns)) ** (1 / 3)
    return variance * sides * sides, variance * step
