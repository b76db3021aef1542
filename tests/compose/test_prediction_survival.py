"""Tests of survival: from correlations and moments of the changed organs, as far as they are known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.anatomy import OrganType, place_of
from organs.registry.compose.models import Part
from organs.registry.compose.prediction import (
    ENERGY_MAX,
    Change,
    Group,
    groups_of,
    moved_energy,
    part_correlation,
)
from organs.registry.digest import digest_of
from organs.registry.gguf import dtype_by_name
from organs.registry.gguf.quants import quantize
from organs.registry.measure import measure
from tests.random_files import PATIENT

F32 = dtype_by_name("F32")
MATRIX, VECTOR = (64, 48), (300,)


def normal(seed: int, size: int = 64 * 48) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size)


def part(values: np.ndarray, name: str = "blk.1.ffn_gate.weight", shape: tuple[int, ...] = MATRIX) -> Part:
    """Return a measured tensor of these values."""
    data = quantize(values.astype(np.float32), F32)
    measurement = measure(lambda at, size: data[at : at + size], shape, F32)
    measured = (
        measurement.theta,
        measurement.spectral_signal,
        measurement.fingerprint,
        measurement.mean,
        measurement.standard_deviation,
    )
    return Part(name, place_of(name), F32, shape, digest_of(data), *measured)


def grafted(before: Part, source: Part) -> Change:
    return Change(before, source, source)


def only(*changes: Change) -> Group:
    (group,) = groups_of(changes)
    return group


def test_very_similar_organs_survive() -> None:
    own = normal(0)
    group = only(grafted(part(own), part(own + 0.1 * normal(1))))
    assert group.survival == pytest.approx(1 / math.sqrt(1.01), abs=0.02)
    assert (group.organs, group.uncounted, group.distortion) == (1, 0, 0.0)


def test_the_organs_of_an_unrelated_model_do_not_survive() -> None:
    assert only(grafted(part(normal(0)), part(normal(1)))).survival == pytest.approx(0.0, abs=0.2)


def test_the_survival_of_a_mirrored_organ_is_not_negative() -> None:
    group = only(grafted(part(normal(0)), part(-normal(0))))
    assert group.similarity == pytest.approx(-1.0, abs=0.01)
    assert group.survival == 0.0


def test_scales_multiply_within_a_group_and_larger_scales_do_no_harm() -> None:
    own, other = normal(0), normal(1)
    up = "blk.1.ffn_up.weight"
    small = [grafted(part(own), part(0.5 * own)), grafted(part(other, up), part(0.5 * other, up))]
    assert only(*small).survival == pytest.approx(0.25, abs=0.01)
    assert only(grafted(part(own), part(3.0 * own))).survival == pytest.approx(1.0, abs=0.01)


def test_an_organ_replaced_by_zeros_has_no_survival() -> None:
    assert only(grafted(part(normal(0)), part(np.zeros(64 * 48)))).survival == 0.0


def test_organs_at_new_places_are_not_counted() -> None:
    group = only(grafted(part(np.zeros(64 * 48)), part(normal(0))))
    assert (group.survival, group.uncounted) == (None, 1)


def test_without_fingerprints_nothing_is_counted() -> None:
    before, after = (replace(part(normal(seed)), fingerprint=None) for seed in (0, 1))
    group = only(grafted(before, after))
    assert (group.survival, group.uncounted, group.distortion) == (None, 1, 0.0)


def test_a_group_is_a_type_in_a_block_of_a_tower() -> None:
    names = (
        "blk.1.ffn_up.weight",
        "blk.1.ffn_down.weight",
        "blk.1.attn_q.weight",
        "v.blk.1.ffn_up.weight",
        "blk.0.ffn_up.weight",
    )
    changes = [grafted(part(normal(0), name), part(normal(1), name)) for name in names]
    found = [(group.type.value, group.tower, group.block, group.organs) for group in groups_of(changes)]
    assert found == [
        ("organ", "text", 1, 2),
        ("skeleton", "text", 1, 1),
        ("organ", "vision", 1, 1),
        ("organ", "text", 0, 1),
    ]


def test_vectors_count_by_changed_energy_and_only_without_changed_matrices() -> None:
    name = "blk.1.ffn_norm.weight"
    ones = np.ones(300)
    before, after = part(ones, name, VECTOR), part(1.5 * ones, name, VECTOR)
    alone = only(grafted(before, after))
    assert (alone.type, alone.survival) == (OrganType.NORM, None)
    assert alone.distortion == pytest.approx(0.25)
    bias = (
        replace(before, name="b", place=place_of("blk.1.ffn_up.bias")),
        replace(after, place=place_of("blk.1.ffn_up.bias")),
    )
    with_matrix = only(grafted(*bias), grafted(part(normal(0)), part(normal(0) + 0.1 * normal(1))))
    assert (with_matrix.organs, with_matrix.distortion) == (2, 0.0)


def test_the_changed_energy_is_that_of_the_difference() -> None:
    first, second = 2.0 + normal(0), 1.5 + 0.6 * normal(0) + 0.4 * normal(1)
    one, other = part(first), part(second)
    true = float(((second - first) ** 2).sum() / (first**2).sum())
    assert moved_energy(one, other, float(np.corrcoef(first, second)[0, 1])) == pytest.approx(true, rel=1e-3)
    correlation = part_correlation(one, other)
    assert correlation is not None
    assert moved_energy(one, other, correlation) == pytest.approx(true, rel=0.2)
    assert (moved_energy(one, other, None) or 0.0) < true


def test_measured_values_are_preferred_to_estimates() -> None:
    own = part(normal(0))
    after = part(normal(0) + 0.3 * normal(1))
    assert only(Change(own, own, None, 0.5)).distortion == 0.5
    assert only(Change(own, own, after, 0.5)).distortion == pytest.approx(0.09, rel=0.25)
    assert only(Change(own, own, replace(after, fingerprint=None), 0.5)).distortion == 0.5
    assert only(Change(own, own, None, None)).uncounted == 1
    assert only(Change(own, own, None, math.inf)).uncounted == 1


_NUMBERS = st.none() | st.floats() | st.floats(0, 1e-300) | st.floats(0, 2)
_FINGERPRINTS = st.none() | st.binary(min_size=256, max_size=256) | st.just(bytes(256))
_PLACES = st.sampled_from([place_of(name) for name in ("blk.1.ffn_gate", "blk.1.ffn_norm", "token_embd", "strange")])


@st.composite
def parts(draw: st.DrawFn) -> Part:
    """Generate values that a catalog may contain, and many that it cannot."""
    shape = draw(st.sampled_from((MATRIX, (1,), (7, 3), VECTOR, (64, 48, 1))))
    digest = digest_of(draw(st.sampled_from((b"", b"a", b"b"))))
    place = draw(_PLACES)
    theta, spectral = draw(st.none() | st.floats(0, 90)), draw(st.none() | st.floats(0, 1))
    return Part(
        place.slot, place, F32, shape, digest, theta, spectral, draw(_FINGERPRINTS), draw(_NUMBERS), draw(_NUMBERS)
    )


@st.composite
def any_changes(draw: st.DrawFn) -> list[Change]:
    """Generate up to six changes, some computed, some not yet."""
    changes = []
    for _ in range(draw(st.integers(0, 6))):
        before, source = draw(parts()), draw(parts())
        after = draw(st.sampled_from((source, None)) | parts())
        changes.append(Change(before, source, after, draw(_NUMBERS)))
    return changes


@PATIENT
@given(any_changes())
def test_any_measures_give_a_survival_within_bounds(changes: list[Change]) -> None:
    groups = groups_of(changes)
    assert sum(group.organs for group in groups) == len(changes)
    for group in groups:
        assert 0 <= group.uncounted <= group.organs
        assert 0.0 <= group.distortion <= ENERGY_MAX
        assert group.survival is None or 0.0 <= group.survival <= 1.0
