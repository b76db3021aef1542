"""What a push sends: files cut into pieces, packed into loads, and sent by several threads with retries.

The digests of files and the ids of submissions are remembered between runs.
"""

from __future__ import annotations

import base64
import hashlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import platformdirs
from msgspec import structs

from organs.ingest.dissect import DissectedFile
from organs.ingest.hashing import BufferPool, FilePass, HashedPiece, Piece, Stages
from organs.registry.client.connection import Connection
from organs.registry.digest import digest_of
from organs.registry.endpoints import uploads
from organs.registry.entities.base import Count, Digest, E, Entity, decode, encode
from organs.registry.entities.submission import FilePiece, PackPiece, Upload, UploadRequest
from organs.registry.errors import (
    BadInput,
    BadReply,
    BadSource,
    Busy,
    Conflict,
    NotFound,
    OrganError,
    StoreError,
    TooMany,
    Unreachable,
)
from organs.registry.gguf import ByteSource, MemorySource
from organs.registry.gguf.header import Span
from organs.registry.input_files import FileIdentity, FileSource
from organs.registry.progress import Progress
from organs.registry.store.codec import BYTES_CODEC
from organs.registry.store.files import PRIVATE_FILE, placed
from organs.registry.upload_limits import PACK_PIECE_MAX_BYTES, chunk_min_bytes

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


class HashedFile(Entity):
    """A file whose digests are remembered."""

    identity: FileIdentity
    sha256: Digest
    pieces: tuple[FilePiece, ...]


class SentSubmission(Entity):
    """A submission that may be open."""

    submission: Count


class Memory:
    """Stores digests and submissions in a folder of small JSON files; does nothing if the folder cannot be written."""

    def __init__(self, folder: Path | None) -> None:
        """Use `folder`, which is created on the first write; None stores nothing."""
        self._folder = folder

    def read(self, key: str, kind: type[E]) -> E | None:
        """Return the entry that is stored under `key`, or None."""
        if self._folder is not None:
            with suppress(OSError, ValueError), open(self._folder / key, "rb") as file:
                return decode(file.read(ENTRY_MAX_BYTES), kind)
        return None

    def write(self, key: str, entry: Entity) -> None:
        """Store an entry under `key`."""
        if self._folder is None:
            return
        data = encode(entry)
        with suppress(OSError, StoreError):
            self._folder.mkdir(parents=True, exist_ok=True)
            with placed(self._folder / key, len(data), mode=PRIVATE_FILE) as file:
                file.write(data)
            entries = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in entries[ENTRIES_MAX:]:
                path.unlink()

    def forget(self, key: str) -> None:
        """Remove the entry that is stored under `key`."""
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / key).unlink()


def file_key(path: Path) -> str:
    """Return the key of the digests of the file at `path`."""
    return f"file-{digest_of(os.fsencode(path.resolve()))[:32]}.json"


def submission_key(url: str, name: str, digest: str) -> str:
    """Return the key of the submission of the model `digest` to the registry at `url` as `name`."""
    model = f"{url}\n{name}\n{digest}"
    return f"submission-{digest_of(model.encode())[:32]}.json"


def user_memory() -> Memory:
    """Return the memory in the user's cache folder, which `organ push` and scripts share."""
    return Memory(Path(platformdirs.user_cache_dir("organ-registry")) / "push")


def spans_of(file: DissectedFile) -> list[Span]:
    """Return the byte ranges of the pieces of `file`, in file order; none is empty."""
    spans = [*file.literals(), *file.arrays, *(Span(offset, len(data)) for offset, data in file.paddings)]
    for tensor in file.header.tensors:
        spans += file.expert_spans(tensor) or (file.tensor_span(tensor),)
    return sorted((span for span in spans if span.size_bytes), key=lambda span: span.offset)


def cut(files: Sequence[DissectedFile], memory: Memory, advance: Progress) -> list[CutFile]:
    """Return `files` with their digests, from `memory` or by reading them once.

    The digests of a file that was written very recently are not remembered. `advance` is called with the number of
    newly processed bytes. Raises BadSource.
    """
    cut_files = []
    for file in files:
        spans = spans_of(file)
        source = file.source
        identity = source.identity if isinstance(source, FileSource) else None
        hashed = None if identity is None else memory.read(file_key(source.path), HashedFile)
        if (
            hashed is not None
            and hashed.identity == identity
            and [Span(piece.offset, piece.size_bytes) for piece in hashed.pieces] == spans
        ):
            advance(file.header.file_size_bytes)
            cut_files.append(CutFile(file, hashed.sha256, hashed.pieces))
            continue
        new = _hash(file, spans, advance)
        source.check_unchanged()
        if identity is not None and time.time() - identity.modified_ns / 1e9 >= SETTLED_SECONDS:
            entry = HashedFile(identity=identity, sha256=new.sha256, pieces=new.pieces)
            memory.write(file_key(source.path), entry)
        cut_files.append(new)
    return cut_files


