"""Addresses of clients, with or without proxies, in the form that limits use as keys."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

from flask import request

ADDRESS_KEY = "organ.client_address"
"""Key of the WSGI environment: the address of the client while `REMOTE_ADDR` is hidden."""
NETWORK_BITS = 64
"""Prefix length of an IPv6 network that counts as one client: a customer usually has a whole /64."""
UNKNOWN_ADDRESS = "unknown"

_PROXY_HEADERS = ("HTTP_FORWARDED", "HTTP_VIA", "HTTP_X_REAL_IP")
_PROXY_PREFIX = "HTTP_X_FORWARDED"
_PROXIED_KEY = "organ.is_proxied"
"""Key of the WSGI environment: the result of `is_proxied`. It stays valid when headers are hidden later."""


def client_address() -> str:
    """Return the address of the client as a key for limits: an IPv4 address, or the network of an IPv6 address."""
    address = client_ip()
    return UNKNOWN_ADDRESS if address is None else network_of(str(address))


def client_ip() -> IPv4Address | IPv6Address | None:
    """Return the address of the client that sent the request, behind the configured number of proxies, or None.

    Use it only for limits and refusals. It is also available while `web.answer_cache` hides `REMOTE_ADDR` from views,
    so a cached answer must not depend on it.
    """
    text = request.environ.get(ADDRESS_KEY, request.remote_addr)
    try:
        address = ip_address((text or "").partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def is_proxied() -> bool:
    """Return whether a header says that a proxy forwarded the request. The client may then be on any machine."""
    environ = request.environ
    if _PROXIED_KEY not in environ:
        environ[_PROXIED_KEY] = any(name in _PROXY_HEADERS or name.startswith(_PROXY_PREFIX) for name in environ)
    return bool(environ[_PROXIED_KEY])


def address_behind_proxies(peer: str, forwarded_for: str | None, proxies: int) -> str:
    """Return the address of the client behind `proxies` proxies, as a key for limits.

    `peer` is the other end of the connection. Each proxy appends the address that it saw to `X-Forwarded-For`, so the
    client is entry number `proxies` from the right. The client may have invented all entries left of it. If there are
    fewer entries, the peer is the client, as in `werkzeug.middleware.proxy_fix`.
    """
    entries = [entry.strip() for entry in forwarded_for.split(",")] if proxies and forwarded_for else []
    return network_of(entries[-proxies] if len(entries) >= proxies > 0 else peer)


def network_of(address: str) -> str:
    """Return the part of an address that identifies a client: the IPv4 address, or the network of an IPv6 address."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return UNKNOWN_ADDRESS
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{int(parsed) >> (128 - NETWORK_BITS):x}::/{NETWORK_BITS}"
