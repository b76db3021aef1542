"""What a chimera's file is called: `BaseName-SizeLabel-FineTune-vMajor.Minor-Encoding.gguf`, the GGUF convention.

The encoding stands last: stock clients pick files by it. Base names have no dots.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from registry.compose.parent import Parent
from registry.gguf import KeyValue

PART_MAX_LENGTH = 40
CHIMERA = "Chimera"

_ENCODINGS: dict[int | None, str] = {
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
"""The names of `general.file_type`, as llama.cpp numbers them."""
_UNWANTED = re.compile(r"[^A-Za-z0-9]+", re.ASCII)
_VERSION = re.compile(r"v?(\d{1,4})(?:\.(\d{1,4}))?(?:\.\d{1,4})*", re.ASCII)


def file_stem(base: Parent, sets: Sequence[KeyValue], name: str | None) -> str:
    """The file's name without `.gguf`; `name` is what the chimera is registered as, if that is given."""
    header = base.header
    basename = _clean(header.text("general.basename") or header.text("general.name") or "Model")
    size = _clean(header.text("general.size_label") or "")
    variety = _clean(name.rpartition("/")[2]) if name else CHIMERA
    version = _VERSION.fullmatch((header.text("general.version") or "").strip())
    numbered = f"v{version[1]}.{version[2] or 0}" if version else "v1.0"
    told = next((entry.value for entry in sets if entry.key == "general.file_type"), None)
    encoding = _ENCODINGS.get(told if isinstance(told, int) else header.integer("general.file_type"), "mixed")
    return "-".join(part for part in (basename, size, variety, numbered, encoding) if part)


def _clean(text: str) -> str:
    return _UNWANTED.sub("-", text).strip("-")[:PART_MAX_LENGTH].strip("-")
