"""Tensor names to places: which system a tensor belongs to, in which tower and block, at which slot.

This is the only module that reads tensor names. Names follow the GGUF conventions of the `gguf` package; a name that no
rule knows is `other`, never an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class OrganType(StrEnum):
    """The system that a tensor belongs to."""

    SKELETON = "skeleton"
    """Attention and every other mixing of tokens."""
    ORGAN = "organ"
    """Feed-forward, experts and their router."""
    EMBED = "embed"
    """Tokens and positions to vectors, and back to tokens."""
    NORM = "norm"
    ADAPTER = "adapter"
    """One half of a low-rank adapter (LoRA)."""
    OTHER = "other"


class Tower(StrEnum):
    """Which stack of blocks: models with several number each from 0."""

    TEXT = "text"
    ENCODER = "encoder"
    DECODER = "decoder"
    VISION = "vision"
    AUDIO = "audio"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor sits; no two names of the conventions share a place.

    `slot` is the name without its tower's prefix, `blk.N.` and `.weight` (what else names the stack of blocks stays:
    `v.sam.blk.3.pre_ln.weight` is at slot `sam.pre_ln`). `block` is None outside the blocks.
    """

    type: OrganType
    tower: Tower
    block: int | None
    slot: str


TOKEN_EMBEDDING = Place(OrganType.EMBED, Tower.TEXT, None, "token_embd")
"""Tokens to vectors; every text model has it."""
OUTPUT_MATRIX = Place(OrganType.EMBED, Tower.TEXT, None, "output")
"""Vectors to tokens; models with tied embeddings have none and use the one above."""

Slot: TypeAlias = tuple[str, int | None, str]
"""Tower, block and slot of an organ."""
Group: TypeAlias = tuple[str, int, str]
"""Tower, block and name of organs that only work together."""

EXAMPLE_SLOTS = ("ffn_up", "ffn_down")
"""For help texts."""

LORA_SUFFIXES = (".lora_a", ".lora_b")
BLOCK_DIGITS_MAX = 9

# Tried once at each dot, so that a hostile name costs no more than its length.
_BLOCK = re.compile(rf"(?:^|\.)(?P<stack>[a-z_]*blk|convnext|posnet)\.(?P<block>[0-9]{{1,{BLOCK_DIGITS_MAX}}})\.(?!\Z)")

# The first prefix that fits decides.
_TOWERS = (
    ("enc.", Tower.ENCODER),
    ("dec.", Tower.DECODER),
    ("v.", Tower.VISION),
    ("mm.a.", Tower.AUDIO),
    ("mm.", Tower.VISION),
    ("resampler.", Tower.VISION),
    ("a.", Tower.AUDIO),
    ("convnext.", Tower.AUDIO),
    ("posnet.", Tower.AUDIO),
    ("conv1d", Tower.AUDIO),
)
_TOWER_PREFIX = re.compile(r"(enc|dec|v|a)\.")

# What stays of a name before the slot where a model has several stacks of blocks.
_STACK = re.compile(r"([a-z_]+blk|convnext|posnet|sam)\.")

# Of each type whose organs work in groups: the groups that a block may have beside the usual one, and the usual one.
_GROUPS: dict[OrganType, tuple[tuple[tuple[str, re.Pattern[str]], ...], str]] = {
    OrganType.ORGAN: (
        (
            ("shared experts", re.compile(r"_shexp")),
            ("chunk experts", re.compile(r"_chexps")),
            ("experts", re.compile(r"_exps|^ffn_gate_inp|^exp_probs_b|^ffn_(gate|up|down)\.\d+|^ffn_latent_")),
            ("second feed-forward", re.compile(r"^ffn_\w+_1$")),
            ("image feed-forward", re.compile(r"^vis_")),
            ("layer input", re.compile(r"^(inp_gate|proj)$")),
        ),
        "feed-forward",
    ),
    OrganType.SKELETON: (
        (
            ("cross attention", re.compile(r"^cross_attn")),
            ("image attention", re.compile(r"^vis_attn")),
            ("indexer", re.compile(r"^indexer\.")),
            ("state space", re.compile(r"^ssm_")),
            ("time mixing", re.compile(r"^time_mix_")),
            ("convolution", re.compile(r"conv")),
        ),
        "attention",
    ),
}

