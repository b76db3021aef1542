"""`general.file_type`: one number for the types of all tensors of a file, as llama.cpp gives them.

Mixtures of K-quants have a number for each of their sizes; of a file of which only the main type is known it is the
middle one.
"""

from __future__ import annotations

ENCODINGS: dict[int | None, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
}
"""The names of the numbers."""

_MIXTURES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
_NUMBERS = {name: number for number, name in ENCODINGS.items()}


def file_type_of(dtype: str) -> int | None:
    """The number of a file of which most bytes are of `dtype`; None where there is none."""
    return _NUMBERS.get(_MIXTURES.get(dtype, dtype))
