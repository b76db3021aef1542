"""Tests of the blocks of models: those that a header states, and the slots that one block lacks."""

from __future__ import annotations

import pytest

from organs.registry.anatomy import place_of
from organs.registry.gguf import MemorySource, ValueType, read_header
from organs.registry.gguf.blocks import block_faults
from tests.gguf_files import array, file_bytes, text, unsigned

DENSE = "attn_norm attn_q attn_k attn_v attn_output ffn_norm ffn_gate ffn_up ffn_down"
EXPERTS = "attn_norm attn_q attn_k attn_v attn_output ffn_norm ffn_gate_inp ffn_up_exps ffn_down_exps"
STATE = "attn_norm ssm_in ssm_conv1d ssm_a ssm_out ffn_norm ffn_gate ffn_up ffn_down"
SHARED = "attn_norm attn_q attn_output ffn_norm ffn_gate ffn_up ffn_down"


def faults(*blocks: str, stated: int | None = None, arch: str = "llama", stack: str = "", more: str = "") -> list[str]:
    """Return the sentences on a model whose blocks have these slots; a block without slots has no tensors."""
    names = [
        "token_embd",
        *(f"{stack}blk.{block}.{slot}" for block, line in enumerate(blocks) for slot in line.split()),
    ]
    entries = [
        text("general.architecture", arch),
        unsigned(f"{arch}.block_count", len(blocks) if stated is None else stated),
    ]
    if more == "nextn":
        entries.append(unsigned(f"{arch}.nextn_predict_layers", 1))
    if more == "varied":
        entries.append(array(f"{arch}.feed_forward_length", ValueType.UINT32, [7] * len(blocks)))
    header = read_header(MemorySource(file_bytes(entries)))
    return [fault.sentence for fault in block_faults(header, [place_of(f"{name}.weight") for name in names])]


def without(line: str, *slots: str) -> str:
    return " ".join(slot for slot in line.split() if slot not in slots)


@pytest.mark.parametrize(
    "blocks",
    [
        (DENSE,) * 3,
        (DENSE, EXPERTS, EXPERTS),
        (STATE, STATE, DENSE, STATE),
        (DENSE, DENSE, SHARED, SHARED),
        (without(DENSE, "attn_norm"), DENSE, DENSE),
        (DENSE, DENSE, f"{DENSE} nextn.eh_proj nextn.enorm"),
        (f"{DENSE} attn_q.scale attn_q.input_scale",) * 2 + (DENSE,),
    ],
    ids=["dense", "first-dense", "hybrid", "shared-keys", "no-first-norm", "prediction", "scales-of-a-type"],
)
def test_blocks_of_different_kinds_are_no_fault(blocks: tuple[str, ...]) -> None:
    assert faults(*blocks) == []


def test_a_block_that_lacks_what_the_others_have_is_named() -> None:
    cut = without(DENSE, "ffn_down")
    assert faults(DENSE, cut, DENSE) == ["block 1 has no ffn_down, which all other blocks have: runtimes may refuse it"]
    assert faults(DENSE, cut) == ["block 1 has no ffn_down, which the other block has: runtimes may refuse it"]
    scaled = f"{DENSE} layer_out_scale"
    assert faults(scaled, DENSE, scaled)[0].startswith("block 1 has no layer_out_scale, which")
    assert len(faults(DENSE, cut, without(DENSE, "attn_q", "ffn_norm"), DENSE)) == 2
    assert faults(DENSE, cut, DENSE, more="varied") == [], "its header says that its blocks differ"
    assert faults(f"{DENSE} attn_rel_b", DENSE, arch="t5", stack="enc.") == [], "all blocks use that of the first"


def test_blocks_without_tensors_and_unstated_blocks_are_named() -> None:
    states = "its header states"
    assert faults(DENSE, "", DENSE) == [f"{states} 3 blocks, but it has no tensors of block 1: runtimes refuse it"]
    assert faults(DENSE, "", DENSE, "", stated=10**9)[0].endswith(
        "no tensors of block 1 and 3-999999999: runtimes refuse it"
    )
    assert faults(DENSE, DENSE, stated=1) == [
        f"{states} 1 block, but it also has tensors of block 1: runtimes refuse it"
    ]
    further = "which predicts further tokens: some runtimes refuse it"
    assert faults(DENSE, DENSE, "", more="nextn") == [f"{states} 3 blocks, but it has no tensors of block 2, {further}"]


def test_nothing_is_said_of_a_part_of_a_model() -> None:
    assert faults("ffn_up ffn_down", "", "ffn_up") == []
