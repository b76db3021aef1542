"""Tests of `registry.evolving.space`: faults of spaces, and the parameters, recipes and starts of choices."""

from __future__ import annotations

from typing import Any

import pytest

from organs.registry.compose.recipe import read_recipe, recipe_values, recipe_yaml
from organs.registry.errors import BadRecipe
from organs.registry.evolving.proposals import proposed
from organs.registry.evolving.space import (
    BLENDED,
    Choices,
    SearchSpace,
    read_space,
    space_from_json,
    space_of_values,
    space_to_json,
    space_yaml,
)

A, B, LORA = "me/a@1", "me/b@1", "me/lora@1"


def choices(blocks: int = 6, **steps: Any) -> Choices:
    return Choices(space_of_values({"base": "me/base@1", **steps}), blocks)


def blended(**step: Any) -> Choices:
    return choices(blends=[{"models": [A, B], "type": ["organ"], "depths": 2, **step}])


EVERYTHING = choices(
    blends=[
        {"models": [A, B], "method": list(BLENDED), "density": [0.1, 0.9], "weight": [-0.5, 1.2]},
        {"models": B, "type": "organ", "method": "ties"},
    ],
    grafts=[{"models": [A, B], "depths": 4}, {"models": A, "type": "norm"}],
    adapters=[{"from": LORA, "scale": [0, 2]}],
    accept=["unrelated-lineage"],
)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "it is empty"),
        ("[]", "this is a list"),
        ("GGUF", "this is the text 'GGUF'"),
        ("base: a\nbase: b", "base"),
        ("base: a\ndonor: b", "donor: unknown key; did you mean donors?"),
        ("base: a\nblends: [{from: b}]", "blends[0].from: unknown key; did you mean models?"),
        ("base: a\nblends: {weight: [0, 1]}", "blends: this is an object; it should be a list"),
        ("base: a\nblends: [{}, {weight: [1, 0]}]", "blends[1].weight: the second number must be above the first"),
        ("base: a\nblends: [{weight: 1}]", "blends[0].weight: this is the number 1; it should be two numbers"),
        ("base: a\nblends: [{weight: [0, 1, 2]}]", "blends[0].weight"),
        ("base: a\nblends: [{weight: [0, 0.98]}]", "blends[0].weight: write multiples of 0.05: [0, 0.98]"),
        ("base: a\nblends: [{weight: [0, 1000]}]", "numbers from -100 to 100 are allowed"),
        ("base: a\nblends: [{weight: [0, .inf]}]", "blends[0].weight[1]: this is the text '.inf'"),
        ("base: a\nblends: [{weight: [.nan, 1]}]", "blends[0].weight[0]: this is the text '.nan'"),
        ('{"base": "a", "blends": [{"weight": [0, 1e999]}]}', "blends[0].weight[1]"),
        ('{"base": "a", "blends": [{"weight": [NaN, 1]}]}', "NaN is not JSON"),
        ("base: a\nblends: [{depths: 1000000}]", "blends[0].depths: this is the number 1000000; it should be a whole"),
        ("base: a\nblends: [{method: slerp}]", "blends[0].method: 'slerp' is not one of task_arithmetic"),
        ("base: a\nblends: [{density: [0.1, 0.9]}]", "blends[0].density: task_arithmetic has no density"),
        ("base: a\nblends: [{method: ties, density: [0, 2]}]", "blends[0].density: a density is from 0 to 1"),
        ("base: a\nblends: [" + "{}," * 17 + "]", "blends"),
        ("base: a\ngrafts: [{type: orgn}]", "did you mean organ?"),
        ("base: a\nadapters: [{scale: [0, 1]}]", "adapters[0].from: a model's name is missing"),
        ("base: a\ntrials: 0", "trials: this is the number 0; it should be a whole number from 1 to 10,000"),
        ("base: a\nminutes: .nan", "minutes: this is the text '.nan'"),
        ("base: a\nseed: -1", "seed"),
        ("base: a\ngoal: best", "goal: 'best' is not one of mean, front"),
        ("base: a\nlimits: {chat: -100}", "limits.chat: this is the number -100"),
        ("base: a\nweights: {chat: 0}", "weights.chat: this is the number 0; it should be a number above 0"),
        ('base: "a\\0b"', "base: the text has a NUL character"),
        ('base: a\ntexts: ["a\\0b"]', "texts[0]: the text has a NUL character"),
        ("base: a\nname: " + "x" * 10_000, "name: a name such as me/best has at most"),
        ("base: a\nx: " + "[" * 100_000, "exceeded maximum nesting depth"),
        ("base: a\ndonors: [" + "a," * 100_000 + "]", "it has more than 20,000 values"),
        ("base: a\n#" + "x" * 10_000_000, "the text is longer than"),
    ],
    ids=range(35),
)
def test_a_fault_of_a_space_is_refused_with_its_path(text: str, fault: str) -> None:
    with pytest.raises(BadRecipe) as caught:
        read_space(text, "mine.yaml")
    assert str(caught.value).startswith("mine.yaml: ")
    assert fault in str(caught.value)
    assert len(str(caught.value)) < 600


