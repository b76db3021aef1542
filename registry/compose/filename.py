"""What a chimera's file is called: `BaseName-SizeLabel-FineTune-vMajor.Minor-Encoding.gguf`, the GGUF convention.

The encoding stands last: stock clients pick files by it. Base names have no dots.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from organs.registry.compose.filetype import ENCODINGS
from organs.registry.compose.parent import Parent
from organs.registry.gguf import KeyValue

PART_MAX_LENGTH = 40
CHIMERA = "Chimera"

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
    encoding = ENCODINGS.get(told if isinstance(told, int) else header.integer("general.file_type"), "mixed")
    return "-".join(part for part in (basename, size, variety, numbered, encoding) if part)


def _clean(text: str) -> str:
    return _UNWANTED.sub("-", text).strip("-")[:PART_MAX_LENGTH].strip("-")
