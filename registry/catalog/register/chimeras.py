"""What is known of a chimera beside its model: its recipe and findings, its lineage, how its organs were computed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import update
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.composing import organ_ids
from organs.registry.catalog.queries.published import donors_of
from organs.registry.catalog.records import ChimeraRecord, ComputationRecord, OrganKey
from organs.registry.catalog.tables import Chimera, Computation, Lineage, Model
from organs.registry.catalog.upsert import insert_missing


def register_chimera(session: Session, model: Model, record: ChimeraRecord) -> None:
    """Write `record` beside `model`, which has been registered in the same transaction."""
    session.add(
        Chimera(
            model_id=model.id,
            lock_id=record.lock_id,
            base_model_id=record.base_model_id,
            recipe=record.recipe,
            findings=record.findings,
            prediction=record.prediction,
            origins=record.origins,
        )
    )
    for parent_id, relation in dict.fromkeys(record.parents):
        session.add(_edge(model.created_at, relation, child_model_id=model.id, parent_model_id=parent_id))
    session.flush()
    if model.state == "visible":
        count_grafts(session, model)
    keys = {key for one in record.computations for key in (one.organ, *(source for source, _ in one.sources))}
    ids = organ_ids(session, keys)
    for one in record.computations:
        _insert_computation(session, one, ids, model.created_at)
    session.flush()


def count_grafts(session: Session, model: Model, sign: int = 1) -> None:
    """Add (or, with `sign` -1, take away) `model`, if it is a chimera, from the counts of those it has organs of."""
    donors = session.scalars(donors_of(model.id)).all()
    session.execute(update(Model).where(Model.id.in_(donors)).values(grafts=Model.grafts + sign))


def _insert_computation(
    session: Session, record: ComputationRecord, ids: Mapping[OrganKey, int], made_at: datetime
) -> None:
    """An organ that two computations give is recorded with both."""
    organ_id = ids[record.organ]
    insert_missing(session, Computation, [{"key": record.key, "organ_id": organ_id, "made": record.made}])
    for source, relation in dict.fromkeys(record.sources):
        if source in ids and ids[source] != organ_id:
            edge = _edge(made_at, relation, child_organ_id=organ_id, parent_organ_id=ids[source])
            session.add(edge)


def _edge(created_at: datetime, relation: str, **ends: int) -> Lineage:
    return Lineage(relation=relation, evidence="recorded", created_at=created_at, **ends)
