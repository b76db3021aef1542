"""Small models of known kinship, and the relations that a registry records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
from sqlalchemy import select

from organs.registry.catalog.tables import Lineage, ModelRow
from organs.registry.gguf import KeyValue, TensorSpec, dtype_by_name
from organs.registry.gguf.quants import quantize
from organs.registry.local import LocalRegistry
from organs.registry.upkeep import all_blobs
from tests.gguf_files import file_bytes, text, unsigned
from tests.llama_quants import quantised
from tests.small_models import Tensors, block_metadata, block_tensors, ingest_file

FAMILY = {
    "base": (0, "BF16"),
    "tuned": (1, "BF16"),
    "half": (0, "F16"),
    "coarse": (0, "Q8_0"),
    "coarsest": (0, "Q4_K"),
    "tuned-coarse": (1, "Q8_0"),
}
"""Models by name: the number of the fine-tune, 0 for the base, and the tensor type of the matrices."""
LATER = {"retuned": (2, "BF16"), "retuned-coarse": (2, "Q8_0")}
"""More models of the same family."""


def related_tensors(
    seed: int = 0, correlation: float = 1.0, other_seed: int = 1, dtype: str = "F16", blocks: int = 2
) -> Tensors:
    """Return the tensors of `block_tensors`, correlated by `alike` with those of `seed`; the rest is those of `other`.

    Norms stay the same where nothing has changed, and change slightly elsewhere.
    """
    own, strange = (block_tensors(blocks, seed=number, dtype="F32") for number in (seed, other_seed))
    tensors = []
    for (spec, first), (_, second) in zip(own, strange, strict=True):
        values = correlation * np.frombuffer(first, np.float32) + np.sqrt(1 - correlation**2) * np.frombuffer(
            second, np.float32
        )
        kind = dtype_by_name(dtype if len(spec.shape) > 1 else "F32")
        tensors.append((TensorSpec(spec.name, spec.shape, kind), quantize(values.astype(np.float32), kind)))
    return tensors


def model_file(name: str, tensors: Tensors, more: Iterable[KeyValue] = ()) -> bytes:
    """Return a file of `tensors` with `name` as its title."""
    return file_bytes([*block_metadata(name), *more], tensors)


def family_files(names: Iterable[str] = FAMILY, seed: int = 0, blocks: int = 1) -> dict[str, bytes]:
    """Return files of a base, of a fine-tune in which few values are changed, and of both in other tensor types.

    Ingested in this order, they have references of both kinds and up to two in a row, in files and in rows.
    """
    return {name: _family_file(name, *(FAMILY | LATER)[name], seed, blocks) for name in names}


@cache
def _family_file(name: str, tune: int, dtype: str, seed: int, blocks: int) -> bytes:
    tensors = []
    for spec, data in block_tensors(blocks, 256, seed, "F32"):
        kind = dtype_by_name(dtype if len(spec.shape) > 1 else "F32")
        values = np.frombuffer(data, np.float32).reshape(spec.shape[::-1]).copy()
        if tune and len(spec.shape) > 1:
            random = np.random.default_rng([tune, seed, *spec.name.encode()])
            values *= np.where(random.random(values.shape) < 0.02, 1 + tune / 50, 1).astype(np.float32)
        rounded = quantised(values, dtype_by_name("BF16")).view("<u2").astype(np.uint32) << 16
        exact = rounded.view(np.float32).reshape(values.shape)
        tensors.append((TensorSpec(spec.name, spec.shape, kind), quantised(exact, kind).tobytes()))
    return file_bytes([*block_metadata(name, blocks), unsigned("general.seed", seed)], tensors)


def blob_forms(registry: LocalRegistry) -> Counter[tuple[str, int, bool]]:
    """Return the number of blobs by encoding, references to one that is stored alone, and whether they have a file."""
    forms: Counter[tuple[str, int, bool]] = Counter()
    for row in all_blobs(registry.catalog):
        kind = "derive" if "-from-" in row.codec else "delta" if row.parent is not None else "alone"
        forms[kind, row.depth, row.file is not None] += not row.parts
    return forms


def parent_entries(*names: str, **more: str) -> list[KeyValue]:
    """Return metadata that declares parents of these names; `more` applies to the first of them."""
    entries = [unsigned("general.base_model.count", max(len(names), 1))]
    entries += [text(f"general.base_model.{number}.name", name) for number, name in enumerate(names)]
    return entries + [text(f"general.base_model.0.{key}", value) for key, value in more.items()]


def ingest_bytes(registry: LocalRegistry, folder: Path, name: str, data: bytes) -> str:
    """Ingest `data` as `name`; return the registered name."""
    path = folder / f"{name}.gguf"
    path.write_bytes(data)
    return ingest_file(registry, path).model


def ingest_all(registry: LocalRegistry, folder: Path, **models: bytes | Tensors) -> None:
    """Ingest models in order, by name: complete files, or the tensors of a model with its name as title."""
    for name, model in models.items():
        ingest_bytes(registry, folder, name, model if isinstance(model, bytes) else model_file(name.title(), model))


def measured_pairs(registry: LocalRegistry) -> dict[frozenset[str], tuple[str, float]]:
    """Return the relation and score of each pair of model names with a measured relation."""
    pairs: dict[frozenset[str], tuple[str, float]] = {}
    for child, parent, edge in _edges(registry, "measured"):
        assert parent is not None
        assert edge.score is not None
        assert frozenset((child, parent)) not in pairs, "a pair has one edge"
        pairs[frozenset((child, parent))] = (edge.relation, edge.score)
    return pairs


def declared_pairs(registry: LocalRegistry) -> set[tuple[str, str | None, str]]:
    """Return child, parent (None if it is not registered) and relation of every declared edge."""
    return {(child, parent, edge.relation) for child, parent, edge in _edges(registry, "declared")}


def _edges(registry: LocalRegistry, evidence: str) -> list[tuple[str, str | None, Lineage]]:
    with registry.catalog.reading() as session:
        names: dict[int | None, str] = {model.id: model.name for model in session.scalars(select(ModelRow))}
        statement = select(Lineage).where(Lineage.child_model_id.is_not(None), Lineage.evidence == evidence)
        edges = session.scalars(statement.order_by(Lineage.id)).all()
        session.expunge_all()
    return [(names[edge.child_model_id], names.get(edge.parent_model_id), edge) for edge in edges]
