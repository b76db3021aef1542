"""Tests of vocabularies: those that crash loaders are recognised; odd but harmless ones are accepted."""

from __future__ import annotations

import tracemalloc

import pytest

from organs.registry.gguf import KeyValue, MemorySource, ValueType, read_header
from organs.registry.gguf.tokenizer import VOCABULARY_MAX_BYTES, tokenizer_reasons
from tests.gguf_files import SparseSource, array, file_bytes, raw_array, raw_field, raw_header, raw_text, text, unsigned

BYTE, NORMAL = 6, 1


def tokens(*strings: bytes) -> KeyValue:
    return array("tokenizer.ggml.tokens", ValueType.STRING, strings)


def types(*numbers: int, kind: ValueType = ValueType.INT32) -> KeyValue:
    return array("tokenizer.ggml.token_type", kind, numbers)


def scores(count: int) -> KeyValue:
    return array("tokenizer.ggml.scores", ValueType.FLOAT32, [-1.5] * count)


def merges(*strings: bytes) -> KeyValue:
    return array("tokenizer.ggml.merges", ValueType.STRING, strings)


def reasons(*entries: KeyValue) -> list[str]:
    source = MemorySource(file_bytes(entries))
    return tokenizer_reasons(source, read_header(source))


@pytest.mark.parametrize(
    "entries",
    [
        (tokens(),),
        (tokens(b"a", b"b"), types(1, 1), scores(2), merges(b"a b")),
        (tokens(b"a", b"b"), types(1, 1, kind=ValueType.UINT32)),
        (tokens(b"a"), types(1, 1, 1), scores(5)),
        (tokens(*(b"<0x%02X>" % byte for byte in range(256))), types(*[BYTE] * 256), scores(256)),
        (tokens(b"<0xab>", b"<0xAb>"), types(BYTE, BYTE)),
        (tokens(b"<0x-1>", b"\xff", b""), types(NORMAL, NORMAL, NORMAL)),
        (tokens(b"<0x-1>"),),
        (types(1, 1), scores(2), merges(b"a b")),
    ],
    ids=[
        "no tokens",
        "all arrays of the right types",
        "unsigned types",
        "more types and scores than tokens",
        "all 256 bytes",
        "bytes in lower case",
        "like a byte but of a normal type",
        "like a byte without any types",
        "no vocabulary but its arrays",
    ],
)
def test_a_harmless_vocabulary_has_no_reasons(entries: tuple[KeyValue, ...]) -> None:
    assert reasons(*entries) == []


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ((text("tokenizer.ggml.tokens", "a"),), "is not an array instead of STRING"),
        ((tokens(b"a"), unsigned("tokenizer.ggml.token_type", 1)), "is not an array instead of INT32"),
        ((array("tokenizer.ggml.tokens", ValueType.UINT8, b"ab"),), "has UINT8 instead of STRING"),
        ((tokens(b"a", b"b"), scores(1)), "1 elements for 2 tokens"),
        ((tokens(b"a", b"b"), types()), "0 elements for 2 tokens"),
        ((tokens(b"<0x41>", b"", b"<0x5"), types(BYTE, BYTE, BYTE)), "2 byte tokens are not bytes"),
        ((tokens(b"<0x41>\n"), types(BYTE)), "1 byte tokens are not bytes"),
        ((tokens(b"a", b"b"), types(BYTE, NORMAL)), "1 byte tokens are not bytes"),
    ],
)
def test_a_harmful_vocabulary_is_reported_with_the_reason(entries: tuple[KeyValue, ...], said: str) -> None:
    (reason,) = reasons(*entries)
    assert said in reason


@pytest.mark.parametrize(("size", "wrong"), [(VOCABULARY_MAX_BYTES, 0), (VOCABULARY_MAX_BYTES + 1, 1), (2**30, 1)])
def test_a_vocabulary_over_the_limit_is_refused_without_being_read(size: int, wrong: int) -> None:
    text_size = size - 8
    entries = [raw_field(b"tokenizer.ggml.token_type", 9, raw_array(5, b"\1\0\0\0", 1))]
    head = raw_header([*entries, raw_field(b"tokenizer.ggml.tokens", 9, raw_array(8, raw_text(b"", text_size), 1))])
    source = SparseSource(head, len(head) + text_size)
    header = read_header(source)
    before = source.read_bytes
    reasons = tokenizer_reasons(source, header)
    assert [str(VOCABULARY_MAX_BYTES) in reason for reason in reasons] == [True] * wrong
    assert source.read_bytes - before <= 4, "nothing but the type of the one token"


def test_only_as_many_token_types_as_tokens_are_read() -> None:
    count = 2**29
    entries = [
        raw_field(b"tokenizer.ggml.tokens", 9, raw_array(8, raw_text(b"<0x-1>"), 1)),
        raw_field(b"tokenizer.ggml.token_type", 9, raw_array(5, b"\6\0\0\0", count)),
    ]
    head = raw_header(entries)
    source = SparseSource(head, len(head) - 4 + 4 * count)
    header = read_header(source)
    tracemalloc.start()
    (reason,) = tokenizer_reasons(source, header)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "<0x-1>" in reason
    assert peak < 1_000_000
