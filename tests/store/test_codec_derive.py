"""Tests of residuals: blocks of quants and casts of floats, less what a source predicts."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from organs.registry.gguf.quants import dequantize, quantize
from organs.registry.gguf.types import DTYPES, DType, dtype_by_name
from organs.registry.store.codec import codec_for, derive, fast
from organs.registry.store.codec.fast import Bytes
from organs.registry.store.codec.planes import join_planes, split_planes
from tests.llama_quants import quantised
from tests.store.codec_cases import odd_bytes

ROW = 1024
PAIRS = [
    (source, target) for source in DTYPES.values() for target in DTYPES.values() if derive.can_derive(source, target)
]
PAIRS_OF_EACH = [pair for pair in PAIRS if pair[0].name == "BF16" or pair[1].name == "Q4_K"]
"""Each target once, and each source."""
F16 = dtype_by_name("F16")


def layer(rows: int = 32, seed: int = 0) -> NDArray[np.float32]:
    """Return rows like those of a trained layer: scales of their own, heavy tails, outliers, zeros and a constant."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((rows, ROW)) * np.exp(generator.normal(-4, 0.4, (rows, 1)))
    values[:4] = generator.standard_t(4, (4, ROW)) * 0.02
    values[4:6] *= np.where(generator.random((2, ROW)) < 0.01, 30, 1)
    values[6] = 0
    values[7] = -0.0125
    values[8, ::2] = 0
    return values.astype(np.float32)


def importance(weighted: bool) -> NDArray[np.float32] | None:
    """Return an importance matrix, or None."""
    return np.random.default_rng(5).gamma(1, 1, ROW).astype(np.float32) if weighted else None


def residual_of(source: DType, target: DType, source_bytes: Bytes, plain: Bytes) -> Bytes:
    """Return the residual of `plain`, after it was restored and compared."""
    residual, restored = np.empty_like(plain), np.empty_like(plain)
    derive.to_residual(source, target, source_bytes, plain, residual)
    derive.from_residual(source, target, source_bytes, residual, restored)
    assert np.array_equal(plain, restored)
    return residual


def pair(source: str, target: str) -> tuple[DType, DType]:
    return dtype_by_name(source), dtype_by_name(target)


@settings(deadline=None, max_examples=150)
@given(
    pair=st.sampled_from(PAIRS),
    units=st.integers(0, 6),
    seeds=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    odd=st.tuples(st.sampled_from([0.0, 0.1, 1.0]), st.sampled_from([0.0, 0.1, 1.0])),
)
def test_any_bytes_are_restored_from_any_source(
    pair: tuple[DType, DType], units: int, seeds: tuple[int, int], odd: tuple[float, float]
) -> None:
    source, target = pair
    elements = units * max(source.block_elements, target.block_elements)
    source_bytes = odd_bytes(source.size_bytes(elements), seeds[0], odd[0])
    residual_of(source, target, source_bytes, odd_bytes(target.size_bytes(elements), seeds[1], odd[1]))


@pytest.mark.parametrize(("source", "target"), PAIRS_OF_EACH)
def test_lengths_around_a_piece_are_restored(source: DType, target: DType) -> None:
    for elements in (derive.PIECE_ELEMENTS - 256, derive.PIECE_ELEMENTS, derive.PIECE_ELEMENTS + 256):
        residual_of(
            source,
            target,
            odd_bytes(source.size_bytes(elements), 3, 0.01),
            odd_bytes(target.size_bytes(elements), 4, 0.01),
        )


