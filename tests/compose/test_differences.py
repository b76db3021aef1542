"""Tests of the facts of a header, with the defaults of loaders; values of the wrong type are ignored."""

from __future__ import annotations

import pytest

from organs.registry.compose.differences import (
    CACHED_MAX,
    PER_BLOCK_MAX,
    TEXT_MAX,
    Value,
    facts_of,
    vocabulary_digest,
)
from organs.registry.compose.parents import Parent
from organs.registry.digest import Digest, digest_of
from organs.registry.gguf import Field, KeyValue, MemorySource, ValueType
from organs.registry.gguf.tokenizer import VOCABULARY_MAX_BYTES
from tests.compose.parents import model_tensors, parent_from, synthetic_parent
from tests.gguf_files import SparseSource, array, file_bytes, text

SMALL = model_tensors(blocks=0)


def facts_by_key(parent: Parent) -> dict[str, Value | None]:
    return {key: value for values in facts_of(parent).values() for key, value in values.items()}


def facts_with(*said: KeyValue) -> dict[str, Value | None]:
    """Return the facts of a small model with these entries and its architecture."""
    return facts_by_key(parent_from(file_bytes([text("general.architecture", "llama"), *said], SMALL), "Small"))


@pytest.mark.parametrize(
    ("key", "fact"),
    [
        ("block_count", "block_count"),
        ("embedding_length", "embedding_length"),
        ("context_length", "context_length"),
        ("attention.head_count", "attention.head_count"),
        ("attention.sliding_window_pattern", "attention.sliding_window_pattern"),
        ("attention.layer_norm_rms_epsilon", "norm epsilon"),
        ("rope.dimension_sections", "rope.dimension_sections"),
    ],
)
def test_values_of_the_wrong_type_or_out_of_range_count_as_absent(key: str, fact: str) -> None:
    name = f"llama.{key}"
    wrong = [
        text(name, "32"),
        KeyValue(name, ValueType.BOOL, True),
        KeyValue(name, ValueType.INT32, -1),
        KeyValue(name, ValueType.FLOAT32, float("nan")),
        KeyValue(name, ValueType.FLOAT64, float("inf")),
        array(name, ValueType.FLOAT32, [1.5]),
        array(name, ValueType.STRING, [b"4"]),
        array(name, ValueType.UINT8, []),
        array(name, ValueType.UINT8, [1, 2] * PER_BLOCK_MAX),
    ]
    assert [facts_with(entry)[fact] for entry in wrong] == [None] * len(wrong)


def test_long_texts_are_not_names() -> None:
    for length, known in ((TEXT_MAX, "x" * TEXT_MAX), (TEXT_MAX + 1, None)):
        assert facts_with(text("tokenizer.ggml.pre", "x" * length))["tokenizer.ggml.pre"] == known


def test_a_vocabulary_is_identified_by_its_bytes_and_read_once_per_header() -> None:
    parent = synthetic_parent()
    field = parent.header.field("tokenizer.ggml.tokens")
    assert field is not None
    expected = digest_of(parent.source.read_at(field.offset, field.size_bytes))
    assert vocabulary_digest(parent.source, parent.header_digest, field) == expected
    assert vocabulary_digest(MemorySource(b""), parent.header_digest, field) == expected


def test_a_vocabulary_that_is_too_large_is_not_read() -> None:
    source = SparseSource(b"", 4 * VOCABULARY_MAX_BYTES)
    for size, read in ((VOCABULARY_MAX_BYTES, VOCABULARY_MAX_BYTES), (VOCABULARY_MAX_BYTES + 1, 0)):
        source.read_bytes = 0
        field = Field("tokens", ValueType.ARRAY, ValueType.STRING, 1, 24, size, None)
        assert (vocabulary_digest(source, digest_of(str(size).encode()), field) is None) is (read == 0)
        assert source.read_bytes == read


def test_digests_of_vocabularies_are_forgotten_before_they_are_too_many() -> None:
    field = Field("tokens", ValueType.ARRAY, ValueType.STRING, 1, 0, 9, None)
    source = SparseSource(b"", 9)
    for number in range(CACHED_MAX + 1):
        vocabulary_digest(source, digest_of(b"%d" % number), field)
    read = source.read_bytes
    vocabulary_digest(source, digest_of(b"%d" % CACHED_MAX), field)
    assert source.read_bytes == read
    vocabulary_digest(source, Digest(digest_of(b"0")), field)
    assert source.read_bytes == read + 9
