"""Tests of a recipe as Python code: the code makes the chimera of the recipe."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.compose.recipe import Recipe
from organs.registry.compose.recipe_io import read_recipe, recipe_file, recipe_python
from organs.registry.compose.steps import read_steps
from organs.registry.entities.base import encode
from organs.registry.local import LocalRegistry
from tests.compose.random_recipes import recipes
from tests.related_models import ingest_bytes, model_file, related_tensors

STEPS = (
    ("base", "local/base"),
    ("graft", "from:local/tuned type:organ blocks:1"),
    ("graft", 'where:"type:skeleton model:local/tuned" sort:-theta blocks:0'),
    ("purify", "method:spectral type:organ blocks:0 keep:0.9"),
    ("encode", "F16"),
    ("accept", "likely-degraded"),
    ("meta", 'general.name="It\'s \\"mine\\""'),
    ("name", "local/mine"),
)


@given(recipes(), st.text(max_size=20))
def test_every_recipe_is_a_program(recipe: Recipe, file_name: str) -> None:
    compile(recipe_python(recipe, file_name), "script", "exec")


@pytest.mark.long
@given(recipes())
def test_a_recipe_as_an_entity_is_json_that_reads_back_to_the_recipe(recipe: Recipe) -> None:
    assert read_recipe(encode(recipe_file(recipe))) == recipe


def test_the_program_makes_the_file_that_the_recipe_makes(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest_bytes(registry, tmp_path, "base", model_file("Base", related_tensors()))
    ingest_bytes(registry, tmp_path, "tuned", model_file("Tuned", related_tensors(correlation=0.995)))
    recipe = read_steps(STEPS)
    plan = registry.compose(recipe).plan()
    assert plan.can_be_made, [finding.sentence for finding in plan.findings]
    made = plan.assemble(tmp_path / "own.gguf")
    monkeypatch.setenv("ORGAN_HOME", str(registry.settings.home))
    monkeypatch.chdir(tmp_path)
    exec(recipe_python(recipe, "it's.gguf"), {})  # the generated code is under test
    assert (tmp_path / "it's.gguf").read_bytes() == (tmp_path / "own.gguf").read_bytes()
    assert made.model == "local/mine@1"
