"""The page with a base chosen: its cells, who could give to them, the steps so far, and what they come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flask import abort, g

from organs.registry.catalog.queries.fitting import fitting_models
from organs.registry.compose.finding import Finding
from organs.registry.compose.parent import Parent
from organs.registry.compose.plan import Plan
from organs.registry.compose.reading import recipe_findings
from organs.registry.compose.recipe import ENCODINGS, PurifyMethod, Recipe
from organs.registry.compose.selecting import TYPES
from organs.registry.compose.writing import recipe_values, recipe_yaml
from organs.registry.errors import BadRecipe, TooSlow
from organs.registry.present.changes import findings_values
from organs.registry.present.composing import (
    adapters_values,
    candidates_values,
    cells_values,
    fitting_values,
    types_values,
)
from organs.registry.present.plan import plan_values
from organs.registry.present.script import script
from organs.registry.present.values import Values
from organs.web.answers import Page, plain_page, reading, settings
from organs.web.asking import planner
from organs.web.errors import error_answer
from organs.web.pages.cells import cell_grid, letters
from organs.web.pages.composing import ORDERS, Asked, cell_graft, compose_address, parsed_cell, replacing, type_graft
from organs.web.planning import cut_lists, plan_for_client

FITTING_SHOWN = 12
FILE_NAME = "recipe.yaml"
TOO_SLOW = "This took the catalog too long, and was left out."
NOTHING_YET = "nothing-to-do"
"""What the plan of a base without any step is refused for: no news to whoever has only begun."""


@dataclass(frozen=True, slots=True)
class Workbench:
    """What a page of it is made of."""

    asked: Asked
    recipe: Recipe
    plan: Plan
    values: Values
    """For HTML and JSON alike."""
    problem: str | None = None
    status: int = 200

    def page(self) -> Page:
        """The page, and its twin."""
        return Page("compose.html", self.values, extra=lambda: _shown(self), status=self.status)


def workbench(asked: Asked, problem: str | None = None, status: int = 200) -> Workbench:
    """The plan of what is asked and all beside it. Steps that cannot be read are findings, and 400.

    Raises NotFound, BadName and the like for the base, BadQuery for a cell, TooCostly, TooMany, TooSlow, StoreError.
    """
    unread: list[Finding] = []
    try:
        recipe = asked.recipe()
    except BadRecipe as error:
        if not plain_page():
            abort(error_answer(400, str(error), errors=error.reasons))
        recipe, unread, status = asked.readable(), recipe_findings(error), 400
    with reading(settings().search_seconds) as session:
        plan, library = plan_for_client(session, recipe)
        adapters = adapters_values(session, plan.base, library)
    values = {
        "base": plan.base.label,
        "recipe": None if unread else recipe_values(recipe),
        "yaml": None if unread else recipe_yaml(recipe),
        "plan": None if unread else plan_values(plan, contributor=planner()),
        "findings": findings_values(unread or plan.findings, recipe.accept),
        "cells": cells_values(plan.parts),
        "types": types_values(plan.parts),
        "adapters": adapters,
        "fitting": _fitting(plan.base),
        "candidates": _candidates(plan.base, asked) if asked.cell else None,
    }
    return Workbench(asked, recipe, plan, cut_lists(values), problem, status)


def _fitting(base: Parent) -> Values | None:
    """Models that fit the base; None where that took too long."""
    try:
        with reading(settings().search_seconds) as session:
            return fitting_values(fitting_models(session, base.model_id or 0, FITTING_SHOWN))
    except TooSlow:
        g.unkept = True  # the next one who asks may have more luck
        return None


def _candidates(base: Parent, asked: Asked) -> Values | None:
    cell = parsed_cell(asked.cell)
    try:
        with reading(settings().search_seconds) as session:
            return candidates_values(session, base, cell, asked.order)
    except TooSlow:
        g.unkept = True
        return None


def _shown(bench: Workbench) -> Values:
    """What only the HTML needs."""
    asked, plan, values = bench.asked, bench.plan, bench.values
    marks = letters([parent.label for parent in plan.parents])
    findings = [
        one for one in values["findings"] if one["code"] != NOTHING_YET or len(asked.steps) > 1 or bench.problem
    ]
    return {
        "problem": bench.problem,
        "steps": _steps(bench),
        "grid": cell_grid(
            values["cells"], marks, asked.cell, lambda cell: asked.address(cell=cell, anchor="candidates")
        ),
        "marks": marks,
        "acts": {one["model"]: one["acts"] for one in (values["plan"] or {}).get("parents", ())},
        "findings_shown": [one | _accepting(asked, one) for one in findings],
        "has_steps": any(part.acts for part in plan.parts) or len(asked.steps) > 1,
        "offers": _offers(bench),
        "whole": _whole(bench),
        "adding": [
            {"name": one["model"], "address": _added(asked, "adapter", f"from:{one['model']}"), **one}
            for one in values["adapters"]
        ],
        "orders": [
            {"label": label, "chosen": order == asked.order, "address": asked.address(order=order, anchor="candidates")}
            for order, label in ORDERS.items()
        ],
        "hidden": [*asked.steps, *([("cell", asked.cell)] if asked.cell else [])],
        "posted": [step for step in asked.steps if step[0] != "name"],
        "name": bench.recipe.name or "",
        "types_to_choose": TYPES,
        "methods": [method.value for method in PurifyMethod],
        "encodings": ENCODINGS,
        "encode": bench.recipe.encode,
        "other_base": compose_address([step for step in asked.steps if step[0] != "base"]),
        "fits": compose_address([("base", plan.base.label)], "pages.compose_fits"),
        "lines": _lines(bench),
        "twin": compose_address([*asked.steps, *([("cell", asked.cell)] if asked.cell else [])], "pages.compose_json"),
        "too_slow": TOO_SLOW,
    }


def _steps(bench: Workbench) -> list[Values]:
    """The steps so far, each with what is wrong with its text, and the page without it."""
    asked, findings = bench.asked, bench.values["findings"]
    wrong = [one for one in findings if one["severity"] == "refuse" and one["field"]]
    return [
        {
            "what": parameter,
            "text": text,
            "path": path,
            "remove": asked.without(place).address(),
            "problems": [one["sentence"] for one in wrong if _is_at(one["field"], path)],
        }
        for place, ((parameter, text), path) in enumerate(zip(asked.steps, asked.paths(), strict=True))
        if parameter != "base"
    ]


def _is_at(field: str, path: str) -> bool:
    return field == path or field.startswith((f"{path}.", f"{path}["))


def _accepting(asked: Asked, finding: Mapping[str, str]) -> Values:
    """The page on which a warning is accepted, or is so no more."""
    if finding["severity"] != "warn":
        return {"accept": None}
    step = ("accept", finding["code"])
    if step in asked.steps:
        return {"accept": asked.without(asked.steps.index(step)).address(anchor="findings")}
    return {"accept": asked.having(*step).address(anchor="findings")}


def _offers(bench: Workbench) -> list[Values]:
    """The candidates of the chosen cell, each with the page on which the cell is theirs."""
    candidates = bench.values["candidates"]
    if candidates is None:
        return []
    towers = sorted({part.place.tower.value for part in bench.plan.base.parts})
    return [
        one | {"address": _grafted(bench, cell_graft(one["model"], candidates, towers)) if one["whole"] else None}
        for one in candidates["items"]
    ]


def _whole(bench: Workbench) -> list[Values]:
    """The models that fit, each with the pages on which all of a type is theirs."""
    fitting = bench.values["fitting"]
    return [
        {
            "model": one["model"],
            "alike": one["alike"],
            "types": {
                kind: fit
                | {"address": _grafted(bench, type_graft(one["model"], kind)) if _can_give(kind, fit) else None}
                for kind, fit in one["types"].items()
            },
            "fits": compose_address([("base", bench.plan.base.label), ("donor", one["model"])], "pages.compose_fits"),
        }
        for one in (fitting["items"] if fitting else ())
    ]


def _can_give(kind: str, fit: Mapping[str, int]) -> bool:
    return bool(fit["whole"] and fit["fitting"] and kind in TYPES)


def _grafted(bench: Workbench, step: tuple[str, str]) -> str:
    """The page with one more graft, instead of the one for the same places."""
    try:
        return bench.asked.with_recipe(replacing(bench.asked.recipe(), step)).address(anchor="steps")
    except BadRecipe:
        return _added(bench.asked, *step)


def _added(asked: Asked, parameter: str, text: str) -> str:
    return asked.having(parameter, text).address(anchor="steps")


def _lines(bench: Workbench) -> Values:
    file_name = bench.plan.file_name
    return {
        "recipe_file": FILE_NAME,
        "command": f"organ compose {FILE_NAME} -o {file_name}",
        "python": script(bench.recipe, file_name),
    }
