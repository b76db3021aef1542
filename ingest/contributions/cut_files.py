"""Files cut into the pieces that a push can send, and their digests, which are remembered between runs."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from organs.ingest.dissect import DissectedFile
from organs.ingest.files import FileIdentity, FileSource
from organs.ingest.hashing import BufferPool, FilePass, HashedPiece, Piece, Stages
from organs.registry.entities.base import Count, Digest, E, Entity, decode, encode
from organs.registry.entities.submission import FilePiece
from organs.registry.gguf.header import Span
from organs.registry.store.codec import BYTES_CODEC

BUFFERS = 12
ENTRIES_MAX = 256
"""Limit of files and submissions in the memory; the oldest are removed first."""
ENTRY_MAX_BYTES = 64 * 1024 * 1024
SETTLED_SECONDS = 2.0
"""A more recently written file could be written again within the same time stamp."""


@dataclass(frozen=True, slots=True)
class CutFile:
    """A file with its digest, and its pieces in file order. All bytes between pieces are zero."""

    file: DissectedFile
    sha256: Digest
    pieces: tuple[FilePiece, ...]

    @property
    def size_bytes(self) -> int:
        return self.file.header.file_size_bytes


class HashedFile(Entity, frozen=True, kw_only=True):
    """A file whose digests are remembered."""

    identity: FileIdentity
    sha256: Digest
    pieces: tuple[FilePiece, ...]


class SentSubmission(Entity, frozen=True, kw_only=True):
    """A submission that may be open."""

    submission: Count


class Memory:
    """Stores digests and submissions in a folder of small JSON files; does nothing if the folder cannot be written."""

    def __init__(self, folder: Path | None) -> None:
        """Use `folder`, which is created on the first write; None stores nothing."""
        self._folder = folder

    def hashed(self, path: Path, identity: FileIdentity) -> HashedFile | None:
        """Return the digests of the file at `path`, if it has not changed."""
        hashed = self._read(_file_key(path), HashedFile)
        return hashed if hashed is not None and hashed.identity == identity else None

    def store_hashed(self, path: Path, hashed: HashedFile) -> None:
        """Store the digests of the file at `path`, unless it was written very recently."""
        if time.time() - hashed.identity.modified_ns / 1e9 >= SETTLED_SECONDS:
            self._write(_file_key(path), hashed)

    def forget_hashed(self, path: Path) -> None:
        """Remove the digests of the file at `path`, so that it is read again."""
        self._remove(_file_key(path))

    def submission(self, url: str, name: str, digest: str) -> int | None:
        """Return the id of the submission of the model `digest` to the registry at `url` as `name`, if there is one."""
        sent = self._read(_submission_key(url, name, digest), SentSubmission)
        return None if sent is None else sent.submission

    def store_submission(self, url: str, name: str, digest: str, submission: int) -> None:
        """Store the id of a submission."""
        self._write(_submission_key(url, name, digest), SentSubmission(submission=submission))

    def forget_submission(self, url: str, name: str, digest: str) -> None:
        """Remove the id of a submission that has ended."""
        self._remove(_submission_key(url, name, digest))

    def _read(self, key: str, kind: type[E]) -> E | None:
        if self._folder is not None:
            with suppress(OSError, ValueError), open(self._folder / key, "rb") as file:
                return decode(file.read(ENTRY_MAX_BYTES), kind)
        return None

    def _write(self, key: str, entry: Entity) -> None:
        if self._folder is None:
            return
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=self._folder, prefix=".new-")
            with os.fdopen(descriptor, "wb") as file:
                file.write(encode(entry))
            os.replace(temporary, self._folder / key)
            entries = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in entries[ENTRIES_MAX:]:
                path.unlink()

    def _remove(self, key: str) -> None:
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / key).unlink()


def _file_key(path: Path) -> str:
    return _key("file", os.fsencode(path.resolve()))


def _submission_key(url: str, name: str, digest: str) -> str:
    return _key("submission", f"{url}\n{name}\n{digest}".encode())


def _key(kind: str, text: bytes) -> str:
    return f"{kind}-{hashlib.sha256(text).hexdigest()[:32]}.json"


def user_memory() -> Memory:
    """Return the memory in the user's cache folder, which `organ push` and scripts share."""
    return Memory(Path(platformdirs.user_cache_dir("organ-registry")) / "push")


def spans_of(file: DissectedFile) -> list[Span]:
    """Return the byte ranges of the pieces of `file`, in file order; none is empty."""
    spans = [*file.literals(), *file.arrays, *(Span(offset, len(data)) for offset, data in file.paddings)]
    for tensor in file.header.tensors:
        spans += file.expert_spans(tensor) or (file.tensor_span(tensor),)
    return sorted((span for span in spans if span.size_bytes), key=lambda span: span.offset)


def cut(files: Sequence[DissectedFile], memory: Memory, advance: Callable[[int], None]) -> list[CutFile]:
    """Return `files` with their digests, from `memory` or by reading them once.

    `advance` is called with the number of newly processed bytes. Raises BadSource.
    """
    cut_files = []
    for file in files:
        spans = spans_of(file)
        source = file.source
        identity = source.identity if isinstance(source, FileSource) else None
        hashed = None if identity is None else memory.hashed(source.path, identity)
        if hashed is not None and [(piece.offset, piece.size_bytes) for piece in hashed.pieces] == [
            (span.offset, span.size_bytes) for span in spans
        ]:
            advance(file.header.file_size_bytes)
            cut_files.append(CutFile(file, hashed.sha256, hashed.pieces))
            continue
        new = _hash(file, spans, advance)
        source.check_unchanged()
        if identity is not None:
            memory.store_hashed(source.path, HashedFile(identity=identity, sha256=new.sha256, pieces=new.pieces))
        cut_files.append(new)
    return cut_files


def _hash(file: DissectedFile, spans: Sequence[Span], advance: Callable[[int], None]) -> CutFile:
    cancelled = threading.Event()
    pieces: list[FilePiece] = []
    position = 0

    def emit(hashed: HashedPiece) -> None:
        nonlocal position
        hashed.release()
        span = hashed.piece.span
        pieces.append(FilePiece(offset=span.offset, size_bytes=span.size_bytes, digest=hashed.digest))
        advance(span.end - position)
        position = span.end

    to_hash = [Piece(file.source, span, BYTES_CODEC, None) for span in spans]
    sha256, _ = FilePass(file, BufferPool(BUFFERS, cancelled), Stages(), cancelled).run(to_hash, emit)
    advance(file.header.file_size_bytes - position)
    return CutFile(file, sha256, tuple(pieces))
