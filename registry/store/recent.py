"""The values that several threads need again: one thread makes a value while others wait for it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class RecentValues(Generic[T]):
    """The last values of `make(number)`, at most `count`; safe for threads. A call that fails is made again."""

    def __init__(self, make: Callable[[int], T], count: int) -> None:
        self._make = make
        self._count = count
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[threading.Lock, list[T]]] = OrderedDict()
        """By number: a lock that is held while the value is made, and a list with the value, then."""

    def get(self, number: int) -> T:
        """Return the value of `number`; raises what `make` raises."""
        with self._lock:
            making, made = self._kept.setdefault(number, (threading.Lock(), []))
            self._kept.move_to_end(number)
            if len(self._kept) > self._count:
                self._kept.popitem(last=False)
        with making:
            if not made:
                made.append(self._make(number))
            return made[0]

    def forget(self, number: int) -> None:
        """Free the value of `number`, if it is kept."""
        with self._lock:
            self._kept.pop(number, None)

    def clear(self) -> None:
        """Free all values."""
        with self._lock:
            self._kept.clear()
