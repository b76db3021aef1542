"""Recipes that keep only some experts: what is cut and what stays, saliency from files, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import select

from bench.generated import MIXTURE, Mixture, Tensors, mixture_metadata, mixture_tensors, write_mixture
from organs.registry.anatomy import SALIENT_STACK
from organs.registry.catalog.tables import Blob, Expert, Lineage, ModelRow, OrganRow
from organs.registry.compose.files import with_files
from organs.registry.compose.recipe import Recipe, read_recipe, recipe_file, recipe_of, recipe_python, recipe_yaml
from organs.registry.compose.screen import KNOWN, ChangeKind
from organs.registry.compose.steps import read_steps, step_texts
from organs.registry.documents import BadDocument
from organs.registry.errors import BadRecipe
from organs.registry.gguf import KeyValue, TensorSpec, ValueType, dtype_by_name, read_header
from organs.registry.input_files import FileSource
from organs.registry.local import LocalRegistry
from organs.registry.upkeep import Share, verify
from organs.registry.validation.comparison import ValidationBudget
from organs.registry.validation.decoder import Decoder, opened
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.run import run_chimera
from organs.registry.validation.texts import built_in_texts
from tests.cli.in_process import OrganCommand
from tests.gguf_files import array, file_bytes, importance_records, text, unsigned
from tests.registry_templates import RegistryTemplates
from tests.related_models import ingest_bytes
from tests.small_models import row_counts, tensors_of, weight_tensor

SMALL = Mixture(experts=12, used=2, unused=4)
EVERY = range(SMALL.experts)
KEPT = (0, 2, 3, 5, 6, 7, 10, 11)
KEEP = "keep: [0, 2-3, 5-7, 10-11]"
CUT = {
    f"blk.{block}.{slot}"
    for block in (1, 2)
    for slot in (
        *("ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"),
        *("ffn_gate_inp.weight", "exp_probs_b.bias"),
    )
}
ZOO = Path(__file__).parents[2] / "examples" / "zoo" / "Zoo-A-2M-v1.0-F16.gguf"


def mixture(
    shape: Mixture = SMALL, seed: int = 0, more: Iterable[KeyValue] = (), tensors: Tensors | None = None
) -> bytes:
    """Return a mixture of experts without a vocabulary; `more` replaces entries with the same keys."""
    entries = {item.key: item for item in (*mixture_metadata(shape), *more)}
    return file_bytes([*entries.values()], mixture_tensors(shape, seed, vocabulary=96) if tensors is None else tensors)


def add_mixtures(registry: LocalRegistry, folder: Path) -> None:
    for name, seed in (("Mixture", 0), ("Other", 1)):
        ingest_bytes(registry, folder, name, mixture(seed=seed))
    ingest_bytes(registry, folder, "Adapter", stack_adapter())


def stack_adapter() -> bytes:
    """Return an adapter with factors for the experts of a stack, and another router."""
    keys = ("general.type", "adapter"), ("adapter.type", "lora-merge"), ("general.architecture", "deepseek2")
    shapes = {
        "blk.1.ffn_up_exps.weight.lora_a": (64, 3, SMALL.experts),
        "blk.1.ffn_up_exps.weight.lora_b": (3, 32, SMALL.experts),
        "blk.2.ffn_gate_inp.weight": (64, SMALL.experts),
    }
    return file_bytes(
        [text(*pair) for pair in keys], [weight_tensor(name, shape, 2, "F32") for name, shape in shapes.items()]
    )


@pytest.fixture
def mixtures(registry: LocalRegistry, templates: RegistryTemplates, tmp_path: Path) -> LocalRegistry:
    """Return a registry with two mixtures of 12 experts; the first is also a file in the folder of the test."""
    templates.fill(registry, add_mixtures)
    (tmp_path / "Mixture.gguf").write_bytes(mixture())
    return registry


def compose(registry: LocalRegistry, recipe: str, path: Path, base: str = "local/Mixture") -> dict[str, bytes]:
    """Make the chimera of a recipe, with all of its warnings accepted; return the tensors of its file."""
    registry.compose(read_recipe(f"base: {base}\n{recipe}")).plan().accepting_all().assemble(path)
    return tensors_of(path)


def cut(data: bytes, kept: Sequence[int], count: int = SMALL.experts) -> bytes:
    """Return the items `kept` of the last dimension of a tensor."""
    items = np.frombuffer(data, np.uint8).reshape(count, -1)
    return items[list(kept)].tobytes()


def numbers_of(path: Path) -> tuple[int | None, int | None]:
    """Return the counts of experts, and of those that a token uses, in the header of a file."""
    with FileSource(path) as source:
        header = read_header(source)
    return header.integer("deepseek2.expert_count"), header.integer("deepseek2.expert_used_count")


def test_kept_experts_keep_their_bytes_and_the_rows_of_the_router_follow(
    mixtures: LocalRegistry, tmp_path: Path
) -> None:
    before = tensors_of(tmp_path / "Mixture.gguf")
    made = compose(mixtures, f"experts: {{{KEEP}}}", tmp_path / "out.gguf")
    assert made == {name: cut(data, KEPT) if name in CUT else data for name, data in before.items()}
    assert numbers_of(tmp_path / "out.gguf") == (8, 2)
    with FileSource(tmp_path / "out.gguf") as source:
        shapes = {tensor.name: tensor.shape for tensor in read_header(source).tensors}
    assert shapes["blk.1.ffn_down_exps.weight"] == (32, 64, 8)
    assert shapes["blk.2.ffn_gate_inp.weight"] == (64, 8)
    assert shapes["blk.2.exp_probs_b.bias"] == (8,)
    assert not verify(mixtures.catalog, mixtures.blobs, read_data=Share(1, 1)).faults


def test_no_expert_is_stored_again(mixtures: LocalRegistry, tmp_path: Path) -> None:
    before = row_counts(mixtures)
    compose(mixtures, f"name: local/small\nexperts: {{{KEEP}}}", tmp_path / "out.gguf")
    added = row_counts(mixtures)
    assert added["organs"] - before["organs"] == len(CUT), "stacks, routers and biases; no experts"
    with mixtures.catalog.reading() as session:
        statement = (
            select(ModelRow.name, Expert.slot, Expert.block, Expert.expert, Blob.digest)
            .join(Expert, Expert.model_id == ModelRow.id)
            .join(OrganRow, OrganRow.id == Expert.organ_id)
            .join(Blob, Blob.id == OrganRow.blob_id)
        )
        experts = {tuple(row[:4]): row.digest for row in session.execute(statement)}
        relations = session.scalars(
            select(Lineage.relation)
            .join(ModelRow, ModelRow.id == Lineage.child_model_id)
            .where(ModelRow.name == "small")
        ).all()
    small = {key[1:]: digest for key, digest in experts.items() if key[0] == "small"}
    assert len(small) == 2 * 3 * len(KEPT)
    for (slot, block, number), digest in small.items():
        assert digest == experts["Mixture", slot, block, KEPT[number]]
    assert "pruned" in relations


def test_nothing_is_decoded(mixtures: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = mixtures.compose("local/Mixture").experts(KEPT).plan()

    def refuse(*_: object) -> None:
        raise AssertionError("values were decoded")

    monkeypatch.setattr("organs.registry.transform.values.decode", refuse)
    plan.assemble(tmp_path / "out.gguf")


def test_steps_are_for_blocks_and_keep_or_drop(mixtures: LocalRegistry, tmp_path: Path) -> None:
    recipe = f"experts:\n  - {{{KEEP}, blocks: 1}}\n  - {{drop: [0-2, 11], blocks: 2}}"
    before, made = tensors_of(tmp_path / "Mixture.gguf"), compose(mixtures, recipe, tmp_path / "out.gguf")
    kept = {1: KEPT, 2: range(3, 11)}
    for name in CUT:
        assert made[name] == cut(before[name], kept[int(name.split(".")[1])]), name


@pytest.mark.parametrize(
    "steps",
    [
        "grafts: [{from: local/Other, experts: [2, 4]}]",
        "grafts: [{from: local/Other, blocks: 1-2, type: organ}]",
        "blends: {from: local/Other, weight: 0.5, type: organ, blocks: 1-2}",
        "purify: {method: spectral, slot: ffn_*_exps, keep: 0.9}",
        "purify: {method: fractal, experts: [3, 4]}",
        "adapters: [{from: local/Adapter, scale: 8}]",
        "encode: Q8_0\nblends: {from: local/Other, weight: 0.5, slot: ffn_up_exps}",
    ],
)
def test_the_choice_is_done_last_on_what_the_other_steps_give(
    mixtures: LocalRegistry, tmp_path: Path, steps: str
) -> None:
    whole = compose(mixtures, steps, tmp_path / "whole.gguf")
    assert whole != tensors_of(tmp_path / "Mixture.gguf")
    made = compose(mixtures, f"{steps}\nexperts: {{{KEEP}}}", tmp_path / "out.gguf")
    assert made == {name: cut(data, KEPT) if name in CUT else data for name, data in whole.items()}


def test_companions_of_stacks_and_routers_follow_in_any_tensor_type(registry: LocalRegistry, tmp_path: Path) -> None:
    count, random = SMALL.experts, np.random.default_rng(3)

    def raw(slot: str, shape: tuple[int, ...], dtype: str) -> tuple[TensorSpec, bytes]:
        spec = TensorSpec(f"blk.1.{slot}", shape, dtype_by_name(dtype))
        data = random.standard_normal(spec.elements).astype("<f4").tobytes() if dtype == "F32" else b""
        return spec, data or random.integers(0, 60, spec.size_bytes, np.uint8).tobytes()

    cut_tensors = [
        raw("ffn_gate_up_exps.weight", (64, 96, count), "Q8_0"),
        raw("ffn_gate_up_exps.bias", (96, count), "F32"),
        raw("ffn_down_exps.weight", (64, 64, count), "MXFP4"),
        raw("ffn_down_exps.scale", (count,), "F32"),
        raw("ffn_down_exps.input_scale", (count,), "F32"),
        raw("ffn_gate_inp.weight", (64, count), "Q8_0"),
        raw("ffn_gate_inp.bias", (count,), "F32"),
    ]
    channels = raw("ffn_gate_inp.scale", (64,), "F32")
    replaced = {spec.name for spec, _ in cut_tensors} | {f"blk.1.ffn_{half}_exps.weight" for half in ("gate", "up")}
    others = [item for item in mixture_tensors(SMALL, vocabulary=96) if item[0].name not in replaced]
    ingest_bytes(registry, tmp_path, "Companions", mixture(tensors=[*others, *cut_tensors, channels]))
    made = compose(registry, f"experts: {{{KEEP}}}", tmp_path / "out.gguf", "local/Companions")
    for spec, before in cut_tensors:
        assert made[spec.name] == cut(before, KEPT), spec.name
    assert made["blk.1.ffn_gate_inp.scale"] == channels[1]


def test_the_plan_and_the_lineage_say_how_many_experts_stay(mixtures: LocalRegistry) -> None:
    composition = mixtures.compose("local/Mixture").experts(drop="0-3").named("local/small")
    plan = composition.plan()
    assert {part.acts_text for part in plan.parts if part.acts} == {"pruned to 8 of 12 experts"}
    assert {part.name for part in plan.parts if part.acts} == CUT
    (note,) = [finding for finding in plan.findings if finding.code == "experts-pruned"]
    assert note.sentence == ("8 of 12 experts stay in 2 blocks, in 10 tensors; the router selects among them only.")
    assert plan.screen.sentence == KNOWN[ChangeKind.PRUNED].sentence
    whole = sum(part.size_bytes_before for part in plan.parts if part.name in CUT)
    assert sum(part.size_bytes for part in plan.parts if part.name in CUT) * 12 == whole * 8
    made = plan.register()
    chimera = mixtures.chimera(made.lock_id)
    assert {part.acts_text for part in chimera.parts} == {"pruned to 8 of 12 experts"}
    assert [(parent.model, parent.acts) for parent in chimera.parents] == [("local/Mixture@1", ("pruned",))]
    assert {len(organ.kept_experts) for organ in chimera.computed} == {8}


def test_a_chimera_can_be_pruned_again_and_grafted_from(mixtures: LocalRegistry, tmp_path: Path) -> None:
    compose(mixtures, "name: local/once\nexperts: {drop: 0-1}", tmp_path / "once.gguf")
    twice = compose(mixtures, "experts: {drop: 0-1}", tmp_path / "twice.gguf", "local/once")
    at_once = compose(mixtures, "experts: {drop: 0-3}", tmp_path / "at-once.gguf")
    assert twice == at_once


def test_keeping_all_experts_does_nothing(mixtures: LocalRegistry) -> None:
    findings = mixtures.compose("local/Mixture").experts("0-11").plan().findings
    assert [finding.code for finding in findings if finding.severity == "refuse"] == ["nothing-to-do"]


@pytest.mark.parametrize(
    ("experts", "code", "field", "words"),
    [
        ("{keep: 0-12}", "no-such-expert", "experts.keep", "there is no expert 12"),
        ("{drop: 1, blocks: 3}", "no-such-block", "experts.blocks", "its blocks are 0-2"),
        ("{drop: 1, blocks: 0}", "nothing-selected", "experts.blocks", "it has them in blocks 1-2"),
        ("[{drop: 1}, {drop: 2, blocks: 2}]", "overlapping-steps", "experts[1].blocks", "experts of block 2"),
        ("{drop: 1, blocks: 2}", "experts-refused", "experts", "11 in block 2, 12 in block 1"),
        ("{keep: 5}", "experts-refused", "experts", "uses 2 experts for each token, and only 1 would stay"),
        ("{drop: 0-11}", "experts-refused", "experts", "only 0 would stay"),
    ],
)
def test_mistakes_are_findings(mixtures: LocalRegistry, experts: str, code: str, field: str, words: str) -> None:
    plan = mixtures.compose(read_recipe(f"base: local/Mixture\nexperts: {experts}")).plan()
    refusals = {(finding.code, finding.field): finding.sentence for finding in plan.findings}
    assert words in refusals[code, field]
    assert not plan.can_be_made


def renamed_stacks(before: str, after: str) -> Tensors:
    return [
        (replace(spec, name=spec.name.replace(before, after)), data)
        for spec, data in mixture_tensors(SMALL, vocabulary=96)
    ]


def more_tensors(name: str, shape: tuple[int, ...]) -> Callable[[], Tensors]:
    return lambda: [*mixture_tensors(SMALL, vocabulary=96), weight_tensor(name, shape)]


@pytest.mark.parametrize(
    ("entries", "tensors", "words"),
    [
        ([], lambda: renamed_stacks("ffn_up_exps", "ffn_up_chexps"), "blk.1.ffn_up_chexps.weight and"),
        ([], more_tensors("blk.1.ffn_up.3.weight", (64, 32)), "blk.1.ffn_up.3.weight of"),
        ([], more_tensors("blk.1.ffn_gate_tid2eid.weight", (2, 96)), "blk.1.ffn_gate_tid2eid.weight of"),
        ([], more_tensors("blk.1.ffn_down_exps.bias", (64, 11)), "blk.1.ffn_down_exps.bias have another number"),
        ([], more_tensors("blk.1.ffn_down_exps.scale", (64, 12)), "blk.1.ffn_down_exps.scale have another number"),
        ([array("deepseek2.expert_count", ValueType.UINT32, [12, 12])], None, "is not one number of experts"),
        ([unsigned("deepseek2.expert_count", 2**31)], None, "is not one number of experts"),
        ([unsigned("deepseek2.expert_count", 11)], None, "states 11 experts, and"),
        ([array("deepseek2.expert_used_count", ValueType.UINT32, [2, 2])], None, "is a list"),
    ],
)
def test_other_layouts_of_experts_are_refused_by_name(
    registry: LocalRegistry,
    tmp_path: Path,
    entries: list[KeyValue],
    tensors: Callable[[], Tensors] | None,
    words: str,
) -> None:
    ingest_bytes(registry, tmp_path, "Odd", mixture(more=entries, tensors=tensors() if tensors else None))
    plan = registry.compose("local/Odd").experts(drop="0-3").plan()
    sentences = [finding.sentence for finding in plan.findings if finding.code == "experts-refused"]
    assert any(words in sentence for sentence in sentences), sentences
    assert not plan.can_be_made


def test_a_bias_in_blocks_of_values_is_refused(registry: LocalRegistry, tmp_path: Path) -> None:
    shape = replace(SMALL, experts=64)
    tensors = [
        (replace(spec, dtype=dtype_by_name("Q8_0")), bytes(68))
        if spec.name == "blk.1.exp_probs_b.bias"
        else (spec, data)
        for spec, data in mixture_tensors(shape, vocabulary=96)
    ]
    ingest_bytes(registry, tmp_path, "Blocks", mixture(shape, tensors=tensors))
    plan = registry.compose("local/Blocks").experts(drop="0-31").plan()
    assert any("stored in blocks of values" in finding.sentence for finding in plan.findings)


def test_a_grafted_bias_in_blocks_of_values_is_refused(registry: LocalRegistry, tmp_path: Path) -> None:
    shape, name = replace(SMALL, experts=64), "blk.1.exp_probs_b.bias"
    plain = mixture_tensors(shape, vocabulary=96)
    blocks = [
        (replace(spec, dtype=dtype_by_name("Q8_0")), bytes(68)) if spec.name == name else (spec, data)
        for spec, data in plain
    ]
    for model, tensors in (("Plain", plain), ("Blocks", blocks)):
        ingest_bytes(registry, tmp_path, model, mixture(shape, tensors=tensors))
    graft = registry.compose("local/Plain").graft("local/Blocks", slot="exp_probs_b.bias")
    plan = graft.experts(drop="0-31").plan()
    assert any("stored in blocks of values" in finding.sentence for finding in plan.findings)


@pytest.mark.parametrize(
    ("drop", "words"),
    [
        ("0-2,6-8", None),
        ("0-5", "keep the same number in each group, which is not so in blocks 1-2"),
        ("0-4,6-10", "compares groups by 2 experts"),
        ("0-3,6-9", "uses 3 experts for each token from 1 groups, which would have only 2"),
    ],
)
def test_experts_in_groups_stay_in_equal_numbers(
    registry: LocalRegistry, tmp_path: Path, drop: str, words: str | None
) -> None:
    ingest_bytes(registry, tmp_path, "Groups", mixture(replace(SMALL, groups=2, groups_used=1, used=3)))
    plan = registry.compose("local/Groups").experts(drop=drop).plan()
    refusals = [finding.sentence for finding in plan.findings if finding.severity == "refuse"]
    assert words in " ".join(refusals) if words else not refusals


def test_a_model_without_experts_is_refused(registry: LocalRegistry, tmp_path: Path) -> None:
    dense = [item for item in mixture_tensors(SMALL, vocabulary=96) if item[0].name not in CUT]
    ingest_bytes(registry, tmp_path, "Dense", mixture(tensors=dense))
    findings = registry.compose("local/Dense").experts(drop=0).plan().findings
    (finding,) = [item for item in findings if item.code == "nothing-selected"]
    assert finding.sentence == "local/Dense@1 has no stacks of experts, so there are no experts to select."


def test_every_form_of_a_recipe_has_its_experts() -> None:
    recipe = read_recipe(f"base: acme/a\nexperts: [{{{KEEP}, blocks: [1, 3-4]}}, {{drop: 7, blocks: 2}}]")
    assert recipe_yaml(recipe).splitlines()[1:] == [
        "experts:",
        "  - keep: [0, 2-3, 5-7, 10-11]",
        "    blocks: [1, 3-4]",
        "  - drop: 7",
        "    blocks: 2",
    ]
    assert read_recipe(recipe_yaml(recipe)) == recipe
    assert recipe_of(recipe_file(recipe)) == recipe
    assert step_texts(recipe)[1:] == [("expert", "keep:0,2-3,5-7,10-11 blocks:1,3-4"), ("expert", "drop:7 blocks:2")]
    assert read_steps(step_texts(recipe)) == recipe
    assert "chimera.experts(blocks='1,3-4', keep='0,2-3,5-7,10-11')" in recipe_python(recipe, "out.gguf")


@pytest.mark.parametrize(
    ("experts", "field", "words"),
    [
        ("{}", "experts", "not both"),
        ("{keep: 1, drop: 2}", "experts", "not both"),
        ("{keep: []}", "experts.keep", "the list is empty"),
        ("{keep: 5-2}", "experts.keep", "from the first expert to the last: 2-5"),
        (
            "{count: 8, saliency: saliency.json}",
            "experts.saliency",
            "only organ compose and Python choose experts by a file",
        ),
        ("[{keep: 1}, {count: 8}]", "experts[1].count", "only organ compose and Python choose experts by a file"),
    ],
)
def test_bad_choices_are_refused_with_their_field(experts: str, field: str, words: str) -> None:
    with pytest.raises(BadRecipe) as refused:
        read_recipe(f"base: acme/a\nexperts: {experts}")
    assert words in dict(refused.value.reasons)[field]


SALIENT = {1: [float(number in KEPT) for number in EVERY], 2: [float(number) for number in EVERY]}
"""In block 2, the last experts are the most salient."""


def write_json(path: Path, saliency: Mapping[int, Sequence[float]] = SALIENT, prefix: str = "") -> Path:
    path.write_text(json.dumps({f"{prefix}{block}": list(values) for block, values in saliency.items()}))
    return path


def expert_importances(
    tokens: Mapping[int, Sequence[float]], energies: Mapping[int, Sequence[float]] | None = None
) -> bytes:
    """Return an importance matrix in which each expert was used for a number of tokens, by block, with some energy."""
    f32, tensors = dtype_by_name("F32"), []
    for block, counts in tokens.items():
        for slot, row in ((SALIENT_STACK, SMALL.units), ("ffn_up_exps", SMALL.width)):
            # Inputs of ffn_up are the same for all experts, so its sums tell another order: it must not be used.
            order = counts if slot == SALIENT_STACK else counts[::-1]
            energy = order if energies is None or slot != SALIENT_STACK else energies[block]
            sums = np.repeat(np.array(energy, "<f4"), row)
            name = f"blk.{block}.{slot}.weight"
            tensors.append((TensorSpec(f"{name}.in_sum2", (row, len(counts)), f32), sums.tobytes()))
            tensors.append((TensorSpec(f"{name}.counts", (1, len(counts)), f32), np.array(order, "<f4").tobytes()))
    return file_bytes([KeyValue("general.type", ValueType.STRING, "imatrix")], tensors)


def resolved(registry: LocalRegistry, folder: Path, step: str, base: str = "local/Mixture") -> Recipe:
    values = with_files({"base": base, "experts": json.loads(step)}, folder, registry)
    return read_recipe(json.dumps(values))


@pytest.mark.parametrize("form", ["json", "blk.", "imatrix", "registered"])
def test_the_most_salient_experts_of_each_block_are_written_into_the_recipe(
    mixtures: LocalRegistry, tmp_path: Path, form: str
) -> None:
    name = "saliency"
    if form in ("json", "blk."):
        write_json(tmp_path / name, prefix="" if form == "json" else form)
    else:
        (tmp_path / name).write_bytes(expert_importances(SALIENT))
    if form == "registered":
        (tmp_path / name).rename(tmp_path / "counted.gguf")
        ingest_bytes(mixtures, tmp_path, "counted", (tmp_path / "counted.gguf").read_bytes())
        name = "local/counted"
    recipe = resolved(mixtures, tmp_path, json.dumps({"count": 8, "saliency": name}))
    assert recipe_yaml(recipe).splitlines()[1:] == [
        "experts:",
        "  - keep: [0, 2-3, 5-7, 10-11]",
        "    blocks: 1",
        "  - keep: 4-11",
        "    blocks: 2",
    ]


def test_an_importance_matrix_counts_energy_or_tokens(mixtures: LocalRegistry, tmp_path: Path) -> None:
    tokens = {block: [20.0 - number for number in EVERY] for block in (1, 2)}
    energies = {block: [float(number**3) for number in EVERY] for block in (1, 2)}
    (tmp_path / "i.gguf").write_bytes(expert_importances(tokens, energies))
    kept = {}
    for by in ("energy", "tokens"):
        recipe = resolved(mixtures, tmp_path, json.dumps({"count": 3, "saliency": "i.gguf", "by": by}))
        kept[by] = [choice.kept(12) for choice in recipe.experts]
    assert kept == {"energy": [(9, 10, 11)] * 2, "tokens": [(0, 1, 2)] * 2}


def test_equal_saliency_keeps_the_first_experts_and_groups_keep_equal_numbers(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    ingest_bytes(registry, tmp_path, "Groups", mixture(replace(SMALL, groups=2, groups_used=1)))
    write_json(tmp_path / "s.json", {1: [1.0] * 12, 2: list(EVERY)})
    recipe = resolved(registry, tmp_path, '{"count": 6, "saliency": "s.json"}', "local/Groups")
    assert [choice.kept(12) for choice in recipe.experts] == [(0, 1, 2, 6, 7, 8), (3, 4, 5, 9, 10, 11)]
    assert registry.compose(recipe).plan().can_be_made
    with pytest.raises(
        BadDocument, match=r"experts\.count: the router selects among 2 groups of one size: keep a multiple of 2"
    ):
        resolved(registry, tmp_path, '{"count": 7, "saliency": "s.json"}', "local/Groups")


@pytest.mark.parametrize(
    ("content", "step", "words"),
    [
        (b'{"1": [1, 2], "2": [1]}', {}, "the file has 2 numbers for block 1, which has 12 experts"),
        (b'{"1": [1, 2]}', {"blocks": 2}, "the file has nothing on block 2"),
        (b'{"0": [1], "1": [], "2": []}', {}, "the base has no experts in block 0"),
        (b'{"1": [], "blk.1": []}', {}, "block 1 is there twice"),
        (b'{"one": []}', {}, "'one' is no block"),
        (b'{"1": ["a"]}', {}, "blocks.1[0]"),
        (b'{"1": [NaN]}', {}, "NaN is not JSON"),
        (json.dumps(SALIENT).encode(), {"count": 13}, "block 1 has 12 experts"),
        (json.dumps(SALIENT).encode(), {"count": 0}, "the number of experts is from 1 to 4,096"),
        (json.dumps(SALIENT).encode(), {"blocks": 0}, "the base has no experts in these blocks"),
        (json.dumps(SALIENT).encode(), {"keep": 1}, "unknown key"),
        (json.dumps(SALIENT).encode(), {"saliency": None}, "the name of a file is missing"),
        (json.dumps(SALIENT).encode(), {"saliency": "none.json"}, "is no file in"),
        (importance_records({"blk.1.ffn_down_exps.weight": np.ones((12, 32), np.float32)}), {}, "the old format"),
        (expert_importances({1: [float("inf")] * 12}), {}, "larger than 1e+20"),
        (b"neither", {}, "is no importance matrix"),
        (json.dumps(SALIENT).encode(), {"by": "tokens"}, "s has its own numbers"),
        (expert_importances(SALIENT), {"by": "size"}, "'size' is not one of energy, tokens"),
    ],
)
def test_saliency_that_does_not_fit_is_refused_with_a_sentence(
    mixtures: LocalRegistry, tmp_path: Path, content: bytes, step: dict[str, object], words: str
) -> None:
    (tmp_path / "s").write_bytes(content)
    whole = {"count": 8, "saliency": "s"} | step
    with pytest.raises(BadDocument) as refused:
        resolved(mixtures, tmp_path, json.dumps({key: value for key, value in whole.items() if value is not None}))
    assert words in str(refused.value)


def test_python_reads_the_file_and_records_the_experts(mixtures: LocalRegistry, tmp_path: Path) -> None:
    path = write_json(tmp_path / "s.json")
    builder = mixtures.compose("local/Mixture").experts(count=8, saliency=path)
    assert [choice.kept(12) for choice in builder.recipe.experts] == [KEPT, tuple(range(4, 12))]
    with pytest.raises(BadRecipe, match="block 1 has 12 experts"):
        mixtures.compose("local/Mixture").experts(count=13, saliency=path)
    with pytest.raises(BadRecipe, match="saliency"):
        mixtures.compose("local/Mixture").experts(count=8)


def test_the_command_finds_the_file_beside_the_recipe_and_records_the_experts(
    mixtures: LocalRegistry, tmp_path: Path
) -> None:
    folder = tmp_path / "recipes"
    folder.mkdir()
    write_json(folder / "s.json")
    (folder / "r.yaml").write_text("base: local/Mixture\nname: local/small\nexperts: {count: 8, saliency: s.json}\n")
    organ = OrganCommand(mixtures.settings.home)
    out = organ.done("compose", folder / "r.yaml", "-o", tmp_path / "out.gguf", "--quick-look", 0).out
    assert "pruned to 8 of 12 experts" in out
    assert mixtures.model("local/small").recipe_yaml == (
        "base: local/Mixture\nname: local/small\nexperts:\n"
        "  - keep: [0, 2-3, 5-7, 10-11]\n    blocks: 1\n  - keep: 4-11\n    blocks: 2\n"
    )
    (folder / "r.yaml").write_text("base: local/Mixture\nexperts: {count: 8, saliency: t.json}\n")
    ended = organ("compose", folder / "r.yaml")
    assert ended.status == 1
    assert "experts.saliency: 't.json' is no file in" in ended.err


@pytest.mark.long
def test_256_of_384_experts_stay_and_without_those_never_selected_llama_cpp_computes_the_same(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    write_mixture(tmp_path / "Whole.gguf", ZOO, MIXTURE)
    ingest_bytes(registry, tmp_path, "Whole", (tmp_path / "Whole.gguf").read_bytes())
    steps = [f"{{drop: {MIXTURE.unused_in(block)}, blocks: {block}}}" for block in (1, 2)]
    blobs = row_counts(registry)["blobs"]
    made = compose(registry, f"experts: [{', '.join(steps)}]", tmp_path / "unused.gguf", "local/Whole")
    assert row_counts(registry)["blobs"] - blobs < 20, "stacks, routers, biases and the header; none of 1,536 experts"
    for name, data in tensors_of(tmp_path / "Whole.gguf").items():
        kept = sorted(set(range(384)) - set(MIXTURE.unused_in(int(name.split(".")[1])))) if name in CUT else []
        assert made[name] == (cut(data, kept, 384) if name in CUT else data), name
    assert numbers_of(tmp_path / "unused.gguf") == (256, 8)
    compose(registry, "experts: {keep: 0-255}", tmp_path / "first.gguf", "local/Whole")

    def logits(name: str) -> NDArray[np.float32]:
        with opened(str(tmp_path / name)) as model, closing(Decoder(model, 32)) as decoder:
            tokens = [*model.first_tokens(), *model.tokens("def open(path):\n    return path.read_text()\n")]
            return np.concatenate([rows.copy() for rows in decoder.logits(tokens)])

    whole, without, other = (logits(name) for name in ("Whole.gguf", "unused.gguf", "first.gguf"))
    assert np.isfinite(whole).all()
    assert np.abs(whole - without).max() < 1e-3
    assert np.abs(whole - other).max() > 0.1


@pytest.mark.long
def test_a_validation_finds_grafted_experts_at_their_new_numbers(registry: LocalRegistry, tmp_path: Path) -> None:
    shape = Mixture(experts=48, used=4, unused=0)
    for name, seed in (("Whole", 0), ("Other", 1)):
        write_mixture(tmp_path / f"{name}.gguf", ZOO, shape, seed)
        ingest_bytes(registry, tmp_path, name, (tmp_path / f"{name}.gguf").read_bytes())
    steps = registry.compose("local/Whole").graft("local/Other", slot="ffn_up_exps", blocks=2, experts=[3, 20])
    made = steps.experts(drop="0-15").plan().accepting_all().register()
    budget, texts = ValidationBudget(tokens=1024), built_in_texts(("python",))
    report = run_chimera(registry.catalog, registry.blobs, made.model, texts, LlamaCpp(), budget)
    assert report.zeroed == ("blk.2.ffn_up_exps.weight[4]",), "expert 20 of the base; expert 3 was left out"
