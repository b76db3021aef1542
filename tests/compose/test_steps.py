"""Tests of recipes as query strings: a written recipe reads back, and an invalid one has a message."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from organs.registry.compose.recipe import (
    AdapterMerge,
    Graft,
    PurifyMethod,
    Recipe,
    RecipePurification,
)
from organs.registry.compose.steps import (
    PARAMETERS,
    STEPS_MAX,
    Step,
    read_steps,
    step_paths,
    step_texts,
)
from organs.registry.entities.plan import STEP_MAX_LENGTH
from organs.registry.errors import BadRecipe

BASE: Step = ("base", "acme/tiny")


def reasons(*steps: Step) -> list[tuple[str, str]]:
    """Return the faults of the steps."""
    with pytest.raises(BadRecipe) as caught:
        read_steps(steps)
    return list(caught.value.reasons)


def test_the_written_texts_are_those_that_a_person_would_type() -> None:
    recipe = Recipe(
        base="acme/tiny",
        grafts=(
            Graft(donor="acme/coder", types=("organ", "norm"), blocks=((2, 5), (7, 7))),
            Graft(where='type:organ license:"llama 3" theta>=40', sort="-theta", blocks=((0, 1),)),
        ),
        adapters=(AdapterMerge("acme/lora@2", 0.8),),
        purify=(RecipePurification(PurifyMethod.SPECTRAL, keep=0.95, slots=("ffn_*",)),),
        encode="F16",
        accept=("unrelated-lineage",),
        metadata={
            "general.name": "Tiny Chimera",
            "a b": 3,
            "c": "3",
            "d": ("x", "y"),
            "e": True,
        },
        name="acme/mine",
    )
    assert step_texts(recipe) == [
        ("base", "acme/tiny"),
        ("graft", "from:acme/coder type:organ,norm blocks:2-5,7"),
        ("graft", 'where:"type:organ license:\\"llama 3\\" theta>=40" sort:-theta blocks:0-1'),
        ("adapter", "from:acme/lora@2 scale:0.8"),
        ("purify", "method:spectral keep:0.95 slot:ffn_*"),
        ("encode", "F16"),
        ("accept", "unrelated-lineage"),
        ("meta", "general.name=Tiny Chimera"),
        ("meta", '"a b"=3'),
        ("meta", 'c="3"'),
        ("meta", 'd=["x", "y"]'),
        ("meta", "e=true"),
        ("name", "acme/mine"),
    ]
    assert read_steps(step_texts(recipe)) == recipe


@pytest.mark.parametrize(
    ("step", "path", "told"),
    [
        (("graft", "rubbish"), "grafts[0]", "'rubbish' cannot be read"),
        (("graft", 'where:"type:organ'), "grafts[0]", "cannot be read"),
        (("graft", 'from:a"b'), "grafts[0]", "cannot be read"),
        (("graft", 'from:"a"b'), "grafts[0]", "cannot be read"),
        (("graft", "from:a from:b"), "grafts[0].from", "is given twice in the step"),
        (("graft", "from:a type:orgn"), "grafts[0].type", "did you mean organ?"),
        (("graft", "from:a layer:2"), "grafts[0].layer", "did you mean blocks?"),
        (("graft", 'from:"\\x"'), "grafts[0]", "a backslash can only precede"),
        (("graft", 'from:"\\ud800"'), "grafts[0].from", "an unpaired surrogate"),
        (("adapter", "from:a scale:much"), "adapters[0].scale", "it should be a number"),
        (("name", "a/b/c/d"), "name", "namespace"),
        (("meta", "general.name"), "metadata", "write key=value"),
        (("meta", 'a="x'), "metadata.a", "is not JSON"),
        (("meta", "a=" + "[" * 5000), "metadata.a", "is not JSON"),
        (("graft", "from:" + "a" * STEP_MAX_LENGTH), "grafts[0]", "at most"),
    ],
    ids=lambda one: str(one)[:40],
)
def test_an_invalid_step_is_reported_with_its_path(step: Step, path: str, told: str) -> None:
    faults = reasons(BASE, step)
    assert len(faults) == 1
    assert faults[0][0] == path
    assert told in faults[0][1]


def test_all_faults_are_reported_together_with_their_step_numbers() -> None:
    faults = reasons(BASE, ("graft", "rubbish"), ("graft", "from:a blocks:x"), ("purify", "method:magic"))
    assert [path for path, _ in faults] == ["grafts[0]", "grafts[1].blocks", "purify[0].method"]


@pytest.mark.parametrize("parameter", ["base", "name", "encode"])
def test_a_duplicate_of_a_single_step_is_refused(parameter: str) -> None:
    value = {"encode": "F16"}.get(parameter, "acme/one")
    faults = reasons(*([] if parameter == "base" else [BASE]), (parameter, value), (parameter, value))
    assert faults == [(parameter, f"{parameter} is given twice")]


def test_a_duplicate_metadata_key_is_refused() -> None:
    assert reasons(BASE, ("meta", "a=1"), ("meta", "a=2")) == [("metadata.a", "the key is given twice")]


def test_more_steps_than_an_address_holds_are_refused() -> None:
    step = ("graft", "from:a")
    assert len(read_steps([BASE, *[step] * (STEPS_MAX - 1)]).grafts) == STEPS_MAX - 1
    faults = reasons(BASE, *[step] * STEPS_MAX)
    assert "at most 64 steps" in faults[0][1]


def test_empty_texts_and_other_parameters_are_ignored() -> None:
    assert read_steps([BASE, ("graft", " "), ("name", ""), ("cell", "organ:2")]) == Recipe("acme/tiny")


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(PARAMETERS), st.text(max_size=60)), max_size=5))
def test_any_texts_are_read_or_refused(steps: list[Step]) -> None:
    try:
        recipe = read_steps([BASE, *steps])
    except BadRecipe:
        return
    assert read_steps(step_texts(recipe)) == recipe


def test_the_paths_of_steps_are_those_of_a_recipe_file() -> None:
    steps = [BASE, ("graft", "x"), ("meta", "a=b"), ("graft", "y"), ("purify", "z"), ("name", "n")]
    assert list(step_paths(steps)) == ["base", "grafts[0]", "metadata[0]", "grafts[1]", "purify[0]", "name"]
