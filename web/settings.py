"""What the catalog in a browser can be told: one frozen value, made by whoever starts it."""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Limits and names of one server."""

    hosts: frozenset[str] = LOOPBACK_HOSTS
    """The names that requests may ask for, without a port. A page of another origin that has its own name lead to this
    machine (DNS rebinding) asks for another one, and is refused. `*` allows any."""
    writes: bool = False
    """Whether what writes or runs something is there. Only for a server that nobody but this machine can reach: there
    are no accounts yet."""
    search_seconds: float = 2.0
    """A search that takes longer is stopped."""
    counts_seconds: float = 0.5
    """Facets that take longer are left out of a page, which says so."""
    turn_seconds: float = 10.0
    """How long a request waits for its turn."""
    remembered_bytes: int = 32 * 1024 * 1024
    """Answers that are kept in memory until the catalog changes."""
