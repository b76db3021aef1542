"""Tests of low-rank approximations: compared with numpy's decomposition of the whole matrix."""

from __future__ import annotations

import numpy as np
import pytest

from organs.registry.errors import BadOrgan
from organs.registry.transform import Plain, lowrank
from organs.registry.transform.lowrank import LowRank, difference_energy, low_rank
from tests.transform.memory_organs import F16, F32, Q8_0, Reads, Values, organ, values_of, weights

SHAPES = [(96, 64), (64, 96), (300, 128), (7, 200), (200, 3), (1, 64)]
"""Rows and columns."""


def low(rows: int, columns: int, rank: int, seed: int = 1) -> Values:
    """Return a matrix of this rank whose directions have different sizes."""
    random = np.random.default_rng(seed)
    return (random.standard_normal((rows, rank)) * 0.01 / np.arange(1, rank + 1)) @ random.standard_normal(
        (rank, columns)
    )


def pair(rows: int, columns: int, change: Values) -> tuple[Plain, Plain]:
    """Return a matrix with `change`, and the one without, in F32."""
    base = weights(rows * columns).reshape(rows, columns)
    return organ(base + change), organ(base)


def product(found: LowRank) -> Values:
    return found.b.astype(np.float64) @ found.a.astype(np.float64)


def difference(target: Plain, origin: Plain) -> Values:
    return (values_of(target) - values_of(origin)).reshape(target.shape[::-1])


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_a_difference_of_low_rank_is_recovered(rows: int, columns: int) -> None:
    # Whole multiples of a power of two, so that the sum is exact in F32.
    base = np.rint(weights(rows * columns) * 2**16).reshape(rows, columns) / 2**16
    down, along = np.arange(rows), np.arange(columns)
    change = (np.outer(down % 5 - 2, along % 7 - 3) + np.outer(down % 3, along % 2)) / 64
    found = low_rank(organ(base + change), organ(base), 4)
    assert np.allclose(product(found), change, rtol=0, atol=1e-6 * np.abs(change).max())
    assert found.kept(2) == pytest.approx(found.energy, rel=1e-12)
    assert found.energy == pytest.approx((change**2).sum(), rel=1e-12)


@pytest.mark.parametrize("rank", [1, 4, 16, 64])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize(("fall", "least"), [(0.0, 0.98), (0.7, 0.998)], ids=["noise", "a fine-tune"])
def test_the_share_is_that_of_the_product_and_nearly_the_best_one(
    rows: int, columns: int, rank: int, fall: float, least: float
) -> None:
    """The singular values of noise hardly fall, those of fine-tunes do with a power of their number."""
    left, values, right = np.linalg.svd(weights(rows * columns, 9).reshape(rows, columns), full_matrices=False)
    target, origin = pair(rows, columns, left * values * np.arange(1, len(values) + 1) ** -fall @ right)
    found, change = low_rank(target, origin, rank), difference(target, origin)
    size = min(rank, rows, columns)
    assert (found.a.shape, found.b.shape) == ((size, columns), (rows, size))
    rest = ((change - product(found)) ** 2).sum()
    assert found.energy - found.kept(rank) == pytest.approx(rest, rel=1e-5, abs=1e-9 * found.energy)
    best = (np.linalg.svd(change, compute_uv=False)[:size] ** 2).sum()
    assert least * best <= found.kept(rank) <= best * (1 + 1e-12)
    for fewer in range(1, size):
        part = found.b[:, :fewer].astype(np.float64) @ found.a[:fewer].astype(np.float64)
        rest = ((change - part) ** 2).sum()
        assert found.energy - found.kept(fewer) == pytest.approx(rest, rel=1e-5, abs=1e-9 * found.energy)


def test_a_matrix_that_is_not_held_is_read_in_bands_and_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    target, origin = pair(300, 128, low(300, 128, 40))
    held = low_rank(target, origin, 8)
    monkeypatch.setattr(lowrank, "HELD_ELEMENTS", 1)
    again = low_rank(target, origin, 8)
    assert (held.a.tobytes(), held.b.tobytes(), held.energy) == (again.a.tobytes(), again.b.tobytes(), again.energy)
    monkeypatch.setattr(lowrank, "WINDOW_ELEMENTS", 1000)
    assert isinstance(target.read, Reads)
    target.read.made.clear()
    banded = low_rank(target, origin, 8)
    assert max(size for _, size in target.read.made) <= 1000 * 4
    assert np.allclose(product(banded), product(held), rtol=0, atol=1e-7)
    assert banded.energy == pytest.approx(held.energy, rel=1e-12)


def test_types_may_differ_and_rounding_is_part_of_the_difference() -> None:
    values = weights(64 * 96).reshape(64, 96)
    change = low(64, 96, 2) / 100
    exact = low_rank(organ(values + change), organ(values), 2)
    rounded = low_rank(organ(values + change, Q8_0), organ(values, F16), 2)
    assert exact.kept(2) > 0.999 * exact.energy
    assert rounded.energy > exact.energy
    assert 0.1 < rounded.kept(2) / rounded.energy < 0.9


def test_equal_matrices_have_no_energy_and_factors_of_zeros() -> None:
    target, origin = pair(64, 32, np.zeros((64, 32)))
    found = low_rank(target, origin, 4)
    assert (found.energy, found.kept(4)) == (0.0, 0.0)
    assert not product(found).any()


@pytest.mark.parametrize("size", [1e-38, 1e30])
def test_very_small_and_very_large_values_are_decomposed(size: float) -> None:
    change = np.outer(np.arange(1, 33), np.arange(1, 65)) * size / 2048
    found = low_rank(organ(change), organ(change * 0), 2)
    assert np.allclose(product(found), change, rtol=1e-5, atol=1e-44)


def test_values_that_are_not_finite_are_refused() -> None:
    values = np.ones((8, 32), np.float32)
    values[3, 4] = np.nan
    damaged = Plain(Reads(values.tobytes(), []), F32, (32, 8))
    for target, origin in ((damaged, organ(np.ones((8, 32)))), (organ(np.ones((8, 32))), damaged)):
        with pytest.raises(BadOrgan, match="cannot be stored"):
            low_rank(target, origin, 2)
        with pytest.raises(BadOrgan, match="cannot be stored"):
            difference_energy(target, origin)


def test_the_energy_of_a_difference_is_the_sum_of_its_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    for shape in ((50,), (64, 5), (64, 5, 3)):
        first, second = weights(int(np.prod(shape)), 3), weights(int(np.prod(shape)), 4)
        target, origin = organ(first, F32, shape), organ(second, F32, shape)
        expected = ((values_of(target) - values_of(origin)) ** 2).sum()
        assert difference_energy(target, origin) == pytest.approx(expected, rel=1e-12)
        with monkeypatch.context() as patched:
            patched.setattr(lowrank, "WINDOW_ELEMENTS", 32)
            assert isinstance(target.read, Reads)
            target.read.made.clear()
            assert difference_energy(target, origin) == pytest.approx(expected, rel=1e-12)
            assert max(size for _, size in target.read.made) == 32 * 4, "however long a row is"
