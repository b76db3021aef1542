"""Tests of an organ as a NumPy file: its values equal those of the kernels in any byte range."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from organs.registry.assembly import (
    NpyPlan,
    NpyStream,
    plan_npy,
)
from organs.registry.catalog.queries.blobs import KnownBlob, blobs_by_digest
from organs.registry.digest import digest_of
from organs.registry.errors import UnsupportedDType
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.gguf.quants import dequantize
from organs.registry.local import LocalRegistry
from tests.gguf_files import file_bytes
from tests.small_models import ingest_file


def stored(registry: LocalRegistry, tmp_path: Path, spec: TensorSpec, data: bytes) -> KnownBlob:
    path = tmp_path / "a.gguf"
    path.write_bytes(file_bytes([], [(spec, data)]))
    ingest_file(registry, path)
    with registry.catalog.reading() as session:
        return blobs_by_digest(session, [digest_of(data)])[digest_of(data)]


def read(registry: LocalRegistry, plan: NpyPlan, begin: int = 0, end: int | None = None) -> bytes:
    with NpyStream(registry.blobs, plan, begin, plan.size_bytes if end is None else end, None) as stream:
        return b"".join(map(bytes, stream))


def some_bytes(spec: TensorSpec) -> bytes:
    return np.random.default_rng(3).integers(0, 120, spec.size_bytes, dtype=np.uint8).tobytes()


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("F32", (7, 3)),
        ("F16", (5,)),
        ("BF16", (300, 9)),
        ("I8", (1000,)),
        ("F64", (9,)),
        ("Q8_0", (64, 33)),
        ("Q4_K", (512, 40)),
        ("Q6_K", (256, 3, 5)),
        ("IQ4_NL", (32, 3)),
    ],
)
def test_the_values_equal_those_of_the_kernels(
    dtype: str, shape: tuple[int, ...], registry: LocalRegistry, tmp_path: Path
) -> None:
    spec = TensorSpec("t", shape, dtype_by_name(dtype))
    data = some_bytes(spec)
    plan = plan_npy("t", stored(registry, tmp_path, spec, data), spec.dtype, shape)
    loaded = np.load(io.BytesIO(read(registry, plan)))
    assert loaded.dtype == np.dtype("<f4")
    assert loaded.shape == tuple(reversed(shape))
    assert loaded.tobytes() == dequantize(data, spec.dtype).astype("<f4").tobytes()


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["Q4_K", "F16", "I8"])
def test_any_part_is_the_same_slice_of_the_whole(dtype: str, registry: LocalRegistry, tmp_path: Path) -> None:
    spec = TensorSpec("t", (512, 3000), dtype_by_name(dtype))
    plan = plan_npy("t", stored(registry, tmp_path, spec, some_bytes(spec)), spec.dtype, spec.shape)
    content = read(registry, plan)
    assert len(content) == plan.size_bytes
    random = np.random.default_rng(5)
    edges = [0, 1, 127, 128, 129, 131, 1023, plan.size_bytes - 1, plan.size_bytes]
    spans = [(begin, end) for begin in edges for end in edges if begin <= end]
    spans += [tuple(sorted(random.integers(0, plan.size_bytes, 2).tolist())) for _ in range(30)]
    for begin, end in spans:
        assert read(registry, plan, begin, end) == content[begin:end], (begin, end)


def test_bytes_stored_as_another_type_are_cut_into_the_blocks_of_that_type(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    """Chunks of I8 end at any byte; the same bytes are also stored as Q4_0, whose blocks have 18."""
    spec = TensorSpec("t", (18 * 300_000,), dtype_by_name("I8"))
    data = some_bytes(spec)
    row = stored(registry, tmp_path, spec, data)
    other = dtype_by_name("Q4_0")
    plan = plan_npy("t", row, other, (32, 300_000))
    with registry.blobs.open(row) as reader:
        assert any(chunk.plain_offset_bytes % other.block_bytes for chunk in reader.chunks)
    assert read(registry, plan)[len(plan.head) :] == dequantize(data, other).tobytes()


def test_views_stay_small_however_few_bits_a_weight_has(registry: LocalRegistry, tmp_path: Path) -> None:
    spec = TensorSpec("t", (256, 40_000), dtype_by_name("TQ1_0"))
    plan = plan_npy("t", stored(registry, tmp_path, spec, bytes(spec.size_bytes)), spec.dtype, spec.shape)
    with NpyStream(registry.blobs, plan, 0, plan.size_bytes, None) as stream:
        assert max(len(view) for view in stream) <= 1 << 20


def test_a_type_without_a_kernel_is_refused_before_anything_is_sent() -> None:
    row = KnownBlob(1, digest_of(b""), 36, 36, "raw", 1, None, "present", b"")
    with pytest.raises(UnsupportedDType, match=r"\.raw or \.bin"):
        plan_npy("t", row, dtype_by_name("Q8_1"), (32,))
