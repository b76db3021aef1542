"""Small decoders of three architectures, with the tensor names and the layout that llama.cpp reads.

All have RMS norms, rotary positions, grouped queries and a gated feed-forward. Parameters carry their GGUF names.

    llama   rotates neighbouring pairs of values, as llama.cpp does, so that query and key need no permutation; SiLU
    qwen2   rotates halves; query, key and value have a bias; SiLU
    gemma   rotates halves; GELU; embeddings are multiplied by the square root of the width, and always tied
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

NORM_EPSILON = 1e-5
ROPE_BASE = 10_000.0
INITIAL_DEVIATION = 0.02

BLOCK_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
FEED_FORWARD = ("ffn_gate", "ffn_up", "ffn_down")
BIASED = ("attn_q", "attn_k", "attn_v")
"""The matrices that have a bias in qwen2."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of a model; `tied` means that the output reuses the token embedding."""

    width: int
    blocks: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int
    context: int
    tied: bool
    architecture: str = "llama"
    rope_base: float = ROPE_BASE

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return each matrix by its name in a GGUF, without `.weight`, as (values out, values in)."""
        kv_width = self.kv_heads * self.head_width
        inside = {
            "attn_q": (self.width, self.width),
            "attn_k": (kv_width, self.width),
            "attn_v": (kv_width, self.width),
            "attn_output": (self.width, self.width),
            "ffn_gate": (self.feed_forward, self.width),
            "ffn_up": (self.feed_forward, self.width),
            "ffn_down": (self.width, self.feed_forward),
        }
        shapes = {"token_embd": (self.vocabulary, self.width)}
        shapes |= {f"blk.{block}.{slot}": shape for block in range(self.blocks) for slot, shape in inside.items()}
        return shapes if self.tied else shapes | {"output": (self.vocabulary, self.width)}

    def norms(self) -> list[str]:
        inside = [f"blk.{block}.{slot}" for block in range(self.blocks) for slot in ("attn_norm", "ffn_norm")]
        return [*inside, "output_norm"]

    def biases(self) -> dict[str, int]:
        """Return the length of each bias by its name in a GGUF."""
        if self.architecture != "qwen2":
            return {}
        matrices = self.matrices()
        names = (f"blk.{block}.{slot}" for block in range(self.blocks) for slot in BIASED)
        return {f"{name}.bias": matrices[name][0] for name in names}


@dataclass(frozen=True, slots=True)
class Adapter:
    """The form of a LoRA: W' = W + alpha / rank * B @ A, for every matrix of every block."""

    rank: int
    alpha: float


