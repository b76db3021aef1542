"""Several things at once, in threads that nobody has to wait for: Ctrl-C ends a push at once."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

LEAVE_SECONDS = 3.0
"""That a lane is given to end when the others have: a chunk under way need not be awaited."""

Thing = TypeVar("Thing")


def in_lanes(things: Iterable[Thing], do: Callable[[Thing], None], count: int, stop: threading.Event) -> None:
    """`do` every one of `things`, `count` at a time. The first failure sets `stop` and is raised; so does an interrupt.

    `do` is to look at `stop` and raise when it is set.
    """
    waiting: queue.SimpleQueue[Thing] = queue.SimpleQueue()
    for thing in things:
        waiting.put(thing)
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    size = min(count, waiting.qsize())
    lanes = [threading.Thread(target=_lane, args=(waiting, do, ended), daemon=True, name="push") for _ in range(size)]
    for lane in lanes:
        lane.start()
    try:
        for _ in lanes:
            failure = ended.get()
            if failure is not None:
                raise failure
    except BaseException:
        stop.set()
        leave = time.monotonic() + LEAVE_SECONDS
        for lane in lanes:
            lane.join(max(0.0, leave - time.monotonic()))
        raise


def _lane(
    waiting: queue.SimpleQueue[Thing], do: Callable[[Thing], None], ended: queue.SimpleQueue[BaseException | None]
) -> None:
    try:
        while True:
            do(waiting.get_nowait())
    except queue.Empty:
        ended.put(None)
    except BaseException as error:  # noqa: BLE001  # carried over to whoever waits, who raises it
        ended.put(error)
