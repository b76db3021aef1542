"""Tests of a planned recipe as all user interfaces show it, and of the summary of its changes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from organs.registry.compose.plan import planned_recipe, summarize_changes
from organs.registry.entities.base import decode, encode
from organs.registry.entities.finding import Finding, Severity, in_order, stored_findings
from organs.registry.entities.plan import ParentModel, PlannedChimera, PlannedRecipe, PlanPart
from organs.registry.local import LocalRegistry
from tests.registry_templates import RegistryTemplates, add_three_models


@pytest.fixture
def family(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    templates.fill(registry, add_three_models)
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
    assert chimera.base_size_bytes == family.model("base").size_bytes


def row(
    block: int | None,
    label: str = "a/x@1",
    kind: str = "organ",
    acts: tuple[str, ...] = ("grafted",),
    **changes: object,
) -> PlanPart:
    part = PlanPart(
        name="",
        type=kind,
        tower="text",
        block=block,
        slot="",
        model=label,
        acts=acts,
        dtype_before="F32",
        dtype="F16",
        theta_before=None if block is None else 10.0 * block,
        theta=30.0,
        spectral_signal=None,
        size_bytes_before=4,
        size_bytes=2,
        digest=None,
    )
    return msgspec.structs.replace(part, **changes)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row(block) for block in (0, 0, 1, 2, 5, 6, 9)], [("a/x@1", 0, 2, 4), ("a/x@1", 5, 6, 2), ("a/x@1", 9, 9, 1)]),
        ([row(2), row(0), row(1)], [("a/x@1", 0, 2, 3)]),
        (
            [row(0), row(1, "a/y@1"), row(2), row(3, acts=("grafted", "purified")), row(0, kind="norm")],
            [(f"a/{model}@1", block, block, 1) for model, block in (("x", 0), ("y", 1), ("x", 2), ("x", 3), ("x", 0))],
        ),
        ([row(0), row(None), row(1)], [("a/x@1", None, None, 1), ("a/x@1", 0, 1, 2)]),
    ],
    ids=["neighbours", "any order", "another donor, type or act", "outside the blocks"],
)
def test_equal_changes_of_neighbouring_blocks_are_one_line(
    rows: list[PlanPart], expected: list[tuple[str, int | None, int | None, int]]
) -> None:
    found = summarize_changes(rows)
    assert [(change.model, change.first_block, change.last_block, change.organs) for change in found] == expected


def test_means_are_of_the_organs_that_have_one_and_sizes_add_up() -> None:
    (change,) = summarize_changes([row(1), row(3, theta=None, theta_before=30.0), row(2, theta_before=None)])
    assert (change.theta_before, change.theta) == (20.0, 30.0)
    assert (change.size_bytes_before, change.size_bytes) == (12, 6)
    (unknown,) = summarize_changes([row(None, theta=None)])
    assert (unknown.theta_before, unknown.theta) == (None, None)


def test_findings_come_refusals_first_and_say_which_warnings_are_accepted() -> None:
    findings = [
        Finding(Severity.INFO, "changed-share", "Some."),
        Finding(Severity.WARN, "other-scale", "Larger."),
        Finding(Severity.REFUSE, "width-differs", "Wider.", organs=("a", "b")),
        Finding(Severity.WARN, "unrelated-lineage", "Strangers."),
    ]
    ordered = in_order(findings, ["other-scale", "width-differs"])
    assert [(finding.code, finding.accepted) for finding in ordered] == [
        ("width-differs", False), ("other-scale", True), ("unrelated-lineage", False), ("changed-share", False),
    ]  # fmt: skip
    assert ordered[0].organs == ("a", "b")
    stored = stored_findings(encode(findings).decode())
    assert in_order(stored, ["other-scale", "width-differs"]) == ordered


def test_findings_that_were_stored_with_a_base_and_a_donor_name_both_models() -> None:
    old = (
        '[{"severity": "warn", "code": "other-scale", "sentence": "Larger.", "field": "", "base": "a/x@1", '
        '"donor": "a/y@1", "organs": ["t"]}, {"severity": "info", "code": "changed-share", "sentence": "Some."}]'
    )
    first, second = stored_findings(old)
    assert (first.models, first.organs, first.accepted) == (("a/x@1", "a/y@1"), ("t",), False)
    assert (second.severity, second.models) == (Severity.INFO, ())
