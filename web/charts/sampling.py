"""The values of a sample out of a stored blob: only the chunks that they lie in are decoded, each once.

A large organ has its sample in every chunk. Then as many chunks as a page may take time for are looked at.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from organs.registry.gguf import DType
from organs.registry.gguf.quants import can_dequantize
from organs.registry.measure.sample import Run, read_values, sample_runs, spread
from organs.registry.store import BlobReader
from organs.registry.store.codec import StoredChunk

CHUNKS_MAX = 32
"""128 MiB of plain bytes, a tenth of a second to decode. Larger organs are seen through some of their sample."""


def sampled_values(reader: BlobReader, dtype: DType, elements: int) -> NDArray[np.floating]:
    """The values of the organ's sample, or of the part of it in 32 chunks; raises CorruptBlob, UnsupportedDType."""
    source = _Chunks(reader)
    runs = [run for run in sample_runs(elements) if _is_near(run, dtype, source)]
    values: NDArray[np.floating] = read_values(source.read, runs, dtype)
    return values


def can_be_sampled(dtype: DType) -> bool:
    """Whether the values of `dtype` can be read here."""
    return can_dequantize(dtype)


class _Chunks:
    """Plain bytes by offset, the last decoded chunk kept: runs come in rising order."""

    def __init__(self, reader: BlobReader) -> None:
        self._reader = reader
        self._chunks = reader.chunks
        self._buffer = memoryview(bytearray(min(reader.head.codec.chunk_bytes, reader.size_bytes)))
        self._decoded: StoredChunk | None = None
        self.chosen = {self._chunks[place].plain_offset_bytes for place in spread(len(self._chunks), CHUNKS_MAX)}

    def read(self, offset: int, size: int) -> bytes:
        """`size` plain bytes from `offset`."""
        parts = []
        for chunk in self.overlapping(offset, size):
            if chunk is not self._decoded:
                self._decoded = None
                self._reader.read_chunk(chunk, self._buffer[: chunk.plain_size_bytes])
                self._decoded = chunk
            begin = chunk.plain_offset_bytes
            parts.append(
                bytes(self._buffer[max(0, offset - begin) : min(offset + size - begin, chunk.plain_size_bytes)])
            )
        return b"".join(parts)

    def overlapping(self, offset: int, size: int) -> list[StoredChunk]:
        """The chunks that these bytes lie in; all but the last are of one size."""
        if not size:
            return []
        first, last = (place // self._chunks[0].plain_size_bytes for place in (offset, offset + size - 1))
        return list(self._chunks[first : last + 1])


def _is_near(run: Run, dtype: DType, source: _Chunks) -> bool:
    start, count = (number // dtype.block_elements * dtype.block_bytes for number in run)
    return all(chunk.plain_offset_bytes in source.chosen for chunk in source.overlapping(start, count))
