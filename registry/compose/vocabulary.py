"""Whether two models have one vocabulary: the digest of the tokens as a header stores them."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

from organs.registry.digest import Digest
from organs.registry.gguf import ByteSource, Field, ValueType
from organs.registry.gguf.tokenizer import VOCABULARY_MAX_BYTES

CACHED_MAX = 256
"""Digests that are remembered; one takes some hundred bytes."""
WINDOW_BYTES = 1 << 20

_cached: OrderedDict[tuple[Digest, int, int], Digest] = OrderedDict()
_lock = threading.Lock()


def vocabulary_digest(source: ByteSource, header_digest: Digest, tokens: Field | None) -> Digest | None:
    """SHA-256 of the elements of the array `tokens`, lengths included; None for none, and for more than 64 MiB.

    A vocabulary is read once for each header: `header_digest` covers its bytes.
    """
    if tokens is None or tokens.element_type is not ValueType.STRING or tokens.size_bytes > VOCABULARY_MAX_BYTES:
        return None
    key = (header_digest, tokens.offset, tokens.size_bytes)
    with _lock:
        known = _cached.get(key)
    if known is not None:
        return known
    digest = _digest(source, tokens)
    with _lock:
        _cached[key] = digest
        while len(_cached) > CACHED_MAX:
            _cached.popitem(last=False)
    return digest


def _digest(source: ByteSource, tokens: Field) -> Digest:
    found = hashlib.sha256()
    end = tokens.offset + tokens.size_bytes
    for offset in range(tokens.offset, end, WINDOW_BYTES):
        found.update(source.read_at(offset, min(WINDOW_BYTES, end - offset)))
    return Digest(found.hexdigest())
