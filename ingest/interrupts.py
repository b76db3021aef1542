"""Ctrl-C at a point where nothing is half done.

An exception out of nowhere could fall between a file that has been written and the note that it has been. So while an
ingest runs, the first Ctrl-C is told to its coordinator like any other event; a second one acts at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def told_of_interrupts(tell: Callable[[], None]) -> Iterator[None]:
    """Inside the block the first Ctrl-C calls `tell`, which must be safe in a signal handler.

    Without effect outside the main thread, and where somebody else has taken the signal over.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def first(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tell()

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
