"""Tests of planning: the order of steps, the resulting parts, and all faults of a recipe together."""

from __future__ import annotations

import json
from functools import cache

import pytest

from organs.registry.compose.parents import Parent
from organs.registry.compose.plan import NOT_YET, Plan
from organs.registry.compose.planner import plan_recipe
from organs.registry.compose.recipe import read_recipe
from organs.registry.digest import digest_of
from organs.registry.entities.finding import Severity
from organs.registry.errors import NotComposable
from organs.registry.gguf import KeyValue, ValueType
from tests.compose.memory_library import MemoryLibrary, as_registered, found_organ, plan_in_memory
from tests.compose.parents import model_tensors, parent_from, synthetic_parent
from tests.gguf_files import file_bytes, text
from tests.small_models import weight_tensor

UP = "blk.0.ffn_up.weight"
Q = "blk.1.attn_q.weight"


@cache
def base() -> Parent:
    return as_registered(synthetic_parent(), "base")


@cache
def donor() -> Parent:
    return as_registered(synthetic_parent(tensors=model_tensors(1)), "donor", 2)


@cache
def adapter() -> Parent:
    """Return an adapter of rank 4 for `UP` and `Q`."""
    halves = [
        *(weight_tensor(f"{UP}.lora_a", (64, 4), 1, "F32"), weight_tensor(f"{UP}.lora_b", (4, 128), 1, "F32")),
        *(weight_tensor(f"{Q}.lora_a", (64, 4), 2, "F32"), weight_tensor(f"{Q}.lora_b", (4, 64), 2, "F32")),
    ]
    entries = [
        *(text("general.architecture", "llama"), text("general.type", "adapter"), text("adapter.type", "lora")),
        KeyValue("adapter.lora.alpha", ValueType.FLOAT32, 8.0),
    ]
    return as_registered(parent_from(file_bytes(entries, halves), "adapter"), "adapter", 3)


def made(**members: object) -> Plan:
    return plan_in_memory(json.dumps({"base": "base", **members}), base(), donor(), adapter())


def refused(plan: Plan) -> list[tuple[str, str]]:
    return [(finding.code, finding.field) for finding in plan.refusals]


def acts(plan: Plan) -> dict[str, tuple[str, ...]]:
    return {part.before.name: part.acts for part in plan.parts if part.acts}


def test_steps_are_ordered_graft_adapter_purify() -> None:
    plan = made(
        purify={"method": "fractal", "slot": ["ffn_up", "attn_q"]},
        adapters=[{"from": "adapter", "scale": 0.5}],
        grafts=[{"from": "donor", "slot": "ffn_up", "blocks": 0}],
    )
    assert acts(plan) == {
        UP: ("grafted", "adapter", "purified"),
        Q: ("adapter", "purified"),
        "blk.1.ffn_up.weight": ("purified",),
        "blk.0.attn_q.weight": ("purified",),
    }
    grafted = plan.computations[UP]
    assert grafted.source.digest == donor().by_name[UP].digest
    assert (len(grafted.additions), grafted.additions[0].scale, grafted.additions[0].alpha) == (1, 0.5, 8.0)
    assert [parent.label for parent in plan.parents] == ["base", "donor", "adapter"]


