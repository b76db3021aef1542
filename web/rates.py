"""How often somebody may ask: counted in memory, by each process for itself, and told before a body is read.

Who guesses tokens is counted by address, and by the token that is guessed at. An address with too many guesses behind
it gets no more answers to tokens for a while. A token that is guessed at from elsewhere stays good for who has it: what
it is called by is no secret, and nobody shall lock its owner out. A token that was revoked or has expired is no guess:
a program that goes on with it is refused each time, and shuts nobody out who shares its address.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from time import time

from flask import Flask, current_app, request
from limits import RateLimitItem, RateLimitItemPerHour, RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from registry.errors import TooMany

RATES_KEY = "organ_rates"
FAILED_TOKENS = RateLimitItemPerMinute(10, namespace="failed")
"""By address, and by the id of the token."""
LOG_INS = RateLimitItemPerMinute(10, namespace="log-in")
"""By address, those that succeed among them."""
NEW_TOKENS = RateLimitItemPerHour(30, namespace="new-token")
"""By contributor."""
PAGE_TOKENS = RateLimitItemPerMinute(30, namespace="page-token")
"""By contributor."""
WRITES = RateLimitItemPerMinute(600, namespace="write")
"""By contributor: whatever is sent, lookups too."""
UPLOADS = RateLimitItemPerMinute(6000, namespace="upload")
"""By contributor: requests below /api/v1/uploads. A model of a thousand tensors is three thousand of them."""
UPLOADS_PATH = "/api/v1/uploads"
READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOG_IN = "pages.log_in"
NETWORK_BITS = 64
"""Of an IPv6 address: whoever has one has all of its network."""


class Rates:
    """What has been counted in this process. Safe for threads."""

    def __init__(self) -> None:
        self._counts = MemoryStorage()
        self._limiter = FixedWindowRateLimiter(self._counts)

    def hit(self, rate: RateLimitItem, who: str) -> None:
        """Count one more of `who`; raises TooMany for one that is too many."""
        if not self._limiter.hit(rate, who):
            raise self._too_many(rate, who)

    def check(self, rate: RateLimitItem, who: str) -> None:
        """Raise TooMany where one more of `who` would be too many."""
        if not self._limiter.test(rate, who):
            raise self._too_many(rate, who)

    def _too_many(self, rate: RateLimitItem, who: str) -> TooMany:
        seconds = max(1.0, self._counts.get_expiry(rate.key_for(who)) - time())
        return TooMany(f"this was asked too often; try again in {seconds:.0f} seconds", seconds)


def limit_rates(app: Flask) -> None:
    """Count what is sent to `app`, and refuse what is too much by 429 before any of its body is read."""
    app.extensions[RATES_KEY] = Rates()
    app.before_request(_count)


def rates() -> Rates:
    """What this application has counted."""
    counted: Rates = current_app.extensions[RATES_KEY]
    return counted


def asker_address() -> str:
    """Where the request comes from, as far as one asker can be told from another: of IPv6, the network."""
    try:
        address = ip_address((request.remote_addr or "").partition("%")[0])
    except ValueError:
        return "unknown"
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{int(address) >> (128 - NETWORK_BITS):x}::/{NETWORK_BITS}"


def _count() -> None:
    from web.identity import identity  # it counts guesses here

    if request.method in READING_METHODS or request.endpoint is None:
        return
    if request.endpoint == LOG_IN:
        rates().hit(LOG_INS, asker_address())
        return
    account = identity().account
    if account is not None:
        is_upload = request.path == UPLOADS_PATH or request.path.startswith(f"{UPLOADS_PATH}/")
        rates().hit(UPLOADS if is_upload else WRITES, str(account.contributor_id))
