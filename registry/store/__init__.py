"""The blob store: immutable bytes named by the SHA-256 of their plain form.

    codec   encode plain bytes to stored bytes, and decode them; pure
    files   the system calls of the store, which tests can record and make fail
    folder  blobs as files in a folder of this machine
    blobs   blobs: written chunk by chunk, read completely or in part, every chunk checked

The catalog has the rows of blobs. A row is written only after `finish` has returned.
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
