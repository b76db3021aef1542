"""Tests of families: models with common weights are one family, unrelated models are not."""

from __future__ import annotations

from organs.registry.reports.statistics import (
    Member,
    families_of,
)


def test_unrelated_models_are_families_of_one() -> None:
    assert families_of([Member(1, "A"), Member(2, "B"), Member(3, None), Member(4, None)], []) == [
        (1,),
        (2,),
        (3,),
        (4,),
    ]


def test_equal_titles_are_one_family_whatever_their_case_and_spaces() -> None:
    assert families_of([Member(1, "Zoo  A"), Member(2, "B"), Member(3, "zoo a")], []) == [(1, 3), (2,)]


def test_an_edge_also_joins_through_an_unlisted_model() -> None:
    assert families_of([Member(1, "A"), Member(2, "B"), Member(3, "C")], [(1, 9), (9, 3)]) == [(1, 3), (2,)]


def test_a_declared_parent_is_found_by_the_longest_title_that_its_name_begins_with() -> None:
    members = [
        Member(1, "Zoo A"),
        Member(2, "Zoo A Code"),
        Member(3, "Mine", ("org/Zoo A Code v1.0",)),
        Member(4, "Zoo"),
    ]
    assert families_of(members, []) == [(1,), (2, 3), (4,)]


def test_siblings_of_an_unregistered_parent_are_one_family() -> None:
    members = [Member(1, "Mine", ("org/Gone",)), Member(2, "Yours", ("org/gone",)), Member(3, "Zoo")]
    assert families_of(members, []) == [(1, 2), (3,)]


def test_a_title_matches_only_as_a_whole_word() -> None:
    assert families_of([Member(1, "Zoo"), Member(2, "Mine", ("org/Zoology",))], []) == [(1,), (2,)]


def test_a_long_chain_is_one_family() -> None:
    members = [Member(number, f"Title {number}") for number in range(5000)]
    edges = [(number, number + 1) for number in range(4999)]
    assert families_of(members, edges) == [tuple(range(5000))]
