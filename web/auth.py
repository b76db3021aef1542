"""The user of a request. The API uses only the token, and pages use only the session of the browser.

A session is a cookie, and browsers also send cookies with requests of other sites. So the API ignores cookies, and
pages that need the API keep a token in memory. On a server that only its own machine can reach, a user without a token
is `local`. Every request looks up the token by an index, so a revoked token stops working immediately in every process.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from flask import Flask, Response, g, request

from organs.registry.catalog.engine import database_now
from organs.registry.catalog.queries.accounts import KnownToken, account_by_session, token_account
from organs.registry.catalog.register.accounts import LOCAL, is_use_due, record_use
from organs.registry.catalog.vocabulary import MANAGE_TOKENS
from organs.registry.errors import BadToken, NotAllowed, OrganError
from organs.registry.tokens import parse_token, secret_sha256
from organs.web.client_address import client_address, is_proxied
from organs.web.rate_limits import FAILED_TOKENS, rates
from organs.web.responses import reading, registry, settings

READ, UPLOAD, ADMIN, TOKENS = "read", "upload", "admin", MANAGE_TOKENS
ANY = "any"
"""Requirement that any account meets, with any scopes. It is not a scope of tokens."""
COOKIE, SECURE_COOKIE = "organ_session", "__Host-organ_session"
"""With the prefix `__Host-`, no other host name of the site can set the cookie. Browsers accept it only over TLS."""
COOKIE_MAX_LENGTH = 64
_SCHEME = "bearer"


@dataclass(frozen=True, slots=True)
class RequestUser:
    """The user of a request, with the scopes that apply."""

    name: str | None
    """Name of the account; None without an account."""
    scopes: frozenset[str]
    account: KnownToken | None = None
    """None without an account, and for `local`."""
    is_of_page: bool = False
    """Whether the token belongs to a page. Its scopes are few, and it is valid for an hour."""

    @property
    def is_local(self) -> bool:
        """Whether this is the local user of this machine, who may use every namespace."""
        return self.name == LOCAL and self.account is None

    def may(self, scope: str) -> bool:
        """Return whether the user has `scope`; for ANY, whether the user has an account."""
        return scope in self.scopes or (scope == ANY and self.name is not None)

    def owns(self, namespace: str) -> bool:
        """Return whether `namespace` belongs to the user."""
        return self.is_local or (self.name is not None and self.name.lower() == namespace.lower())


ANYBODY = RequestUser(None, frozenset((READ,)))
LOCALLY = RequestUser(LOCAL, frozenset((READ, UPLOAD)))


def recognise(app: Flask) -> None:
    """Add a hook to `app` that keeps answers to logged-in users out of shared caches."""

    @app.after_request
    def mark_private(answer: Response) -> Response:
        is_somebody = request.authorization is not None or session_secret() is not None  # valid or not
        if is_somebody and "no-store" not in answer.headers.get("Cache-Control", ""):
            answer.headers["Cache-Control"] = "private, no-cache"
            answer.vary.add("Cookie")
        return answer


def identity() -> RequestUser:
    """Return the user of the request. Raises BadToken for an invalid token, TooMany after too many invalid tokens."""
    if "identity" not in g:
        g.identity = _identity_from_header() if request.blueprint == "api" else _identity_from_cookie()
    user: RequestUser = g.identity
    return user


def need(scope: str) -> RequestUser:
    """Return the user, who must have `scope`.

    Raises BadToken (401) without an account, NotAllowed (403) without the scope.
    """
    user = identity()
    if user.may(scope):
        return user
    if user.name is None:
        raise BadToken("this needs an account: send a token, or log in")
    raise NotAllowed(f"this needs a token with the scope {scope}")


def account_by_text(text: str) -> KnownToken:
    """Return the account of the token `text`. A valid token is always accepted.

    Raises BadToken (401), and TooMany (429) after too many unknown tokens from this address or too many wrong secrets
    for this public id from any address: see `web.rate_limits`.
    """
    sent = parse_token(text)
    with reading() as session:
        account = token_account(session, sent, database_now(session))
    if account is None:
        rates().hit(FAILED_TOKENS, client_address())
        if sent.public_id:
            rates().hit(FAILED_TOKENS, f"token {sent.public_id}")
        raise BadToken("this token is unknown")
    if isinstance(account, str):
        raise BadToken(f"this token {account}")
    return account


def session_secret() -> str | None:
    """Return the secret of the browser's session without checking it, or None."""
    value = request.cookies.get(cookie_name(), "")
    return value if 0 < len(value) <= COOKIE_MAX_LENGTH else None


def cookie_name() -> str:
    """Return the name of the session cookie. It is different with TLS."""
    return SECURE_COOKIE if request.is_secure else COOKIE


def is_personal() -> bool:
    """Return whether the user works on this machine.

    This is true if only this machine can reach the server, the server is not read-only, and no proxy forwarded the
    request.
    """
    configured = settings()
    return configured.personal and not configured.read_only and not is_proxied()


def used(account: KnownToken) -> RequestUser:
    """Return the user of `account`, and record the use of the token from time to time, if that needs no waiting."""
    if is_use_due(account) and not settings().read_only:
        # Reading must work while the disk is full or another process writes. A later request records the use.
        with suppress(OrganError), registry().catalog.writing(waits=False) as session:
            record_use(session, account)
    return RequestUser(account.name, account.scopes, account)


def _identity_from_header() -> RequestUser:
    sent = request.authorization
    if sent is None and "Authorization" not in request.headers:
        return LOCALLY if is_personal() else ANYBODY
    if sent is None or sent.type != _SCHEME or not sent.token:
        raise BadToken("send the token as `Authorization: Bearer TOKEN`")
    account = account_by_text(sent.token)
    return replace(used(account), is_of_page=account.session_id is not None)


def _identity_from_cookie() -> RequestUser:
    secret = session_secret()
    if secret is not None:
        with reading() as session:
            account = account_by_session(session, secret_sha256(secret), database_now(session))
        if account is not None:
            return used(account)
    return LOCALLY if is_personal() else ANYBODY