class Network(nn.Module):
    """A model of a `Shape`; with an `Adapter`, its own weights are frozen and only the adapter learns."""

    def __init__(self, shape: Shape, seed: int, adapter: Adapter | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.adapter = adapter
        generator = torch.Generator().manual_seed(seed)
        self.weights = nn.ParameterDict()
        for name, (rows, columns) in shape.matrices().items():
            # The two that write into the residual stream start smaller, as in GPT-2: their sum keeps its variance.
            narrow = math.sqrt(2 * shape.blocks) if name.endswith(("attn_output", "ffn_down")) else 1.0
            values = torch.randn(rows, columns, generator=generator) * (INITIAL_DEVIATION / narrow)
            self.weights[_key(name)] = nn.Parameter(values, requires_grad=adapter is None)
        for name in shape.norms():
            self.weights[_key(name)] = nn.Parameter(torch.ones(shape.width), requires_grad=adapter is None)
        for name, length in shape.biases().items():
            self.weights[_key(name)] = nn.Parameter(torch.zeros(length), requires_grad=adapter is None)
        if adapter is not None:
            self._add_adapter(adapter, generator)
        self.rotation = _rotation(shape)

    def _add_adapter(self, adapter: Adapter, generator: torch.Generator) -> None:
        for name, (rows, columns) in self.shape.matrices().items():
            if name.startswith("blk."):
                first = torch.randn(adapter.rank, columns, generator=generator) / math.sqrt(columns)
                self.weights[_key(name) + "|lora_a"] = nn.Parameter(first)
                self.weights[_key(name) + "|lora_b"] = nn.Parameter(torch.zeros(rows, adapter.rank))

    def tensors(self) -> dict[str, Tensor]:
        """Return every parameter by its GGUF name without `.weight` (`NAME.bias`, adapters `NAME.lora_a`), detached."""
        return {key.replace("|", "."): parameter.detach() for key, parameter in self.weights.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Copy the values of `tensors()` of another network; parameters that are not in it keep theirs."""
        with torch.no_grad():
            for name, values in tensors.items():
                self.weights[_key(name)].copy_(values)

    def freeze_except(self, parts: tuple[str, ...]) -> None:
        """Let only those parameters learn whose names have one of `parts` in them, of those that learn."""
        for key, parameter in self.weights.items():
            learns = any(_key(part) in key for part in parts)
            parameter.requires_grad_(parameter.requires_grad and learns)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores (batch, length, vocabulary) of the token after each of `tokens` (batch, length)."""
        embedding = self.weights[_key("token_embd")]
        state = functional.embedding(tokens, embedding)
        if self.shape.architecture == "gemma":
            state = state * math.sqrt(self.shape.width)
        for block in range(self.shape.blocks):
            state = state + self._attention(self._norm(state, f"blk.{block}.attn_norm"), block)
            state = state + self._feed_forward(self._norm(state, f"blk.{block}.ffn_norm"), block)
        state = self._norm(state, "output_norm")
        return functional.linear(state, embedding if self.shape.tied else self.weights["output"])

    def _norm(self, state: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(state.float().pow(2).mean(-1, keepdim=True) + NORM_EPSILON)
        normed: Tensor = state * scale * self.weights[_key(name)]
        return normed

    def _linear(self, state: Tensor, name: str) -> Tensor:
        key = _key(name)
        bias_key = key + "|bias"
        result = functional.linear(
            state,
            self.weights[key],
            self.weights.get(bias_key),
        )
        if self.adapter is not None:
            inner = functional.linear(state, self.weights[key + "|lora_a"])
            scale = self.adapter.alpha / self.adapter.rank
            result = result + scale * functional.linear(inner, self.weights[key + "|lora_b"])
        return result

    def _attention(self, state: Tensor, block: int) -> Tensor:
        batch, length, _ = state.shape
        shape = self.shape

        def heads(slot: str, count: int) -> Tensor:
            values = self._linear(state, f"blk.{block}.{slot}").float()
            return values.view(batch, length, count, shape.head_width).transpose(1, 2)

        query = self._rotate(heads("attn_q", shape.heads))
        groups = shape.heads // shape.kv_heads
        key = self._rotate(heads("attn_k", shape.kv_heads)).repeat_interleave(groups, dim=1)
        value = heads("attn_v", shape.kv_heads).repeat_interleave(groups, dim=1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self._linear(mixed.transpose(1, 2).reshape(batch, length, shape.width), f"blk.{block}.attn_output")

    def _rotate(self, heads: Tensor) -> Tensor:
        cosine, sine = self.rotation[:, : heads.shape[2]]
        if self.shape.architecture != "llama":
            first, second = heads.chunk(2, dim=-1)
            return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)
        even, odd = heads[..., 0::2], heads[..., 1::2]
        return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1).flatten(-2)

    def _feed_forward(self, state: Tensor, block: int) -> Tensor:
        gate = self._linear(state, f"blk.{block}.ffn_gate")
        gate = (
            functional.gelu(gate, approximate="tanh") if self.shape.architecture == "gemma" else functional.silu(gate)
        )
        return self._linear(gate * self._linear(state, f"blk.{block}.ffn_up"), f"blk.{block}.ffn_down")


def _key(name: str) -> str:
    """Return the key of a name: a ParameterDict allows no dots in its keys."""
    return name.replace(".", "|")


def _rotation(shape: Shape) -> Tensor:
    """Return cosine and sine (2, context, head width / 2) of the angles position * base ** (-2 pair / head width)."""
    pairs = torch.arange(0, shape.head_width, 2, dtype=torch.float64)
    angles = torch.outer(
        torch.arange(shape.context, dtype=torch.float64), shape.rope_base ** (-pairs / shape.head_width)
    )
    return torch.stack((angles.cos(), angles.sin())).float()
