"""An organ as a NumPy file: a header and the values as little-endian float32, made chunk by chunk.

The format is NPY 1.0 as `numpy.lib.format` describes it. NumPy writes the slowest-varying dimension first, so the shape
is the organ's turned round.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from organs.registry.catalog.queries.blobs import BlobRow
from organs.registry.chimera.plan import FilePlan, PlannedSlice
from organs.registry.chimera.stream import FileStream
from organs.registry.errors import UnsupportedDType
from organs.registry.gguf import DType
from organs.registry.gguf.quants import can_dequantize, dequantize
from organs.registry.store import BlobStore

VALUE_BYTES = 4
PIECE_ELEMENTS = 1 << 18
"""Values that are made at once: a chunk of 1-bit weights is twenty times as large as float32."""

_MAGIC = b"\x93NUMPY\x01\x00"
_ALIGNMENT = 64
"""Where the values begin is a multiple of this, so that the file can be mapped into memory."""


@dataclass(frozen=True, slots=True)
class NpyPlan:
    """A NumPy file to be: `head`, then the values of the organ that `blob` holds."""

    name: str
    """What it is, for errors."""
    head: bytes
    blob: BlobRow
    dtype: DType
    elements: int

    @property
    def size_bytes(self) -> int:
        return len(self.head) + VALUE_BYTES * self.elements


def plan_npy(name: str, blob: BlobRow, dtype: DType, shape: tuple[int, ...]) -> NpyPlan:
    """The NumPy file of an organ of `dtype` and `shape` (row length first); raises UnsupportedDType."""
    if not can_dequantize(dtype):
        raise UnsupportedDType(f"no kernel reads the values of {dtype.name}: take the organ as .raw or .bin")
    elements = blob.size_bytes // dtype.block_bytes * dtype.block_elements
    return NpyPlan(name, npy_head(shape), blob, dtype, elements)


def npy_head(shape: tuple[int, ...]) -> bytes:
    """What stands before the values of an organ of `shape`, row length first."""
    turned = ", ".join(str(length) for length in reversed(shape))
    shown = f"({turned},)" if len(shape) == 1 else f"({turned})"
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shown}, }}"
    front = len(_MAGIC) + 2
    padding = -(front + len(text) + 1) % _ALIGNMENT
    line = (text + " " * padding + "\n").encode("ascii")
    return _MAGIC + struct.pack("<H", len(line)) + line


class NpyStream:
    """Iterates over the bytes of `plan` from `begin_bytes` to `end_bytes`; only the blocks of these are decoded.

    A context manager; a view is valid until the next is asked for. Raises what FileStream raises.
    """

    def __init__(
        self, store: BlobStore, plan: NpyPlan, begin_bytes: int, end_bytes: int, pool: ThreadPoolExecutor | None = None
    ) -> None:
        assert 0 <= begin_bytes <= end_bytes <= plan.size_bytes
        self._dtype = plan.dtype
        self._head = plan.head[begin_bytes:end_bytes]
        begin = max(0, begin_bytes - len(plan.head))
        end = max(0, end_bytes - len(plan.head))
        block_values_bytes = VALUE_BYTES * plan.dtype.block_elements
        first = begin // block_values_bytes
        last = max(first, -(-end // block_values_bytes))
        self._skipped = begin - first * block_values_bytes
        self._wanted = end - begin
        size = (last - first) * plan.dtype.block_bytes
        slices = (PlannedSlice(0, size, plan.blob, first * plan.dtype.block_bytes, plan.name),) if size else ()
        self._stream = FileStream(store, FilePlan(plan.name, size, None, b"", slices), workers=1, pool=pool)

    @property
    def faults(self) -> list[BlobRow]:
        return self._stream.faults

    def __enter__(self) -> NpyStream:
        self._stream.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.__exit__()

    def __iter__(self) -> Iterator[memoryview]:
        if self._head:
            yield memoryview(self._head)
        skipped, left = self._skipped, self._wanted
        for blocks in _whole_blocks(self._stream, self._dtype):
            values: NDArray[np.float32] = dequantize(blocks, self._dtype).astype("<f4", copy=False)
            view = values.data.cast("B")[skipped:][:left]
            yield view
            left -= len(view)
            skipped = 0


def _whole_blocks(views: Iterable[memoryview], dtype: DType) -> Iterator[memoryview]:
    """The same bytes in pieces of whole blocks: bytes that also stand as another type were stored in its chunks."""
    piece_bytes = max(1, PIECE_ELEMENTS // dtype.block_elements) * dtype.block_bytes
    rest = b""
    for view in views:
        if rest:
            missing = dtype.block_bytes - len(rest)
            rest += bytes(view[:missing])
            if len(rest) < dtype.block_bytes:
                continue
            yield memoryview(rest)
            view = view[missing:]
        whole = len(view) - len(view) % dtype.block_bytes
        for begin in range(0, whole, piece_bytes):
            yield view[begin : min(begin + piece_bytes, whole)]
        rest = bytes(view[whole:])
    assert not rest
