"""Tests of recipes as text, as stored JSON and as Python code, and of the list of warnings."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from organs.registry import documents
from organs.registry.compose.recipe import (
    RECIPE_LIMITS,
    WARNINGS,
    AdapterMerge,
    Graft,
    PurifyMethod,
    Recipe,
    RecipePurification,
    read_recipe,
    recipe_file,
    recipe_from_json,
    recipe_python,
    recipe_to_json,
    recipe_values,
    recipe_yaml,
    with_versions,
)
from organs.registry.compose.steps import read_steps, step_texts
from organs.registry.entities.base import encode
from organs.registry.entities.finding import WITHDRAWN_CODES
from organs.registry.local import LocalRegistry
from tests.compose.random_recipes import MISREAD, recipes
from tests.random_files import PATIENT
from tests.related_models import ingest_bytes, model_file, related_tensors

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
@given(recipes(), st.text(max_size=20))
def test_a_recipe_reads_back_unchanged_from_every_form_and_is_a_program(recipe: Recipe, file_name: str) -> None:
    for form in (recipe_yaml(recipe), json.dumps(recipe_values(recipe)), encode(recipe_file(recipe))):
        assert repr(read_recipe(form)) == repr(recipe), "1, 1.0 and True are equal"
    assert recipe_from_json(recipe_to_json(recipe)) == read_steps(step_texts(recipe)) == recipe
    compile(recipe_python(recipe, file_name), "script", "exec")


@pytest.mark.parametrize("loader", [yaml.SafeLoader, yaml.CSafeLoader])
def test_both_parsers_of_yaml_read_back_what_is_misread_easily(loader: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_LOADER", loader)
    texts = (*MISREAD, "", " a", "\x85", "a\x85b", "\u2028", "a\n\n b\n", "\ufeff", "😀", "\x7f'", "a\r\nb")
    recipe = Recipe(base="no", metadata={**{text: text for text in MISREAD}, "texts": texts})
    for written in (recipe, FULL):
        assert read_recipe(recipe_yaml(written).encode()) == written


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
    assert recipe_yaml(Recipe(base="a")) == "base: a\n"
    stated = {"base": "a", "adapters": [{"from": "b", "scale": 1.0}], "encode": "Same"}
    assert recipe_values(read_recipe(json.dumps(stated))) == {"base": "a", "adapters": [{"from": "b"}]}


def test_a_nonfinite_number_is_not_a_value() -> None:
    with pytest.raises(ValueError, match="JSON"):
        recipe_values(Recipe(base="a", adapters=(AdapterMerge("b", float("nan")),)))


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
    assert recipe_from_json(json.dumps(values)) == read_recipe(
        "base: acme/base\nencode: F16\naccept: [likely-degraded]\nadapters: [{from: acme/lora, scale: 0.8}]\n"
        "grafts: [{from: acme/code, type: organ, blocks: 2-5}]\nmetadata: {general.tags: [a], acme.count: 3}\n"
        "purify: {method: spectral, keep: 0.9, type: organ, slot: ffn_*, blocks: 2-5}"
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


ROOT = Path(__file__).parents[2]
SEVERITIES = ("REFUSE", "WARN", "INFO")


def codes_in(path: Path) -> Iterator[tuple[str, str]]:
    """Yield severity and code where they are adjacent in the arguments of a call, a tuple or a list."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("refusal", "self._refuse"):
            yield from (("REFUSE", str(code.value)) for code in node.args[:1] if isinstance(code, ast.Constant))
        row = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.Tuple | ast.List) else []
        for first, second in pairwise(row):
            if isinstance(first, ast.Attribute) and first.attr in SEVERITIES and isinstance(second, ast.Constant):
                yield first.attr, str(second.value)


def written() -> set[tuple[str, str]]:
    return {found for path in (ROOT / "registry" / "compose").glob("*.py") for found in codes_in(path)}


def test_every_warning_of_the_code_is_in_the_list_and_the_list_has_no_other() -> None:
    of_checks = {code for severity, code in written() if severity == "WARN"}
    assert of_checks | WITHDRAWN_CODES == set(WARNINGS)


def test_the_documentation_of_recipes_has_every_code_with_its_severity() -> None:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    documented = {severity.lower(): "" for severity in SEVERITIES}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 5 and cells[2] in documented:
            documented[cells[2]] += cells[1]
    missing = [(severity, code) for severity, code in written() if f"`{code}`" not in documented[severity.lower()]]
    assert missing == []
    assert [code for code in WARNINGS if f"`{code}`" not in documented["warn"]] == []
