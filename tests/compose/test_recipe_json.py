"""Tests of stored recipes: no value is lost, and the limits of input do not apply."""

from __future__ import annotations

from hypothesis import given

from organs.registry.compose.document import TEXT_MAX_BYTES
from organs.registry.compose.recipe import (
    Graft,
    MetadataChange,
    Recipe,
    Selection,
    recipe_from_json,
    recipe_to_json,
    with_versions,
)
from tests.compose.random_recipes import recipes


@given(recipes())
def test_a_stored_recipe_reads_back_to_the_recipe(recipe: Recipe) -> None:
    assert recipe_from_json(recipe_to_json(recipe)) == recipe


def test_a_stored_recipe_longer_than_the_limit_of_input_is_read_back() -> None:
    long = Recipe("a/base", metadata=(MetadataChange("general.tags", ("x" * 1000,) * 1000),))
    assert len(recipe_to_json(long)) > TEXT_MAX_BYTES
    assert recipe_from_json(recipe_to_json(long)) == long


def test_the_recipe_of_a_chimera_names_the_versions_that_it_was_made_from() -> None:
    recipe = Recipe("zoo:latest", grafts=(Graft(Selection(), donor="acme/tuned"), Graft(Selection(), donor="other")))
    pinned = with_versions(recipe, ("acme/base@3", "acme/tuned@2", "acme/third@1"))
    assert (pinned.base, [graft.donor for graft in pinned.grafts]) == ("acme/base@3", ["acme/tuned@2", "other"])
    for base in ("acme/base@1", "sha256:0123456789abcdef"):
        assert with_versions(Recipe(base), ("acme/base@3",)).base == base
