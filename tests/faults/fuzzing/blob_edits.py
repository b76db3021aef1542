"""Damage to stored forms and to the rows that point at them.

**Random** damage is that of disks and programs: no checksum matches. **Clever** damage has a head with a correct
checksum, so that its values are used. **Forged** blobs are consistent, with the checksums of their chunks, but have
other bytes than their digest names: only SHA-256 shows it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import xxhash

from organs.registry.digest import Digest
from organs.registry.store.codec import ChunkEntry, encode_chunk, head_size_bytes, pack_head
from tests.faults.fuzzing import edits
from tests.faults.fuzzing.blob_seeds import SEVERAL_CHUNKS, BlobSeed
from tests.faults.fuzzing.frame_attacks import FrameAttacks

FORGED_MAX_BYTES = 10_000
ATTACKED_MAX_BYTES = 20_000
FRAME_DRAWS = 4
"""A frame that is not shorter than its plane is refused without reading it, so several are drawn."""
SEVERAL_SHARE = 0.005
FILE_SHARE = 0.25
INLINE_MAX_BYTES = 1 << 16
_HEAD_MARKS: tuple[edits.Mark, ...] = ((4, 1), (5, 1), (6, 2), (8, 8), (16, 8), (24, 4), (60, 1))
_NAME_AT, PARENT_BYTES = 61, 32

BAD_FILES = ("", "..", "../../../etc/passwd", "tmp/x", "ab/" + "0" * 64, "/dev/zero", "ab/../ab/x", "a\0b")


@dataclass(frozen=True, slots=True)
class Row:
    """The catalog row of a blob."""

    digest: Digest
    size_bytes: int
    stored_bytes: int
    file: str | None
    inline: bytes | None
    is_set_aside: bool = False
    parts: tuple[Row, ...] = ()
    parent: Row | None = None


@dataclass(frozen=True, slots=True)
class BlobCase:
    """A row, the file of the seed's blob (None if it has none), and the applied damage."""

    row: Row
    content: bytes | None = None
    place: str = ""
    """The physical name of the file with this content. The row may name another file."""
    forged: bool = False
    obstacle: str | None = None
    """The obstacle in place of the file: "folder", "link" or none."""


class BlobDamage:
    """Makes cases from the seeds."""

    def __init__(self, seeds: Sequence[BlobSeed]) -> None:
        self._seeds = seeds
        self._small = seeds[:-SEVERAL_CHUNKS]
        self._several = seeds[-SEVERAL_CHUNKS:]
        self._attacks = FrameAttacks()

    def case(self, random: Random) -> BlobCase:
        """Return one case."""
        seed = random.choice(self._several if random.random() < SEVERAL_SHARE else self._small)
        chance = random.random()
        if chance < 0.25:
            return self._placed(seed, self._rotten(seed, random), random)
        if chance < 0.45:
            return self._placed(seed, _with_other_numbers(seed, random), random)
        if chance < 0.7:
            return self._placed(seed, self._with_other_frames(seed, random), random)
        if chance < 0.78:
            return self._placed(seed, self._mixed(seed, random), random)
        if chance < 0.9:
            return self._misrecorded(seed, random)
        if chance < 0.96 and len(seed.plain) <= FORGED_MAX_BYTES:
            return replace(self._placed(seed, _forged(seed, random), random), forged=True)
        return self._placed(seed, seed.stored, random)

    def _placed(self, seed: BlobSeed, stored: bytes, random: Random) -> BlobCase:
        """Put stored bytes into a row or a file; the row mostly has the right size."""
        size = len(stored) if random.random() < 0.9 else len(seed.stored)
        if len(seed.plain) <= INLINE_MAX_BYTES and random.random() >= FILE_SHARE:
            return BlobCase(Row(seed.digest, len(seed.plain), size, None, stored, parent=self._parent(seed, random)))
        place = file_name(seed.digest)
        row = Row(seed.digest, len(seed.plain), size, place, None, parent=self._parent(seed, random))
        return BlobCase(row, stored, place)

    def _parent(self, seed: BlobSeed, random: Random) -> Row | None:
        """Return the row of the parent, rarely damaged or that of another blob."""
        chance, parent = random.random(), seed.parent
        if parent is None:
            return row_of(random.choice(self._small)) if chance < 0.01 else None
        if chance < 0.02:
            return None
        if chance < 0.05:
            return row_of(random.choice(self._small))
        if chance < 0.15:
            return replace(row_of(parent), inline=self._rotten(parent, random))
        if chance < 0.18:
            return replace(row_of(parent), inline=None)
        return row_of(parent)

    def _rotten(self, seed: BlobSeed, random: Random) -> bytes:
        data = bytearray(seed.stored)
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            if not data:
                break
            end = min(len(data), seed.head_bytes) if random.random() < 0.4 else len(data)
            match random.randrange(6):
                case 0 | 1:
                    edits.flip(data, end, random)
                case 2 | 3:
                    edits.overwrite(data, end, random, random.choice(self._small).stored)
                case 4:
                    edits.cut(data, random)
                case _:
                    edits.lengthen(data, random)
        return bytes(data)

    def _with_other_frames(self, seed: BlobSeed, random: Random) -> bytes:
        if not 0 < len(seed.plain) <= ATTACKED_MAX_BYTES:
            return self._rotten(seed, random)
        pieces, raw_flags = _pieces(seed)
        place = random.randrange(len(pieces))
        for _ in range(FRAME_DRAWS):
            pieces[place] = self._attacks.frame(seed.planes[place], random, seed.codec.coder)
            if len(pieces[place]) < len(seed.planes[place]):
                break
        raw_flags[place] = random.random() < 0.02
        entry = ChunkEntry(tuple(map(len, pieces)), tuple(raw_flags), seed.head.chunks[0].entry.checksum)
        return b"".join([_head(seed, [entry]), *pieces])

    def _mixed(self, seed: BlobSeed, random: Random) -> bytes:
        """Exchange chunks or planes, or combine this head with the payload of another blob."""
        begin = seed.head_bytes
        chunks = list(seed.head.chunks)
        if len(chunks) > 1:
            random.shuffle(chunks)
            places = [slice(chunk.offset_bytes, chunk.offset_bytes + chunk.stored_size_bytes) for chunk in chunks]
            return b"".join([seed.stored[:begin], *(seed.stored[place] for place in places)])
        if random.random() < 0.5 and chunks:
            pieces, raw_flags = _pieces(seed)
            random.shuffle(pieces)
            entry = ChunkEntry(tuple(map(len, pieces)), tuple(raw_flags), chunks[0].entry.checksum)
            return b"".join([_head(seed, [entry]), *pieces])
        other = random.choice(self._small)
        return seed.stored[:begin] + other.stored[other.head_bytes :]

    def _misrecorded(self, seed: BlobSeed, random: Random) -> BlobCase:
        case = self._placed(seed, seed.stored, random)
        row = case.row
        match random.randrange(8):
            case 0:
                row = replace(row, size_bytes=edits.interesting_number(random, row.size_bytes, 8))
            case 1:
                row = replace(row, stored_bytes=edits.interesting_number(random, row.stored_bytes, 8))
            case 2:
                row = replace(row, digest=random.choice(self._seeds).digest)
            case 3:
                row = replace(row, inline=None, file=None)
            case 4:
                row = replace(row, inline=None, file=random.choice((*BAD_FILES, file_name(seed.digest, used=False))))
            case 5:
                place = file_name(seed.digest)
                row = replace(row, inline=None, file=place)
                return BlobCase(row, seed.stored, place, obstacle=random.choice(("folder", "link")))
            case 6:
                row = replace(row, inline=random.choice((b"", b"ORGB", seed.stored[:100])), file=None)
            case _ if seed.parent is not None and random.random() < 0.5:
                above = row_of(seed.parent)
                size = edits.interesting_number(random, above.size_bytes, 8)
                row = replace(row, parent=random.choice((None, row, replace(above, size_bytes=size))))
            case _:
                size = edits.interesting_number(random, row.size_bytes, 8)
                stored = _sealed(seed, seed.stored[:16] + struct.pack("<Q", size) + seed.stored[24:])
                case = self._placed(seed, stored, random)
                row = replace(case.row, size_bytes=size)
        return replace(case, row=row)


