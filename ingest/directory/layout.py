"""The names in an organ directory, and the file of one tensor.

A tensor's file: `[name_len:u32][name][n_dims:u32][dims:u64 x n][dtype:u32][data]`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from contextlib import suppress
from math import prod

from organs.registry.anatomy import OrganType, place_of
from organs.registry.digest import digest_of
from organs.registry.errors import UnsupportedDType
from organs.registry.gguf import TensorSpec
from organs.registry.gguf.types import ALIGNMENT_MAX, DIMENSIONS_MAX, NAME_MAX_BYTES, SIZE_MAX, dtype_at

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
"""The folder of each type of organ; the last folder is created only if needed."""

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
"""Names of devices on Windows, with any suffix."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)
_FORBIDDEN = re.compile(r'["*/:<>?\\|]')  # characters that are not printable have their own check


def organ_files(names: Iterable[str]) -> list[str]:
    """Return the file of each tensor, `folder/name.bin`, in order; all differ on any file system.

    Dots become underscores and `.weight` is removed. A name that is already used, in any case, or that is a device,
    gets the first digits of the SHA-256 of the tensor's name.
    """
    used: set[str] = set()
    files = []
    for name in names:
        file = next(candidate for candidate in _candidates(name) if candidate.lower() not in used)
        used.add(file.lower())
        files.append(file)
    return files


def path_segments(text: str) -> tuple[str, ...]:
    """Return the parts of a relative path that stays below its folder on every system.

    Raises ValueError with the reason: absolute, upwards, a drive, a backslash, a device, too long or too deep.
    """
    if not 1 <= len(text) <= PATH_MAX_LENGTH:
        raise ValueError(f"a path of {len(text)} characters; it must have 1 to {PATH_MAX_LENGTH}")
    if text.startswith("/"):
        raise ValueError("an absolute path")
    segments = tuple(text.split("/"))
    if len(segments) > SEGMENTS_MAX:
        raise ValueError(f"a path of more than {SEGMENTS_MAX} parts")
    for segment in segments:
        _check_segment(segment)
    return segments


def safe_file_name(name: str) -> str:
    """Return `name` if it is valid for a GGUF file on every system, else a similar name that is."""
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
        raise ValueError("a path with a character that is not allowed in file names on every system")
    if len(segment.encode("utf-8")) > SEGMENT_MAX_BYTES:
        raise ValueError(f"a path with a part of more than {SEGMENT_MAX_BYTES} bytes")
    if segment.endswith((".", " ")):
        raise ValueError("a path with a part that ends in a dot or a space")
    if segment.partition(".")[0].strip().lower() in DEVICES:
        raise ValueError("a path that means a device on some systems")


HEAD_MAX_BYTES = 4 + NAME_MAX_BYTES + 4 + 8 * DIMENSIONS_MAX + 4

_U32 = struct.Struct("<I")
_NAME = re.compile(rb"[\x20-\x7e]+")


def encode_head(spec: TensorSpec) -> bytes:
    """Return the bytes before the data of `spec`."""
    name = spec.name.encode("ascii")
    dims = struct.pack(f"<I{len(spec.shape)}Q", len(spec.shape), *spec.shape)
    return _U32.pack(len(name)) + name + dims + _U32.pack(spec.dtype.id)


def parse_head(data: bytes, file_size_bytes: int) -> tuple[TensorSpec, int]:
    """Return the tensor of a file of `file_size_bytes`, and the offset of its bytes.

    `data` is the beginning of the file, up to HEAD_MAX_BYTES. Raises ValueError with the reason.
    """
    name_size = _number(data, 0, "name length")
    if not 1 <= name_size <= NAME_MAX_BYTES:
        raise ValueError(f"a tensor name of {name_size} bytes; it must have 1 to {NAME_MAX_BYTES}")
    raw = data[4 : 4 + name_size]
    if len(raw) != name_size:
        raise ValueError("it ends within its name")
    if not _NAME.fullmatch(raw):
        raise ValueError(f"a tensor name must be printable ASCII, not {raw!r}")
    position = 4 + name_size
    count = _number(data, position, "number of dimensions")
    if not 1 <= count <= DIMENSIONS_MAX:
        raise ValueError(f"{count} dimensions; 1 to {DIMENSIONS_MAX} are allowed")
    position += 4
    if len(data) < position + 8 * count:
        raise ValueError("it ends within its dimensions")
    shape = struct.unpack_from(f"<{count}Q", data, position)
    position += 8 * count
    dtype_id = _number(data, position, "type")
    position += 4
    if min(shape) < 1:
        raise ValueError("a dimension is 0")
    if prod(shape) > SIZE_MAX:
        raise ValueError("the shape has more elements than any file can hold")
    try:
        dtype = dtype_at(dtype_id, prod(shape), file_size_bytes - position, ALIGNMENT_MAX)
    except UnsupportedDType as error:
        raise ValueError(str(error)) from error
    if shape[0] % dtype.block_elements and not dtype.is_foreign:
        raise ValueError(
            f"the row length {shape[0]} is not a multiple of {dtype.name}'s block of {dtype.block_elements}"
        )
    spec = TensorSpec(raw.decode("ascii"), shape, dtype)
    if spec.size_bytes > SIZE_MAX:
        raise ValueError("the shape is larger than any file")
    if file_size_bytes != position + spec.size_bytes:
        actual = file_size_bytes - position
        raise ValueError(f"{dtype.name} of {list(shape)} takes {spec.size_bytes} bytes, but the file has {actual}")
    return spec, position


def _number(data: bytes, offset: int, name: str) -> int:
    if len(data) < offset + 4:
        raise ValueError(f"it ends before its {name}")
    value: int = _U32.unpack_from(data, offset)[0]
    return value
