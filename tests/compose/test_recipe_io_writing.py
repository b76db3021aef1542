"""Tests of writing recipes: a written recipe reads back the same."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given

from organs.registry import documents
from organs.registry.compose.recipe import (
    AdapterMerge,
    Graft,
    PurifyMethod,
    Recipe,
    RecipePurification,
)
from organs.registry.compose.recipe_io import (
    read_recipe,
    recipe_json,
    recipe_values,
    recipe_yaml,
)
from tests.compose.random_recipes import MISREAD, recipes
from tests.random_files import PATIENT

FULL = Recipe(
    base="acme/tiny-base",
    grafts=(
        Graft(donor="acme/tiny-code", types=("organ",), blocks=((2, 5),)),
        Graft(where="theta>=45", sort="-theta", slots=("ffn_*",), blocks=((0, 0), (2, 3))),
    ),
    adapters=(AdapterMerge("acme/tiny-lora", 0.8), AdapterMerge("acme/other")),
    purify=(RecipePurification(PurifyMethod.SPECTRAL, where="theta<20", keep=0.9, blocks=((5, 5),)),),
    encode="F16",
    accept=("unrelated-lineage",),
    metadata={
        "general.name": "Tiny Chimera",
        "general.tags": ("a", "no"),
        "acme.count": 3,
    },
    name="acme/chimera",
)


@PATIENT
@given(recipes())
def test_a_recipe_reads_back_unchanged_from_yaml_and_json(recipe: Recipe) -> None:
    # Compared as text, because 1, 1.0 and True are equal.
    assert repr(read_recipe(recipe_yaml(recipe))) == repr(recipe)
    assert repr(read_recipe(recipe_json(recipe))) == repr(recipe)


@pytest.mark.parametrize("loader", [yaml.SafeLoader, yaml.CSafeLoader])
def test_both_parsers_of_yaml_read_back_what_is_misread_easily(loader: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_LOADER", loader)
    texts = (*MISREAD, "", " a", "\x85", "a\x85b", "\u2028", "a\n\n b\n", "\ufeff", "😀", "\x7f'", "a\r\nb")
    recipe = Recipe(base="no", metadata={**{text: text for text in MISREAD}, "texts": texts})
    for written in (recipe, FULL):
        assert read_recipe(recipe_yaml(written).encode()) == written


def test_any_reader_of_yaml_sees_the_same_values() -> None:
    assert yaml.safe_load(recipe_yaml(FULL)) == recipe_values(FULL) == json.loads(recipe_json(FULL))


def test_yaml_is_written_as_people_write_it() -> None:
    assert recipe_yaml(FULL) == (
        "base: acme/tiny-base\n"
        "name: acme/chimera\n"
        "grafts:\n"
        "  - from: acme/tiny-code\n"
        "    type: organ\n"
        "    blocks: 2-5\n"
        "  - where: theta>=45\n"
        "    sort: -theta\n"
        "    slot: ffn_*\n"
        "    blocks: [0, 2-3]\n"
        "adapters:\n"
        "  - from: acme/tiny-lora\n"
        "    scale: 0.8\n"
        "  - from: acme/other\n"
        "purify:\n"
        "  method: spectral\n"
        "  where: theta<20\n"
        "  keep: 0.9\n"
        "  blocks: 5\n"
        "encode: F16\n"
        "accept: [unrelated-lineage]\n"
        "metadata:\n"
        "  general.name: Tiny Chimera\n"
        "  general.tags: [a, 'no']\n"
        "  acme.count: 3\n"
    )


def test_default_values_are_not_written() -> None:
    assert recipe_values(Recipe(base="a")) == {"base": "a"}
    assert recipe_json(Recipe(base="a")) == '{\n  "base": "a"\n}\n'
    assert recipe_yaml(Recipe(base="a")) == "base: a\n"


def test_two_purifications_are_a_list() -> None:
    steps = tuple(RecipePurification(method) for method in PurifyMethod)
    assert recipe_values(Recipe(base="a", purify=steps))["purify"] == [{"method": "spectral"}, {"method": "fractal"}]


def test_a_nonfinite_number_cannot_be_written_as_json() -> None:
    with pytest.raises(ValueError, match="JSON"):
        recipe_json(Recipe(base="a", adapters=(AdapterMerge("b", float("nan")),)))
