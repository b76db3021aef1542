"""What a registry lacks, as loads: pieces below 64 KiB together in packs, larger ones each by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from organs.ingest.pushing.cutting import CutFile
from organs.registry.digest import Digest, digest_of
from organs.registry.gguf import ByteSource, MemorySource
from organs.registry.gguf.pieces import Span

PACKED_MAX_BYTES = 64 * 1024 - 1
PACK_MAX_BYTES = 4 * 1024 * 1024
PACK_PIECES_MAX = 1000


@dataclass(frozen=True, slots=True)
class Wanted:
    """A piece that has to travel, and where its bytes are."""

    source: ByteSource
    span: Span
    digest: Digest


@dataclass(frozen=True, slots=True)
class Load:
    """What goes through one upload session: a large piece, or a pack of small ones."""

    pieces: tuple[Wanted, ...]

    @property
    def is_pack(self) -> bool:
        return self.pieces[0].span.size_bytes <= PACKED_MAX_BYTES

    @property
    def size_bytes(self) -> int:
        return sum(piece.span.size_bytes for piece in self.pieces)

    def opened(self) -> OpenLoad:
        """With its bytes at hand; those of a pack are read. Raises BadSource."""
        if not self.is_pack:
            (piece,) = self.pieces
            asked = {"kind": "piece", "size_bytes": piece.span.size_bytes, "digest": piece.digest}
            return OpenLoad(asked, piece.source, piece.span)
        data = b"".join(piece.source.read_at(piece.span.offset, piece.span.size_bytes) for piece in self.pieces)
        listed = [[piece.span.size_bytes, piece.digest] for piece in self.pieces]
        asked = {"kind": "pack", "size_bytes": len(data), "digest": digest_of(data), "pieces": listed}
        return OpenLoad(asked, MemorySource(data, "a pack"), Span(0, len(data)))


@dataclass(frozen=True, slots=True)
class OpenLoad:
    """A load that can be sent: how a session for it is asked for, and its bytes at any offset."""

    asked: Mapping[str, Any]
    source: ByteSource
    span: Span

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset` of the load, or what is left; raises BadSource."""
        size = min(size, self.span.size_bytes - offset)
        return self.source.read_at(self.span.offset + offset, size)


def distinct(files: Iterable[CutFile]) -> dict[Digest, Wanted]:
    """The pieces of `files`, each digest once, in file order."""
    found: dict[Digest, Wanted] = {}
    for file in files:
        for span, digest in file.pieces:
            found.setdefault(digest, Wanted(file.file.source, span, digest))
    return found


def loads(missing: Sequence[Wanted]) -> list[Load]:
    """`missing` as loads, the largest first, so that no lane is left alone with one at the end.

    The same pieces always give the same loads: a push that was cut finds its sessions again.
    """
    large = [Load((piece,)) for piece in missing if piece.span.size_bytes > PACKED_MAX_BYTES]
    packs = [Load(pack) for pack in _packs(piece for piece in missing if piece.span.size_bytes <= PACKED_MAX_BYTES)]
    return sorted([*large, *packs], key=lambda load: -load.size_bytes)


def _packs(small: Iterable[Wanted]) -> Iterator[tuple[Wanted, ...]]:
    pack: list[Wanted] = []
    size_bytes = 0
    for piece in small:
        if pack and (size_bytes + piece.span.size_bytes > PACK_MAX_BYTES or len(pack) == PACK_PIECES_MAX):
            yield tuple(pack)
            pack, size_bytes = [], 0
        pack.append(piece)
        size_bytes += piece.span.size_bytes
    if pack:
        yield tuple(pack)
