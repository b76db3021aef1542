"""Which bytes of a file a request asks for, by RFC 9110: `Range`, `If-Range`, `If-Match`, `If-None-Match`. Pure.

One range of bytes is served. Whatever else stands in the header (several ranges, another unit, nonsense) is ignored, as
the RFC allows, and the whole file is the answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HEADER_MAX_LENGTH = 200
"""A range of two numbers of 63 bits has 45 characters. Longer headers are not looked at."""
TAGS_MAX_LENGTH = 4096

_ONE_RANGE = re.compile(r"bytes=(?P<first>[0-9]{0,80})-(?P<last>[0-9]{0,80})", re.ASCII | re.IGNORECASE)
_TAG = re.compile(r'(?P<weak>W/)?"(?P<tag>[\x21\x23-\x7e\x80-\xff]*)"')


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes from `begin` to before `end`."""

    begin: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.begin


class Unsatisfiable(Exception):
    """A range that is well-formed and has not one byte of the file."""


def asked_span(header: str | None, size_bytes: int) -> Span | None:
    """The span that a `Range` header asks of a file of `size_bytes`; None where the whole file is the answer.

    Raises Unsatisfiable.
    """
    if header is None or len(header) > HEADER_MAX_LENGTH:
        return None
    found = _ONE_RANGE.fullmatch(header.strip(" \t"))
    if found is None:
        return None
    first, last = found["first"], found["last"]
    if not first:
        return _suffix(last, size_bytes)
    begin = int(first)
    end = min(int(last) + 1, size_bytes) if last else size_bytes
    if last and int(last) < begin:
        return None
    if begin >= size_bytes:
        raise Unsatisfiable
    return Span(begin, end)


def still_holds(if_range: str | None, tag: str) -> bool:
    """Whether a range may be served: there is no `If-Range`, or it is the strong `tag` of the file.

    A date never holds: what is served has none.
    """
    return if_range is None or if_range.strip(" \t") == f'"{tag}"'


def has_strong(header: str, tag: str) -> bool:
    """Whether an `If-Match` header names `tag`, by strong comparison, or any file."""
    return header.strip(" \t") == "*" or (tag, False) in _tags(header)


def has_weak(header: str, tag: str) -> bool:
    """Whether an `If-None-Match` header names `tag`, by weak comparison, or any file."""
    return header.strip(" \t") == "*" or any(tag == found for found, _ in _tags(header))


def _suffix(last: str, size_bytes: int) -> Span | None:
    if not last:
        return None
    length = min(int(last), size_bytes)
    if length == 0:
        raise Unsatisfiable
    return Span(size_bytes - length, size_bytes)


def _tags(header: str) -> list[tuple[str, bool]]:
    """The tags of a list, each with whether it is weak."""
    return [(found["tag"], found["weak"] is not None) for found in _TAG.finditer(header[:TAGS_MAX_LENGTH])]
