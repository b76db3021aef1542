"""How alike two organs and two models are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.lineage import Organ, Slot, correlation, similarity
from registry.measure import fingerprint
from tests.strategies import PATIENT

SHAPE = (64, 32)


def print_of(seed: int, parent: int | None = None, share: float = 0.0) -> bytes:
    """The fingerprint of random values, `share` of them (by correlation) those of `parent`."""
    values = np.random.default_rng(seed).standard_normal(2048)
    if parent is not None:
        values = share * np.random.default_rng(parent).standard_normal(2048) + np.sqrt(1 - share**2) * values
    found = fingerprint(values)
    assert found is not None
    return found


def model(seed: int, parent: int | None = None, share: float = 0.0, blocks: int = 6) -> dict[Slot, Organ]:
    """A model of some blocks, each with an attention and a feed-forward organ and a norm."""
    organs: dict[Slot, Organ] = {}
    for block in range(blocks):
        for index, (kind, slot) in enumerate((("skeleton", "attn_q"), ("organ", "ffn_up"))):
            place = 10 * block + index
            relative = None if parent is None else parent * 1000 + place
            organs["text", block, slot] = (kind, SHAPE, print_of(seed * 1000 + place, relative, share))
        organs["text", block, "attn_norm"] = ("norm", (2048,), print_of(5))
    return organs


def test_a_fingerprint_is_fully_correlated_with_itself_and_with_its_opposite() -> None:
    own = print_of(1)
    opposite = (-np.frombuffer(own, np.int8)).astype(np.int8).tobytes()
    assert correlation(own, own) == pytest.approx(1.0)
    assert correlation(own, opposite) == pytest.approx(-1.0)


def test_the_correlation_is_that_of_the_signed_bytes() -> None:
    first, second = print_of(1), print_of(2, parent=1, share=0.5)
    expected = np.corrcoef(np.frombuffer(first, np.int8), np.frombuffer(second, np.int8))[0, 1]
    assert correlation(first, second) == pytest.approx(float(expected), abs=1e-12)


@PATIENT
@given(first=st.binary(min_size=256, max_size=256), second=st.binary(min_size=256, max_size=256))
def test_a_correlation_is_symmetric_and_within_one(first: bytes, second: bytes) -> None:
    value = correlation(first, second)
    assert value == correlation(second, first)
    if value is None:
        assert len(set(first)) == 1 or len(set(second)) == 1
    else:
        assert -1.0 <= value <= 1.0


def test_a_constant_has_no_correlation() -> None:
    assert correlation(bytes(256), print_of(1)) is None
    assert correlation(print_of(1), bytes([200]) * 256) is None


def test_strangers_are_near_zero_and_norms_do_not_lift_them() -> None:
    found = similarity(model(1), model(2))
    assert found.organ_count == 12
    assert found.mean == pytest.approx(0.0, abs=0.08)
    assert "norm" not in found.by_type


@pytest.mark.parametrize("share", [0.5, 0.84, 0.99])
def test_relatives_are_as_alike_as_their_organs(share: float) -> None:
    assert similarity(model(1), model(2, parent=1, share=share)).mean == pytest.approx(share, abs=0.06)


def test_similarity_is_told_by_type_and_by_block_in_order() -> None:
    first, second = model(1), model(2, parent=1, share=0.99)
    second["text", 3, "ffn_up"] = ("organ", SHAPE, print_of(77))
    found = similarity(first, second)
    assert list(found.by_block) == [("text", block) for block in range(6)]
    assert min(found.by_block, key=lambda place: found.by_block[place]) == ("text", 3)
    assert found.by_block["text", 3] == pytest.approx(0.5, abs=0.1)
    assert found.by_type["skeleton"] == pytest.approx(0.99, abs=0.01)
    assert found.by_type["organ"] == pytest.approx(0.99 * 5 / 6, abs=0.03)


def test_block_ten_comes_after_block_nine_and_what_is_outside_the_blocks_first() -> None:
    organs: dict[Slot, Organ] = {}
    organs |= {("text", block, "ffn_up"): ("organ", SHAPE, print_of(block)) for block in (10, 9, 0)}
    organs |= {("text", None, "output"): ("embed", SHAPE, print_of(50))}
    organs |= {("audio", 2, "ffn_up"): ("organ", SHAPE, print_of(51))}
    found = similarity(organs, organs)
    assert list(found.by_block) == [("audio", 2), ("text", None), ("text", 0), ("text", 9), ("text", 10)]
    assert found.mean == pytest.approx(1.0)


def test_only_organs_of_one_shape_at_one_place_are_compared() -> None:
    first = model(1)
    second = dict(first)
    second["text", 0, "attn_q"] = ("skeleton", (32, 64), first["text", 0, "attn_q"][2])
    second["text", 1, "moved"] = second.pop(("text", 1, "attn_q"))
    assert similarity(first, second).organ_count == 10


def test_a_matrix_of_one_row_is_a_vector_and_a_stack_of_experts_is_none() -> None:
    own = print_of(1)
    for shape, count in (((2048, 1), 0), ((1, 2048, 1), 0), ((64, 32), 1), ((16, 16, 8), 1)):
        organs: dict[Slot, Organ] = {("text", 0, "x"): ("organ", shape, own)}
        assert similarity(organs, organs).organ_count == count


def test_constant_organs_say_nothing() -> None:
    first, second = model(1), model(1)
    second["text", 0, "attn_q"] = ("skeleton", SHAPE, bytes(256))
    found = similarity(first, second)
    assert found.organ_count == 11
    assert found.mean == pytest.approx(1.0)


def test_models_that_share_no_place_have_no_similarity() -> None:
    found = similarity(model(1), {})
    assert (found.mean, found.organ_count, dict(found.by_type), dict(found.by_block)) == (None, 0, {}, {})