def test_the_size_is_known_before_computation_and_the_lock_after_it() -> None:
    plan = made(adapters=[{"from": "adapter"}])
    lock = plan.lock(dict.fromkeys(plan.computations, digest_of(b"computed")))
    tensors = sum(-(-part.spec.size_bytes // 32) * 32 for part in plan.parts)
    assert plan.size_bytes == len(plan.header(lock)) + tensors
    assert {tensor.digest for tensor in lock.tensors} & {digest_of(b"computed"), NOT_YET} == {digest_of(b"computed")}
    with pytest.raises(KeyError):
        plan.lock()


def test_all_faults_are_found_together_with_their_fields() -> None:
    plan = made(
        grafts=[{"from": "nobody"}, {"from": "donor", "blocks": 9}, {"where": "theta>=1"}, {"from": "base"}],
        adapters=[{"from": "nobody"}, {"from": "donor"}],
        purify=[{"method": "fractal", "blocks": 9}, {"method": "fractal", "where": "theta>99"}],
        metadata={"llama.block_count": 3},
    )
    refusals = refused(plan)
    assert set(refusals) >= {
        ("unknown-donor", "grafts[0].from"),
        ("no-such-block", "grafts[1].blocks"),
        ("empty-query", "grafts[2].where"),
        ("own-donor", "grafts[3]"),
        ("unknown-adapter", "adapters[0].from"),
        ("no-such-block", "purify[0].blocks"),
        ("nothing-selected", "purify[1]"),
        ("bad-metadata", "metadata.llama.block_count"),
    }
    assert "not-an-adapter" in {code for code, _ in refusals}
    assert len(refusals) == len(set(plan.refusals))
    with pytest.raises(NotComposable) as caught:
        plan.check()
    assert list(caught.value.refusals) == [finding.sentence for finding in plan.refusals]


def test_a_recipe_without_a_step_changes_nothing() -> None:
    assert refused(made()) == [("nothing-to-do", "")]


def test_an_organ_is_purified_once() -> None:
    plan = made(purify=[{"method": "fractal", "slot": "ffn_up"}, {"method": "spectral", "type": "organ", "keep": 0.5}])
    assert refused(plan) == [("overlapping-steps", "purify[1]")]
    assert plan.computations[UP].method == "fractal"
    assert plan.computations["blk.0.ffn_gate.weight"].method == "spectral"


@pytest.mark.parametrize(("step", "keep"), [({}, 0.9), ({"keep": 0.5}, 0.5), ({"keep": 1}, 1.0)])
def test_the_kept_share_is_part_of_the_computation(step: dict[str, object], keep: float) -> None:
    plan = made(purify={"method": "spectral", "slot": "ffn_up", "blocks": 0, **step})
    assert plan.computations[UP].keep == keep
    assert made(purify={"method": "fractal", "slot": "ffn_up", "blocks": 0}).computations[UP].keep is None


def test_a_query_with_purification_purifies_the_organs_of_the_found_models() -> None:
    shelf = MemoryLibrary((base(), donor()), [found_organ(donor(), donor().by_name[UP])])
    recipe = {
        "base": "base",
        "grafts": [{"from": "donor", "type": "organ", "blocks": 0}],
        "purify": {"method": "fractal", "type": "organ", "where": "theta>=1"},
    }
    plan = plan_recipe(read_recipe(json.dumps(recipe)), shelf)
    assert sorted(shelf.queries) == ["model:base theta>=1", "model:donor theta>=1"]
    assert acts(plan)[UP] == ("grafted", "purified")
    assert acts(plan)["blk.0.ffn_gate.weight"] == ("grafted",)


def test_a_computed_organ_keeps_its_type_or_gets_the_requested_one_and_this_is_reported() -> None:
    coarse = synthetic_parent("base", tensors=model_tensors(width=256, blocks=1, dtypes={UP: "Q4_K"}))
    for encode, dtype in ((None, "Q4_K"), ("F16", "F16")):
        recipe = {"base": "base", "purify": {"method": "fractal", "slot": "ffn_up"}}
        plan = plan_in_memory(json.dumps(recipe | ({"encode": encode} if encode else {})), coarse)
        assert {part.spec.dtype.name for part in plan.parts if part.computation} == {dtype}
        encoded_again = [finding for finding in plan.findings if finding.code == "encoded-again"]
        assert [(one.severity, one.organs) for one in encoded_again] == ([(Severity.INFO, (UP,))] if encode else [])
        assert bool(plan.lock({UP: NOT_YET}).encoders) is (encode is None)


def test_unreadable_organs_are_reported_in_the_order_of_the_file() -> None:
    dtypes = {f"blk.{block}.ffn_{way}.weight": "I32" for block in (0, 1) for way in ("gate", "up", "down")}
    plan = plan_in_memory(
        '{"base": "base", "purify": {"method": "fractal", "type": "organ"}}',
        synthetic_parent("base", tensors=model_tensors(dtypes=dtypes)),
    )
    refused_organs = [finding.organs[0] for finding in plan.refusals if finding.code == "dtype-refused"]
    assert refused_organs == list(dtypes)


def test_the_same_adapter_twice_is_added_twice() -> None:
    plan = made(adapters=[{"from": "adapter", "scale": 1}, {"from": "adapter", "scale": -0.5}])
    assert [addition.scale for addition in plan.computations[UP].additions] == [1.0, -0.5]
    assert [parent.label for parent in plan.parents] == ["base", "adapter"]


def test_an_accepted_warning_no_longer_prevents_the_plan() -> None:
    graft = [{"from": "donor", "type": "organ", "blocks": 1}]
    plan = made(grafts=graft)
    codes = {finding.code for finding in plan.unaccepted}
    assert codes
    assert not plan.can_be_made
    with pytest.raises(NotComposable) as caught:
        plan.check()
    assert caught.value.unaccepted == tuple(sorted(codes))
    again = made(grafts=graft, accept=sorted(codes))
    assert again.can_be_made
    assert set(again.findings) == set(plan.findings), "what is accepted is still told"
    again.check()


def test_accepted_codes_and_a_name_do_not_change_the_lock() -> None:
    graft = [{"from": "donor", "type": "organ", "blocks": 1}]
    plain = made(grafts=graft)
    two = made(grafts=graft, accept=["unrelated-lineage"], name="local/else")
    assert plain.lock().id == two.lock().id
    assert plain.lock().id != made(grafts=graft, metadata={"acme.x": 1}).lock().id


def test_a_purification_without_a_selection_means_the_feed_forward() -> None:
    for more in ({}, {"blocks": 1}):
        plan = made(purify=[{"method": "fractal", **more}])
        assert plan.recipe.purify[0].types == (), "as it was written"
        assert {part.before.place.type.value for part in plan.parts if part.acts} == {"organ"}
