"""Tests of findings where declared and measured lineage disagree."""

from __future__ import annotations

import pytest

from organs.registry.catalog.queries.relatives import StatedEdge
from organs.registry.relatives.lineage import (
    Declared,
    findings,
    unexplained,
)
from organs.registry.similarity import Kinship


def parent(
    kinship: Kinship | None, score: float | None, relation: str = "finetune", *, is_encoding: bool = False
) -> Declared:
    return Declared("Org/Base", relation, "local/base@1", kinship, score, 29, 30, is_encoding)


@pytest.mark.parametrize(
    ("kind", "declared", "relatives", "expected"),
    [
        ("model", parent(Kinship.CLOSE, 0.99), 0, None),
        ("model", parent(Kinship.KIN, 0.968, "quantized", is_encoding=True), 0, None),
        ("model", parent(Kinship.KIN, 0.5), 0, ("parent-loosely-related", "info")),
        ("model", parent(Kinship.KIN, 0.5, "quantized"), 0, ("parent-loosely-related", "warn")),
        ("model", parent(Kinship.UNRELATED, 0.01), 0, ("parent-unrelated", "warn")),
        ("model", parent(Kinship.INCOMPARABLE, None), 0, ("parent-not-comparable", "info")),
        ("model", parent(None, None), 0, None),
        ("model", Declared("Org/Base", "finetune", None), 0, ("parent-not-registered", "info")),
        ("model", None, 0, ("no-known-relatives", "info")),
        ("model", None, 1, None),
        ("vocabulary", None, 0, None),
        ("adapter", None, 0, ("no-base-named", "warn")),
        ("adapter", parent(None, None, "adapter"), 0, None),
    ],
)
def test_declarations_are_checked_against_the_weights(
    kind: str, declared: Declared | None, relatives: int, expected: tuple[str, str] | None
) -> None:
    found = findings(kind, [] if declared is None else [declared], {}, relatives)
    assert [(finding.code, finding.severity) for finding in found] == ([] if expected is None else [expected])


def test_sentences_name_the_parent_the_number_and_how_much_was_compared() -> None:
    (unrelated,) = findings("model", [parent(Kinship.UNRELATED, 0.012)], {}, 0)
    assert unrelated.sentence == (
        "It names local/base@1 as its parent, but their weights at the same places are not related: "
        "the mean correlation is 0.01 over 29 of 30 matrices."
    )
    assert (unrelated.severity, unrelated.models, unrelated.score) == ("warn", ("local/base@1",), 0.012)
    (absent,) = findings("model", [Declared("Org/Base", "finetune", None)], {}, 0)
    assert "'Org/Base'" in absent.sentence
    assert absent.severity == "info"


@pytest.mark.parametrize("relation", ["quantized", "relative"])
def test_a_model_that_declares_itself_gets_a_finding_that_the_original_is_missing(relation: str) -> None:
    (finding,) = findings("model", [Declared("Zoo A v1.0", relation, None)], {}, 1)
    assert finding.code == "parent-not-registered"
    assert finding.sentence == (
        "It names itself, 'Zoo A v1.0', as quantisations often do; the original is not registered here."
    )


def test_undeclared_close_relatives_are_one_finding() -> None:
    close = {f"local/m{number}@1": 0.98 + number / 1000 for number in (4, 3, 2, 1, 0)}
    (finding,) = findings("model", [], close, 5)
    assert finding.code == "close-relative-not-declared"
    assert finding.models == tuple(f"local/m{number}@1" for number in (4, 3, 2, 1, 0))
    assert "local/m4@1, local/m3@1, local/m2@1 and 2 more" in finding.sentence


def test_a_close_relative_is_explained_by_any_chain_of_declarations() -> None:
    declared = [
        StatedEdge(2, 1, "Base"),
        StatedEdge(3, 1, "Base"),
        StatedEdge(4, None, "Absent"),
        StatedEdge(5, None, "ABSENT"),
        StatedEdge(6, 2, "Tuned"),
    ]
    titles = {7: "Base", 1: "base", 8: None, 9: ""}
    assert unexplained(2, {1, 3, 6, 7}, declared, titles) == set()
    assert unexplained(4, {5}, declared, titles) == set()
    assert unexplained(2, {4, 8, 9}, declared, titles) == {4, 8, 9}
    assert unexplained(8, {9}, [], titles) == {9}, "two models without a title are not of one title"
