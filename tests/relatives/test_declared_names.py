"""Tests of matching a registered model with the parent that a header names."""

from __future__ import annotations

import pytest

from organs.registry.relatives.declared import (
    PARENTS_MAX,
    DeclaredParent,
    Identity,
    Match,
    match,
    numbered_parents,
    stated_relation,
)

ZOO = Identity("local", "Zoo-A-v1.0-F16", "Zoo A", "llama", "Organ Registry", "v1.0", "https://example.org/zoo/a")


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (DeclaredParent("organ registry", "zoo a", "V1.0", ""), Match(False, True, True)),
        (DeclaredParent("", "ZOO-A", "", ""), Match(False, False, False)),
        (DeclaredParent("", "zoo-a-v1.0-f16", "", ""), Match(False, False, False)),
        (DeclaredParent("local", "Zoo A", "", ""), Match(False, True, False)),
        (DeclaredParent("", "", "", "https://example.org/zoo/a"), Match(True, False, False)),
        (DeclaredParent("", "", "", "https://hub.example/Local/Zoo-A-v1.0-F16/"), Match(True, False, False)),
        (DeclaredParent("Somebody", "Zoo A", "", "https://example.org/zoo/a"), Match(True, False, False)),
    ],
)
def test_a_declaration_matches_by_name_or_by_address(declared: DeclaredParent, expected: Match) -> None:
    assert match(declared, ZOO) == expected


@pytest.mark.parametrize(
    "declared",
    [
        DeclaredParent("", "Zoo", "", ""),
        DeclaredParent("", "Zoo A Code", "", ""),
        DeclaredParent("", "Zoo A", "v0.1", ""),
        DeclaredParent("Somebody", "Zoo A", "", ""),
        DeclaredParent("", "Zoo B", "", "https://example.org/zoo/a"),
        DeclaredParent("", "", "", "https://example.org/zoo/b"),
        DeclaredParent("", "", "", ""),
        DeclaredParent("", "·", "", "//"),
    ],
)
def test_another_name_version_or_organization_is_another_model(declared: DeclaredParent) -> None:
    assert match(declared, ZOO) is None
    assert match(declared, Identity("", "", "")) is None


def test_the_more_specific_match_ranks_higher() -> None:
    by_address, by_organization = Match(True, False, False), Match(False, True, False)
    by_version, by_name = Match(False, False, True), Match(False, False, False)
    assert sorted([by_address, by_name, by_organization, by_version]) == [
        *(by_name, by_version, by_organization, by_address)
    ]


def test_parents_are_read_in_order_and_a_number_may_be_left_out() -> None:
    texts = {
        "general.base_model.0.name": "First",
        "general.base_model.2.organization": "Org",
        "general.base_model.2.name": "Third",
        "general.base_model.2.version": "2",
        "general.base_model.3.repo_url": "https://example.org/x",
        "general.base_model.4.version": "says nothing alone",
        f"general.base_model.{PARENTS_MAX}.name": "one too many",
    }
    parents = [(number, parent.text) for number, parent in numbered_parents(texts)]
    assert parents == [(0, "First"), (2, "Org/Third 2"), (3, "https://example.org/x")]


@pytest.mark.parametrize(
    ("kind", "base", "relation"),
    [
        ("model", "acme/Some-Base", "quantized"),
        ("model", "acme/some base@2", "quantized"),
        ("model", "acme/other", "finetune"),
        ("adapter", "acme/Some-Base", "adapter"),
    ],
)
def test_a_stated_base_that_the_header_names_too_has_the_relation_that_the_header_gives(
    kind: str, base: str, relation: str
) -> None:
    assert stated_relation(kind, base, [("Elsewhere/Some Base", "quantized")]) == relation
