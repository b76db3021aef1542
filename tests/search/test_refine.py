"""Tests of the queries behind facets, bars and column heads."""

from __future__ import annotations

import pytest

from organs.registry.search.language import (
    MODELS,
    bounded,
    has_choice,
    parse_query,
    short_text,
    sorted_by,
    toggled_texts,
    without,
)


@pytest.mark.parametrize(
    ("before", "field", "value", "after"),
    [
        ("", "type", "organ", "type:organ"),
        ("type:organ", "type", "organ", ""),
        ("type:organ", "type", "norm", "type:organ,norm"),
        ("type:organ,norm", "type", "organ", "type:norm"),
        ("type:organ type:norm", "type", "norm", "type:organ"),
        ("-type:organ", "type", "norm", "-type:organ type:norm"),
        ("license:MIT", "license", "mit", ""),
        ("coder theta>=40", "license", "other license", 'license:"other license" theta>=40 coder'),
        ("arch:llama sort:size", "slot", "ffn_up", "arch:llama slot:ffn_up sort:size"),
    ],
)
def test_a_facet_value_is_added_and_removed(before: str, field: str, value: str, after: str) -> None:
    changed = toggled_texts(parse_query(before), field, ["nothing of the kind", value])
    assert changed[value] == after
    assert parse_query(changed[value]) == parse_query(after), "what a click makes can be typed"


def test_a_negated_value_is_not_chosen() -> None:
    assert has_choice(parse_query("type:organ"), "type", "organ")
    assert not has_choice(parse_query("-type:organ"), "type", "organ")


@pytest.mark.parametrize(
    ("before", "low", "high", "after"),
    [
        ("", 40.0, 45.0, "theta<45 theta>=40"),
        ("theta:10-20 type:organ", 85.0, None, "theta>=85 type:organ"),
        ("theta>=40 theta<45 coder", None, None, "coder"),
    ],
)
def test_a_bar_replaces_the_bounds_of_theta(before: str, low: float, high: float, after: str) -> None:
    assert short_text(bounded(parse_query(before), "theta", low, high)) == after


def test_a_column_head_sorts_descending_first_and_then_ascending() -> None:
    once = sorted_by(parse_query("type:organ"), "spectral")
    assert short_text(once) == "type:organ sort:-spectral"
    assert short_text(sorted_by(once, "spectral")) == "type:organ sort:spectral"
    assert short_text(sorted_by(parse_query(""), "theta")) == "sort:theta", "θ falling is how it is sorted anyway"
    assert short_text(sorted_by(parse_query("like:0123456789abcdef"), "size")) == "sort:-size"


def test_a_term_or_a_word_is_removed() -> None:
    query = parse_query("type:organ theta>=40 coder -farmer")
    assert [short_text(without(query, part)) for part in (*query.terms, "coder", "-farmer")] == [
        "theta>=40 coder -farmer",
        "type:organ coder -farmer",
        "theta>=40 type:organ -farmer",
        "theta>=40 type:organ coder",
    ]


def test_the_default_sort_is_not_written() -> None:
    assert short_text(parse_query("sort:-theta")) == ""
    assert short_text(parse_query("sort:-new", MODELS), MODELS) == ""
    assert short_text(parse_query("sort:-theta", MODELS), MODELS) == "sort:-theta"
    assert short_text(parse_query('license:"a sort:-theta b"')) == 'license:"a sort:-theta b"'


def test_a_query_without_its_base_has_no_likeness() -> None:
    query = parse_query("fits:acme/a likeness>=0.5 type:organ sort:likeness")
    assert short_text(without(query, query.terms[2])) == "fits:acme/a likeness>=0.5 sort:likeness"
    assert short_text(without(query, query.terms[0])) == "type:organ"
    assert short_text(without(parse_query("fits:acme/a sort:-size"), query.terms[0])) == "sort:-size"
    both = parse_query("fits:acme/a kin:acme/b likeness>=0.5")
    assert without(both, both.terms[0]) == parse_query("kin:acme/b likeness>=0.5")
