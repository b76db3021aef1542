"""Tests of predictions of plans: estimates before computation, warnings, and stored values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from organs.registry.catalog.queries.chimeras import chimera_of
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.compose.build import make
from organs.registry.compose.compatibility import ACCURACY
from organs.registry.compose.models import RegisteredLibrary
from organs.registry.compose.plan import Plan
from organs.registry.compose.planner import (
    changes_of,
    plan_recipe,
    predicted,
)
from organs.registry.compose.recipe_io import read_recipe
from organs.registry.entities.finding import Severity
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests.registry_templates import RegistryTemplates, add_zoo_models

ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo"
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


def kept(kin: LocalRegistry, found: Plan) -> dict[str, Any]:
    """Return the stored prediction after the plan was made."""
    model = make(kin.catalog, kin.blobs, found).model
    with kin.catalog.reading() as session:
        chimera = chimera_of(session, model_by_name(session, parse_model_name(model)).id)
        assert chimera is not None
        stored: dict[str, Any] = json.loads(chimera.prediction)
    return stored


def test_a_graft_from_a_fine_tune_has_no_warnings(kin: LocalRegistry) -> None:
    planned = grafted(kin, CODE)
    assert warned(planned) == set()
    assert planned.prediction.usable
    assert not planned.prediction.provisional


def test_relatives_that_will_not_work_get_a_warning(kin: LocalRegistry) -> None:
    planned = grafted(kin, STEP_100)
    assert warned(planned) == {"likely-degraded"}
    (finding,) = planned.unaccepted
    assert finding.sentence.startswith("Likely not usable: more than 3 times the perplexity of the base")
    assert ACCURACY in finding.sentence


def test_unrelated_models_get_one_warning(kin: LocalRegistry) -> None:
    assert warned(grafted(kin, B)) == {"unrelated-lineage"}
    assert grafted(kin, B, blocks=3).prediction.usable is False


def test_the_loss_of_purifying_is_estimated_beforehand(kin: LocalRegistry) -> None:
    light, deep = purified(kin, method="spectral", keep=0.99), purified(kin, method="spectral", keep=0.5)
    for plan_part in (light, deep):
        assert plan_part.prediction.provisional
        assert plan_part.prediction.uncounted == 0
        assert plan_part.prediction.theta_after is None
        assert "before organs are computed" in plan_part.prediction.sentence
    assert (light.prediction.score or 0) > (deep.prediction.score or 0)
    assert (warned(light), warned(deep)) == (set(), {"likely-degraded"})
    assert warned(purified(kin, method="spectral")) == set()


def test_norms_lose_little_by_purifying_because_they_are_mostly_their_mean(kin: LocalRegistry) -> None:
    planned = plan(kin, purify={"type": "norm", "method": "spectral", "keep": 0.5}).prediction
    assert planned.recovered is None
    assert planned.loss is not None
    assert 0.0 < planned.loss < 0.05


@pytest.mark.parametrize(
    "steps",
    [
        {"adapters": [{"from": LORA}]},
        {"adapters": [{"from": LORA, "scale": -2}]},
        {"purify": {"type": "organ", "method": "spectral"}},
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
    stored = kept(kin, planned)
    assert (planned.prediction.provisional, stored["provisional"]) == (True, False)
    assert stored["loss"] == pytest.approx(planned.prediction.loss, rel=0.3)
    assert stored["recovered"] == pytest.approx(planned.prediction.recovered)
    assert stored["theta_after"] is not None
    assert "before organs are computed" not in stored["sentence"]


def test_earlier_computed_organs_are_measured_too(kin: LocalRegistry) -> None:
    planned = plan(kin, adapters=[{"from": LORA, "scale": 0.5}], name="local/first")
    again = replace(planned, recipe=replace(planned.recipe, name="local/second"))
    assert kept(kin, planned) == kept(kin, again)


def test_an_adapter_without_moments_leaves_its_organs_uncounted(kin: LocalRegistry) -> None:
    planned = plan(kin, adapters=[{"from": LORA}])
    bare = [
        replace(
            part,
            adapters=tuple(
                replace(adapter, parts=tuple(replace(half, mean=None) for half in adapter.parts))
                for adapter in part.adapters
            ),
        )
        for part in planned.parts
    ]
    prediction = predicted(bare)
    assert prediction.uncounted == len(planned.computations)
    assert prediction.loss is None


def test_organs_equal_in_donor_and_base_are_not_changes(kin: LocalRegistry) -> None:
    planned = plan(kin, grafts=[{"from": CODE, "slot": "ffn_up", "blocks": 1}])
    (change,) = changes_of(planned.parts)
    assert change.before.name == "blk.1.ffn_up.weight"
    same = [replace(part, source=part.before) for part in planned.parts]
    assert changes_of(same) == []
