"""Anatomy: the place of a tensor in a model, read from its name: type, tower, block and slot.

This is the only module that parses tensor names. Names follow the GGUF conventions of the `gguf` package. A name that
matches no rule has the type `other`; no name is an error.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TypeAlias


class OrganType(StrEnum):
    """The part of a model that a tensor belongs to."""

    SKELETON = "skeleton"
    """Attention and other layers that mix tokens."""
    ORGAN = "organ"
    """Feed-forward layers, experts and their router. The text for people is *feed-forward*."""
    EMBED = "embed"
    """Embeddings of tokens and positions, and the output matrix."""
    NORM = "norm"
    ADAPTER = "adapter"
    """A factor or the magnitudes of a low-rank adapter (LoRA, DoRA)."""
    OTHER = "other"


_TYPE_NAMES: dict[str, str] = {
    OrganType.SKELETON: "attention",
    OrganType.ORGAN: "feed-forward",
    OrganType.EMBED: "embedding",
}


def type_name(kind: str) -> str:
    """Return the name of a type of organs for people: `feed-forward` for `organ`, which queries and recipes use."""
    return _TYPE_NAMES.get(kind, kind)


class Component(StrEnum):
    """A finer division than `OrganType`, for mixtures of experts and other architectures. In the order of reading."""

    EMBEDDINGS = "embeddings"
    ATTENTION = "attention"
    """Attention without the other components below; also the output matrix of latent attention."""
    LATENT_ATTENTION = "latent attention"
    """The projections of multi-head latent attention (MLA)."""
    CROSS_ATTENTION = "cross attention"
    INDEXER = "indexer"
    """The small attention that chooses tokens for sparse attention."""
    STATE_SPACE = "state space"
    TIME_MIXING = "time mixing"
    CONVOLUTION = "convolution"
    DENSE = "dense feed-forward"
    ROUTED_EXPERTS = "routed experts"
    SHARED_EXPERTS = "shared experts"
    ROUTER = "router"
    NORMS = "norms"
    ADAPTERS = "adapters"
    OTHER = "other"


class Tower(StrEnum):
    """A stack of blocks. Models with several stacks number the blocks of each from 0."""

    TEXT = "text"
    ENCODER = "encoder"
    DECODER = "decoder"
    VISION = "vision"
    AUDIO = "audio"


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a tensor in its model. Different names of the conventions always have different places.

    `slot` is the name without the prefix of its tower, `blk.N.` and `.weight`. If the stack of blocks has another name,
    the slot contains it: `v.sam.blk.3.pre_ln.weight` has the slot `sam.pre_ln`. `block` is None outside of the blocks.
    """

    type: OrganType
    tower: Tower
    block: int | None
    slot: str

    @property
    def key(self) -> Slot:
        """Tower, block and slot, as the catalog has them."""
        return self.tower.value, self.block, self.slot


TOKEN_EMBEDDING = Place(OrganType.EMBED, Tower.TEXT, None, "token_embd")
"""The place of the token embedding, which every text model has."""
OUTPUT_MATRIX = Place(OrganType.EMBED, Tower.TEXT, None, "output")
"""The place of the output matrix. Models with tied embeddings have none: they use the token embedding."""

Slot: TypeAlias = tuple[str, int | None, str]
"""Tower, block and slot of an organ."""
Group: TypeAlias = tuple[str, int, str]
"""Tower, block and name of a group of organs that only work together."""

EXAMPLE_SLOTS = ("ffn_up", "ffn_down")
"""Slots for examples in help texts."""

LORA_SUFFIXES = (".lora_a", ".lora_b")
"""The endings of the two factors of an adapter for a tensor."""
MAGNITUDE_SUFFIX = ".lora_magnitude"
"""The ending of the magnitudes of a DoRA, one for each row of the tensor."""


@dataclass(frozen=True, slots=True)
class Companion:
    """A kind of tensor that belongs to a weight and is named after it: `ffn_up.scale` belongs to `ffn_up`."""

    suffix: str
    is_factor: bool = False
    """Whether the weight is stored divided by it, so that neither has a meaning without the other."""

    @property
    def is_scale(self) -> bool:
        """Whether it belongs to the type of the weight, which can differ between blocks."""
        return self.suffix.endswith("scale")


COMPANIONS = (Companion(".scale", is_factor=True), Companion(".input_scale"), Companion(".bias"))
"""The companions of a weight. Runtimes multiply the result of the weight by `.scale` (NVFP4, BitNet), divide the
activations by `.input_scale` before they round them, and add `.bias`."""

