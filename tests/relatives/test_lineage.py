"""Tests of the lineage on the page of a model: names, both directions, findings."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy import insert, update

from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.tables import Lineage, ModelRow, now
from organs.registry.entities.base import decode, encode
from organs.registry.entities.lineage import LineageEdge, ModelLineage, merged_edges
from organs.registry.local import LocalRegistry
from organs.registry.relatives import lineage as relatives_lineage
from organs.registry.relatives.lineage import lineage_of
from tests.related_models import ingest_all, model_file, parent_entries, related_tensors

BASE = model_file("Base", related_tensors())


def lineage(registry: LocalRegistry, name: str) -> ModelLineage:
    """Return the lineage of a model, encoded and decoded as JSON."""
    with registry.catalog.reading() as session:
        shown = lineage_of(session, model_by_text(session, name))
    assert decode(encode(shown), ModelLineage) == shown
    return shown


def codes(registry: LocalRegistry, name: str) -> list[str]:
    return [finding.code for finding in lineage(registry, name).findings]


def edge(direction: str, model: str | None, evidence: str, likeness: float | None = None) -> LineageEdge:
    compared = None if likeness is None else 7
    return LineageEdge(
        direction=direction,
        model=model,
        text=None,
        relation="finetune",
        evidence=evidence,
        likeness=likeness,
        compared=compared,
    )


def test_a_declared_and_a_recorded_edge_to_one_model_are_merged() -> None:
    edges = [
        edge("parent", "me/a@1", "declared", 0.9),
        edge("parent", None, "declared"),
        edge("parent", None, "declared"),
        edge("parent", "me/a@1", "recorded"),
        edge("child", "me/b@1", "recorded"),
        edge("child", "me/b@1", "declared"),
        edge("relative", "me/b@1", "measured", 0.8),
        edge("relative", "me/c@1", "measured", 0.7),
    ]
    assert merged_edges(edges) == [
        edge("parent", "me/a@1", "recorded", 0.9),
        edge("parent", None, "declared"),
        edge("parent", None, "declared"),
        edge("child", "me/b@1", "recorded", 0.8),
        edge("relative", "me/c@1", "measured", 0.7),
    ]


def test_an_edge_is_shown_from_both_ends(registry: LocalRegistry, tmp_path: Path) -> None:
    tuned = model_file("Tuned", related_tensors(correlation=0.995), parent_entries("Base"))
    ingest_all(registry, tmp_path, base=BASE, tuned=tuned)
    above, measured = lineage(registry, "tuned").edges
    assert above == LineageEdge(
        direction="parent",
        model="local/base@1",
        text="Base",
        relation="finetune",
        evidence="declared",
        likeness=measured.likeness,
        change=pytest.approx(0.01, abs=0.002),
        compared=7,
    )
    assert (measured.direction, measured.evidence, measured.relation) == ("relative", "measured", "relative")
    below, back = lineage(registry, "base").edges
    assert (below.direction, below.model, below.evidence) == ("child", "local/tuned@1", "declared")
    assert back == replace(measured, model="local/tuned@1")
    assert codes(registry, "tuned") == codes(registry, "base") == []


def test_a_wrongly_declared_parent_is_detected(registry: LocalRegistry, tmp_path: Path) -> None:
    liar = model_file("Liar", related_tensors(seed=7), parent_entries("Base"))
    ingest_all(registry, tmp_path, base=BASE, liar=liar)
    assert codes(registry, "liar") == ["parent-unrelated"]
    ingest_all(registry, tmp_path, true=related_tensors(seed=7, correlation=0.999))
    assert codes(registry, "liar") == ["parent-unrelated", "close-relative-not-declared"]
    assert codes(registry, "true") == ["close-relative-not-declared"]
    assert codes(registry, "base") == ["no-known-relatives"], "what others say of it is theirs to answer for"


def test_a_parent_of_other_shapes_cannot_be_compared(registry: LocalRegistry, tmp_path: Path) -> None:
    only_norms = [(spec, data) for spec, data in related_tensors() if len(spec.shape) == 1]
    ingest_all(registry, tmp_path, base=BASE, odd=model_file("Odd", only_norms, parent_entries("Base")))
    assert codes(registry, "odd") == ["parent-not-comparable"]


@pytest.mark.parametrize("state", ["quarantined", "removed"])
def test_a_hidden_relative_is_not_shown(state: str, registry: LocalRegistry, tmp_path: Path) -> None:
    tuned = model_file("Tuned", related_tensors(correlation=0.995), parent_entries("Base"))
    ingest_all(registry, tmp_path, base=BASE, tuned=tuned)
    with registry.catalog.writing() as session:
        session.execute(update(ModelRow).where(ModelRow.name == "base").values(state=state))
    assert lineage(registry, "tuned").edges == ()


def test_a_recorded_parent_is_not_also_a_child_by_measurement_and_no_other_model_is_a_parent(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    coarse, twin = (model_file(name, related_tensors(dtype="Q4_0")) for name in ("Base", "Twin"))
    ingest_all(registry, tmp_path, coarse=coarse, twin=twin, fine=BASE)
    assert [edge.direction for edge in lineage(registry, "twin").edges] == ["parent", "relative"], "the weights say so"
    edge = {"child_model_id": 3, "parent_model_id": 1, "relation": "grafted", "evidence": "recorded"}
    with registry.catalog.writing() as session:
        session.execute(insert(Lineage), [edge | {"created_at": now()}])
    names = ("fine", "coarse", "twin")
    directions = {name: [edge.direction for edge in lineage(registry, name).edges] for name in names}
    assert directions == {
        "fine": ["parent", "parent", "relative"],
        "coarse": ["child", "child", "relative"],
        "twin": ["relative", "relative"],
    }


def test_more_edges_than_are_shown_are_counted(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = model_file("Merged", related_tensors(), parent_entries("X", "Y", "Z"))
    ingest_all(registry, tmp_path, merged=merged)
    monkeypatch.setattr(relatives_lineage, "EDGES_MAX", 2)
    lineage_page = lineage(registry, "merged")
    assert [edge.text for edge in lineage_page.edges] == ["X", "Y"]
    assert lineage_page.left_out == 1
    assert codes(registry, "merged") == ["parent-not-registered"] * 3