def _hash(file: DissectedFile, spans: Sequence[Span], advance: Progress) -> CutFile:
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


SENT_PACK_BYTES = 4 * 1024 * 1024
"""Limit of the size of a pack that this client sends: a broken connection costs at most these bytes."""
SENT_PACK_PIECES = 1000
"""Limit of the pieces of a pack that this client sends."""


@dataclass(frozen=True, slots=True)
class SourcePiece:
    """A piece of a file, and the source of its bytes."""

    source: ByteSource
    piece: FilePiece

    @property
    def size_bytes(self) -> int:
        return self.piece.size_bytes


@dataclass(frozen=True, slots=True)
class OpenLoad:
    """A load that is ready to send: the request for an upload, and its bytes, which begin at `offset` of `source`."""

    request: UploadRequest
    source: ByteSource
    offset: int


@dataclass(frozen=True, slots=True)
class Load:
    """The content of one upload: a large piece, or a pack of small ones."""

    pieces: tuple[SourcePiece, ...]

    @property
    def is_pack(self) -> bool:
        return self.pieces[0].size_bytes <= PACK_PIECE_MAX_BYTES

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)

    def opened(self) -> OpenLoad:
        """Return the load with its bytes; those of a pack are read. Raises BadSource."""
        first = self.pieces[0]
        if not self.is_pack:
            request = UploadRequest(kind="piece", size_bytes=first.size_bytes, digest=first.piece.digest)
            return OpenLoad(request, first.source, first.piece.offset)
        data = b"".join(item.source.read_at(item.piece.offset, item.size_bytes) for item in self.pieces)
        pieces = tuple(PackPiece(size_bytes=item.size_bytes, digest=item.piece.digest) for item in self.pieces)
        request = UploadRequest(kind="pack", size_bytes=len(data), digest=digest_of(data), pieces=pieces)
        return OpenLoad(request, MemorySource(data, "a pack"), 0)


def distinct(files: Iterable[CutFile]) -> dict[Digest, SourcePiece]:
    """Return the pieces of `files`, each digest once, in file order."""
    pieces: dict[Digest, SourcePiece] = {}
    for file in files:
        for piece in file.pieces:
            pieces.setdefault(piece.digest, SourcePiece(file.file.source, piece))
    return pieces


def loads(missing: Iterable[SourcePiece]) -> list[Load]:
    """Return `missing` as loads, the largest first, so that all threads of a push end at about the same time.

    The same pieces always give the same loads: an interrupted push finds its uploads again.
    """
    found: list[Load] = []
    pack: list[SourcePiece] = []
    pack_bytes = 0
    for piece in missing:
        if piece.size_bytes > PACK_PIECE_MAX_BYTES:
            found.append(Load((piece,)))
            continue
        if pack and (pack_bytes + piece.size_bytes > SENT_PACK_BYTES or len(pack) == SENT_PACK_PIECES):
            found.append(Load(tuple(pack)))
            pack, pack_bytes = [], 0
        pack.append(piece)
        pack_bytes += piece.size_bytes
    if pack:
        found.append(Load(tuple(pack)))
    return sorted(found, key=lambda load: -load.size_bytes)


PATIENCE_SECONDS = 180.0
"""Seconds of retries without success; then the push stops, and continues when it is run again."""
PAUSE_SECONDS, PAUSE_MAX_SECONDS = 0.25, 8.0
PASSING = (Unreachable, Busy, TooMany)
"""Errors that can be temporary."""
LEAVE_SECONDS = 3.0
"""Seconds that the threads have to end after an error: a chunk in progress is not awaited."""

T = TypeVar("T")


class PushStopped(Exception):
    """The push was stopped, by the user or by an error in another thread; raised inside its threads to end them."""


