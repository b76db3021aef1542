"""The stored form of a blob: a head, then the planes of every chunk in order.

    offset  bytes  what
    0       4      magic "ORGB"
    4       1      version of this format
    5       1      version of the codec
    6       2      dtype: ggml's number, or 0xffff for bytes that are not a tensor
    8       8      elements (bytes, if there is no dtype)
    16      8      plain size in bytes
    24      4      plain bytes of a full chunk
    28      32     SHA-256 of the plain bytes
    60      1      length of the codec's name
    61      n      the codec's name, ASCII
            32     version 2 only: SHA-256 of the plain bytes of the parent
            8+4p   for each chunk: xxh3-64 of its plain bytes; the stored size of each of p planes, bit 31 set if raw
            8      xxh3-64 of everything above

Version 1 is for organs that are stored alone, version 2 for those that are stored by their difference to a parent.
All numbers are little-endian. The codec and the plain size determine the size of the head, so a writer can leave room
for the head and write it last.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from organs.registry.digest import Digest
from organs.registry.errors import CorruptBlob, UnsupportedDType
from organs.registry.gguf.types import DType, dtype_by_id
from organs.registry.store.codec.derive import can_derive
from organs.registry.store.codec.planes import (
    BYTES_CODEC,
    CHUNK_TARGET_BYTES,
    NAME_MAX_BYTES,
    RAW_NAME,
    Codec,
    Coder,
    Encoding,
    codec_for,
    delta_codec,
    derive_codec,
)

MAGIC = b"ORGB"
SOLO_VERSION, REFERENCE_VERSION = 1, 2
CHUNK_MIN_BYTES = 64 << 10
"""The smallest size of a chunk in a head: with smaller ones, a table would be larger than its blob."""
NO_DTYPE = 0xFFFF

_FIXED = struct.Struct("<4sBBHQQI32sB")
_CHECKSUM = struct.Struct("<Q")
_DIGEST_BYTES = 32
_RAW_BIT = 1 << 31

START_BYTES = _FIXED.size + NAME_MAX_BYTES
"""The number of bytes that `head_size_of` needs; or all bytes of a shorter stored form."""


@dataclass(frozen=True, slots=True)
class ChunkEntry:
    """The line of a chunk in the table: the stored size of each plane, its raw flag, and xxh3-64 of the plain bytes."""

    plane_sizes_bytes: tuple[int, ...]
    plane_is_raw: tuple[bool, ...]
    checksum: int

    @property
    def stored_size_bytes(self) -> int:
        return sum(self.plane_sizes_bytes)


@dataclass(frozen=True, slots=True)
class BlobChunk:
    """The position of a chunk in the stored form and in the plain bytes. `where` is its name in errors."""

    where: str
    offset_bytes: int
    plain_offset_bytes: int
    plain_size_bytes: int
    entry: ChunkEntry

    @property
    def stored_size_bytes(self) -> int:
        return self.entry.stored_size_bytes

    @property
    def checksum(self) -> int:
        return self.entry.checksum


@dataclass(frozen=True, slots=True)
class StoredHead:
    """A head after all checks. `codec.dtype` is the dtype of the first organ that was stored with these bytes."""

    codec: Codec
    parent: Digest | None
    chunks: tuple[BlobChunk, ...]


def head_size_bytes(codec: Codec, plain_size_bytes: int) -> int:
    """Return the size of the head of a blob with this codec and plain size."""
    table_bytes = codec.chunk_count(plain_size_bytes) * _table_line(codec).size
    return _table_start(codec) + table_bytes + _CHECKSUM.size


def _table_line(codec: Codec) -> struct.Struct:
    return struct.Struct(f"<Q{len(codec.planes)}I")


def _table_start(codec: Codec) -> int:
    parent_bytes = 0 if codec.encoding is Encoding.SOLO else _DIGEST_BYTES
    return _FIXED.size + len(codec.name) + parent_bytes


def pack_head(
    codec: Codec, digest: Digest, plain_size_bytes: int, entries: Sequence[ChunkEntry], parent: Digest | None = None
) -> bytes:
    """Return the head of a blob whose chunks have `entries`, in order. Its size is exactly `head_size_bytes`."""
    assert len(entries) == codec.chunk_count(plain_size_bytes)
    assert (parent is None) == (codec.encoding is Encoding.SOLO)
    name = codec.name.encode("ascii")
    dtype_id = NO_DTYPE if codec.dtype is None else codec.dtype.id
    fixed = _FIXED.pack(
        MAGIC,
        SOLO_VERSION if parent is None else REFERENCE_VERSION,
        codec.version,
        dtype_id,
        _elements(codec, plain_size_bytes),
        plain_size_bytes,
        codec.chunk_bytes,
        bytes.fromhex(digest),
        len(name),
    )
    line = _table_line(codec)
    table = bytearray()
    for entry in entries:
        sizes = zip(entry.plane_sizes_bytes, entry.plane_is_raw, strict=True)
        table += line.pack(entry.checksum, *(size | (_RAW_BIT if is_raw else 0) for size, is_raw in sizes))
    head = fixed + name + bytes.fromhex(parent or "") + table
    return head + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(head))


def head_size_of(start: bytes | memoryview, *, digest: Digest, plain_size_bytes: int) -> int:
    """Return the size of the head that begins with `start`: `START_BYTES` bytes, or all of a shorter stored form.

    Raises CorruptBlob if it is not the head of this blob with this plain size. The plain size limits the result; the
    rest of the head is not checked yet.
    """
    return head_size_bytes(_codec_of(bytes(start[:START_BYTES]), digest, plain_size_bytes), plain_size_bytes)


def parse_head(
    data: bytes | memoryview, *, digest: Digest, plain_size_bytes: int, stored_size_bytes: int
) -> StoredHead:
    """Return the head at the beginning of `data`, after a comparison of all its numbers with the arguments.

    `digest` and `plain_size_bytes` are from the catalog; `stored_size_bytes` is the size of the file or value with the
    blob. Raises CorruptBlob. The plain size limits the memory that is allocated.
    """
    view = memoryview(data)
    codec = _codec_of(bytes(view[:START_BYTES]), digest, plain_size_bytes)
    size_bytes = head_size_bytes(codec, plain_size_bytes)
    if len(view) < size_bytes:
        raise CorruptBlob(digest, f"the head has {len(view)} of {size_bytes} bytes")
    (checksum,) = _CHECKSUM.unpack_from(view, size_bytes - _CHECKSUM.size)
    if xxhash.xxh3_64_intdigest(view[: size_bytes - _CHECKSUM.size]) != checksum:
        raise CorruptBlob(digest, "the head fails its checksum")
    start = _table_start(codec)
    parent = None
    if codec.encoding is not Encoding.SOLO:
        parent = Digest(bytes(view[start - _DIGEST_BYTES : start]).hex())
    table = view[start : size_bytes - _CHECKSUM.size]
    chunks = _parse_table(codec, table, digest, plain_size_bytes, size_bytes)
    end = chunks[-1].offset_bytes + chunks[-1].stored_size_bytes if chunks else size_bytes
    if end != stored_size_bytes:
        raise CorruptBlob(digest, f"{stored_size_bytes} bytes are stored, the table adds up to {end}")
    return StoredHead(codec, parent, chunks)


def _elements(codec: Codec, plain_size_bytes: int) -> int:
    blocks = plain_size_bytes // codec.block_bytes
    return blocks if codec.dtype is None else blocks * codec.dtype.block_elements


def _codec_of(start: bytes, digest: Digest, plain_size_bytes: int) -> Codec:
    """Check everything before the table of a head; return the codec that the head names."""
    if len(start) < _FIXED.size:
        raise CorruptBlob(digest, f"{len(start)} bytes are too short for a head")
    magic, form, version, dtype_id, elements, plain_size, chunk_bytes, sha256, name_length = _FIXED.unpack_from(start)
    if magic != MAGIC:
        raise CorruptBlob(digest, f"begins with {magic!r}, not {MAGIC!r}")
    if form not in (SOLO_VERSION, REFERENCE_VERSION):
        raise CorruptBlob(digest, f"stored form version {form}; this program reads 1 and {REFERENCE_VERSION}")
    name = start[_FIXED.size : _FIXED.size + name_length]
    codec = _named_codec(name, dtype_id, digest)
    chunk_max = CHUNK_TARGET_BYTES if codec.encoding is Encoding.SOLO else codec.chunk_bytes
    if CHUNK_MIN_BYTES <= chunk_bytes <= chunk_max and chunk_bytes % codec.block_bytes == 0:
        codec = codec.with_chunks_of(chunk_bytes)  # older versions of this program had other chunks
    expected_form = SOLO_VERSION if codec.encoding is Encoding.SOLO else REFERENCE_VERSION
    expected = (
        ("stored form version", form, expected_form),
        ("codec version", version, codec.version),
        ("digest", sha256.hex(), digest),
        ("plain size", plain_size, plain_size_bytes),
        ("size of a chunk", chunk_bytes, codec.chunk_bytes),
        ("bytes beyond whole blocks", plain_size % codec.block_bytes, 0),
        ("number of elements", elements, _elements(codec, plain_size_bytes)),
    )
    for label, actual, correct in expected:
        if actual != correct:
            raise CorruptBlob(digest, f"{label}: the head says {actual}, {correct} is expected")
    return codec


def _named_codec(name: bytes, dtype_id: int, digest: Digest) -> Codec:
    text = name.decode("ascii", "replace")
    try:
        codec = BYTES_CODEC if dtype_id == NO_DTYPE else codec_for(dtype_by_id(dtype_id).name)
        if text == RAW_NAME:
            return codec.kept_raw()
        if codec.dtype is not None:
            codec = _reference_codec(text, codec.dtype) or codec
    except UnsupportedDType as error:
        raise CorruptBlob(digest, str(error)) from error
    if text != codec.name:
        raise CorruptBlob(digest, f"codec {name!r} is unknown for its tensor type, {codec.name!r} is expected")
    return codec


def _reference_codec(name: str, dtype: DType) -> Codec | None:
    """Return the codec `name` if it is one for a difference; raises UnsupportedDType for an unknown tensor type."""
    if name == delta_codec(dtype.name).name:
        return delta_codec(dtype.name)
    _, separator, source = name.partition("-from-")
    if not separator:
        return None
    codec = derive_codec(dtype.name, source.upper())
    return codec if codec.source is not None and can_derive(codec.source, dtype) else None


def _parse_table(
    codec: Codec, table: memoryview, digest: Digest, plain_size_bytes: int, offset_bytes: int
) -> tuple[BlobChunk, ...]:
    """Return all chunks in order; `offset_bytes` is the offset of the first chunk."""
    chunks: list[BlobChunk] = []
    plain_sizes = codec.chunk_sizes_bytes(plain_size_bytes)
    for index, (plain_size, values) in enumerate(zip(plain_sizes, _table_line(codec).iter_unpack(table), strict=True)):
        where = f"{digest} chunk {index}"
        entry = ChunkEntry(
            tuple(value & ~_RAW_BIT for value in values[1:]),
            tuple(value & _RAW_BIT > 0 for value in values[1:]),
            values[0],
        )
        sizes = zip(entry.plane_sizes_bytes, codec.plane_sizes_bytes(plain_size), entry.plane_is_raw, strict=True)
        for plane, (stored_size, plane_size, is_raw) in zip(codec.planes, sizes, strict=True):
            may_be_encoded = codec.coder is not Coder.NONE
            fits = stored_size == plane_size if is_raw else may_be_encoded and 0 < stored_size < plane_size
            if not fits:
                sentence = f"{stored_size} bytes {'raw' if is_raw else 'encoded'} for {plane_size} plain bytes"
                raise CorruptBlob(where, f"plane {plane.name}: {sentence}")
        chunks.append(BlobChunk(where, offset_bytes, index * codec.chunk_bytes, plain_size, entry))
        offset_bytes += entry.stored_size_bytes
    return tuple(chunks)
