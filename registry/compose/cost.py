"""The cost of planning, estimated in advance: a short recipe can name very large models or request much work.

A cost is in microseconds of processor time, on the machine that bench/results/planning.md names. Each expensive step
is charged to a budget before it is done. A recipe is refused before anything is read if its named models and steps
alone exceed the budget.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.model_contents import files_of
from organs.registry.catalog.queries.model_names import find_model_by_text, model_by_text
from organs.registry.catalog.tables import ModelRow
from organs.registry.compose.blend_steps import SettingRule
from organs.registry.compose.recipe import Recipe, donors_of
from organs.registry.compose.selection import Selection
from organs.registry.errors import TooCostly
from organs.registry.experts import EXPERTS_A_STACK_MAX

MODEL_COST = 5_000
"""Find a model and open its header."""
MISSING_COST = 30_000
"""Search the nearest name for a missing model."""
HEADER_COST = 5_000
"""Read and parse a mebibyte of a header."""
TENSOR_COST = 35
"""Read the row of a tensor."""
PLACE_COST = 85
"""Include a tensor of the base in findings, screen and lists."""
DONOR_PLACE_COST = 10
"""Check a tensor of the base against one donor or adapter."""
PAIR_COST = 40
"""Compare a tensor when two models are compared by type."""
VISIT_COST = 1
"""Check whether a step selects a tensor of the base, for each slot and range of blocks in the step."""
CANDIDATE_COST = 40
"""Process an organ that a query finds."""
COMPARED_COST = 20
"""Compare an organ that a query finds with the base, before the first organ is processed."""
QUERY_COST = 10_000
"""Run a query, without the organs that it finds."""
COMMON_COST = 3
"""Examine a model that has the same organ as the base at a place: a graft by query searches all these models."""
TEMPLATE_COST = 20
"""Parse a character of a chat template; of usual ones a tenth."""
TRIED_COST = 10_000
"""Open an organ on which a change is tried, and decode what is read; `trial.trial_cost` has what is computed."""
CHOSEN = 20
"""Experts that are chosen in a microsecond."""
MODELS_MAX = 256
"""Models that one recipe may name."""


@dataclass(slots=True)
class Budget:
    """The limit of the cost and the cost so far, both in microseconds. A limit of None allows any cost."""

    limit: int | None = None
    spent: int = 0

    def spend(self, cost: int) -> None:
        """Add `cost`; raise TooCostly above the limit."""
        self.spent += cost
        if self.limit is not None and self.spent > self.limit:
            raise TooCostly(self.spent / 1e6, self.limit / 1e6)


def check_recipe(session: Session, recipe: Recipe, budget: Budget) -> int:
    """Return the minimum cost of planning `recipe`; the budget is not charged.

    Results of queries are not known in advance: the library charges for them later. Raises TooCostly if the budget does
    not allow the cost.
    """
    names = dict.fromkeys([recipe.base, *donors_of(recipe)])
    if budget.limit is not None and len(names) > MODELS_MAX:
        raise TooCostly(MODEL_COST * len(names) / 1e6, budget.limit / 1e6, f"more than {MODELS_MAX} models")
    estimate = Budget(budget.limit)
    for name in names:
        model = find_model_by_text(session, name)
        estimate.spend(MISSING_COST if model is None else read_cost(session, model))
        if model is not None and name == recipe.base:
            estimate.spend(steps_cost(recipe, model.tensors))
    queries = [graft.where for graft in recipe.grafts]
    queries += [step.where for step in recipe.blends] + [step.where for step in recipe.purify]
    estimate.spend(QUERY_COST * sum(map(bool, queries)))
    return estimate.spent


def check_pair(session: Session, base: str, donor: str, budget: Budget) -> int:
    """Return the cost of comparing two models by type; raise TooCostly if the budget does not allow it.

    Raises as `model_by_text` for names that are not those of a model.
    """
    estimate = Budget(budget.limit)
    for model in (model_by_text(session, name) for name in (base, donor)):
        estimate.spend(read_cost(session, model) + PAIR_COST * model.tensors)
    return estimate.spent


def read_cost(session: Session, model: ModelRow) -> int:
    """Return the cost of reading a model."""
    header = HEADER_COST * sum(file.header_bytes for file in files_of(session, model.id)[:1]) >> 20
    return MODEL_COST + header + TENSOR_COST * model.tensors


def steps_cost(recipe: Recipe, tensors: int) -> int:
    """Return the cost of a plan; `tensors` is the number of tensors of its base."""
    visits = sum(map(_comparisons, (*recipe.grafts, *recipe.blends, *recipe.purify, *recipe.quantize)))
    ranges = [item for choice in recipe.experts for item in (*choice.keep, *choice.drop)]
    numbers = sum(min(last - first + 1, EXPERTS_A_STACK_MAX) for first, last in ranges)
    visits += sum(1 + len(choice.blocks) for choice in recipe.experts)
    for step in recipe.blends:
        settings = [*step.parameters.values(), *(own for item in step.models for own in item.parameters.values())]
        visits += sum(_comparisons(item) for setting in settings if isinstance(setting, tuple) for item in setting)
    places = tensors * (PLACE_COST + DONOR_PLACE_COST * len(donors_of(recipe)) + VISIT_COST * visits)
    return places + numbers // CHOSEN


def _comparisons(step: Selection | float) -> int:
    """Return how often a tensor is compared with a step, with a rule of a parameter, or with a number of a list."""
    if not isinstance(step, Selection):
        return 1
    numbers = len(step.value) if isinstance(step, SettingRule) and isinstance(step.value, tuple) else 0
    return 1 + numbers + len(step.types) + len(step.slots) + len(step.blocks) + len(step.experts)
