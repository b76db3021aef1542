"""Answers that are kept in memory until the catalog changes: most requests repeat an earlier one.

An answer is kept under a key: scheme, host, script root, path and query of the request, and whether a proxy sent it.
What else a client sends must not change a kept answer. So while such a request is answered, the application sees
nothing else: `hide_headers` takes all other headers, and the client's address, out of the request before anything reads
them. A view that needs one calls `reveal_headers`, which puts them back and keeps the answer out of the memory. An
answer that depends on a hidden header can therefore not be kept.

The catalog's version is read *before* the answer is made, so what is kept is never older than it says. Only whole,
small answers to GET are kept, by each process for itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Any

from flask import Flask, Response, g, request
from werkzeug.utils import cached_property

from organs.web.auth import (
    COOKIE,
    SECURE_COOKIE,
    is_proxied,
)
from organs.web.rates import ADDRESS_KEY
from organs.web.responses import registry
from organs.web.settings import WebSettings

ANSWER_MAX_BYTES = 512 * 1024
ROW_BYTES = 1024
"""What an answer takes beside its body, its headers and its key, about."""
TOLD_HEADER = "X-Answered"
KEPT_BLUEPRINTS = frozenset({"pages", "api"})
"""Blueprints whose answers to GET are kept. Downloads, the hub's routes and static files read headers of their own."""

_KEPT_HEADERS = ("Content-Type", "Cache-Control", "ETag", "Link", "Content-Disposition", "Content-Security-Policy")
_NOT_HIDDEN = frozenset({"HTTP_HOST"})
"""Headers that are part of the key."""
_ALSO_HIDDEN = frozenset({"CONTENT_TYPE", "CONTENT_LENGTH", "REMOTE_ADDR", "REMOTE_PORT", "RAW_URI"})
"""Entries of a WSGI environment that a client chooses, beside `HTTP_*`."""
_NEVER_KEPT = ("HTTP_AUTHORIZATION", "HTTP_RANGE", "HTTP_TRANSFER_ENCODING", "HTTP_CONTENT_ENCODING")
"""A request with one of these headers is answered anew, with all of its headers."""
_SESSION_COOKIES = (COOKIE, SECURE_COOKIE)
"""A request with one of these cookies is answered anew, too."""


@dataclass(frozen=True, slots=True)
class _Kept:
    body: bytes
    headers: tuple[tuple[str, str], ...]

    def taken_bytes(self, key: str) -> int:
        """Return the memory that the answer takes under `key`, which may be longer than the body."""
        return len(self.body) + sum(len(value) for _, value in self.headers) + len(key) + ROW_BYTES


class AnswerMemory:
    """Answers by key. The least recently used is dropped first, and all of them when the catalog has changed."""

    def __init__(self, size_max_bytes: int) -> None:
        self._size_max = size_max_bytes
        self._size = 0
        self._version: Hashable = None
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._lock = Lock()

    def get(self, version: Hashable, key: str) -> _Kept | None:
        """Return what is kept under `key` for that version."""
        with self._lock:
            self._forget_unless(version)
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def put(self, version: Hashable, key: str, kept: _Kept) -> None:
        """Keep an answer made from `version` or a later one; do nothing once a later version is known."""
        with self._lock:
            if version != self._version or key in self._kept:
                return
            self._kept[key] = kept
            self._size += kept.taken_bytes(key)
            while self._size > self._size_max:
                old, dropped = self._kept.popitem(last=False)
                self._size -= dropped.taken_bytes(old)

    def __len__(self) -> int:
        return len(self._kept)

    def _forget_unless(self, version: Hashable) -> None:
        if version != self._version:
            self._kept.clear()
            self._size = 0
            self._version = version


def hide_headers(app: Flask) -> None:
    """Hide what is not part of the key from requests whose answer may be kept.

    Call it before any other hook of `app` is set, so that no hook has read a header before.
    """

    @app.before_request
    def hide() -> None:
        if not _may_be_kept():
            return
        environ = request.environ
        g.key = _key(environ)
        names = [name for name in environ if name in _ALSO_HIDDEN or _is_hidden_header(name)]
        g.hidden = {name: environ.pop(name) for name in names}
        environ[ADDRESS_KEY] = g.hidden.get("REMOTE_ADDR")
        _reread_headers()


def reveal_headers() -> None:
    """Let the view of this request see all headers; its answer is not kept."""
    g.unkept = True
    request.environ.update(g.pop("hidden", {}))
    _reread_headers()


def remember_answers(app: Flask, settings: WebSettings) -> None:
    """Answer GET requests of `app` from memory where possible; views opt out by `g.unkept = True`."""
    memory = AnswerMemory(settings.remembered_bytes)

    @app.before_request
    def look() -> Response | None:
        g.version = None
        if "hidden" not in g:
            return None
        g.version = registry().catalog.version()
        kept = memory.get(g.version, g.key) if g.version is not None else None
        if kept is None:
            return None
        g.version = None
        answer = Response(kept.body, headers=list(kept.headers))
        answer.headers[TOLD_HEADER] = "memory"
        return answer

    @app.after_request
    def keep(answer: Response) -> Response:
        if "hidden" not in g:
            return answer
        whole = answer.status_code == 200 and not answer.is_streamed and answer.get_etag()[0] is not None
        version = g.get("version")
        if whole and version is not None and not g.get("unkept", False):
            body = answer.get_data()
            if len(body) <= ANSWER_MAX_BYTES:
                headers = tuple((name, answer.headers[name]) for name in _KEPT_HEADERS if name in answer.headers)
                memory.put(version, g.key, _Kept(body, headers))
        reveal_headers()
        if whole:
            answer.make_conditional(request)
        return answer


def _may_be_kept() -> bool:
    """Return whether the answer to this request may be kept, and given to others."""
    environ = request.environ
    if request.method != "GET" or request.blueprint not in KEPT_BLUEPRINTS:
        return False
    if any(name in environ for name in _NEVER_KEPT) or environ.get("CONTENT_LENGTH") not in (None, "", "0"):
        return False
    cookies = environ.get("HTTP_COOKIE", "")
    return not any(name in cookies for name in _SESSION_COOKIES)


def _key(environ: dict[str, Any]) -> str:
    # The parts of `request.root_url`, without its cost: links in an answer lead to the host that was asked for.
    root = (environ["wsgi.url_scheme"], environ.get("HTTP_HOST", ""), environ.get("SCRIPT_NAME", ""))
    return "\n".join((*root, str(is_proxied()), request.path, environ.get("QUERY_STRING", "")))


def _is_hidden_header(name: str) -> bool:
    return name.startswith("HTTP_") and name not in _NOT_HIDDEN


def _reread_headers() -> None:
    """Let the request forget what it has read from its environment so far."""
    request.remote_addr = request.environ.get("REMOTE_ADDR")
    kind, values = request.__class__, request.__dict__  # the class behind the proxy, which `type` does not give
    for name in [name for name in values if isinstance(getattr(kind, name, None), cached_property)]:
        del values[name]
