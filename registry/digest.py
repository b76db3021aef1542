"""SHA-256 digests, the only names of bytes in the registry.

A digest is 64 lower-case hexadecimal characters. Users may type `sha256:` before it, or only a prefix of 8 or more
characters.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NewType

from organs.registry.errors import BadDigest

Digest = NewType("Digest", str)

PREFIX_MIN_LENGTH = 8

_FULL = re.compile(r"[0-9a-f]{64}", re.ASCII)
_PREFIX = re.compile(rf"[0-9a-f]{{{PREFIX_MIN_LENGTH},64}}", re.ASCII)


def digest_of(data: bytes | bytearray | memoryview) -> Digest:
    """Return the digest of `data`."""
    return Digest(hashlib.sha256(data).hexdigest())


def model_digest(files: Sequence[Digest]) -> Digest:
    """Return the digest of a model from the SHA-256 digests of its files in order: for one file, that digest."""
    return files[0] if len(files) == 1 else digest_of("".join(f"{file}\n" for file in files).encode())


def parse_digest(text: str) -> Digest:
    """Return the digest in `text`, which may begin with `sha256:`; raises BadDigest for other texts."""
    bare = text.removeprefix("sha256:")
    if not _FULL.fullmatch(bare):
        raise BadDigest(f"not a SHA-256 digest: {text[:80]!r}")
    return Digest(bare)


def parse_prefix(text: str) -> str:
    """Return the digest, or the prefix of a digest, in `text`; raises BadDigest for other texts.

    `text` may begin with `sha256:` and have upper-case letters. A prefix has 8 or more characters.
    """
    bare = text.removeprefix("sha256:").lower()
    if not _PREFIX.fullmatch(bare):
        raise BadDigest(f"not a digest, nor {PREFIX_MIN_LENGTH} or more characters of one: {text[:80]!r}")
    return bare


def looks_like_prefix(text: str) -> bool:
    """Return whether `text` can be a digest or a prefix of 8 or more characters."""
    return _PREFIX.fullmatch(text.removeprefix("sha256:").lower()) is not None


def is_digest(text: str) -> bool:
    """Return whether `text` is a digest: only with `sha256:`, because a name may look like a digest."""
    return text.startswith("sha256:") and looks_like_prefix(text)
