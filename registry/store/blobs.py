"""Writing of blobs chunk by chunk, and reading of complete blobs or parts. Every chunk is checked.

A *stack* is a blob whose plain bytes are those of other blobs, one after another. It has no stored bytes of its own.

A blob can be stored by its difference to another blob, its *parent*. A parent can have a parent of its own, which is
stored alone: a read opens at most three blobs, and of a parent it decodes only the chunks with the same values.

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
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias

from organs.registry.digest import Digest, digest_of
from organs.registry.errors import CorruptBlob, EncodingFault, FaultyParent, MissingBlob, StoreError
from organs.registry.gguf.types import DType
from organs.registry.recent import RecentValues
from organs.registry.store.backend import BlobBackend, FileVersion, OpenBlob
from organs.registry.store.codec import (
    BYTES_CODEC,
    CHUNK_TARGET_BYTES,
    START_BYTES,
    BlobChunk,
    ChunkEntry,
    Codec,
    EncodedChunk,
    StoredHead,
    can_derive,
    decode_chunk,
    delta_codec,
    derive_codec,
    encode_chunk,
    head_size_bytes,
    head_size_of,
    is_dequantised,
    lend,
    pack_head,
    parse_head,
    worth_encoding,
)
from organs.registry.store.codec.fast import warm_in_background
from organs.registry.store.files import Files
from organs.registry.store.folder import BlobFolder

INLINE_MAX_BYTES = 64 * 1024
"""The largest plain size of a blob in the database. A separate file takes a rename and two syncs, about 1 ms."""

LOOK_AGAIN_SECONDS = 60.0
"""A blob that is set aside is read again at most once in this time, unless its file was written."""
LOOK_WAIT_SECONDS = 30.0
"""How long a reader waits while another thread reads a blob that is set aside."""
LOOKS_MAX = 4096
"""Results of second looks that a process keeps in memory."""

COPIED_BYTES = 4 * 1024 * 1024
"""Bytes that are copied at once from one place to another."""

WARM_MIN_BYTES = 1 << 20
"""The size of a parent from which it is worth loading compiled kernels."""
PARENT_CHUNKS = 2
"""Decoded chunks of a parent that a reader keeps in memory. A stream reads those that need the same one together."""


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
    parent: BlobAddress | None = None

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
    def parent(self) -> BlobAddress | None:
        """The blob to which the stored bytes are the difference; None if it is stored alone."""
        ...

    @property
    def parts(self) -> Sequence[BlobAddress]:
        """The blobs whose plain bytes in this order are those of a stack; empty if it is not a stack.

        A part has stored bytes of its own: it is never a stack.
        """
        ...


class BlobStore:
    """The blobs of one registry, in a folder or in another place.

    `on_recovered` is called when the bytes of a blob that was set aside are right again. It must not raise. `current`
    returns the present address of a blob: if a file is missing, the blob may have been stored in another way meanwhile.
    """

    def __init__(
        self,
        place: Path | BlobBackend,
        files: Files | None = None,
        on_recovered: Callable[[BlobAddress], None] | None = None,
        second_looks: SecondLooks | None = None,
        current: Callable[[Digest], BlobAddress | None] | None = None,
    ) -> None:
        self._current = current
        self.backend: BlobBackend = BlobFolder(place, files) if isinstance(place, Path) else place
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

    def put_organ(
        self,
        digest: Digest,
        size_bytes: int,
        codec: Codec,
        read: Callable[[int], bytes | memoryview],
        parent: BlobAddress | None = None,
    ) -> StoredBlob:
        """Store an organ whose digest is known; `read(size)` gives its next plain bytes.

        `parent` is that of `codec`. Raises EncodingFault if the bytes do not have this digest; FaultyParent.
        """
        hashed = hashlib.sha256()
        with ExitStack() as stack:
            encoder = None if parent is None else stack.enter_context(closing(OrganEncoder(codec, parent, self)))
            writer: BlobWriter | None = None
            stack.push(lambda kind, *_: writer.discard() if kind is not None and writer is not None else None)
            for begin in range(0, size_bytes, codec.chunk_bytes):
                plain = read(min(codec.chunk_bytes, size_bytes - begin))
                hashed.update(plain)
                if encoder is None:
                    encoder = OrganEncoder.alone(codec, plain)
                if writer is None:
                    writer = BlobWriter(self, digest, size_bytes, encoder.codec, parent)
                for chunk in encoder.encode(begin, memoryview(plain)):
                    writer.append(chunk)
            if hashed.hexdigest() != digest:
                raise EncodingFault(f"the bytes to be stored as {digest} have the digest {hashed.hexdigest()}")
            writer = writer or BlobWriter(self, digest, size_bytes, codec, parent)
            return writer.finish()

    def reader(self, address: BlobAddress) -> PlainReader:
        """Open a blob to read it, also if it is set aside.

        Raises MissingBlob; CorruptBlob if its head does not agree with the row; FaultyParent. For a stack, reading its
        parts raises them.
        """
        if address.parts:
            return StackReader(self, address)
        try:
            return BlobReader(self, address)
        except (MissingBlob, FaultyParent):  # a parent that was left meanwhile may be swept before its former dependant
            current = None if self._current is None else self._current(address.digest)
            if current is None or (current.file, current.inline) == (address.file, address.inline):
                raise
            return self.reader(current)

    def open(self, address: BlobAddress) -> PlainReader:
        """Open a blob to read it. A blob that is set aside is first read completely and compared.

        Raises the errors of `reader`; CorruptBlob if it is set aside and its bytes are still wrong.
        """
        if not address.is_set_aside:
            return self.reader(address)
        reader = self.uncached().reader(address)
        try:
            if self._second_looks.check(reader) and self._on_recovered is not None:
                self._on_recovered(address)
        except BaseException:
            reader.close()
            raise
        return reader

    def uncached(self) -> BlobStore:
        """Return the same store without caches, for verifications. Safe for threads, like the store itself."""
        backend = self.backend.uncached()
        if backend is self.backend:
            return self
        return BlobStore(backend, None, self._on_recovered, self._second_looks, self._current)

    def copy_file(self, source: BlobStore, file: str, size_bytes: int) -> None:
        """Copy the file `file` of the store `source`, and replace an existing file of this store.

        Raises MissingBlob, CorruptBlob if the file does not have `size_bytes`, DiskFull, StoreUnwritable,
        StoreUnreachable, StoreError.
        """
        if isinstance(source.backend, BlobFolder) and isinstance(self.backend, BlobFolder):
            self.backend.copy_from(source.backend, file, size_bytes)
            return
        with closing(source.uncached().backend.open(file)) as stored:
            if stored.size_bytes != size_bytes:
                raise CorruptBlob(file, f"{stored.size_bytes} bytes are stored, the catalog says {size_bytes}")
            begins = range(0, size_bytes, COPIED_BYTES)
            pieces = (stored.read_at(begin, min(COPIED_BYTES, size_bytes - begin)) for begin in begins)
            self.backend.write(file, size_bytes, pieces)


FileVersions: TypeAlias = tuple[FileVersion, ...]
"""The versions of one file or several."""


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
        self._looks: OrderedDict[FileVersions, _Look] = OrderedDict()

    def check(self, reader: PlainReader) -> bool:
        """Compare the plain bytes of `reader` with its digest; return whether this call read them.

        Raises CorruptBlob if they differ; FaultyParent if a parent is faulty: then its own bytes were not checked.
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
        if isinstance(look.error, FaultyParent):
            raise FaultyParent(reader.digest, look.error.parent, look.error.fault)
        if look.error is not None:
            reason = look.error.reason if isinstance(look.error, CorruptBlob) else str(look.error)
            raise CorruptBlob(reader.digest, f"it is set aside as faulty: {reason}")
        return is_due

    def _look(self, reader: PlainReader, version: FileVersions) -> _Look:
        error: StoreError | None = None
        try:
            reader.verify()
        except StoreError as raised:
            error = raised.with_traceback(None)  # the stored error must not keep the frames of this read
            error.__cause__ = error.__context__ = None
        look = self._looks[version] = _Look(self._clock(), error)
        self._looks.move_to_end(version)
        if len(self._looks) > LOOKS_MAX:
            self._looks.popitem(last=False)
        return look


