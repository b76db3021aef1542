"""The blob store: immutable bytes named by the SHA-256 of their plain form.

    codec  how plain bytes become stored bytes and come back, pure: bytes in, bytes out
    files  the system calls of the store, which tests can record and fail
    local  blobs as files in a local folder
    blobs  blobs: put in chunk by chunk, read back whole or in part, every chunk checked

Rows about blobs are the catalog's. A row is written only after `finish` has returned.
"""

from organs.registry.store.blobs import (
    BlobAddress,
    BlobReader,
    BlobStore,
    BlobWriter,
    RangeReader,
    StoredBlob,
    codec_for_blob,
)

__all__ = ["BlobAddress", "BlobReader", "BlobStore", "BlobWriter", "RangeReader", "StoredBlob", "codec_for_blob"]
