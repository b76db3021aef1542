"""The spectral reading, method "mp1": the share of a matrix's energy that exceeds the level of a random matrix.

The eigenvalues of A Aᵀ / n of a random m × n matrix A (m ≤ n) with entries of variance σ² end at the Marchenko-Pastur
edge σ²(1 + √(m/n))². At finite size the largest eigenvalue varies around the edge; the unit of this variation is the
Tracy-Widom step. So the weight of an eigenvalue rises from 0 at two steps above the edge to 1 at four steps. A random
matrix then has the reading 0.000 (99 of 100 Gaussian matrices exactly 0), and the reading is continuous in the matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from organs.registry.gguf.quants import Floats

STEPS_BEGIN, STEPS_FULL = 2.0, 4.0
"""Tracy-Widom steps above the edge between which an eigenvalue's weight rises from 0 to 1."""
SAFE_EXPONENTS = {np.dtype(np.float32): 30, np.dtype(np.float64): 150}
"""For a peak (largest absolute value) within 2^± this exponent, squares and products stay in the dtype's range."""


@dataclass(frozen=True, slots=True)
class SpectralReading:
    """The reading of one matrix. A matrix without variance has no energy: all three fields are 0."""

    signal: float
    """The share of the energy above the edge, 0 to 1."""
    stable_rank: float
    """The energy divided by the largest eigenvalue: from 1 to the length of the smaller side; 0 without energy."""
    effective_rank: float
    """exp of the entropy of the singular values, normalised to sum 1. Range as for `stable_rank`.

    O. Roy and M. Vetterli, "The effective rank: a measure of effective dimensionality" (2007).
    """


@dataclass(frozen=True, slots=True)
class Products:
    """The products of the rows of a matrix, whose eigenvalues are the squares of its singular values."""

    values: NDArray[np.float64]
    """Symmetric; as many rows as the smaller side of the matrix is long, or none for a matrix without variance."""
    columns: int
    """The length of the larger side."""


def products_of(matrix: Floats, overwrite: bool = False) -> Products:
    """Return the products of a two-dimensional matrix, centred on its mean. NaN and infinite entries count as the mean.

    They are computed in the precision of `matrix`: float32 takes half the time, with an error within 2e-7. With
    `overwrite`, `matrix` may be used as scratch space, which saves the memory of a second matrix.
    """
    finite, low, high = _replace_nonfinite(matrix)
    if low == high:
        return Products(np.empty((0, 0)), max(matrix.shape))
    exponent = int(np.frexp(max(abs(low), abs(high)))[1])  # squares must not leave the range of the dtype
    scaled = finite if abs(exponent) <= SAFE_EXPONENTS[finite.dtype] else np.ldexp(finite, -exponent)
    mean = scaled.dtype.type(scaled.mean(dtype=np.float64))
    centred = np.subtract(scaled, mean, out=scaled if overwrite and finite.flags.writeable else None)
    wide = centred if centred.shape[0] <= centred.shape[1] else centred.T
    return Products((wide @ wide.T).astype(np.float64), wide.shape[1])


def spectral_readings(matrices: Sequence[Products]) -> list[SpectralReading]:
    """Return the reading of each matrix.

    The eigenvalues of matrices with equally many rows are found together: for a single matrix with fewer than 500,
    numpy keeps the interpreter's lock, and other threads wait.
    """
    places: dict[int, list[int]] = {}
    for place, matrix in enumerate(matrices):
        places.setdefault(len(matrix.values), []).append(place)
    readings: dict[int, SpectralReading] = {}
    for alike in places.values():
        eigenvalues = np.linalg.eigvalsh(np.stack([matrices[place].values for place in alike]))
        for place, found in zip(alike, eigenvalues, strict=True):
            readings[place] = _reading(found, matrices[place].columns)
    return [readings[place] for place in range(len(matrices))]


def _reading(eigenvalues: NDArray[np.float64], columns: int) -> SpectralReading:
    """Return the reading of a matrix from the eigenvalues of its products, in ascending order."""
    rows = len(eigenvalues)
    if not rows:
        return SpectralReading(0.0, 0.0, 0.0)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    energy = float(eigenvalues.sum())
    # The Marchenko-Pastur edge and the Tracy-Widom step for the eigenvalues of A Aᵀ. I. M. Johnstone, "On the
    # distribution of the largest eigenvalue in principal components analysis" (2001): centre (√n + √m)², step
    # (√n + √m)(1/√n + 1/√m)^(1/3), for entries of variance 1.
    variance = energy / (rows * columns)
    sides = math.sqrt(rows) + math.sqrt(columns)
    edge = variance * sides * sides
    step = variance * (sides * (1 / math.sqrt(rows) + 1 / math.sqrt(columns)) ** (1 / 3))
    weights = ((eigenvalues - edge) / step - STEPS_BEGIN) / (STEPS_FULL - STEPS_BEGIN)
    above = float(eigenvalues @ np.clip(weights, 0.0, 1.0))
    singular = np.sqrt(eigenvalues)
    shares = singular[singular > 0.0] / singular.sum()
    effective_rank = math.exp(-float(shares @ np.log(shares)))
    return SpectralReading(above / energy, energy / float(eigenvalues[-1]), effective_rank)


def mean_reading(readings: Sequence[SpectralReading]) -> SpectralReading:
    """Return the mean over several matrices, for example the experts of a stack."""
    assert readings
    return SpectralReading(
        math.fsum(reading.signal for reading in readings) / len(readings),
        math.fsum(reading.stable_rank for reading in readings) / len(readings),
        math.fsum(reading.effective_rank for reading in readings) / len(readings),
    )


def _replace_nonfinite(matrix: Floats) -> tuple[Floats, float, float]:
    """Return the matrix with the mean of its finite entries for each entry that is not finite, its minimum and maximum.

    All are 0 if no entry is finite.
    """
    with np.errstate(invalid="ignore"):  # signalling NaNs
        low, high = float(matrix.min()), float(matrix.max())
    if math.isfinite(low) and math.isfinite(high):
        return matrix, low, high
    is_finite = np.isfinite(matrix)
    entries = matrix[is_finite].astype(np.float64)
    if entries.size == 0:
        return np.zeros_like(matrix), 0.0, 0.0
    # Halves are summed, because the sum of entries near the end of float64's range would overflow.
    mean = 2.0 * (entries / (2.0 * entries.size)).sum()
    return np.where(is_finite, matrix, matrix.dtype.type(mean)), float(entries.min()), float(entries.max())
