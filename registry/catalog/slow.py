"""Slow statements: noticed by events of the engines, logged, and kept in memory."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Lock
from time import perf_counter
from typing import Any

from sqlalchemy import Engine, event

from organs.registry.entities.server import SlowStatement

SLOW_SECONDS = 0.5
"""A statement that takes longer is slow. Most statements of a page take less than a hundredth of this."""
STATEMENT_MAX = 1000
"""The most characters of a statement that are logged and kept."""
KEPT = 20
"""The newest slow statements that are kept."""
_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())  # a program that configures no log, such as a command, prints no slow statements


class SlowStatements:
    """The slow statements of a catalog in this process. Safe for threads.

    The time of a statement is that until its first row, as databases count it: SQLite computes further rows only while
    they are read, unless they are sorted or grouped. A statement that waits for another writer counts too. Values of
    parameters are never kept.
    """

    def __init__(self) -> None:
        self.count = 0
        self._lock = Lock()
        self._newest: deque[SlowStatement] = deque(maxlen=KEPT)
        self._observers: list[Callable[[SlowStatement], None]] = []

    def watch(self, engine: Engine, connection: str, slow_seconds: float = SLOW_SECONDS) -> None:
        """Record the slow statements of `engine`, under the name `connection`."""

        def begin(_connection: Any, _cursor: Any, _text: str, _values: Any, context: Any, _many: bool) -> None:
            context.organs_began = perf_counter()

        def end(_connection: Any, _cursor: Any, text: str, _values: Any, context: Any, _many: bool) -> None:
            if (seconds := perf_counter() - context.organs_began) > slow_seconds:
                self._record(connection, context, text, seconds)

        def fail(error: Any) -> None:
            context = error.execution_context
            began = getattr(context, "organs_began", None)
            if began is not None and (seconds := perf_counter() - began) > slow_seconds:
                self._record(connection, context, context.statement or "", seconds, is_stopped=True)

        event.listen(engine, "before_cursor_execute", begin)
        event.listen(engine, "after_cursor_execute", end)
        event.listen(engine, "handle_error", fail)  # a statement can also be stopped while its rows are read

    def observe(self, observer: Callable[[SlowStatement], None]) -> None:
        """Call `observer` with every further slow statement."""
        self._observers.append(observer)

    def newest(self) -> tuple[SlowStatement, ...]:
        """Return the newest slow statements, newest first."""
        with self._lock:
            return tuple(reversed(self._newest))

    def _record(self, connection: str, context: Any, text: str, seconds: float, *, is_stopped: bool = False) -> None:
        context.organs_began = None  # it is recorded once, even if reading its rows fails
        words = " ".join(text[: 2 * STATEMENT_MAX].split())  # a statement has line breaks and indents
        statement = SlowStatement(
            at=datetime.now(UTC),
            connection=connection,
            seconds=round(seconds, 3),
            is_stopped=is_stopped,
            statement=words if len(words) <= STATEMENT_MAX else f"{words[: STATEMENT_MAX - 1]}…",
        )
        with self._lock:
            self.count += 1
            self._newest.append(statement)
        how = "ended with an error after" if is_stopped else "took"
        _log.warning("a statement of the %s %s %.2f s: %s", connection, how, seconds, statement.statement)
        for observer in self._observers:
            observer(statement)
