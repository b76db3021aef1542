"""Tests of the anatomy: a type for every name of the `gguf` package, and a place for any text."""

from __future__ import annotations

from itertools import product

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.anatomy import (
    LORA_SUFFIXES,
    MAGNITUDE_SUFFIX,
    Component,
    OrganType,
    Place,
    Tower,
    adapted_tensor,
    component_of,
    is_multiplied,
    place_of,
)
from tests.random_files import PATIENT

# Written by hand, one line for each kind; N is the block, or the number of a layer outside the blocks.
TYPES: dict[OrganType, str] = {
    OrganType.SKELETON: """
        rope_freqs rope_factors_long rope_factors_short blk.N.attn_qkv blk.N.attn_q blk.N.attn_k blk.N.attn_v
        blk.N.attn_output blk.N.attn_rot_embd blk.N.attn_sinks blk.N.attn_gate blk.N.ssm_in blk.N.ssm_conv1d blk.N.ssm_x
        blk.N.ssm_dt blk.N.ssm_a blk.N.ssm_d blk.N.ssm_out blk.N.ssm_alpha blk.N.ssm_ba blk.N.ssm_conv1d_q
        blk.N.ssm_conv1d_k blk.N.ssm_conv1d_v blk.N.ssm_f_a blk.N.ssm_f_b blk.N.ssm_beta blk.N.ssm_g_a blk.N.ssm_g_b
        blk.N.time_mix_w0 blk.N.time_mix_w1 blk.N.time_mix_w2 blk.N.time_mix_a0 blk.N.time_mix_a1 blk.N.time_mix_a2
        blk.N.time_mix_v0 blk.N.time_mix_v1 blk.N.time_mix_v2 blk.N.time_mix_g1 blk.N.time_mix_g2 blk.N.time_mix_k_k
        blk.N.time_mix_k_a blk.N.time_mix_r_k blk.N.time_mix_lerp_x blk.N.time_mix_lerp_k blk.N.time_mix_lerp_v
        blk.N.time_mix_lerp_r blk.N.time_mix_lerp_g blk.N.time_mix_lerp_fused blk.N.time_mix_lerp_w blk.N.time_mix_first
        blk.N.time_mix_decay blk.N.time_mix_decay_w1 blk.N.time_mix_decay_w2 blk.N.time_mix_key blk.N.time_mix_value
        blk.N.time_mix_receptance blk.N.time_mix_gate blk.N.time_mix_output blk.N.attn_q_a blk.N.attn_q_b
        blk.N.attn_kv_a_mqa blk.N.attn_kv_b blk.N.attn_k_b blk.N.attn_v_b dec.blk.N.attn_q dec.blk.N.attn_k
        dec.blk.N.attn_v dec.blk.N.attn_o dec.blk.N.attn_rel_b dec.blk.N.cross_attn_q dec.blk.N.cross_attn_k
        dec.blk.N.cross_attn_v dec.blk.N.cross_attn_o dec.blk.N.cross_attn_rel_b enc.blk.N.attn_q enc.blk.N.attn_k
        enc.blk.N.attn_v enc.blk.N.attn_o enc.blk.N.attn_rel_b convnext.N.dw posnet.N.conv1 posnet.N.conv2
        posnet.N.attn_q posnet.N.attn_k posnet.N.attn_v posnet.N.attn_output blk.N.shortconv.conv
        blk.N.shortconv.in_proj blk.N.shortconv.out_proj blk.N.vis_attn_qkv blk.N.vis_attn_output blk.N.indexer.proj
        blk.N.indexer.attn_k blk.N.indexer.attn_q_b mm.model.peg.N v.blk.N.attn_qkv v.blk.N.attn_q v.blk.N.attn_k
        v.blk.N.attn_v v.blk.N.attn_out resampler.attn.q resampler.attn.k resampler.attn.v resampler.attn.out
        resampler.kv resampler.query mm.patch_merger v.sam.blk.N.attn.pos_h v.sam.blk.N.attn.pos_w v.sam.blk.N.attn.qkv
        v.sam.blk.N.attn.out v.sam.neck.N v.sam.net_2 v.sam.net_3 a.blk.N.attn_q a.blk.N.attn_k a.blk.N.attn_v
        a.blk.N.attn_k_rel a.blk.N.per_dim_scale a.blk.N.attn_out a.blk.N.per_dim_k_scale a.blk.N.linear_pos
        a.blk.N.pos_bias_u a.blk.N.pos_bias_v a.blk.N.conv_dw a.blk.N.conv_pw1 a.blk.N.conv_pw2 a.blk.N.attn_rel_pos_emb
        a.proj_query a.proj_blk.N.self_attn_q a.proj_blk.N.self_attn_k a.proj_blk.N.self_attn_v
        a.proj_blk.N.self_attn_out a.proj_blk.N.cross_attn_q a.proj_blk.N.cross_attn_k a.proj_blk.N.cross_attn_v
        a.proj_blk.N.cross_attn_out
    """,
    OrganType.ORGAN: """
        blk.N.ffn_gate_inp blk.N.ffn_gate_inp_shexp blk.N.ffn_gate blk.N.ffn_down blk.N.ffn_up blk.N.ffn_gate_shexp
        blk.N.ffn_down_shexp blk.N.ffn_up_shexp blk.N.ffn_gate_chexps blk.N.ffn_down_chexps blk.N.ffn_up_chexps
        blk.N.ffn blk.N.ffn_gate_exps blk.N.ffn_down_exps blk.N.ffn_up_exps blk.N.ffn_gate_up_exps blk.N.exp_probs_b
        blk.N.ffn_latent_down blk.N.ffn_latent_up blk.N.inp_gate blk.N.proj blk.N.channel_mix_lerp_k
        blk.N.channel_mix_lerp_r blk.N.channel_mix_key blk.N.channel_mix_receptance blk.N.channel_mix_value
        dec.blk.N.ffn_gate dec.blk.N.ffn_down dec.blk.N.ffn_up enc.blk.N.ffn_gate enc.blk.N.ffn_down enc.blk.N.ffn_up
        convnext.N.pw1 convnext.N.pw2 blk.N.vis_gate blk.N.vis_down blk.N.vis_up mm.N mm.model.fc mm.model.mlp.N
        v.blk.N.ffn_up v.blk.N.ffn_gate v.blk.N.ffn_down v.msfa.ffn.pw_exp.conv v.msfa.ffn.pw_proj.conv
        v.deepstack.N.fc1 v.deepstack.N.fc2 mm.up mm.down mm.gate v.sam.blk.N.mlp.lin1 v.sam.blk.N.mlp.lin2
        a.blk.N.ffn_scale a.blk.N.ffn_up a.blk.N.ffn_gate a.blk.N.ffn_down a.blk.N.ffn_scale_1 a.blk.N.ffn_up_1
        a.blk.N.ffn_gate_1 a.blk.N.ffn_down_1 mm.a.mlp.N mm.a.fc a.proj_blk.N.ffn_up a.proj_blk.N.ffn_down
    """,
    OrganType.EMBED: """
        token_embd token_types position_embd output per_layer_token_embd per_layer_model_proj altup_unembd_proj
        altup_proj conv1d v.class_embd v.patch_embd v.position_embd mm.input_projection mm.embedding v.conv_stem.conv
        resampler.pos_embd_k resampler.proj v.token_embd.img_break v.boi v.eoi mm.image_begin mm.image_end
        v.sam.pos_embd v.sam.patch_embd v.image_newline v.view_seperator a.position_embd a.embd_to_logits
        a.input_projection a.conv1d.N a.conv2d.N a.conv_out mm.a.input_projection mm.a.embedding a.pre_encode.out
        a.enc_ctc_out a.enc_ctc_out_mid a.proj_linear blk.N.nextn.embed_tokens blk.N.nextn.shared_head_head
    """,
    OrganType.NORM: """
        token_embd_norm output_norm blk.N.attn_norm blk.N.attn_norm_2 blk.N.attn_q_norm blk.N.attn_k_norm
        blk.N.attn_output_norm blk.N.post_attention_norm blk.N.ffn_norm blk.N.post_ffw_norm blk.N.pre_ffw_norm_2
        blk.N.post_ffw_norm_1 blk.N.post_ffw_norm_2 blk.N.ffn_norm_exps blk.N.layer_output_norm blk.N.layer_output_scale
        per_layer_proj_norm blk.N.post_norm blk.N.altup_router_norm blk.N.laurel_post_norm blk.N.ssm_dt_norm
        blk.N.ssm_b_norm blk.N.ssm_c_norm blk.N.ssm_norm blk.N.time_mix_ln blk.N.attn_q_a_norm blk.N.attn_kv_a_norm
        blk.N.attn_sub_norm blk.N.ffn_sub_norm dec.blk.N.attn_norm dec.blk.N.cross_attn_norm dec.blk.N.ffn_norm
        dec.output_norm enc.blk.N.attn_norm enc.blk.N.ffn_norm enc.output_norm cls.norm convnext.N.norm convnext.N.gamma
        posnet.N.norm posnet.N.norm1 posnet.N.norm2 posnet.N.attn_norm blk.N.indexer.k_norm v.norm_embd
        v.blk.N.attn_q_norm v.blk.N.attn_k_norm v.blk.N.ln1 v.blk.N.attn_out_norm v.blk.N.ln2 v.blk.N.attn_post_norm
        v.blk.N.ffn_post_norm v.blk.N.ls1 v.blk.N.ls2 v.blk.N.out_scale v.pre_ln v.post_ln mm.post_norm mm.input_norm
        mm.soft_emb_norm mm.hard_emb_norm v.conv_stem.bn v.msfa.ffn.pw_exp.bn v.msfa.ffn.pw_proj.bn v.msfa.norm
        resampler.ln_kv resampler.ln_post resampler.ln_q v.deepstack.N.norm mm.post_fc_norm mm.pre_norm v.std_bias
        v.std_scale v.sam.blk.N.pre_ln v.sam.blk.N.post_ln a.position_embd_norm a.conv1d.N.norm a.pre_ln a.post_ln
        a.blk.N.layer_pre_norm a.blk.N.attn_post_norm a.blk.N.attn_pre_norm a.blk.N.ln1 a.blk.N.ln2 a.blk.N.ffn_norm
        a.blk.N.ffn_post_norm a.blk.N.ffn_norm_1 a.blk.N.ffn_post_norm_1 mm.a.norm_pre mm.a.norm_mid mm.a.soft_emb_norm
        mm.a.hard_emb_norm a.blk.N.norm_conv a.blk.N.conv_norm a.proj_norm a.proj_blk.N.self_attn_norm
        a.proj_blk.N.cross_attn_norm a.proj_blk.N.ffn_norm blk.N.nextn.enorm blk.N.nextn.hnorm
        blk.N.nextn.shared_head_norm
    """,
    OrganType.OTHER: """
        dense_2 dense_3 blk.N.altup_correct_coef blk.N.altup_correct_scale blk.N.altup_predict_coef blk.N.altup_router
        blk.N.laurel_l blk.N.laurel_r cls cls.output blk.N.nextn.eh_proj
    """,
}

