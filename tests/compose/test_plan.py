"""Tests of a planned recipe as all user interfaces show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from organs.registry.compose.plan import planned_recipe
from organs.registry.entities.base import decode, encode
from organs.registry.entities.plan import ParentModel, PlannedChimera, PlannedRecipe
from organs.registry.local import LocalRegistry
from tests.related_models import ingest_bytes, model_file, related_tensors


@pytest.fixture
def family(registry: LocalRegistry, tmp_path: Path) -> LocalRegistry:
    ingest_bytes(registry, tmp_path, "base", model_file("Base", related_tensors()))
    ingest_bytes(registry, tmp_path, "tuned", model_file("Tuned", related_tensors(correlation=0.995)))
    ingest_bytes(registry, tmp_path, "stranger", model_file("Stranger", related_tensors(seed=7)))
    return registry


def chimera_of(planned: PlannedRecipe) -> PlannedChimera:
    assert planned.plan is not None
    return planned.plan


def test_a_plan_has_the_changed_organs_and_all_organs_on_demand(family: LocalRegistry) -> None:
    plan = family.compose("base").graft("tuned", type="organ", blocks=1).plan().plan
    planned = planned_recipe(plan)
    chimera = chimera_of(planned)
    assert [part.slot for part in chimera.parts] == ["ffn_up", "ffn_down"]
    assert (chimera.changed, chimera.organs, chimera.to_compute) == (2, 10, 0)
    assert all(part.model == "local/tuned@1" and part.acts == ("grafted",) for part in chimera.parts)
    every = chimera_of(planned_recipe(plan, every_part=True)).parts
    assert [part.name for part in every] == [part.name for part in plan.base.parts]
    assert (every[0].model, every[0].acts, every[0].theta) == ("local/base@1", (), every[0].theta_before)
    assert [part.digest for part in every] == [part.source.digest for part in plan.parts]
    assert chimera.parents == (
        ParentModel(model="local/base@1", license="apache-2.0", acts=()),
        ParentModel(model="local/tuned@1", license="apache-2.0", acts=("grafted",)),
    )
    assert decode(encode(planned), PlannedRecipe) == planned


def test_the_lock_is_known_unless_something_is_computed_or_refused(family: LocalRegistry) -> None:
    grafted = family.compose("base").graft("tuned", type="organ")
    plan = grafted.plan()
    assert plan.chimera.lock_id == plan.register().lock_id
    assert grafted.purify("fractal", slot="attn_q").plan().chimera.lock_id is None
    refused = family.compose("base").graft("tuned", blocks=9).plan()
    assert (refused.chimera.lock_id, refused.can_be_made) == (None, False)


def test_an_organ_that_is_not_computed_yet_has_no_theta(family: LocalRegistry) -> None:
    chimera = chimera_of(planned_recipe(family.compose("base").purify("fractal", slot="attn_q", blocks=0).plan().plan))
    (part,) = chimera.parts
    assert (part.acts, part.theta, part.spectral_signal, part.digest) == (("purified",), None, None, None)
    assert part.theta_before is not None
    assert chimera.to_compute == 1
    assert chimera.parents == (ParentModel(model="local/base@1", license="apache-2.0", acts=("purified",)),)


def test_the_size_is_that_of_the_file_and_open_warnings_are_reported(family: LocalRegistry, tmp_path: Path) -> None:
    strange = family.compose("base").graft("stranger", type="organ")
    planned = planned_recipe(strange.plan().plan)
    assert (planned.can_be_made, planned.unaccepted) == (False, ("unrelated-lineage",))
    plan = strange.accept("unrelated-lineage").plan()
    plan.assemble(tmp_path / "c.gguf")
    planned = planned_recipe(plan.plan)
    assert (planned.can_be_made, planned.unaccepted) == (True, ())
    chimera = chimera_of(planned)
    assert chimera.size_bytes == (tmp_path / "c.gguf").stat().st_size
    assert chimera.base_size_bytes == (tmp_path / "base.gguf").stat().st_size
