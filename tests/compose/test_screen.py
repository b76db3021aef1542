"""Tests of the screen: relation and size of changes, and what is known of their kinds."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.amounts import weight_change_text
from organs.registry.anatomy import place_of
from organs.registry.compose.parents import Part
from organs.registry.compose.screen import ENERGY_MAX, KNOWN, RESOLUTION, Change, ChangeKind, moved_energy, screen
from organs.registry.digest import digest_of
from organs.registry.entities.base import encode, prepared
from organs.registry.entities.plan import Screen, ScreenGroup
from organs.registry.gguf import dtype_by_name
from organs.registry.gguf.quants import quantize
from organs.registry.measure import measure
from organs.registry.similarity import coarse_rows
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


def coarse(own: Part) -> Part:
    """Return a tensor that an earlier version measured."""
    assert own.fingerprint is not None
    return replace(own, fingerprint=coarse_rows([own.fingerprint]).tobytes())


def grafted(before: Part, source: Part) -> Change:
    return Change(before, source, source)


def only(*changes: Change) -> ScreenGroup:
    (group,) = screen(changes, 10**6).groups
    return group


def noisy(seed: int, amplitude: float, name: str = "blk.1.ffn_gate.weight") -> Change:
    """Return a graft of an organ that is the base's with noise of this amplitude."""
    own = normal(seed)
    return grafted(part(own, name), part(own + amplitude * normal(seed + 1), name))


@pytest.mark.parametrize(
    ("name", "amplitude", "relation", "kind"),
    [
        ("blk.1.ffn_gate.weight", 0.1, "kin", ChangeKind.KIN),
        ("blk.1.attn_q.weight", 0.1, "kin", ChangeKind.KIN),
        ("token_embd.weight", 0.1, "kin", ChangeKind.EMBEDDINGS),
        ("v.blk.1.ffn_up.weight", 0.1, "kin", ChangeKind.OUTSIDE),
        ("blk.1.ffn_gate.weight", 1.0, "far kin", ChangeKind.FAR_KIN),
        ("blk.1.ffn_gate.weight", 20.0, "stranger", ChangeKind.STRANGER),
        ("token_embd.weight", 20.0, "stranger", ChangeKind.STRANGER),
    ],
)
def test_a_graft_is_named_by_its_likeness_and_its_type(
    name: str, amplitude: float, relation: str, kind: ChangeKind
) -> None:
    found = screen([noisy(0, amplitude, name)], 10**6)
    assert found.relation == relation
    assert found.likeness == pytest.approx(1 / math.hypot(1.0, amplitude), abs=0.15)
    change = weight_change_text(found.moved, found.likeness)
    assert found.sentence == KNOWN[kind].sentence.format(change=change)
    assert (found.organs, found.compared, found.uncounted) == (1, 1, 0)


def test_a_stranger_in_one_block_is_named_beside_kin_in_the_others() -> None:
    changes = [noisy(0, 0.1), noisy(4, 20.0, "blk.2.ffn_gate.weight")]
    found = screen(changes, 10**6)
    assert found.relation == "stranger"
    assert found.brief.startswith("Unrelated tensors")
    assert "Related (change 0.0" in found.sentence


@pytest.mark.parametrize("scale", [8.0, -1.0, 0.5])
def test_an_adapter_is_named_with_its_scale(scale: float) -> None:
    own = part(normal(0))
    found = screen([Change(own, own, None, 1e-5, (scale,))], 10**6)
    assert found.sentence == KNOWN[ChangeKind.ADAPTER].sentence.format(scale=f"{scale:g}")
    assert (found.relation, found.likeness, found.moved, found.provisional) == (None, None, 1e-5, True)
    assert "The change of their weights is 1e-5, estimated" in found.size


def test_a_composition_without_changes_says_so() -> None:
    found = screen([], 10**6)
    assert (found.sentence, found.size, found.relation, found.moved) == ("Nothing changes.", "", "same", None)


