"""What planning costs, estimated before it is spent: a short recipe can name very large models, or ask for very much.

A cost is in microseconds of processor time, on the machine that docs/design/planning-cost.md names. The steps that take
time are charged to a budget before they are done; a recipe whose named models and steps alone exceed it is refused
before anything is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.composing import find_model_by_text, header_bytes_of, model_by_text
from organs.registry.catalog.tables import Model
from organs.registry.compose.recipe import Recipe, Selection
from organs.registry.errors import TooCostly

MODEL_COST = 5_000
"""A model: its name is looked up and its header is opened."""
MISSING_COST = 30_000
"""A model that is not there: the nearest name is looked for."""
HEADER_COST = 5_000
"""A mebibyte of a header, which is read from the store and parsed."""
TENSOR_COST = 35
"""A tensor of a model that is read: its row in the catalog."""
PLACE_COST = 85
"""A tensor of the base in a plan: findings, prediction and lists are made of it."""
DONOR_PLACE_COST = 10
"""A tensor of the base for each donor or adapter that is checked."""
PAIR_COST = 40
"""A tensor of two models that are compared by type."""
VISIT_COST = 1
"""A tensor of the base that a step looks at, for each slot and range of blocks that the step names."""
CANDIDATE_COST = 40
"""An organ that a query finds."""
QUERY_COST = 10_000
"""A query, whatever it finds."""
COMMON_COST = 3
"""A model that has an organ of the base at the same place: a query of a graft looks for all of them."""
MODELS_MAX = 256
"""Models that one recipe may name."""


@dataclass(slots=True)
class Budget:
    """The cost that is allowed, and the cost so far, both in microseconds. None allows any."""

    limit: int | None = None
    spent: int = 0

    def spend(self, cost: int) -> None:
        """Add `cost`; raise TooCostly where that is more than is allowed."""
        self.spent += cost
        if self.limit is not None and self.spent > self.limit:
            raise TooCostly(self.spent / 1e6, self.limit / 1e6)


def check_recipe(session: Session, recipe: Recipe, budget: Budget) -> int:
    """Return the least cost of planning `recipe`, and spend nothing.

    What queries find is not known before and is not counted here: the library charges for it. Raises TooCostly where
    the budget does not allow that cost.
    """
    names = dict.fromkeys([recipe.base, *_donors(recipe)])
    if budget.limit is not None and len(names) > MODELS_MAX:
        raise TooCostly(MODEL_COST * len(names) / 1e6, budget.limit / 1e6, f"more than {MODELS_MAX} models")
    estimate = Budget(budget.limit)
    for name in names:
        model = find_model_by_text(session, name)
        estimate.spend(MISSING_COST if model is None else read_cost(session, model))
        if model is not None and name == recipe.base:
            estimate.spend(steps_cost(recipe, model.tensors))
    queries = [graft.where for graft in recipe.grafts] + [step.where for step in recipe.purify]
    estimate.spend(QUERY_COST * sum(map(bool, queries)))
    return estimate.spent


def check_pair(session: Session, base: str, donor: str, budget: Budget) -> int:
    """Return the cost of comparing two models by type; raise TooCostly where the budget does not allow it.

    Raises what is raised of a name that means no model.
    """
    estimate = Budget(budget.limit)
    for model in (model_by_text(session, name) for name in (base, donor)):
        estimate.spend(read_cost(session, model) + PAIR_COST * model.tensors)
    return estimate.spent


def read_cost(session: Session, model: Model) -> int:
    """Return the cost of reading a model."""
    header = HEADER_COST * header_bytes_of(session, model.id) >> 20
    return MODEL_COST + header + TENSOR_COST * model.tensors


def steps_cost(recipe: Recipe, tensors: int) -> int:
    """Return the cost of all that a plan does with the tensors of its base, of which there are `tensors`."""
    selections = [graft.selection for graft in recipe.grafts] + [step.selection for step in recipe.purify]
    visits = sum(map(_looks, selections))
    return tensors * (PLACE_COST + DONOR_PLACE_COST * len(_donors(recipe)) + VISIT_COST * visits)


def _donors(recipe: Recipe) -> set[str]:
    """Return the names of donors and adapters."""
    return {*(graft.donor for graft in recipe.grafts if graft.donor), *(merge.adapter for merge in recipe.adapters)}


def _looks(selection: Selection) -> int:
    return 1 + len(selection.slots) + len(selection.blocks)
