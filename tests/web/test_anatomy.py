"""The anatomy grid as values."""

from __future__ import annotations

from typing import Any

from organs.registry.entities.comparison import OrganChange
from organs.web.pages.anatomy import CELLS_MAX, LISTED_MAX, anatomy
from tests.gguf_files import placed_organ


def slots(grid: dict[str, Any]) -> list[str]:
    return [slot["name"] for slot in grid["slots"]]


def test_slots_are_ordered_skeleton_norms_organs_and_others() -> None:
    organs = [
        placed_organ("ffn_up"), placed_organ("attn_norm", kind="norm"), placed_organ("attn_q", kind="skeleton"),
        placed_organ("odd", kind="other"),
        placed_organ("ffn_norm", kind="norm"),
    ]  # fmt: skip
    assert slots(anatomy(organs, "theta", {})) == ["attn_q", "attn_norm", "ffn_norm", "ffn_up", "odd"]


def test_slots_are_in_reading_order() -> None:
    names = ["attn_v", "attn_output", "attn_k", "attn_q"]
    assert slots(anatomy([placed_organ(name, kind="skeleton") for name in names], "theta", {})) == [
        "attn_q", "attn_k", "attn_v", "attn_output",
    ]  # fmt: skip
    feed = ["ffn_down", "ffn_gate", "ffn_up", "ffn_gate_inp"]
    assert slots(anatomy([placed_organ(name) for name in feed], "theta", {})) == [
        "ffn_gate_inp",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ]


def test_tensors_outside_the_blocks_are_at_head_and_foot() -> None:
    organs = [
        placed_organ("output", None, "embed"),
        placed_organ("token_embd", None, "embed"),
        placed_organ("output_norm", None, "norm"),
    ]
    grid = anatomy(organs, "theta", {})
    assert [one["name"] for one in grid["head"]] == ["text None token_embd"]
    assert [one["name"] for one in grid["foot"]] == ["text None output", "text None output_norm"]


def test_each_tower_has_its_own_blocks_and_missing_blocks_stay_empty() -> None:
    organs = [
        placed_organ("ffn_up", 1),
        placed_organ("ffn_up", 10),
        placed_organ("ffn_down", 2),
        placed_organ("ffn_up", 0, tower="vision"),
    ]
    grid = anatomy(organs, "theta", {})
    assert [row["label"] for row in grid["rows"]] == ["1", "2", "10", "vision 0"]
    assert [[cell is not None for cell in row["cells"]] for row in grid["rows"]] == [
        [True, False], [False, True], [True, False], [True, False],
    ]  # fmt: skip


def test_each_measure_has_its_number_its_colour_and_its_legend() -> None:
    one = placed_organ("ffn_up")
    changes = {("text", 0, "ffn_up"): OrganChange(theta_change=-1.5, likeness=0.9, identical=False)}
    cells = {
        by: anatomy([one], by, changes)["rows"][0]["cells"][0]
        for by in ("theta", "spectral", "size", "change", "alike")
    }
    assert {by: (cell["number"], cell["tone"]) for by, cell in cells.items()} == {
        "theta": ("40.0°", "t14"), "spectral": ("0.500", "s8"), "size": ("100", "s8"),
        "change": ("-1.5°", "d0"), "alike": ("0.900", "s14"),
    }  # fmt: skip


def test_equal_bytes_count_as_unchanged() -> None:
    changes = {("text", 0, "ffn_up"): OrganChange(theta_change=0.0, likeness=1.0, identical=True)}
    cell = anatomy([placed_organ("ffn_up"), placed_organ("ffn_down")], "change", changes)["rows"][0]["cells"]
    assert (cell[0]["number"], cell[0]["tone"]) == ("=", "d4")
    assert (cell[1]["number"], cell[1]["tone"]) == ("–", "tn")


def test_a_grid_of_61_blocks_and_40_slots_has_all_cells_and_is_dense() -> None:
    grid = anatomy([placed_organ(f"slot_{slot:02}", block) for block in range(61) for slot in range(40)], "theta", {})
    assert len(grid["rows"]) == 61
    assert all(len(row["cells"]) == 40 and None not in row["cells"] for row in grid["rows"])
    assert grid["dense"]
    assert grid["left_out"] == 0


def test_a_grid_that_would_be_mostly_empty_becomes_a_truncated_list() -> None:
    organs = [placed_organ(f"slot_{number}", number) for number in range(CELLS_MAX // 100)]
    grid = anatomy(organs * 5, "theta", {})
    assert grid["rows"] == []
    assert len(grid["head"]) == LISTED_MAX
    assert grid["left_out"] == len(organs) * 5 - LISTED_MAX


def test_a_missing_measure_has_a_dash_and_no_colour() -> None:
    cell = anatomy([placed_organ("ffn_up", theta=None)], "theta", {})["rows"][0]["cells"][0]
    assert (cell["number"], cell["tone"]) == ("–", "tn")


def test_a_measure_of_few_values_or_of_a_coarse_type_is_marked_as_uncertain() -> None:
    organs = [
        placed_organ("a"),
        placed_organ("b", shape=(192,)),
        placed_organ("c", dtype="Q4_K"),
        placed_organ("d", shape=(192,), theta=None),
    ]
    grid = anatomy(organs, "theta", {})
    assert [cell["rough"] for cell in grid["rows"][0]["cells"]] == [False, True, True, False]
    assert [cell["label"].partition("(")[2] for cell in grid["rows"][0]["cells"]] == [
        "", "computed from few values)", "distorted by a coarse tensor type)", "",
    ]  # fmt: skip
    assert grid["legend"]["rough"]
    assert not anatomy([placed_organ("a")], "theta", {})["legend"]["rough"]
