"""Cursors: the position in a list after a page, as a text for a URL.

A cursor has the sort value and the id of the last row, and a digest of the query. The text is not signed: it
contains no secret, and all of its parts are checked when it is parsed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from organs.registry.errors import BadQuery

CURSOR_MAX_LENGTH = 200
PAGE_MAX = 1000
"""The most results on a page."""
_ID_MAX = 2**63 - 1

Ranked = tuple[float | None, int]
"""A row in the order of a list: its sort value, None if it is missing, and its id."""


@dataclass(frozen=True, slots=True)
class PageEnd:
    """The last row of a page: its sort value, None if it is missing, and its id."""

    value: float | None
    id: int


def check_limit(limit: int, largest: int = PAGE_MAX) -> None:
    """Raise BadQuery if `limit` is not a valid number of results on a page of at most `largest`."""
    if not 1 <= limit <= largest:
        raise BadQuery(f"limit {limit}", f"a page has 1 to {largest} results")


def cursor_text(query: str, cursor: PageEnd) -> str:
    """Return `cursor`, the end of a page of `query`, as text for a URL."""
    packed = json.dumps([_digest(query), cursor.value, cursor.id], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def next_cursor(query: str, rows: Sequence[int | Ranked], limit: int) -> str | None:
    """Return the cursor after a page of `limit` rows; None if it is the last page.

    `rows` are the ids of the rows that were read, or their sort values and ids. If there is a next page, one row more
    than `limit` was read.
    """
    if len(rows) <= limit:
        return None
    last = rows[limit - 1]
    return cursor_text(query, PageEnd(*last) if isinstance(last, tuple) else PageEnd(None, last))


def parse_cursor(query: str, text: str, *, missing: bool = True) -> PageEnd:
    """Return the cursor in `text`; raises BadQuery for another text, and for the cursor of another query.

    `missing` says whether the sort column can be null.
    """
    try:
        if len(text) > CURSOR_MAX_LENGTH or not text.isascii():
            raise ValueError
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        query_digest, value, row_id = json.loads(packed)
    except (ValueError, TypeError, binascii.Error, RecursionError) as error:
        raise BadQuery("after", "this is not a cursor: use the cursor of the previous page") from error
    if query_digest != _digest(query):
        raise BadQuery("after", "this cursor belongs to another query: use the cursor of the previous page")
    if type(row_id) is not int or not 0 <= row_id <= _ID_MAX or not _is_value(value, missing):
        raise BadQuery("after", "this is not a cursor: use the cursor of the previous page")
    return PageEnd(value, row_id)


def _digest(query: str) -> str:
    return hashlib.sha256(query.encode()).hexdigest()[:12]


def _is_value(value: object, missing: bool) -> bool:
    if value is None:
        return missing
    return (type(value) is int and abs(value) <= _ID_MAX) or (type(value) is float and math.isfinite(value))
