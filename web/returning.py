"""Where somebody goes who has logged in: back to a page of this catalog, and nowhere else."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from flask import request

from organs.web.memory import reveal_headers

NEXT_MAX_LENGTH = 2000
_PLAIN = re.compile(r"/(?![/\\])[!-\[\]-~]*")
"""A path from the root, in visible ASCII. Browsers take a backslash for a slash, and leave out tabs and line ends."""
_NOWHERE = ("/login", "/logout")


def checked_next(text: str | None) -> str | None:
    """`text` where it is a path of this site, perhaps with a query; None for anything else."""
    if not text or len(text) > NEXT_MAX_LENGTH or not _PLAIN.fullmatch(text):
        return None
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    return text if not parts.scheme and not parts.netloc else None


def asked_next() -> str | None:
    """Where the page for logging in is to lead: to its `next`, or back to the page of ours that led to it."""
    given = request.args.get("next")
    if given is not None:
        return checked_next(given)
    reveal_headers()
    try:
        came = urlsplit(request.headers.get("Referer", ""))
    except ValueError:
        return None
    if came.netloc.lower() != request.environ.get("HTTP_HOST", "").lower():
        return None
    path = came.path.removeprefix(request.script_root)
    return None if path in _NOWHERE else checked_next(came.path + (f"?{came.query}" if came.query else ""))
