"""Edges of lineage that were measured, and those whose parent was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import update
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.relatives import Edge, derivations
from organs.registry.catalog.rows import insert_all
from organs.registry.catalog.tables import Derivation, Lineage, now


def record_measured(session: Session, edges: Iterable[Edge]) -> None:
    """Write measured edges."""
    rows = [
        {
            "child_model_id": edge.child_id,
            "parent_model_id": edge.parent_id,
            "relation": edge.relation,
            "evidence": "measured",
            "score": edge.score,
            "compared": edge.compared,
            "change": edge.change,
            "created_at": now(),
        }
        for edge in edges
    ]
    insert_all(session, Lineage, rows)


def replace_measured(session: Session, edges: Mapping[int, Edge]) -> None:
    """Write measured edges again, by the ids of their rows; those of removed models are gone."""
    for row_id, edge in edges.items():
        values = {"relation": edge.relation, "score": edge.score, "compared": edge.compared, "change": edge.change}
        session.execute(update(Lineage).where(Lineage.id == row_id).values(values))


def record_matched(session: Session, shares: Mapping[int, float]) -> None:
    """Write the shares of equal blocks into measured edges, by the ids of their rows."""
    for row_id, share in shares.items():
        session.execute(update(Lineage).where(Lineage.id == row_id).values(matched=share))


def record_derivations(session: Session, rows: Sequence[Derivation]) -> tuple[int, int]:
    """Write what is proved of pairs of organs, unless as many blocks are known to be equal.

    Return the numbers of equal and of all blocks, as they are recorded then.
    """
    known = derivations(session, [row.organ_id for row in rows])
    kept = []
    for row in rows:
        best = known.get((row.organ_id, row.source_id))
        kept.append(best if best is not None and best.equal_blocks >= row.equal_blocks else session.merge(row))
    session.flush()
    return sum(row.equal_blocks for row in kept), sum(row.blocks for row in kept)


def resolve_declared_edge(session: Session, edge: Lineage, parent_id: int | None) -> None:
    """Set the parent model of a declared edge; None if its text names no model of this registry."""
    assert edge.evidence == "declared"
    edge.parent_model_id = parent_id
    session.flush()
