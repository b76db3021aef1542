"""Checks for vocabularies that crash loaders. Ingest runs them; a file that fails is never served as a model.

Loaders do two things without a check: they read token types as 32-bit numbers, and convert byte tokens such as `<0x0A>`
to bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np

from organs.registry.anatomy import TOKEN_EMBEDDING, place_of
from organs.registry.gguf.header import ByteSource, Header, TensorSpec
from organs.registry.gguf.read import read_array
from organs.registry.gguf.types import ValueType

TOKENIZER_KEY = "tokenizer.ggml.model"
WITHOUT_TOKENIZER = "none"
TOKENS_KEY = "tokenizer.ggml.tokens"
TYPES_KEY = "tokenizer.ggml.token_type"
SCORES_KEY = "tokenizer.ggml.scores"
BYTE_TOKEN_TYPE = 6
VOCABULARY_MAX_BYTES = 1 << 26
"""The total size of all tokens. The largest vocabularies in use have 250,000 tokens and take 5 MB."""

_EXPECTED_TYPES = {
    TOKENS_KEY: (ValueType.STRING,),
    TYPES_KEY: (ValueType.INT32, ValueType.UINT32),
    SCORES_KEY: (ValueType.FLOAT32,),
    "tokenizer.ggml.merges": (ValueType.STRING,),
}
_BYTE_TOKEN = re.compile(rb"<0x[0-9A-Fa-f]{2}>")


def tokenizer_reasons(source: ByteSource, header: Header) -> list[str]:
    """Return the reasons why this vocabulary is not safe for loaders, one sentence each; empty if it is safe."""
    reasons = []
    for key, expected in _EXPECTED_TYPES.items():
        field = header.field(key)
        if field is not None and field.element_type not in expected:
            actual = f"has {field.element_type.name}" if field.element_type is not None else "is not an array"
            reasons.append(f"{key} {actual} instead of {expected[0].name}: loaders read past its end")
    tokens, types = header.field(TOKENS_KEY), header.field(TYPES_KEY)
    if reasons or tokens is None:
        return reasons
    for key in (TYPES_KEY, SCORES_KEY):
        field = header.field(key)
        if field is not None and field.count < tokens.count:
            reasons.append(f"{key} has {field.count} elements for {tokens.count} tokens: loaders read past its end")
    if tokens.size_bytes > VOCABULARY_MAX_BYTES:
        reasons.append(f"{TOKENS_KEY} takes {tokens.size_bytes} bytes, over the limit of {VOCABULARY_MAX_BYTES}")
    if reasons or types is None:
        return reasons
    # Only one type for each token is read, even if the file has more types. Most vocabularies have no byte tokens.
    kinds = np.frombuffer(source.read_at(types.offset, 4 * tokens.count), dtype="<u4")
    byte_tokens = np.flatnonzero(kinds == BYTE_TOKEN_TYPE)
    strings = read_array(source, tokens) if len(byte_tokens) else []
    bad = [strings[index] for index in byte_tokens if not _BYTE_TOKEN.fullmatch(strings[index])]
    if bad:
        reasons = [f"{len(bad)} byte tokens are not bytes, for example {bad[0][:40]!r}: loaders use them as an index"]
    return reasons


def embedding_faults(header: Header, tensors: Iterable[TensorSpec]) -> Iterator[str]:
    """Yield a sentence if the token embedding among `tensors` has other tokens than the vocabulary in `header`."""
    tokens = header.field(TOKENS_KEY)
    if tokens is None or header.text(TOKENIZER_KEY) == WITHOUT_TOKENIZER:
        return
    for tensor in tensors:
        rows = tensor.shape[-1]
        if rows != tokens.count and place_of(tensor.name) == TOKEN_EMBEDDING:
            subject = f"its embedding {tensor.name} has {rows:,} rows"
            yield f"{subject}, but the vocabulary {tokens.count:,} tokens: runtimes refuse it"
