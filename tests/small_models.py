"""Small models, and helpers that ingest and assemble them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from sqlalchemy import func, select

from organs.ingest.service import IngestReport, always, ingest_model
from organs.ingest.sources import find_sources
from organs.registry.assembly import place_file, plan_model
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.catalog.tables import Base
from organs.registry.gguf import KeyValue, RawKeyValue, TensorSpec, ValueType, dtype_by_name
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
    """Return the number of rows of each table."""
    with registry.catalog.reading() as session:
        return {
            name: session.scalar(select(func.count()).select_from(table)) or 0
            for name, table in Base.metadata.tables.items()
        }