DECIDED = {pattern: kind for kind, patterns in TYPES.items() for pattern in patterns.split()}
PATTERNS = sorted({pattern.replace("{bid}", "N") for pattern in gguf.TENSOR_NAMES.values()})


def numbered(pattern: str, number: int = 7) -> str:
    return ".".join(str(number) if part == "N" else part for part in pattern.split("."))


def test_every_pattern_of_the_gguf_package_has_a_type_in_the_table() -> None:
    """This fails if a new version of the package has a name that is not in the table."""
    assert [pattern for pattern in PATTERNS if pattern not in DECIDED] == []
    assert len(DECIDED) == sum(len(patterns.split()) for patterns in TYPES.values()), "a pattern stands twice"


@pytest.mark.parametrize("pattern", sorted(DECIDED))
def test_a_name_has_the_type_of_the_table(pattern: str) -> None:
    for suffix in (".weight", ".bias", ""):
        assert place_of(numbered(pattern) + suffix).type is DECIDED[pattern]


@pytest.mark.parametrize("suffix", [".weight", ".bias", ".weight.lora_a", ".weight.lora_b"])
def test_no_two_names_share_a_place(suffix: str) -> None:
    places: dict[tuple[Tower, int | None, str], str] = {}
    for pattern, number in product(DECIDED, (0, 7)):
        name = numbered(pattern, number) + suffix
        place = place_of(name)
        other = places.setdefault((place.tower, place.block, place.slot), name)
        assert other == name


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("token_embd.weight", Place(OrganType.EMBED, Tower.TEXT, None, "token_embd")),
        ("output_norm.bias", Place(OrganType.NORM, Tower.TEXT, None, "output_norm.bias")),
        ("blk.0.attn_q.weight", Place(OrganType.SKELETON, Tower.TEXT, 0, "attn_q")),
        ("blk.3.exp_probs_b.bias", Place(OrganType.ORGAN, Tower.TEXT, 3, "exp_probs_b.bias")),
        ("blk.3.ssm_a", Place(OrganType.SKELETON, Tower.TEXT, 3, "ssm_a")),
        ("enc.blk.4.attn_q.weight", Place(OrganType.SKELETON, Tower.ENCODER, 4, "attn_q")),
        ("dec.blk.4.cross_attn_q.weight", Place(OrganType.SKELETON, Tower.DECODER, 4, "cross_attn_q")),
        ("v.sam.blk.6.mlp.lin1.bias", Place(OrganType.ORGAN, Tower.VISION, 6, "sam.mlp.lin1.bias")),
        ("mm.a.mlp.1.weight", Place(OrganType.ORGAN, Tower.AUDIO, None, "mm.a.mlp.1")),
        ("a.proj_blk.7.ffn_up.weight", Place(OrganType.ORGAN, Tower.AUDIO, 7, "proj_blk.ffn_up")),
        ("convnext.8.norm.weight", Place(OrganType.NORM, Tower.AUDIO, 8, "convnext.norm")),
    ],
)
def test_a_name_determines_the_place_of_its_tensor(name: str, place: Place) -> None:
    assert place_of(name) == place


