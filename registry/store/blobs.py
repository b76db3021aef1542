"""Writing of blobs chunk by chunk, and reading of complete blobs or parts. Every chunk is checked.

A *stack* is a blob whose plain bytes are those of other blobs, one after another. It has no stored bytes of its own.

`finish` returns small blobs as bytes for the row in the catalog, so that a thousand norms are not a thousand files.

If the bytes of a blob were wrong once, the catalog sets it aside. Opening it reads all bytes again: if they are right,
it is opened and the catalog is notified; otherwise opening fails.
"""

from __future__ import annotations

import hashlib
import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, Self

from organs.registry.digest import Digest, digest_of
from organs.registry.errors import CorruptBlob, EncodingFault, MissingBlob, StoreError
from organs.registry.store.codec import (
    BYTES_CODEC,
    START_BYTES,
    ChunkEntry,
    Codec,
    EncodedChunk,
    StoredChunk,
    StoredHead,
    decode_chunk,
    encode_chunk,
    head_size_bytes,
    head_size_of,
    pack_head,
    parse_head,
    worth_encoding,
)
from organs.registry.store.files import Files
from organs.registry.store.folder import BlobFolder, StoredFile

INLINE_MAX_BYTES = 64 * 1024
"""The largest plain size of a blob in the database. A separate file takes a rename and two syncs, about 1 ms."""

LOOK_AGAIN_SECONDS = 60.0
"""A blob that is set aside is read again at most once in this time, unless its file was written."""
LOOK_WAIT_SECONDS = 30.0
"""How long a reader waits while another thread reads a blob that is set aside."""
LOOKS_MAX = 4096
"""Results of second looks that a process keeps in memory."""


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """A blob whose stored bytes are durable: in the file `file`, or `inline` for the row."""

    digest: Digest
    size_bytes: int
    stored_bytes: int
    codec: str
    codec_version: int
    file: str | None = None
    inline: bytes | None = None

    @property
    def is_set_aside(self) -> bool:
        """False: it was just stored."""
        return False

    @property
    def parts(self) -> tuple[BlobAddress, ...]:
        """No parts: stacks are not stored, only recorded."""
        return ()


class BlobAddress(Protocol):
    """The data that are needed to read a blob, for example a row of the catalog."""

    @property
    def digest(self) -> Digest: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def stored_bytes(self) -> int: ...
    @property
    def file(self) -> str | None: ...
    @property
    def inline(self) -> bytes | None: ...
    @property
    def is_set_aside(self) -> bool:
        """Whether the bytes were wrong or missing when they were last read."""
        ...

    @property
    def parts(self) -> Sequence[BlobAddress]:
        """The blobs whose plain bytes in this order are those of a stack; empty if it is not a stack.

        A part has stored bytes of its own: it is never a stack.
        """
        ...


class BlobStore:
    """The blobs of one registry below `root`.

    `on_recovered` is called when the bytes of a blob that was set aside are right again. It must not raise.
    """

    def __init__(
        self,
        root: Path,
        files: Files | None = None,
        on_recovered: Callable[[BlobAddress], None] | None = None,
        second_looks: SecondLooks | None = None,
    ) -> None:
        self.folder = BlobFolder(root, files)
        self._on_recovered = on_recovered
        self._second_looks = second_looks or SecondLooks()

    def put(self, data: bytes) -> StoredBlob:
        """Store `data` in one call; they must not be the bytes of a tensor."""
        writer = BlobWriter(self, digest_of(data), len(data), BYTES_CODEC)
        try:
            for begin in range(0, len(data), BYTES_CODEC.chunk_bytes):
                chunk = memoryview(data)[begin : begin + BYTES_CODEC.chunk_bytes]
                writer.append(encode_chunk(writer.codec, chunk))
            return writer.finish()
        except BaseException:
            writer.discard()
            raise

    def put_organ(self, digest: Digest, size_bytes: int, codec: Codec, read: Callable[[int], bytes]) -> StoredBlob:
        """Store an organ whose digest is known; `read(size)` gives its next plain bytes.

        Raises EncodingFault if the bytes do not have this digest.
        """
        hashed = hashlib.sha256()
        writer: BlobWriter | None = None
        try:
            for begin in range(0, size_bytes, codec.chunk_bytes):
                plain = read(min(codec.chunk_bytes, size_bytes - begin))
                hashed.update(plain)
                chunk = encode_chunk(codec if writer is None else writer.codec, plain)
                if writer is None:
                    writer = BlobWriter(self, digest, size_bytes, codec_for_blob(codec, chunk))
                    chunk = chunk if writer.codec == codec else encode_chunk(writer.codec, plain)
                writer.append(chunk)
            if hashed.hexdigest() != digest:
                raise EncodingFault(f"the bytes to be stored as {digest} have the digest {hashed.hexdigest()}")
            return (writer or BlobWriter(self, digest, size_bytes, codec)).finish()
        except BaseException:
            if writer is not None:
                writer.discard()
            raise

    def reader(self, address: BlobAddress) -> PlainReader:
        """Open a blob to read it, also if it is set aside.

        Raises MissingBlob; CorruptBlob if its head does not agree with the row. For a stack, reading its parts raises
        them.
        """
        return StackReader(self, address) if address.parts else BlobReader(self, address)

    def open(self, address: BlobAddress) -> PlainReader:
        """Open a blob to read it. A blob that is set aside is first read completely and compared.

        Raises the errors of `reader`; CorruptBlob if it is set aside and its bytes are still wrong.
        """
        reader = self.reader(address)
        if not address.is_set_aside:
            return reader
        try:
            if self._second_looks.check(reader) and self._on_recovered is not None:
                self._on_recovered(address)
        except BaseException:
            reader.close()
            raise
        return reader


