"""The content of a push: files are cut into pieces, pieces packed into loads, and digests stored between runs."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from organs.ingest.dissect import DissectedFile
from organs.ingest.files import FileIdentity, FileSource
from organs.ingest.hashing import BufferPool, FilePass, HashedPiece, Piece, Stages
from organs.registry.digest import Digest, digest_of, parse_digest
from organs.registry.entities.submission import (
    PackPiece,
    UploadRequest,
)
from organs.registry.errors import BadDigest
from organs.registry.gguf import ByteSource, MemorySource
from organs.registry.gguf.header import Span
from organs.registry.store.codec import BYTES_CODEC
from organs.registry.upload_limits import PACK_PIECE_MAX_BYTES

BUFFERS = 12

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class CutFile:
    """A file with its digest, and those of its pieces in file order. All bytes between pieces are zero."""

    file: DissectedFile
    sha256: Digest
    pieces: tuple[tuple[Span, Digest], ...]

    @property
    def name(self) -> str:
        return self.file.source.path.name

    @property
    def size_bytes(self) -> int:
        return self.file.header.file_size_bytes


def spans_of(file: DissectedFile) -> tuple[Span, ...]:
    """Return the byte ranges of the pieces of `file`, in file order; none is empty."""
    return tuple(sorted((span for span in _spans(file) if span.size_bytes), key=lambda span: span.offset))


def cut(files: Sequence[DissectedFile], memory: Memory, advance: Advance) -> list[CutFile]:
    """Return `files` with their digests, from `memory` or by reading them once.

    `advance` is called with the number of newly processed bytes. Raises BadSource.
    """
    return [_cut_file(file, memory, advance) for file in files]


def _spans(file: DissectedFile) -> Iterator[Span]:
    yield from file.literals()
    yield from file.arrays
    yield from (Span(offset, len(data)) for offset, data in file.paddings)
    for tensor in file.header.tensors:
        yield from file.expert_spans(tensor) or (file.tensor_span(tensor),)


def _cut_file(file: DissectedFile, memory: Memory, advance: Advance) -> CutFile:
    spans, size_bytes = spans_of(file), file.header.file_size_bytes
    identity = file.source.identity if isinstance(file.source, FileSource) else None
    hashed = None if identity is None else memory.hashed(file.source.path, identity, spans)
    if hashed is None:
        hashed = _hash(file, spans, advance)
        file.source.check_unchanged()
        if identity is not None:
            memory.store_hashed(file.source.path, identity, spans, hashed)
    else:
        advance(size_bytes)
    return CutFile(file, hashed.file, tuple(zip(spans, hashed.pieces, strict=True)))


def _hash(file: DissectedFile, spans: Sequence[Span], advance: Advance) -> Hashed:
    cancelled = threading.Event()
    digests: list[Digest] = []
    position = 0

    def emit(hashed: HashedPiece) -> None:
        nonlocal position
        hashed.release()
        digests.append(hashed.digest)
        advance(hashed.piece.span.end - position)
        position = hashed.piece.span.end

    pieces = [Piece(file.source, span, BYTES_CODEC, None) for span in spans]
    file_digest, _ = FilePass(file, BufferPool(BUFFERS, cancelled), Stages(), cancelled).run(pieces, emit)
    advance(file.header.file_size_bytes - position)
    return Hashed(file_digest, tuple(digests))


SENT_PACK_BYTES = 4 * 1024 * 1024
"""Limit of the size of a pack that this client sends: a broken connection costs at most these bytes."""
SENT_PACK_PIECES = 1000
"""Limit of the pieces of a pack that this client sends."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A piece to send, and the source of its bytes."""

    source: ByteSource
    span: Span
    digest: Digest


@dataclass(frozen=True, slots=True)
class Load:
    """The content of one upload: a large piece, or a pack of small ones."""

    pieces: tuple[Wanted, ...]

    @property
    def is_pack(self) -> bool:
        return self.pieces[0].span.size_bytes <= PACK_PIECE_MAX_BYTES

    @property
    def size_bytes(self) -> int:
        return sum(piece.span.size_bytes for piece in self.pieces)

    def opened(self) -> OpenLoad:
        """Return the load with its bytes; those of a pack are read. Raises BadSource."""
        if not self.is_pack:
            (piece,) = self.pieces
            request = UploadRequest(kind="piece", size_bytes=piece.span.size_bytes, digest=piece.digest)
            return OpenLoad(request, piece.source, piece.span)
        data = b"".join(piece.source.read_at(piece.span.offset, piece.span.size_bytes) for piece in self.pieces)
        listed = tuple(PackPiece(size_bytes=piece.span.size_bytes, digest=piece.digest) for piece in self.pieces)
        request = UploadRequest(kind="pack", size_bytes=len(data), digest=digest_of(data), pieces=listed)
        return OpenLoad(request, MemorySource(data, "a pack"), Span(0, len(data)))


