"""Patience: a registry that is away for a while, or busy, is asked again until it has been away for too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from organs.registry.errors import BadReply, Busy, OrganError, TooMany, Unreachable

PATIENCE_SECONDS = 180.0
"""Without any answer that goes on; then the push gives up, and goes on when it is run again."""
PAUSE_SECONDS, PAUSE_MAX_SECONDS = 0.25, 8.0
PASSING = (Unreachable, Busy, TooMany)
"""Faults that may be over in a while."""


Answer = TypeVar("Answer")


class Stopped(Exception):
    """Somebody, or the failure of another lane, ended the push; raised inside its threads to end them."""


class Patience:
    """How long one thing has gone wrong; begins anew after every success."""

    def __init__(self, stop: threading.Event, seconds: float = PATIENCE_SECONDS) -> None:
        self._stop = stop
        self._seconds = seconds
        self._failures = 0
        self._since = time.monotonic()

    def succeeded(self) -> None:
        """It goes on."""
        self._failures = 0
        self._since = time.monotonic()

    def wait(self, error: OrganError) -> None:
        """Wait until it may be tried again; raises `error` when it has gone wrong for too long or asking again is no
        use, and Stopped when the push was ended."""
        if isinstance(error, BadReply) or time.monotonic() - self._since > self._seconds:
            raise error
        pause = min(PAUSE_SECONDS * 2.0**self._failures, PAUSE_MAX_SECONDS)
        if isinstance(error, TooMany):
            pause = min(max(pause, error.seconds), self._seconds)
        self._failures += 1
        if self._stop.wait(pause):
            raise Stopped from error


def patiently(stop: threading.Event, ask: Callable[[], Answer]) -> Answer:
    """What `ask` gives, tried again while what goes wrong may be over in a while."""
    patience = Patience(stop)
    while True:
        try:
            return ask()
        except PASSING as error:
            patience.wait(error)
