"""Small models, and helpers that ingest and assemble them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from msgspec import structs
from sqlalchemy import func, select

from organs.ingest.measuring import MeasuredModel
from organs.ingest.service import IngestReport, always, ingest_model
from organs.ingest.sources import find_sources
from organs.registry.assembly import place_file, plan_model
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.tables import Base
from organs.registry.gguf import KeyValue, MemorySource, RawKeyValue, TensorSpec, ValueType, dtype_by_name, read_header
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests.gguf_files import array, file_bytes, text, unsigned

Tensors = list[tuple[TensorSpec, bytes]]


def weight_tensor(name: str, shape: tuple[int, ...], seed: int = 0, dtype: str = "F16") -> tuple[TensorSpec, bytes]:
    """Return a float tensor of Gaussian values that depend on its name and `seed`."""
    kind = {"F16": np.float16, "F32": np.float32, "F64": np.float64}[dtype]
    spec = TensorSpec(name, shape, dtype_by_name(dtype))
    random = np.random.default_rng([seed, *name.encode()])
    return spec, (0.05 * random.standard_normal(spec.elements)).astype(kind).tobytes()


def block_tensors(blocks: int = 2, width: int = 64, seed: int = 0, dtype: str = "F16") -> Tensors:
    """Return the tensors of a small decoder: an embedding, `blocks` blocks of four tensors, and a final norm."""
    tensors = [weight_tensor("token_embd.weight", (width, 96), seed, dtype)]
    for block in range(blocks):
        tensors += [
            weight_tensor(f"blk.{block}.attn_norm.weight", (width,), seed, "F32"),
            weight_tensor(f"blk.{block}.attn_q.weight", (width, width), seed, dtype),
            weight_tensor(f"blk.{block}.ffn_up.weight", (width, 2 * width), seed, dtype),
            weight_tensor(f"blk.{block}.ffn_down.weight", (2 * width, width), seed, dtype),
        ]
    return [*tensors, weight_tensor("output_norm.weight", (width,), seed, "F32")]


def expert_tensors(blocks: int = 3, experts: int = 4, width: int = 64) -> Tensors:
    """Return the tensors of a small mixture of experts with latent attention; its first block is dense."""
    half = width // 2
    tensors = [weight_tensor("token_embd.weight", (width, 96))]
    for block in range(blocks):
        shapes: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (width,),
            "attn_q_a.weight": (width, half),
            "attn_q_a_norm.weight": (half,),
            "attn_q_b.weight": (half, width),
            "attn_kv_a_mqa.weight": (width, half),
            "attn_k_b.weight": (half, half, 2),
            "attn_v_b.weight": (half, half, 2),
            "attn_output.weight": (width, width),
        }
        routed: dict[str, tuple[int, ...]] = {
            "ffn_gate_inp.weight": (width, experts),
            "exp_probs_b.bias": (experts,),
            "ffn_up_exps.weight": (width, half, experts),
            "ffn_down_exps.weight": (half, width, experts),
            "ffn_up_shexp.weight": (width, half),
            "ffn_down_shexp.weight": (half, width),
        }
        dense: dict[str, tuple[int, ...]] = {"ffn_up.weight": (width, width), "ffn_down.weight": (width, width)}
        for name, shape in (shapes | (routed if block else dense)).items():
            tensors.append(weight_tensor(f"blk.{block}.{name}", shape, dtype="F32" if len(shape) == 1 else "F16"))
    return [*tensors, weight_tensor("output_norm.weight", (width,), dtype="F32")]


def block_metadata(name: str = "Little", blocks: int = 2) -> list[KeyValue | RawKeyValue]:
    """Return metadata for `block_tensors`."""
    return [
        text("general.architecture", "llama"),
        text("general.name", name),
        text("general.license", "apache-2.0"),
        unsigned("llama.block_count", blocks),
    ]


def small_model(name: str = "Little", blocks: int = 2, seed: int = 0, more: Iterable[KeyValue] = ()) -> bytes:
    """Return a complete file with `block_tensors`; its header states that number of blocks."""
    return file_bytes([*block_metadata(name, blocks), *more], block_tensors(blocks, seed=seed))


EXPERTS = 8
"""The number of experts of `expert_model`."""


def expert_model(
    name: str = "Mixture",
    blocks: int = 2,
    seed: int = 0,
    changed: Mapping[int, int] | None = None,
    dtype: str = "F16",
    mixed: Mapping[int, float] | None = None,
) -> bytes:
    """Return a complete mixture of experts.

    `changed` has the seeds of experts that have other values, by number; `mixed` has the amount of noise that is mixed
    into experts, over their standard deviation, which stays the same.
    """
    tensors = block_tensors(blocks, seed=seed)
    for block in range(blocks):
        tensors.append(weight_tensor(f"blk.{block}.ffn_gate_inp.weight", (64, EXPERTS), seed, "F32"))
        names = [f"blk.{block}.ffn_{part}_exps.weight" for part in ("gate", "up")]
        tensors += [expert_stack(name, seed, changed, dtype, mixed) for name in names]
    more = [unsigned("llama.expert_count", EXPERTS), unsigned("llama.expert_used_count", 2)]
    return file_bytes([*block_metadata(name, blocks), *more], tensors)


def expert_stack(
    name: str,
    seed: int = 0,
    changed: Mapping[int, int] | None = None,
    dtype: str = "F16",
    mixed: Mapping[int, float] | None = None,
) -> tuple[TensorSpec, bytes]:
    """Return a stack of EXPERTS matrices of 64 × 48 values."""
    seeds = dict.fromkeys(range(EXPERTS), seed) | dict(changed or {})
    parts = [weight_tensor(f"{name}.{number}", (64, 48), seeds[number], dtype)[1] for number in range(EXPERTS)]
    for number, amount in (mixed or {}).items():
        values = np.frombuffer(parts[number], {"F16": np.float16, "F32": np.float32}[dtype])
        noise = np.random.default_rng([seed, number, *name.encode()]).standard_normal(values.size)
        mixture = (values + amount * values.std() * noise) / np.sqrt(1.0 + amount * amount)
        parts[number] = mixture.astype(values.dtype).tobytes()
    return TensorSpec(name, (64, 48, EXPERTS), dtype_by_name(dtype)), b"".join(parts)


def small_shards(stem: str = "m", count: int = 4, seed: int = 0, name: str = "Little") -> dict[str, bytes]:
    """Return the shards of a model by file name: all metadata in the first, and a tensor with NaN in the last."""
    tensors = block_tensors(count, seed=seed)
    broken, _ = weight_tensor("blk.0.ffn_gate.weight", (64, 64), seed)
    tensors.append((broken, b"\xff\x7f" * broken.elements))
    base = [unsigned("general.base_model.count", 1), text("general.base_model.0.name", "Elder")]
    tags = array("general.tags", ValueType.STRING, [b"split", b"small"])
    metadata = [*block_metadata(name, count), *base, tags, token_array([b"token %d" % token for token in range(2000)])]
    share = -(-len(tensors) // count)
    shards = {}
    for number in range(count):
        keys = [
            KeyValue("split.no", ValueType.UINT16, number),
            KeyValue("split.count", ValueType.UINT16, count),
            KeyValue("split.tensors.count", ValueType.INT32, len(tensors)),
        ]
        own = tensors[number * share : (number + 1) * share]
        data = file_bytes([*(metadata if number == 0 else []), *keys], own)
        shards[f"{stem}-{number + 1:05d}-of-{count:05d}.gguf"] = data
    return shards


def token_array(tokens: list[bytes], kind: str = "tokens") -> KeyValue:
    """Return an array of strings of the tokenizer."""
    return array(f"tokenizer.ggml.{kind}", ValueType.STRING, tokens)


def tensors_of(path: Path) -> dict[str, bytes]:
    """Return the bytes of each tensor of a file."""
    source = MemorySource(path.read_bytes())
    header = read_header(source)
    return {
        tensor.name: source.read_at(header.data_offset + tensor.offset, tensor.size_bytes) for tensor in header.tensors
    }


def ingest_file(registry: LocalRegistry, path: Path, name: str | None = None) -> IngestReport:
    """Ingest the one model at `path`; under a name that exists, as its next version."""
    (source,) = find_sources([str(path)])
    return ingest_model(registry, source, None if name is None else parse_model_name(name), new_version=always)


def assemble_model(registry: LocalRegistry, model: str, folder: Path) -> list[Path]:
    """Write the files of `model` into the new folder `folder`, and return them."""
    folder.mkdir(parents=True, exist_ok=True)
    with registry.catalog.reading() as session:
        plans = plan_model(session, model_by_name(session, parse_model_name(model)))
    for plan in plans:
        assert plan.sha256 is not None
        assert place_file(registry.blobs, plan, folder / plan.name) == plan.sha256
    return [folder / plan.name for plan in plans]


def assert_round_trip(registry: LocalRegistry, path: Path, folder: Path) -> IngestReport:
    """Ingest `path`, assemble it into `folder`, compare every byte."""
    report = ingest_file(registry, path)
    (back,) = assemble_model(registry, report.model, folder)
    assert back.name == path.name
    assert back.read_bytes() == path.read_bytes()
    return report


def row_counts(registry: LocalRegistry) -> dict[str, int]:
    """Return the number of rows of each table that is empty in a new registry."""
    with registry.catalog.reading() as session:
        return {
            name: session.scalar(select(func.count()).select_from(table)) or 0
            for name, table in Base.metadata.tables.items()
            if name != "catalog_version"
        }


def content_of(model: MeasuredModel) -> tuple[object, ...]:
    """Return all values of a measured model that do not depend on the places of its files."""
    tensors = [
        (tensor.name, tensor.expert, tensor.dtype, tensor.shape, tensor.size_bytes, tensor.measurement)
        for tensor in (*model.tensors, *model.experts)
    ]
    files = [structs.replace(file, location="") for file in model.files]
    return model.architecture, model.title, model.shard_count, model.set_tensor_count, files, tensors
