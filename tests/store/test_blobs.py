"""Tests of blobs: they read back completely or in part, from files and rows; wrong rows are detected."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from organs.registry.digest import Digest, digest_of
from organs.registry.errors import CorruptBlob, MissingBlob
from organs.registry.gguf import dtype_by_name
from organs.registry.gguf.quants import dequantize, quantize
from organs.registry.measure import measure
from organs.registry.store import BlobStore, BlobWriter, OrganEncoder, RangeReader, StoredBlob
from organs.registry.store.codec import BYTES_CODEC, CHUNK_TARGET_BYTES, Codec, codec_for, derive_codec, encode_chunk
from organs.registry.store.files import Files
from tests.random_files import PATIENT

KIBI, MEBI, TEBI = 1 << 10, 1 << 20, 1 << 40


@dataclass(frozen=True, slots=True)
class Address:
    """The values of a catalog row."""

    digest: Digest
    size_bytes: int
    stored_bytes: int
    file: str | None
    inline: bytes | None
    is_set_aside: bool = False
    parts: tuple[Address, ...] = ()
    parent: Address | None = None


def address(blob: StoredBlob) -> Address:
    return Address(blob.digest, blob.size_bytes, blob.stored_bytes, blob.file, blob.inline)


def sample(size: int, seed: int = 0) -> bytes:
    """Return bytes that differ everywhere and are moderately compressible."""
    return np.random.default_rng([size, seed]).integers(0, 40, size, dtype=np.uint8).tobytes()


def half_floats(elements: int, seed: int = 0) -> bytes:
    """Return weights like those of a trained layer, as BF16."""
    values = (0.02 * np.random.default_rng(seed).standard_normal(elements)).astype("<f4")
    return (values.view("<u4") >> 16).astype("<u2").tobytes()


def write(store: BlobStore, codec: Codec, plain: bytes) -> StoredBlob:
    """Store `plain` as an ingest does: the first chunk decides whether encoding pays."""
    chunks = [plain[begin : begin + codec.chunk_bytes] for begin in range(0, len(plain), codec.chunk_bytes)]
    chosen_codec = OrganEncoder.alone(codec, chunks[0]).codec
    writer = BlobWriter(store, digest_of(plain), len(plain), chosen_codec)
    for chunk in chunks:
        writer.append(encode_chunk(chosen_codec, chunk))
    return writer.finish()


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


@dataclass(frozen=True, slots=True)
class Kept:
    """A store that is only read, with its blobs and their plain bytes."""

    store: BlobStore
    of_size: dict[int, tuple[bytes, StoredBlob]]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    store = BlobStore(tmp_path_factory.mktemp("kept"))
    samples = [sample(size) for size in (0, 10, 5000, 2 * CHUNK_TARGET_BYTES + 777)]
    return Kept(store, {len(plain): (plain, store.put(plain)) for plain in samples})


@pytest.mark.parametrize(
    ("plain", "codec", "least", "most"),
    [
        (half_floats(20), codec_for("BF16").kept_raw(), 1, 4),
        (half_floats(40_000), codec_for("BF16"), 0.5, 0.7),
        (half_floats(2 * MEBI + 5), codec_for("BF16"), 0.5, 0.7),
        (np.random.default_rng(3).bytes(5 * MEBI), codec_for("BF16").kept_raw(), 1, 1 + 200 / (5 * MEBI)),
    ],
    ids=["a few values", "a row", "several chunks", "noise"],
)
def test_a_tensor_is_stored_in_its_own_codec_or_raw_if_that_does_not_pay(
    plain: bytes, codec: Codec, least: float, most: float, store: BlobStore
) -> None:
    blob = write(store, codec_for("BF16"), plain)
    assert blob.codec == codec.name
    assert least * blob.size_bytes <= blob.stored_bytes <= most * blob.size_bytes
    with store.open(address(blob)) as reader:
        assert reader.read() == plain


@settings(PATIENT, max_examples=60)
@given(st.data())
def test_any_range_equals_that_of_the_plain_bytes(kept: Kept, data: st.DataObject) -> None:
    plain, blob = kept.of_size[data.draw(st.sampled_from(sorted(kept.of_size)))]
    begin = data.draw(st.integers(0, len(plain)))
    end = data.draw(st.integers(begin, len(plain)))
    with kept.store.open(address(blob)) as reader:
        assert reader.read(begin, end - begin) == plain[begin:end]
        assert reader.read(begin) == plain[begin:]


def test_a_range_reads_only_its_own_chunks(tmp_path: Path) -> None:
    class Counting(Files):
        read_bytes = 0

        def read_at(self, descriptor: int, offset: int, size: int) -> bytes:
            self.read_bytes += size
            return super().read_at(descriptor, offset, size)

    plain = np.random.default_rng(1).bytes(5 * CHUNK_TARGET_BYTES)
    blob = BlobStore(tmp_path).put(plain)
    files = Counting()
    with BlobStore(tmp_path, files).open(address(blob)) as reader:
        files.read_bytes = 0
        start = 3 * CHUNK_TARGET_BYTES
        assert reader.read(start + 10, 100) == plain[start + 10 : start + 110]
        assert files.read_bytes <= 1.01 * CHUNK_TARGET_BYTES
        files.read_bytes = 0
        assert reader.read(start - 10, 20) == plain[start - 10 : start + 10]
        assert files.read_bytes <= 2.02 * CHUNK_TARGET_BYTES


def test_several_threads_read_one_blob(store: BlobStore) -> None:
    plain = half_floats(8 * MEBI)
    blob = write(store, codec_for("BF16"), plain)
    out = bytearray(len(plain))
    with store.open(address(blob)) as reader, ThreadPoolExecutor(4) as pool:
        view = memoryview(out)
        places = [view[chunk.plain_offset_bytes :][: chunk.plain_size_bytes] for chunk in reader.chunks]
        list(pool.map(reader.read_chunk, reader.chunks, places))
    assert len(places) == 4
    assert out == plain


def test_a_large_blob_is_streamed_in_the_memory_of_a_few_chunks(store: BlobStore) -> None:
    blob = write(store, codec_for("BF16"), half_floats(16 * MEBI))
    with store.open(address(blob)) as reader:
        tracemalloc.start()
        try:
            assert sum(len(piece) for piece in reader.stream()) == 32 * MEBI
            assert tracemalloc.get_traced_memory()[1] < 4 * CHUNK_TARGET_BYTES
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("size", [1000, 100_000])
@pytest.mark.parametrize(
    "lie",
    [
        lambda row: replace(row, size_bytes=row.size_bytes - 1),
        lambda row: replace(row, size_bytes=row.size_bytes + 1),
        lambda row: replace(row, size_bytes=TEBI),
        lambda row: replace(row, size_bytes=0),
        lambda row: replace(row, stored_bytes=row.stored_bytes + 1),
        lambda row: replace(row, stored_bytes=TEBI),
        lambda row: replace(row, digest=digest_of(b"something else")),
    ],
    ids=["one short", "one long", "a terabyte", "nothing", "stored one long", "stored a terabyte", "other digest"],
)
def test_a_wrong_row_is_detected_before_memory_is_allocated(
    lie: Callable[[Address], Address], size: int, store: BlobStore
) -> None:
    row = lie(address(store.put(sample(size))))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBlob):
            store.open(row)
        assert tracemalloc.get_traced_memory()[1] < 256 * KIBI
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [1000, 100_000])
def test_a_blob_cut_anywhere_is_refused_when_it_is_opened(size: int, store: BlobStore) -> None:
    row = address(store.put(sample(size)))
    for length in {0, 1, 31, 32, 80, row.stored_bytes // 2, row.stored_bytes - 1}:
        if row.inline is not None:
            cut = replace(row, inline=row.inline[:length])
        else:
            path = store.backend.path(row.file or "")
            path.chmod(0o644)
            with path.open("r+b") as stream:
                stream.truncate(length)
            cut = row
            with pytest.raises(CorruptBlob):
                store.open(replace(row, stored_bytes=length))
        with pytest.raises(CorruptBlob):
            store.open(cut)


def test_the_blob_of_a_row_without_bytes_is_missing(store: BlobStore) -> None:
    row = replace(address(store.put(sample(10))), inline=None)
    with pytest.raises(MissingBlob, match=row.digest):
        store.open(row)


def test_bytes_with_another_digest_are_detected_by_hashing(store: BlobStore) -> None:
    plain, other = sample(100_000), sample(100_000, seed=1)
    writer = BlobWriter(store, digest_of(plain), len(plain), BYTES_CODEC)
    writer.append(encode_chunk(BYTES_CODEC, other))
    with store.open(address(writer.finish())) as reader:
        assert reader.read() == other, "every checksum fits"
        with pytest.raises(CorruptBlob, match=digest_of(other)):
            reader.verify()


def test_a_refused_file_is_closed(store: BlobStore) -> None:
    row = address(store.put(sample(100_000)))
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(CorruptBlob):
            store.open(replace(row, size_bytes=99_999))
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_a_blob_whose_file_is_gone_is_read_at_its_present_address_also_as_part_of_a_stack(tmp_path: Path) -> None:
    plain = half_floats(40_000), half_floats(40_000, 1)
    store = BlobStore(tmp_path)
    first, other = (address(write(store, codec_for("BF16"), part)) for part in plain)
    again = address(write(store, codec_for("BF16").kept_raw(), plain[0]))
    whole = b"".join(plain)
    stack = Address(digest_of(whole), len(whole), 0, None, None, parts=(first, other))
    store.backend.remove(first.file or "")
    with pytest.raises(MissingBlob):
        store.reader(first)
    with store.reader(stack) as reader, pytest.raises(MissingBlob, match="part 0"):
        reader.read()
    looking = BlobStore(tmp_path, current={first.digest: again}.get)
    with looking.reader(first) as reader:
        assert reader.read() == plain[0]
    with looking.reader(stack) as reader:
        assert reader.read() == whole
        reader.verify()


def test_chunks_that_need_the_same_chunk_of_a_parent_are_read_together(store: BlobStore) -> None:
    base = half_floats(5 * MEBI)
    parent = address(write(store, codec_for("BF16"), base))
    rounded = dequantize(base, dtype_by_name("BF16"))
    plain = bytes(quantize(rounded, dtype_by_name("Q8_0")))
    codec = derive_codec("Q8_0", "BF16")
    stored = store.put_organ(digest_of(plain), len(plain), codec, BytesIO(plain).read, parent)
    with store.open(replace(address(stored), parent=parent)) as reader:
        assert [chunk.plain_size_bytes for chunk in reader.chunks] == [34 * 32 * KIBI] * 5
        assert reader.chunks_together == 2
        assert reader.read() == plain
    with store.open(parent) as reader:
        assert reader.chunks_together == 1


def test_the_measures_of_a_stack_do_not_change_the_bytes_that_a_reader_keeps(store: BlobStore) -> None:
    dtype, shape = (
        dtype_by_name("F32"),
        (128, 64, 40),
    )  # more values than a sample, and experts that are read as a whole
    data = np.random.default_rng(8).standard_normal(128 * 64 * 40, np.float32).tobytes()
    with store.open(address(write(store, codec_for("F32"), data))) as reader:
        ranges = RangeReader(reader)
        assert measure(ranges.read, shape, dtype) == measure(
            lambda begin, size: data[begin : begin + size], shape, dtype
        )
        assert ranges.read(0, len(data)) == data
