"""Tests of stored recipes: no value is lost, and the limits of input do not apply."""

from __future__ import annotations

import json

from hypothesis import given

from organs.registry.compose.recipe import (
    AdapterMerge,
    Graft,
    PurifyMethod,
    Recipe,
    RecipePurification,
    recipe_from_json,
    recipe_to_json,
    with_versions,
)
from organs.registry.compose.recipe_io import RECIPE_LIMITS
from tests.compose.random_recipes import recipes


@given(recipes())
def test_a_stored_recipe_reads_back_to_the_recipe(recipe: Recipe) -> None:
    assert recipe_from_json(recipe_to_json(recipe)) == recipe


def test_a_recipe_in_the_first_stored_form_is_read() -> None:
    selection = {"types": ["organ"], "slots": [], "blocks": [[2, 5]], "experts": []}
    graft = {"selection": selection, "donor": "acme/code", "where": None, "sort": "", "strangers": False}
    step = {"selection": {**selection, "slots": ["ffn_*"]}, "method": "spectral", "where": "", "keep": 0.9}
    values = {
        "base": "acme/base",
        "grafts": [graft],
        "adapters": [{"adapter": "acme/lora", "scale": 0.8}],
        "purify": [step],
        "encode": "F16",
        "accept": ["likely-degraded"],
        "metadata": [{"key": "general.tags", "value": ["a"]}, {"key": "acme.count", "value": 3}],
        "name": None,
    }
    assert recipe_from_json(json.dumps(values)) == Recipe(
        "acme/base",
        grafts=(Graft("acme/code", types=("organ",), blocks=((2, 5),)),),
        adapters=(AdapterMerge("acme/lora", 0.8),),
        purify=(
            RecipePurification(PurifyMethod.SPECTRAL, keep=0.9, types=("organ",), slots=("ffn_*",), blocks=((2, 5),)),
        ),
        encode="F16",
        accept=("likely-degraded",),
        metadata={"general.tags": ("a",), "acme.count": 3},
    )


def test_a_stored_recipe_longer_than_the_limit_of_input_is_read_back() -> None:
    long = Recipe("a/base", metadata={"general.tags": ("x" * 1000,) * 1000})
    assert len(recipe_to_json(long)) > RECIPE_LIMITS.size_bytes
    assert recipe_from_json(recipe_to_json(long)) == long


def test_the_recipe_of_a_chimera_names_the_versions_that_it_was_made_from() -> None:
    recipe = Recipe("zoo:latest", grafts=(Graft(donor="acme/tuned"), Graft(donor="other")))
    pinned = with_versions(recipe, ("acme/base@3", "acme/tuned@2", "acme/third@1"))
    assert (pinned.base, [graft.donor for graft in pinned.grafts]) == ("acme/base@3", ["acme/tuned@2", "other"])
    for base in ("acme/base@1", "sha256:0123456789abcdef"):
        assert with_versions(Recipe(base), ("acme/base@3",)).base == base
