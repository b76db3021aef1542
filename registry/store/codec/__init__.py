"""How plain bytes become stored bytes and come back, pure: bytes in, bytes out.

    planes   planes: how the blocks of each tensor type are taken apart into planes
    entropy  one plane to one Zstandard frame and back
    chunks   one chunk: encode it and prove it, decode it and check it
    stored   the stored form of a blob

**Plain** bytes are what a digest names; **stored** bytes are what is written down. A **chunk** is about 4 MiB of plain
bytes, whole blocks: the unit of random access, of checking and of parallel work. A **plane** holds the same part of
every block of a chunk: the exponents of floats, the scales of quantised blocks. A **head** opens the stored form; a
**table** in it says how long each plane of each chunk is, and an **entry** is one chunk's line in that table.

A writer leaves `head_size_bytes` free, encodes chunk after chunk behind it and writes `pack_head` last:

    codec = codec_for("BF16")
    first = encode_chunk(codec, plain[: codec.chunk_bytes])
    if not worth_encoding(first):
        codec = codec.kept_raw()

A reader learns from `head_size_of` how much to read, and trusts nothing before `parse_head` has.
"""

from organs.registry.store.codec.chunks import EncodedChunk, decode_chunk, encode_chunk, worth_encoding
from organs.registry.store.codec.planes import (
    BYTES_CODEC,
    CHUNK_TARGET_BYTES,
    Codec,
    codec_for,
)
from organs.registry.store.codec.stored import (
    START_BYTES,
    ChunkEntry,
    StoredChunk,
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
    "ChunkEntry",
    "Codec",
    "EncodedChunk",
    "StoredChunk",
    "StoredHead",
    "codec_for",
    "decode_chunk",
    "encode_chunk",
    "head_size_bytes",
    "head_size_of",
    "pack_head",
    "parse_head",
    "worth_encoding",
]