ALL = slice(None)
K_QUANTS = {
    "Q4_K": slice(16, 144),
    "Q5_K": slice(16, 176),
    "Q6_K": slice(192),
    "Q2_K": slice(16, 80),
    "Q3_K": slice(96),
}
"""The bytes of a block, and those of its quants."""
PREDICTED = [
    *((source, target, False, ALL, 0.0) for source in ("F32", "F16", "BF16") for target in ("Q8_0", "Q4_0", "Q4_1")),
    *((source, target, False, ALL, 0.0) for source in ("F32", "BF16", "Q8_0") for target in ("Q5_0", "Q5_1", "Q4_0")),
    *((source, "Q4_K", weighted, K_QUANTS["Q4_K"], 0.0) for source in ("F32", "Q8_0") for weighted in (False, True)),
    *((source, "Q5_K", weighted, K_QUANTS["Q5_K"], 0.0) for source in ("F16", "BF16") for weighted in (False, True)),
    *((source, "Q6_K", weighted, K_QUANTS["Q6_K"], 0.0) for source in ("F32", "BF16") for weighted in (False, True)),
    *(("BF16", target, weighted, K_QUANTS[target], 0.01) for target in ("Q2_K", "Q3_K") for weighted in (False, True)),
    *(("BF16", "IQ4_NL", weighted, slice(2, 18), 0.01) for weighted in (False, True)),
    *(("BF16", "IQ4_XS", weighted, slice(8, 136), 0.01) for weighted in (False, True)),
    *(("BF16", target, True, slice(-16, None), 0.02) for target in ("Q4_0", "Q4_1", "Q5_0", "Q5_1")),
    *((source, "F32", False, ALL, 0.0) for source in ("F16", "BF16")),
]


@pytest.mark.parametrize(("source", "target", "weighted", "part", "most"), PREDICTED)
def test_a_source_predicts_the_quants_of_llama_cpp(
    source: str, target: str, weighted: bool, part: slice, most: float
) -> None:
    fine, coarse = pair(source, target)
    source_bytes = quantised(layer(), fine)
    plain = quantised(dequantize(source_bytes.data, fine).reshape(-1, ROW), coarse, importance(weighted))
    residual = residual_of(fine, coarse, source_bytes, plain).reshape(-1, coarse.block_bytes)[:, part]
    assert np.count_nonzero(residual) <= most * residual.size


@pytest.mark.parametrize("target", ["F16", "BF16"])
def test_casts_of_any_float_by_llama_cpp_follow_from_their_source(target: str) -> None:
    fine, coarse = pair("F32", target)
    odd = np.array([np.nan, -np.nan, np.inf, -np.inf, 1e-40, -6e-8, 65504, 65520, 3.4e38, -0.0], np.float32)
    values = np.concatenate([layer(), np.resize(odd, (1, ROW))])
    assert not residual_of(fine, coarse, quantised(values, fine), quantised(values, coarse)).any()


@pytest.mark.parametrize(
    ("source", "target"), [(source, target) for source, target in PAIRS if derive.is_dequantised(source, target)]
)
def test_dequantised_weights_are_predicted_to_the_last_bit(source: DType, target: DType) -> None:
    blocks = quantised(layer(), source)
    plain = np.frombuffer(quantize(dequantize(blocks.tobytes(), source), target), np.uint8)
    assert not residual_of(source, target, blocks, plain).any()


def test_infinite_and_missing_scales_are_restored_without_a_warning() -> None:
    elements = 512
    sources = {source.name: quantised(layer()[4:8], source)[: source.size_bytes(elements)] for source, _ in PAIRS}
    for word in (0x0000, 0x8000, 0x0001, 0x83FF, 0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF):
        repeated = np.resize(np.array([word], "<u2").view(np.uint8), 4 * elements)
        for source, target in PAIRS:
            plain = repeated[: target.size_bytes(elements)]
            residual_of(source, target, sources[source.name], plain)
            residual_of(source, target, repeated[: source.size_bytes(elements)], plain)


def test_quantisations_are_sources_of_floats_only() -> None:
    for source, target in (
        ("Q4_K", "Q4_K"),
        ("Q8_0", "Q8_0"),
        ("F32", "F32"),
        ("Q4_K", "Q8_0"),
        ("Q8_0", "F64"),
        ("F32", "I8"),
    ):
        assert not derive.can_derive(*pair(source, target))


