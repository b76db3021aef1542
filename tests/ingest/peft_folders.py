"""Small bases and PEFT folders, written with numpy: the formats of `peft` without the library."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from organs.registry.gguf import MemorySource, TensorSpec, read_header
from tests.gguf_files import file_bytes, text, unsigned
from tests.small_models import Tensors, block_metadata, weight_tensor

WIDTH, INNER, VOCABULARY, BLOCKS = 32, 48, 96, 2
HEADS, KV_HEADS = 4, 2
RANK, ALPHA = 4, 8
SHAPES = {
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (WIDTH // 2, WIDTH),
    "self_attn.v_proj": (WIDTH // 2, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (INNER, WIDTH),
    "mlp.up_proj": (INNER, WIDTH),
    "mlp.down_proj": (WIDTH, INNER),
}
"""Shapes (rows, columns) of the matrices of a block by module."""
SLOTS = dict(zip(SHAPES, ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"), strict=True))
MODULES = {
    f"model.layers.{block}.{module}": (f"blk.{block}.{SLOTS[module]}.weight", shape)
    for block in range(BLOCKS)
    for module, shape in SHAPES.items()
}
"""The tensor of a GGUF file, and the shape, for each module of a block."""
PREFIX = "base_model.model."
CONFIG: Mapping[str, Any] = {
    "peft_type": "LORA",
    "base_model_name_or_path": "acme/Little-Base",
    "r": RANK,
    "lora_alpha": ALPHA,
    "bias": "none",
    "target_modules": [module.rpartition(".")[2] for module in SHAPES],
    "use_rslora": False,
    "use_dora": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "init_lora_weights": True,
    "task_type": "CAUSAL_LM",
    "fan_in_fan_out": False,
}
Matrix = NDArray[Any]


def base_config(model_type: str = "llama", **more: object) -> dict[str, object]:
    """Return the `config.json` of the base."""
    return {
        "model_type": model_type,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": BLOCKS,
        "vocab_size": VOCABULARY,
    } | more


def base_file(name: str = "Little Base", heads: int = HEADS, *, tied: bool = False) -> bytes:
    """Return the base as a GGUF file, with matrices in float32."""
    tensors: Tensors = [weight_tensor("token_embd.weight", (WIDTH, VOCABULARY), dtype="F32")]
    tensors += [weight_tensor(own, shape[::-1], dtype="F32") for own, shape in MODULES.values()]
    tensors += [] if tied else [weight_tensor("output.weight", (WIDTH, VOCABULARY), dtype="F32")]
    counts = [unsigned("llama.attention.head_count", heads), unsigned("llama.attention.head_count_kv", KV_HEADS)]
    return file_bytes([*block_metadata(name, BLOCKS), text("general.type", "model"), *counts], tensors)


def factors(modules: Iterable[str], rank: int = RANK) -> dict[str, Matrix]:
    """Return random factors of `modules` as PEFT names them."""
    random = np.random.default_rng(len(list(modules)) if isinstance(modules, Sequence) else 0)
    weights = {}
    for module in modules:
        rows, columns = MODULES[module][1]
        weights[f"{PREFIX}{module}.lora_A.weight"] = random.standard_normal((rank, columns)).astype(np.float32)
        weights[f"{PREFIX}{module}.lora_B.weight"] = random.standard_normal((rows, rank)).astype(np.float32)
    return weights


def safetensors_bytes(weights: Mapping[str, Matrix], dtypes: Mapping[str, str] | None = None) -> bytes:
    """Return a safetensors file. `dtypes` names types that numpy does not have, such as BF16 for uint16."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, values in weights.items():
        dtype = (dtypes or {}).get(name) or {"float32": "F32", "float16": "F16", "int64": "I64"}[values.dtype.name]
        end = offset + values.nbytes
        entries[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + b"".join(values.tobytes() for values in weights.values())


def write_folder(
    folder: Path,
    weights: Mapping[str, Matrix] | None = None,
    base: Mapping[str, object] | None = None,
    dtypes: Mapping[str, str] | None = None,
    **config: object,
) -> Path:
    """Write a PEFT folder, by default for all modules; with the `config.json` of its `base` if there is one."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    data = safetensors_bytes(factors(list(MODULES)) if weights is None else weights, dtypes)
    (folder / "adapter_model.safetensors").write_bytes(data)
    if base is not None:
        (folder / "config.json").write_text(json.dumps(base))
    return folder


def read_tensors(data: bytes) -> dict[str, Matrix]:
    """Return the matrices of a GGUF file by name, rows first."""
    header = read_header(MemorySource(data))
    return {tensor.name: _values(data, header.data_offset + tensor.offset, tensor) for tensor in header.tensors}


def _values(data: bytes, offset: int, spec: TensorSpec) -> Matrix:
    stored = {"F32": np.float32, "F16": np.float16}[spec.dtype.name]
    return np.frombuffer(data, stored, spec.elements, offset).reshape(spec.shape[::-1])


def in_file_order(rows: Matrix, heads: int) -> Matrix:
    """Return the rows of a matrix for queries or keys in the order of llama's GGUF files, one by one."""
    width = len(rows) // heads
    ordered = np.empty_like(rows)
    for head in range(heads):
        for pair in range(width // 2):
            ordered[head * width + 2 * pair] = rows[head * width + pair]
            ordered[head * width + 2 * pair + 1] = rows[head * width + width // 2 + pair]
    return ordered


def expected_change(module: str, weights: Mapping[str, Matrix], scale: float = ALPHA / RANK) -> Matrix:
    """Return what PEFT adds to the matrix of `module`, in the order of llama's GGUF files."""
    first, second = (weights[f"{PREFIX}{module}.lora_{half}.weight"].astype(np.float64) for half in "AB")
    change = scale * (second @ first)
    heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(module.rpartition(".")[2])
    return change if heads is None else in_file_order(change, heads)


def change_in(tensors: Mapping[str, Matrix], target: str, alpha: float) -> Matrix:
    """Return what llama.cpp adds to the tensor `target`."""
    first, second = (tensors[f"{target}.lora_{half}"].astype(np.float64) for half in "ab")
    return alpha / second.shape[1] * (second @ first)


def root_scale(alpha: float, rank: int) -> float:
    """Return the scale of rank-stabilised adapters."""
    return alpha / math.sqrt(rank)
