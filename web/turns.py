"""Turns: in one process one page is worked on at a time, and the others wait for theirs.

A page is processor work, and Python does one thing at a time: sixteen threads at it finish nothing sooner and lose a
quarter of the time to handing the interpreter to each other. One that takes long must not hold up all others either:
who has waited for a moment may begin beside it, as long as few do. Downloads, health and what is answered from memory
need no turn.
"""

from __future__ import annotations

from threading import BoundedSemaphore

from flask import Flask, g, request

from registry.errors import Busy
from web.settings import WebSettings

TURNS_KEY = "organ_turns"
AT_WORK = frozenset({"pages", "api"})
"""Blueprints whose requests take a turn."""
WITHOUT = frozenset(
    {
        *("pages.reports", "pages.reports_json", "pages.reports_markdown"),
        *("pages.report", "pages.report_json", "pages.report_csv", "pages.types_chart", "pages.scale_chart"),
        *("api.report", "api.report_section"),
        *("api.receive_chunk", "api.finish_upload"),
    }
)
"""What is worked out once for all who ask, while they wait: they must not wait in a turn. And what takes as long as the
bytes of an upload take: it has places of its own (`web.receiving`)."""
PATIENCE_SECONDS = 0.25
BESIDE_MAX = 2
"""Requests that may work beside one that takes longer than that."""


class Turns:
    """Who may work now. Safe for threads."""

    def __init__(self, seconds: float, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._seconds = seconds
        self._patience = patience_seconds
        self._first = BoundedSemaphore(1)
        self._beside = BoundedSemaphore(BESIDE_MAX)

    def take(self) -> BoundedSemaphore:
        """Wait for a turn; what comes back must be released. Raises Busy when none comes in time."""
        if self._first.acquire(timeout=self._patience):
            return self._first
        if self._beside.acquire(timeout=self._seconds):
            return self._beside
        raise Busy("too many others are being answered; try again in some seconds")


def take_turns(app: Flask, settings: WebSettings) -> None:
    """Let requests of `app` work in turns; one whose turn does not come in time is answered by 503."""
    turns = app.extensions[TURNS_KEY] = Turns(settings.turn_seconds)

    @app.before_request
    def take() -> None:
        g.turn = turns.take() if request.blueprint in AT_WORK and request.endpoint not in WITHOUT else None

    @app.teardown_request
    def give_back(_error: BaseException | None) -> None:
        turn = g.pop("turn", None)
        if turn is not None:
            turn.release()