class BlobWriter:
    """Writes the chunks of a blob in order, then the head, and makes the blob durable."""

    def __init__(
        self, store: BlobStore, digest: Digest, size_bytes: int, codec: Codec, parent: BlobAddress | None = None
    ) -> None:
        self.codec = codec
        self._parent = parent
        self._digest = digest
        self._size = size_bytes
        self._entries: list[ChunkEntry] = []
        self._inline: list[bytes] | None = [] if size_bytes <= INLINE_MAX_BYTES else None
        self._offset = head_size_bytes(codec, size_bytes)
        self._pending = store.backend.begin(digest, size_bytes, self._offset) if self._inline is None else None

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
        codec, parent = self.codec, self._parent
        head = pack_head(codec, self._digest, self._size, self._entries, None if parent is None else parent.digest)
        file, inline = None, None
        if self._pending is None:
            assert self._inline is not None
            inline = b"".join([head, *self._inline])
        else:
            file = self._pending.place(head)
        return StoredBlob(self._digest, self._size, self._offset, codec.name, codec.version, file, inline, parent)

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
    def chunks_together(self) -> int:
        """The number of chunks, counted from the first one, that one thread should read: they need the same bytes."""
        return 1

    @property
    def dtype(self) -> DType | None:
        """The tensor type of the first organ that was stored with these bytes; None for a stack and other bytes."""
        return None

    @property
    def version(self) -> FileVersions | None:
        """The versions of the files of the blob and of its parents; None if one is inline, and for a stack."""
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


