"""Tests of grouping connected pairs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from organs.registry.lineage import Groups

NUMBERS = st.integers(0, 12)


def test_an_element_without_joins_is_its_own_group() -> None:
    groups = Groups()
    groups.join(1, "a")
    assert groups.leader(1) == groups.leader("a")
    assert groups.leader(2) == 2


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=20))
def test_connected_elements_are_in_one_group(pairs: list[tuple[int, int]]) -> None:
    groups = Groups()
    for pair in pairs:
        groups.join(*pair)
    for start in range(13):
        reached = {start}
        for _ in range(13):
            reached |= {end for pair in pairs if reached & set(pair) for end in pair}
        assert {number for number in range(13) if groups.leader(number) == groups.leader(start)} == reached
