"""What to be careful with in the θ of a single tensor: rounding to a coarse format, or few numbers. Pure."""

from __future__ import annotations

from organs.registry.gguf import dtype_by_name

COARSE_BITS_MAX = 5.5
"""Formats of so many bits a number or fewer count as coarse. Q5_0 (5.5 bits) raised the mean θ of matrices by 2° in a
trial, Q4_0 (4.5) by 7° and Q3_K (3.4) by 14°; of those above (Q5_1, Q6_K, Q8_0) none did by more than 0.5°."""
FEW_NUMBERS = 1000
"""Tensors of fewer numbers give a rough reading."""

COARSE, FEW = "coarse", "few"


def bits_of(dtype: str) -> float:
    """Bits that one number takes in `dtype`, with its share of what its block has in common."""
    kind = dtype_by_name(dtype)
    return 8 * kind.block_bytes / kind.block_elements


def caution(dtype: str, elements: int) -> str:
    """`few`, `coarse`, or nothing; where both hold, `few`."""
    if elements < FEW_NUMBERS:
        return FEW
    return COARSE if bits_of(dtype) <= COARSE_BITS_MAX else ""
