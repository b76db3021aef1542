"""The log of a server: records as text or as lines of JSON, and the newest errors of this process.

A line of JSON has these members:

    time        when, in UTC, ISO 8601 with milliseconds
    level       `INFO`, `WARNING`, `ERROR`, …
    logger      the part of the program
    process     the id of the process
    message     one sentence
    exception   the name of the class of an exception, if there is one
    traceback   its traceback, as one text

and the members that the record has of its own: `log.info("…", extra={FIELDS: {"seconds": 0.1}})`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

from organs.registry.entities.server import LoggedError
from organs.registry.tokens import PAGE_PREFIX, PREFIX

FIELDS = "organ_fields"
"""The attribute of a record with further members for JSON."""
TRACEBACK_MAX = 16_384
"""The most characters of a traceback in JSON. The beginning of a longer one is left out."""
ERRORS_KEPT = 20
ERROR_TEXT_MAX = 500
"""The most characters of the message of an error that is kept."""

_TOKENS = re.compile(rf"({PREFIX}|{PAGE_PREFIX})[A-Za-z0-9]+")
"""Tokens, which somebody may have sent in the wrong place, for example in a path."""
_TEXT_FORMAT = "%(asctime)s [%(process)d] [%(levelname)s] %(message)s"
_TIME_FORMAT = "[%Y-%m-%d %H:%M:%S %z]"
"""The formats of gunicorn."""


def configure_logs(log_format: str) -> None:
    """Write all records of this process to stderr, as `text` or as lines of `json`. Replaces all other handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else logging.Formatter(_TEXT_FORMAT, _TIME_FORMAT))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


class JsonLines(logging.Formatter):
    """A record as one line of JSON in ASCII, so that no character of a value can end or change the line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record without a line break."""
        members: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            members["exception"] = record.exc_info[0].__name__
            members["traceback"] = self.formatException(record.exc_info)[-TRACEBACK_MAX:]
        return _TOKENS.sub(r"\1...", json.dumps(members, default=str))


class RecentErrors(logging.Handler):
    """The newest errors that this process logs. Safe for threads.

    `count` is called with the name of the logger of each error.
    """

    def __init__(self, count: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self.since = datetime.now(UTC)
        self.total = 0
        self.process = os.getpid()
        self._count = count
        self._errors: deque[LoggedError] = deque(maxlen=ERRORS_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message of the record, without a traceback."""
        try:
            message = " ".join(record.getMessage().split())
        except (TypeError, ValueError):
            self.handleError(record)
            return
        short = message if len(message) <= ERROR_TEXT_MAX else f"{message[: ERROR_TEXT_MAX - 1]}…"
        at = datetime.fromtimestamp(record.created, UTC)
        self._errors.append(LoggedError(at=at, logger=record.name, message=short))
        self.total += 1
        self._count(record.name)

    def newest(self) -> tuple[LoggedError, ...]:
        """Return the newest errors, newest first."""
        return tuple(reversed(self._errors.copy()))
