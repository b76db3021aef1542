"""Tests of the cost of planning: estimated before reading, charged during planning, refused over the limit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event, update

from organs.registry import names
from organs.registry.catalog.tables import ModelFileRow, ModelRow
from organs.registry.compose.cost import COMPARED_COST, MODELS_MAX, Budget, check_pair, check_recipe
from organs.registry.compose.parents import RegisteredLibrary
from organs.registry.compose.plan import Plan
from organs.registry.compose.planner import plan_recipe
from organs.registry.compose.recipe import Recipe, read_recipe
from organs.registry.compose.selection import matches_slot
from organs.registry.errors import TooCostly
from organs.registry.local import LocalRegistry
from organs.registry.names import CANDIDATES_MAX, nearest
from tests.registry_templates import RegistryTemplates, add_three_models

LIMIT = 2_000_000
RANGES = list(range(120))


@pytest.fixture
def kin(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    """Return a registry with `base`, its fine-tune `tuned` and an unrelated `stranger`."""
    templates.fill(registry, add_three_models)
    return registry


@pytest.fixture
def statements(kin: LocalRegistry) -> Iterator[list[str]]:
    """Collect the statements of the registry."""
    executed: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        executed.append(statement)

    event.listen(kin.catalog.reader, "before_cursor_execute", note)
    yield executed
    event.remove(kin.catalog.reader, "before_cursor_execute", note)


def recipe(*grafts: dict[str, Any], **more: Any) -> Recipe:
    return read_recipe(json.dumps({"base": "base", "grafts": list(grafts), **more}))


def plan(kin: LocalRegistry, requested: Recipe, budget: Budget) -> Plan:
    with kin.catalog.reading() as session:
        check_recipe(session, requested, budget)
        return plan_recipe(requested, RegisteredLibrary(session, kin.blobs, budget), budget)


def make_large(kin: LocalRegistry, name: str, tensors: int) -> None:
    """Set the number of tensors of a model in the catalog."""
    with kin.catalog.writing() as session:
        session.execute(update(ModelRow).where(ModelRow.name == name).values(tensors=tensors))


@pytest.mark.parametrize("name", ["base", "tuned"])
def test_a_recipe_of_large_models_is_refused_before_any_of_their_tensors_is_read(
    kin: LocalRegistry, statements: list[str], name: str
) -> None:
    make_large(kin, name, 100_000)
    with pytest.raises(TooCostly, match="more than 2 s of processor time") as raised:
        plan(kin, recipe({"from": "tuned", "type": "organ"}), Budget(LIMIT))
    assert raised.value.seconds > 2
    assert not [statement for statement in statements if "placements" in statement]


def test_a_large_header_is_charged(kin: LocalRegistry) -> None:
    with kin.catalog.writing() as session:
        session.execute(update(ModelFileRow).values(header_bytes=1 << 30))
    with pytest.raises(TooCostly):
        plan(kin, recipe({"from": "tuned", "type": "organ"}), Budget(LIMIT))


@pytest.mark.parametrize(
    "steps",
    [
        {"grafts": [{"from": f"donor-{number}", "type": "organ"} for number in range(MODELS_MAX)]},
        {"grafts": [{"from": f"local/missing-{number}", "type": "organ"} for number in range(100)]},
        {"grafts": [{"where": f"theta>={number / 100}"} for number in range(300)]},
        {"purify": [{"method": "fractal", "where": f"theta>={number / 100}"} for number in range(300)]},
        {"grafts": [{"from": "tuned", "slot": [f"x{step}*{slot}" for slot in range(950)]} for step in range(20)]},
        {
            "blends": {
                "from": "tuned",
                "weight": [{"slot": f"x*{rule}", "blocks": RANGES, "value": 1} for rule in range(99)],
            }
        },
    ],
    ids=["models", "missing models", "queries of grafts", "queries to purify", "patterns", "rules"],
)
def test_many_steps_are_refused_before_the_first(
    kin: LocalRegistry, statements: list[str], steps: dict[str, Any]
) -> None:
    make_large(kin, "base", 200)
    long_recipe = read_recipe(json.dumps({"base": "base", **steps}))
    with pytest.raises(TooCostly):
        plan(kin, long_recipe, Budget(LIMIT))
    assert not [statement for statement in statements if "placements" in statement]
    assert len(statements) < 2 * MODELS_MAX


def test_results_of_a_query_are_charged_when_they_are_read(kin: LocalRegistry) -> None:
    query_recipe = recipe({"where": "type:organ model:tuned", "blocks": 0})
    budget = Budget(LIMIT)
    with kin.catalog.reading() as session:
        least = check_recipe(session, query_recipe, budget)
    assert any(part.acts for part in plan(kin, query_recipe, budget).parts)
    assert least < budget.spent < LIMIT
    alike, by_theta = Budget(), Budget()
    plan(kin, query_recipe, alike)
    plan(kin, recipe({"where": "type:organ model:tuned", "blocks": 0, "sort": "-theta"}), by_theta)
    assert alike.spent == by_theta.spent + 2 * COMPARED_COST, "both tensors are compared with the base"
    make_large(kin, "tuned", 100_000)
    with pytest.raises(TooCostly):
        plan(kin, query_recipe, Budget(LIMIT))


def test_an_honest_recipe_costs_a_small_part_of_what_is_allowed(kin: LocalRegistry) -> None:
    budget = Budget(LIMIT)
    planned = plan(kin, recipe({"from": "tuned", "type": "organ"}, {"where": "type:norm"}), budget)
    assert planned.can_be_made or planned.findings
    assert 0 < budget.spent < LIMIT / 20


def test_a_trial_is_charged_for_its_models_types_and_rounds(kin: LocalRegistry) -> None:
    spent = []
    for models, more in ((1, {}), (2, {}), (2, {"max_iter": 1000})):
        budget = Budget(LIMIT)
        blend = {"method": "karcher", "models": [{"from": "tuned"}, {"from": "base"}][:models], "type": "organ", **more}
        plan(kin, read_recipe(json.dumps({"base": "base", "blends": blend})), budget)
        spent.append(budget.spent)
    assert spent[0] < spent[1] < spent[2] - 50_000
    with pytest.raises(TooCostly):
        plan(kin, read_recipe(json.dumps({"base": "base", "blends": blend})), Budget(spent[2] - 1))


def test_two_large_models_are_not_compared_by_type(kin: LocalRegistry, statements: list[str]) -> None:
    with kin.catalog.reading() as session:
        assert 0 < check_pair(session, "base", "tuned", Budget(LIMIT)) < LIMIT / 20
    make_large(kin, "tuned", 100_000)
    with kin.catalog.reading() as session, pytest.raises(TooCostly):
        check_pair(session, "base", "tuned", Budget(LIMIT))
    assert not [statement for statement in statements if "placements" in statement]


@given(st.text("ab_*", max_size=8), st.text("ab_", max_size=8))
def test_a_pattern_of_slots_works_as_in_a_shell(pattern: str, slot: str) -> None:
    assert matches_slot(slot, pattern) is fnmatchcase(slot, pattern)


def test_among_very_many_names_only_likely_ones_are_compared_letter_by_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = []
    compare: Callable[..., list[str]] = names.get_close_matches

    def noted(word: str, likely: list[str], **options: Any) -> list[str]:
        compared.append(len(likely))
        return compare(word, likely, **options)

    monkeypatch.setattr(names, "get_close_matches", noted)
    models = [f"acme/model-{number:05}-chat" for number in range(3000)]
    assert nearest("acme/coder-instrct", [*models, "acme/Coder-Instruct"]) == "acme/Coder-Instruct"
    assert nearest("x" * 1000, models) is None
    assert compared == [CANDIDATES_MAX]