COMPONENTS: dict[Component, str] = {
    Component.EMBEDDINGS: "token_embd output v.patch_embd",
    Component.ATTENTION: """
        blk.N.attn_qkv blk.N.attn_q blk.N.attn_k blk.N.attn_v blk.N.attn_output blk.N.attn_sinks v.blk.N.attn_q
        rope_freqs blk.N.vis_attn_qkv a.proj_blk.N.self_attn_q posnet.N.attn_q
    """,
    Component.LATENT_ATTENTION: """
        blk.N.attn_q_a blk.N.attn_q_b blk.N.attn_kv_a_mqa blk.N.attn_kv_b blk.N.attn_k_b blk.N.attn_v_b
    """,
    Component.CROSS_ATTENTION: "dec.blk.N.cross_attn_q dec.blk.N.cross_attn_rel_b a.proj_blk.N.cross_attn_k",
    Component.INDEXER: "blk.N.indexer.proj blk.N.indexer.attn_q_b",
    Component.STATE_SPACE: "blk.N.ssm_in blk.N.ssm_conv1d",
    Component.TIME_MIXING: "blk.N.time_mix_key",
    Component.CONVOLUTION: "blk.N.shortconv.in_proj convnext.N.dw posnet.N.conv1 a.blk.N.conv_pw1",
    Component.DENSE: """
        blk.N.ffn_gate blk.N.ffn_up blk.N.ffn_down enc.blk.N.ffn_up a.blk.N.ffn_up_1 blk.N.channel_mix_key blk.N.vis_up
        mm.N convnext.N.pw1 blk.N.inp_gate
    """,
    Component.ROUTED_EXPERTS: """
        blk.N.ffn_gate_exps blk.N.ffn_up_exps blk.N.ffn_down_exps blk.N.ffn_gate_up_exps blk.N.ffn_up_chexps
        blk.N.ffn_gate.3 blk.N.ffn_latent_down
    """,
    Component.SHARED_EXPERTS: "blk.N.ffn_gate_shexp blk.N.ffn_up_shexp blk.N.ffn_down_shexp blk.N.ffn_gate_inp_shexp",
    Component.ROUTER: "blk.N.ffn_gate_inp blk.N.exp_probs_b",
    Component.NORMS: "output_norm blk.N.attn_norm blk.N.attn_q_a_norm blk.N.attn_kv_a_norm blk.N.ffn_norm_exps",
    Component.OTHER: "cls blk.N.nextn.eh_proj",
}


