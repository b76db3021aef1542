"""Recipes that graft or purify single experts of a stack."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest
from sqlalchemy import delete, select

from organs.registry.catalog.tables import Blob, ChimeraRow, Expert, ModelRow, OrganRow
from organs.registry.compose.recipe import read_recipe
from organs.registry.compose.screen import FRACTAL_ENERGY, KNOWN, ChangeKind
from organs.registry.gguf import read_header
from organs.registry.input_files import FileSource
from organs.registry.local import LocalRegistry
from organs.registry.upkeep import Share, verify
from tests.registry_templates import RegistryTemplates
from tests.related_models import ingest_bytes
from tests.small_models import EXPERTS, expert_model, expert_stack, row_counts, tensors_of

SLOTS = ("ffn_gate_exps", "ffn_up_exps")
STACKS = [f"blk.{block}.{slot}.weight" for block in (0, 1) for slot in SLOTS]


def add_mixtures(registry: LocalRegistry, folder: Path) -> None:
    """Add a mixture of experts, and one in which experts 2 and 5 differ."""
    for name, changed in (("Mixture", {}), ("Edited", {2: 50, 5: 51})):
        ingest_bytes(registry, folder, name, expert_model(name, changed=changed))


@pytest.fixture
def mixtures(registry: LocalRegistry, templates: RegistryTemplates, tmp_path: Path) -> LocalRegistry:
    """Return a registry with both mixtures; the first is also a file in the folder of the test."""
    templates.fill(registry, add_mixtures)
    (tmp_path / "Mixture.gguf").write_bytes(expert_model("Mixture"))
    return registry


def compose(registry: LocalRegistry, recipe: str, path: Path) -> dict[str, bytes]:
    """Make the chimera of a recipe, with all of its warnings accepted; return the tensors of its file."""
    made = registry.compose(read_recipe(f"base: local/Mixture\n{recipe}")).plan().accepting_all().assemble(path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == made.sha256
    return tensors_of(path)


def expected(tmp_path: Path, changed: Mapping[str, Mapping[int, int]]) -> dict[str, bytes]:
    """Return the tensors of the base with stacks whose experts have other seeds."""
    return tensors_of(tmp_path / "Mixture.gguf") | {
        name: expert_stack(name, changed=experts)[1] for name, experts in changed.items()
    }


def test_one_expert_is_grafted_and_all_other_bytes_stay(mixtures: LocalRegistry, tmp_path: Path) -> None:
    before = row_counts(mixtures)
    made = compose(mixtures, "grafts: [{from: local/Edited, experts: 5}]", tmp_path / "out.gguf")
    assert made == expected(tmp_path, {name: {5: 51} for name in STACKS})
    added = row_counts(mixtures)["organs"] - before["organs"]
    assert added == len(STACKS), "only the stacks are new: their experts were stored before"


@pytest.mark.parametrize(
    ("step", "changed"),
    [
        ("{from: local/Edited, experts: [2, 5]}", {name: {2: 50, 5: 51} for name in STACKS}),
        (
            "{from: local/Edited, experts: 2}, {from: local/Edited, experts: 5}",
            {name: {2: 50, 5: 51} for name in STACKS},
        ),
        ("{from: local/Edited, experts: 0-2, blocks: 1}", {name: {2: 50} for name in STACKS[2:]}),
        ("{from: local/Edited, experts: 5, slot: ffn_up_exps}", {name: {5: 51} for name in STACKS[1::2]}),
    ],
)
def test_experts_are_selected_by_number_block_and_slot(
    mixtures: LocalRegistry, tmp_path: Path, step: str, changed: dict[str, dict[int, int]]
) -> None:
    assert compose(mixtures, f"grafts: [{step}]", tmp_path / "out.gguf") == expected(tmp_path, changed)


def test_the_experts_of_the_chimera_are_recorded_and_its_bytes_verify(mixtures: LocalRegistry, tmp_path: Path) -> None:
    compose(mixtures, "name: local/mixed\ngrafts: [{from: local/Edited, experts: 5}]", tmp_path / "out.gguf")
    with mixtures.catalog.reading() as session:
        statement = (
            select(ModelRow.name, Expert.slot, Expert.block, Expert.expert, Blob.digest)
            .join(Expert, Expert.model_id == ModelRow.id)
            .join(OrganRow, OrganRow.id == Expert.organ_id)
            .join(Blob, Blob.id == OrganRow.blob_id)
        )
        experts = {tuple(row[:4]): row.digest for row in session.execute(statement)}
    for (name, slot, block, number), digest in experts.items():
        if name == "mixed":
            donor = "Edited" if number == 5 else "Mixture"
            assert digest == experts[donor, slot, block, number]
    assert sum(key[0] == "mixed" for key in experts) == len(STACKS) * EXPERTS
    assert not verify(mixtures.catalog, mixtures.blobs, read_data=Share(1, 1)).faults


def test_a_stack_with_grafted_experts_can_be_grafted_as_a_whole_into_another_base(
    mixtures: LocalRegistry, tmp_path: Path
) -> None:
    compose(mixtures, "name: local/mixed\ngrafts: [{from: local/Edited, experts: 5}]", tmp_path / "out.gguf")
    ingest_bytes(mixtures, tmp_path, "Kin", expert_model("Kin", mixed={0: 0.1, 5: 0.1}))
    plan = mixtures.compose("local/Kin").graft("local/mixed", slot=list(SLOTS)).plan().accepting_all()
    chimera = mixtures.chimera(plan.register().lock_id)
    assert {part.name: part.experts for part in chimera.parts} == dict.fromkeys(STACKS, ())


def test_experts_of_two_donors_are_credited_to_their_donors(mixtures: LocalRegistry, tmp_path: Path) -> None:
    ingest_bytes(mixtures, tmp_path, "Kin", expert_model("Kin", mixed={0: 0.1, 1: 0.1}))
    recipe = "name: local/two\ngrafts: [{from: local/Edited, experts: 5}, {from: local/Kin, experts: '0-1'}]"
    compose(mixtures, f"{recipe}\npurify: {{method: fractal, experts: 3}}", tmp_path / "out.gguf")
    with mixtures.catalog.reading() as session:
        lock = session.scalars(select(ChimeraRow.lock_id)).one()
    chimera = mixtures.chimera(lock)
    text = "grafted (expert 5 of local/Edited@1, experts 0-1 of local/Kin@1), purified (expert 3)"
    assert {part.acts_text for part in chimera.parts} == {text}
    assert {parent.model: parent.acts for parent in chimera.parents} == {
        "local/Mixture@1": (),
        "local/Edited@1": ("grafted", "purified"),
        "local/Kin@1": ("grafted",),
    }


def test_experts_are_grafted_and_purified_and_the_others_keep_their_bytes(
    mixtures: LocalRegistry, tmp_path: Path
) -> None:
    recipe = "grafts: [{from: local/Edited, experts: 5}]\npurify: {method: fractal, experts: 3, blocks: 0}"
    made = compose(mixtures, recipe, tmp_path / "out.gguf")
    for name, data in expected(tmp_path, {name: {5: 51} for name in STACKS}).items():
        size = len(data) // EXPERTS
        parts = [slice(number * size, (number + 1) * size) for number in range(EXPERTS)]
        differ = [number for number, part in enumerate(parts) if made[name][part] != data[part]]
        assert differ == ([3] if name in STACKS[:2] else []), name


@pytest.mark.parametrize(
    ("recipe", "code", "field"),
    [
        ("grafts: [{from: local/Edited, experts: 8}]", "no-such-expert", "grafts[0].experts"),
        ("purify: {method: fractal, experts: 5-99}", "no-such-expert", "purify.experts"),
        ("grafts: [{from: local/Edited, experts: 5, type: skeleton}]", "nothing-selected", "grafts[0]"),
        (
            "grafts: [{from: local/Edited, experts: 5}, {from: local/Edited, type: organ}]",
            "overlapping-grafts",
            "grafts[1]",
        ),
        (
            "grafts: [{from: local/Edited, experts: 5}, {from: local/Edited, experts: 4-6}]",
            "overlapping-grafts",
            "grafts[1]",
        ),
        ("grafts: [{from: local/Other, experts: 5}]", "experts-refused", ""),
    ],
)
def test_mistakes_are_findings(mixtures: LocalRegistry, tmp_path: Path, recipe: str, code: str, field: str) -> None:
    ingest_bytes(mixtures, tmp_path, "Other", expert_model("Other", dtype="F32"))
    plan = mixtures.compose(read_recipe(f"base: local/Mixture\n{recipe}")).plan()
    refusals = [(finding.code, finding.field) for finding in plan.findings if finding.severity == "refuse"]
    assert (code, field) in refusals


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("encode: F32", "encode: F32 changes the type"),
        ("encode: F32\nblends: {from: local/Edited, weight: 0.5, type: organ}", "a blend changes the whole stack"),
    ],
)
def test_why_experts_cannot_be_purified_is_stated(mixtures: LocalRegistry, more: str, reason: str) -> None:
    recipe = f"base: local/Mixture\npurify: {{method: fractal, experts: 5}}\n{more}"
    findings = mixtures.compose(read_recipe(recipe)).plan().findings
    sentences = [finding.sentence for finding in findings if finding.code == "experts-refused"]
    assert sentences
    assert all(reason in sentence for sentence in sentences)


def test_likeness_and_relation_are_those_of_the_grafted_experts(mixtures: LocalRegistry, tmp_path: Path) -> None:
    ingest_bytes(mixtures, tmp_path, "Kin", expert_model("Kin", mixed={5: 0.05, 6: 0.05}))
    kin, stranger = (
        mixtures.compose("local/Mixture").graft(f"local/{donor}", experts=5).plan() for donor in ("Kin", "Edited")
    )
    (related,) = (finding for finding in kin.findings if finding.code == "related-lineage")
    assert related.sentence.startswith("local/Kin@1 and local/Mixture@1 are related: the change of 4 matrices")
    assert related.organs == tuple(f"{name}[5]" for name in STACKS)
    (unrelated,) = (finding for finding in stranger.findings if finding.code == "unrelated-lineage")
    assert unrelated.organs == related.organs
    assert (kin.screen.compared, stranger.screen.compared) == (4, 4)
    assert (kin.screen.likeness or 0.0) > 0.99
    assert (kin.screen.relation, stranger.screen.relation) == ("kin", "stranger")
    assert kin.screen.sentence == KNOWN[ChangeKind.OUTSIDE].sentence
    (share,) = (finding.sentence for finding in kin.findings if finding.code == "changed-share")
    percent = f"{share_of_an_expert(tmp_path):.1%}"
    assert share == f"4 experts in 4 stacks of local/Mixture@1 will be replaced, {percent} of its parameters."


def share_of_an_expert(folder: Path) -> float:
    """Return the share of the base's parameters that one expert has in all stacks."""
    with FileSource(folder / "Mixture.gguf") as source:
        elements = {tensor.name: tensor.elements for tensor in read_header(source).tensors}
    return sum(elements[name] for name in STACKS) / EXPERTS / sum(elements.values())


