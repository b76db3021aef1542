"""Damage to any bytes, drawn from one generator: the same number gives the same damage."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

INTERESTING = (
    *(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 24, 31, 32, 33, 36, 63, 64, 65, 127, 128, 255, 256, 257),
    *(1023, 1024, 4095, 4096, 32_767, 65_535, 65_536, 65_537, 2**20, 2**20 + 1, 2**24, 2**30, 2**30 + 1),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**40, 2**60, 2**61, 2**62, 2**63 - 32, 2**63 - 1, 2**63),
    *(2**64 - 32, 2**64 - 2, 2**64 - 1, 4_194_305, 211_106_198_978_564),
)
STRETCHES = (1, 1, 1, 2, 4, 8, 12, 24, 40, 100)

Mark = tuple[int, int]
"""The position and the width in bytes of a number."""


def interesting_number(random: Random, old: int, width: int) -> int:
    """Return a number for a field of `width` bytes with the value `old`: a typical cause of errors, or a neighbour."""
    match random.randrange(8):
        case 0:
            number = old + random.choice((-2, -1, 1, 2))
        case 1:
            number = old + (1 << random.randrange(8 * width))
        case 2:
            number = old * random.choice((2, 3, 8, 256, 65_536)) + random.choice((-1, 0, 0, 1))
        case 3:
            number = random.getrandbits(random.randrange(1, 8 * width + 1))
        case _:
            number = random.choice(INTERESTING)
    return number % (1 << 8 * width)


def set_number(data: bytearray, mark: Mark, random: Random) -> None:
    """Write another number at `mark`."""
    offset, width = mark
    old = int.from_bytes(data[offset : offset + width], "little")
    data[offset : offset + width] = interesting_number(random, old, width).to_bytes(width, "little")


def exchange(data: bytearray, marks: Sequence[Mark], random: Random) -> None:
    """Write the number of one mark at another."""
    (from_offset, _), (to_offset, width) = random.choice(marks), random.choice(marks)
    data[to_offset : to_offset + width] = bytes(data[from_offset : from_offset + width]).ljust(width, b"\0")


def flip(data: bytearray, end: int, random: Random) -> None:
    """Flip one to three bits before `end`."""
    for _ in range(random.choice((1, 1, 2, 3))):
        data[random.randrange(end)] ^= 1 << random.randrange(8)


def overwrite(data: bytearray, end: int, random: Random, other: bytes) -> None:
    """Remove, repeat or replace a range before `end`: with noise, one byte, or a range of `other`."""
    place, size = random.randrange(end), random.choice(STRETCHES)
    match random.randrange(6):
        case 0:
            del data[place : place + size]
        case 1:
            data[place:place] = data[place : place + size]
        case 2:
            data[place : place + size] = random.randbytes(len(data[place : place + size]))
        case 3:
            data[place:place] = random.randbytes(size)
        case 4:
            data[place : place + size] = bytes([random.choice((0, 0x7F, 0x80, 0xFF))]) * size
        case _:
            begin = random.randrange(len(other))
            data[place : place + size] = other[begin : begin + size]


def cross(data: bytearray, end: int, random: Random, other: bytes) -> None:
    """Combine the front of one with the back of another."""
    data[random.randrange(end) :] = other[random.randrange(len(other)) :]


def cut(data: bytearray, random: Random) -> None:
    """Truncate, mostly by little."""
    size = random.choice((1, 1, 2, 8, 31, 32, random.randrange(len(data)) + 1))
    del data[max(0, len(data) - size) :]


def lengthen(data: bytearray, random: Random) -> None:
    """Append bytes."""
    size = random.choice((1, 1, 2, 31, 32, 64, 1000))
    data += random.choice((bytes(size), random.randbytes(size), b"PK\3\4"))
