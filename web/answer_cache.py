"""A cache of answers in memory, valid until the catalog changes: most requests repeat an earlier one.

The key of an answer is scheme, host, script root, path and query of the request, and whether a proxy sent it. Nothing
else that a client sends may change a cached answer. So `hide_headers` removes all other headers and the client's
address from the request before anything reads them. A view that needs a header calls `reveal_headers`, which restores
all of them and keeps the answer out of the cache. So an answer that depends on a hidden header is never cached.

The catalog's version is read *before* the answer is computed, so a cached answer is never older than its version. Only
complete, small answers to GET are cached, by each process for itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from threading import Lock

from flask import Flask, Response, g, request
from werkzeug.utils import cached_property

from organs.web.auth import COOKIE, SECURE_COOKIE
from organs.web.client_address import ADDRESS_KEY, is_proxied
from organs.web.responses import registry
from organs.web.settings import WebSettings

ANSWER_MAX_BYTES = 512 * 1024
ROW_BYTES = 1024
"""Estimated memory of each answer in addition to its body, headers and key."""
ANSWERED_HEADER = "X-Answered"
CACHED_BLUEPRINTS = frozenset({"pages", "api"})
"""Blueprints whose answers to GET are cached. Downloads, routes of the hub and static files need the headers."""

_CACHED_HEADERS = ("Content-Type", "Cache-Control", "ETag", "Link", "Content-Disposition", "Content-Security-Policy")
_NOT_HIDDEN = frozenset({"HTTP_HOST"})
"""Headers that are part of the key."""
_ALSO_HIDDEN = frozenset({"CONTENT_TYPE", "CONTENT_LENGTH", "REMOTE_ADDR", "REMOTE_PORT", "RAW_URI"})
"""Keys of the WSGI environment, in addition to `HTTP_*`, whose values the client can choose."""
_NEVER_CACHED = ("HTTP_AUTHORIZATION", "HTTP_RANGE", "HTTP_TRANSFER_ENCODING", "HTTP_CONTENT_ENCODING")
"""A request with one of these headers is never answered from the cache, and none of its headers are hidden."""
_SESSION_COOKIES = (COOKIE, SECURE_COOKIE)
"""Cookies that have the same effect as the headers in _NEVER_CACHED."""


@dataclass(frozen=True, slots=True)
class _CachedAnswer:
    body: bytes
    headers: tuple[tuple[str, str], ...]

    def size_bytes(self, key: str) -> int:
        """Return the memory of the answer with its `key`, which may be longer than the body."""
        return len(self.body) + sum(len(value) for _, value in self.headers) + len(key) + ROW_BYTES


class AnswerCache:
    """Answers by key. Safe for threads.

    A full cache drops the least recently used answer. A new version of the catalog drops all answers.
    """

    def __init__(self, size_max_bytes: int) -> None:
        self._size_max = size_max_bytes
        self._size = 0
        self._version: Hashable = None
        self._answers: OrderedDict[str, _CachedAnswer] = OrderedDict()
        self._lock = Lock()

    def get(self, version: Hashable, key: str) -> _CachedAnswer | None:
        """Return the answer for `key` that is valid for `version` of the catalog, or None."""
        with self._lock:
            if version != self._version:
                self._answers.clear()
                self._size, self._version = 0, version
            answer = self._answers.get(key)
            if answer is not None:
                self._answers.move_to_end(key)
            return answer

    def put(self, version: Hashable, key: str, answer: _CachedAnswer) -> None:
        """Add an answer that was computed from `version` or a later one. Do nothing if the cache is newer."""
        with self._lock:
            if version != self._version or key in self._answers:
                return
            self._answers[key] = answer
            self._size += answer.size_bytes(key)
            while self._size > self._size_max:
                old, dropped = self._answers.popitem(last=False)
                self._size -= dropped.size_bytes(old)

    def __len__(self) -> int:
        return len(self._answers)


def hide_headers(app: Flask) -> None:
    """Add a hook to `app` that hides everything outside the key, in requests whose answers may be cached.

    Call it before all other hooks of `app` are set, so that no hook reads a header earlier.
    """

    @app.before_request
    def hide() -> None:
        if not _may_be_cached():
            return
        environ = request.environ
        # The parts of `request.root_url`, which is slower. Links in an answer have the host of the request.
        root = (environ["wsgi.url_scheme"], environ.get("HTTP_HOST", ""), environ.get("SCRIPT_NAME", ""))
        g.key = "\n".join((*root, str(is_proxied()), request.path, environ.get("QUERY_STRING", "")))
        names = [
            name for name in environ if name in _ALSO_HIDDEN or (name.startswith("HTTP_") and name not in _NOT_HIDDEN)
        ]
        g.hidden = {name: environ.pop(name) for name in names}
        environ[ADDRESS_KEY] = g.hidden.get("REMOTE_ADDR")
        _reread_headers()


def reveal_headers() -> None:
    """Restore all headers for the view of this request. Its answer is then not cached."""
    g.not_cached = True
    request.environ.update(g.pop("hidden", {}))
    _reread_headers()


def cache_answers(app: Flask, settings: WebSettings) -> None:
    """Answer GET requests of `app` from the cache if possible. A view opts out by `g.not_cached = True`."""
    cache = AnswerCache(settings.cache_bytes)

    @app.before_request
    def look_up() -> Response | None:
        g.version = None
        if "hidden" not in g:
            return None
        g.version = registry().catalog.version()
        cached = cache.get(g.version, g.key) if g.version is not None else None
        if cached is None:
            return None
        g.version = None
        answer = Response(cached.body, headers=list(cached.headers))
        answer.headers[ANSWERED_HEADER] = "memory"
        return answer

    @app.after_request
    def keep(answer: Response) -> Response:
        if "hidden" not in g:
            return answer
        is_complete = answer.status_code == 200 and not answer.is_streamed and answer.get_etag()[0] is not None
        version = g.get("version")
        if is_complete and version is not None and not g.get("not_cached", False):
            body = answer.get_data()
            if len(body) <= ANSWER_MAX_BYTES:
                headers = tuple((name, answer.headers[name]) for name in _CACHED_HEADERS if name in answer.headers)
                cache.put(version, g.key, _CachedAnswer(body, headers))
        reveal_headers()
        if is_complete:
            answer.make_conditional(request)
        return answer


def _may_be_cached() -> bool:
    """Return whether the answer to this request may be cached and sent to other clients."""
    environ = request.environ
    if request.method != "GET" or request.blueprint not in CACHED_BLUEPRINTS:
        return False
    if any(name in environ for name in _NEVER_CACHED) or environ.get("CONTENT_LENGTH") not in (None, "", "0"):
        return False
    cookies = environ.get("HTTP_COOKIE", "")
    return not any(name in cookies for name in _SESSION_COOKIES)


def _reread_headers() -> None:
    """Delete the values that the request object has cached from its environment."""
    request.remote_addr = request.environ.get("REMOTE_ADDR")
    kind, values = request.__class__, request.__dict__  # `type(request)` would be the class of the proxy object
    for name in [name for name in values if isinstance(getattr(kind, name, None), cached_property)]:
        del values[name]
