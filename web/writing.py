"""Who may write: those who have an account for it, and on a server of one's own the programs and pages of its machine.

A browser sends what any page tells it to send, also to this machine. Of a page of elsewhere it says so, in
`Sec-Fetch-Site`, in `Origin` or in `Referer`; a program says nothing of the kind. That the name that was asked for is
ours is checked before (`web.security`), so that the three can be held against it.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from flask import abort, request

from organs.web.answers import settings
from organs.web.identity import ADMIN, UPLOAD, Identity, identity, need

ONLY_READS = "This server only reads."
NO_JOBS = "Jobs are shown to those who may ask for them: log in."
ELSEWHERE = "A page of another site asked for this; only this catalog's own pages and programs may."
_OWN_SITES = ("same-origin", "none")
"""What a browser says of our own pages, and of an address that somebody typed."""


def may_write(scope: str = UPLOAD) -> bool:
    """Whether who asks may write; pages leave out their forms where not."""
    return not settings().read_only and identity().may(scope)


def may_see_jobs() -> bool:
    """Whether jobs are shown to who asks, its own or everybody's."""
    return may_write() or may_write(ADMIN)


def whose_jobs() -> str | None:
    """The contributor whose jobs are shown to who asks; None is everybody's, for an administrator and `local`.

    404 where none are: they say what was asked for, and how it failed.
    """
    if not may_see_jobs():
        abort(404, NO_JOBS)
    found = identity()
    return None if found.is_local or found.may(ADMIN) else found.name


def check_writing(scope: str = UPLOAD) -> Identity:
    """Who asks, who may write: else 403 where the server only reads and for what a page of elsewhere asks.

    Raises BadToken (401) for anybody, NotAllowed (403) for a token without the `scope`.
    """
    if settings().read_only:
        abort(403, ONLY_READS)
    found = need(scope)
    check_origin()
    return found


def check_anybody() -> None:
    """Answer 403 where the server only reads, and to what a page of elsewhere asks."""
    if settings().read_only:
        abort(403, ONLY_READS)
    check_origin()


def check_origin() -> None:
    """Answer 403 to what a page of elsewhere asks."""
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
