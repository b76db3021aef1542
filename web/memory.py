"""Answers that are kept in memory until the catalog changes: most of what is asked, somebody has asked before.

An answer is kept under its whole address, with the name that the server was asked by and whether by a proxy; and
together with the catalog's version that was read *before* the answer was made, so what is kept is never older than it
says. Only whole, small answers to GET are kept, each process for itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from threading import Lock

from flask import Flask, Response, g, request

from web.answers import registry
from web.identity import is_proxied, is_somebody
from web.settings import WebSettings

ANSWER_MAX_BYTES = 512 * 1024
ROW_BYTES = 1024
"""What an answer takes beside its body, its headers and its address, about."""
TOLD_HEADER = "X-Answered"

_KEPT_HEADERS = ("Content-Type", "Cache-Control", "ETag", "Link", "Content-Disposition", "Content-Security-Policy")


@dataclass(frozen=True, slots=True)
class _Kept:
    body: bytes
    headers: tuple[tuple[str, str], ...]

    def taken_bytes(self, address: str) -> int:
        """What it takes when it is kept under `address`, which may be longer than the body."""
        return len(self.body) + sum(len(value) for _, value in self.headers) + len(address) + ROW_BYTES


class AnswerMemory:
    """Answers by address, the longest unused dropped first; all of them when the catalog has changed."""

    def __init__(self, size_max_bytes: int) -> None:
        self._size_max = size_max_bytes
        self._size = 0
        self._version: Hashable = None
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._lock = Lock()

    def get(self, version: Hashable, address: str) -> _Kept | None:
        """What is kept under `address` for that version."""
        with self._lock:
            self._forget_unless(version)
            found = self._kept.get(address)
            if found is not None:
                self._kept.move_to_end(address)
            return found

    def put(self, version: Hashable, address: str, kept: _Kept) -> None:
        """Keep an answer that was made from `version` or a later one; nothing is kept once a later one is known."""
        with self._lock:
            if version != self._version or address in self._kept:
                return
            self._kept[address] = kept
            self._size += kept.taken_bytes(address)
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


def remember_answers(app: Flask, settings: WebSettings) -> None:
    """Answer GET requests of `app` from memory where that is allowed; views opt out by `g.unkept = True`."""
    memory = AnswerMemory(settings.remembered_bytes)

    @app.before_request
    def look() -> Response | None:
        g.version = None
        if request.method != "GET" or "Range" in request.headers or is_somebody():
            return None
        g.version = registry().catalog.version()
        kept = memory.get(g.version, _address()) if g.version is not None else None
        if kept is None:
            return None
        g.version = None
        answer = Response(kept.body, headers=list(kept.headers))
        answer.headers[TOLD_HEADER] = "memory"
        answer.make_conditional(request)
        return answer

    @app.after_request
    def keep(answer: Response) -> Response:
        version = g.get("version")
        whole = answer.status_code == 200 and not answer.is_streamed and answer.get_etag()[0] is not None
        if version is not None and whole and not g.get("unkept", False):
            body = answer.get_data()
            if len(body) <= ANSWER_MAX_BYTES:
                headers = tuple((name, answer.headers[name]) for name in _KEPT_HEADERS if name in answer.headers)
                memory.put(version, _address(), _Kept(body, headers))
        return answer


def _address() -> str:
    # What `request.root_url` is made of, without its cost: nobody is answered with the links of who asked elsewhere.
    asked = request.environ
    root = (asked["wsgi.url_scheme"], asked.get("HTTP_HOST", ""), asked.get("SCRIPT_NAME", ""))
    return "\n".join((*root, str(is_proxied()), request.path, asked.get("QUERY_STRING", "")))
