"""Generate files with the shapes and the statistics of real models. Benchmarks download nothing.

Weights are Gaussian. The scale differs by tensor and, log-normally, by row: the exponents of trained weights spread a
little more than those of one Gaussian. Norms are near one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from organs.registry.gguf import KeyValue, TensorSpec, ValueType, dtype_by_name, encode_header, padded

PIECE_ELEMENTS = 1 << 22


@dataclass(frozen=True, slots=True)
class Architecture:
    """The sizes that determine the shapes."""

    blocks: int
    width: int
    heads_width: int
    key_value_width: int
    feed_forward: int
    vocabulary: int
    head: int


SMALL = Architecture(28, 1024, 2048, 1024, 3072, 151_936, 128)
"""About 0.6 billion parameters in 310 tensors: 1.19 GB in BF16."""

MEDIUM = Architecture(28, 2048, 2048, 1024, 6144, 151_936, 128)
"""About 1.7 billion parameters in 310 tensors: 3.44 GB in BF16."""


def specs(shape: Architecture, dtype: str = "BF16") -> list[TensorSpec]:
    """Return the tensors of a decoder with grouped queries, query and key norms and tied embeddings."""
    weight, norm = dtype_by_name(dtype), dtype_by_name("F32")
    tensors = [
        TensorSpec("token_embd.weight", (shape.width, shape.vocabulary), weight),
        TensorSpec("output_norm.weight", (shape.width,), norm),
    ]
    for block in range(shape.blocks):
        matrices = {
            "attn_q": (shape.width, shape.heads_width),
            "attn_k": (shape.width, shape.key_value_width),
            "attn_v": (shape.width, shape.key_value_width),
            "attn_output": (shape.heads_width, shape.width),
            "ffn_gate": (shape.width, shape.feed_forward),
            "ffn_up": (shape.width, shape.feed_forward),
            "ffn_down": (shape.feed_forward, shape.width),
        }
        norms = {
            "attn_norm": shape.width,
            "ffn_norm": shape.width,
            "attn_q_norm": shape.head,
            "attn_k_norm": shape.head,
        }
        tensors += [TensorSpec(f"blk.{block}.{name}.weight", size, weight) for name, size in matrices.items()]
        tensors += [TensorSpec(f"blk.{block}.{name}.weight", (size,), norm) for name, size in norms.items()]
    return tensors


def write_model(path: Path, shape: Architecture = SMALL, seed: int = 0) -> int:
    """Write a BF16 model of `shape` to `path`; return its size in bytes."""
    tensors = specs(shape)
    metadata = [
        KeyValue("general.architecture", ValueType.STRING, "qwen3"),
        KeyValue("general.name", ValueType.STRING, f"Generated {seed}"),
        KeyValue("qwen3.block_count", ValueType.UINT32, shape.blocks),
    ]
    size = 0
    with path.open("wb") as stream:
        size += stream.write(encode_header(metadata, tensors))
        for index, tensor in enumerate(tensors):
            for piece in weights(tensor, np.random.default_rng([seed, index])):
                size += stream.write(piece.data)
            size += stream.write(bytes(padded(tensor.size_bytes, 32) - tensor.size_bytes))
    return size


def weights(tensor: TensorSpec, random: np.random.Generator) -> Iterator[NDArray[np.generic]]:
    """Yield the values of `tensor` in pieces, in the stored form (BF16 or F32)."""
    if len(tensor.shape) == 1:
        yield (1 + 0.1 * random.standard_normal(tensor.elements, dtype=np.float32)).astype(np.float32)
        return
    row = tensor.shape[0]
    scale = 0.02 * 2 ** random.uniform(-1, 1)
    rows_left = tensor.elements // row
    while rows_left:
        rows = min(rows_left, max(1, PIECE_ELEMENTS // row))
        values = random.standard_normal((rows, row), dtype=np.float32)
        values *= (scale * np.exp(0.25 * random.standard_normal((rows, 1)))).astype(np.float32)
        yield to_bf16(values)
        rows_left -= rows


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest, ties to even, as converters do."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
