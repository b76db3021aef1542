"""Tests of the screens of plans: estimates before computation, warnings, and stored values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from organs.registry.compose.build import make
from organs.registry.compose.parents import RegisteredLibrary
from organs.registry.compose.plan import Plan
from organs.registry.compose.planner import plan_recipe
from organs.registry.compose.recipe import read_recipe
from organs.registry.entities.finding import Severity
from organs.registry.entities.plan import Screen
from organs.registry.local import LocalRegistry
from tests.registry_templates import RegistryTemplates, add_zoo_models

A, CODE, STEP_100, B, LORA = (
    f"Zoo-{name}"
    for name in ("A-2M-v1.0-F16", "A-2M-Code-v1.0-F16", "A-2M-v0.1-Q8_0", "B-2M-v1.0-Q8_0", "A-2M-Code-LoRA-v1.0-F32")
)


@pytest.fixture(scope="module")
def kin(templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    """Return a registry with some models of the zoo."""
    with templates.open_copy(add_zoo_models, tmp_path_factory.mktemp("zoo") / "home") as opened:
        yield opened


def plan(kin: LocalRegistry, **steps: Any) -> Plan:
    """Return the plan of a recipe for A with these steps."""
    with kin.catalog.reading() as session:
        recipe = read_recipe(json.dumps({"base": A, **steps}))
        return plan_recipe(recipe, RegisteredLibrary(session, kin.blobs))


def grafted(kin: LocalRegistry, donor: str, **more: Any) -> Plan:
    return plan(kin, grafts=[{"from": donor, "type": "organ", **more}])


def purified(kin: LocalRegistry, **how: Any) -> Plan:
    return plan(kin, purify={"type": "organ", **how})


def warned(found: Plan) -> set[str]:
    return {finding.code for finding in found.findings if finding.severity is Severity.WARN}


def stored(kin: LocalRegistry, found: Plan) -> Screen:
    """Return the screen of the chimera after the plan was made."""
    screen = kin.chimera(make(kin.catalog, kin.blobs, found).lock_id).screen
    assert screen is not None
    return screen


def test_what_purifying_moves_is_estimated_beforehand(kin: LocalRegistry) -> None:
    light, deep = (purified(kin, method="spectral", keep=keep).screen for keep in (0.99, 0.5))
    for found in (light, deep):
        assert (found.provisional, found.uncounted, found.likeness) == (True, 0, None)
        assert "estimated before they are computed" in found.size
    assert (light.moved or 0.0) == pytest.approx(0.01, rel=0.1)
    assert (deep.moved or 0.0) == pytest.approx(0.586, rel=0.1)


@pytest.mark.parametrize(
    "steps",
    [
        {"purify": {"type": "skeleton", "method": "fractal"}},
        {"grafts": [{"from": CODE, "type": "organ"}], "adapters": [{"from": LORA}]},
        {"adapters": [{"from": LORA}], "purify": {"type": "organ", "method": "spectral", "keep": 0.95}},
    ],
    ids=lambda steps: "-".join(steps),
)
def test_the_estimate_is_near_the_measurement_and_only_the_measurement_is_stored(
    kin: LocalRegistry, steps: dict[str, Any]
) -> None:
    planned = plan(kin, **steps)
    measured = stored(kin, planned)
    assert (planned.screen.provisional, measured.provisional) == (True, False)
    assert measured.moved == pytest.approx(planned.screen.moved, rel=0.3)
    assert (measured.sentence, measured.likeness) == (planned.screen.sentence, planned.screen.likeness)
    assert "before they are computed" not in measured.size


def test_earlier_computed_organs_are_measured_too(kin: LocalRegistry) -> None:
    planned = plan(kin, adapters=[{"from": LORA, "scale": 0.5}], name="local/first")
    again = replace(planned, recipe=structs.replace(planned.recipe, name="local/second"))
    assert stored(kin, planned) == stored(kin, again)


def test_recipes_that_accept_a_warning_that_is_no_longer_given_can_still_be_made(kin: LocalRegistry) -> None:
    planned = plan(kin, grafts=[{"from": CODE, "slot": "ffn_up", "blocks": 1}], accept=["likely-degraded"])
    assert planned.can_be_made
