"""The mixes of llama.cpp: which matrix gets which type. The tables were read off files of llama-quantize 0.5."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from organs.registry.anatomy import can_be_quantised
from organs.registry.gguf import MemorySource, TensorSpec, ValueType, dtype_by_name, read_header
from organs.registry.gguf.mixes import (
    FALLBACKS,
    MIXES,
    MixTraits,
    fallback_dtype,
    is_quantised,
    mixed_dtypes,
    traits_of,
    wants_importances,
)
from organs.registry.gguf.types import FILE_TYPES
from tests.gguf_files import array, file_bytes, tensor, text, unsigned

F16, F32 = dtype_by_name("F16"), dtype_by_name("F32")
LLAMA = MixTraits("llama", blocks=17, heads=8, key_heads=4)
GROUPED = replace(LLAMA, key_heads=2)
MIXTURE = replace(LLAMA, experts=8)


def decoder(blocks: int = 17, width: int = 256, *, tied: bool = False, experts: int = 0) -> list[TensorSpec]:
    """Return the tensors of a decoder, of which only the rows matter."""
    specs = [TensorSpec("token_embd.weight", (width, 8), F16), TensorSpec("output_norm.weight", (width,), F32)]
    specs += [] if tied else [TensorSpec("output.weight", (width, 8), F16)]
    for block in range(blocks):
        names = ["attn_q", "attn_k", "attn_v", "attn_output"]
        names += [] if experts else ["ffn_gate", "ffn_up", "ffn_down"]
        specs += [TensorSpec(f"blk.{block}.{name}.weight", (width, 8), F16) for name in names]
        if experts:
            stacks = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
            specs += [TensorSpec(f"blk.{block}.{name}.weight", (width, 8, experts), F16) for name in stacks]
            specs.append(TensorSpec(f"blk.{block}.ffn_gate_inp.weight", (width, experts), F32))
        specs += [
            TensorSpec(f"blk.{block}.attn_norm.weight", (width,), F32),
            TensorSpec(f"blk.{block}.attn_q.bias", (8,), F32),
        ]
    return specs


def types(mix: str, specs: list[TensorSpec], traits: MixTraits = LLAMA) -> dict[str, str]:
    return {name: dtype.name for name, dtype in mixed_dtypes(mix, specs, traits).items()}


def blocks_of(found: dict[str, str], slot: str, dtype: str) -> list[int]:
    """Return the blocks whose matrix in `slot` has a type."""
    return [block for block in range(17) if found[f"blk.{block}.{slot}.weight"] == dtype]


FINER = [0, 1, 4, 7, 10, 13, 14, 15, 16]
"""The blocks of 17 with more bits: an eighth at both ends, and each third one between."""


def test_q4_k_m_has_finer_values_and_last_matrices_in_some_blocks() -> None:
    found = types("Q4_K_M", decoder())
    assert Counter(found.values()) == {"Q4_K": 17 * 7 + 1 - 18, "Q6_K": 1 + 18}
    assert found["output.weight"] == "Q6_K"
    assert found["token_embd.weight"] == "Q4_K"
    assert blocks_of(found, "attn_v", "Q6_K") == FINER
    assert blocks_of(found, "ffn_down", "Q6_K") == FINER


@pytest.mark.parametrize(
    ("mix", "traits", "slot", "first", "last"),
    [
        ("Q2_K", LLAMA, "attn_v", "Q3_K", "Q3_K"),
        ("Q2_K", GROUPED, "attn_v", "Q4_K", "Q4_K"),
        ("Q2_K", LLAMA, "ffn_down", "Q3_K", "Q3_K"),
        ("Q2_K_S", LLAMA, "ffn_down", "Q4_K", "Q2_K"),
        ("Q3_K_S", LLAMA, "attn_v", "Q3_K", "Q3_K"),
        ("Q3_K_M", LLAMA, "attn_v", "Q5_K", "Q4_K"),
        ("Q3_K_M", LLAMA, "ffn_down", "Q5_K", "Q4_K"),
        ("Q3_K_L", LLAMA, "attn_output", "Q5_K", "Q5_K"),
        ("Q4_K_S", LLAMA, "attn_v", "Q5_K", "Q4_K"),
        ("Q5_K_S", LLAMA, "ffn_down", "Q5_K", "Q5_K"),
        ("Q5_K_M", LLAMA, "ffn_down", "Q6_K", "Q6_K"),
        ("Q4_0", LLAMA, "ffn_down", "Q4_0", "Q4_0"),
        ("Q4_0", replace(LLAMA, by_importances=True), "ffn_down", "Q4_1", "Q4_0"),
        ("IQ4_XS", LLAMA, "ffn_down", "Q5_K", "IQ4_XS"),
        ("IQ4_XS", replace(LLAMA, by_importances=True), "ffn_down", "IQ4_XS", "IQ4_XS"),
        ("IQ4_NL", GROUPED, "attn_v", "Q5_K", "Q5_K"),
        ("IQ3_XXS", LLAMA, "attn_q", "IQ2_S", "IQ2_S"),
        ("IQ2_XXS", LLAMA, "ffn_down", "Q2_K", "IQ2_XXS"),
        ("IQ1_S", LLAMA, "attn_output", "IQ2_XXS", "IQ2_XXS"),
        ("Q3_K_M", replace(LLAMA, architecture="falcon"), "ffn_down", "Q5_K", "Q4_K"),
        ("Q4_K_M", replace(LLAMA, architecture="falcon"), "ffn_down", "Q6_K", "Q5_K"),
    ],
)
def test_roles_differ_by_mix_and_hyperparameters(mix: str, traits: MixTraits, slot: str, first: str, last: str) -> None:
    found = types(mix, decoder(), traits)
    assert (found[f"blk.0.{slot}.weight"], found[f"blk.16.{slot}.weight"]) == (first, last)


def test_eight_experts_get_finer_attention_and_routers_stay() -> None:
    found = types("Q4_K_M", decoder(experts=8), MIXTURE)
    assert {found[f"blk.3.attn_{name}.weight"] for name in ("k", "v")} == {"Q8_0"}
    assert found["blk.3.attn_output.weight"] == "Q5_K"
    assert blocks_of(found, "ffn_down_exps", "Q6_K") == FINER
    assert "blk.3.ffn_gate_inp.weight" not in found


def test_seventy_billion_weights_have_finer_values() -> None:
    traits = MixTraits("llama", blocks=80, heads=64, key_heads=8)
    assert traits.is_70b
    found = types("Q4_K_S", decoder(80), traits)
    assert {found[f"blk.{block}.attn_v.weight"] for block in range(80)} == {"Q5_K"}
    assert not replace(traits, key_heads=64).is_70b


def test_a_tied_embedding_has_the_type_of_an_output_matrix() -> None:
    assert types("Q4_K_M", decoder(tied=True))["token_embd.weight"] == "Q6_K"
    assert types("IQ2_S", decoder(tied=True))["token_embd.weight"] == "Q5_K"
    assert types("IQ2_S", decoder())["token_embd.weight"] == "IQ3_S"
    assert types("Q8_0", decoder(tied=True))["token_embd.weight"] == "Q8_0"


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("width", [256, 288, 250, 1])
def test_every_matrix_gets_a_type_that_holds_its_rows(mix: str, width: int) -> None:
    specs = decoder(width=width)
    found = mixed_dtypes(mix, specs, LLAMA)
    assert set(found) == {spec.name for spec in specs if is_quantised(spec)}
    assert not any(width % dtype.block_elements for dtype in found.values())


def test_names_of_mixes_are_those_of_file_types() -> None:
    numbers = {name: number for number, name in FILE_TYPES.items()}
    assert {mix.name: mix.file_type for mix in MIXES.values()} == {
        name: numbers[name.removesuffix("_MOE")] for name in MIXES
    }


def test_plain_types_are_for_all_matrices_and_need_no_blocks() -> None:
    assert set(types("BF16", decoder(width=250)).values()) == {"BF16"}


def test_rows_that_are_no_whole_blocks_get_other_types() -> None:
    assert [fallback_dtype(dtype_by_name(name), 576).name for name in ("Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "Q8_0")] == [
        *("Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "Q8_0")
    ]
    assert fallback_dtype(dtype_by_name("Q4_K"), 512).name == "Q4_K"
    assert {fallback_dtype(dtype_by_name(name), 250).name for name in (*FALLBACKS, "Q4_0")} == {"F16"}


def test_coarse_types_need_importances_but_not_for_embeddings() -> None:
    assert wants_importances("blk.0.ffn_up.weight", dtype_by_name("IQ2_XS"))
    assert not wants_importances("token_embd.weight", dtype_by_name("IQ2_XS"))
    assert not wants_importances("blk.0.ffn_up.weight", dtype_by_name("IQ3_S"))
    assert wants_importances("blk.0.ffn_up.weight", dtype_by_name("Q2_K"), "Q2_K_S")
    assert not wants_importances("blk.0.ffn_up.weight", dtype_by_name("Q2_K"), "Q2_K")


@pytest.mark.parametrize(
    "name",
    [
        *("output_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.0.attn_q.bias", "position_embd.weight"),
        *("blk.0.ssm_conv1d.weight", "blk.0.ssm_a", "v.patch_embd.weight", "blk.0.time_mix_w1.weight"),
        *("per_layer_model_proj.weight", "blk.0.laurel_l.weight", "v.position_embd.weight", "blk.0.attn_rel_b.weight"),
    ],
)
def test_small_and_sensitive_tensors_are_never_quantised(name: str) -> None:
    assert not can_be_quantised(name)
    assert not is_quantised(TensorSpec(name, (256, 8), F16))


def test_matrices_of_every_tower_are_quantised() -> None:
    for name in ("token_embd.weight", "v.blk.0.attn_q.weight", "enc.blk.1.ffn_up.weight", "blk.0.time_mix_key.weight"):
        assert is_quantised(TensorSpec(name, (256, 8), F16)), name
        assert not is_quantised(TensorSpec(name, (256,), F16)), name


def test_traits_are_those_of_the_header_and_of_the_first_block_in_a_list() -> None:
    metadata = [
        text("general.architecture", "llama"),
        unsigned("llama.block_count", 5),
        unsigned("llama.expert_count", 4),
        array("llama.attention.head_count", ValueType.INT32, [8, 4, 4]),
        unsigned("llama.attention.head_count_kv", 2),
    ]
    source = MemorySource(file_bytes(metadata, [tensor("a")]), "some.gguf")
    assert traits_of(read_header(source), source) == MixTraits("llama", 5, 4, 8, 2)
