"""The quantisation of a file: what its header states, or what the types of its tensors say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

FILE_TYPES: dict[int | None, str] = {
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
"""Names of the values of `general.file_type`."""
FILE_TYPE_KEY = "general.file_type"

_MIXTURES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
_NUMBERS = {name: number for number, name in FILE_TYPES.items()}
_VARIANT = re.compile(r"(Q\d_K)_[SML]")
_IQ = re.compile(r"IQ\d")


def file_type_of(dtype: str) -> int | None:
    """Return the file type of a file whose bytes are mostly `dtype`; None if no file type is known for `dtype`."""
    return _NUMBERS.get(_MIXTURES.get(dtype, dtype))


def parse_file_type(text: str) -> int | None:
    """Return the file type in a text from outside; None if it is not one."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 5 else None


def main_dtype(sizes: Iterable[tuple[str, int]]) -> str:
    """Return the dtype with the most bytes; if two have the same number of bytes, the first by name."""
    totals: Counter[str] = Counter()
    for dtype, size_bytes in sizes:
        totals[dtype] += size_bytes
    return min(totals, key=lambda name: (-totals[name], name), default="")


def quantisation(file_type: int | None, matrices: Iterable[tuple[str, int]]) -> str | None:
    """Return the quantisation of a file with these `matrices`, each a dtype and a size; None for a file without them.

    It is the stated `file_type` if matrices of its type are there, else the dtype with the most bytes. That one is less
    exact: `Q4_K` may be Q4_K_S or Q4_K_M.
    """
    sizes = list(matrices)
    dtypes = {dtype for dtype, _ in sizes}
    stated = FILE_TYPES.get(file_type)
    if stated is not None and _is_among(stated, dtypes):
        return stated
    return main_dtype(sizes) or None


def _is_among(file_type: str, dtypes: set[str]) -> bool:
    """Return whether a file of this type has matrices of `dtypes`. The types IQ mix several dtypes of as many bits."""
    if bits := _IQ.match(file_type):
        return any(dtype.startswith(bits.group()) for dtype in dtypes)
    return _VARIANT.sub(r"\1", file_type) in dtypes
