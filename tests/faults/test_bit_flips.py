"""Tests of a flipped bit in each region of a stored blob, for every codec, in files and in rows.

Reading must raise. Wrong bytes are never returned, and no wrong file is written; the few bits of a Zstandard frame
without a meaning give the same plain bytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from organs.registry.catalog.tables import InlineBlob
from organs.registry.digest import digest_of
from organs.registry.errors import CorruptBlob, StoreError
from organs.registry.local import LocalRegistry
from organs.registry.store import BlobStore, StoredBlob
from organs.registry.store.blobs import INLINE_MAX_BYTES, BlobWriter
from organs.registry.store.codec import Codec, encode_chunk, head_size_bytes
from tests.faults.failing import UnsyncedFiles, blob_rows, flip_bit, ingest_path, overwrite, verify_all, write_model
from tests.small_models import assemble_model
from tests.store.codec_cases import ALL_CODECS, CODEC_IDS, skewed

FILE_BYTES, ROW_BYTES = 70_000, 9_000
"""Plain sizes of a blob in a file, and in a row."""
assert ROW_BYTES < INLINE_MAX_BYTES < FILE_BYTES

FIXED = {
    "magic": (0, 4),
    "version": (4, 5),
    "version of the codec": (5, 6),
    "tensor type": (6, 8),
    "elements": (8, 16),
    "plain size": (16, 24),
    "size of a chunk": (24, 28),
    "digest": (28, 60),
    "length of the codec's name": (60, 61),
}


def regions(codec: Codec, blob: StoredBlob) -> Iterator[tuple[str, int, int]]:
    """Yield name, first byte and end of each region of a stored blob."""
    for name, (begin, end) in FIXED.items():
        yield name, begin, end
    end_of_name = 61 + len(blob.codec)
    head = head_size_bytes(codec, blob.size_bytes)
    yield "codec's name", 61, end_of_name
    yield "table", end_of_name, head - 8
    yield "checksum", head - 8, head
    yield "payload", head, blob.stored_bytes - 16
    yield "tail", blob.stored_bytes - 16, blob.stored_bytes


def stored(store: BlobStore, codec: Codec, plain: bytes) -> StoredBlob:
    writer = BlobWriter(store, digest_of(plain), len(plain), codec)
    writer.append(encode_chunk(codec, memoryview(plain)))
    return writer.finish()


def read(store: BlobStore, blob: StoredBlob) -> bytes:
    with store.open(blob) as reader:
        return reader.read()


def damaged(store: BlobStore, blob: StoredBlob, data: bytes) -> StoredBlob:
    """Return `blob` with other stored bytes."""
    if blob.file is None:
        return replace(blob, inline=data)
    overwrite(store.backend.path(blob.file), data)
    return blob


@pytest.mark.parametrize("size", [ROW_BYTES, FILE_BYTES], ids=["row", "file"])
@pytest.mark.parametrize("codec", ALL_CODECS, ids=CODEC_IDS)
def test_a_flipped_bit_in_any_region_is_found_with_every_codec(codec: Codec, size: int, tmp_path: Path) -> None:
    store, generator = BlobStore(tmp_path, UnsyncedFiles()), random.Random(f"{codec.name}{size}")
    plain = skewed(size // codec.block_bytes * codec.block_bytes)
    for own in (codec, codec.kept_raw()):
        blob = stored(store, own, plain)
        good = blob.inline if blob.file is None else store.backend.path(blob.file).read_bytes()
        assert good is not None
        for name, begin, end in regions(own, blob):
            bits = range(8 * begin, 8 * end)
            for bit in generator.sample(bits, min(len(bits), 3)):
                spoiled = damaged(store, blob, flip_bit(good, bit))
                try:
                    content = read(store, spoiled)
                except CorruptBlob:
                    continue
                assert name in ("payload", "tail"), (name, bit)
                assert own == codec, "raw bytes have no bits without a meaning"
                assert content == plain, (name, bit)
        assert read(store, damaged(store, blob, good)) == plain


@pytest.mark.folder
def test_a_flipped_bit_in_any_region_never_gives_a_wrong_file(tmp_path: Path, registry: LocalRegistry) -> None:
    path = write_model(tmp_path / "little.gguf")
    ingest_path(registry, path)
    generator = random.Random(47)
    every = blob_rows(registry)
    for row in (next(row for row in every if row.file), next(row for row in every if row.size_bytes > 1000)):
        at = registry.settings.blobs / (row.file or "")
        good = at.read_bytes() if row.file else row.inline or b""
        spots = [0, 4, 8, 20, 30, 60, 70, 100, *(generator.randrange(120, len(good)) for _ in range(4)), len(good) - 1]
        for spot in spots:
            data = flip_bit(good, 8 * spot + generator.randrange(8))
            put(registry, row.id, at if row.file else None, data)
            folder = tmp_path / "out"
            try:
                (back,) = assemble_model(registry, "local/little", folder)
            except StoreError:
                assert list(folder.iterdir()) == []
                assert [fault.digest for fault in verify_all(registry).faults] == [row.digest]
            else:
                assert back.read_bytes() == path.read_bytes()
                back.unlink()
        put(registry, row.id, at if row.file else None, good)
    assert verify_all(registry).faults == []


def put(registry: LocalRegistry, blob_id: int, path: Path | None, data: bytes) -> None:
    """Put stored bytes in place of those of a blob."""
    if path is not None:
        overwrite(path, data)
        return
    with registry.catalog.writing() as session:
        session.execute(update(InlineBlob).where(InlineBlob.blob_id == blob_id).values(stored=data))
