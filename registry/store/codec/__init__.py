"""Encoding of plain bytes to stored bytes, and decoding, without side effects.

    planes   splits the blocks of each tensor type into planes, and joins them
    delta    the difference of an organ to a parent with the same tensor type
    derive   what a parent with another tensor type does not determine of an organ
    fast     compiled kernels for `delta`, `derive` and `planes`, if numba is installed
    entropy  encodes a plane as a Zstandard frame, and decodes it
    chunks   encodes and proves a chunk, decodes and checks it
    stored   the stored form of a blob

A digest names **plain** bytes; files and rows contain **stored** bytes. A **chunk** is at most 4 MiB of plain bytes, in
whole blocks: the unit of random access, of checking and of parallel work. A **plane** contains the same part of every
block of a chunk: the exponents of floats, the scales of quantised blocks. A **head** begins the stored form. A
**table** in the head has the size of each plane of each chunk. An **entry** is the line of one chunk in the table.

A writer reserves `head_size_bytes`, writes the encoded chunks after that, and writes the result of `pack_head` last:

    codec = codec_for("BF16")
    first = encode_chunk(codec, plain[: codec.chunk_bytes])
    if not worth_encoding(first):
        codec = codec.kept_raw()

A reader gets the size to read from `head_size_of`, and uses no value of the head before `parse_head` has checked it.
"""

from organs.registry.store.codec.chunks import EncodedChunk, decode_chunk, encode_chunk, lend, worth_encoding
from organs.registry.store.codec.derive import can_derive, is_dequantised
from organs.registry.store.codec.planes import (
    BYTES_CODEC,
    CHUNK_TARGET_BYTES,
    Codec,
    codec_for,
    delta_codec,
    derive_codec,
)
from organs.registry.store.codec.stored import (
    START_BYTES,
    BlobChunk,
    ChunkEntry,
    StoredHead,
    head_size_bytes,
    head_size_of,
    pack_head,
    parse_head,
)

__all__ = [
    "BYTES_CODEC",
    "CHUNK_TARGET_BYTES",
    "START_BYTES",
    "BlobChunk",
    "ChunkEntry",
    "Codec",
    "EncodedChunk",
    "StoredHead",
    "can_derive",
    "codec_for",
    "decode_chunk",
    "delta_codec",
    "derive_codec",
    "encode_chunk",
    "head_size_bytes",
    "head_size_of",
    "is_dequantised",
    "lend",
    "pack_head",
    "parse_head",
    "worth_encoding",
]