def test_a_donors_experts_that_equal_those_of_the_base_are_reported(mixtures: LocalRegistry) -> None:
    plan = mixtures.compose("local/Mixture").graft("local/Edited", experts="4,5").plan()
    (equal,) = (finding for finding in plan.findings if finding.code == "already-equal")
    assert equal.organs == tuple(f"{name}[4]" for name in STACKS)
    assert plan.screen.compared == len(STACKS)
    assert {part.acts_text for part in plan.parts if part.acts} == {"grafted (expert 5)"}
    nothing = mixtures.compose("local/Mixture").graft("local/Edited", experts=4).plan()
    assert "nothing-to-do" in {finding.code for finding in nothing.findings}


def test_experts_without_rows_are_not_compared(mixtures: LocalRegistry) -> None:
    with mixtures.catalog.writing() as session:
        session.execute(delete(Expert))  # as in a registry of an older version
    plan = mixtures.compose("local/Mixture").graft("local/Edited", experts=5).plan()
    (unknown,) = (finding for finding in plan.findings if finding.code == "lineage-unknown")
    assert unknown.organs == tuple(f"{name}[5]" for name in STACKS)
    assert (plan.screen.relation, plan.screen.moved) == (None, None)


def test_a_purified_expert_moves_its_share_of_the_stack(mixtures: LocalRegistry) -> None:
    graft = mixtures.compose("local/Mixture").graft("local/Edited", blocks=1, experts=5)
    one, other = (steps.plan().screen for steps in (graft, graft.purify("fractal", blocks=1, experts=3)))
    assert {group.organs for group in one.groups} == {2}
    assert one.groups[0] == other.groups[0]
    assert (other.groups[1].moved or 0.0) == pytest.approx(FRACTAL_ENERGY / EXPERTS, rel=0.05)


