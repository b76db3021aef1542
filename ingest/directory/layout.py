"""The names in an organ directory: its folders, its manifest, and the file that each tensor gets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

from organs.registry.anatomy import OrganType, place_of
from organs.registry.digest import digest_of

FORMAT = "organ-directory"
FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
HEADER_FILE = "header.bin"
ORGAN_SUFFIX = ".bin"
GGUF_SUFFIX = ".gguf"

FOLDERS: dict[OrganType, str] = {
    OrganType.SKELETON: "skeleton",
    OrganType.ORGAN: "organs",
    OrganType.EMBED: "embed",
    OrganType.NORM: "norm",
    OrganType.ADAPTER: "adapter",
    OrganType.OTHER: "other",
}
"""The last is made only where it is needed."""

PATH_MAX_LENGTH = 512
SEGMENT_MAX_BYTES = 200
SEGMENTS_MAX = 8
SUFFIX_DIGITS = 8
STEM_MAX_LENGTH = 100

DEVICES = frozenset(
    {
        "con",
        "prn",
        "aux",
        "nul",
        "conin$",
        "conout$",
        *(f"{kind}{number}" for kind in ("com", "lpt") for number in range(10)),
    }
)
"""Names that mean a device on Windows, with any ending."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)
_FORBIDDEN = re.compile(r'["*/:<>?\\|]')  # characters that are not printable are asked for besides


def organ_files(names: Iterable[str]) -> list[str]:
    """The file of each tensor, `folder/name.bin`, in order; no two are the same on any file system.

    Dots become underscores and `.weight` is dropped. A name that is taken already, in whatever case, or that means a
    device, gets the first digits of the SHA-256 of the tensor's name.
    """
    taken: set[str] = set()
    files = []
    for name in names:
        file = next(one for one in _candidates(name) if one.lower() not in taken)
        taken.add(file.lower())
        files.append(file)
    return files


def path_segments(text: str) -> tuple[str, ...]:
    """The parts of a relative path that stays below its folder on every system.

    Raises ValueError with what is wrong: absolute, upwards, a drive, a backslash, a device, too long or too deep.
    """
    if not 1 <= len(text) <= PATH_MAX_LENGTH:
        raise ValueError(f"a path has 1 to {PATH_MAX_LENGTH} characters, this one {len(text)}")
    if text.startswith("/"):
        raise ValueError("an absolute path")
    segments = tuple(text.split("/"))
    if len(segments) > SEGMENTS_MAX:
        raise ValueError(f"a path of more than {SEGMENTS_MAX} parts")
    for segment in segments:
        _check_segment(segment)
    return segments


def safe_file_name(name: str) -> str:
    """`name` if a GGUF file may be called so on every system, else the nearest such name."""
    stem = name.removesuffix(GGUF_SUFFIX)
    with suppress(ValueError):
        _check_segment(name)
        return stem + GGUF_SUFFIX
    digest = digest_of(name.encode("utf-8", "surrogateescape"))
    return f"{_UNSAFE.sub('_', stem)[:STEM_MAX_LENGTH]}-{digest[:SUFFIX_DIGITS]}{GGUF_SUFFIX}"


def _candidates(name: str) -> Iterable[str]:
    folder = FOLDERS[place_of(name).type]
    stem = _UNSAFE.sub("_", name.removesuffix(".weight"))
    if stem and stem.lower() not in DEVICES:
        yield f"{folder}/{stem}{ORGAN_SUFFIX}"
    digest = digest_of(name.encode("ascii"))
    for digits in range(SUFFIX_DIGITS, len(digest) + 1):
        yield f"{folder}/{stem}-{digest[:digits]}{ORGAN_SUFFIX}"


def _check_segment(segment: str) -> None:
    if segment in {"", ".", ".."}:
        raise ValueError("a path with an empty part, . or ..")
    if _FORBIDDEN.search(segment) or not segment.isprintable():
        raise ValueError("a path with a character that is none of a file's name everywhere")
    if len(segment.encode("utf-8")) > SEGMENT_MAX_BYTES:
        raise ValueError(f"a path with a part of more than {SEGMENT_MAX_BYTES} bytes")
    if segment.endswith((".", " ")):
        raise ValueError("a path with a part that ends in a dot or a space")
    if segment.partition(".")[0].strip().lower() in DEVICES:
        raise ValueError("a path that means a device on some systems")