@pytest.mark.parametrize(("component", "patterns"), COMPONENTS.items())
def test_a_component_has_the_organs_of_the_table(component: Component, patterns: str) -> None:
    for pattern in patterns.split():
        for suffix in (".weight", ".bias", ""):
            place = place_of(numbered(pattern) + suffix)
            assert component_of(place.type, place.slot) is component, pattern


def test_every_organ_has_a_component_and_only_skeletons_and_organs_are_divided() -> None:
    divided = {OrganType.SKELETON, OrganType.ORGAN}
    for kind in OrganType:
        components = {component_of(kind, place_of(numbered(pattern)).slot) for pattern in DECIDED}
        assert (len(components) > 1) == (kind in divided)
    place = place_of("blk.3.attn_kv_b.weight.lora_a")
    assert component_of(place.type, place.slot) is Component.ADAPTERS


@pytest.mark.parametrize("expert", [0, 3, 127])
@pytest.mark.parametrize("part", ["gate", "up", "down"])
def test_the_old_names_of_single_experts_are_feed_forward(part: str, expert: int) -> None:
    place = place_of(f"blk.2.ffn_{part}.{expert}.weight")
    assert place == Place(OrganType.ORGAN, Tower.TEXT, 2, f"ffn_{part}.{expert}")


@pytest.mark.parametrize("suffix", [*LORA_SUFFIXES, MAGNITUDE_SUFFIX])
@pytest.mark.parametrize("base", ["blk.3.attn_q.weight", "token_embd.weight", "v.blk.1.ffn_up.weight"])
def test_a_factor_of_an_adapter_has_the_place_of_its_base_tensor(suffix: str, base: str) -> None:
    place = place_of(base)
    assert place_of(base + suffix) == Place(OrganType.ADAPTER, place.tower, place.block, place.slot + suffix)
    assert adapted_tensor(base + suffix) == base
    assert adapted_tensor(base) is None


