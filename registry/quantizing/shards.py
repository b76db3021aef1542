"""A model in many shards on the disk: a variant has other files in the places of some, and shares the rest."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from organs.registry.catalog.queries.blobs import KnownBlob
from organs.registry.compose.ingredients import stored_plain
from organs.registry.compose.parents import Parent, Part
from organs.registry.compose.quantisation import UNWEIGHED
from organs.registry.digest import Digest
from organs.registry.gguf import KeyValue, TensorSpec, ValueType, encode_header, padded
from organs.registry.gguf.split import SPLIT_COUNT_KEY, SPLIT_NUMBER_KEY, SPLIT_TENSORS_KEY, whole_metadata
from organs.registry.gguf.types import DType
from organs.registry.quantizing.rounding import Weights
from organs.registry.store import BlobStore
from organs.registry.transform import Computation, computed

SHARDS_MAX = 600
"""Shards beyond the first: a runtime opens all files at the same time."""


@dataclass(frozen=True)
class ShardedModel:
    """A model in shards: usually one for each matrix, and shard 0 with the metadata and the other organs."""

    model: Parent
    store: BlobStore
    rows: Mapping[Digest, KnownBlob]
    folder: Path
    weights: Mapping[str, Weights] = field(default_factory=dict)
    """The importances by which organs are encoded, by the names of the tensors."""

    @cached_property
    def shards(self) -> list[tuple[Part, ...]]:
        """The organs of each shard but the first."""
        matrices = [part for part in self.model.parts if part.organ.is_matrix]
        step = -(-len(matrices) // SHARDS_MAX)
        return [tuple(matrices[start : start + step]) for start in range(0, len(matrices), max(1, step))]

    def write(self) -> list[Path]:
        """Write the shards of the model itself; return them in order. Raises StoreError, OSError."""
        rest = tuple(part for part in self.model.parts if not part.organ.is_matrix)
        shards = [rest, *self.shards]
        return [self._write(f"source-{number:05d}", number, parts, {}) for number, parts in enumerate(shards)]

    def variant_paths(self, number: int, dtypes: Mapping[str, DType]) -> dict[int, str]:
        """Return the shards of a variant that has organs in other types, by number: their paths."""
        return {
            place: str(self.folder / f"variant-{number:05d}-{place:05d}.gguf")
            for place, parts in enumerate(self.shards, start=1)
            if any(dtypes.get(part.name, part.dtype) != part.dtype for part in parts)
        }

    def write_variant(self, number: int, dtypes: Mapping[str, DType], is_over: threading.Event) -> None:
        """Write the shards of a variant, until `is_over` is set."""
        for place, path in self.variant_paths(number, dtypes).items():
            if is_over.is_set():
                return
            self._write(Path(path).stem, place, self.shards[place - 1], dtypes)

    def remove_variant(self, number: int, dtypes: Mapping[str, DType]) -> None:
        """Remove the shards of a variant."""
        for path in self.variant_paths(number, dtypes).values():
            Path(path).unlink(missing_ok=True)

    def _write(self, name: str, number: int, parts: Sequence[Part], dtypes: Mapping[str, DType]) -> Path:
        alignment = self.model.header.alignment
        specs = [TensorSpec(part.name, part.shape, dtypes.get(part.name, part.dtype)) for part in parts]
        metadata = whole_metadata(self.model.source, self.model.header) if number == 0 else []
        metadata += [
            KeyValue(SPLIT_NUMBER_KEY, ValueType.UINT16, number),
            KeyValue(SPLIT_COUNT_KEY, ValueType.UINT16, len(self.shards) + 1),
            KeyValue(SPLIT_TENSORS_KEY, ValueType.INT32, len(self.model.parts)),
        ]
        unfinished, path = self.folder / f"{name}.part", self.folder / f"{name}.gguf"
        with unfinished.open("wb") as file:
            file.write(encode_header(metadata, specs, alignment))
            for part, spec in zip(parts, specs, strict=True):
                for piece in self._bytes(part, spec.dtype):
                    file.write(piece)
                file.write(b"\0" * (padded(spec.size_bytes, alignment) - spec.size_bytes))
        unfinished.rename(path)  # the child that waits for it sees a whole file
        return path

    def _bytes(self, part: Part, dtype: DType) -> Iterator[bytes]:
        with ExitStack() as opened:
            plain = stored_plain(self.store, part, self.rows, opened)
            if dtype != part.dtype:
                weights = None if dtype.name in UNWEIGHED else self.weights.get(part.name)
                yield from computed(Computation(plain, dtype, importances=weights))
                return
            for offset in range(0, part.size_bytes, COPIED_BYTES):
                yield bytes(plain.read(offset, min(COPIED_BYTES, part.size_bytes - offset)))


COPIED_BYTES = 4 * 1024 * 1024
