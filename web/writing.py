"""Who may write: programs of this machine, and the catalog's own pages. Not the pages of others.

A browser sends what any page tells it to send, also to this machine. Of a page of elsewhere it says so, in
`Sec-Fetch-Site`, in `Origin` or in `Referer`; a program says nothing of the kind. That the name that was asked for is
ours is checked before (`web.security`), so that the three can be held against it.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from flask import abort, request

from web.answers import settings

ONLY_READS = "This server only reads: what writes or runs something is there only where none but its machine can ask."
PROXIED = "This came through a proxy: what writes or runs something answers only to this server's own machine."
NO_JOBS = "This server only reads, and shows no jobs."
ELSEWHERE = "A page of another site asked for this; only this catalog's own pages and programs may."
_OWN_SITES = ("same-origin", "none")
"""What a browser says of our own pages, and of an address that somebody typed."""


_PROXY_HEADERS = ("HTTP_FORWARDED", "HTTP_VIA", "HTTP_X_REAL_IP")
_PROXY_PREFIX = "HTTP_X_FORWARDED"


def may_write() -> bool:
    """Whether this server has what writes for who asks; pages leave out their forms where it has not."""
    return settings().writes and not is_proxied()


def is_proxied() -> bool:
    """Whether a proxy says that it hands the request on: then who asks may sit anywhere."""
    return any(name in _PROXY_HEADERS or name.startswith(_PROXY_PREFIX) for name in request.environ)


def check_jobs_shown() -> None:
    """Answer 404 where jobs are nobody's business: they say what was asked for, and how it failed."""
    if not may_write():
        abort(404, NO_JOBS)


def check_writing() -> None:
    """Answer 403 to a request that may not write: the server only reads, or a proxy or a page of elsewhere asks."""
    if not settings().writes:
        abort(403, ONLY_READS)
    if is_proxied():
        abort(403, PROXIED)
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None and site not in _OWN_SITES:
        abort(403, ELSEWHERE)
    for name in ("Origin", "Referer"):
        address = request.headers.get(name)
        if address is not None and not _is_own(address):
            abort(403, ELSEWHERE)


def _is_own(address: str) -> bool:
    """Whether `address` is of the name and the port that were asked for. `null`, which hides where it is, is not."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == request.environ.get("HTTP_HOST", "").lower()
