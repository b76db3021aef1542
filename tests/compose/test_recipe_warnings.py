"""Tests of the list of warnings, compared with the code and the documentation."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from organs.registry.compose.recipe import WARNINGS
from organs.registry.compose.recipe_io import read_recipe
from organs.registry.entities.finding import WITHDRAWN_CODES
from organs.registry.errors import BadRecipe

ROOT = Path(__file__).parents[2]
SEVERITIES = ("REFUSE", "WARN", "INFO")


def codes_in(path: Path) -> Iterator[tuple[str, str]]:
    """Yield severity and code where they are adjacent in the arguments of a call, a tuple or a list."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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


@pytest.mark.parametrize("word", ["width-differs", "theta-changes", "all", "*"])
def test_a_code_that_is_not_a_warning_cannot_be_accepted(word: str) -> None:
    with pytest.raises(BadRecipe, match="is not the code of a warning"):
        read_recipe(f"base: a\naccept: ['{word}']")


def test_the_nearest_code_is_suggested() -> None:
    with pytest.raises(BadRecipe, match="did you mean unrelated-lineage"):
        read_recipe("base: a\naccept: [unrelated-linage]")