BLOCK_DIGITS_MAX = 9

# The pattern is tried once at each dot, so the time for a hostile name is proportional to its length.
_BLOCK = re.compile(rf"(?:^|\.)(?P<stack>[a-z_]*blk|convnext|posnet)\.(?P<block>[0-9]{{1,{BLOCK_DIGITS_MAX}}})\.(?!\Z)")

# The first matching prefix decides.
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

# The part of a slot that names its stack, in models with several stacks of blocks.
_STACK = re.compile(r"([a-z_]+blk|convnext|posnet|sam)\.")

# For each type with groups: the special groups that a block may have, and the name of the usual group.
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

DENSE_SLOTS: tuple[tuple[str, ...], ...] = (
    ("attn_norm",),
    ("attn_q", "attn_qkv"),
    ("attn_output",),
    ("ffn_norm",),
    ("ffn_down", "ffn_down_exps"),
    ("ffn_up", "ffn_up_exps", "ffn_gate_up_exps"),
)
"""The slots that every block of a usual decoder has, each with those that can stand in its place."""
DENSE_SHAPES: Mapping[str, tuple[str | None, ...]] = {
    **dict.fromkeys(("attn_norm", "ffn_norm", "output_norm"), ("width",)),
    **dict.fromkeys(("token_embd", "output"), ("width", None)),
    "attn_q": ("width", "queries"),
    "attn_k": ("width", "keys"),
    "attn_v": ("width", "values"),
    "attn_output": ("results", "width"),
    **dict.fromkeys(("ffn_up", "ffn_gate"), ("width", "inner")),
    "ffn_down": ("inner", "width"),
}
"""The dimensions of tensors of such a decoder, row length first; None for one that the header does not state."""

# Names of the diffusion models of ComfyUI and stable-diffusion.cpp, which follow no convention of GGUF.
_IMAGE = re.compile(
    r"^(model\.diffusion_model|first_stage_model|cond_stage_model|text_encoders|(double|single|joint|transformer)_blocks)\."
    r"|(^|\.)(adaln|x_embedder|img_in|patch_embedding)",
)
# The sums of an importance matrix have the name of their weight before these endings.
_IMPORTANCE = re.compile(r"\.(in_sum2|counts)$")

_STACKS = ("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps")
EXPERT_DIMENSIONS: Mapping[str, int] = {
    **dict.fromkeys(_STACKS, 2),
    **{f"{slot}.bias": 1 for slot in _STACKS},
    **{f"{slot}{factor}": 0 for slot in _STACKS for factor in (".scale", ".input_scale")},
    "ffn_gate_inp": 1,
    **dict.fromkeys(("ffn_gate_inp.bias", "exp_probs_b", "exp_probs_b.bias"), 0),
}
"""The slots whose last dimension has an item for each expert, with the number of that dimension, from 0.

They are the stacks, their companions, the router (a row for each expert), and the biases by which it selects.
`ffn_gate_inp.scale` (Gemma 4) has an item for each channel, and is not among them."""
SALIENT_STACK = "ffn_down_exps"
"""The stack whose inputs are the hidden units of each expert. Those of the other stacks are the same for all experts
that a token uses."""
_OTHER_EXPERTS = re.compile(r"_chexps(\.|$)|^ffn_(gate|up|down)\.\d|tid2eid")
"""Chunk experts (shared by several experts), experts in tensors of their own, and tables of experts by token."""
# Weights of attention and feed-forward that are no linear layers: kernels, decays, mixing vectors, position biases.
_UNMULTIPLIED = re.compile(
    r"conv|^ssm_[ad]$|^time_mix_(?!(key|value|receptance|gate|output)$)|rope_|rot_embd|rel_b$|pos_|sinks|exp_probs_b"
    r"|^per_dim|\.(scale|input_scale|bias)$"
)

# The words of llama.cpp, which are anywhere in a name or at its end.
_PRECISE = re.compile(
    r"_norm$|ffn_gate_inp$|ffn_gate_tid2eid$|altup|laurel|per_layer_model_proj|(^|\.)position_embd|^token_types$"
    r"|ssm_conv1d|shortconv\.conv$|indexer\.[kq]_proj$|time_mix_(first|[wva][012]|g[12]|decay_w[12]|lerp_fused)$"
    r"|attn_rel_b$|sam\.(pos_embd|neck\.|net_)|(^|\.)(rel_pos|patch_embd|patch_merger)|rvq\.codebook|a\.code_embd"
)

