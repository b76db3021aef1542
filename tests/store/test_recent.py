"""Tests of the values that several threads need again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from organs.registry.store.recent import RecentValues


def test_threads_that_need_one_value_wait_until_one_of_them_has_made_it() -> None:
    begun, end = threading.Event(), threading.Event()
    made: list[int] = []

    def make(number: int) -> str:
        begun.set()
        assert end.wait(60)
        made.append(number)
        return f"value {number}"

    values = RecentValues(make, 2)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(values.get, 7) for _ in range(4)]
        assert begun.wait(60)
        end.set()
        assert {future.result() for future in waiting} == {"value 7"}
    assert made == [7]


def test_only_the_last_values_are_kept() -> None:
    made: list[int] = []
    values = RecentValues(made.append, 2)
    for number in (1, 2, 1, 3, 1, 2):
        values.get(number)
    assert made == [1, 2, 3, 2]
    values.forget(1)
    values.get(1)
    values.clear()
    values.get(1)
    assert made == [1, 2, 3, 2, 1, 1]


def test_a_value_whose_making_failed_is_made_again() -> None:
    attempts: list[int] = []

    def make(number: int) -> int:
        attempts.append(number)
        if len(attempts) == 1:
            raise OSError("the disk failed")
        return number

    values = RecentValues(make, 2)
    with pytest.raises(OSError, match="the disk failed"):
        values.get(1)
    assert values.get(1) == 1
