"""Tests of the similarity of organs and of models."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.anatomy import Slot
from organs.registry.measure.measurement import fingerprint
from organs.registry.similarity import (
    CLOSE,
    NOISE,
    RELATED,
    ComparableOrgan,
    Groups,
    Kinship,
    Similarity,
    changes,
    coarse_rows,
    correlation,
    correlations,
    fingerprint_of,
    is_another_encoding,
    probes,
    relation_to_parent,
    similarity,
    value_rows,
)
from tests.random_files import PATIENT

SHAPE = (64, 32)


def print_of(seed: int, parent: int | None = None, share: float = 0.0) -> bytes:
    """Return the fingerprint of random values, a `share` of them (by correlation) equal to those of `parent`."""
    values = np.random.default_rng(seed).standard_normal(2048)
    if parent is not None:
        values = share * np.random.default_rng(parent).standard_normal(2048) + np.sqrt(1 - share**2) * values
    found = fingerprint(values)
    assert found is not None
    return found


def organ(kind: str, shape: tuple[int, ...], measurement: bytes | None, dtype: str = "F16") -> ComparableOrgan:
    """Return an organ that is unique in its type, shape, fingerprint and dtype."""
    return ComparableOrgan(kind, shape, dtype, measurement, (shape, dtype, measurement))


def model(seed: int, parent: int | None = None, share: float = 0.0, blocks: int = 6) -> dict[Slot, ComparableOrgan]:
    """Return a model of some blocks, each with an attention organ, a feed-forward organ and a norm."""
    organs: dict[Slot, ComparableOrgan] = {}
    for block in range(blocks):
        for index, (kind, slot) in enumerate((("skeleton", "attn_q"), ("organ", "ffn_up"))):
            place = 10 * block + index
            relative = None if parent is None else parent * 1000 + place
            organs["text", block, slot] = organ(kind, SHAPE, print_of(seed * 1000 + place, relative, share))
        organs["text", block, "attn_norm"] = organ("norm", (2048,), print_of(5), "F32")
    return organs


def test_present_fingerprints_can_be_compared_with_those_of_earlier_versions() -> None:
    first, second = print_of(1), print_of(2, parent=1, share=0.5)
    earlier, later = (row.tobytes() for row in coarse_rows([first, second]))
    expected = pytest.approx(float(np.corrcoef(*coarse_rows([first, second]))[0, 1]), abs=1e-12)
    assert correlations(earlier, [second, later]) == [expected, expected]
    assert correlation(first, second) == expected
    assert changes([(first, second), (first, later), (earlier, later)])[1:] == [None, None]


@pytest.mark.parametrize("energy", [1e-7, 7.5e-6, 4e-4, 0.02])
def test_changes_are_resolved_to_two_digits_down_to_1e_7(energy: float) -> None:
    random = np.random.default_rng(1)
    values = 0.05 * random.standard_t(4, (400, 256))
    tuned = values + 0.05 * np.sqrt(2 * energy) * random.standard_normal(values.shape)  # Student's t: variance 2
    pairs = [(fingerprint_of(own), fingerprint_of(other)) for own, other in zip(values, tuned, strict=True)]
    found = [change for change in changes(pairs) if change is not None]
    exact = ((values - tuned) ** 2).sum(axis=1) / ((values**2).sum(axis=1) + (tuned**2).sum(axis=1)) * 2
    assert len(found) == 400
    assert np.mean(found) == pytest.approx(float(np.mean(exact)), rel=0.02)
    assert changes([(pairs[0][0], pairs[0][0])]) == [0.0]


def test_unrelated_organs_have_a_change_of_two_and_constants_may_change() -> None:
    assert changes([(print_of(1), print_of(2))]) == [pytest.approx(2.0, abs=0.4)]
    ones, halves, zeros = (fingerprint_of(np.full(256, value)) for value in (1.0, 0.5, 0.0))
    assert changes([(ones, halves), (ones, zeros), (zeros, zeros)]) == [pytest.approx(0.4), pytest.approx(2.0), None]


@pytest.mark.parametrize("scale", [1e160, 1e-160])
def test_the_change_does_not_depend_on_the_scale_of_both_organs(scale: float) -> None:
    random = np.random.default_rng(1)
    base, stranger, noise = random.standard_normal((3, 256))
    rows = (base, stranger, base + 1e-3 * noise)
    own, scaled = ([fingerprint_of(factor * row) for row in rows] for factor in (1.0, scale))
    expected = changes([(own[0], own[1]), (own[0], own[2])])
    assert expected[0] == pytest.approx(2, rel=0.3)
    assert changes([(scaled[0], scaled[1]), (scaled[0], scaled[2])]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("deviations", [6.0, 12.0, -12.0, 60.0])
def test_one_changed_weight_among_the_256_does_not_outweigh_the_others(deviations: float) -> None:
    values = np.random.default_rng(1).standard_normal(2048)
    edited = values.copy()
    edited[0] = deviations
    own, other = fingerprint(values), fingerprint(edited)
    assert own is not None
    assert other is not None
    assert np.corrcoef(*coarse_rows([own, other]))[0, 1] < 0.98
    assert correlation(own, other) == pytest.approx(1.0, abs=0.005)


def test_outliers_are_compared_if_only_they_vary() -> None:
    spike, other = (bytes(place) + b"\x7f" + bytes(255 - place) for place in (3, 40))
    assert correlation(spike, other) == pytest.approx(-1 / 255)
    assert correlation(spike, spike) == pytest.approx(1.0)


@PATIENT
@given(first=st.binary(min_size=256, max_size=256), second=st.binary(min_size=256, max_size=256))
def test_a_correlation_is_symmetric_and_at_most_one(first: bytes, second: bytes) -> None:
    value = correlation(first, second)
    assert value == correlation(second, first)
    if value is None:
        assert len(set(first)) == 1 or len(set(second)) == 1
    else:
        assert -1.0 <= value <= 1.0


def test_similarity_is_reported_by_type_and_by_block_in_order() -> None:
    first, second = model(1), model(2, parent=1, share=0.99)
    second["text", 3, "ffn_up"] = organ("organ", SHAPE, print_of(77))
    likeness = similarity(first, second)
    assert list(likeness.by_block) == [("text", block) for block in range(6)]
    assert min(likeness.by_block, key=lambda place: likeness.by_block[place]) == ("text", 3)
    assert likeness.by_block["text", 3] == pytest.approx(0.5, abs=0.1)
    assert likeness.by_type["skeleton"] == pytest.approx(0.99, abs=0.01)
    assert likeness.by_type["organ"] == pytest.approx(0.99 * 5 / 6, abs=0.03)


def test_a_matrix_of_one_row_is_a_vector_and_a_stack_of_experts_is_not() -> None:
    own = print_of(1)
    for shape, count in (((2048, 1), 0), ((1, 2048, 1), 0), ((64, 32), 1), ((16, 16, 8), 1)):
        organs: dict[Slot, ComparableOrgan] = {("text", 0, "x"): organ("organ", shape, own)}
        assert similarity(organs, organs).organ_count == count


def test_an_unreadable_organ_is_fully_similar_to_itself() -> None:
    unreadable = organ("organ", SHAPE, None, "Q1_0")
    organs: dict[Slot, ComparableOrgan] = {("text", 0, "x"): unreadable}
    likeness = similarity(organs, dict(organs))
    assert (likeness.mean, likeness.organ_count, likeness.identical_count) == (1.0, 1, 1)
    other: dict[Slot, ComparableOrgan] = {("text", 0, "x"): organ("organ", SHAPE, print_of(1))}
    assert similarity({("text", 0, "x"): unreadable}, other).mean is None


def test_unrelated_models_with_common_zero_matrices_are_not_relatives() -> None:
    first, second = model(1), model(2)
    for block in range(6):
        zeros = organ("skeleton", SHAPE, bytes(256))
        first["text", block, "attn_q"] = second["text", block, "attn_q"] = zeros
    likeness = similarity(first, second)
    assert likeness.mean == pytest.approx(0.0, abs=0.1)
    assert (likeness.kinship, likeness.organ_count, likeness.identical_count) == (Kinship.UNRELATED, 6, 12)
    alone: dict[Slot, ComparableOrgan] = {("text", 0, "x"): organ("organ", SHAPE, bytes(256))}
    likeness = similarity(alone, dict(alone))
    assert (likeness.mean, likeness.identical_count, likeness.kinship) == (None, 1, Kinship.INCOMPARABLE)


def test_the_noise_of_unrelated_models_agrees_with_the_thresholds() -> None:
    prints = [print_of(seed) for seed in range(60)]
    values = [value for own in prints for value in correlations(own, prints) if value is not None and value < 0.99]
    assert len(values) == 60 * 59
    assert NOISE / 2 < float(np.std(values)) < NOISE
    assert max(values) < 5 * NOISE


@pytest.mark.parametrize(
    ("mean", "organ_count", "expected"),
    [
        (1.0, 1, Kinship.CLOSE),
        (CLOSE, 29, Kinship.CLOSE),
        (0.9799, 29, Kinship.KIN),
        (RELATED, 29, Kinship.KIN),
        (0.1999, 29, Kinship.UNRELATED),
        (0.3, 1, Kinship.UNRELATED),
        (0.36, 1, Kinship.KIN),
        (-1.0, 1, Kinship.UNRELATED),
        (None, 0, Kinship.INCOMPARABLE),
    ],
)
def test_models_are_relatives_if_their_similarity_exceeds_chance(
    mean: float | None, organ_count: int, expected: Kinship
) -> None:
    assert Similarity(mean, organ_count, 29, 29, 0, {}, {}, {}).kinship is expected


def test_probes_are_spread_over_types_and_blocks_without_norms() -> None:
    organs = model(1, blocks=24)
    organs["text", None, "token_embd"] = organ("embed", SHAPE, print_of(9))
    organs["text", 3, "attn_q"] = organ("skeleton", SHAPE, bytes(256))
    chosen = probes(organs, 8)
    kinds = [organs[slot].type for slot in chosen]
    assert len(set(chosen)) == 8
    assert sorted(kinds) == ["embed"] + 4 * ["organ"] + 3 * ["skeleton"] or sorted(kinds) == [
        "embed",
        *(3 * ["organ"]),
        *(4 * ["skeleton"]),
    ]
    assert len({slot[:2] for slot in chosen}) == 8
    assert ("text", 3, "attn_q") not in chosen, "a constant tells nothing"


def encoded(organs: dict[Slot, ComparableOrgan], dtype: str, noise: float) -> dict[Slot, ComparableOrgan]:
    """Return the model with its matrices rounded to another dtype, as visible in a fingerprint."""
    random = np.random.default_rng(3)
    found = dict(organs)
    for slot, own in organs.items():
        if own.is_matrix and own.fingerprint is not None:
            values = value_rows([own.fingerprint])[0]
            rounded = fingerprint(values + noise * values.std() * random.standard_normal(values.size))
            found[slot] = organ(own.type, own.shape, rounded, dtype)
    return found


@pytest.mark.parametrize(("dtype", "noise"), [("Q8_0", 0.005), ("Q4_K", 0.07), ("Q2_K", 0.25)])
def test_another_encoding_of_the_same_weights_is_recognised(dtype: str, noise: float) -> None:
    own = model(1)
    other = encoded(own, dtype, noise)
    assert is_another_encoding(own, other, similarity(own, other))
    assert is_another_encoding(other, own, similarity(other, own))


def test_a_fine_tune_is_not_another_encoding() -> None:
    own = model(1)
    too_far = encoded(own, "Q8_0", 0.25)
    assert not is_another_encoding(own, too_far, similarity(own, too_far)), "more than rounding to 8 bits explains"
    same_dtype = encoded(own, "F16", 0.005)
    assert not is_another_encoding(own, same_dtype, similarity(own, same_dtype))
    tuned = encoded(own, "Q8_0", 0.005)
    tuned["text", 2, "attn_norm"] = organ("norm", (2048,), print_of(6), "F32")
    assert not is_another_encoding(own, tuned, similarity(own, tuned)), "training changes norms"
    longer = encoded(own, "Q8_0", 0.005) | {("text", None, "output"): organ("embed", SHAPE, print_of(8))}
    assert not is_another_encoding(own, longer, similarity(own, longer))
    assert not is_another_encoding({}, {}, similarity({}, {}))


@pytest.mark.parametrize(
    ("stated", "measured", "bits", "relation"),
    [
        ("finetune", "quantized", 8.5, "quantized"),
        ("finetune", "quantized", 16.0, "relative"),
        ("quantized", "quantized", 32.0, "relative"),
        ("relative", "quantized", 8.5, "quantized"),
        ("finetune", "relative", 8.5, "finetune"),
        ("finetune", None, 8.5, "finetune"),
        ("adapter", "quantized", 8.5, "adapter"),
        ("grafted", "quantized", 8.5, "grafted"),
    ],
)
def test_the_relation_to_a_parent_is_the_measured_one_if_the_weights_show_it(
    stated: str, measured: str | None, bits: float, relation: str
) -> None:
    assert relation_to_parent(stated, measured, bits, 16.0) == relation


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=20))
def test_connected_elements_are_in_one_group(pairs: list[tuple[int, int]]) -> None:
    groups = Groups()
    for pair in pairs:
        groups.join(*pair)
    for start in range(13):
        reached = {start}
        for _ in range(13):
            reached |= {end for pair in pairs if reached & set(pair) for end in pair}
        assert {number for number in range(13) if groups.leader(number) == groups.leader(start)} == reached
