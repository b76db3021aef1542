"""Assigning cells of a base to donors: what was assigned is read again, everything else stays, and steps are few."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.compose.assignment import Assignment, Cell, Giver, Layout
from organs.registry.compose.recipe import Graft, Recipe, recipe_values
from organs.registry.compose.steps import read_steps, step_texts

LAYOUT: Layout = {
    **{Cell(kind, block): (f"{kind}_a", f"{kind}_b") for block in range(6) for kind in ("skeleton", "norm", "organ")},
    Cell("embed", None): ("token_embd",),
    Cell("norm", None): ("output_norm",),
}
TOWERS: Layout = LAYOUT | {Cell("skeleton", block, "vision"): ("attn_q",) for block in range(3)}
CODE, DOCS = Giver("acme/code@1"), Giver("acme/docs@2", 0.5)
EMPTY = Recipe("acme/base@1")
CELLS = st.frozensets(st.sampled_from(sorted(LAYOUT, key=str)), max_size=12)
CHANGES = st.lists(st.tuples(CELLS, st.sampled_from([None, CODE, DOCS, Giver("acme/docs@2")])), max_size=6)


def texts(recipe: Recipe) -> list[str]:
    return [text for parameter, text in step_texts(recipe) if parameter != "base"]


@given(changes=CHANGES)
def test_the_last_assignment_of_each_cell_is_read_again(changes: list[tuple[frozenset[Cell], Giver | None]]) -> None:
    recipe, expected = EMPTY, dict[Cell, Giver]()
    for cells, giver in changes:
        recipe = Assignment(recipe, LAYOUT).having(cells, giver)
        expected = {cell: own for cell, own in expected.items() if cell not in cells}
        expected |= {} if giver is None else dict.fromkeys(cells, giver)
    assert Assignment(recipe, LAYOUT).givers == expected
    assert read_steps(step_texts(recipe)) == recipe


@pytest.mark.parametrize(
    ("cells", "giver", "expected"),
    [
        ([Cell("organ", block) for block in range(6)], CODE, ["from:acme/code@1 type:organ"]),
        ([Cell("organ", 1), Cell("organ", 2), Cell("organ", 4)], CODE, ["from:acme/code@1 type:organ blocks:1-2,4"]),
        (
            [Cell(kind, 3) for kind in ("skeleton", "norm", "organ")],
            CODE,
            ["from:acme/code@1 type:skeleton,organ,norm blocks:3"],
        ),
        ([Cell("embed", None)], CODE, ["from:acme/code@1 type:embed"]),
        ([Cell("norm", None)], CODE, ["from:acme/code@1 slot:output_norm"]),
        ([Cell("organ", 0)], DOCS, ["from:acme/docs@2 weight:0.5 type:organ blocks:0"]),
        ([Cell("organ", 99), Cell("adapter", None)], CODE, []),
    ],
)
def test_cells_are_written_in_few_steps(cells: list[Cell], giver: Giver, expected: list[str]) -> None:
    recipe = Assignment(EMPTY, LAYOUT).having(cells, giver)
    assert [sorted(text.split()) for text in texts(recipe)] == [sorted(text.split()) for text in expected]


def test_of_several_towers_a_query_selects_one() -> None:
    recipe = Assignment(EMPTY, TOWERS).having([Cell("skeleton", 1, "vision")], CODE)
    assert recipe.grafts == (Graft(where="model:acme/code@1 tower:vision", types=("skeleton",), blocks=((1, 1),)),)
    assert Assignment(recipe, TOWERS).givers == {Cell("skeleton", 1, "vision"): CODE}


def test_other_steps_stay_and_an_unversioned_name_is_the_same_donor() -> None:
    recipe = read_steps(
        [
            ("base", "acme/base"),
            ("graft", "from:acme/code type:organ blocks:0"),
            ("graft", 'where:"type:organ theta>40" blocks:2'),
            ("graft", "from:acme/code slot:ffn_down blocks:1"),
            ("blend", "from:acme/docs@2 weight:0.5 type:organ"),
            ("blend", "from:acme/docs@2 method:slerp t:0.5 type:norm"),
            ("adapter", "from:acme/lora"),
        ]
    )
    changed = recipe_values(Assignment(recipe, LAYOUT).having([Cell("organ", 1)], CODE))
    before = recipe_values(recipe)
    assert changed["adapters"] == before["adapters"]
    assert changed["grafts"] == [
        *before["grafts"],  # type: ignore[misc]  # the first, moved behind the others, would replace what they select
        {"from": "acme/code@1", "type": "organ", "blocks": 1},
    ]
    assert changed["blends"] == [
        {"from": "acme/docs@2", "weight": 0.5, "type": "organ", "blocks": [0, "2-5"]},
        before["blends"][1],  # type: ignore[index]
    ]
