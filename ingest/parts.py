"""Files that were cut by bytes, as `split` does it: `model.gguf.part1of2`, `model.gguf.part-aa`, `model.gguf.001`.

Shards are GGUF files, but such parts are not: they must be joined first.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

LISTED_MAX = 50
"""The most parts that a command lists."""
_PART_NAME = re.compile(
    r"(?P<whole>.+\.gguf)[-._](?:(?P<word>part|split)[-._]?(?:[0-9]{1,5}(?:[-_]?of[-_]?(?P<count>[0-9]{1,5}))?|[a-z]{1,2})"
    r"|[0-9]{2,3}|a[a-z])",
    re.ASCII | re.IGNORECASE,
)
_NUMBER = re.compile(r"([0-9]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class PartName:
    """The file name of a part."""

    whole: str
    """The name of the whole file."""
    count: int | None
    """The number of parts, if it is stated."""
    is_sure: bool
    """Whether the name has the word for a part; another file can also end in a number."""


def parse_part_name(name: str) -> PartName | None:
    """Return what the file name `name` says about a part of a GGUF file; None if it is not that of a part."""
    match = _PART_NAME.fullmatch(name)
    if match is None:
        return None
    return PartName(match["whole"], int(match["count"]) if match["count"] else None, match["word"] is not None)


def first_parts(files: Iterable[Path]) -> list[Path]:
    """Return the first part of each GGUF file of which `files` has parts, unless the whole file is there too."""
    sets: dict[Path, list[Path]] = {}
    sure = set()
    for path in files:
        part = parse_part_name(path.name)
        if part is not None:
            whole = path.with_name(part.whole)
            sets.setdefault(whole, []).append(path)
            sure |= {whole} if part.is_sure else set()
    cut = {whole: parts for whole, parts in sets.items() if (len(parts) > 1 or whole in sure) and not whole.exists()}
    return [min(parts, key=_order) for parts in cut.values()]


def joining_sentence(path: Path, part: PartName) -> str:
    """Return the sentence on a part at `path`: that it is one, and the command that joins it with those beside it."""
    parsed = [(other, parse_part_name(other.name)) for other in path.parent.iterdir()]
    parts = sorted((other for other, name in parsed if name is not None and name.whole == part.whole), key=_order)
    subject = f"{path}: a part of a GGUF file that was cut by bytes"
    if part.count is not None and len(parts) < part.count:
        there = f"{len(parts)} of its {part.count} parts {'is' if len(parts) == 1 else 'are'} here"
        return f"{subject}; only {there}. When all are, join them in their order with cat"
    whole = shlex.quote(str(path.with_name(part.whole)))
    listed = shlex.join(map(str, parts)) if len(parts) <= LISTED_MAX else f"$(ls -v {whole}[-._]*)"
    return f"{subject}. Join all parts first: cat {listed} > {whole}"


def _order(path: Path) -> list[tuple[int, str]]:
    """Return the key by which `part10of12` follows `part9of12`."""
    return [(int(text), "") if text.isdigit() else (-1, text) for text in _NUMBER.split(path.name)]
