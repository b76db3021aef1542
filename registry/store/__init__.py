"""The blob store: immutable bytes named by the SHA-256 of their plain form.

    codec    plain bytes to stored bytes and back, in chunks, pure
    files    the operating system's calls
    direct   new files written past the page cache
    local    files in a folder, written so that a crash leaves all or nothing
    placing  files of other kinds, at the place that a person names
    blobs    BlobStore: put, read, verify

Rows about blobs are the catalog's. A row is written only after `finish` has returned.
"""

from organs.registry.store.blobs import BlobAddress, BlobReader, BlobStore, BlobWriter, StoredBlob, codec_for_blob

__all__ = ["BlobAddress", "BlobReader", "BlobStore", "BlobWriter", "StoredBlob", "codec_for_blob"]
