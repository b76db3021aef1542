"""Tests of `gguf.types`: the quantisation of a file by its header and its tensors."""

from __future__ import annotations

import pytest

from organs.registry.gguf.types import quantisation


@pytest.mark.parametrize(
    ("file_type", "matrices", "expected"),
    [
        (15, [("Q4_K", 1), ("Q8_0", 9)], "Q4_K_M"),
        (14, [("Q4_K", 1)], "Q4_K_S"),
        (27, [("IQ3_S", 5), ("Q4_K", 9)], "IQ3_M"),
        (2, [("Q4_K", 5)], "Q4_K"),
        (15, [("F16", 5)], "F16"),
        (99, [("Q8_0", 5)], "Q8_0"),
        (None, [("Q4_K", 6), ("Q6_K", 5), ("Q4_K", 1)], "Q4_K"),
        (None, [], None),
        (1, [], None),
    ],
)
def test_a_stated_file_type_counts_if_its_tensors_are_there(
    file_type: int | None, matrices: list[tuple[str, int]], expected: str | None
) -> None:
    assert quantisation(file_type, matrices) == expected
