"""Recipes against a registry: those of the documentation are made, bad ones are refused with one list of findings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from organs.registry.compose.recipe import (
    read_recipe,
)
from organs.registry.local import LocalRegistry
from tests.gguf_files import file_bytes, text
from tests.registry_templates import RegistryTemplates, add_zoo_models
from tests.small_models import ingest_file, weight_tensor

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("recipes.md", "prediction.md", "guide.md", "python.md")
FENCE = re.compile(r"(?<!-->\n)^```(?:yaml|json)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def recipes_of(page: str) -> list[str]:
    path = DOCS / page
    found = FENCE.findall(path.read_text()) if path.exists() else []
    return [recipe for recipe in found if "base" in recipe]


RECIPES = [
    pytest.param(recipe, id=f"{page}-{number}") for page in PAGES for number, recipe in enumerate(recipes_of(page))
]


@pytest.fixture(scope="module")
def zoo(templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    folder = tmp_path_factory.mktemp("zoo")
    with templates.open_copy(add_zoo_models, folder / "home") as registry:
        narrow = [text("general.type", "adapter"), text("adapter.type", "lora"), text("general.architecture", "llama")]
        halves = [
            weight_tensor("blk.0.ffn_up.weight.lora_a", (64, 4)),
            weight_tensor("blk.0.ffn_up.weight.lora_b", (4, 96)),
        ]
        (folder / "narrow.gguf").write_bytes(file_bytes(narrow, halves))
        ingest_file(registry, folder / "narrow.gguf", "narrow-lora")
        yield registry


def test_the_documentation_has_recipes() -> None:
    assert len(recipes_of("recipes.md")) >= 8


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_of_the_documentation_is_made(recipe: str, zoo: LocalRegistry) -> None:
    plan = zoo.compose(read_recipe(recipe)).plan()
    made = plan.register()
    assert made.size_bytes == plan.size_bytes
    assert zoo.compose(read_recipe(recipe)).plan().register().lock_id == made.lock_id