_EXPERT_STACK = re.compile(r"ffn_[a-z_]+_(exps|chexps)")
_EXPERT_NAME = re.compile(r"(?P<stack>.+)\[(?P<number>[0-9]{1,9})\]", re.DOTALL)

# The first rule that matches the slot decides. Norms come first: `attn_norm` is a norm.
_RULES: tuple[tuple[OrganType, re.Pattern[str]], ...] = (
    # Includes the learned scales of whole layers and channels.
    (
        OrganType.NORM,
        re.compile(
            r"norm|(^|[._])ln(_|\d|\.|$)|\.bn$|(^|\.)(gamma|ls[12])$|^(layer_)?out(put)?_scale$|^std_(bias|scale)$"
        ),
    ),
    # Includes the stems that turn pixels and sound into vectors, and linear maps between vector spaces.
    (
        OrganType.EMBED,
        re.compile(
            r"(token|position|pos|patch|class)_embd|token_types|embed_tokens|embedding$|shared_head_head|^output($|\.)"
            r"|embd_to_logits|^enc_ctc_out|altup_(unembd_)?proj$|per_layer_model_proj|img_break|^[be]oi$"
            r"|image_(newline|begin|end)|view_seperator|^conv[12]d|^conv_(out|stem)|^pre_encode"
            r"|input_projection|resampler\.proj|^proj_linear"
        ),
    ),
    # Includes the layers of multi-modal projectors, and the gate that mixes in per-layer embeddings.
    (
        OrganType.ORGAN,
        re.compile(
            r"(^|[._])ffn([._]|$)|channel_mix_|exp_probs_b|mlp|vis_(gate|up|down)|^(inp_gate|proj)$|convnext\.pw"
            r"|^mm\.(up|down|gate|\d+)$|^mm\.(model|a)\.fc|deepstack\.\d+\.fc"
        ),
    ),
    # Includes convolutions that mix neighbours.
    (
        OrganType.SKELETON,
        re.compile(
            r"attn|ssm_|time_mix_|rope_f|shortconv|indexer|conv_(dw|pw\d)|convnext\.dw|posnet\.conv|linear_pos|pos_bias"
            r"|per_dim_(k_)?scale|resampler\.(kv|query)|proj_query|patch_merger|\.peg\.|^sam\.(neck|net)"
        ),
    ),
)

# For each type: the special components that a slot can have, and the usual component. The first match decides.
_COMPONENTS: dict[OrganType, tuple[tuple[tuple[Component, re.Pattern[str]], ...], Component]] = {
    OrganType.SKELETON: (
        (
            (Component.LATENT_ATTENTION, re.compile(r"^attn_(q_a|q_b|kv_a_mqa|kv_b|k_b|v_b)(\.|$)")),
            (Component.CROSS_ATTENTION, re.compile(r"(^|\.)cross_attn")),
            (Component.INDEXER, re.compile(r"^indexer\.")),
            (Component.STATE_SPACE, re.compile(r"^ssm_")),
            (Component.TIME_MIXING, re.compile(r"^time_mix_")),
            (Component.CONVOLUTION, re.compile(r"conv")),
        ),
        Component.ATTENTION,
    ),
    OrganType.ORGAN: (
        (
            (Component.SHARED_EXPERTS, re.compile(r"_shexp")),
            (Component.ROUTER, re.compile(r"^ffn_gate_inp|^exp_probs_b")),
            (Component.ROUTED_EXPERTS, re.compile(r"_(ch)?exps|^ffn_(gate|up|down)\.\d+|^ffn_latent_")),
        ),
        Component.DENSE,
    ),
    OrganType.EMBED: ((), Component.EMBEDDINGS),
    OrganType.NORM: ((), Component.NORMS),
    OrganType.ADAPTER: ((), Component.ADAPTERS),
    OrganType.OTHER: ((), Component.OTHER),
}


@lru_cache(maxsize=4096)
def place_of(name: str) -> Place:
    """Return the place of the tensor `name`. No text is an error. An ingest asks for each place nine times."""
    base = adapted_tensor(name)
    plain = name if base is None else base
    tower = next((tower for prefix, tower in _TOWERS if plain.startswith(prefix)), Tower.TEXT)
    block, slot = _block_and_slot(plain)
    if base is not None:
        return Place(OrganType.ADAPTER, tower, block, slot + name[len(base) :])
    bare, kind = _without_companion(slot), OrganType.OTHER
    if not _IMPORTANCE.search(slot):
        kind = next((kind for kind, pattern in _RULES if pattern.search(bare)), kind)
    return Place(kind, tower, block, slot)


