"""A plan as plain values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from organs.registry.present.plan import plan_values
from organs.registry.registry import Registry
from tests.kin import ingest_bytes, kin_file, kin_tensors


@pytest.fixture
def family(registry: Registry, tmp_path: Path) -> Registry:
    ingest_bytes(registry, tmp_path, "base", kin_file("Base", kin_tensors()))
    ingest_bytes(registry, tmp_path, "tuned", kin_file("Tuned", kin_tensors(alike=0.995)))
    ingest_bytes(registry, tmp_path, "stranger", kin_file("Stranger", kin_tensors(seed=7)))
    return registry


def test_a_plan_has_the_organs_that_change_and_all_of_them_on_demand(family: Registry) -> None:
    plan = family.compose("base").graft("tuned", type="organ", blocks=1).plan().plan
    values = plan_values(plan)
    assert [part["slot"] for part in values["parts"]] == ["ffn_up", "ffn_down"]
    assert (values["changed"], values["organs"], values["to_compute"]) == (2, 10, 0)
    assert all(part["from"] == "local/tuned@1" and part["acts"] == ["grafted"] for part in values["parts"])
    every = plan_values(plan, every_part=True)["parts"]
    assert [part["name"] for part in every] == [part.name for part in plan.base.parts]
    untouched = every[0]
    assert (untouched["from"], untouched["acts"], untouched["theta"]) == (
        "local/base@1", [], untouched["theta_before"],
    )  # fmt: skip
    assert values["parents"] == [
        {"model": "local/base@1", "license": "apache-2.0", "acts": []},
        {"model": "local/tuned@1", "license": "apache-2.0", "acts": ["grafted"]},
    ]
    assert json.loads(json.dumps(values, allow_nan=False)) == values


def test_the_lock_is_known_before_where_nothing_is_computed_and_nothing_refused(family: Registry) -> None:
    grafted = family.compose("base").graft("tuned", type="organ")
    plan = grafted.plan()
    assert plan_values(plan.plan)["lock_id"] == plan.register().lock_id
    assert plan_values(grafted.purify("fractal", slot="attn_q").plan().plan)["lock_id"] is None
    refused = plan_values(family.compose("base").graft("tuned", blocks=9).plan().plan)
    assert (refused["lock_id"], refused["can_be_made"]) == (None, False)


def test_what_is_still_to_be_computed_has_no_theta(family: Registry) -> None:
    values = plan_values(family.compose("base").purify("fractal", slot="attn_q", blocks=0).plan().plan)
    (part,) = values["parts"]
    assert (part["acts"], part["theta"], part["spectral_signal"]) == (["purified"], None, None)
    assert part["theta_before"] is not None
    assert values["to_compute"] == 1
    assert values["parents"] == [{"model": "local/base@1", "license": "apache-2.0", "acts": ["purified"]}]


def test_the_size_is_that_of_the_file_and_warnings_that_are_not_accepted_are_told(
    family: Registry, tmp_path: Path
) -> None:
    strange = family.compose("base").graft("stranger", type="organ")
    values = plan_values(strange.plan().plan)
    assert (values["can_be_made"], values["unaccepted"]) == (False, ["unrelated-lineage"])
    plan = strange.accept("unrelated-lineage").plan()
    plan.assemble(tmp_path / "c.gguf")
    values = plan_values(plan.plan)
    assert (values["can_be_made"], values["unaccepted"]) == (True, [])
    assert values["size_bytes"] == (tmp_path / "c.gguf").stat().st_size
    assert values["base_size_bytes"] == (tmp_path / "base.gguf").stat().st_size
