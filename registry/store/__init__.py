"""The blob store, a library of its own: immutable bytes named by the SHA-256 of their plain form.

It knows neither the catalog nor models: its caller keeps the address of each blob (`BlobAddress`).

    codec   encodes plain bytes to stored bytes, and decodes them; without side effects
    files   the system calls of the store, which tests can record and make fail
    backend what a place for files must do
    folder  blobs as files in a local folder
    bucket  blobs as objects in S3, Google Cloud Storage or Azure, with a local cache
    memory  memory for large buffers
    blobs   writes blobs chunk by chunk, reads them completely or in part, and checks every chunk

A blob is durable when `finish` has returned: only then its address may be written.
"""

from organs.registry.store.backend import BlobBackend
from organs.registry.store.blobs import (
    BlobAddress,
    BlobReader,
    BlobStore,
    BlobWriter,
    OrganEncoder,
    ParentCandidate,
    PlainChunk,
    PlainReader,
    RangeReader,
    StoredBlob,
    smallest_encoder,
)

__all__ = [
    "BlobAddress",
    "BlobBackend",
    "BlobReader",
    "BlobStore",
    "BlobWriter",
    "OrganEncoder",
    "ParentCandidate",
    "PlainChunk",
    "PlainReader",
    "RangeReader",
    "StoredBlob",
    "smallest_encoder",
]
