"""The drawing of a network, and the colours, numbers and labels of its organs."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from organs.registry.entities.comparison import OrganChange
from organs.registry.entities.plan import ACTS, SOURCE
from organs.web.charts.network import HEADING_DEGREES, LETTER_WIDTH, Shape, network
from organs.web.pages.anatomy import CELLS_MAX, LISTED_MAX, acts_text, anatomy
from organs.web.render import change_share
from tests.gguf_files import placed_organ

STREAM = 64


def cell_of(grid: dict[str, Any], slot: str) -> dict[str, Any]:
    found: dict[str, Any] = next(cell for cell in grid["cells"] if cell["name"].endswith(f" {slot}"))
    return found


def shapes_by_slot(shapes: tuple[Shape, ...]) -> dict[str, Shape]:
    return {shape.organ.slot: shape for shape in shapes}


def test_attention_is_left_of_the_residual_stream_and_feed_forward_right_in_reading_order() -> None:
    organs = [
        *(placed_organ(slot, kind="skeleton") for slot in ("attn_output", "attn_v", "attn_q", "attn_k")),
        *(placed_organ(slot) for slot in ("ffn_down", "ffn_gate", "ffn_up", "ffn_gate_inp")),
        placed_organ("attn_norm", kind="norm", shape=(64,)),
        placed_organ("ffn_norm", kind="norm", shape=(64,)),
    ]
    drawing = network(organs)
    in_order = [shape.organ.slot for shape in sorted(drawing.shapes, key=lambda shape: shape.x)]
    assert in_order == [
        "attn_output", "attn_v", "attn_k", "attn_q", "attn_norm",
        "ffn_norm", "ffn_gate_inp", "ffn_gate", "ffn_up", "ffn_down",
    ]  # fmt: skip
    by_slot = shapes_by_slot(drawing.shapes)
    x, _, width, _ = drawing.spine
    assert by_slot["attn_norm"].x + by_slot["attn_norm"].width <= x
    assert by_slot["ffn_norm"].x >= x + width


def test_widths_are_to_scale_so_grouped_keys_are_narrower_and_feed_forward_is_wider() -> None:
    organs = [
        placed_organ("token_embd", None, "embed", shape=(STREAM, 1000)),
        placed_organ("attn_q", kind="skeleton", shape=(STREAM, 64)),
        placed_organ("attn_k", kind="skeleton", shape=(STREAM, 32)),
        placed_organ("ffn_up", shape=(STREAM, 256)),
        placed_organ("ffn_down", shape=(256, STREAM)),
    ]
    by_slot = shapes_by_slot(network(organs).shapes)
    assert abs(by_slot["attn_q"].width - 2 * by_slot["attn_k"].width) < 0.01
    assert abs(by_slot["ffn_up"].width - 4 * by_slot["attn_q"].width) < 0.01
    assert by_slot["ffn_down"].width == by_slot["ffn_up"].width


def test_blocks_have_equal_heights_and_follow_each_other_in_each_tower() -> None:
    organs = [placed_organ("ffn_up", block) for block in (2, 0, 1)] + [placed_organ("ffn_up", 0, tower="vision")]
    drawing = network(organs)
    tops = {(shape.organ.tower, shape.organ.block): shape.y for shape in drawing.shapes}
    assert tops["text", 1] - tops["text", 0] == tops["text", 2] - tops["text", 1] > 0
    assert tops["vision", 0] > tops["text", 2]
    assert [label.text for label in drawing.towers] == ["text", "vision"]


def test_a_slot_can_be_on_the_other_side_in_another_tower() -> None:
    organs = [placed_organ("mixer"), placed_organ("mixer", kind="skeleton", tower="vision", shape=(STREAM, 16))]
    drawing = network(organs)
    text, vision = (
        next(shape for shape in drawing.shapes if shape.organ.tower == tower) for tower in ("text", "vision")
    )
    assert vision.x + vision.width <= drawing.spine[0] < drawing.spine[0] + drawing.spine[2] <= text.x
    assert vision.width < text.width


def test_the_embedding_narrows_to_the_residual_stream_and_is_the_output_if_there_is_no_other() -> None:
    embedding = placed_organ("token_embd", None, "embed", shape=(STREAM, 1000))
    drawing = network([embedding, placed_organ("ffn_up")])
    head = shapes_by_slot(drawing.shapes)["token_embd"]
    (left, top), (right, _), (narrow_right, bottom), (narrow_left, _) = head.corners
    assert (narrow_left, narrow_right) == (drawing.spine[0], drawing.spine[0] + drawing.spine[2])
    assert left < narrow_left < narrow_right < right
    assert top < bottom
    assert drawing.tied is not None
    assert drawing.tied.y > max(shape.y for shape in drawing.shapes)
    output = placed_organ("output", None, "embed", shape=(STREAM, 1000))
    untied = network([embedding, output, placed_organ("ffn_up")])
    assert untied.tied is None
    assert shapes_by_slot(untied.shapes)["output"].y > shapes_by_slot(untied.shapes)["ffn_up"].y


def test_organs_without_a_place_are_listed() -> None:
    organs = [placed_organ("rope_freqs", None, "other"), placed_organ("output_norm", None, "norm", shape=(64,))]
    drawing = network(organs)
    assert [organ.slot for organ in drawing.others] == ["rope_freqs"]
    assert [shape.look for shape in drawing.shapes] == ["bar"]


def test_a_drawing_of_80_blocks_is_taller_than_that_of_4_but_far_from_20_times() -> None:
    tall, short = (network([placed_organ("ffn_up", block) for block in range(count)]) for count in (80, 4))
    assert short.height < tall.height < 8 * short.height
    assert len(short.blocks) == 4
    assert [label.text for label in tall.blocks][:2] == ["0", "1"]
    huge = network([placed_organ("ffn_up", block) for block in range(1000)])
    assert [label.text for label in huge.blocks][:2] == ["0", "2"]


def test_each_reading_has_its_number_its_colour_and_its_legend() -> None:
    organs = [placed_organ("ffn_up"), placed_organ("ffn_down", theta=42.0), placed_organ("ffn_gate", theta=38.0)]
    changes = {("text", 0, "ffn_up"): OrganChange(likeness=1.0, change=7.46e-6, identical=False)}
    grids = {by: anatomy(organs, by, changes) for by in ("theta", "spectral", "size", "change")}
    cells = {by: cell_of(grid, "ffn_up") for by, grid in grids.items()}
    assert {by: (cell["number"], cell["tone"]) for by, cell in cells.items()} == {
        "theta": ("40.0°", "t16"), "spectral": ("0.500", "p10"), "size": ("100", "s8"), "change": ("7.5e-6", "c4"),
    }  # fmt: skip
    assert grids["theta"]["legend"]["ranges"] == ["feed-forward 38.0–42.0°"]
    assert cells["change"]["label"] == "text 0 ffn_up: change 7.5e-6, θ 40.0°"
    legend = grids["change"]["legend"]
    ends = [float(legend[end].removeprefix("about ").removesuffix(" or more")) for end in ("low", "middle", "high")]
    assert [round(change_share(end), 2) for end in ends] == [0.0, 0.5, 1.0]


def test_equal_bytes_and_organs_that_cannot_be_compared_have_no_colour() -> None:
    changes = {("text", 0, "ffn_up"): OrganChange(likeness=1.0, identical=True)}
    grid = anatomy([placed_organ("ffn_up"), placed_organ("ffn_down")], "change", changes)
    assert (cell_of(grid, "ffn_up")["number"], cell_of(grid, "ffn_up")["tone"]) == ("=", "same")
    assert (cell_of(grid, "ffn_down")["number"], cell_of(grid, "ffn_down")["tone"]) == ("–", "tn")


def test_a_drawing_that_would_be_mostly_empty_becomes_a_truncated_list() -> None:
    organs = [placed_organ(f"slot_{number}", number) for number in range(CELLS_MAX // 100)]
    grid = anatomy(organs * 5, "theta", {})
    assert grid["drawing"] is None
    assert len(grid["others"]) == LISTED_MAX
    assert grid["left_out"] == len(organs) * 5 - LISTED_MAX


def test_an_uncertain_theta_has_its_reason_in_the_label() -> None:
    organs = [
        placed_organ("a"),
        placed_organ("b", shape=(192,)),
        placed_organ("c", dtype="Q4_0"),
        placed_organ("d", shape=(192,), theta=None),
    ]
    grid = anatomy(organs, "theta", {})
    assert [cell_of(grid, slot)["label"].partition("(")[2] for slot in "abcd"] == [
        "",
        "uncertain: it has fewer than 1,000 values)",
        "uncertain: the rounding of its tensor type changes θ by more than 2°)",
        "",
    ]
    assert cell_of(grid, "b")["number"] == "≈40.0°"
    assert grid["legend"]["note"].startswith("≈ marks an uncertain θ")
    assert (cell_of(grid, "d")["number"], cell_of(grid, "d")["tone"]) == ("–", "tn")


def test_the_names_of_slots_lie_inside_of_the_drawing() -> None:
    plain = network([placed_organ(slot) for slot in ("attn_q", "ffn_up", "ffn_down")])
    adapter = network([placed_organ(slot) for slot in ("attn_output.lora_a", "ffn_up.lora_a", "ffn_down.lora_b")])
    hostile = network([placed_organ("x" * 5000)])
    assert plain.height < adapter.height < hostile.height < 2 * plain.height
    for drawing in (plain, adapter, hostile):
        for label in drawing.slots:
            length = len(label.text) * LETTER_WIDTH
            angle = math.radians(HEADING_DEGREES)
            assert label.x + length * math.cos(angle) <= drawing.width + 0.1
            assert label.y - length * math.sin(angle) >= 0


def test_a_size_is_shortened_to_fit_into_a_cell() -> None:
    organs = [
        msgspec.structs.replace(placed_organ(slot), size_bytes=size)
        for slot, size in (("a", 999), ("b", 999_600), ("c", 197_400))
    ]
    grid = anatomy(organs, "size", {})
    assert [cell_of(grid, slot)["number"] for slot in "abc"] == ["999", "1M", "197k"]


def test_every_use_of_a_parent_has_words() -> None:
    assert (
        acts_text((*ACTS, SOURCE))
        == "taken with their blocks, then grafted, then blended, then adapter added, then purified, "
        "then experts pruned, then quantised, then header edited, then source of a quantisation"
    )