# Asked in this order; the first that is found in the slot decides. Norm stands first: `attn_norm` is a norm.
_RULES: tuple[tuple[OrganType, re.Pattern[str]], ...] = (
    # With the learned scales of whole layers and channels.
    (
        OrganType.NORM,
        re.compile(
            r"norm|(^|[._])ln(_|\d|\.|$)|\.bn$|(^|\.)(gamma|ls[12])$|^(layer_)?out(put)?_scale$|^std_(bias|scale)$"
        ),
    ),
    # With the stems that turn pixels and sound into vectors, and the linear maps from one space of vectors to another.
    (
        OrganType.EMBED,
        re.compile(
            r"(token|position|pos|patch|class)_embd|token_types|embed_tokens|embedding$|shared_head_head|^output($|\.)"
            r"|embd_to_logits|^enc_ctc_out|altup_(unembd_)?proj$|per_layer_model_proj|img_break|^[be]oi$"
            r"|image_(newline|begin|end)|view_seperator|^conv[12]d|^conv_(out|stem)|^pre_encode"
            r"|input_projection|resampler\.proj|^proj_linear"
        ),
    ),
    # With the layers of multi-modal projectors, and the gate that mixes in per-layer embeddings.
    (
        OrganType.ORGAN,
        re.compile(
            r"(^|[._])ffn([._]|$)|channel_mix_|exp_probs_b|mlp|vis_(gate|up|down)|^(inp_gate|proj)$|convnext\.pw"
            r"|^mm\.(up|down|gate|\d+)$|^mm\.(model|a)\.fc|deepstack\.\d+\.fc"
        ),
    ),
    # With convolutions that mix neighbours.
    (
        OrganType.SKELETON,
        re.compile(
            r"attn|ssm_|time_mix_|rope_f|shortconv|indexer|conv_(dw|pw\d)|convnext\.dw|posnet\.conv|linear_pos|pos_bias"
            r"|per_dim_(k_)?scale|resampler\.(kv|query)|proj_query|patch_merger|\.peg\.|^sam\.(neck|net)"
        ),
    ),
)


def place_of(name: str) -> Place:
    """The place of the tensor `name`; any text has one."""
    base = adapted_tensor(name)
    plain = name if base is None else base
    block, slot = _block_and_slot(plain)
    if base is None:
        return Place(_type(slot), _tower(plain), block, slot)
    return Place(OrganType.ADAPTER, _tower(plain), block, slot + name[len(base) :])


def adapted_tensor(name: str) -> str | None:
    """The base tensor that the adapter tensor `name` changes, or None when it is none."""
    for suffix in LORA_SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return None


def group_of(place: Place) -> Group | None:
    """The organs that `place` only works together with: gate, up and down; a router and its experts; one attention.

    Biases are in the group of their weight. None for what stands alone: norms, embeddings, all outside the blocks.
    """
    if place.block is None or place.type not in _GROUPS:
        return None
    stack = _STACK.match(place.slot)
    slot = place.slot[stack.end() if stack else 0 :].removesuffix(".bias")
    known, usual = _GROUPS[place.type]
    name = next((name for name, pattern in known if pattern.search(slot)), usual)
    return place.tower.value, place.block, (stack.group() if stack else "") + name


def _block_and_slot(name: str) -> tuple[int | None, str]:
    prefix = _TOWER_PREFIX.match(name)
    plain = name[prefix.end() if prefix else 0 :].removesuffix(".weight")
    match = _BLOCK.search(plain)
    if match is None:
        return None, plain
    stack = "" if match["stack"] == "blk" else match["stack"] + "."
    return int(match["block"]), plain[: match.start("stack")] + stack + plain[match.end() :]


def _type(slot: str) -> OrganType:
    bare = slot.removesuffix(".bias")
    for kind, pattern in _RULES:
        if pattern.search(bare):
            return kind
    return OrganType.OTHER


def _tower(name: str) -> Tower:
    for prefix, tower in _TOWERS:
        if name.startswith(prefix):
            return tower
    return Tower.TEXT


def reading_order(slot: str) -> int:
    """Where people expect `slot` among the others of its type: queries before keys, gate before up before down."""
    return next((place for place, part in enumerate(_READING_ORDER) if part in slot), len(_READING_ORDER))


def is_behind_blocks(slot: str) -> bool:
    """Whether what stands outside the blocks comes after them: the last norm, and the way back to tokens."""
    return slot.startswith(("output", "cls")) or slot.split(".")[0].endswith("output_norm")


_READING_ORDER = (
    *("attn_norm", "attn_qkv", "attn_q_norm", "attn_q", "attn_k_norm", "attn_k", "attn_v", "attn_sinks", "attn_out"),
    *("post_attention_norm", "attn_post_norm", "ffn_norm", "ffn_gate_inp", "ffn_gate", "ffn_up", "ffn_down", "ffn_"),
)
