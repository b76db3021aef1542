"""Tests of the tables of tensors in groups, from readings without a registry, and of mean, deviation and quartiles."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.anatomy import place_of
from organs.registry.measures import GroupFigures
from organs.registry.reports.formats import columns_and_rows
from organs.registry.reports.groups import (
    DEPTH_ROWS_MAX,
    Distribution,
    TensorReading,
    blocks_of,
    distribution_of,
    mean_of,
    wells_of,
)


def reading(name: str, theta: float | None, spectral: float | None = 0.5, dtype: str = "F16") -> TensorReading:
    return TensorReading(name, place_of(name), dtype, "64x64", 4096, 8192, theta, spectral)


def deep(blocks: Iterable[int]) -> list[TensorReading]:
    """Two tensors for each block; θ grows with the block."""
    return [
        reading(f"blk.{block}.{slot}.weight", 10.0 + block / 10) for block in blocks for slot in ("attn_q", "ffn_up")
    ]


@pytest.mark.parametrize("blocks", [33, 61, 80, 126, 1000])
def test_neighbouring_blocks_of_a_deep_model_share_a_row(blocks: int) -> None:
    table = blocks_of(deep(range(blocks)), empty="")
    width = -(-blocks // DEPTH_ROWS_MAX)
    assert DEPTH_ROWS_MAX / 2 < len(table.items) <= DEPTH_ROWS_MAX
    assert f"Up to {width} neighbouring blocks share a row." in table.before[0]
    first, *_, last = table.items
    assert (first["blocks"], first["tensors_count"]) == (f"0-{width - 1}", 2 * width)
    assert first["skeleton_mean_theta_degrees"] == pytest.approx(np.mean([10.0 + block / 10 for block in range(width)]))
    assert last["last_block"] == blocks - 1
    assert sum(item["tensors_count"] for item in table.items) == 2 * blocks


def test_block_numbers_far_apart_take_no_rows_for_the_missing_blocks() -> None:
    items = blocks_of(deep((0, 5, 999_999_999)), empty="").items
    assert [item["blocks"] for item in items] == ["0", "5", "999999999"]


def test_every_tower_has_its_own_blocks() -> None:
    towers = [reading("v.blk.0.attn_q.weight", 20.0), reading("blk.0.attn_q.weight", 30.0)]
    items = blocks_of(towers, empty="").items
    assert [(item["tower"], item["skeleton_mean_theta_degrees"]) for item in items] == [
        ("text", 30.0),
        ("vision", 20.0),
    ]


def test_a_theta_that_a_coarse_type_may_explain_is_marked() -> None:
    table = wells_of([reading(f"blk.{n}.attn_q.weight", 30.0 + n, 0.5, kind) for n, kind in enumerate(KINDS)], 10)
    assert [item["caution"] for item in table.items] == ["coarse", ""]
    columns, rows = columns_and_rows(table)
    (theta,) = (column for column in columns if column.name == "theta_degrees")
    assert [theta.text(row)[0] for row in rows] == ["≈", "3"]


KINDS = ("Q4_0", "Q8_0")
ANGLES = st.lists(st.floats(0, 90), min_size=1, max_size=50)


@given(ANGLES)
def test_the_distribution_agrees_with_numpy(angles: list[float]) -> None:
    spread = distribution_of(angles)
    assert spread.count == len(angles)
    assert spread.mean == pytest.approx(np.mean(angles))
    assert spread.deviation == pytest.approx(np.std(angles), abs=1e-9)
    assert spread.quartiles == pytest.approx(np.quantile(angles, [0.25, 0.5, 0.75]))
    assert (spread.minimum, spread.maximum) == (min(angles), max(angles))


@given(ANGLES)
def test_the_deviation_also_follows_from_the_sums_that_a_database_gives(angles: list[float]) -> None:
    squares = sum(angle * angle for angle in angles)
    figures = GroupFigures(measured=len(angles), theta_sum=sum(angles), theta_square_sum=squares)
    assert figures.theta_deviation == pytest.approx(np.std(angles), abs=1e-5)


def test_an_empty_list_has_no_spread() -> None:
    assert distribution_of([]) == Distribution(0)
    assert mean_of([None, None]) is None