def adapted_tensor(name: str) -> str | None:
    """Return the name of the tensor that the adapter tensor `name` changes; None for other tensors."""
    for suffix in (*LORA_SUFFIXES, MAGNITUDE_SUFFIX):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return None


def companion_slot(slot: Slot, companion: Companion) -> Slot:
    """Return the place of a companion of the weight in `slot`."""
    tower, block, name = slot
    return tower, block, name + companion.suffix


def weight_slot(slot: Slot, companion: Companion) -> Slot | None:
    """Return the place of the weight whose companion would be in `slot`; None if `slot` has another ending."""
    tower, block, name = slot
    return (tower, block, name.removesuffix(companion.suffix)) if name.endswith(companion.suffix) else None


def is_factor(slot: Slot, slots: Container[Slot]) -> bool:
    """Return whether the tensor in `slot` is a factor of a weight that is in `slots`, such as `ffn_up.scale`."""
    return any(weight_slot(slot, companion) in slots for companion in COMPANIONS if companion.is_factor)


def in_block(name: str, block: int) -> str:
    """Return the name of the tensor that has another block's number, and else the name `name`."""
    match = _BLOCK.search(name)
    return name if match is None else f"{name[: match.start('block')]}{block}{name[match.end('block') :]}"


def component_of(kind: OrganType, slot: str) -> Component:
    """Return the component of an organ of type `kind` in `slot`. A bias is in the component of its weight."""
    special, usual = _COMPONENTS[kind]
    return next((component for component, pattern in special if pattern.search(slot)), usual)


def group_of(place: Place) -> Group | None:
    """Return the group of `place`: gate, up and down; a router and its experts; the matrices of one attention.

    Companions are in the group of their weight. None for organs that work alone: norms, embeddings, and all organs
    outside of the blocks.
    """
    if place.block is None or place.type not in _GROUPS:
        return None
    stack = _STACK.match(place.slot)
    slot = _without_companion(place.slot[stack.end() if stack else 0 :])
    special, usual = _GROUPS[place.type]
    name = next((name for name, pattern in special if pattern.search(slot)), usual)
    return place.tower.value, place.block, (stack.group() if stack else "") + name


def is_image_tensor(name: str) -> bool:
    """Return whether only models for images, video and sound have tensors with this name, or with its beginning."""
    return _IMAGE.search(name) is not None


def is_expert_stack(place: Place) -> bool:
    """Return whether the weights at `place` are a stack of routed experts, one matrix for each expert."""
    return place.type is OrganType.ORGAN and _EXPERT_STACK.fullmatch(place.slot) is not None


def is_tied_to_experts(place: Place) -> bool:
    """Return whether the tensor at `place` depends on the number of experts in another way than EXPERT_DIMENSIONS."""
    return _OTHER_EXPERTS.search(place.slot) is not None


def is_multiplied(place: Place) -> bool:
    """Return whether the organ at `place` is a linear layer of a block, to which runtimes add a LoRA."""
    return place.type in (OrganType.SKELETON, OrganType.ORGAN) and _UNMULTIPLIED.search(place.slot) is None


class WeightRole(StrEnum):
    """What a matrix does, as far as the mixes of tensor types of llama.cpp tell matrices apart."""

    EMBEDDING = "token embedding"
    OUTPUT = "output matrix"
    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    """Also a matrix that makes the values together with queries and keys."""
    ATTENTION_OUTPUT = "attention output"
    UP = "up"
    GATE = "gate"
    DOWN = "down"
    OTHER = "other"


def role_of(place: Place) -> WeightRole:
    """Return the role of the matrix at `place`, that of the first pattern of `_ROLES` that its slot has."""
    if place == OUTPUT_MATRIX:
        return WeightRole.OUTPUT
    if place.tower is Tower.TEXT and place.block is None and place.slot in ("token_embd", "per_layer_token_embd"):
        return WeightRole.EMBEDDING
    return next((role for role, pattern in _ROLES if pattern.search(place.slot)), WeightRole.OTHER)


def can_be_quantised(name: str) -> bool:
    """Return whether llama.cpp writes the matrix `name` in other types when it quantises a model.

    It leaves out norms, routers, tables of positions and of token types, and small matrices of some architectures.
    """
    return name.endswith("weight") and _PRECISE.search(place_of(name).slot) is None


def expert_name(stack: str, number: int) -> str:
    """Return the name for one expert of the tensor `stack`: `blk.3.ffn_up_exps.weight[17]`."""
    return f"{stack}[{number}]"


