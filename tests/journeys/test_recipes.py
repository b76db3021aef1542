"""Recipes against a registry: those of the documentation are made, bad ones are refused with one list of findings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from organs.registry.compose.recipe import (
    read_recipe,
    recipe_findings,
)
from organs.registry.entities.finding import Severity
from organs.registry.errors import BadRecipe, NotComposable, NotFound
from organs.registry.local import LocalRegistry
from tests.gguf_files import file_bytes, text
from tests.registry_templates import RegistryTemplates, add_zoo_models
from tests.small_models import ingest_file, weight_tensor

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("recipes.md", "prediction.md", "guide.md", "python.md")
FENCE = re.compile(r"^```(?:yaml|json)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BASE = "Zoo-A-2M-v1.0-F16"

MUCH = """
grafts: [{from: nobody/a}, {from: Zoo-B-2M-v1.0-Q8_0, blocks: 9}, {where: 'type:organ theta>=89'}]
adapters: [{from: narrow-lora}]
"""


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


def test_a_bad_recipe_reports_all_errors_together_and_writes_nothing(zoo: LocalRegistry, tmp_path: Path) -> None:
    plan = zoo.compose(read_recipe(f"base: {BASE}\n{MUCH}\n")).plan()
    found = [finding for finding in plan.findings if finding.severity is Severity.REFUSE]
    assert {finding.code for finding in found} == {"unknown-donor", "no-such-block", "empty-query", "adapter-misfit"}
    assert all(finding.sentence and "\n" not in finding.sentence for finding in found)
    assert len({finding.sentence for finding in found}) == len(found)
    with pytest.raises(NotComposable):
        plan.assemble(tmp_path / "never.gguf")
    assert not (tmp_path / "never.gguf").exists()


def test_an_unknown_base_is_reported_with_the_nearest_name(zoo: LocalRegistry) -> None:
    with pytest.raises(NotFound, match=r"did you mean local/Zoo-A-2M-v1\.0-F16"):
        zoo.compose(read_recipe("base: Zoo-A-2M-v1.0-F61\nadapters: [{from: narrow-lora}]")).plan()


def test_errors_in_the_text_of_a_recipe_are_a_list_of_findings() -> None:
    with pytest.raises(BadRecipe) as refused:
        read_recipe("bsae: a\ngrafts: [{form: b, blocks: 5-2}]\nencode: Q9_0\n")
    found = recipe_findings(refused.value)
    assert {finding.field for finding in found} >= {"bsae", "grafts[0].form", "grafts[0].blocks", "encode"}
    assert all(finding.severity is Severity.REFUSE for finding in found)