def test_all_faults_are_in_one_error() -> None:
    with pytest.raises(BadRecipe) as caught:
        read_space("base: a\nunknown: 1\nblends: [{weight: [2, 1], depths: 0}]\ntrials: x")
    for path in ("unknown", "blends[0].weight", "blends[0].depths", "trials"):
        assert f"{path}: " in str(caught.value)


def test_a_space_is_the_same_from_yaml_json_values_and_the_catalog() -> None:
    text = """
        base: me/base
        donors: ["kin:me/base", 0x1F]
        texts: mine
        limits: {chat: 5}
        weights: {mine: 2.5}
        blends: [{weight: [0, 1.2], method: [ties, TIES, dare_ties], density: [0.1, 0.9]}]
        quantize: {as: Q4_K}
        minutes: 20
    """
    read = read_space(text)
    assert (read.donors, read.texts, read.blends[0].method) == (
        ("kin:me/base", "0x1F"),
        ("mine",),
        ("ties", "dare_ties"),
    )
    assert read.blends[0].weight == (0.0, 1.2)
    assert read_space(space_to_json(read)) == space_from_json(space_to_json(read)) == read
    assert read_space(space_yaml(read)) == read
    values = {"base": "b", "blends": [{"models": (A, A), "weight": (0, 1)}], "limits": {"chat": float("nan")}}
    with pytest.raises(BadRecipe, match=r"limits\.chat"):
        space_of_values(values)
    assert space_of_values({**values, "limits": {}}).blends[0].models == (A,)


def test_defaults_are_a_mean_of_half_an_hour_and_a_number_of_trials_replaces_the_time() -> None:
    assert SearchSpace("a").allowed_seconds == 1800.0
    assert SearchSpace("a", trials=9).allowed_seconds is None
    assert SearchSpace("a", trials=9, minutes=2.0).allowed_seconds == 120.0
    (step,) = read_space("base: a\nblends: [{}]").blends
    assert (step.method, step.depths, step.weight) == (("task_arithmetic",), 3, (0.0, 1.2))


def test_types_along_the_depth_have_several_weights_and_others_one() -> None:
    found = choices(blends=[{"models": [A], "type": ["organ", "embed"], "depths": 3}])
    assert [(one.label, one.part) for one in found.parameters] == [
        ("weight of a, feed-forward at 1 of 3", "a, feed-forward"),
        ("weight of a, feed-forward at 2 of 3", "a, feed-forward"),
        ("weight of a, feed-forward at 3 of 3", "a, feed-forward"),
        ("weight of a, embedding", "a, embedding"),
    ]
    assert len(choices(2, blends=[{"models": [A], "type": "organ", "depths": 16}]).parameters) == 2
    assert len({one.key for one in EVERYTHING.parameters}) == len(EVERYTHING.parameters)


def test_the_recipe_of_every_choice_is_read_back_and_has_only_the_steps_that_change_something() -> None:
    seen = set()
    for number in range(60):
        values = proposed(EVERYTHING.parameters, [], 1, 0, number, is_random=True)
        for one in EVERYTHING.parameters:
            if one.words:
                assert values[one.key] in one.words
            else:
                value = float(values[one.key])
                assert one.low <= value <= one.high
                assert value / 0.05 == pytest.approx(round(value / 0.05))
        recipe = EVERYTHING.recipe(values, "me/best")
        assert read_recipe(recipe_yaml(recipe)) == recipe
        assert EVERYTHING.recipe(dict(reversed(values.items())), "me/best") == recipe
        assert recipe.accept == ("unrelated-lineage",)
        seen.add(recipe.blends[0].method)
        densities = ["density" in donor for donor in recipe_values(recipe)["blends"][0]["models"]]  # type: ignore[index]
        assert set(densities) == {recipe.blends[0].method != "task_arithmetic"}
    assert seen == set(BLENDED)