@dataclass(frozen=True, slots=True)
class OpenLoad:
    """A load that is ready to send: the request for an upload, and its bytes at any offset."""

    request: UploadRequest
    source: ByteSource
    span: Span

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset` of the load, fewer at its end; raises BadSource."""
        size = min(size, self.span.size_bytes - offset)
        return self.source.read_at(self.span.offset + offset, size)


def distinct(files: Iterable[CutFile]) -> dict[Digest, Wanted]:
    """Return the pieces of `files`, each digest once, in file order."""
    pieces: dict[Digest, Wanted] = {}
    for file in files:
        for span, digest in file.pieces:
            pieces.setdefault(digest, Wanted(file.file.source, span, digest))
    return pieces


def loads(missing: Sequence[Wanted]) -> list[Load]:
    """Return `missing` as loads, the largest first, so that all threads of a push end at about the same time.

    The same pieces always give the same loads: an interrupted push finds its uploads again.
    """
    large = [Load((piece,)) for piece in missing if piece.span.size_bytes > PACK_PIECE_MAX_BYTES]
    packs = [
        Load(pack) for pack in _make_packs(piece for piece in missing if piece.span.size_bytes <= PACK_PIECE_MAX_BYTES)
    ]
    return sorted([*large, *packs], key=lambda load: -load.size_bytes)


def _make_packs(small: Iterable[Wanted]) -> Iterator[tuple[Wanted, ...]]:
    pack: list[Wanted] = []
    size_bytes = 0
    for piece in small:
        if pack and (size_bytes + piece.span.size_bytes > SENT_PACK_BYTES or len(pack) == SENT_PACK_PIECES):
            yield tuple(pack)
            pack, size_bytes = [], 0
        pack.append(piece)
        size_bytes += piece.span.size_bytes
    if pack:
        yield tuple(pack)


ENTRIES_MAX = 256
"""Limit of files and submissions in the memory; the oldest are removed first."""
ENTRY_MAX_BYTES = 64 * 1024 * 1024
SETTLED_SECONDS = 2.0
"""A more recently written file could be written again within the same time stamp."""


@dataclass(frozen=True, slots=True)
class Hashed:
    """Digests of a file and of its pieces, in file order."""

    file: Digest
    pieces: tuple[Digest, ...]


class Memory:
    """Stores digests and submissions in a folder of small JSON files; does nothing if the folder cannot be written."""

    def __init__(self, folder: Path | None) -> None:
        """Use `folder`, which is created on the first write; None stores nothing."""
        self._folder = folder

    def hashed(self, path: Path, identity: FileIdentity, spans: Sequence[Span]) -> Hashed | None:
        """Return the digests of the file at `path`, if neither the file nor its pieces have changed."""
        entry = self._read(_file_key(path))
        if entry.get("file") != _identity(identity) or entry.get("spans") != _span_values(spans):
            return None
        try:
            hashed = Hashed(parse_digest(entry["sha256"]), tuple(parse_digest(text) for text in entry["pieces"]))
        except (BadDigest, KeyError, TypeError, AttributeError):
            return None
        return hashed if len(hashed.pieces) == len(spans) else None

    def store_hashed(self, path: Path, identity: FileIdentity, spans: Sequence[Span], hashed: Hashed) -> None:
        """Store the digests of the file at `path`, unless it was written very recently."""
        if time.time() - identity.modified_ns / 1e9 < SETTLED_SECONDS:
            return
        entry = {
            "file": _identity(identity),
            "spans": _span_values(spans),
            "sha256": hashed.file,
            "pieces": hashed.pieces,
        }
        self._write(_file_key(path), entry)

    def forget_hashed(self, path: Path) -> None:
        """Remove the digests of the file at `path`, so that it is read again."""
        self._remove(_file_key(path))

    def submission(self, url: str, name: str, digest: str) -> int | None:
        """Return the id of the submission of the model `digest` to the registry at `url` as `name`, if there is one."""
        submission_id = self._read(_submission_key(url, name, digest)).get("submission")
        return submission_id if type(submission_id) is int else None

    def store_submission(self, url: str, name: str, digest: str, submission: int) -> None:
        """Store the id of a submission."""
        self._write(_submission_key(url, name, digest), {"submission": submission})

    def forget_submission(self, url: str, name: str, digest: str) -> None:
        """Remove the id of a submission that has ended."""
        self._remove(_submission_key(url, name, digest))

    def _read(self, key: str) -> dict[str, Any]:
        if self._folder is None:
            return {}
        try:
            with open(self._folder / key, "rb") as file:
                entry = json.loads(file.read(ENTRY_MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return entry if isinstance(entry, dict) else {}

    def _write(self, key: str, entry: dict[str, Any]) -> None:
        if self._folder is None:
            return
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=self._folder, prefix=".new-")
            with os.fdopen(descriptor, "w") as file:
                json.dump(entry, file)
            os.replace(temporary, self._folder / key)
            self._prune()

    def _prune(self) -> None:
        assert self._folder is not None
        entries = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in entries[ENTRIES_MAX:]:
            path.unlink()

    def _remove(self, key: str) -> None:
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / key).unlink()


def _identity(identity: FileIdentity) -> list[int]:
    return [identity.device, identity.inode, identity.size_bytes, identity.modified_ns]


def _span_values(spans: Sequence[Span]) -> list[list[int]]:
    return [[span.offset, span.size_bytes] for span in spans]


def _file_key(path: Path) -> str:
    return "file-" + _entry_name(os.fsencode(path.resolve()))


def _submission_key(url: str, name: str, digest: str) -> str:
    return "submission-" + _entry_name(f"{url}\n{name}\n{digest}".encode())


def _entry_name(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32] + ".json"


def user_memory() -> Memory:
    """Return the memory in the user's cache folder, which `organ push` and scripts share."""
    return Memory(Path(platformdirs.user_cache_dir("organ-registry")) / "push")