def file_name(digest: Digest, *, used: bool = True) -> str:
    """Return the physical name of a case's file, or a name without a file."""
    return f"{digest[:2]}/{digest}.{'0' * 16 if used else 'f' * 16}"


def row_of(seed: BlobSeed) -> Row:
    """Return the row of a sound blob that is stored in it, and of its parents."""
    parent = None if seed.parent is None else row_of(seed.parent)
    return Row(seed.digest, len(seed.plain), len(seed.stored), None, seed.stored, parent=parent)


def _head(seed: BlobSeed, entries: Sequence[ChunkEntry]) -> bytes:
    parent = None if seed.parent is None else seed.parent.digest
    return pack_head(seed.codec, seed.digest, len(seed.plain), entries, parent)


def _pieces(seed: BlobSeed) -> tuple[list[bytes], list[bool]]:
    """Return the stored planes of the first chunk, and which of them are raw."""
    chunk = seed.head.chunks[0]
    pieces, position = [], chunk.offset_bytes
    for size in chunk.entry.plane_sizes_bytes:
        pieces.append(seed.stored[position : position + size])
        position += size
    return pieces, list(chunk.entry.plane_is_raw)


def _with_other_numbers(seed: BlobSeed, random: Random) -> bytes:
    """Change numbers in the head and its table, mostly with a matching checksum."""
    data, marks = bytearray(seed.stored), _marks(seed)
    for _ in range(random.choice((1, 1, 2))):
        if random.random() < 0.85:
            edits.set_number(data, random.choice(marks), random)
        else:
            edits.exchange(data, marks, random)
    return _sealed(seed, bytes(data)) if random.random() < 0.8 else bytes(data)


def _marks(seed: BlobSeed) -> list[edits.Mark]:
    marks = list(_HEAD_MARKS)
    position = _NAME_AT + len(seed.codec.name)
    if seed.parent is not None:
        marks.append((position, 8))
        position += PARENT_BYTES
    for _ in seed.head.chunks[:4]:
        marks.append((position, 8))
        marks += [(position + 8 + 4 * plane, 4) for plane in range(len(seed.codec.planes))]
        position += 8 + 4 * len(seed.codec.planes)
    return marks


def _sealed(seed: BlobSeed, stored: bytes) -> bytes:
    """Return `stored` with a checksum that matches its head."""
    end = head_size_bytes(seed.codec, len(seed.plain))
    head = stored[: end - 8]
    return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)) + stored[end:]


def _forged(seed: BlobSeed, random: Random) -> bytes:
    """Return other bytes under the same digest; every checksum matches."""
    plain = bytearray(seed.plain)
    for _ in range(random.choice((1, 1, 3))):
        if plain:
            plain[random.randrange(len(plain))] ^= 1 << random.randrange(8)
    chunks = [encode_chunk(seed.codec, bytes(plain), seed.values)] if plain else []
    head = _head(seed, [chunk.entry for chunk in chunks])
    return b"".join([head, *(piece for chunk in chunks for piece in chunk.pieces)])
