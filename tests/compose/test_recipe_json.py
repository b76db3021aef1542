"""Tests of stored recipes: no value is lost, and the limits of input do not apply."""

from __future__ import annotations

from hypothesis import given

from organs.registry.compose.document import TEXT_MAX_BYTES
from organs.registry.compose.recipe import (
    MetadataChange,
    Recipe,
    recipe_from_json,
    recipe_to_json,
)
from tests.compose.random_recipes import recipes


@given(recipes())
def test_a_stored_recipe_reads_back_to_the_recipe(recipe: Recipe) -> None:
    assert recipe_from_json(recipe_to_json(recipe)) == recipe


def test_a_stored_recipe_longer_than_the_limit_of_input_is_read_back() -> None:
    long = Recipe("a/base", metadata=(MetadataChange("general.tags", ("x" * 1000,) * 1000),))
    assert len(recipe_to_json(long)) > TEXT_MAX_BYTES
    assert recipe_from_json(recipe_to_json(long)) == long
