"""Tests of the adapter of the zoo merged into its base, tensor by tensor, against the sum in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from organs.registry.anatomy import LORA_SUFFIXES, TOKEN_EMBEDDING, adapted_tensor, place_of
from organs.registry.gguf import MemorySource, read_header
from organs.registry.transform import Adapter, Computation, Plain, misfit
from tests.transform.memory_organs import Reads, computed_bytes, values_in, values_of

ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo"


def organs_of(name: str) -> dict[str, Plain]:
    source = MemorySource((ZOO / name).read_bytes(), name)
    header = read_header(source)

    organs = {}
    for info in header.tensors:
        data = bytes(source.read_at(header.data_offset + info.offset, info.size_bytes))
        organs[info.name] = Plain(Reads(data, []), info.dtype, info.shape)
    return organs


def test_the_adapter_of_the_zoo_merges_to_the_float64_sum_rounded_to_f16() -> None:
    base, adapter = organs_of("Zoo-A-2M-v1.0-F16.gguf"), organs_of("Zoo-A-2M-Code-LoRA-v1.0-F32.gguf")
    adapted = sorted({name for name in map(adapted_tensor, adapter) if name is not None})
    assert len(adapted) == len(adapter) // 2 > 20
    for name in adapted:
        source, a, b = base[name], *(adapter[name + suffix] for suffix in LORA_SUFFIXES)
        lookup = place_of(name) == TOKEN_EMBEDDING
        assert misfit(source.shape, a.shape, b.shape, lookup) is None
        row, rows, rank = *source.shape, b.shape[0]
        factors = values_of(b).reshape(-1, rank), values_of(a).reshape(rank, -1)
        assert not lookup, "no adapter of the zoo changes the embedding"
        expected = values_of(source).reshape(rows, row) + 0.8 * 32 / rank * (factors[0] @ factors[1])
        merged = values_in(computed_bytes(Computation(source, source.dtype, (Adapter(a, b, 32.0, 0.8),))), source.dtype)
        half_a_step = np.maximum(np.abs(expected) * 2**-11, 2**-25) if source.dtype.name == "F16" else 1e-7
        assert (np.abs(merged - expected.ravel()).reshape(rows, row) <= half_a_step * (1 + 1e-6)).all(), name
