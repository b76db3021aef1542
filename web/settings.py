"""Settings of the web catalog and of its server. The program that starts the server creates them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
Network = IPv4Network | IPv6Network
LOOPBACK_NETWORKS: tuple[Network, ...] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """Limits of the prompts that a server answers ("Try it")."""

    model_max_bytes: int = 4 * 10**9
    """The largest model that answers."""
    characters_max: int = 8000
    """The longest conversation."""
    tokens_max: int = 512
    """The longest answer, in tokens."""
    seconds: float = 120.0
    """The longest time in which an answer is written, after its models are loaded."""
    hourly: int = 60
    """The most answers of one account, or of one address without an account, in an hour."""


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Limits and names of one server."""

    hosts: frozenset[str] = LOOPBACK_HOSTS
    """Host names that requests may have, without a port; `*` allows every name. They protect from DNS rebinding: a
    foreign site can make its own name resolve to this machine, but its requests have that name and are refused."""
    personal: bool = False
    """Whether a user without a token is `local` and may write. Only for a server that only its own machine can
    reach."""
    read_only: bool = False
    """Whether the server refuses all writes, log-ins and views of jobs."""
    proxies: int = 0
    """Number of trusted proxies before the server. Each must add to `X-Forwarded-For` and `X-Forwarded-Proto`. The
    server uses only that many entries of these headers."""
    search_seconds: float = 2.0
    """A search that takes longer is stopped."""
    counts_seconds: float = 0.5
    """Facets that take longer are left out of a page, and the page says so."""
    turn_seconds: float = 10.0
    """Longest time that a request waits for its turn to compute."""
    cache_bytes: int = 64 * 1024 * 1024
    """Maximum size of the answers that are cached in memory until the catalog changes."""
    prompts: PromptLimits | None = None
    """The limits of prompts that visitors send to models. None: the server answers none."""
    metrics: tuple[Network, ...] | None = None
    """Networks that may read `/metrics`. None means only this machine. Behind proxies None means no client, because
    every request comes from the proxy's machine."""


RETRY_SECONDS = 5
"""Seconds after which a client may try again that was refused with 503."""
WORKERS_MAX = 4
THREADS = 16
PORT = 8935


def default_workers() -> int:
    """Return the default number of workers: one for each core, at most WORKERS_MAX.

    Several processes are needed because the time of a search is mostly spent in Python code.
    """
    return max(1, min(WORKERS_MAX, os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of the HTTP server."""

    host: str = "127.0.0.1"
    """Host name or address. An IPv6 address has no brackets."""
    port: int = PORT
    workers: int = field(default_factory=default_workers)
    threads: int = THREADS
    """Threads of each worker that answer requests. Downloads need none of them; uploads use at most half of them."""
    head_seconds: float = 10
    """Time within which the header of a request must arrive."""
    body_seconds: float = 20
    """Time within which a body must arrive, unless it arrives at 16 KiB a second or more."""
    send_seconds: float = 30
    """Time within which a client must read each 64 KiB of an answer."""
    idle_seconds: int = 75
    """Time for which a connection may be idle between two requests. It is longer than the time of proxies, usually a
    minute. Otherwise a proxy could send a request while the server closes the connection, and it would be lost."""
    jobs: bool = False
    """Whether the server also starts a process that runs the queued jobs."""
    logs_requests: bool = False
    """Whether each request is a record of the log. Successful health checks are left out."""
