"""The watch for tokens: while tests run, all places that could show a token are checked.

Checked are addresses of requests, answers with their headers, log records with their tracebacks, output of commands,
and logs of servers in other processes. `tests/conftest.py` fails the test in which a token was found.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote

import werkzeug.test
from werkzeug.datastructures import Headers

TOKEN = re.compile(rb"org[ps]_[0-9A-Za-z]{49,}")
KEPT_BYTES = 4096
"""The number of earlier bytes to keep: a token may be split between two pieces of an answer."""
SHOWN_ONCE = frozenset({"/api/v1/account/tokens", "/account/tokens", "/account/page-token", "/admin/contributors/new"})
"""A request to this address makes a token, and only its answer may have it."""
WATCHED_LOGGERS = ("gunicorn", "organs", "urllib3")
"""All records of these loggers, and the emitted records of others. urllib3 logs addresses of requests."""

Answer = tuple[Iterable[bytes], str, Headers]


class Watch:
    """The tokens found so far, described without repeating them. Safe for threads."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def look(self, text: str | bytes, where: str) -> None:
        """Record whether there is a token in `text`."""
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        if TOKEN.search(data):
            self.found.append(where)

    def check(self) -> None:
        """Fail with the findings since the last call."""
        found, self.found = self.found, []
        assert not found, f"a token gets out: {', '.join(found)}"


_watches: list[Watch] = []


@contextmanager
def watching() -> Iterator[Watch]:
    """Watch until the end of the block; an inner watch receives everything in place of an outer one."""
    watch = Watch()
    _watches.append(watch)
    try:
        yield watch
    finally:
        _watches.remove(watch)


def current_watch() -> Watch:
    """Return the current watch, or an unused one if nothing is watched."""
    return _watches[-1] if _watches else Watch()


@contextmanager
def watch_everything() -> Iterator[Watch]:
    """Return a watch over everything in this process."""
    listener = _Listener()
    levels = {name: logging.getLogger(name).level for name in WATCHED_LOGGERS}
    for name in WATCHED_LOGGERS:
        logging.getLogger(name).setLevel(logging.DEBUG)
    logging.getLogger().addHandler(listener)
    try:
        with patch.object(werkzeug.test, "run_wsgi_app", _looked_at(werkzeug.test.run_wsgi_app)), watching() as watch:
            yield watch
    finally:
        logging.getLogger().removeHandler(listener)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def check_command_output(arguments: Sequence[object], out: str, err: str) -> None:
    """Check the output of a command; only `organ token create` may print the token that it has created."""
    words = list(map(str, arguments))
    is_new = any(words[place : place + 2] == ["token", "create"] for place in range(len(words)))
    current_watch().look(err, f"what organ {words[:2]} prints to stderr")
    if not is_new:
        current_watch().look(out, f"what organ {words[:2]} prints")


def check_log(log: Path) -> None:
    """Check the log of a server."""
    current_watch().look(log.read_bytes(), f"the log of a server, {log.name}")


class _Listener(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        current_watch().look(self.format(record), f"a record of {record.name}")


def _looked_at(run: Any) -> Any:
    """Run `run_wsgi_app` and check its requests and answers, without reading more of an answer than the caller does."""

    def run_and_look(app: Any, environ: dict[str, Any], buffered: bool = False) -> Answer:
        path, watch = str(environ.get("PATH_INFO", "")), current_watch()
        where = f"{environ.get('REQUEST_METHOD')} {_shown(path)}"
        for name in ("PATH_INFO", "QUERY_STRING", "HTTP_REFERER"):
            watch.look(unquote(str(environ.get(name, ""))), f"the address of {where}")
        body, status, headers = run(app, environ, buffered)
        watch.look(f"{status}\n{headers}", f"the headers of {where}")
        if environ.get("REQUEST_METHOD") == "POST" and path in SHOWN_ONCE and status.startswith("2"):
            return body, status, headers
        return _Passing(body, watch, f"the answer to {where}"), status, headers

    return run_and_look


class _Passing:
    """The pieces of an answer, checked as they pass."""

    def __init__(self, body: Iterable[bytes], watch: Watch, where: str) -> None:
        self._body, self._watch, self._where = body, watch, where

    def __iter__(self) -> Iterator[bytes]:
        before = b""
        for piece in self._body:
            self._watch.look(before + piece, self._where)
            before = (before + piece)[-KEPT_BYTES:]
            yield piece

    def close(self) -> None:
        close = getattr(self._body, "close", None)
        if close is not None:
            close()


def _shown(path: str) -> str:
    return TOKEN.sub(b"(token)", path.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")[:100]
