"""Tests of our tables of types against those of the `gguf` package."""

from __future__ import annotations

import gguf
import pytest

from organs.registry.errors import UnsupportedDType
from organs.registry.gguf import ValueType, dtype_by_id, dtype_by_name
from organs.registry.gguf.types import DTYPES, UNQUANTISED


def test_every_dtype_of_the_gguf_package_is_known_with_its_number_and_block() -> None:
    theirs = {(kind.value, kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    ours = {(dtype.id, dtype.name, dtype.block_elements, dtype.block_bytes) for dtype in DTYPES.values()}
    assert theirs <= ours


def test_every_value_type_of_the_gguf_package_is_known_with_its_number() -> None:
    assert {(kind.name, kind.value) for kind in gguf.GGUFValueType} == {(kind.name, kind.value) for kind in ValueType}


@pytest.mark.parametrize("dtype_id", [4, 5, 31, 32, 33, 36, 37, 38, 10_000, -1])
def test_an_unknown_or_removed_number_is_not_a_dtype(dtype_id: int) -> None:
    with pytest.raises(UnsupportedDType):
        dtype_by_id(dtype_id)


@pytest.mark.parametrize("name", ["", "Q4_2", "q4_k", "F8"])
def test_an_unknown_name_is_not_a_dtype(name: str) -> None:
    with pytest.raises(UnsupportedDType):
        dtype_by_name(name)


def test_only_dtypes_with_one_element_per_block_are_unquantised() -> None:
    assert {dtype.name for dtype in DTYPES.values() if dtype.block_elements == 1} == UNQUANTISED
