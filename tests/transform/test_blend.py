"""Tests of blends: the values of mergekit, the same in bands of any size, random masks, and what has no result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.mergekit_cases import CASES, MATRIX, VECTOR, mask_words
from organs.registry.errors import BadOrgan
from organs.registry.gguf import dtype_by_name
from organs.registry.transform import blend
from organs.registry.transform.blend import METHODS, PARAMETERS, Operands, blended
from organs.registry.transform.values import Plain

EXPECTED = Path(__file__).with_name("mergekit.npz")
F32 = dtype_by_name("F32")


@pytest.fixture(scope="module")
def mergekit() -> Iterator[Mapping[str, NDArray[np.float32]]]:
    with np.load(EXPECTED) as results:
        yield {name: results[name] for name in results.files}


def plain(values: NDArray[Any]) -> Plain:
    data = values.astype("<f4").tobytes()
    return Plain(lambda offset, size: data[offset : offset + size], F32, tuple(reversed(values.shape)))


def settings_of(method: str, donors: int, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return all parameters of a method, by default those of mergekit."""
    return {
        name: parameters.get(name, [default] * donors if PARAMETERS[name].is_each else default)
        for name, default in METHODS[method].defaults.items()
    }


def result(
    method: str,
    base: NDArray[Any],
    donors: Sequence[NDArray[Any]],
    parameters: Mapping[str, Any] | None = None,
    key: str = "",
) -> NDArray[np.float64]:
    settings = settings_of(method, len(donors), parameters or {})
    values = np.concatenate(list(blended(method, plain(base), list(map(plain, donors)), settings, key)))
    return values.reshape(base.shape)


@pytest.fixture
def masks_of_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(operands: Operands, _number: int, start: int, chances: NDArray[np.float64]) -> NDArray[np.bool_]:
        words = mask_words(operands.size)[start : start + chances.size]
        return words.reshape(chances.shape) < chances

    monkeypatch.setattr(blend, "drawn", drawn)


@pytest.mark.parametrize("band", [1 << 18, 24], ids=["one band", "bands of two rows"])
@pytest.mark.parametrize("tensor", [MATRIX, VECTOR], ids=["matrix", "vector"])
@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: f"{number}-{CASES[number][0]}")
@pytest.mark.usefixtures("masks_of_the_bench")
def test_every_method_gives_the_values_of_mergekit(
    mergekit: Mapping[str, NDArray[np.float32]], monkeypatch: pytest.MonkeyPatch, number: int, tensor: str, band: int
) -> None:
    monkeypatch.setattr(blend, "BAND_ELEMENTS", band)
    method, letters, each, shared = CASES[number]
    donors = [mergekit[f"{letter}/{tensor}"] for letter in letters]
    values = result(method, mergekit[f"a/{tensor}"], donors, {**each, **shared})
    # mergekit computes in float32.
    np.testing.assert_allclose(values, mergekit[f"{number}/{tensor}"], rtol=0, atol=2e-6)


def test_every_method_has_a_case() -> None:
    assert {method for method, *_ in CASES} == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_a_donor_that_is_the_base_changes_nothing(method: str) -> None:
    base = np.random.default_rng(1).standard_normal((6, 8)).astype(np.float32)
    donors = [base] * (METHODS[method].donors[1] or 3)
    parameters = {"weight": [0.5] * len(donors), "density": [0.5] * len(donors), "t": 0.3, "tol": 0.0}
    np.testing.assert_allclose(result(method, base, donors, parameters), base, rtol=0, atol=1e-14)


def test_the_matrices_of_a_stack_are_blended_one_by_one() -> None:
    random = np.random.default_rng(2)
    base, donor = (random.standard_normal((3, 5, 8)).astype(np.float32) for _ in range(2))
    whole = result("ties", base, [donor], {"weight": [1.0], "density": [0.3]})
    each = [
        result("ties", one, [other], {"weight": [1.0], "density": [0.3]})
        for one, other in zip(base, donor, strict=True)
    ]
    np.testing.assert_array_equal(whole, np.stack(each))


def test_random_masks_depend_on_the_key_and_the_donor_alone() -> None:
    base, donor = np.zeros((4, 1024), np.float32), np.ones((4, 1024), np.float32)
    parameters = {"weight": [1.0, 2.0], "density": [0.25, 0.25], "rescale": False}
    first, again, other = (
        result("dare_linear", base, [donor, donor], parameters, key)
        for key in ("0/a.weight", "0/a.weight", "0/b.weight")
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.3
    shares = [np.isin(first, values).mean() for values in ((1.0, 3.0), (2.0, 3.0))]
    assert shares == pytest.approx([0.25, 0.25], abs=0.03)
    assert (first == 3.0).mean() == pytest.approx(0.0625, abs=0.02)


def test_of_equal_changes_the_first_are_kept_and_no_more_than_the_density() -> None:
    base, donor = np.zeros((4, 8), np.float32), np.ones((4, 8), np.float32)
    kept = result("ties", base, [donor], {"weight": [1.0], "density": [0.3]})
    assert kept.reshape(-1).tolist() == [1.0] * 9 + [0.0] * 23


@pytest.mark.parametrize("weights", [[0.75, 0.25], [1.0, -0.9], [-1.0, 1.1], [3.0, -3.01]])
def test_an_arc_continues_beyond_its_ends(weights: list[float]) -> None:
    base, first, other = np.random.default_rng(3).standard_normal((3, 6, 8)).astype(np.float32).astype(np.float64)
    norms = [np.linalg.norm(donor - base) for donor in (first, other)]
    angle = np.arccos(((first - base) * (other - base)).sum() / np.prod(norms))
    t = weights[1] / sum(weights)
    expected = base + ((first - base) * np.sin((1.0 - t) * angle) + (other - base) * np.sin(t * angle)) / np.sin(angle)
    found = result("nuslerp", base, [first, other], {"weight": weights})
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


def test_an_arithmetic_error_is_a_blend_without_a_result() -> None:
    with pytest.raises(BadOrgan, match="no result"):
        result("linear", np.zeros((1, 2)), [np.ones((1, 2))] * 2, {"weight": [1e308, 1e308]})


@pytest.mark.parametrize(
    ("method", "donors", "parameters", "sentence"),
    [
        ("linear", [[[1.0, 2.0]], [[2.0, 3.0]]], {"weight": [1.0, -1.0]}, "sum 0"),
        ("karcher", [[[1.0, 2.0]], [[-1.0, -2.0]]], {}, "no mean direction"),
        ("karcher", [[[1.0, 2.0]], [[1.0, 2.0]], [[-1.0, -2.0]]], {}, "no mean direction"),
        ("della", [[[1.0, 2.0]]], {"weight": [1.0], "density": [0.1]}, "between 0 and 1"),
    ],
)
def test_parameters_without_a_result_are_refused(
    method: str, donors: list[Any], parameters: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadOrgan, match=sentence):
        result(method, np.zeros((1, 2)), [np.array(donor) for donor in donors], parameters)
