"""The choice of values of a tensor: a pure function of its shape, independent of chance, content and dtype.

So equal tensors have equal measures on every machine, a model and its quantisation are sampled at the same positions,
and the fingerprints of two organs with the same shape can be compared. The number of bytes read has a fixed limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

from organs.registry.gguf.quants import Floats, decode
from organs.registry.gguf.types import DType

Read: TypeAlias = Callable[[int, int], bytes | bytearray | memoryview]
"""`read(offset_bytes, size_bytes)` returns exactly these bytes of a tensor; the offset is relative to its start."""
Run: TypeAlias = tuple[int, int]
"""Start and count of consecutive values, both whole blocks of every dtype (except at the end of a small tensor)."""

RUN_ELEMENTS = 256
"""The largest block of any dtype (a superblock). So a run is whole blocks of every dtype."""
RUNS_MAX = 384
SAMPLE_MAX_ELEMENTS = RUNS_MAX * RUN_ELEMENTS

PATCH_MAX_ROWS = 256
PATCH_MAX_COLUMNS = 2048
EXPERTS_MAX = 8

GOLDEN = 0x9E3779B9
"""2^32 divided by the golden ratio. Any number of its multiples, modulo 2^32, are spread evenly."""


@dataclass(frozen=True, slots=True)
class Patches:
    """The submatrices of the spectral reading: the same rows and columns of each chosen expert."""

    experts: tuple[int, ...]
    rows: tuple[int, ...]
    columns: int
    matrix_rows: int
    matrix_columns: int

    def runs(self, expert: int) -> tuple[Run, ...]:
        """Return the runs to read of one expert, row by row."""
        start = expert * self.matrix_rows * self.matrix_columns
        if len(self.rows) == self.matrix_rows and self.columns == self.matrix_columns:
            return ((start, self.matrix_rows * self.matrix_columns),)
        return tuple((start + row * self.matrix_columns, self.columns) for row in self.rows)


@lru_cache(maxsize=256)
def sample_runs(element_count: int) -> tuple[Run, ...]:
    """Return the runs of the sample: the whole tensor up to 98,304 values, else 384 runs of 256, spread evenly.

    Each run starts at a multiple of 256. A last part of fewer than 256 values is not sampled.
    """
    assert element_count >= 0
    if element_count <= SAMPLE_MAX_ELEMENTS:
        return ((0, element_count),)
    return tuple((block * RUN_ELEMENTS, RUN_ELEMENTS) for block in spread(element_count // RUN_ELEMENTS, RUNS_MAX))


def spectral_patches(shape: Sequence[int]) -> Patches | None:
    """Return the patches of a tensor of `shape` (GGUF order: row length first); None for a vector.

    A patch has up to 256 rows, spread evenly, and the first 2,048 columns. If further dimensions stack matrices
    (experts), up to 8 of them are used, spread evenly.
    """
    if len(shape) < 2 or min(shape[:2]) < 2:
        return None
    columns, rows = shape[:2]
    stacked = math.prod(shape[2:])
    return Patches(
        experts=spread(stacked, EXPERTS_MAX),
        rows=spread(rows, PATCH_MAX_ROWS),
        columns=min(columns, PATCH_MAX_COLUMNS),
        matrix_rows=rows,
        matrix_columns=columns,
    )


@lru_cache(maxsize=256)
def spread(total: int, limit: int) -> tuple[int, ...]:
    """Return up to `limit` of the numbers below `total`, ascending: one number of each of `limit` equal intervals.

    The position in the interval moves by the golden ratio. Equal steps could coincide with the length of a row: half
    of the columns of a 1,024 × 192 matrix would then never be sampled.
    """
    if total <= limit:
        return tuple(range(total))
    bounds = [index * total // limit for index in range(limit + 1)]
    return tuple(
        low + ((index * GOLDEN % (1 << 32)) * (high - low) >> 32) for index, (low, high) in enumerate(pairwise(bounds))
    )


@lru_cache(maxsize=256)
def run_spans(runs: tuple[Run, ...], dtype: DType) -> tuple[tuple[int, int], ...]:
    """Return the offset and the size in bytes of each run of values of `dtype`."""
    elements, size_bytes = dtype.block_elements, dtype.block_bytes
    return tuple((start // elements * size_bytes, count // elements * size_bytes) for start, count in runs)


def read_values(read: Read, runs: Sequence[Run], dtype: DType) -> Floats:
    """Return the values of `runs` in order, decoded together. Raises UnsupportedDType.

    The decoded values of F32 and F64 are a view of their bytes: writeable for several runs, which are copied, and not
    for one run, whose bytes the caller may still need.
    """
    parts = [read(offset, size) for offset, size in run_spans(tuple(runs), dtype)]
    return decode(memoryview(parts[0]).toreadonly() if len(parts) == 1 else bytearray().join(parts), dtype)
