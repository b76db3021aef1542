"""The estimate of a model's memory: exact where the header has plain numbers, nothing elsewhere."""

from __future__ import annotations

import pytest

from organs.registry.validation.memory_estimate import estimated_memory

SMOLLM = {
    "llama.block_count": "30",
    "llama.embedding_length": "576",
    "llama.feed_forward_length": "1536",
    "llama.attention.head_count": "9",
    "llama.attention.head_count_kv": "3",
    "tokenizer.ggml.tokens": "[49152 × string]",
}


def test_the_cache_has_the_keys_and_values_of_each_block_and_token() -> None:
    found = estimated_memory(SMOLLM, "llama", 4096)
    assert found is not None
    # llama.cpp prints for this model and context: KV buffer size = 90.00 MiB.
    assert (found.cache_bytes, found.is_most) == (90 * 2**20, False)
    # For this model llama.cpp counts 105 MiB of compute buffers with 2,048 tokens, 110 MiB with 8,192.
    assert 107 * 2**20 < found.buffers_bytes < 107 * 2**20 + 25_000_000
    assert found.beside_bytes == found.cache_bytes + found.buffers_bytes
    rounded = estimated_memory(SMOLLM, "llama", 4000)
    assert rounded is not None
    assert (rounded.context, rounded.cache_bytes) == (4000, found.cache_bytes), "whole steps of 256 tokens"


def test_heads_have_their_own_length_and_all_have_keys_where_nothing_else_is_said() -> None:
    own = SMOLLM | {"llama.attention.key_length": "128", "llama.attention.value_length": "64"}
    found = estimated_memory(own, "llama", 256)
    assert found is not None
    assert found.cache_bytes == 256 * 30 * 3 * (128 + 64) * 2
    all_heads = {key: value for key, value in SMOLLM.items() if not key.endswith("head_count_kv")}
    found = estimated_memory(all_heads, "llama", 256)
    assert found is not None
    assert found.cache_bytes == 256 * 30 * 9 * (64 + 64) * 2


def test_a_window_makes_the_cache_smaller_so_the_estimate_is_the_most() -> None:
    found = estimated_memory(SMOLLM | {"llama.attention.sliding_window": "512"}, "llama", 4096)
    assert found is not None
    assert (found.cache_bytes, found.is_most) == (90 * 2**20, True)


@pytest.mark.parametrize(
    "more",
    [
        {"llama.attention.head_count_kv": "[30 × int32]"},
        {"llama.block_count": "many"},
        {"llama.block_count": "9" * 40},
        {"llama.ssm.state_size": "16"},
        {"llama.attention.kv_lora_rank": "512"},
        {"tokenizer.ggml.tokens": "x"},
    ],
)
def test_nothing_is_estimated_where_the_header_has_no_plain_numbers(more: dict[str, str]) -> None:
    assert estimated_memory(SMOLLM | more, "llama", 4096) is None


def test_nothing_is_estimated_for_another_architecture() -> None:
    assert estimated_memory(SMOLLM, "qwen2", 4096) is None
    assert estimated_memory({}, None, 4096) is None