class RangeReader:
    """Reads ranges of the plain bytes of a blob; safe for threads. The chunks that were decoded last stay in memory."""

    def __init__(self, reader: PlainReader, kept_chunks: int = 1) -> None:
        self.reader = reader
        self._decoded = RecentValues[int, memoryview](kept_chunks)

    @cached_property
    def _begins(self) -> list[int]:
        return [chunk.plain_offset_bytes for chunk in self.reader.chunks]

    def read(self, offset: int, size: int) -> memoryview:
        """Return `size` plain bytes from `offset`; raises CorruptBlob, MissingBlob."""
        assert offset + size <= self.reader.size_bytes
        if not size:
            return memoryview(b"")
        first, last = self._at(offset), self._at(offset + size - 1)
        if first == last:
            begin = offset - self._begins[first]
            return self._chunk(first)[begin : begin + size]
        pieces = bytearray(size)
        for index in range(first, last + 1):
            data, begin = self._chunk(index), self._begins[index]
            piece = data[max(0, offset - begin) : offset + size - begin]
            start = max(0, begin - offset)
            pieces[start : start + len(piece)] = piece
        return memoryview(pieces).toreadonly()

    def forget(self, begin: int, end: int) -> None:
        """Free chunks that end between `begin` and `end`: who reads in order needs them no more."""
        for index in range(self._at(begin), self._at(end - 1) + 1):
            if self._begins[index] + self.reader.chunks[index].plain_size_bytes <= end:
                self._decoded.forget(index)

    def close(self) -> None:
        """Close the blob, and free its chunks."""
        self.reader.close()
        self._decoded.clear()

    def _at(self, offset: int) -> int:
        """Return the number of the chunk with the byte at `offset`."""
        return bisect_right(self._begins, offset) - 1

    def _chunk(self, index: int) -> memoryview:
        def decode() -> memoryview:
            chunk = self.reader.chunks[index]
            data = lend(chunk.plain_size_bytes)
            self.reader.read_chunk(chunk, data)
            return data.toreadonly()  # other reads get views of it

        return self._decoded.get(index, decode)


def _open_parent(store: BlobStore, address: BlobAddress) -> RangeReader:
    """Open the parent of a blob; raises the errors of `BlobStore.reader`. The two have chunks with other bounds."""
    if address.size_bytes >= WARM_MIN_BYTES:
        warm_in_background()
    return RangeReader(store.reader(address), PARENT_CHUNKS)


