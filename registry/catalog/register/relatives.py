"""Edges between models: measured ones, and where declared ones lead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import insert
from sqlalchemy.orm import Session

from organs.registry.catalog.clock import now
from organs.registry.catalog.tables import Lineage


@dataclass(frozen=True, slots=True)
class MeasuredEdge:
    """A likeness of two models. The parent is the one that was registered first; that says nothing about descent."""

    child_id: int
    parent_id: int
    relation: str
    score: float
    """The mean correlation, -1 to 1."""
    compared: int
    """Of how many matrices it is the mean."""


def record_measured(session: Session, edges: Iterable[MeasuredEdge]) -> None:
    """Write measured edges."""
    rows = [
        {
            "child_model_id": edge.child_id,
            "parent_model_id": edge.parent_id,
            "relation": edge.relation,
            "evidence": "measured",
            "score": edge.score,
            "compared": edge.compared,
            "created_at": now(),
        }
        for edge in edges
    ]
    if rows:
        session.execute(insert(Lineage), rows)


def lead_declared_edge(session: Session, edge: Lineage, parent_id: int | None) -> None:
    """Let a declared edge lead to the model that its text is taken to mean, or to none."""
    assert edge.evidence == "declared"
    edge.parent_model_id = parent_id
    session.flush()
