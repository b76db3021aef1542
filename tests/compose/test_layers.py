"""Tests of layers in recipes: blocks that are repeated, dropped, moved, or those of other models, and what follows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from organs.registry.anatomy import in_block, place_of
from organs.registry.compose.layers import BLOCKS_MAX
from organs.registry.compose.plan import Plan
from organs.registry.compose.recipe import read_recipe
from organs.registry.entities.finding import Severity
from organs.registry.gguf import KeyValue, ValueType, read_array, read_header
from organs.registry.input_files import FileSource
from organs.registry.local import LocalRegistry
from tests.compose.memory_library import plan_in_memory
from tests.compose.parents import parent_from
from tests.compose.test_blends import adapter_file, values_in
from tests.gguf_files import array, file_bytes, text, unsigned
from tests.related_models import ingest_bytes, related_tensors
from tests.small_models import (
    Tensors,
    block_tensors,
    expert_tensors,
    row_counts,
    tensors_of,
    weight_tensor,
)

BLOCKS = 6
EACH = [4, 4, 4, 2, 2, 4]
"""A number for each block of the base."""


def model(name: str, tensors: Tensors, *more: KeyValue, architecture: str = "llama", blocks: int = BLOCKS) -> bytes:
    """Return a model whose header states the number of its blocks."""
    entries = [text("general.architecture", architecture), text("general.name", name)]
    return file_bytes([*entries, unsigned(f"{architecture}.block_count", blocks), *more], tensors)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[LocalRegistry]:
    """Return a registry with a base of six blocks, and a fine-tune of it."""
    each = array("llama.attention.head_count", ValueType.INT32, EACH)
    with LocalRegistry.open(tmp_path / "home") as opened:
        ingest_bytes(opened, tmp_path, "Base", model("Base", related_tensors(blocks=BLOCKS), each))
        tuned = related_tensors(correlation=0.99, blocks=BLOCKS)
        ingest_bytes(opened, tmp_path, "Tuned", model("Tuned", tuned, each))
        yield opened


def layers(*runs: str | tuple[str, str], **members: Any) -> str:
    """Return a recipe; a run is blocks of the base, or blocks and a model."""
    steps = [{"blocks": run} if isinstance(run, str) else {"blocks": run[0], "from": run[1]} for run in runs]
    listed = [step | {"blocks": step["blocks"].split(",")} for step in steps]
    return json.dumps({"base": "local/Base", "layers": listed, **members})


def made(registry: LocalRegistry, recipe: str, path: Path) -> dict[str, bytes]:
    """Return the tensors of the chimera of a recipe."""
    registry.compose(read_recipe(recipe)).plan().accepting_all().assemble(path)
    return tensors_of(path)


def arranged(tensors: Mapping[str, bytes], numbers: Sequence[int]) -> dict[str, bytes]:
    """Return tensors with the blocks `numbers` in this order."""
    others = {name: data for name, data in tensors.items() if place_of(name).block is None}
    for new, number in enumerate(numbers):
        own = {name: data for name, data in tensors.items() if place_of(name).block == number}
        others |= {in_block(name, new): data for name, data in own.items()}
    return others


@pytest.mark.parametrize(
    ("runs", "numbers"),
    [
        (["0-5", "2-3"], [0, 1, 2, 3, 4, 5, 2, 3]),
        (["0-1,4-5"], [0, 1, 4, 5]),
        (["0-4"], [0, 1, 2, 3, 4]),
        (["5,0,0"], [5, 0, 0]),
    ],
)
def test_blocks_are_repeated_dropped_and_moved_and_no_organ_is_stored_again(
    registry: LocalRegistry, tmp_path: Path, runs: list[str], numbers: list[int]
) -> None:
    before = row_counts(registry)
    tensors = made(registry, layers(*runs), tmp_path / "out.gguf")
    assert tensors == arranged(tensors_of(tmp_path / "Base.gguf"), numbers)
    assert row_counts(registry)["organs"] == before["organs"]
    with FileSource(tmp_path / "out.gguf") as source:
        header = read_header(source)
        heads = header.field("llama.attention.head_count")
        assert header.integer("llama.block_count") == len(numbers)
        assert heads is not None
        assert list(read_array(source, heads)) == [EACH[number] for number in numbers]


def test_blocks_of_another_model_come_with_their_numbers_and_their_license(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    recipe = layers("0-3", ("2-5", "local/Tuned"))
    tensors = made(registry, recipe, tmp_path / "out.gguf")
    base, tuned = (arranged(tensors_of(tmp_path / f"{name}.gguf"), range(BLOCKS)) for name in ("Base", "Tuned"))
    placed = arranged(tuned, [2, 3, 4, 5])
    expected = arranged(base, range(4)) | {
        in_block(name, block + 4): data for name, data in placed.items() if (block := place_of(name).block) is not None
    }
    assert tensors == expected
    chimera = registry.chimera(registry.compose(read_recipe(recipe)).plan().lock().id)
    assert {parent.model: parent.acts for parent in chimera.parents} == {
        "local/Base@1": (), "local/Tuned@1": ("placed",),
    }  # fmt: skip
    assert {(change.model, change.acts_text, change.blocks) for change in chimera.changes} == {
        ("local/Tuned@1", "placed (blocks 2-5)", "4-7")
    }


def test_steps_select_blocks_of_the_result_and_donors_give_the_block_of_the_former_number(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    ingest_bytes(registry, tmp_path, "Lora", adapter_file("blk.1.attn_q.weight", (64, 4), (4, 64), 0.1))
    recipe = layers(
        "0-1,1,1",
        grafts=[{"from": "local/Tuned", "type": "organ", "blocks": 1}],
        blends={"from": "local/Tuned", "method": "linear", "weight": 1.0, "slot": "ffn_up", "blocks": 2},
        adapters=[{"from": "local/Lora"}],
        encode="F32",
    )
    made(registry, recipe, tmp_path / "out.gguf")
    values, base, tuned = (values_in(tmp_path / name) for name in ("out.gguf", "Base.gguf", "Tuned.gguf"))
    adapter = values_in(tmp_path / "Lora.gguf")
    product = adapter["blk.1.attn_q.weight.lora_b"].reshape(64, 4) @ adapter["blk.1.attn_q.weight.lora_a"].reshape(
        4, 64
    )
    up, query = "blk.{}.ffn_up.weight", "blk.{}.attn_q.weight"
    np.testing.assert_array_equal(values[up.format(1)], tuned[up.format(1)])
    np.testing.assert_allclose(values[up.format(2)], tuned[up.format(1)], rtol=1e-6)
    np.testing.assert_array_equal(values[up.format(3)], base[up.format(1)])
    for block in (1, 2, 3):  # the adapter changes each of the three
        np.testing.assert_allclose(values[query.format(block)], base[query.format(1)] + product.ravel(), rtol=1e-6)
    np.testing.assert_array_equal(values[query.format(0)], base[query.format(0)])


def test_a_dora_and_whole_tensors_change_the_blocks_of_the_result(registry: LocalRegistry, tmp_path: Path) -> None:
    query, up, norm = (f"blk.{{}}.{slot}.weight" for slot in ("attn_q", "ffn_up", "attn_norm"))
    whole = {
        "token_embd.weight": (64, 96),
        **{norm.format(block): (64,) for block in (1, 2)},
        up.format(4): (64, 128),
        "output_norm.weight": (64,),
    }
    parts = {f"{query.format(1)}.lora_a": (64, 4), f"{query.format(1)}.lora_b": (4, 64)}
    adapter = [weight_tensor(name, shape, 3, "F32") for name, shape in (parts | whole).items()]
    lengths = np.linspace(0.5, 2.0, 64)
    magnitude = weight_tensor(f"{query.format(1)}.lora_magnitude", (64,), dtype="F32")[0]
    adapter.append((magnitude, lengths.astype("<f4").tobytes()))
    keys = ("general.type", "adapter"), ("adapter.type", "lora-merge"), ("general.architecture", "llama")
    ingest_bytes(registry, tmp_path, "Adapter", file_bytes([text(*pair) for pair in keys], adapter))
    untied = [*related_tensors(blocks=BLOCKS), weight_tensor("output.weight", (64, 96))]
    ingest_bytes(registry, tmp_path, "Untied", model("Untied", untied))
    recipe = layers("0-1,4,1", base="local/Untied", adapters=[{"from": "local/Adapter"}], encode="F32")
    made(registry, recipe, tmp_path / "out.gguf")
    values, base, own = (values_in(tmp_path / f"{name}.gguf") for name in ("out", "Untied", "Adapter"))
    origins = {0: 0, 1: 1, 2: 4, 3: 1}
    first, second = own[f"{query.format(1)}.lora_a"].reshape(4, 64), own[f"{query.format(1)}.lora_b"].reshape(64, 4)
    moved = base[query.format(1)].reshape(64, 64) + second @ first
    dora = lengths[:, None] * moved / np.linalg.norm(moved, axis=1, keepdims=True)
    expected = {name: own.get(name, base[name]) for name in base if place_of(name).block is None}
    for new, former in origins.items():
        for slot in (query, up, norm, "blk.{}.ffn_down.weight"):
            name = slot.format(former)
            is_dora = name == query.format(1)
            expected[slot.format(new)] = dora.ravel() if is_dora else own.get(name, base[name])
    assert values.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_allclose(values[name], wanted, rtol=1e-5, atol=1e-7, err_msg=name)


def test_queries_find_organs_for_blocks_that_were_moved(registry: LocalRegistry) -> None:
    grafts = [{"where": "model:local/Tuned", "type": "organ", "blocks": 1}]
    plan = registry.compose(read_recipe(layers("0,4", grafts=grafts))).plan()
    assert {part.name for part in plan.parts if "grafted" in part.acts} == {
        "blk.1.ffn_up.weight", "blk.1.ffn_down.weight",
    }  # fmt: skip
    digests = {organ.name: organ.digest for organ in registry.organs_of("local/Tuned")}
    assert {part.digest for part in plan.parts if "grafted" in part.acts} == {
        digests["blk.4.ffn_up.weight"], digests["blk.4.ffn_down.weight"],
    }  # fmt: skip
    purified = registry.compose(read_recipe(layers("0,4", purify={"method": "fractal", "where": "block:4"}))).plan()
    assert {part.block for part in purified.parts if "purified" in part.acts} == {1}
    dropped = registry.compose(read_recipe(layers("0,4", purify={"method": "fractal", "where": "block:3"}))).plan()
    assert {finding.code for finding in dropped.planned.refusals} == {"nothing-selected"}


def test_experts_of_a_moved_block_are_known_one_by_one(tmp_path: Path) -> None:
    def mixture(seed: int) -> Tensors:
        wide = (1024, 8, 4)
        return [
            weight_tensor("token_embd.weight", (64, 96)),
            *(
                weight_tensor(f"blk.{block}.{slot}.weight", shape, seed if slot.endswith("exps") else 0)
                for block in range(2)
                for slot, shape in (("attn_q", (64, 64)), ("ffn_gate_inp", (64, 4)), ("ffn_up_exps", wide))
            ),
        ]

    with LocalRegistry.open(tmp_path / "home") as registry:
        for seed, name in enumerate(("Base", "Other")):
            ingest_bytes(registry, tmp_path, name, model(name, mixture(seed), blocks=2))
        grafts = [{"from": "local/Other", "experts": 2, "blocks": 0}]
        tensors = made(registry, layers("1,0", grafts=grafts), tmp_path / "out.gguf")
        base, other = (tensors_of(tmp_path / f"{name}.gguf") for name in ("Base", "Other"))
        stack, size = "blk.{}.ffn_up_exps.weight", 2 * 1024 * 8
        expected = bytearray(base[stack.format(1)])
        expected[2 * size : 3 * size] = other[stack.format(1)][2 * size : 3 * size]
        assert tensors[stack.format(0)] == expected
        assert tensors[stack.format(1)] == base[stack.format(0)]


def planned(data: bytes, *runs: str | tuple[str, str]) -> Plan:
    return plan_in_memory(layers(*runs), parent_from(data, "local/Base"))


def refusals(plan: Plan) -> dict[str, str]:
    """Return the refusals of a plan by code."""
    return {item.code: item.sentence for item in plan.findings if item.severity is Severity.REFUSE}


ONE_IN_SIX = "runtimes treat every sixth block"


@pytest.mark.parametrize(
    ("architecture", "keys", "runs", "reason"),
    [
        # Gemma 3 has a window in five of six blocks, by their numbers.
        ("gemma3", {}, ["0-11", "6-11"], None),
        ("gemma3", {}, ["0-2,9-11"], None),
        ("gemma3", {}, ["0-5"], None),
        ("gemma3", {}, ["0-8"], None),
        ("gemma3", {}, ["0-8", "7-11"], ONE_IN_SIX),
        ("gemma3", {}, ["0-11", "7-8"], None),
        ("gemma3", {}, ["1-11"], ONE_IN_SIX),
        ("llama", {"attention.sliding_window_pattern": 3}, ["0-2,6-11"], None),
        ("llama", {"attention.sliding_window_pattern": 3}, ["0-2,5-11"], "every third block"),
        ("smallthinker", {}, ["0-3,8-11"], None),
        ("smallthinker", {}, ["0-3,7-11"], "every fourth block"),
        # Blocks that predict further tokens are the last ones.
        ("llama", {"nextn_predict_layers": 1}, ["0-5,8-11"], None),
        ("llama", {"nextn_predict_layers": 1}, ["0-10"], None),
        ("llama", {"nextn_predict_layers": 1}, ["11,0-10"], "block 11 predicts further tokens"),
        ("llama", {"nextn_predict_layers": 1}, ["0-11", "11"], "only once"),
    ],
)  # fmt: skip
def test_blocks_that_runtimes_tell_apart_by_number_keep_their_kind(
    architecture: str, keys: dict[str, int], runs: list[str], reason: str | None
) -> None:
    entries = [unsigned(f"{architecture}.{key}", value) for key, value in keys.items()]
    plan = planned(model("Base", block_tensors(12), *entries, architecture=architecture, blocks=12), *runs)
    assert refusals(plan).keys() == ({"layer-pattern"} if reason else set())
    if reason:
        assert reason in refusals(plan)["layer-pattern"].lower()
    further = next((entry.value for entry in plan.sets if entry.key == "llama.nextn_predict_layers"), None)
    assert further == (0 if runs == ["0-10"] and "nextn_predict_layers" in keys else None)


def hybrid(blocks: int = 8) -> Tensors:
    """Return a model with attention in every fourth block, and a state space in the others."""
    tensors = [weight_tensor("token_embd.weight", (64, 96))]
    for block in range(blocks):
        slot = "attn_q.weight" if block % 4 == 3 else "ssm_in.weight"
        tensors += [weight_tensor(f"blk.{block}.{name}", (64, 64)) for name in (slot, "ffn_up.weight")]
    return tensors


@pytest.mark.parametrize(
    ("tensors", "runs", "is_refused"),
    [
        (hybrid(), ["0-3"], False),
        (hybrid(), ["0-7", "4-7"], False),
        (hybrid(), ["0-2,4-7"], True),
        (hybrid(), ["0-6"], False),
        # Only the first block of T5 and RWKV has some tensors, which the others use.
        ([*block_tensors(4), weight_tensor("blk.0.attn_rel_b.weight", (64, 4))], ["0-1,3"], False),
        ([*block_tensors(4), weight_tensor("blk.0.attn_rel_b.weight", (64, 4))], ["1-3"], True),
        ([*block_tensors(4), weight_tensor("blk.2.attn_sinks.weight", (64,))], ["0-1,3"], True),
        ([*block_tensors(4), weight_tensor("blk.2.attn_q.scale", (1,), dtype="F32")], ["0-1,3"], False),
        ([*block_tensors(4), weight_tensor("per_layer_token_embd.weight", (256, 96))], ["0-2"], True),
    ],
)
def test_blocks_of_several_kinds_keep_their_order(tensors: Tensors, runs: list[str], is_refused: bool) -> None:
    blocks = 1 + max(place_of(spec.name).block or 0 for spec, _ in tensors)
    assert refusals(planned(model("Base", tensors, blocks=blocks), *runs)).keys() == (
        {"layer-pattern"} if is_refused else set()
    )


def test_the_number_of_dense_blocks_before_those_with_experts_follows() -> None:
    def base(dense: int | None) -> bytes:
        counts = [] if dense is None else [unsigned("llama.leading_dense_block_count", dense)]
        return model("Base", expert_tensors(4), *counts, blocks=4)

    sets = {entry.key: entry.value for entry in planned(base(1), "0,0-3").sets}
    assert sets["llama.leading_dense_block_count"] == 2
    assert "llama.leading_dense_block_count" not in {entry.key for entry in planned(base(1), "0-2").sets}
    assert refusals(planned(base(1), "0-1,0,2")).keys() == {"layer-pattern"}
    assert refusals(planned(base(None), "0,0-3")).keys() == {"layer-pattern"}


def test_blocks_that_do_not_exist_are_refused_before_they_are_counted() -> None:
    data = model("Base", block_tensors(4), blocks=4)
    assert refusals(planned(data, "0-999999999")).keys() == {"no-such-block"}
    most = ",".join(["0-3"] * (BLOCKS_MAX // 4))
    assert refusals(planned(data, most)) == {}
    assert refusals(planned(data, most, "0")).keys() == {"bad-layers"}
    assert refusals(planned(data, ("0-3", "local/Absent"))).keys() == {"unknown-donor"}
    assert refusals(planned(data, "0-3")).keys() == {"nothing-to-do"}


def test_a_donor_of_blocks_must_fit_the_base() -> None:
    wide = parent_from(model("Wide", block_tensors(4, width=128), blocks=4), "local/Wide")
    base = parent_from(model("Base", block_tensors(4), blocks=4), "local/Base")
    plan = plan_in_memory(layers("0-3", ("1", "local/Wide")), base, wide)
    assert refusals(plan).keys() == {"width-differs"}
    other = parent_from(model("Other", block_tensors(4), architecture="qwen3", blocks=4), "local/Other")
    plan = plan_in_memory(layers("0-3", ("1", "local/Other")), base, other)
    assert refusals(plan).keys() == {"architecture-differs"}


def test_values_for_each_block_come_from_the_model_that_gives_the_block() -> None:
    key = "llama.attention.head_count_kv"
    base = parent_from(model("Base", block_tensors(2), array(key, ValueType.UINT32, [4, 4]), blocks=2), "local/Base")
    one = parent_from(model("One", block_tensors(2), unsigned(key, 4, ValueType.INT32), blocks=2), "local/One")
    plan = plan_in_memory(layers("0-1", ("1", "local/One")), base, one)
    assert next(list(entry.value) for entry in plan.sets if entry.key == key) == [4, 4, 4]  # type: ignore[arg-type]
    none = parent_from(model("None", block_tensors(2), blocks=2), "local/None")
    assert "bad-layers" in refusals(plan_in_memory(layers("0-1", ("1", "local/None")), base, none))


def test_the_screen_names_the_blocks() -> None:
    plan = planned(model("Base", block_tensors(4), blocks=4), "0-3", "1-2")
    assert plan.screen.sentence.startswith("Blocks are repeated, dropped or moved (6 blocks: 0-3, 1-2): ")
    assert plan.screen.relation is None


def test_layers_blends_experts_and_metadata_are_one_recipe_with_the_same_lock_in_a_new_registry(tmp_path: Path) -> None:
    counts = [unsigned(f"llama.{key}", value) for key, value in (("expert_count", 4), ("expert_used_count", 2))]
    dense = unsigned("llama.leading_dense_block_count", 1)
    template = {"tokenizer.chat_template": "{{ messages }}"}
    steps = {
        "blends": {"from": "local/Tuned", "weight": 0.5, "method": "linear", "normalize": False, "blocks": 2},
        "experts": [{"keep": [0, 2]}],
        "metadata": template,
    }
    made: list[tuple[str, str, bytes]] = []
    for number, names in enumerate((("Base", "Tuned"), ("Tuned", "Base"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        with LocalRegistry.open(folder / "home") as registry:
            for name in names:
                tensors = [
                    (spec, data if name == "Base" or len(spec.shape) < 2 else data[64:] + data[:64])
                    for spec, data in expert_tensors(3)
                ]
                ingest_bytes(registry, folder, name, model(name, tensors, *counts, dense, blocks=3))
            chimera = registry.compose(read_recipe(layers("0-2,1", **steps))).plan().accepting_all().register()
            lock = registry.compose(registry.chimera(chimera.lock_id).recipe).plan().accepting_all().register().lock_id
            registry.assemble(chimera.model, folder / "made.gguf")
            made.append((chimera.lock_id, lock, (folder / "made.gguf").read_bytes()))
    assert len(set(made)) == 1
    assert made[0][0] == made[0][1]
    with FileSource(tmp_path / "0" / "made.gguf") as source:
        header = read_header(source)
    assert header.integer("llama.block_count") == 4
    assert header.integer("llama.expert_count") == 2
    assert header.text("tokenizer.chat_template") == template["tokenizer.chat_template"]
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    assert shapes["blk.3.ffn_up_exps.weight"] == (64, 32, 2)
    assert shapes["blk.3.ffn_gate_inp.weight"] == (64, 2)


@pytest.mark.parametrize(
    ("donor", "code"),
    [
        (adapter_file("blk.1.attn_q.weight", (64, 4), (4, 64)), "nothing-to-graft"),
        (model("Donor", block_tensors(4), architecture="mamba", blocks=4), "architecture-differs"),
        (model("Donor", [weight_tensor("blk.1.ssm_in.weight", (64, 64))], blocks=4), "layer-pattern"),
    ],
)
def test_blocks_come_only_from_models_with_such_blocks(donor: bytes, code: str) -> None:
    base = parent_from(model("Base", block_tensors(4), blocks=4), "local/Base")
    plan = plan_in_memory(layers(("1", "local/Donor")), base, parent_from(donor, "local/Donor"))
    assert refusals(plan).keys() == {code}


def test_layers_need_numbers_in_the_header_that_can_follow() -> None:
    odd = file_bytes([text("general.architecture", "llama"), text("llama.block_count", "four")], block_tensors(4))
    assert refusals(planned(odd, "0-1")).keys() == {"bad-layers"}
    renamed = layers("0-1", metadata={"general.architecture": "gemma2"})
    base = parent_from(model("Base", block_tensors(4), blocks=4), "local/Base")
    assert refusals(plan_in_memory(renamed, base)).keys() == {"bad-layers"}


def test_an_adapter_says_which_of_its_blocks_were_dropped() -> None:
    adapter = parent_from(adapter_file("blk.1.attn_q.weight", (64, 4), (4, 64), 0.1), "local/Lora")
    base = parent_from(model("Base", block_tensors(4), blocks=4), "local/Base")
    plan = plan_in_memory(layers("0,1", adapters=[{"from": "local/Lora"}]), base, adapter)
    assert "adapter-left-out" not in {finding.code for finding in plan.findings}
    plan = plan_in_memory(layers("0,2", adapters=[{"from": "local/Lora"}]), base, adapter)
    assert "adapter-left-out" in {finding.code for finding in plan.findings}
