"""Tests of the values that were needed last."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from organs.registry.recent import RecentValues


def test_threads_that_need_one_value_wait_until_one_of_them_has_made_it() -> None:
    begun, end = threading.Event(), threading.Event()
    made: list[int] = []

    def make() -> str:
        begun.set()
        assert end.wait(60)
        made.append(7)
        return "value 7"

    values = RecentValues[int, str](2)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(values.get, 7, make) for _ in range(4)]
        assert begun.wait(60)
        end.set()
        assert {future.result() for future in waiting} == {"value 7"}
    assert made == [7]


def test_only_the_last_values_are_kept_and_others_are_dropped() -> None:
    made, dropped = list[int](), list[int]()
    values = RecentValues[int, int](2, dropped.append)

    def get(number: int) -> None:
        assert values.get(number, lambda: made.append(number) or number) == number

    for number in (1, 2, 1, 3, 1, 2):
        get(number)
    assert (made, dropped) == ([1, 2, 3, 2], [2, 3])
    values.forget(1)
    values.forget(9)
    get(1)
    values.clear()
    get(1)
    assert (made, dropped) == ([1, 2, 3, 2, 1, 1], [2, 3, 1, 2, 1])


def test_a_value_whose_making_failed_or_that_is_not_to_be_kept_is_made_again() -> None:
    def fail() -> int:
        raise OSError("the disk failed")

    values = RecentValues[int, int](2)
    with pytest.raises(OSError, match="the disk failed"):
        values.get(1, fail)
    made = [values.get(1, lambda number=number: number, keep=lambda found: found > 1) for number in (1, 2, 3)]
    assert made == [1, 2, 2]
