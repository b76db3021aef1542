"""The values that were needed last, for which memory or open files are limited."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class RecentValues(Generic[K, T]):
    """The values of the last keys, at most `count`. One thread makes a value while others wait for it.

    `drop` is called with each value that is not kept any more. If it closes values, one thread uses them at a time.
    """

    def __init__(self, count: int, drop: Callable[[T], object] = lambda _value: None) -> None:
        self._count = count
        self._drop = drop
        self._lock = threading.Lock()
        self._kept: OrderedDict[K, tuple[threading.Lock, list[T]]] = OrderedDict()
        """By key: a lock that is held while the value is made, and a list with the value, then."""

    def get(self, key: K, make: Callable[[], T], keep: Callable[[T], bool] | None = None) -> T:
        """Return the value of `key`; if it is not kept, that of `make`, whose errors are raised.

        With `keep`, no thread waits for another, and a new value is kept only if `keep` accepts it.
        """
        dropped: list[T] = []
        with self._lock:
            making, made = self._kept.setdefault(key, (threading.Lock(), []))
            self._kept.move_to_end(key)
            if len(self._kept) > self._count:
                _, (_, dropped) = self._kept.popitem(last=False)
        for value in dropped:
            self._drop(value)
        if keep is not None:
            value = made[0] if made else make()
            if not made and keep(value):
                made.append(value)
            return value
        with making:
            if not made:
                made.append(make())
            return made[0]

    def forget(self, key: K) -> None:
        """Drop the value of `key`, if it is kept."""
        with self._lock:
            _, dropped = self._kept.pop(key, (None, ()))
        for value in dropped:
            self._drop(value)

    def clear(self) -> None:
        """Drop all values."""
        for key in list(self._kept):
            self.forget(key)

    def __len__(self) -> int:
        return len(self._kept)
