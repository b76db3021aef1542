"""Where a page ended: the last row's sort value and id, bound to its query, as a text for an address.

The text is not signed: it says nothing that a reader could not ask for, and everything in it is checked when it comes
back.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from dataclasses import dataclass

from organs.registry.errors import BadQuery

CURSOR_MAX_LENGTH = 200
PAGE_MAX = 1000
"""Results on a page."""
_ID_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last row of a page: its sort value, None where it had none, and its id."""

    value: float | None
    id: int


def check_limit(limit: int, largest: int = PAGE_MAX) -> None:
    """Raise BadQuery for a page that is too small or too large."""
    if not 1 <= limit <= largest:
        raise BadQuery(f"limit {limit}", f"a page has 1 to {largest} results")


def cursor_text(query: str, cursor: Cursor) -> str:
    """`cursor` behind a page of `query`, in the letters of an address."""
    packed = json.dumps([_mark(query), cursor.value, cursor.id], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def parse_cursor(query: str, text: str, *, missing: bool = True) -> Cursor:
    """The cursor that `text` holds; raises BadQuery when it is none, or one of another query.

    `missing` says whether its sort has rows without a value.
    """
    try:
        if len(text) > CURSOR_MAX_LENGTH or not text.isascii():
            raise ValueError
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        mark, value, row_id = json.loads(packed)
    except (ValueError, TypeError, binascii.Error, RecursionError) as error:
        raise BadQuery("after", "this is no place in a list: take it from the page before") from error
    if mark != _mark(query):
        raise BadQuery("after", "this place is in the list of another query: take it from the page before")
    if type(row_id) is not int or not 0 <= row_id <= _ID_MAX or not _is_value(value, missing):
        raise BadQuery("after", "this is no place in a list: take it from the page before")
    return Cursor(value, row_id)


def _mark(query: str) -> str:
    return hashlib.sha256(query.encode()).hexdigest()[:12]


def _is_value(value: object, missing: bool) -> bool:
    if value is None:
        return missing
    return (type(value) is int and abs(value) <= _ID_MAX) or (type(value) is float and math.isfinite(value))
