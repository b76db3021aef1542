"""The small files for fuzzing: every tensor type, every value type, alignments, versions, shards, vocabularies."""

from __future__ import annotations

from collections.abc import Sequence

from organs.registry.gguf import DType, KeyValue, TensorSpec, ValueType
from organs.registry.gguf.types import DTYPES
from tests.faults.fuzzing.header_parts import Parts, entry_of, info_of, with_alignment
from tests.gguf_files import array, every_value_type, tensor, text, unsigned, vocabulary

SHARDS = 3
LARGE = 2
"""The number of seeds, at the end of the list, that are larger than the reader's first window."""

BYTE_TOKEN, NORMAL_TOKEN = 6, 1


def header_seeds() -> list[Parts]:
    """Return all seeds; the last LARGE are slow to read, the SHARDS before them are a split set."""
    dtypes = list(DTYPES.values())
    seeds = [
        _parts([], []),
        _parts([text("general.architecture", "llama")], []),
        _parts([], [tensor("a", (1,))]),
        *(_parts(_general(), _of_types(dtypes[begin : begin + 4])) for begin in range(0, len(dtypes), 4)),
        *(_value_types(begin) for begin in range(0, len(every_value_type()), 8)),
        *(_aligned(alignment) for alignment in (1, 8, 64, 256, 4096)),
        _decoder(),
        _experts(),
        _version_2(),
        _odd_padding(),
        *_tokenizers(),
        *_shards(),
        *_large(),
    ]
    assert len(seeds[-LARGE:]) == LARGE
    return seeds


def shard_seeds(seeds: Sequence[Parts]) -> Sequence[Parts]:
    """Return the split set among the seeds."""
    return seeds[-LARGE - SHARDS : -LARGE]


def _parts(entries: Sequence[KeyValue], tensors: Sequence[tuple[TensorSpec, bytes]]) -> Parts:
    return Parts([entry_of(entry) for entry in entries], [info_of(*pair) for pair in tensors])


def _general(name: str = "Little") -> list[KeyValue]:
    return [
        text("general.architecture", "llama"),
        text("general.name", name),
        unsigned("general.quantization_version", 2),
        unsigned("llama.block_count", 2),
    ]


def _of_types(dtypes: Sequence[DType]) -> list[tuple[TensorSpec, bytes]]:
    shapes = [(1,), (1, 2), (2, 2), (1, 1, 2, 1)]
    return [
        tensor(f"blk.{index}.ffn_up.weight", (shape[0] * dtype.block_elements, *shape[1:]), dtype)
        for index, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=False))
    ]


def _value_types(begin: int) -> Parts:
    return _parts(every_value_type()[begin : begin + 8], [tensor("token_embd.weight", (4, 3))])


def _aligned(alignment: int) -> Parts:
    parts = _parts(_general(), [tensor("blk.0.attn_q.weight", (3, 3)), tensor("blk.0.attn_k.bias", (5,))])
    with_alignment(parts, alignment)
    return parts


def _decoder() -> Parts:
    f16, q4, q8 = DTYPES[1], DTYPES[2], DTYPES[8]
    tensors = [
        tensor("token_embd.weight", (32, 5), f16),
        tensor("blk.0.attn_norm.weight", (32,)),
        tensor("blk.0.attn_q.weight", (32, 4), q4),
        tensor("blk.0.ffn_down.weight", (32, 8), q8),
        tensor("output_norm.weight", (32,)),
    ]
    return _parts(_general("Decoder"), tensors)


def _experts() -> Parts:
    tensors = [tensor("blk.0.ffn_up_exps.weight", (32, 8, 3), DTYPES[2]), tensor("blk.0.ffn_gate_inp.weight", (32, 3))]
    parents = [
        text("general.version", "1.0"),
        array("general.tags", ValueType.STRING, [b"code", b"gr\xc3\xbc\xc3\x9fe", b"\xff"]),
        unsigned("general.base_model.count", 2),
        text("general.base_model.0.name", "Little"),
        text("general.base_model.0.version", "1.0"),
        text("general.base_model.1.repo_url", "https://example.org/parent"),
    ]
    return _parts([*_general(), *parents, unsigned("llama.expert_count", 3)], tensors)


def _version_2() -> Parts:
    parts = _parts([text("general.architecture", "gpt2"), text("s", b"\xff\xfe")], [tensor("wte", (4, 4))])
    parts.version = 2
    return parts


def _odd_padding() -> Parts:
    parts = _parts([KeyValue("b", ValueType.BOOL, value=True)], [tensor("a", (3,)), tensor("b", (5,))])
    parts.padding, parts.tail = 7, 3
    return parts


def _tokenizers() -> list[Parts]:
    words = [b"<unk>", b"<0x0A>", b"<0xFF>", "▁Grüße".encode(), b"\xff\xfe", b"nul\0"]
    kinds = [NORMAL_TOKEN, BYTE_TOKEN, BYTE_TOKEN, NORMAL_TOKEN, NORMAL_TOKEN, NORMAL_TOKEN]
    llama = [
        text("tokenizer.ggml.model", "llama"),
        array("tokenizer.ggml.tokens", ValueType.STRING, words),
        array("tokenizer.ggml.token_type", ValueType.INT32, kinds),
        array("tokenizer.ggml.scores", ValueType.FLOAT32, [-1.5] * len(words)),
    ]
    pairs = [
        array("tokenizer.ggml.tokens", ValueType.STRING, vocabulary(20)),
        array("tokenizer.ggml.merges", ValueType.STRING, [b"a b", b"c d"]),
        unsigned("tokenizer.ggml.bos_token_id", 1),
    ]
    return [_parts(llama, []), _parts(pairs, [tensor("output.weight", (4, 20))])]


def _shards() -> list[Parts]:
    seeds = []
    for number in range(SHARDS):
        entries = [
            KeyValue("split.no", ValueType.UINT16, number),
            KeyValue("split.count", ValueType.UINT16, SHARDS),
            KeyValue("split.tensors.count", ValueType.INT32, SHARDS),
        ]
        first = _general() if number == 0 else []
        seeds.append(_parts([*first, *entries], [tensor(f"blk.{number}.attn_v.weight", (4, 2))]))
    return seeds


def _large() -> list[Parts]:
    tokens = array("tokenizer.ggml.tokens", ValueType.STRING, vocabulary(5000))
    numbers = array("tokenizer.ggml.scores", ValueType.FLOAT32, [0.5] * 20_000)
    template = text("tokenizer.chat_template", "{{ messages }}" * 5000)
    return [_parts([*_general(), tokens], [tensor("a", (4,))]), _parts([template, numbers], [tensor("a", (4,))])]
