"""A GGUF file that is read out of its pieces without ever being written: uploads, blobs, zeros between them.

Random reads with little memory: files and blobs are opened when they are needed, the longest unused is closed again,
and of one blob the chunk that was decoded last is kept. What a blob gives is checked against its checksums.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ingest.composed import ComposedFile, Section
from ingest.files import FileSource
from ingest.submissions.pieces import InSpool, InStore, LocatedFile
from registry.catalog.queries.blobs import blobs_by_digest
from registry.digest import Digest
from registry.errors import BadSource, MissingBlob
from registry.registry import Registry
from registry.store import BlobReader
from registry.store.codec import StoredChunk

OPEN_MAX = 32
"""Files and blobs that are open at once: a process may have some hundreds."""


class Sources:
    """What the pieces of one submission lie in. A context manager; for any thread, which read one after another."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._open: OrderedDict[Path | Digest, FileSource | BlobReader] = OrderedDict()
        self._buffer = bytearray()
        self._held: tuple[Digest, StoredChunk] | None = None
        """Whose plain bytes are in the buffer."""

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def read_into(self, buffer: memoryview, at: InSpool | InStore, offset: int) -> None:
        """Fill `buffer` from `offset` of a piece; raises BadSource, CorruptBlob, MissingBlob."""
        with self._lock:
            if isinstance(at, InSpool):
                self._file(at.path).read_into(buffer, at.offset_bytes + offset)
            else:
                self._read_blob(buffer, at.digest, offset)

    def _file(self, path: Path) -> FileSource:
        found = self._open.get(path)
        if found is None:
            try:
                found = FileSource(path)
            except BadSource as error:
                raise BadSource("what was sent is not here any more: send it again") from error
            self._keep(path, found)
        assert isinstance(found, FileSource)
        self._open.move_to_end(path)
        return found

    def _blob(self, digest: Digest) -> BlobReader:
        found = self._open.get(digest)
        if found is None:
            with self._registry.catalog.reading() as session:
                row = blobs_by_digest(session, (digest,)).get(digest)
            if row is None or row.state == "corrupt":
                raise MissingBlob(f"{digest[:12]} is not in the store any more: send it again")
            found = self._registry.blobs.open(row)
            self._keep(digest, found)
        assert isinstance(found, BlobReader)
        self._open.move_to_end(digest)
        return found

    def _keep(self, key: Path | Digest, opened: FileSource | BlobReader) -> None:
        self._open[key] = opened
        if len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)[1].close()

    def _read_blob(self, buffer: memoryview, digest: Digest, offset: int) -> None:
        reader = self._blob(digest)
        end = offset + len(buffer)
        for chunk in _overlapping(reader.chunks, offset, end):
            first = chunk.plain_offset_bytes
            begin, last = max(offset, first), min(end, first + chunk.plain_size_bytes)
            target = buffer[begin - offset : last - offset]
            if len(target) == chunk.plain_size_bytes and self._held != (digest, chunk):
                reader.read_chunk(chunk, target)
            else:
                target[:] = self._decoded(reader, digest, chunk)[begin - first : last - first]

    def _decoded(self, reader: BlobReader, digest: Digest, chunk: StoredChunk) -> memoryview:
        if len(self._buffer) < chunk.plain_size_bytes:
            self._buffer = bytearray(chunk.plain_size_bytes)
        view = memoryview(self._buffer)[: chunk.plain_size_bytes]
        if self._held != (digest, chunk):
            self._held = None
            reader.read_chunk(chunk, view)
            self._held = digest, chunk
        return view


@dataclass(frozen=True, slots=True)
class _Located:
    """What lies at one place."""

    sources: Sources
    at: InSpool | InStore

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.sources.read_into(buffer, self.at, offset)

    def check_unchanged(self) -> None:
        """Nothing: an upload that is finished is written to no more, and a blob never is."""


def assembled_file(sources: Sources, file: LocatedFile) -> ComposedFile:
    """One file of a submission, called by its name alone, for there is no such file; read while `sources` are open."""
    sections = [Section(piece.offset_bytes, piece.size_bytes, _Located(sources, piece.at)) for piece in file.pieces]
    return ComposedFile(Path(file.name), file.size_bytes, sections, file.sha256)


def _overlapping(chunks: Sequence[StoredChunk], offset: int, end: int) -> Sequence[StoredChunk]:
    """The chunks that these bytes lie in; all but the last are of one size."""
    if not chunks or offset >= end:
        return ()
    size = chunks[0].plain_size_bytes
    return chunks[offset // size : (end - 1) // size + 1]