def both_ways(source: DType, target: DType, source_bytes: Bytes, before: Bytes) -> Iterator[bytes]:
    """Yield the residual of `before`, and the plain bytes that have this residual."""
    for transform in (derive.to_residual, derive.from_residual):
        after = np.empty_like(before)
        transform(source, target, source_bytes, before, after)
        yield after.tobytes()


def compare_kernels(
    kernels: fast.Kernels, pairs: Sequence[tuple[DType, DType]], elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Assert that `kernels` and numpy return the same bytes, for real and for odd content."""
    for source, target in pairs:
        size = target.size_bytes(elements)
        cases = [
            (quantised(layer(), source)[: source.size_bytes(elements)], quantised(layer(), target)[:size]),
            (odd_bytes(source.size_bytes(elements), 6, 0.1), odd_bytes(size, 7, 0.1)),
        ]
        for source_bytes, before in cases:
            results = []
            for used in (None, kernels):
                monkeypatch.setattr(fast, "kernels", lambda used=used: used)
                with np.errstate(all="ignore"):
                    results.append(list(both_ways(source, target, source_bytes, before)))
            assert results[0] == results[1], f"{source.name} to {target.name}"


def test_the_kernels_return_the_same_bytes_as_numpy_also_for_the_last_blocks_of_a_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compare_kernels(fast.interpreted(), PAIRS_OF_EACH, 256, monkeypatch)
    monkeypatch.setattr(fast, "TOGETHER", 512)
    compare_kernels(fast.interpreted(), [pair for pair in PAIRS_OF_EACH if pair[0].name == "BF16"], 768, monkeypatch)


def test_the_kernel_joins_planes_as_numpy_does(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = codec_for("BF16")
    plain = np.arange(1 << 16, dtype="<u2").view(np.uint8)
    planes = [np.empty(1 << 16, np.uint8) for _ in codec.planes]
    split_planes(codec, plain, planes)
    for kernels in (None, fast.interpreted()):
        monkeypatch.setattr(fast, "kernels", lambda kernels=kernels: kernels)
        joined = np.empty_like(plain)
        join_planes(codec, planes, joined)
        assert np.array_equal(joined, plain)


@pytest.mark.numba
def test_compiled_kernels_return_the_same_bytes_as_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    fast.warm()
    kernels = fast.kernels()
    assert kernels is not None
    compare_kernels(kernels, PAIRS, 16 * ROW - 256, monkeypatch)


def test_without_numba_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "_state", type(fast._state)())
    assert fast.kernels() is None
    monkeypatch.setitem(sys.modules, "numba", None)
    fast.warm()
    assert fast.kernels() is None


@pytest.mark.parametrize(
    ("has_cache", "message"),
    [(True, "the kernels cannot be compiled, numpy is used instead"), (False, fast.NO_CACHE)],
)
def test_a_numba_that_fails_is_logged_once_and_numpy_does_the_work(
    has_cache: bool, message: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def register_jitable(**_: object) -> None:
        raise TypeError("broken")

    def njit(*, cache: bool) -> Callable[[object], None]:
        if cache and not has_cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda _loop: None

    numba, extending = ModuleType("numba"), ModuleType("numba.extending")
    monkeypatch.setattr(numba, "njit", njit, raising=False)
    monkeypatch.setattr(extending, "register_jitable", register_jitable, raising=False)
    monkeypatch.setitem(sys.modules, "numba", numba)
    monkeypatch.setitem(sys.modules, "numba.extending", extending)
    monkeypatch.setattr(fast, "_state", type(fast._state)())
    with caplog.at_level(logging.WARNING):
        fast.warm()
        fast.warm()
    assert fast.kernels() is None
    assert [record.message for record in caplog.records] == [message]
    assert [record.exc_info is None for record in caplog.records] == [not has_cache], "no traceback for a setting"