class Patience:
    """The time since the first of several failures; reset by every success."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self.succeeded()

    def succeeded(self) -> None:
        """Note a success."""
        self._failures = 0
        self._since = time.monotonic()

    def wait(self, error: OrganError) -> None:
        """Wait before the next try; raises `error` after too much time or if retries are useless, PushStopped if the
        push was stopped."""
        if isinstance(error, BadReply) or time.monotonic() - self._since > PATIENCE_SECONDS:
            raise error
        pause = min(PAUSE_SECONDS * 2.0**self._failures, PAUSE_MAX_SECONDS)
        if isinstance(error, TooMany):
            pause = min(max(pause, error.seconds), PATIENCE_SECONDS)
        self._failures += 1
        if self._stop.wait(pause):
            raise PushStopped from error


def patiently(stop: threading.Event, ask: Callable[[], T]) -> T:
    """Return the result of `ask`, with retries after temporary errors."""
    patience = Patience(stop)
    while True:
        try:
            return ask()
        except PASSING as error:
            patience.wait(error)


def in_lanes(items: Sequence[T], do: Callable[[T], None], count: int, stop: threading.Event) -> None:
    """Call `do` for each of `items`, `count` at a time. The first error or an interrupt sets `stop` and is raised.

    `do` must check `stop` and raise if it is set.
    """
    waiting: queue.SimpleQueue[T] = queue.SimpleQueue()
    for item in items:
        waiting.put(item)
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            while True:
                do(waiting.get_nowait())
        except queue.Empty:
            ended.put(None)
        except BaseException as error:  # noqa: BLE001  # passed to the waiting thread, which raises it
            ended.put(error)

    lanes = [threading.Thread(target=run, daemon=True, name="push") for _ in range(min(count, len(items)))]
    for lane in lanes:
        lane.start()
    try:
        for _ in lanes:
            if (failure := ended.get()) is not None:
                raise failure
    except BaseException:
        stop.set()
        deadline = time.monotonic() + LEAVE_SECONDS
        for lane in lanes:
            lane.join(max(0.0, deadline - time.monotonic()))
        raise


CHUNK_BYTES = 8 * 1024 * 1024
DAMAGED_MAX = 3
"""Times that an upload can refuse a chunk or disappear before the push fails."""


class Misfit(BadInput, code="bytes-differ"):
    """The received bytes of an upload do not have the declared digest."""


@dataclass(slots=True)
class Sender:
    """Sends loads; safe for several threads with one load each."""

    connection: Connection
    stop: threading.Event
    advance: Progress
    """Called with the number of bytes that arrived, also those of earlier runs."""
    chunk_bytes: int
    sent_bytes: int = 0
    """Includes repeated bytes."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, load: Load) -> None:
        """Send `load` to the registry. Raises its refusals, Unreachable if it does not answer for too long, BadSource,
        and PushStopped if the push was stopped."""
        opened = load.opened()
        patience = Patience(self.stop)
        upload: Upload | None = None
        reported = refused = 0
        while True:
            if self.stop.is_set():
                raise PushStopped
            try:
                upload = self._next_step(opened, upload)
            except (*PASSING, Conflict) as error:  # the server may hold an incomplete chunk for a while
                patience.wait(error)
                upload = upload and self._look_up(opened, upload)
                continue
            except (BadInput, NotFound) as error:
                refused += 1
                if upload is None or isinstance(error, BadSource | Misfit) or refused > DAMAGED_MAX:
                    raise
                upload = None  # the chunk was damaged in transit, or the upload is gone
                patience.wait(error)
                continue
            if upload.received_bytes > reported or upload.is_complete:
                patience.succeeded()
            self.advance(upload.received_bytes - reported)
            reported = upload.received_bytes
            if upload.is_complete:
                return

    def _next_step(self, load: OpenLoad, upload: Upload | None) -> Upload:
        """Open the upload, send its next chunk, or finish it; return its new state."""
        if upload is None:
            return _checked(uploads.begin_upload(self.connection, load.request), load.request)
        begin, size_bytes = upload.received_bytes, load.request.size_bytes
        if begin == size_bytes:  # finishing twice changes nothing
            try:
                uploads.finish_upload(self.connection, upload.id)
            except BadInput as error:
                with suppress(OrganError):
                    uploads.cancel_upload(self.connection, upload.id)  # otherwise the next run would continue it
                raise Misfit(str(error)) from error
            return structs.replace(upload, state="complete")
        chunk_bytes = max(min(self.chunk_bytes, upload.chunk_bytes.most), chunk_min_bytes(size_bytes))
        data = load.source.read_at(load.offset + begin, min(chunk_bytes, size_bytes - begin))
        place = f"bytes {begin}-{begin + len(data) - 1}/{size_bytes}"
        digest = f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"
        with self.lock:
            self.sent_bytes += len(data)
        answer = uploads.receive_chunk(self.connection, upload.id, place, digest, data=data)
        updated = _checked(answer, load.request)
        if updated.received_bytes == begin:
            raise BadReply("the registry refuses more bytes of an upload without a reason")
        return updated

    def _look_up(self, load: OpenLoad, upload: Upload) -> Upload | None:
        """Return the current state of `upload`; the last known if the registry does not answer, None if it is gone."""
        try:
            return _checked(uploads.upload(self.connection, upload.id), load.request)
        except NotFound:
            return None
        except OrganError:
            return upload


def _checked(upload: Upload, request: UploadRequest) -> Upload:
    """Return `upload`; raise BadReply if it has received more bytes than were requested."""
    if upload.received_bytes > request.size_bytes:
        raise BadReply(f"the registry reports {upload.received_bytes} received bytes of {request.size_bytes}")
    return upload
