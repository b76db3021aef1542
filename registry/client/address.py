"""Where a registry is: an origin, which is scheme, host and port. None is served below a path."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

from organs.registry.errors import BadSetting

ADDRESS_MAX_LENGTH = 2048
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """A checked address of a registry."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"

    @property
    def is_private(self) -> bool:
        """Whether nobody on the way can read along: it is encrypted, or never leaves this machine."""
        return self.scheme == "https" or _is_loopback(self.host)

    def of(self, path: str) -> str:
        """The whole address of `path`, which begins with a slash."""
        assert path.startswith("/"), path
        return f"{self}{path}"

    def redirected(self, here: str, location: str) -> str | None:
        """Where `location` leads from the address `here`; None when that is another origin."""
        there = urljoin(here, location[:ADDRESS_MAX_LENGTH])
        return there if _origin(there) == (self.scheme, self.host, self.port) else None


def parse_address(text: str) -> Address:
    """The address in `text`, `https://host[:port]`; raises BadSetting for anything else."""
    origin = _origin(text)
    parts = _split(text)
    if origin is None or parts is None or parts.query or parts.fragment or "@" in parts.netloc:
        raise BadSetting(f"{text[:80]!r} is no address of a registry: give one like https://registry.example")
    address = Address(*origin)
    if parts.path.rstrip("/"):  # nearly always the address of one of its pages
        raise BadSetting(f"{text[:80]!r} has a path, and no registry is served below one: give {address}")
    return address


def _origin(text: str) -> tuple[str, str, int] | None:
    parts = _split(text)
    if parts is None or parts.scheme not in _PORTS or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme]


def _split(text: str) -> SplitResult | None:
    if len(text) > ADDRESS_MAX_LENGTH or not text.isascii() or not text.isprintable() or " " in text:
        return None
    try:
        parts = urlsplit(text)
        _ = parts.port, parts.hostname  # a port that is no number is refused when it is asked for
    except ValueError:
        return None
    return parts


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
