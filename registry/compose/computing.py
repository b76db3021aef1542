"""Computations to stored organs: each is computed once, hashed on its way, measured, and put among the blobs."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from threadpoolctl import threadpool_limits

from organs.registry.catalog.queries.blobs import BlobRow
from organs.registry.chimera.plan import naming
from organs.registry.compose.computation import Computation, Ingredient
from organs.registry.digest import Digest
from organs.registry.errors import BadOrgan, MissingBlob
from organs.registry.measure import Measurement, count_nonfinite_in, measure
from organs.registry.store import BlobReader, BlobStore, StoredBlob
from organs.registry.store.codec import codec_for
from organs.registry.store.placing import placing_error
from organs.registry.transform import Adapter, Plain, Purification, PurifyMethod, computed
from organs.registry.transform import Computation as Transformation

SPOOLED_MAX_BYTES = 64 * 1024 * 1024
"""A result up to this size waits for its digest in memory, a larger one in a temporary file."""

PIECE_BYTES = 4 * 1024 * 1024
"""Of a result, that are read at once to count values that are NaN or infinite."""

Rows = Mapping[Digest, BlobRow]


@dataclass(frozen=True, slots=True)
class ComputedOrgan:
    """A computed organ, durable; its row is not written yet."""

    digest: Digest
    size_bytes: int
    blob: StoredBlob
    measurement: Measurement


def compute_organ(store: BlobStore, computation: Computation, rows: Rows) -> ComputedOrgan:
    """Compute an organ from what `rows` has under the digests of its ingredients, and store it.

    Raises BadOrgan naming the tensor, StoreError; then nothing is kept. `rows` also tells which results are there.
    """
    with ExitStack() as opened, threadpool_limits(1, "blas"):
        transformation = _transformation(store, computation, rows, opened)
        spool = opened.enter_context(tempfile.SpooledTemporaryFile(SPOOLED_MAX_BYTES))
        digest, size_bytes = _spooled(spool, computed(transformation), computation.source.name)
        read = _reads(spool)
        nonfinite = count_nonfinite_in(_pieces(spool), computation.dtype)
        measurement = replace(measure(read, computation.source.shape, computation.dtype), nonfinite=nonfinite)
        spool.seek(0)
        blob = store.put_organ(digest, size_bytes, codec_for(computation.dtype.name), spool.read)
    return ComputedOrgan(digest, size_bytes, blob, measurement)


def _transformation(store: BlobStore, computation: Computation, rows: Rows, opened: ExitStack) -> Transformation:
    def plain(one: Ingredient) -> Plain:
        row = rows.get(one.digest)
        if row is None:
            raise MissingBlob(f"{one.name} ({one.digest[:12]}) is missing from the store")
        with naming(one.name, one.digest):
            reader = opened.enter_context(store.open(row))
        return Plain(_buffered(reader, one), one.dtype, one.shape)

    adapters = tuple(Adapter(plain(one.a), plain(one.b), one.alpha, one.scale) for one in computation.additions)
    purification = None
    if computation.method is not None:
        method = PurifyMethod(computation.method)
        purification = Purification(method) if computation.keep is None else Purification(method, computation.keep)
    source = plain(computation.source)
    return Transformation(source, computation.dtype, adapters, computation.is_token_embedding, purification)


def _buffered(reader: BlobReader, one: Ingredient) -> Callable[[int, int], bytes]:
    """Reads of a blob that mostly go forward: the chunk that was decoded last is kept."""
    held: list[tuple[int, bytes]] = []

    def read(offset: int, size: int) -> bytes:
        pieces = []
        for chunk in reader.chunks:
            begin, end = chunk.plain_offset_bytes, chunk.plain_offset_bytes + chunk.plain_size_bytes
            if begin < offset + size and end > offset:
                if not held or held[0][0] != begin:
                    plain = bytearray(chunk.plain_size_bytes)
                    with naming(one.name, one.digest):
                        reader.read_chunk(chunk, memoryview(plain))
                    held[:] = [(begin, bytes(plain))]
                pieces.append(held[0][1][max(0, offset - begin) : offset + size - begin])
        return b"".join(pieces)

    return read


def _spooled(spool: IO[bytes], pieces: Iterator[bytes], name: str) -> tuple[Digest, int]:
    digest, size_bytes = hashlib.sha256(), 0
    try:
        for piece in pieces:
            digest.update(piece)
            spool.write(piece)
            size_bytes += len(piece)
    except BadOrgan as error:
        raise BadOrgan(f"{name}: {error}") from error
    except OSError as error:  # of the temporary file: the store translates its own
        raise placing_error(error, Path(tempfile.gettempdir()) / name) from error
    return Digest(digest.hexdigest()), size_bytes


def _pieces(spool: IO[bytes]) -> Iterator[bytes]:
    spool.seek(0)
    return iter(lambda: spool.read(PIECE_BYTES), b"")


def _reads(spool: IO[bytes]) -> Callable[[int, int], bytes]:
    def read(offset: int, size: int) -> bytes:
        spool.seek(offset)
        return spool.read(size)

    return read
