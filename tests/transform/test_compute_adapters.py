"""Tests of adapters: random ones, and that of the zoo merged into its base, against sums in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from organs.registry.errors import BadOrgan
from organs.registry.gguf import DType
from organs.registry.transform import Adapter, Computation, Whole, magnitude_misfit, misfit, whole_misfit
from organs.registry.transform.compute import FACTOR_MAX_ELEMENTS, RANK_MAX, ROW_MAX_ELEMENTS, Adapted
from organs.registry.transform.values import WINDOW_ELEMENTS
from tests.transform.memory_organs import (
    BF16,
    F16,
    F32,
    Q4_0,
    Q8_0,
    Values,
    computed_bytes,
    organ,
    values_in,
    values_of,
)

HALF_A_STEP = {"F32": 2**-24, "F16": 2**-11, "BF16": 2**-8}
"""Half of the distance of two neighbouring values, divided by the larger of them."""


def normal(*shape: int, seed: int = 0) -> Values:
    return np.random.default_rng(seed).standard_normal(shape)


def product(b: NDArray[np.float64], a: NDArray[np.float64]) -> Values:
    """Return B·A by the matrix product of numpy, which is exact enough as a reference."""
    multiplied: Values = np.matmul(b, a)
    return multiplied


@pytest.mark.parametrize("dtype", [F32, F16, BF16, Q8_0, Q4_0], ids=lambda dtype: dtype.name)
def test_a_merge_equals_the_sum_in_float64_rounded_to_the_type(dtype: DType) -> None:
    base = organ(normal(50, 64), dtype, (64, 50, 1))  # a last dimension of 1 has no meaning
    b, a = organ(normal(50, 8, seed=1)), organ(normal(8, 64, seed=2))
    merged = values_in(computed_bytes(Computation(base, dtype, (Adapter(a, b, alpha=4.0, scale=0.8),))), dtype)
    change = product(values_of(b).reshape(50, 8), values_of(a).reshape(8, 64))
    blocks = (values_of(base) + 0.8 * 4 / 8 * change.ravel()).reshape(-1, 32)
    if dtype.name in HALF_A_STEP:
        most = np.abs(blocks) * HALF_A_STEP[dtype.name] * (1 + 1e-9)
    else:
        # A Q4_0 block has 16 levels, one of them beyond the largest value's opposite: that end may miss by a step.
        steps = 0.5 / 127 if dtype is Q8_0 else 1 / 8
        most = np.abs(blocks).max(axis=1, keepdims=True) * steps + np.abs(blocks) * 2**-10
    assert (np.abs(merged.reshape(-1, 32) - blocks) <= most).all()


def test_a_token_embedding_uses_its_factors_in_reverse_order() -> None:
    base, a, b = organ(normal(100, 32)), organ(normal(100, 3, seed=1)), organ(normal(32, 3, seed=2))
    assert (base.shape, a.shape, b.shape) == ((32, 100), (3, 100), (3, 32))
    merged = computed_bytes(Computation(base, F32, (Adapter(a, b, alpha=0.0),), is_token_embedding=True))
    change = product(values_of(a).reshape(100, 3), values_of(b).reshape(32, 3).T)
    np.testing.assert_allclose(values_in(merged, F32), values_of(base) + change.ravel(), rtol=1e-6, atol=1e-6)


def test_every_expert_of_a_stack_has_its_own_factors() -> None:
    base, a, b = organ(normal(5, 20, 32)), organ(normal(5, 3, 32, seed=1)), organ(normal(5, 20, 3, seed=2))
    assert (base.shape, a.shape, b.shape) == ((32, 20, 5), (32, 3, 5), (3, 20, 5))
    merged = values_in(computed_bytes(Computation(base, F32, (Adapter(a, b, alpha=6.0),))), F32)
    pairs = zip(values_of(b).reshape(5, 20, 3), values_of(a).reshape(5, 3, 32), strict=True)
    change = np.stack([2 * product(*pair) for pair in pairs])
    np.testing.assert_allclose(merged, values_of(base) + change.ravel(), rtol=1e-6, atol=1e-6)


def test_several_adapters_are_summed_before_one_rounding() -> None:
    base = organ(np.ones((1, 1)), F16)
    halves = tuple(Adapter(organ(np.ones((1, 1))), organ([[2**-11]]), 0.0, scale=0.6) for _ in range(2))
    # Each alone is less than half a step of F16 at 1 and would be lost; together they are more.
    assert values_in(computed_bytes(Computation(base, F16, halves[:1])), F16)[0] == 1.0
    assert values_in(computed_bytes(Computation(base, F16, halves)), F16)[0] == 1.0 + 2**-10


def dora_of(w: Values, b: Values, a: Values, scale: float, magnitude: Values) -> Values:
    """Return equation 5 of the paper on DoRA: each row of W + s·B·A gets the length m."""
    changed = w + scale * product(b, a)
    directed: Values = magnitude[:, None] * changed / np.linalg.norm(changed, axis=1, keepdims=True)
    return directed


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_dora_gives_each_row_of_the_sum_its_magnitude_as_the_length(scale: float) -> None:
    w, b, a = normal(700, 2048) * 0.02, normal(700, 4, seed=1), normal(4, 2048, seed=2) * 0.01
    magnitude = np.random.default_rng(3).uniform(0.5, 2.0, 700)
    assert w.size > WINDOW_ELEMENTS
    base = organ(w)
    dora = Adapter(organ(a), organ(b), 8.0, scale, magnitude=organ(magnitude))
    merged = values_in(computed_bytes(Computation(base, F32, (dora,))), F32)
    parts = [values_of(item).reshape(shape) for item, shape in ((base, w.shape), (dora.b, b.shape), (dora.a, a.shape))]
    wanted = dora_of(*parts, scale * 8.0 / 4, values_of(organ(magnitude)))
    np.testing.assert_allclose(merged, wanted.ravel(), rtol=1e-6, atol=1e-9)


def test_adapters_before_and_after_a_dora_are_added_in_their_order() -> None:
    w, b, a = normal(6, 32), normal(6, 2, seed=1), normal(2, 32, seed=2)
    plain, magnitude = Adapter(organ(a), organ(b), 0.0), np.linspace(1.0, 2.0, 6)
    dora = Adapter(organ(a), organ(b), 0.0, 0.5, organ(magnitude))
    merged = np.concatenate(list(Adapted(organ(w), (plain, dora, plain)).bands())).reshape(6, 32)
    w, b, a, magnitude = (values_of(organ(item)).reshape(item.shape) for item in (w, b, a, magnitude))
    wanted = dora_of(w + product(b, a), b, a, 0.5, magnitude) + product(b, a)
    np.testing.assert_allclose(merged, wanted, rtol=1e-12, atol=1e-12)


def test_a_row_of_zeros_has_no_direction_for_a_magnitude() -> None:
    dora = Adapter(organ(np.zeros((1, 32))), organ(np.ones((2, 1))), 1.0, magnitude=organ(np.ones(2)))
    with pytest.raises(BadOrgan, match="it has no direction"):
        computed_bytes(Computation(organ(np.zeros((2, 32))), F32, (dora,)))


def test_a_whole_tensor_takes_the_place_of_another_or_goes_a_part_of_the_way() -> None:
    base, other = organ(normal(5, 64)), organ(normal(5, 64, seed=1), F16)
    assert computed_bytes(Computation(base, F16, (Whole(other),))) == other.read(0, other.size_bytes)
    half = values_in(computed_bytes(Computation(base, F32, (Whole(other, 0.25),))), F32)
    np.testing.assert_allclose(half, 0.75 * values_of(base) + 0.25 * values_of(other), rtol=1e-6, atol=1e-6)
    b, a = normal(5, 1, seed=2), normal(1, 64, seed=3)
    both = (Whole(other), Adapter(organ(a), organ(b), 0.0))
    merged = values_in(computed_bytes(Computation(base, F32, both)), F32)
    np.testing.assert_allclose(merged, values_of(other) + product(b, a).ravel(), rtol=1e-5, atol=1e-5)
    vector = organ(normal(64), F32, (64,))
    assert computed_bytes(Computation(vector, F32, (Whole(organ(normal(64, seed=4))),))) != vector.read(0, 256)


@pytest.mark.parametrize(
    ("base", "magnitude", "embedding", "reason"),
    [
        ((64, 50), (64,), False, "magnitudes of 64 do not fit the 50 rows of 64×50"),
        ((64, 50, 3), (50,), False, "not for embeddings and stacks"),
        ((64, 50), (50,), True, "not for embeddings and stacks"),
        ((64, 50), (50, 2), False, "magnitudes of 50×2 do not fit"),
        ((64, 50), (50, 1), False, None),
    ],
)
def test_magnitudes_that_do_not_fit_are_refused_with_the_reason(
    base: tuple[int, ...], magnitude: tuple[int, ...], embedding: bool, reason: str | None
) -> None:
    refused = magnitude_misfit(base, magnitude, embedding)
    assert refused is None if reason is None else reason in (refused or "")


def test_a_whole_tensor_of_another_shape_is_refused_before_it_is_read() -> None:
    assert whole_misfit((64, 50), (64, 50, 1)) is None
    assert "rows of" in (whole_misfit((ROW_MAX_ELEMENTS + 1,), (ROW_MAX_ELEMENTS + 1,)) or "")
    other = organ(normal(6, 31))
    with pytest.raises(BadOrgan, match="a whole tensor of 31×6 cannot take the place of 32×6"):
        computed_bytes(Computation(organ(normal(6, 32)), F32, (Whole(other),)))
    assert other.read.made == []  # type: ignore[attr-defined]


def test_a_merge_over_many_bands_and_tiles_equals_a_single_merge() -> None:
    rows, row = 700, 2048
    assert rows * row > WINDOW_ELEMENTS
    base, b, a = organ(normal(rows, row), F16), organ(normal(rows, 2, seed=1), F16), organ(normal(2, row, seed=2))
    merged = np.concatenate(list(Adapted(base, (Adapter(a, b, 2.0),)).bands()))
    change = product(values_of(b).reshape(rows, 2), values_of(a).reshape(2, row))
    np.testing.assert_allclose(merged, values_of(base) + change.ravel(), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("base", "a", "b", "embedding", "reason"),
    [
        ((64, 50), (65, 8), (8, 50), False, "factors of 65×8 and 8×50 do not multiply to 64×50"),
        ((64, 50, 4), (64, 8, 4), (8, 50, 3), False, "do not multiply"),
        ((32, 100, 2), (3, 100, 2), (3, 32, 2), True, "a token embedding is one matrix"),
        ((64,), (64, 8), (8, 2), False, "factors of 64×8 and 8×2 do not multiply to 64"),
        ((64, 2, 2, 2), (64, 8), (8, 2), False, "only a matrix"),
        ((64, 50), (64, 0), (0, 50), False, "its rank is 0"),
        ((64, 50), (64, RANK_MAX + 1), (RANK_MAX + 1, 50), False, "its rank is 4,097"),
        ((ROW_MAX_ELEMENTS + 1, 2), (ROW_MAX_ELEMENTS + 1, 1), (1, 2), False, "more than is merged"),
        ((1 << 22, 2), (1 << 22, 32), (32, 2), False, "more than is merged"),
    ],
)
def test_factors_that_do_not_fit_are_refused_with_the_reason(
    base: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...], embedding: bool, reason: str
) -> None:
    misfit_reason = misfit(base, a, b, embedding)
    assert misfit_reason is not None
    assert reason in misfit_reason
    assert FACTOR_MAX_ELEMENTS < 32 << 22


def test_factors_of_the_wrong_shape_are_refused_before_anything_is_read() -> None:
    base, a, b = organ(normal(6, 32)), organ(normal(8, 31)), organ(normal(6, 8))
    with pytest.raises(BadOrgan, match="does not fit"):
        computed_bytes(Computation(base, F32, (Adapter(a, b, 1.0),)))
    assert base.read.made == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(("alpha", "scale"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.inf), (1e300, 1e300)])
def test_a_factor_that_is_not_finite_is_refused(alpha: float, scale: float) -> None:
    base, a, b = organ(normal(6, 32)), organ(normal(8, 32)), organ(normal(6, 8))
    with pytest.raises(BadOrgan, match="no finite factor"):
        computed_bytes(Computation(base, F32, (Adapter(a, b, alpha, scale),)))


@pytest.mark.parametrize("factor", ["a", "b"])
def test_a_factor_with_a_nan_is_refused(factor: str) -> None:
    values = {"base": normal(6, 32), "a": normal(8, 32), "b": normal(6, 8)}
    values[factor][3, 3] = np.nan
    base, a, b = (organ(values[name]) for name in ("base", "a", "b"))
    with pytest.raises(BadOrgan, match="cannot be stored as F32"):
        computed_bytes(Computation(base, F32, (Adapter(a, b, 1.0),)))


def test_a_sum_that_the_type_cannot_hold_is_refused() -> None:
    base, a, b = organ(normal(6, 32), F16), organ(normal(8, 32)), organ(normal(6, 8))
    with pytest.raises(BadOrgan, match="F16 can store"):
        computed_bytes(Computation(base, F16, (Adapter(a, b, 1e6),)))
    with pytest.raises(BadOrgan, match="F32 can store"):
        computed_bytes(Computation(base, F32, (Adapter(a, b, 1e300, 1e8),)))
