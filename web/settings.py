"""What the catalog in a browser can be told: one frozen value, made by whoever starts it."""

from __future__ import annotations

from dataclasses import dataclass
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
    remembered_bytes: int = 32 * 1024 * 1024
    """Answers that are kept in memory until the catalog changes."""
    metrics: tuple[Network, ...] | None = None
    """The networks that may read `/metrics`. None means this machine, or nobody behind proxies: there every request
    comes from the proxy's machine."""
