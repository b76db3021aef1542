"""Names for files on the disk of whoever downloads them, made from text that anybody may have written (RFC 6266)."""

from __future__ import annotations

import re
from urllib.parse import quote

NAME_MAX_LENGTH = 180

_UNWANTED = re.compile(r"[^A-Za-z0-9._+@ -]+", re.ASCII)
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.ASCII | re.IGNORECASE)


def attachment(name: str) -> str:
    """The `Content-Disposition` under which a file called `name` is saved: never a path, a device or a second header.

    A name beyond ASCII is also sent whole, percent-encoded, without what is not a letter, a digit or `._+@ -`.
    """
    plain = safe_name(name)
    header = f'attachment; filename="{plain}"'
    wide = _cut("".join(character if _is_harmless(character) else "_" for character in name))
    return header if wide == plain or not wide else f"{header}; filename*=UTF-8''{quote(wide, safe='')}"


def safe_name(name: str) -> str:
    """The nearest name to `name` that every file system takes as it is."""
    return _cut(_UNWANTED.sub("_", name)) or "download"


def is_plain_name(name: str) -> bool:
    """Whether `name` can stand in a listing from which people and programs make files."""
    return safe_name(name) == name


def _cut(name: str) -> str:
    stem, dot, ending = name.strip(" ").rpartition(".")
    if len(name) > NAME_MAX_LENGTH and dot and 0 < len(ending) <= 10:
        name = f"{stem[: NAME_MAX_LENGTH - len(ending) - 1]}.{ending}"
    clean = name[:NAME_MAX_LENGTH].lstrip(". -").rstrip(". ")
    return f"_{clean}" if _DEVICE.fullmatch(clean) else clean


def _is_harmless(character: str) -> bool:
    return character.isalnum() or character in "._+@ -"
