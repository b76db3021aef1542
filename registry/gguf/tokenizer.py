"""Checks of vocabularies: those that crash loaders, and those that do not fit their model.

A file whose vocabulary crashes loaders is never served as a model.

Loaders do two things without a check: they read token types as 32-bit numbers, and convert byte tokens such as `<0x0A>`
to bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from organs.registry.anatomy import TOKEN_EMBEDDING, place_of
from organs.registry.gguf.faults import HeaderFault
from organs.registry.gguf.header import WINDOW_BYTES, ByteSource, Header, TensorSpec
from organs.registry.gguf.read import read_array
from organs.registry.gguf.types import ValueType

TOKENIZER_KEY = "tokenizer.ggml.model"
WITHOUT_TOKENIZER = "none"
TOKENS_KEY = "tokenizer.ggml.tokens"
TYPES_KEY = "tokenizer.ggml.token_type"
SCORES_KEY = "tokenizer.ggml.scores"
MERGES_KEY = "tokenizer.ggml.merges"
BYTE_PAIRS, SENTENCE_PIECES, WORD_PIECES = "gpt2", "llama", "bert"
"""The values of TOKENIZER_KEY for the three common kinds of tokenizers."""
SPECIAL_TOKENS = ("bos", "eos", "eot", "eom", "unknown", "separator", "padding", "cls", "mask")
NO_TOKEN = (-1, (1 << 32) - 1)
"""What headers state for a special token that a vocabulary does not have."""
BYTE_TOKEN_TYPE = 6
VOCABULARY_MAX_BYTES = 1 << 26
"""The total size of all tokens. The largest vocabularies in use have 250,000 tokens and take 5 MB."""

_EXPECTED_TYPES = {
    TOKENS_KEY: (ValueType.STRING,),
    TYPES_KEY: (ValueType.INT32, ValueType.UINT32),
    SCORES_KEY: (ValueType.FLOAT32,),
    MERGES_KEY: (ValueType.STRING,),
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


def tokenizer_faults(header: Header) -> Iterator[HeaderFault]:
    """Yield a fault if keys are absent without which runtimes cannot make the tokenizer of a model."""
    kind = header.text(TOKENIZER_KEY)
    if kind == WITHOUT_TOKENIZER:
        return
    needed = (TOKENIZER_KEY, TOKENS_KEY, MERGES_KEY) if kind == BYTE_PAIRS else (TOKENIZER_KEY, TOKENS_KEY)
    missing = [key for key in needed if header.field(key) is None]
    if missing:
        yield HeaderFault("no-tokenizer", f"{' and '.join(missing)} absent: runtimes refuse it")


def vocabulary_faults(header: Header, tensors: Iterable[TensorSpec]) -> Iterator[HeaderFault]:
    """Yield what does not fit the vocabulary in `header`: the ids of special tokens, the embedding among `tensors`."""
    tokens = header.field(TOKENS_KEY)
    if tokens is None or header.text(TOKENIZER_KEY) == WITHOUT_TOKENIZER:
        return
    for name in SPECIAL_TOKENS:
        number = header.integer(f"tokenizer.ggml.{name}_token_id")
        if number is not None and not 0 <= number < tokens.count and number not in NO_TOKEN:
            sentence = f"tokenizer.ggml.{name}_token_id is {number:,}, but there are {tokens.count:,} tokens"
            yield HeaderFault("token-out-of-range", sentence)
    for tensor in tensors:
        rows = tensor.shape[-1]
        if rows != tokens.count and place_of(tensor.name) == TOKEN_EMBEDDING:
            subject = f"its embedding {tensor.name} has {rows:,} rows"
            sentence = f"{subject}, but the vocabulary {tokens.count:,} tokens: runtimes refuse it"
            yield HeaderFault("vocabulary-differs", sentence)


def adds_bos(header: Header) -> bool:
    """Return whether runtimes put the first token before a text: as stated, or as its kind of tokenizer does."""
    field = header.field("tokenizer.ggml.add_bos_token")
    stated = None if field is None else field.value
    return stated if isinstance(stated, bool) else header.text(TOKENIZER_KEY) in (SENTENCE_PIECES, WORD_PIECES)


TOKEN_MAX_BYTES = 256
"""The longest text of a special token that is read."""
TOKENS_READ_MAX = 1 << 20
"""Special tokens after so many tokens are not read. The largest vocabularies in use have 262,144 tokens."""


def token_texts(source: ByteSource, header: Header, names: Sequence[str]) -> list[str]:
    """Return the texts of special tokens, such as `bos`; empty for a token that is not there."""
    tokens = header.field(TOKENS_KEY)
    numbers = [header.integer(f"tokenizer.ggml.{name}_token_id") for name in names]
    if tokens is None or tokens.element_type is not ValueType.STRING or tokens.size_bytes > VOCABULARY_MAX_BYTES:
        return ["" for _ in names]
    limit = min(tokens.count, TOKENS_READ_MAX)
    wanted = {number for number in numbers if number is not None and 0 <= number < limit}
    texts: dict[int | None, str] = {}
    length = struct.Struct(">Q" if tokens.is_big_endian else "<Q")
    data, begin, position = b"", tokens.offset, tokens.offset
    end = tokens.offset + tokens.size_bytes
    for number in range(max(wanted, default=-1) + 1):
        if position + length.size > end:  # the lengths are not those that were checked
            break
        if position + length.size + TOKEN_MAX_BYTES > begin + len(data):
            begin, data = position, source.read_at(position, min(WINDOW_BYTES, end - position))
        (size,) = length.unpack_from(data, position - begin)
        if number in wanted:
            text = data[position - begin + length.size :][: min(size, TOKEN_MAX_BYTES)]
            texts[number] = text.decode("utf-8", "replace")
        position += length.size + size
    return [texts.get(number, "") for number in numbers]
