"""Tests of the warnings about θ: coarse formats change it, fine ones do not."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import quantize

from organs.registry.gguf import dtype_by_name
from organs.registry.measure import measure
from organs.registry.reports.words import (
    COARSE,
    FEW,
    caution,
)

ZOO = Path(__file__).parents[2] / "examples" / "zoo"


@pytest.mark.parametrize(
    ("dtype", "bits"), [("F32", 32), ("F16", 16), ("Q8_0", 8.5), ("Q6_K", 6.5625), ("IQ4_NL", 4.5), ("Q3_K", 3.4375)]
)
def test_bits_count_what_a_block_has_in_common(dtype: str, bits: float) -> None:
    assert dtype_by_name(dtype).bits_per_value == bits


def test_few_values_are_marked_before_a_coarse_format() -> None:
    assert [caution("F32", 999), caution("Q2_K", 256), caution("F32", 1000)] == [FEW, FEW, ""]
    assert [caution(dtype, 1 << 20) for dtype in ("Q3_K", "IQ4_NL", "Q5_0")] == [COARSE] * 3
    assert [caution(dtype, 1 << 20) for dtype in ("Q5_1", "Q6_K", "Q8_0", "BF16")] == [""] * 4


@pytest.fixture(scope="module")
def matrices() -> list[np.ndarray]:
    """Return the feed-forward matrices of Zoo A."""
    tensors = GGUFReader(ZOO / "Zoo-A-2M-v1.0-F16.gguf").tensors
    return [np.array(tensor.data, np.float32) for tensor in tensors if "ffn_" in tensor.name and tensor.data.ndim == 2]


@pytest.mark.parametrize(
    ("dtype", "theta"), [("F16", 35.2), ("Q8_0", 35.2), ("Q5_1", 35.2), ("Q5_0", 37.8), ("Q4_0", 42.2), ("MXFP4", 60.0)]
)
def test_the_same_matrices_have_the_measures_of_the_report(
    dtype: str, theta: float, matrices: list[np.ndarray]
) -> None:
    thetas = []
    for matrix in matrices:
        data = quantize(matrix, GGMLQuantizationType[dtype]).tobytes()
        reading = measure(
            lambda offset, size, data=data: data[offset : offset + size], matrix.shape[::-1], dtype_by_name(dtype)
        )
        thetas.append(reading.theta)
    assert fmean(thetas) == pytest.approx(theta, abs=0.05)
