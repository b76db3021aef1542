"""Transactions that are rolled back, and a comparison of stored counts with a recount."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import select
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.queries.reports import (
    counted_totals,
    running_totals,
)
from organs.registry.catalog.tables import ChimeraRow, FacetCount, Lineage, ModelRow, Placement
from organs.registry.catalog.vocabulary import theta_bin
from organs.registry.local import LocalRegistry


@contextmanager
def rolled_back(registry: LocalRegistry) -> Iterator[Session]:
    """Yield a session whose changes are rolled back at the end."""
    with registry.catalog.writing() as session:
        yield session
        session.rollback()


def model_named(session: Session, name: str) -> ModelRow:
    return model_by_text(session, name)


def assert_counts_are_right(session: Session) -> None:
    """Assert that totals, facet counts, visible rows and graft counts equal a count of all rows."""
    assert running_totals(session) == counted_totals(session)
    rows = session.execute(
        select(Placement.facet_id, Placement.theta, Placement.visible, ModelRow.state).join(
            ModelRow, ModelRow.id == Placement.model_id
        )
    ).all()
    assert all(visible == (state == "visible") for _, _, visible, state in rows)
    counted = Counter((facet, theta_bin(theta)) for facet, theta, visible, _ in rows if visible)
    kept = select(FacetCount.facet_id, FacetCount.theta_bin, FacetCount.placements).where(FacetCount.placements != 0)
    assert {(facet, lower): count for facet, lower, count in session.execute(kept)} == counted
    assert {model.id: model.grafts for model in session.scalars(select(ModelRow))} == _grafts(session)


def _grafts(session: Session) -> Counter[int]:
    edges = session.execute(
        select(Lineage.parent_model_id, ChimeraRow.base_model_id)
        .join(ChimeraRow, ChimeraRow.model_id == Lineage.child_model_id)
        .join(ModelRow, ModelRow.id == ChimeraRow.model_id)
        .where(ModelRow.state == "visible", Lineage.evidence == "recorded")
        .distinct()
    ).all()
    found = Counter(dict.fromkeys(session.scalars(select(ModelRow.id)), 0))
    found.update(parent for parent, base in edges if parent is not None and parent != base)
    return found
