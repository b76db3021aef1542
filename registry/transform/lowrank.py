"""Low-rank approximation of a matrix that is read in bands: the product of two thin factors nearest to it.

By the randomised subspace iteration of N. Halko, P. G. Martinsson and J. A. Tropp, "Finding structure with randomness"
(2011), algorithms 4.4 and 5.1: the range of the rows is found by multiplying random directions with DᵀD several times,
orthonormalised after each time; the small product of D with them has the singular values. What is not kept of D is
exactly what is orthogonal to the found directions, so the shares are exact even where the directions are not the best
ones. The random directions are always the same. On one machine with one thread of the BLAS, so are the results; on
another processor they can differ by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from organs.registry.transform.values import WINDOW_ELEMENTS, Readable

ITERATIONS, OVERSAMPLING = 5, 16
"""Multiplications with DᵀD, and directions that are followed beside the wanted ones. Of real fine-tunes, whose singular
values fall slowly, the kept share is then within 0.2% of that of the complete decomposition."""
HELD_ELEMENTS = 1 << 24
"""A smaller difference is held in memory, 128 MiB; a larger one is read again for each multiplication."""
SKETCH_MAX_ELEMENTS = 1 << 27
"""The limit for the products with the followed directions: 1 GiB in float64."""
_SEED = 20110101

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LowRank:
    """The factors of an approximation B·A of a matrix with n columns and m rows, the strongest directions first."""

    a: NDArray[np.float32]
    """[rank, n]. Each direction has the square root of its singular value in both factors."""
    b: NDArray[np.float32]
    """[m, rank]."""
    energies: Matrix
    """The squares of the singular values, falling."""
    energy: float
    """The sum of the squares of all values of the matrix."""

    def kept(self, rank: int) -> float:
        """Return the energy of the approximation by the first `rank` directions: ‖D‖² − ‖D − B·A‖²."""
        return min(self.energy, float(self.energies[:rank].sum()))


def followed(shape: tuple[int, int], rank: int) -> int:
    """Return the number of directions that are followed for a matrix of `shape`."""
    return min(rank + OVERSAMPLING, *shape)


def low_rank(target: Readable, origin: Readable, rank: int) -> LowRank:
    """Return the approximation of `target` − `origin`, two matrices of one shape, with at most `rank` directions.

    The memory is that of HELD_ELEMENTS and of at most three products with `followed` directions, all in float64.
    Raises BadOrgan for values that are not finite, and the errors of reading.
    """
    row, rows = target.shape[0], target.shape[1]
    count = followed((row, rows), rank)
    assert count * (row + rows) <= SKETCH_MAX_ELEMENTS
    difference = _Difference(target, origin)
    directions = np.random.Generator(np.random.Philox(key=_SEED)).standard_normal((row, count))
    for _ in range(ITERATIONS):
        product = np.zeros_like(directions)
        for band in difference.bands():
            product += band.T @ (band @ directions)
        directions = np.linalg.qr(product)[0]
    energy, parts = 0.0, list[Matrix]()
    for band in difference.bands():
        energy += float(np.vdot(band, band))
        parts.append(band @ directions)
    left, values, right = np.linalg.svd(np.concatenate(parts), full_matrices=False)
    size = min(rank, count)
    roots = np.sqrt(values[:size])
    a, b = (directions @ right[:size].T) * roots, left[:, :size] * roots
    return LowRank(np.ascontiguousarray(a.T, np.float32), b.astype(np.float32), values[:size] ** 2, energy)


class _Difference:
    """The difference of two matrices, in bands of whole rows; a small one is read once."""

    def __init__(self, target: Readable, origin: Readable) -> None:
        self._target, self._origin = target, origin
        row, rows = target.shape[0], target.shape[1]
        self._held = list(self._read()) if row * rows <= HELD_ELEMENTS else None

    def bands(self) -> Iterator[Matrix]:
        return iter(self._held) if self._held is not None else self._read()

    def _read(self) -> Iterator[Matrix]:
        row, rows = self._target.shape[0], self._target.shape[1]
        step = max(1, WINDOW_ELEMENTS // row)
        for first in range(0, rows, step):
            span = first * row, min(step, rows - first) * row
            band = self._target.values(*span)
            band -= self._origin.values(*span)
            yield band.reshape(-1, row)


def difference_energy(target: Readable, origin: Readable) -> float:
    """Return the sum of the squares of `target` − `origin`, two tensors of one shape. Raises the errors of reading."""
    size, energy = math.prod(target.shape), 0.0
    for first in range(0, size, WINDOW_ELEMENTS):
        count = min(WINDOW_ELEMENTS, size - first)
        window = target.values(first, count) - origin.values(first, count)
        energy += float(np.vdot(window, window))
    return energy