def test_a_group_is_a_type_in_a_block_of_a_tower() -> None:
    names = (
        "blk.1.ffn_up.weight",
        "blk.1.ffn_down.weight",
        "blk.1.attn_q.weight",
        "v.blk.1.ffn_up.weight",
        "blk.0.ffn_up.weight",
    )
    changes = [grafted(part(normal(0), name), part(normal(1), name)) for name in names]
    found = [(group.type, group.tower, group.block, group.organs) for group in screen(changes, 10**6).groups]
    assert found == [
        ("organ", "text", 1, 2),
        ("skeleton", "text", 1, 1),
        ("organ", "vision", 1, 1),
        ("organ", "text", 0, 1),
    ]


def test_organs_without_fingerprints_are_not_compared_and_not_counted() -> None:
    before, after = (replace(part(normal(seed)), fingerprint=None) for seed in (0, 1))
    found = screen([grafted(before, after)], 10**6)
    assert found.sentence == KNOWN[ChangeKind.UNKNOWN].sentence
    assert (found.relation, found.likeness, found.moved, found.uncounted) == (None, None, None, 1)


def test_an_organ_replaced_by_zeros_is_unlike_and_moves_all_its_energy() -> None:
    group = only(grafted(part(normal(0)), part(np.zeros(64 * 48))))
    assert (group.likeness, group.moved) == (0.0, pytest.approx(1.0))


def test_the_changed_energy_is_that_of_the_difference() -> None:
    first, second = 2.0 + normal(0), 1.5 + 0.6 * normal(0) + 0.4 * normal(1)
    true = float(((second - first) ** 2).sum() / (first**2).sum())
    assert moved_energy(part(first), part(second)) == pytest.approx(true, rel=0.2)


def test_vectors_count_by_their_moments() -> None:
    name = "blk.1.ffn_norm.weight"
    found = screen([grafted(part(np.ones(300), name, VECTOR), part(1.5 * np.ones(300), name, VECTOR))], 10**6)
    assert found.moved == pytest.approx(0.25)
    assert (found.likeness, found.sentence) == (None, KNOWN[ChangeKind.OUTSIDE].sentence)


def test_the_size_of_a_change_is_weighted_by_energy() -> None:
    large, small = 10.0 * normal(0), normal(2)
    changes = [
        grafted(part(large), part(np.zeros(64 * 48))),
        grafted(part(small, "blk.2.ffn_up.weight"), part(1.1 * small, "blk.2.ffn_up.weight")),
    ]
    found = screen(changes, 2 * 64 * 48)
    assert [group.moved for group in found.groups] == [pytest.approx(1.0), pytest.approx(0.01, rel=0.01)]
    assert found.moved == pytest.approx(0.99, rel=0.01)
    assert found.share == 1.0


def test_a_change_that_fingerprints_cannot_see_has_an_upper_limit_or_its_estimate() -> None:
    own, tuned = part(normal(0)), coarse(part(normal(0) + 0.001 * normal(1)))
    found = screen([grafted(own, tuned)], 10**6)
    assert "The change of their weights is less than 0.001." in found.size
    estimated = screen([Change(own, own, tuned, 1e-6, (1.0,))], 10**6)
    assert (estimated.moved, estimated.provisional) == (1e-6, False)
    assert (found.moved or 0.0) < RESOLUTION


def test_measured_values_are_preferred_to_estimates() -> None:
    own = part(normal(0))
    after = part(normal(0) + 0.3 * normal(1))
    assert only(Change(own, own, None, 0.5)).moved == 0.5
    assert only(Change(own, own, after, 0.5)).moved == pytest.approx(0.09, rel=0.25)
    assert only(Change(own, own, replace(after, fingerprint=None), 0.5)).moved == 0.5
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
@given(any_changes(), st.integers(0, 10**12))
def test_any_measures_give_a_screen(changes: list[Change], elements: int) -> None:
    found = screen(changes, elements)
    assert sum(group.organs for group in found.groups) == found.organs == len(changes)
    for item in (found, *found.groups):
        assert 0 <= item.uncounted <= item.organs
        assert item.moved is None or 0.0 <= item.moved <= ENERGY_MAX * (1 + 1e-9)
        assert item.likeness is None or -1.0 <= item.likeness <= 1.0
    assert msgspec.convert(json.loads(encode(found)), prepared(Screen)) == found