def test_weights_of_zero_leave_out_types_models_and_steps() -> None:
    own = choices(
        blends=[{"models": [A, B], "method": ["ties", "della"], "density": [0.1, 0.9], "depths": 2}],
        adapters=[{"from": LORA}],
        grafts=[{"models": [A, B], "type": "skeleton", "depths": 2}],
    )
    assert recipe_values(own.recipe(own.neutral)) == {"base": "me/base@1"}
    other = {**own.neutral, "blends[0].method": "della", f"blends[0].{A}.density": 0.2}
    assert own.recipe(other) == own.recipe(own.neutral), "neither has an effect"
    some = {**own.neutral, f"blends[0].{B}.organ.1": 0.4, "grafts[0].skeleton.1": A}
    assert recipe_values(own.recipe(some)) == {
        "base": "me/base@1",
        "grafts": [{"from": A, "type": "skeleton", "blocks": "3-5"}],
        "blends": {
            "method": "ties",
            "models": [{"from": B, "weight": [{"value": [0.0, 0.4], "type": "organ"}], "density": 0.9}],
            "type": "organ",
        },
    }


@pytest.mark.parametrize("blocks", [1, 2, 3, 7, 80])
def test_the_bands_of_grafts_are_all_blocks_each_once(blocks: int) -> None:
    own = choices(blocks, grafts=[{"models": [A], "type": "organ", "depths": 3}])
    recipe = own.recipe({one.key: A for one in own.parameters})
    spans = [span for graft in recipe.grafts for span in graft.blocks or ((0, blocks - 1),)]
    assert [block for first, last in spans for block in range(first, last + 1)] == [*range(blocks)]
    assert len(recipe.grafts) == min(3, blocks)


def test_starts_are_each_donor_as_it_is_and_the_mean_of_all() -> None:
    own = blended()
    assert {label: [*start.values()] for label, start in own.starts().items()} == {
        "a alone": [1.0, 1.0, 0.0, 0.0],
        "b alone": [0.0, 0.0, 1.0, 1.0],
        "mean of all": [0.5] * 4,
    }
    grafted = choices(grafts=[{"models": [A], "type": "organ"}], adapters=[{"from": LORA}])
    starts = [[*start.values()] for start in grafted.starts().values()]
    assert starts == [[A] * 3 + [0.0], [""] * 3 + [1.0], [A] * 3 + [0.5]]
    assert EVERYTHING.neutral not in EVERYTHING.starts().values()


@pytest.mark.parametrize("weight", [[0.5, 1.0], [-2, -0.5], [0, 0.05], [-0.15, 7.35], [0.05, 0.1]])
def test_starts_are_within_any_range_so_that_the_sampler_takes_them(weight: list[float]) -> None:
    own = blended(weight=weight)
    for values in [own.neutral, *own.starts().values()]:
        assert all(weight[0] <= float(value) <= weight[1] for value in values.values())


def test_without_leaves_out_one_part_of_a_choice_at_a_time() -> None:
    own = blended(weight=[0.5, 1.0])
    best = own.starts()["a alone"]
    assert [*own.without(best)] == ["a, feed-forward", "b, feed-forward"]
    assert [[*values.values()] for values in own.without(best).values()] == [[0.0, 0.0, 0.5, 0.5], [1.0, 1.0, 0.0, 0.0]]
    neutral = EVERYTHING.neutral
    assert EVERYTHING.without(neutral) == {}
    mixed = {**neutral, "blends[0].method": "della", "grafts[1].norm.0": A, "adapters[0]": 0.5}
    parts = EVERYTHING.without(mixed)
    assert [*parts] == ["grafted norm", "lora, adapter"]
    assert parts["grafted norm"] == {**mixed, "grafts[1].norm.0": ""}
