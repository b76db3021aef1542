"""Generate files with the shapes and the statistics of real models. Benchmarks download nothing.

Weights are Gaussian. The scale differs by tensor and, log-normally, by row: the exponents of trained weights spread a
little more than those of one Gaussian. Norms are near one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from organs.registry.gguf import (
    KeyValue,
    TensorSpec,
    ValueType,
    carry_over,
    dtype_by_name,
    encode_header,
    padded,
    read_header,
    write_file,
)
from organs.registry.gguf.quants import dequantize, quantize
from organs.registry.input_files import FileSource

PIECE_ELEMENTS = 1 << 22
OUTPUT_DEVIATION = 3.3
"""Of the logits of a generated decoder."""
Tensors = list[tuple[TensorSpec, bytes]]


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

LARGE = Architecture(28, 1536, 2048, 1024, 5632, 151_936, 128)
"""About 1.2 billion parameters in 310 tensors: 2.45 GB in BF16."""

TINY = Architecture(30, 576, 576, 192, 1536, 49_152, 64)
"""The shapes of SmolLM2-135M: 0.27 GB in F16."""

FINE_TUNED = 0.01
"""The change of the weights of a fine-tune, relative to their deviation: 1e-4 of their energy."""


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


def write_model(path: Path, shape: Architecture = SMALL, seed: int = 0, dtype: str = "BF16") -> int:
    """Write a model of `shape` in BF16 or F16 to `path`; return its size in bytes."""
    tensors = specs(shape, dtype)
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


def write_relative(base: Path, path: Path, dtype: str | None = None, seed: int = 1) -> None:
    """Write a fine-tune of the model `base`; with `dtype`, such as "Q8_0", the same weights in this tensor type."""
    random = np.random.default_rng(seed)
    with FileSource(base) as source, path.open("wb") as stream:
        header = read_header(source)
        tensors = [
            TensorSpec(
                tensor.name, tensor.shape, dtype_by_name(dtype) if dtype and len(tensor.shape) > 1 else tensor.dtype
            )
            for tensor in header.tensors
        ]
        stream.write(encode_header([carry_over(source, field) for field in header.fields], tensors))
        for tensor, spec in zip(header.tensors, tensors, strict=True):
            begin, step = header.data_offset + tensor.offset, tensor.dtype.size_bytes(PIECE_ELEMENTS)
            for offset in range(0, tensor.size_bytes, step):
                data = source.read_at(begin + offset, min(step, tensor.size_bytes - offset))
                if len(tensor.shape) > 1:
                    values = dequantize(data, tensor.dtype)
                    if dtype is None:
                        noise = random.standard_normal(values.size, dtype=np.float32)
                        values = values + np.float32(FINE_TUNED * float(values.std())) * noise
                    data = quantize(values, spec.dtype)
                stream.write(data)
            stream.write(bytes(padded(spec.size_bytes, 32) - spec.size_bytes))


def weights(tensor: TensorSpec, random: np.random.Generator) -> Iterator[NDArray[np.generic]]:
    """Yield the values of `tensor` in pieces, in the stored form (BF16, F16 or F32)."""
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
        yield to_bf16(values) if tensor.dtype.name == "BF16" else values.astype(np.float16)
        rows_left -= rows


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest, ties to even, as converters do."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@dataclass(frozen=True, slots=True)
class Mixture:
    """The sizes of a mixture of experts with latent attention, as in DeepSeek-V3."""

    blocks: int = 3
    """The first has a dense feed-forward, the others have experts."""
    width: int = 64
    experts: int = 384
    used: int = 8
    """The experts that a token uses, without the shared one."""
    units: int = 32
    """The hidden units of an expert."""
    unused: int = 128
    """Experts of each block that the router never selects, at random places: the bias of the others is larger by 2,
    and the gates are from 0 to 1."""
    groups: int = 1
    groups_used: int = 1
    heads: int = 2
    rank: int = 32
    """Of the latent vectors of queries, and of keys and values."""
    head: int = 16
    """The values of a head, without those for positions, which are as many."""
    architecture: str = "deepseek2"

    def unused_in(self, block: int, seed: int = 0) -> list[int]:
        """Return the experts of a block that are never selected, in rising order; as many in each group."""
        size, random = self.experts // self.groups, np.random.default_rng([seed, block])
        chosen = [
            group * size + number
            for group in range(self.groups)
            for number in random.permutation(size)[: self.unused // self.groups].tolist()
        ]
        return sorted(chosen)


MIXTURE = Mixture()
"""15 MB in F16: its experts are the smallest that the registry stores one by one."""


def mixture_tensors(shape: Mixture = MIXTURE, seed: int = 0, dtype: str = "F16", vocabulary: int = 2048) -> Tensors:
    """Return the tensors of a mixture with Gaussian weights."""
    width, rank, head, heads = shape.width, shape.rank, shape.head, shape.heads
    tensors: Tensors = [
        _weights("token_embd.weight", (width, vocabulary), seed, dtype, 1.0),
        _weights("output.weight", (width, vocabulary), seed, dtype, 0.3),
    ]
    for block in range(shape.blocks):
        matrices: dict[str, tuple[int, ...]] = {
            "attn_q_a": (width, rank),
            "attn_q_b": (rank, 2 * head * heads),
            "attn_kv_a_mqa": (width, rank + head),
            "attn_k_b": (head, rank, heads),
            "attn_v_b": (rank, head, heads),
            "attn_output": (head * heads, width),
        }
        norms = {"attn_norm": width, "attn_q_a_norm": rank, "attn_kv_a_norm": rank, "ffn_norm": width}
        if block:
            stack = (width, shape.units, shape.experts)
            matrices |= {"ffn_gate_exps": stack, "ffn_up_exps": stack}
            matrices |= {"ffn_down_exps": (shape.units, width, shape.experts)}
            matrices |= {"ffn_gate_shexp": stack[:2], "ffn_up_shexp": stack[:2], "ffn_down_shexp": stack[1::-1]}
            router = _weights(f"blk.{block}.ffn_gate_inp.weight", (width, shape.experts), seed, "F32", width**-0.5)
            bias = np.zeros(shape.experts, np.float32)
            bias[shape.unused_in(block, seed)] = -2.0
            spec = TensorSpec(f"blk.{block}.exp_probs_b.bias", (shape.experts,), dtype_by_name("F32"))
            tensors += [router, (spec, bias.tobytes())]
        else:
            matrices |= {"ffn_gate": (width, 2 * width), "ffn_up": (width, 2 * width), "ffn_down": (2 * width, width)}
        for name, size in matrices.items():
            tensors.append(_weights(f"blk.{block}.{name}.weight", size, seed, dtype, size[0] ** -0.5))
        tensors += [_ones(f"blk.{block}.{name}.weight", size) for name, size in norms.items()]
    return [*tensors, _ones("output_norm.weight", width)]


def mixture_metadata(shape: Mixture = MIXTURE, name: str = "Mixture") -> list[KeyValue]:
    """Return the metadata of a mixture, without a vocabulary."""
    whole = {
        "block_count": shape.blocks,
        "context_length": 512,
        "embedding_length": shape.width,
        "feed_forward_length": 2 * shape.width,
        "leading_dense_block_count": 1,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": shape.rank,
        "attention.kv_lora_rank": shape.rank,
        "attention.key_length": shape.rank + shape.head,
        "attention.value_length": shape.rank,
        "attention.key_length_mla": 2 * shape.head,
        "attention.value_length_mla": shape.head,
        "rope.dimension_count": shape.head,
        "expert_count": shape.experts,
        "expert_used_count": shape.used,
        "expert_shared_count": 1,
        "expert_feed_forward_length": shape.units,
        "expert_gating_func": 2,
    }
    whole |= {"expert_group_count": shape.groups, "expert_group_used_count": shape.groups_used}
    fractions = {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 10_000.0, "expert_weights_scale": 2.5}
    prefix = f"{shape.architecture}."
    return [
        KeyValue("general.architecture", ValueType.STRING, shape.architecture),
        KeyValue("general.name", ValueType.STRING, name),
        *(KeyValue(prefix + key, ValueType.UINT32, value) for key, value in whole.items()),
        *(KeyValue(prefix + key, ValueType.FLOAT32, value) for key, value in fractions.items()),
        KeyValue(f"{prefix}expert_weights_norm", ValueType.BOOL, True),
    ]


def write_mixture(path: Path, vocabulary_of: Path, shape: Mixture = MIXTURE, seed: int = 0) -> None:
    """Write a mixture of experts with the vocabulary of another model, which llama.cpp can run."""
    with FileSource(vocabulary_of) as source:
        header = read_header(source)
        entries = [carry_over(source, field) for field in header.fields if field.key.startswith("tokenizer.")]
        size = next(tensor.shape[1] for tensor in header.tensors if tensor.name == "token_embd.weight")
    with path.open("wb") as stream:
        metadata = [*mixture_metadata(shape, path.stem), *entries]
        write_file(stream, metadata, mixture_tensors(shape, seed, vocabulary=size))


def write_decoder(path: Path, vocabulary_of: Path, shape: Architecture, architecture: str, seed: int = 0) -> None:
    """Write a `qwen2` or a `llama` in F16 that llama.cpp can run, with the vocabulary of another model.

    Weights are Gaussian, so of full rank, and unequal as trained ones are: the channels of the residual stream differ
    log-normally, and one of 128 is six times as large; the matrices that write into the stream have rows of these
    scales, those that read it columns of the inverse root. Rows and the units of the feed-forward differ, and the
    blocks by how much they add: the first twice as much. Attention has logits of a deviation of about 1, the output of
    OUTPUT_DEVIATION, so the entropy of the next token is ln of the vocabulary less half of its square (a sum of
    log-normal values). The vocabulary of `shape` does not count.
    """
    with FileSource(vocabulary_of) as source:
        header = read_header(source)
        entries = [carry_over(source, field) for field in header.fields if field.key.startswith("tokenizer.")]
        size = next(tensor.shape[1] for tensor in header.tensors if tensor.name == "token_embd.weight")
    makers = list(_decoder_tensors(replace(shape, vocabulary=size), architecture, seed))
    with path.open("wb") as stream:
        stream.write(
            encode_header([*_decoder_metadata(shape, architecture, path.stem), *entries], [m[0] for m in makers])
        )
        for spec, values in makers:
            data = values().astype(np.float32 if len(spec.shape) == 1 else np.float16).tobytes()
            stream.write(data.ljust(padded(len(data), 32), b"\0"))


def _decoder_metadata(shape: Architecture, architecture: str, name: str) -> list[KeyValue]:
    heads = {"head_count": shape.heads_width // shape.head, "head_count_kv": shape.key_value_width // shape.head}
    whole = {
        "context_length": 2048,
        "embedding_length": shape.width,
        "block_count": shape.blocks,
        "feed_forward_length": shape.feed_forward,
        **{f"attention.{key}": value for key, value in heads.items()},
    }
    fractions = {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 10_000.0}
    return [
        KeyValue("general.architecture", ValueType.STRING, architecture),
        KeyValue("general.name", ValueType.STRING, name),
        KeyValue("general.file_type", ValueType.UINT32, 1),
        *(KeyValue(f"{architecture}.{key}", ValueType.UINT32, value) for key, value in whole.items()),
        *(KeyValue(f"{architecture}.{key}", ValueType.FLOAT32, value) for key, value in fractions.items()),
    ]


def _decoder_tensors(
    shape: Architecture, architecture: str, seed: int
) -> Iterator[tuple[TensorSpec, Callable[[], NDArray[np.float32]]]]:
    """Yield each tensor with the function that makes its values, rows first."""
    scales = np.random.default_rng([seed, 0])
    width, hidden = shape.width, shape.feed_forward

    def unequal(count: int, deviation: float) -> NDArray[np.float32]:
        values = np.exp(deviation * scales.standard_normal(count))
        return (values / np.sqrt(np.mean(values**2))).astype(np.float32)

    channels = np.exp(0.4 * scales.standard_normal(width))
    channels[scales.permutation(width)[: max(1, width // 128)]] *= 6.0
    channels = (channels / np.sqrt(np.mean(channels**2))).astype(np.float32)
    reading = (channels**-0.5 / np.sqrt(np.mean(channels))).astype(np.float32)  # of a stream of these scales

    def matrix(
        name: str, rows: NDArray[np.float32], columns: NDArray[np.float32], deviation: float
    ) -> tuple[TensorSpec, Callable[[], NDArray[np.float32]]]:
        def values() -> NDArray[np.float32]:
            random = np.random.default_rng([seed, *name.encode()])
            drawn = random.standard_normal((len(rows), len(columns)), dtype=np.float32)
            drawn *= (deviation / np.sqrt(len(columns)) * rows)[:, None].astype(np.float32)
            drawn *= columns
            return drawn

        return TensorSpec(f"{name}.weight", (len(columns), len(rows)), dtype_by_name("F16")), values

    def vector(name: str, values: NDArray[np.float32]) -> tuple[TensorSpec, Callable[[], NDArray[np.float32]]]:
        return TensorSpec(name, values.shape, dtype_by_name("F32")), lambda: values

    vocabulary = unequal(shape.vocabulary, 0.1)
    yield matrix("token_embd", vocabulary, channels, float(np.sqrt(width)))
    yield vector("output_norm.weight", unequal(width, 0.2))
    yield matrix("output", vocabulary, reading, OUTPUT_DEVIATION)
    for block in range(shape.blocks):
        prefix, added = f"blk.{block}", (2.0 if block == 0 else 1.0) * (2 * shape.blocks) ** -0.5
        heads, values, units = (
            unequal(shape.heads_width, 0.2),
            unequal(shape.key_value_width, 0.2),
            unequal(hidden, 0.4),
        )
        yield vector(f"{prefix}.attn_norm.weight", unequal(width, 0.2))
        yield vector(f"{prefix}.ffn_norm.weight", unequal(width, 0.2))
        yield matrix(f"{prefix}.attn_q", heads, reading, 1.0)
        yield matrix(f"{prefix}.attn_k", unequal(shape.key_value_width, 0.2), reading, 1.0)
        yield matrix(f"{prefix}.attn_v", values, reading, 1.0)
        yield matrix(f"{prefix}.attn_output", channels, unequal(shape.heads_width, 0.2), 0.7 * added)
        yield matrix(f"{prefix}.ffn_gate", units, reading, 1.5)
        yield matrix(f"{prefix}.ffn_up", units, reading, 1.0)
        yield matrix(f"{prefix}.ffn_down", channels, unequal(hidden, 0.2), 0.7 * added)
        if architecture == "qwen2":
            lengths = {"attn_q": shape.heads_width, "attn_k": shape.key_value_width, "attn_v": shape.key_value_width}
            for slot, length in lengths.items():
                yield vector(f"{prefix}.{slot}.bias", 0.3 * unequal(length, 0.5))


def _weights(name: str, shape: tuple[int, ...], seed: int, dtype: str, deviation: float) -> tuple[TensorSpec, bytes]:
    kind = {"F16": np.float16, "F32": np.float32}[dtype]
    spec = TensorSpec(name, shape, dtype_by_name(dtype))
    random = np.random.default_rng([seed, *name.encode()])
    return spec, (deviation * random.standard_normal(spec.elements)).astype(kind).tobytes()


def _ones(name: str, size: int) -> tuple[TensorSpec, bytes]:
    return TensorSpec(name, (size,), dtype_by_name("F32")), np.ones(size, np.float32).tobytes()