def test_weights_that_are_not_finite_are_warned_of_only_where_they_are_in_the_result(
    mixtures: LocalRegistry, tmp_path: Path
) -> None:
    name, data = STACKS[0], bytearray(expert_model("Broken"))
    with FileSource(tmp_path / "Mixture.gguf") as source:
        header = read_header(source)
        stack = next(tensor for tensor in header.tensors if tensor.name == name)
    offset = len(data) - (header.file_size_bytes - header.data_offset) + stack.offset + 3 * stack.size_bytes // EXPERTS
    data[offset : offset + 2] = b"\xff\x7f"  # NaN in expert 3
    ingest_bytes(mixtures, tmp_path, "Broken", data)

    def warned(base: str, donor: str, experts: int) -> bool:
        plan = mixtures.compose(f"local/{base}").graft(f"local/{donor}", slot=list(SLOTS), experts=experts).plan()
        return any(finding.code == "non-finite-weights" for finding in plan.findings)

    assert [warned("Mixture", "Broken", experts) for experts in (3, 1)] == [True, False]
    assert [warned("Broken", "Edited", experts) for experts in (5, 3)] == [True, False]
    with mixtures.catalog.writing() as session:
        session.execute(delete(Expert))  # as in a registry of an older version
    assert warned("Mixture", "Broken", 1)