def parse_expert_name(name: str) -> tuple[str, int] | None:
    """Return the stack and the number in a name of `expert_name`; None for other names."""
    match = _EXPERT_NAME.fullmatch(name)
    return None if match is None else (match["stack"], int(match["number"]))


def parse_block(text: str) -> int | None:
    """Return the block that a number such as `3` or the beginning of a name such as `blk.3` names; None for others."""
    number = text.removeprefix("blk.")
    return int(number) if number.isascii() and number.isdigit() and len(number) <= BLOCK_DIGITS_MAX else None


def _block_and_slot(name: str) -> tuple[int | None, str]:
    prefix = _TOWER_PREFIX.match(name)
    plain = name[prefix.end() if prefix else 0 :].removesuffix(".weight")
    match = _BLOCK.search(plain)
    if match is None:
        return None, plain
    stack = "" if match["stack"] == "blk" else match["stack"] + "."
    return int(match["block"]), plain[: match.start("stack")] + stack + plain[match.end() :]


def _without_companion(slot: str) -> str:
    for companion in COMPANIONS:
        if slot.endswith(companion.suffix):
            return slot.removesuffix(companion.suffix)
    return slot


def reading_order(slot: str) -> int:
    """Return the rank of `slot` in lists of its type: queries before keys, gate before up before down."""
    return next((rank for rank, part in enumerate(_READING_ORDER) if part in slot), len(_READING_ORDER))


def is_after_blocks(slot: str) -> bool:
    """Return whether an organ outside of the blocks comes after them: the last norm and the output matrix."""
    return slot.startswith(("output", "cls")) or slot.split(".")[0].endswith("output_norm")


def is_shared_by_blocks(slot: str) -> bool:
    """Return whether only the first block of a stack has `slot`, and the others use its values: relative positions."""
    return slot in ("attn_rel_b", "cross_attn_rel_b")


def is_beside_attention(slot: str, kind: str) -> bool:
    """Return whether an organ of a block is drawn with attention, not with feed-forward."""
    if kind in (OrganType.SKELETON, OrganType.ORGAN):
        return kind == OrganType.SKELETON
    return slot.startswith(("attn", "post_attention", "ssm", "time_mix"))


_ROLES = (
    (WeightRole.VALUE, re.compile(r"attn_(qkv|kv_b|v)$")),
    (WeightRole.KEY, re.compile(r"attn_k$")),
    (WeightRole.QUERY, re.compile(r"attn_q$")),
    (WeightRole.ATTENTION_OUTPUT, re.compile(r"attn_output$")),
    (WeightRole.UP, re.compile("ffn_up")),
    (WeightRole.GATE, re.compile("ffn_gate")),
    (WeightRole.DOWN, re.compile("ffn_down")),
)

_READING_ORDER = (
    *("attn_norm", "attn_qkv", "attn_q_norm", "attn_q", "attn_k_norm", "attn_k", "attn_v", "attn_sinks", "attn_out"),
    *("post_attention_norm", "attn_post_norm", "ffn_norm", "ffn_gate_inp", "ffn_gate", "ffn_up", "ffn_down", "ffn_"),
)


LLAMA_NAMES: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output": "lm_head",
    "output_norm": "model.norm",
    "attn_norm": "model.layers.{}.input_layernorm",
    "ffn_norm": "model.layers.{}.post_attention_layernorm",
    "attn_q": "model.layers.{}.self_attn.q_proj",
    "attn_k": "model.layers.{}.self_attn.k_proj",
    "attn_v": "model.layers.{}.self_attn.v_proj",
    "attn_output": "model.layers.{}.self_attn.o_proj",
    "attn_q_norm": "model.layers.{}.self_attn.q_norm",
    "attn_k_norm": "model.layers.{}.self_attn.k_norm",
    "ffn_gate": "model.layers.{}.mlp.gate_proj",
    "ffn_up": "model.layers.{}.mlp.up_proj",
    "ffn_down": "model.layers.{}.mlp.down_proj",
    "ffn_gate_inp": "model.layers.{}.mlp.gate",
    "ffn_gate_exps": "model.layers.{}.mlp.experts.{}.gate_proj",
    "ffn_up_exps": "model.layers.{}.mlp.experts.{}.up_proj",
    "ffn_down_exps": "model.layers.{}.mlp.experts.{}.down_proj",
}
"""The names of tensors in the Llama models of the Hugging Face tools, by slot, without `.weight`; {} is a block."""
LLAMA_BIASES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
"""The slots of them that may have a bias."""