class BlobReader(PlainReader):
    """Reads a blob that has stored bytes, and its parent."""

    def __init__(self, store: BlobStore, address: BlobAddress) -> None:
        self.digest = address.digest
        self.size_bytes = address.size_bytes
        self._parent: RangeReader | None = None
        self._stored: OpenBlob | _InlineBytes
        if address.inline is not None:
            self._stored = _InlineBytes(address.digest, address.inline)
        elif address.file is not None:
            self._stored = store.backend.open(address.file)
        else:
            raise MissingBlob(f"{address.digest} is recorded without its bytes")
        try:
            try:
                self.head = self._read_head(address.stored_bytes)
            except CorruptBlob:
                if not self._stored.drop_cached(0, self._stored.size_bytes):
                    raise
                self.head = self._read_head(address.stored_bytes)
            self._parent = self._checked_parent(store, address.parent)
        except BaseException:
            self.close()
            raise

    @property
    def chunks(self) -> tuple[BlobChunk, ...]:
        return self.head.chunks

    @property
    def chunk_bytes(self) -> int:
        return min(self.head.codec.chunk_bytes, self.size_bytes)

    @property
    def chunks_together(self) -> int:
        if self._parent is None or not self.chunk_bytes:
            return 1
        parent, needed_bytes = self._parent.reader, self.head.codec.source_bytes(self.chunk_bytes)
        decoded_bytes = parent.chunk_bytes * parent.chunks_together  # in any case, for any part of them
        return max(1, min(decoded_bytes // needed_bytes, CHUNK_TARGET_BYTES // self.chunk_bytes))

    @property
    def dtype(self) -> DType | None:
        return self.head.codec.dtype

    @property
    def version(self) -> FileVersions | None:
        above = () if self._parent is None else self._parent.reader.version
        return None if above is None or isinstance(self._stored, _InlineBytes) else (self._stored.version, *above)

    def read_chunk(self, chunk: BlobChunk, out: memoryview) -> None:
        parent, parent_bytes = self._parent, None
        source_bytes = self.head.codec.source_bytes
        if parent is not None:
            with blaming_parent(self.digest, parent.reader.digest):
                begin, size = source_bytes(chunk.plain_offset_bytes), source_bytes(chunk.plain_size_bytes)
                parent_bytes = parent.read(begin, size)
        try:
            self._decode(chunk, out, parent_bytes)
        except CorruptBlob:
            if not self._stored.drop_cached(chunk.offset_bytes, chunk.stored_size_bytes):
                raise
            self._decode(chunk, out, parent_bytes)
        if parent is not None:
            end = source_bytes(chunk.plain_offset_bytes + chunk.plain_size_bytes)
            parent.forget(source_bytes(chunk.plain_offset_bytes), end)

    def _decode(self, chunk: BlobChunk, out: memoryview, parent_bytes: memoryview | None) -> None:
        stored = self._stored.read_at(chunk.offset_bytes, chunk.stored_size_bytes)
        decode_chunk(self.head.codec, chunk, stored, out, parent_bytes)

    def stream(self) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(self.chunk_bytes))
        for chunk in self.chunks:
            out = buffer[: chunk.plain_size_bytes]
            self.read_chunk(chunk, out)
            yield out

    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        return bytes(RangeReader(self).read(offset, self.size_bytes - offset if size is None else size))

    def close(self) -> None:
        self._stored.close()
        if self._parent is not None:
            self._parent.close()

    def _checked_parent(self, store: BlobStore, address: BlobAddress | None) -> RangeReader | None:
        expected = None if address is None else address.digest
        if self.head.parent != expected:
            raise CorruptBlob(self.digest, f"its head names the parent {self.head.parent}, the catalog {expected}")
        if address is None:
            return None
        needed_bytes = self.head.codec.source_bytes(self.size_bytes)
        if address.size_bytes != needed_bytes:
            raise CorruptBlob(self.digest, f"its parent has {address.size_bytes} bytes, {needed_bytes} are needed")
        with blaming_parent(self.digest, address.digest):
            return _open_parent(store, address)

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
    chunk: PlainChunk
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
        def compared_parts() -> Iterator[memoryview]:
            for number in range(len(self._parts)):
                with self._open(number) as part:
                    yield from _compared(part.stream(), part.digest)

        for _ in _compared(compared_parts(), self.digest):
            pass

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

    def _open(self, number: int) -> PlainReader:
        part = self._parts[number]
        try:
            return self._store.reader(part)
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

    def drop_cached(self, offset: int, size: int) -> bool:
        """Return False: nothing is cached."""
        return False

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


@contextmanager
def blaming_parent(child: str, parent: str) -> Iterator[None]:
    """Raise FaultyParent, about `child`, for a fault of its parent or of the parent of that."""
    try:
        yield
    except FaultyParent as error:
        raise FaultyParent(child, error.parent, error.fault) from error
    except (CorruptBlob, MissingBlob) as error:
        reason = error.reason if isinstance(error, CorruptBlob) else str(error)
        raise FaultyParent(child, parent, reason) from error


@dataclass(frozen=True, slots=True)
class ParentCandidate:
    """An organ that may be the parent of another one: it probably has similar weights."""

    blob: BlobAddress
    dtype: DType

    def codec(self, dtype: DType | None, size_bytes: int) -> Codec | None:
        """Return the codec of an organ with this parent; None if it cannot be its parent."""
        if dtype is None:
            return None
        if dtype == self.dtype:
            codec = delta_codec(dtype.name)
        elif can_derive(self.dtype, dtype):
            codec = derive_codec(dtype.name, self.dtype.name)
        else:
            return None
        return codec if codec.source_bytes(size_bytes) == self.blob.size_bytes else None

    def gain_min(self, dtype: DType) -> float:
        """Return the smallest share of the size of an organ of `dtype` that it must save as its parent."""
        return DEQUANTISED_GAIN_MIN if is_dequantised(self.dtype, dtype) else PARENT_GAIN_MIN


PARENT_GAIN_MIN = 0.1
"""The smallest share of the size of an organ that its parent must save: a reader decodes both."""
DEQUANTISED_GAIN_MIN = 0.95
"""That share for a float organ with a quantised parent. Other floats save some bytes too, but then the quantisation
cannot be stored by what rounding does not determine of them, which saves more."""


class OrganEncoder:
    """Encodes the parts of an organ with one codec and, if it needs one, a parent. Safe for threads."""

    def __init__(self, codec: Codec, parent: BlobAddress | None = None, store: BlobStore | None = None) -> None:
        """Open `parent` in `store`; raises the errors of `BlobStore.reader`."""
        self.codec = codec
        self.parent = parent
        self._parent = None if parent is None or store is None else _open_parent(store, parent)
        self._first: EncodedChunk | None = None
        """The first chunk, if it was encoded to choose the codec."""

    @classmethod
    def alone(cls, codec: Codec, first: bytes | memoryview) -> OrganEncoder:
        """Return the encoder for an organ without a parent; the raw one if `first`, its first chunk, saves little."""
        chunk = encode_chunk(codec, first)
        if not worth_encoding(chunk):
            return cls(codec.kept_raw())
        encoder = cls(codec)
        encoder._first = chunk
        return encoder

    def encode(self, begin_bytes: int, plain: memoryview) -> list[EncodedChunk]:
        """Encode the whole chunks of the organ that begin at `begin_bytes`; the last of the organ may be shorter.

        Raises the errors of `encode_chunk`, CorruptBlob or MissingBlob for a faulty parent.
        """
        if begin_bytes == 0 and self._first is not None:
            first, self._first = self._first, None
            return [first]
        chunks = []
        step = self.codec.chunk_bytes
        for start in range(0, len(plain), step):
            part = plain[start : start + step]
            chunks.append(encode_chunk(self.codec, part, self._values(begin_bytes + start, len(part))))
        return chunks

    def share_of(self, begin_bytes: int, plain: memoryview) -> float:
        """Return the stored size of whole blocks of the organ as a share of their size."""
        return encode_chunk(self.codec, plain, self._values(begin_bytes, len(plain))).stored_size_bytes / len(plain)

    def close(self) -> None:
        """Close the parent."""
        if self._parent is not None:
            self._parent.close()

    def _values(self, begin_bytes: int, size_bytes: int) -> memoryview | None:
        """Return the bytes of the parent with the same values."""
        if self._parent is None:
            return None
        return self._parent.read(self.codec.source_bytes(begin_bytes), self.codec.source_bytes(size_bytes))


def smallest_encoder(
    store: BlobStore, codec: Codec, size_bytes: int, first: memoryview, candidates: Iterable[ParentCandidate]
) -> OrganEncoder:
    """Return the encoder that stores the organ that begins with `first`, its first chunk, in the fewest bytes.

    `codec` stores the organ alone. The candidates are tried on a sample of `first`. A parent is chosen if it saves at
    least its `gain_min`. Candidates that cannot be read are left out.
    """
    tried = [(own, candidate) for candidate in candidates if (own := candidate.codec(codec.dtype, size_bytes))]
    if not tried:
        return OrganEncoder.alone(codec, first)
    assert codec.dtype is not None
    begin, sample_bytes = sample_range(codec.dtype, len(first))
    sample = first[begin : begin + sample_bytes]
    best: OrganEncoder | None = None
    alone_share = best_share = min(1.0, OrganEncoder(codec).share_of(0, sample))
    for own, candidate in tried:
        with suppress(StoreError), ExitStack() as opened:
            encoder = opened.enter_context(closing(OrganEncoder(own, candidate.blob, store)))
            share = encoder.share_of(begin, sample)
            if share < min(best_share, alone_share * (1 - candidate.gain_min(codec.dtype))):
                if best is not None:
                    best.close()
                best, best_share = encoder, share
                opened.pop_all()
    return best or OrganEncoder.alone(codec, first)


SAMPLE_ELEMENTS = 1 << 15
"""Values of an organ on which candidates for its parent are tried."""
BLOCK_ELEMENTS = 256
"""The largest block of a tensor type: a sample begins at a multiple of it."""


def sample_range(dtype: DType, size_bytes: int) -> tuple[int, int]:
    """Return the offset and the size of a sample in the middle of `size_bytes` bytes, both in bytes.

    It has whole blocks, also of a parent with another tensor type.
    """
    elements = size_bytes // dtype.block_bytes * dtype.block_elements
    count = min(elements, SAMPLE_ELEMENTS)
    begin = (elements - count) // 2 // BLOCK_ELEMENTS * BLOCK_ELEMENTS
    return dtype.size_bytes(begin), dtype.size_bytes(count)
