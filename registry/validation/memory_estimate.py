"""How much memory a file of a model takes beside its weights, from the header alone. Pure.

The exact count is that of the runtime, which loads the file: `registry.validation.memory`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CONTEXT_STEP = 256
"""llama.cpp rounds the tokens of a context up to a multiple of this."""
CACHE_VALUE_BYTES = 2
"""The default type of the cache is F16."""
BATCH_TOKENS = 512
LOGIT_BYTES = 4
MASK_BYTES = 2
"""Of a token of a micro-batch and a token of the context."""
ACTIVATIONS, ACTIVATION_BYTES = 4, 4
"""So many vectors as long as the feed-forward's are counted for each token of a micro-batch: twice what was seen."""
OTHER_BYTES = 10_000_000
OTHER_CACHES = ("ssm.", "wkv.", "attention.kv_lora_rank", "attention.key_length_mla", "full_attention_interval")
"""Beginnings of keys of models whose cache is not one key and one value for each head of each block."""
SMALLER_CACHE = ("attention.sliding_window", "attention.shared_kv_layers")
"""Keys of models in which some blocks keep less than the whole context."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What a runtime takes beside the file, in bytes."""

    context: int
    cache_bytes: int
    is_most: bool
    """Whether the cache may take less: some blocks keep only a window of the context."""
    buffers_bytes: int
    """The logits of a micro-batch and what is computed for them, rather too much than too little."""

    @property
    def beside_bytes(self) -> int:
        """The cache and the buffers together."""
        return self.cache_bytes + self.buffers_bytes


def estimated_memory(metadata: Mapping[str, str], architecture: str | None, context: int) -> MemoryEstimate | None:
    """Return the estimate for `context` tokens, from the entries of a header as texts.

    The cache has, for each token and block, the keys and the values of all heads that have their own. Return None if
    the header does not say this in plain numbers, and for architectures with another cache.
    """

    def number(key: str) -> int | None:
        text = metadata.get(f"{architecture}.{key}", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None

    own = [key.removeprefix(f"{architecture}.") for key in metadata if key.startswith(f"{architecture}.")]
    if any(key.startswith(OTHER_CACHES) for key in own):
        return None
    blocks, width, heads = number("block_count"), number("embedding_length"), number("attention.head_count")
    pairs = number("attention.head_count_kv") if "attention.head_count_kv" in own else heads
    if not (blocks and width and heads and pairs):
        return None
    lengths = [number(f"attention.{name}_length") or width // heads for name in ("key", "value")]
    tokens = -(-context // CONTEXT_STEP) * CONTEXT_STEP
    listed = metadata.get("tokenizer.ggml.tokens", "")  # as text: `[49152 × string]`
    words = listed.removeprefix("[").partition(" ")[0]
    if not (words.isascii() and words.isdigit() and len(words) <= 9):
        return None
    forward = (number("feed_forward_length") or 4 * width) * (number("expert_used_count") or 1)
    token_bytes = int(words) * LOGIT_BYTES + tokens * MASK_BYTES + ACTIVATIONS * forward * ACTIVATION_BYTES
    return MemoryEstimate(
        context=context,
        cache_bytes=tokens * blocks * pairs * sum(lengths) * CACHE_VALUE_BYTES,
        is_most=any(key in own for key in SMALLER_CACHE),
        buffers_bytes=BATCH_TOKENS * token_bytes + OTHER_BYTES,
    )
