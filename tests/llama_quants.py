"""Quantised weights as llama.cpp writes them: its quantisation makes the files of the world."""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from organs.registry.gguf.types import DType
from organs.registry.store.codec.fast import Bytes


def quantised(values: NDArray[np.float32], dtype: DType, matrix: NDArray[np.float32] | None = None) -> Bytes:
    """Return rows of weights as llama.cpp writes them in `dtype`, with an importance matrix or without."""
    if dtype.name == "F32":
        return values.reshape(-1).view(np.uint8)
    blocks = np.zeros(dtype.size_bytes(values.size), np.uint8)
    weight = None if matrix is None else matrix.ctypes.data
    row = values.shape[-1]
    place = values.ctypes.data, blocks.ctypes.data, 0, values.size // row, row
    assert _ggml().ggml_quantize_chunk(dtype.id, *place, weight) == len(blocks)
    return blocks


@cache
def _ggml() -> ctypes.CDLL:
    """Return the library of llama.cpp in the package `xllamacpp`."""
    spec = importlib.util.find_spec("xllamacpp")
    assert spec is not None
    assert spec.origin is not None
    library = ctypes.CDLL(str(next(Path(spec.origin).parent.glob("*.so"))))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,
        *[ctypes.c_void_p] * 2,
        *[ctypes.c_int64] * 3,
        ctypes.c_void_p,
    ]
    library.ggml_cpu_init()
    return library
