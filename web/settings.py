"""Settings of the catalog in a browser and of its server: frozen values, made by the program that starts it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
Network = IPv4Network | IPv6Network
LOOPBACK_NETWORKS: tuple[Network, ...] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Limits and names of one server."""

    hosts: frozenset[str] = LOOPBACK_HOSTS
    """The names that requests may ask for, without a port. A page of another origin that has its own name lead to this
    machine (DNS rebinding) asks for another one, and is refused. `*` allows any."""
    personal: bool = False
    """Whether whoever asks without a token may write, as `local`. Only for a server that nobody but its machine can
    reach."""
    read_only: bool = False
    """Whether nobody may write, log in, or see jobs."""
    proxies: int = 0
    """Proxies in front, each of which adds its `X-Forwarded-For` and `X-Forwarded-Proto`: so many are believed."""
    search_seconds: float = 2.0
    """A search that takes longer is stopped."""
    counts_seconds: float = 0.5
    """Facets that take longer are left out of a page, which says so."""
    turn_seconds: float = 10.0
    """How long a request waits for its turn."""
    cache_bytes: int = 32 * 1024 * 1024
    """Answers that are kept in memory until the catalog changes."""
    metrics: tuple[Network, ...] | None = None
    """The networks that may read `/metrics`. None means this machine, or nobody behind proxies: there every request
    comes from the proxy's machine."""


WORKERS_MAX = 4


THREADS = 16


PORT = 8935


def default_workers() -> int:
    """Return the default number of workers: one for each core, at most four, because searches are bound by Python."""
    return max(1, min(WORKERS_MAX, os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How the catalog is served."""

    host: str = "127.0.0.1"
    """Without brackets, also where it is an IPv6 address."""
    port: int = PORT
    workers: int = field(default_factory=default_workers)
    threads: int = THREADS
    """Requests that each worker answers at once. Downloads need none of them; uploads keep at most half."""
    head_seconds: float = 10
    """Within which the header of a request must come."""
    body_seconds: float = 20
    """Within which a body must come, unless it comes at 16 KiB a second."""
    send_seconds: float = 30
    """Within which a client must read each 64 KiB of an answer."""
    idle_seconds: int = 75
    """That a connection may be idle between two requests: longer than proxies keep their end of it, usually a minute,
    so that none of them sends a request while we close ours, which would be lost."""
    jobs: bool = False
    """Whether a process beside the others works at the queue of jobs."""
