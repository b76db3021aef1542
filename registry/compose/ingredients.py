"""The ingredients of a planned computation: stored organs that are opened and read by range."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from organs.registry.assembly import naming
from organs.registry.catalog.queries.blobs import KnownBlob
from organs.registry.compose.parents import Part
from organs.registry.compose.plan import Addition, PlannedComputation, PlannedImportances
from organs.registry.digest import Digest
from organs.registry.errors import BadOrgan, MissingBlob
from organs.registry.gguf.importance import LARGEST, mean_squares
from organs.registry.store import BlobStore
from organs.registry.transform import Adapter, Blending, Computation, Operand, Plain, Purification, PurifyMethod, Whole

Rows = Mapping[Digest, KnownBlob]


def _with_experts(stack: Plain, grafts: Sequence[tuple[Plain, Collection[int]]]) -> Plain:
    """Return `stack` with experts of other stacks of the same shape and dtype, at the same numbers."""
    if not grafts:
        return stack
    size_bytes = stack.size_bytes // stack.shape[-1]
    readers = [stack.read] * stack.shape[-1]
    for other, numbers in grafts:
        for number in numbers:
            readers[number] = other.read

    def read(offset: int, size: int) -> bytes:
        pieces = []
        while size:
            number, within = divmod(offset, size_bytes)
            step = min(size, size_bytes - within)
            pieces.append(bytes(readers[number](offset, step)))
            offset, size = offset + step, size - step
        return b"".join(pieces)

    return Plain(read, stack.dtype, stack.shape)


def stored_plain(store: BlobStore, part: Part, rows: Rows, opened: ExitStack) -> Plain:
    """Return the bytes of a stored tensor, to be read in order until `opened` closes. Raises StoreError."""
    row = rows.get(part.digest)
    if row is None:
        raise MissingBlob(f"{part.name} ({part.digest[:12]}) is missing from the store")
    with naming(part.name, part.digest):
        reader = opened.enter_context(store.open(row))
    cached: list[tuple[int, bytes]] = []  # the chunk that was decoded last, because reads are in order

    def read(offset: int, size: int) -> bytes:
        pieces = []
        for chunk in reader.chunks:
            begin, end = chunk.plain_offset_bytes, chunk.plain_offset_bytes + chunk.plain_size_bytes
            if begin < offset + size and end > offset:
                if not cached or cached[0][0] != begin:
                    decoded = bytearray(chunk.plain_size_bytes)
                    with naming(part.name, part.digest):
                        reader.read_chunk(chunk, memoryview(decoded))
                    cached[:] = [(begin, bytes(decoded))]
                pieces.append(cached[0][1][max(0, offset - begin) : offset + size - begin])
        return b"".join(pieces)

    return Plain(read, part.dtype, part.shape)


ReadPart = Callable[[Part], Plain]
"""Returns the bytes of a tensor, to be read in order."""


def transformation_of(computation: PlannedComputation, plain: ReadPart) -> Computation:
    """Return the computation with the bytes of its ingredients. Raises the errors of `plain`."""

    def adapter(addition: Addition) -> Adapter | Whole:
        if addition.b is None:
            return Whole(plain(addition.a), addition.scale)
        magnitude = None if addition.magnitude is None else plain(addition.magnitude)
        return Adapter(plain(addition.a), plain(addition.b), addition.alpha, addition.scale, magnitude)

    blend = None
    if computation.blend is not None:
        donors = [
            Operand(plain(item.part), adapter(item.addition) if item.addition else None)
            for item in computation.blend.parts
        ]
        blend = Blending(computation.blend.method, tuple(donors), computation.blend.settings, computation.blend.key)
    adapters = tuple(map(adapter, computation.additions))
    purification = None
    if computation.method is not None:
        method = PurifyMethod(computation.method)
        purification = Purification(method) if computation.keep is None else Purification(method, computation.keep)
    grafts = [(plain(graft.after), graft.experts) for graft in computation.grafted]
    source = _with_experts(plain(computation.source), grafts)
    return Computation(
        *(source, computation.dtype, adapters, computation.is_token_embedding, purification, blend),
        kept_experts=computation.kept_experts,
        importances=None if computation.importances is None else read_weights(computation.importances, plain),
    )


def read_weights(planned: PlannedImportances, plain: ReadPart) -> NDArray[np.float32]:
    """Return the importances of all columns. Raises BadOrgan for numbers that encoders cannot use."""
    sums, counts = (np.frombuffer(item.read(0, item.size_bytes), "<f4") for item in map(plain, planned.parts))
    found = mean_squares(sums.reshape(counts.size, -1), counts)
    if not found.any():
        raise BadOrgan(f"all importances in {planned.sums.name} are 0")
    if not ((found >= 0) & (found <= LARGEST)).all():  # False for NaN
        raise BadOrgan(f"importances in {planned.sums.name} are negative, or larger than {LARGEST:g}")
    return found
