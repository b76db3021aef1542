"""How commands that run for long end: by a signal, or with the process that started them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

PARENT_SECONDS = 0.5
"""The time between two checks that the parent is running."""
EXIT_ABANDONED = 1


@contextmanager
def ended_by_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` at the first SIGINT or SIGTERM inside the block; a second SIGINT interrupts at once."""

    def end(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def watch_parent(parent: int, on_end: Callable[[], None] | None = None) -> None:
    """Call `on_end` in a thread when the process `parent` has ended; by default, end this process at once."""

    def watch() -> None:
        forever = threading.Event()
        while os.getppid() == parent:
            forever.wait(PARENT_SECONDS)
        if on_end is None:
            os._exit(EXIT_ABANDONED)
        on_end()

    threading.Thread(target=watch, name="parent", daemon=True).start()