def test_only_the_suffix_of_a_name_marks_an_adapter() -> None:
    assert place_of("blk.0.ffn_up.lora_a.weight").type is OrganType.ORGAN
    assert adapted_tensor("x.lora_b.lora_a") == "x.lora_b"


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "blk",
        "blk.",
        "blk.0",
        "blk.0.",
        "blk.x.attn_q",
        "blk.-1.attn_q",
        "blk.٣.attn_q",
        "blk.0\n.attn_q",
    ],
)
def test_a_name_similar_to_a_block_name_has_no_block(name: str) -> None:
    assert place_of(name).block is None


def test_a_block_number_that_is_too_long_is_ignored() -> None:
    assert place_of("blk.999999999.attn_q").block == 999_999_999
    assert place_of("blk.1000000000.attn_q").block is None
    assert place_of(f"blk.{'9' * 5000}.attn_q").block is None


@pytest.mark.parametrize(
    "name", ["blk.0.flux_capacitor.weight", "lm_head.weight", "x", "", "../../etc/passwd", "\x1b[2J"]
)
def test_an_unknown_name_has_the_type_other(name: str) -> None:
    assert place_of(name).type is OrganType.OTHER


@PATIENT
@given(
    st.text(max_size=300)
    | st.lists(
        st.sampled_from(["blk", "v", "a", "enc", "mm", "sam", "0", "7", "weight", "lora_a", "attn_q", "ffn", "", "\n"]),
        max_size=12,
    ).map(".".join)
)
def test_any_text_has_a_place(name: str) -> None:
    place = place_of(name)
    assert (place.type is OrganType.ADAPTER) == name.endswith((*LORA_SUFFIXES, MAGNITUDE_SUFFIX))
    assert place.block is None or 0 <= place.block <= 999_999_999
    assert len(place.slot) <= len(name)


@pytest.mark.parametrize(
    "name", ["a" * 1_000_000, "blk." * 20_000, "blk" * 20_000, "_blk." * 10_000 + "0.x", "." * 100_000]
)
def test_a_hostile_name_is_placed_in_a_short_time(name: str) -> None:
    """A search that backtracks over the name would take hours."""
    assert place_of(name).block in (None, 0)


@pytest.mark.parametrize(
    ("names", "are_multiplied"),
    [
        ("attn_q attn_qkv attn_output attn_k_b ffn_gate ffn_down_exps ffn_gate_inp ssm_in ssm_out time_mix_key", True),
        ("ssm_conv1d ssm_a ssm_d shortconv.conv time_mix_lerp_x time_mix_w1 attn_rel_b attn_sinks ffn_up.bias", False),
        ("attn_norm ffn_norm ffn_up.scale exp_probs_b", False),
    ],
)
def test_runtimes_add_a_lora_to_the_linear_layers_of_blocks(names: str, are_multiplied: bool) -> None:
    for name in names.split():
        place = place_of(f"blk.0.{name}" if name.endswith(("bias", "scale", "probs_b")) else f"blk.0.{name}.weight")
        assert is_multiplied(place) is are_multiplied, name
    assert not is_multiplied(place_of("token_embd.weight"))