@dataclass(frozen=True, slots=True)
class _Look:
    """The time when a blob was read again, in seconds of the monotonic clock, and its error, if any."""

    ended_at: float
    error: StoreError | None


class SecondLooks:
    """Reads blobs again that are set aside; safe for threads.

    Files are read one after another, and each at most once in LOOK_AGAIN_SECONDS, unless it was written. So repeated
    requests for a faulty blob do not keep the disk busy. Until then the last result is used. This is safe, because
    every chunk is checked at every read. Inline blobs and stacks are read at each call.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._looks: OrderedDict[tuple[str, int, int], _Look] = OrderedDict()

    def check(self, reader: PlainReader) -> bool:
        """Compare the plain bytes of `reader` with its digest; return whether this call read them.

        Raises CorruptBlob if they differ.
        """
        version = reader.version
        if version is None:  # inline, or a stack
            reader.verify()
            return True
        if not self._lock.acquire(timeout=LOOK_WAIT_SECONDS):
            raise CorruptBlob(reader.digest, "it is set aside as faulty, and other such blobs are being read again now")
        try:
            look = self._looks.get(version)
            is_due = look is None or self._clock() - look.ended_at >= LOOK_AGAIN_SECONDS
            if look is None or is_due:
                look = self._look(reader, version)
        finally:
            self._lock.release()
        if look.error is not None:
            reason = look.error.reason if isinstance(look.error, CorruptBlob) else str(look.error)
            raise CorruptBlob(reader.digest, f"it is set aside as faulty: {reason}")
        return is_due

    def _look(self, reader: PlainReader, version: tuple[str, int, int]) -> _Look:
        error: StoreError | None = None
        try:
            reader.verify()
        except StoreError as raised:
            error = raised.with_traceback(None)  # the stored error must not keep the frames of this read
        look = self._looks[version] = _Look(self._clock(), error)
        self._looks.move_to_end(version)
        if len(self._looks) > LOOKS_MAX:
            self._looks.popitem(last=False)
        return look


class BlobWriter:
    """Writes the chunks of a blob in order, then the head, and makes the blob durable."""

    def __init__(self, store: BlobStore, digest: Digest, size_bytes: int, codec: Codec) -> None:
        self.codec = codec
        self._digest = digest
        self._size = size_bytes
        self._entries: list[ChunkEntry] = []
        self._inline: list[bytes] | None = [] if size_bytes <= INLINE_MAX_BYTES else None
        self._offset = head_size_bytes(codec, size_bytes)
        self._pending = store.folder.begin(digest, size_bytes, self._offset) if self._inline is None else None

    def append(self, chunk: EncodedChunk) -> None:
        """Write the next chunk."""
        if self._pending is None:
            assert self._inline is not None
            self._inline.extend(bytes(piece) for piece in chunk.pieces)
        else:
            self._pending.append(chunk.pieces)
        self._offset += chunk.stored_size_bytes
        self._entries.append(chunk.entry)

    def finish(self) -> StoredBlob:
        """Write the head and make the file durable. An inline blob becomes durable when its row is written."""
        head = pack_head(self.codec, self._digest, self._size, self._entries)
        file, inline = None, None
        if self._pending is None:
            assert self._inline is not None
            inline = b"".join([head, *self._inline])
        else:
            file = self._pending.place(head)
        codec = self.codec
        return StoredBlob(self._digest, self._size, self._offset, codec.name, codec.version, file, inline)

    def discard(self) -> None:
        """Remove everything that was written. Safe to call twice, and after a failed `finish`."""
        if self._pending is not None:
            self._pending.discard()


class PlainChunk(Protocol):
    """A chunk of plain bytes, which is the smallest part of a blob that can be read."""

    @property
    def plain_offset_bytes(self) -> int: ...
    @property
    def plain_size_bytes(self) -> int: ...
    @property
    def checksum(self) -> int:
        """xxh3_64 of its plain bytes."""
        ...


class PlainReader(ABC):
    """Reads the plain bytes of a blob. A context manager; safe for threads."""

    digest: Digest
    size_bytes: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    @abstractmethod
    def chunks(self) -> Sequence[PlainChunk]:
        """The chunks in order, without gaps."""

    @property
    @abstractmethod
    def chunk_bytes(self) -> int:
        """The size of the largest chunk in plain bytes; 0 without chunks."""

    @property
    def version(self) -> tuple[str, int, int] | None:
        """The name of the file and the times of its last change; None for an inline blob, and for a stack."""
        return None

    @abstractmethod
    def read_chunk(self, chunk: Any, out: memoryview) -> None:
        """Fill `out` with the plain bytes of `chunk`, one of `chunks`; raises CorruptBlob."""

    @abstractmethod
    def stream(self) -> Iterator[memoryview]:
        """Yield the plain bytes chunk by chunk. A chunk is valid until the next one is requested."""

    @abstractmethod
    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        """Return `size` plain bytes from `offset`, by default all bytes. Only chunks with these bytes are decoded."""

    def verify(self) -> None:
        """Read all bytes and compare their SHA-256 with the digest; raises CorruptBlob.

        For a stack, also compare those of its parts with their digests.
        """
        for _ in _compared(self.stream(), self.digest):
            pass

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


class BlobReader(PlainReader):
    """Reads a blob that has stored bytes."""

    def __init__(self, store: BlobStore, address: BlobAddress) -> None:
        self.digest = address.digest
        self.size_bytes = address.size_bytes
        self._stored: StoredFile | _InlineBytes
        if address.inline is not None:
            self._stored = _InlineBytes(address.digest, address.inline)
        elif address.file is not None:
            self._stored = store.folder.open(address.file)
        else:
            raise MissingBlob(f"{address.digest} is recorded without its bytes")
        try:
            self.head = self._read_head(address.stored_bytes)
        except BaseException:
            self.close()
            raise

    @property
    def chunks(self) -> tuple[StoredChunk, ...]:
        return self.head.chunks

    @property
    def chunk_bytes(self) -> int:
        return min(self.head.codec.chunk_bytes, self.size_bytes)

    @property
    def version(self) -> tuple[str, int, int] | None:
        return self._stored.version if isinstance(self._stored, StoredFile) else None

    def read_chunk(self, chunk: StoredChunk, out: memoryview) -> None:
        stored = self._stored.read_at(chunk.offset_bytes, chunk.stored_size_bytes)
        decode_chunk(self.head.codec, chunk, stored, out)

    def stream(self) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(self.chunk_bytes))
        for chunk in self.chunks:
            out = buffer[: chunk.plain_size_bytes]
            self.read_chunk(chunk, out)
            yield out

    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        end = self.size_bytes if size is None else offset + size
        assert 0 <= offset <= end <= self.size_bytes
        pieces = []
        buffer = memoryview(bytearray(self.chunk_bytes))
        for chunk in self.chunks:
            begin = chunk.plain_offset_bytes
            if begin < end and begin + chunk.plain_size_bytes > offset:
                out = buffer[: chunk.plain_size_bytes]
                self.read_chunk(chunk, out)
                pieces.append(bytes(out[max(0, offset - begin) : end - begin]))
        return b"".join(pieces)

    def close(self) -> None:
        self._stored.close()

    def _read_head(self, stored_bytes: int) -> StoredHead:
        size = self._stored.size_bytes
        if size != stored_bytes:
            raise CorruptBlob(self.digest, f"{size} bytes are stored, the catalog says {stored_bytes}")
        start = self._stored.read_at(0, min(START_BYTES, size))
        head_size = head_size_of(start, digest=self.digest, plain_size_bytes=self.size_bytes)
        if head_size > size:
            raise CorruptBlob(self.digest, f"{size} bytes are stored, its head alone has {head_size}")
        head = self._stored.read_at(0, head_size)
        return parse_head(head, digest=self.digest, plain_size_bytes=self.size_bytes, stored_size_bytes=size)


@dataclass(frozen=True, slots=True)
class _StackChunk:
    """A chunk of a part of a stack."""

    part: int
    chunk: StoredChunk
    plain_offset_bytes: int
    """In the stack."""

    @property
    def plain_size_bytes(self) -> int:
        return self.chunk.plain_size_bytes

    @property
    def checksum(self) -> int:
        return self.chunk.checksum


class StackReader(PlainReader):
    """Reads a stack. A part is open only while it is read, so that hundreds of parts do not need as many open files."""

    def __init__(self, store: BlobStore, address: BlobAddress) -> None:
        self.digest = address.digest
        self.size_bytes = address.size_bytes
        self._store = store
        self._parts = address.parts
        ends = list(accumulate(part.size_bytes for part in self._parts))
        self._begins = [0, *ends[:-1]]
        if ends[-1] != self.size_bytes:
            raise CorruptBlob(self.digest, f"its parts have {ends[-1]} bytes, it should have {self.size_bytes}")

    @cached_property
    def chunks(self) -> tuple[_StackChunk, ...]:
        chunks: list[_StackChunk] = []
        for number, begin in enumerate(self._begins):
            with self._open(number) as part:
                chunks += (_StackChunk(number, chunk, begin + chunk.plain_offset_bytes) for chunk in part.chunks)
        return tuple(chunks)

    @property
    def chunk_bytes(self) -> int:
        return max((chunk.plain_size_bytes for chunk in self.chunks), default=0)

    def read_chunk(self, chunk: _StackChunk, out: memoryview) -> None:
        with self._open(chunk.part) as part:
            part.read_chunk(chunk.chunk, out)

    def stream(self) -> Iterator[memoryview]:
        for number in range(len(self._parts)):
            with self._open(number) as part:
                yield from part.stream()

    def verify(self) -> None:
        for _ in _compared(self._compared_parts(), self.digest):
            pass

    def _compared_parts(self) -> Iterator[memoryview]:
        for number in range(len(self._parts)):
            with self._open(number) as part:
                yield from _compared(part.stream(), part.digest)

    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        end = self.size_bytes if size is None else offset + size
        assert 0 <= offset <= end <= self.size_bytes
        pieces = []
        number = max(0, bisect_right(self._begins, offset) - 1)
        while number < len(self._parts) and self._begins[number] < end:
            begin = self._begins[number]
            first, last = max(0, offset - begin), min(self._parts[number].size_bytes, end - begin)
            with self._open(number) as part:
                pieces.append(part.read(first, last - first))
            number += 1
        return b"".join(pieces)

    def close(self) -> None:
        """Do nothing: no part stays open."""

    def _open(self, number: int) -> BlobReader:
        part = self._parts[number]
        try:
            return BlobReader(self._store, part)
        except MissingBlob as error:
            raise MissingBlob(f"part {number} of {self.digest[:12]}, {part.digest[:12]}, is missing") from error


@dataclass(frozen=True, slots=True)
class _InlineBytes:
    digest: Digest
    stored: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.stored)

    def read_at(self, offset: int, size: int) -> bytes:
        data = self.stored[offset : offset + size]
        if len(data) != size:
            raise CorruptBlob(self.digest, f"it ends at byte {offset + len(data)}, {offset + size} bytes are expected")
        return data

    def close(self) -> None:
        """Do nothing: no file is open."""


def _compared(pieces: Iterable[memoryview], digest: Digest) -> Iterator[memoryview]:
    """Yield `pieces`, then raise CorruptBlob if their SHA-256 is not `digest`."""
    hashed = hashlib.sha256()
    for piece in pieces:
        hashed.update(piece)
        yield piece
    if hashed.hexdigest() != digest:
        raise CorruptBlob(digest, f"its plain bytes have the digest {hashed.hexdigest()}")


def codec_for_blob(codec: Codec, first: EncodedChunk) -> Codec:
    """Return `codec`, or the raw codec if the first chunk shows that encoding saves almost nothing."""
    return codec if worth_encoding(first) else codec.kept_raw()


class RangeReader:
    """Reads ranges of a blob, mostly in forward order: it stores the last decoded chunk."""

    def __init__(self, reader: PlainReader) -> None:
        self._reader = reader
        self._begins = [chunk.plain_offset_bytes for chunk in reader.chunks]
        self._buffer = memoryview(bytearray(reader.chunk_bytes if self._begins else 0))
        self._decoded: PlainChunk | None = None

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` plain bytes from `offset`; raises CorruptBlob."""
        pieces = []
        for chunk in self._overlapping(offset, size):
            if chunk is not self._decoded:
                self._decoded = None
                self._reader.read_chunk(chunk, self._buffer[: chunk.plain_size_bytes])
                self._decoded = chunk
            begin = max(0, offset - chunk.plain_offset_bytes)
            pieces.append(bytes(self._buffer[begin : min(offset + size - chunk.plain_offset_bytes, self._end)]))
        return b"".join(pieces)

    @property
    def _end(self) -> int:
        return 0 if self._decoded is None else self._decoded.plain_size_bytes

    def _overlapping(self, offset: int, size: int) -> Sequence[PlainChunk]:
        """Return the chunks with these bytes."""
        if not size:
            return ()
        first, last = (bisect_right(self._begins, place) - 1 for place in (offset, offset + size - 1))
        return self._reader.chunks[first : last + 1]
