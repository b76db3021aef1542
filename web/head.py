"""What stands at the head of a page for who asks: where to log in, or who they are; and what only some may do."""

from __future__ import annotations

from dataclasses import dataclass

from flask import g, request

from organs.registry.errors import OrganError
from organs.web.answers import settings
from organs.web.identity import ADMIN, ANYBODY, UPLOAD, Identity, identity

MORE = ((UPLOAD, "pages.upload", "Upload"), (ADMIN, "pages.admin", "Admin"))
"""Links that only those see who have the scope."""


@dataclass(frozen=True, slots=True)
class Head:
    """Of one page, for one asker."""

    name: str | None
    """Of who is logged in; None for anybody."""
    may_log_in: bool
    may_log_out: bool
    links: tuple[tuple[str, str], ...]
    """Endpoint and label."""


def page_head() -> Head:
    """The head for who asks; nobody in particular where the catalog cannot tell, as on the page that says so."""
    if "head" not in g:
        g.head = _head()
    known: Head = g.head
    return known


def _head() -> Head:
    who = _asker()
    may_write = not settings().read_only
    links = ((endpoint, label) for scope, endpoint, label in MORE if who.may(scope))
    return Head(
        name=who.name,
        may_log_in=may_write and who.name is None,
        may_log_out=may_write and who.account is not None,
        links=tuple(links) if may_write else (),
    )


def _asker() -> Identity:
    if request.blueprint == "api":
        return ANYBODY
    try:
        return identity()
    except OrganError:
        return ANYBODY
