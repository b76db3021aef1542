"""Tests of the count of llama.cpp's memory, beside sizes that follow from a model's header."""

from __future__ import annotations

from pathlib import Path

import pytest

from organs.registry.entities.memory import MemoryBuffer
from organs.registry.errors import BadInput
from organs.registry.gguf.types import dtype_by_name
from organs.registry.sandbox.process import ProcessLimits
from organs.registry.validation import memory
from organs.registry.validation.counter import CountOrder, buffers_of, check_effect
from organs.registry.validation.decoder import UnknownInterface, context_members
from organs.registry.validation.memory import MemoryRequest, counted_memory, free_memory, write_hole
from organs.registry.validation.runtime import RuntimeFailed
from organs.registry.validation.weights import Weights
from tests.small_models import small_model
from tests.validation.changed_models import A_F16, A

MIB = 1024**2
STEP = MIB / 100
"""The resolution of the log."""


def cache_bytes(model: Path, tokens: int, cache_type: str) -> int:
    """Return the size of the cache by the header: a key and a value for each block, head and token."""
    with Weights(model) as weights:
        header = weights.headers[0]
        kind = header.architecture
        blocks, heads, width, all_heads = (
            header.integer(f"{kind}.{name}") or 0
            for name in ("block_count", "attention.head_count_kv", "embedding_length", "attention.head_count")
        )
    return 2 * blocks * tokens * dtype_by_name(cache_type.upper()).size_bytes(heads * width // all_heads)


@pytest.mark.parametrize(("tokens", "cache_type"), [(256, "f16"), (1024, "f16"), (1024, "q8_0"), (1024, "f32")])
def test_weights_and_cache_have_the_sizes_that_follow_from_the_header(tokens: int, cache_type: str) -> None:
    count = counted_memory(A_F16, MemoryRequest(tokens, cache_type))
    with Weights(A_F16) as weights:
        data = sum(spot.size_bytes for spot in weights.spots.values())
    assert count.weights_bytes == pytest.approx(data, abs=STEP)
    assert count.cache_bytes == pytest.approx(cache_bytes(A_F16, tokens, cache_type), abs=STEP)
    assert count.compute_bytes > 0
    assert count.total_bytes == sum(buffer.size_bytes for buffer in count.buffers)
    assert (count.model, count.context_tokens, count.cache_type) == (A_F16.name, tokens, cache_type)


def test_without_a_wish_the_context_is_that_of_the_model_and_smaller_batches_need_less() -> None:
    count = counted_memory(A, name="me/zoo@1")
    assert (count.model, count.context_tokens, count.micro_batch) == ("me/zoo@1", 256, 512)
    small = counted_memory(A, MemoryRequest(micro_batch=32))
    assert small.compute_bytes < count.compute_bytes
    assert small.cache_bytes == count.cache_bytes


def test_a_file_with_a_hole_in_the_place_of_its_data_has_the_same_count(tmp_path: Path) -> None:
    with Weights(A) as weights:
        header = A.read_bytes()[: weights.headers[0].data_offset]
    hole = tmp_path / "hole.gguf"
    write_hole(hole, header, A.stat().st_size)
    assert hole.stat().st_size == A.stat().st_size
    assert hole.stat().st_blocks * 512 < A.stat().st_size / 2
    assert counted_memory(hole).buffers == counted_memory(A).buffers


def test_a_context_that_does_not_fit_into_free_memory_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert 0 < free_memory() < 1 << 50
    monkeypatch.setattr(memory, "free_memory", lambda: 1000 * MIB)
    with pytest.raises(RuntimeFailed) as caught:
        counted_memory(A, MemoryRequest(1 << 24))
    assert str(caught.value) == (
        f"{A.name}: a context of 16,777,216 tokens does not fit into the memory of this machine: it needs a buffer of "
        "25.8 GB, and 943.7 MB are free for all of it"
    )


def test_all_that_is_wrong_with_a_wish_is_said_at_once() -> None:
    with pytest.raises(BadInput) as caught:
        MemoryRequest(0, "q3", 0, "maybe", "cuda")
    for part in ("0 tokens", "'q3'", "micro-batch of 0", "'maybe'", "'cuda'"):
        assert part in str(caught.value)


def test_a_file_that_llama_cpp_refuses_and_a_child_that_is_stopped_are_failures(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(small_model())
    with pytest.raises(RuntimeFailed, match=r"^broken\.gguf: the model was refused: .*key not found"):
        counted_memory(broken)
    with pytest.raises(RuntimeFailed, match=r"was stopped while it loaded the model: it took longer than 0\.01 s"):
        counted_memory(A, limits=ProcessLimits(wall_seconds=0.01))
    with pytest.raises(RuntimeFailed, match="quantized V cache"):
        counted_memory(A, MemoryRequest(cache_type="q8_0", flash_attention="off"))


LOG = [
    "load_tensors:   CPU_Mapped model buffer size =    92.10 MiB",
    "load_tensors:   CPU_Mapped model buffer size =     7.90 MiB",
    "load_tensors:   CPU_REPACK model buffer size =    12.66 MiB",
    "llama_context:        CPU  output buffer size =     0.19 MiB",
    "llama_kv_cache:        CPU KV buffer size =    24.00 MiB",
    "llama_kv_cache:        CPU KV buffer size =   120.00 MiB",
    "llama_kv_cache: size =  120.00 MiB (8192 cells, 15 layers, 1/1 seqs), K (f16):   60.00 MiB, V (f16):   60.00 MiB",
    "llama_context: flash_attn            = auto",
    "sched_reserve:        CPU compute buffer size =   534.28 MiB",
    "sched_reserve:        CPU compute buffer size =   500.00 MiB",
]


def test_every_line_with_the_size_of_a_buffer_counts_and_a_new_compute_buffer_replaces_the_last_one() -> None:
    def buffer(name: str, content: str, size: float) -> MemoryBuffer:
        return MemoryBuffer(name=name, content=content, size_bytes=round(size * MIB))

    assert buffers_of(LOG) == (
        buffer("CPU_Mapped", "model", 92.10),
        buffer("CPU_Mapped", "model", 7.90),
        buffer("CPU_REPACK", "model", 12.66),
        buffer("CPU", "output", 0.19),
        buffer("CPU", "KV", 24),
        buffer("CPU", "KV", 120),
        buffer("CPU", "compute", 500),
    )
    with pytest.raises(UnknownInterface, match="does not tell the sizes"):
        buffers_of(LOG[3:])


@pytest.mark.parametrize(
    ("cache_name", "flash_attention", "is_used"),
    [("f16", "auto", True), ("q8_0", "auto", False), ("f16", "on", False)],
)
def test_the_log_says_whether_the_parameters_are_used(cache_name: str, flash_attention: str, is_used: bool) -> None:
    order = CountOrder(
        model="", tokens=1, cache_type=1, cache_name=cache_name, micro_batch=1, flash_attention=flash_attention
    )
    if is_used:
        check_effect(LOG, order)
    else:
        with pytest.raises(UnknownInterface, match="does not use the parameters"):
            check_effect(LOG, order)


NUMBERS = (b"\2\0\0\0" * 8) + b"\xff" * 16 + bytes(8)
"""Some parameters before the callback: among them four that are -1."""


@pytest.mark.parametrize("between", [0, 8, 24])
def test_members_are_found_by_their_defaults_wherever_they_are(between: int) -> None:
    front = NUMBERS + b"\3" * between
    defaults = front + bytes(16) + b"\1\0\0\0\1\0\0\0" + bytes(16 + between) + b"\0\1\1\1\1\0" + bytes(100)
    members = context_members(defaults)
    assert members.flash_attention == 32 + 12
    assert (members.callback, members.cache_types) == (len(front), len(front) + 16)
    assert members.full_windows == len(front) + 24 + 16 + between + 4


@pytest.mark.parametrize(
    "defaults",
    [b"", bytes(600), NUMBERS + bytes(24) + b"\1\0\0\0\1\0\0\0" + bytes(200), b"\2" * 64 + bytes(16) + b"\1\0\0\0" * 2],
    ids=["nothing", "only zeros", "no switches", "no numbers"],
)
def test_other_parameters_are_an_unknown_interface(defaults: bytes) -> None:
    with pytest.raises(UnknownInterface, match=r"has other (parameters|switches) of a context"):
        context_members(defaults)
