"""Tests of composing from Python: every step, its faults, and the use of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from organs.registry.compose.api import (
    Composition,
)
from organs.registry.compose.recipe import (
    Recipe,
    read_recipe,
)
from organs.registry.errors import BadRecipe
from organs.registry.local import LocalRegistry
from tests.registry_templates import RegistryTemplates, add_three_models


@pytest.fixture(scope="module")
def pair(templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    with templates.open_copy(add_three_models, tmp_path_factory.mktemp("pair") / "home") as registry:
        yield registry


@pytest.fixture
def begun(pair: LocalRegistry) -> Composition:
    return pair.compose("base")


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (lambda c: c.graft("stranger"), "grafts: [{from: stranger}]"),
        (lambda c: c.graft("stranger", type="organ, norm"), "grafts: [{from: stranger, type: [organ, norm]}]"),
        (lambda c: c.graft("stranger", slot=("ffn_*",)), "grafts: [{from: stranger, slot: ffn_*}]"),
        (
            lambda c: c.graft("stranger", blocks=1, experts="0, 2-5"),
            "grafts: [{from: stranger, blocks: 1, experts: [0, 2-5]}]",
        ),
        (lambda c: c.graft("stranger", blocks=range(2)), "grafts: [{from: stranger, blocks: [0, 1]}]"),
        (
            lambda c: c.graft(where="theta>=30", sort="-theta", type="organ", strangers=True),
            "grafts: [{where: theta>=30, sort: -theta, type: organ, strangers: true}]",
        ),
        (lambda c: c.adapter("lora").adapter("lora", 0.5), "adapters: [{from: lora}, {from: lora, scale: 0.5}]"),
        (lambda c: c.purify(type="organ"), "purify: {method: fractal, type: organ}"),
        (
            lambda c: c.purify("spectral", where="theta<40", keep=0.95),
            "purify: {method: spectral, where: theta<40, keep: 0.95}",
        ),
        (lambda c: c.encode("bf16"), "encode: BF16"),
        (
            lambda c: c.accept("other-scale").accept("lineage-unknown", "other-scale"),
            "accept: [other-scale, lineage-unknown]",
        ),
        (
            lambda c: c.metadata("acme.x", 1).metadata("acme.y", ["a"]).metadata("acme.x", True),
            "metadata: {acme.y: [a], acme.x: true}",
        ),
        (lambda c: c.named("acme/x").named("acme/y"), "name: acme/y"),
    ],
)
def test_every_step_of_the_builder_equals_its_line_in_a_recipe(
    begun: Composition, step: Callable[[Composition], Composition], line: str
) -> None:
    composition = step(begun)
    assert composition.recipe == read_recipe(f"base: base\n{line}") == read_recipe(composition.yaml())
    assert begun.recipe == Recipe("base"), "a step leaves what it began with as it was"


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (lambda c: c.graft(), "graft: it needs a donor (from: MODEL) or a query (where: QUERY)"),
        (lambda c: c.graft(where="type:organ", strangers="yes"), "graft: strangers: this is the text 'yes'"),
        (lambda c: c.graft("stranger", slot=()), "graft: slot: the list is empty"),
        (lambda c: c.graft("stranger", blocks=True), "graft: blocks: "),
        (lambda c: c.adapter("lora", float("nan")), "NaN is not a number"),
        (lambda c: c.purify("fractle"), "purify: method: 'fractle' is not one of spectral, fractal; did you mean"),
        (lambda c: c.accept("Unrelated"), "accept: 'Unrelated' is not the code of a warning; did you mean unrelated"),
        (lambda c: c.metadata("acme.x", 2**64), "metadata: acme.x: the number is too large"),
        (lambda c: c.named("acme/x@2"), "name: remove the version"),
    ],
)
def test_an_invalid_step_is_refused_immediately(
    begun: Composition, step: Callable[[Composition], Composition], sentence: str
) -> None:
    with pytest.raises(BadRecipe) as caught:
        step(begun)
    assert sentence in str(caught.value)
    assert "[0]" not in str(caught.value), "it is not the first of the recipe, but the one that was just asked for"
    assert begun.recipe == Recipe("base")


def accepted(begun: Composition) -> Composition:
    return begun.graft("stranger", type="organ", blocks=1).accept("unrelated-lineage")


def test_a_chimera_without_a_name_gets_one_by_convention(begun: Composition) -> None:
    assert accepted(begun).plan().register().model == "local/Base-Chimera-v1.0-F16@1"
    assert accepted(begun).plan().register().model == "local/Base-Chimera-v1.0-F16@1", "the same chimera"
    other = accepted(begun).metadata("acme.x", 1).plan().register()
    expected = f"local/Base-Chimera-v1.0-F16-{other.lock_id[:6]}@1"
    assert other.model == expected, "another chimera is no version of the first"
    assert accepted(begun).metadata("acme.x", 1).plan().register().model == other.model


def test_the_recipe_of_a_registered_chimera_makes_the_same_chimera_again(
    pair: LocalRegistry, begun: Composition
) -> None:
    composition = accepted(begun).metadata("acme.x", 1e300).metadata("acme.x", 2.5).named("local/kept")
    made = composition.plan().register()
    model = pair.model(made.model)
    assert model.is_chimera
    assert model.recipe == composition.recipe
    assert model.recipe_yaml == composition.yaml()
    assert pair.model("base").recipe_yaml is None
    assert model.lock_id == made.lock_id
    assert not pair.compose(model.recipe).plan().register().created
