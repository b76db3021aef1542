"""Rows of chimeras: recipe, findings, lineage, how organs were computed, and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import update
from sqlalchemy.orm import Session

from organs.registry.catalog.engine import insert_missing
from organs.registry.catalog.queries.models import donors_of
from organs.registry.catalog.queries.organs import organ_ids
from organs.registry.catalog.records import ChimeraRecord, ComputationRecord, OrganKey
from organs.registry.catalog.tables import Chimera, Computation, Lineage, Model, Score, Verdict, now
from organs.registry.catalog.vocabulary import shown_text


def register_chimera(session: Session, model: Model, record: ChimeraRecord) -> None:
    """Write `record` for `model`, which was registered in the same transaction."""
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
    keys = {computation.organ for computation in record.computations}
    keys |= {source for computation in record.computations for source, _ in computation.sources}
    ids = organ_ids(session, keys)
    for computation in record.computations:
        _insert_computation(session, computation, ids, model.created_at)
    session.flush()


def count_grafts(session: Session, model: Model, sign: int = 1) -> None:
    """Add `model`, if it is a chimera, to the counts of its donors; with `sign` -1, subtract it."""
    donors = session.scalars(donors_of(model.id)).all()
    session.execute(update(Model).where(Model.id.in_(donors)).values(grafts=Model.grafts + sign))


def _insert_computation(
    session: Session, record: ComputationRecord, ids: Mapping[OrganKey, int], created_at: datetime
) -> None:
    """Write the row of one computation and its lineage. An organ with two computations has two rows."""
    organ_id = ids[record.organ]
    insert_missing(session, Computation, [{"key": record.key, "organ_id": organ_id, "made": record.made}])
    for source, relation in dict.fromkeys(record.sources):
        if source in ids and ids[source] != organ_id:
            session.add(_edge(created_at, relation, child_organ_id=organ_id, parent_organ_id=ids[source]))


def _edge(created_at: datetime, relation: str, **ends: int) -> Lineage:
    return Lineage(relation=relation, evidence="recorded", created_at=created_at, **ends)


def record_score(
    session: Session,
    file_digest: str,
    text_digest: str,
    tokens: int,
    runtime: str,
    reading: str,
    perplexity: float | None,
) -> None:
    """Store the reading (JSON) of a file on a text in windows of `tokens`, in place of an earlier one."""
    key = {"file_digest": file_digest, "text_digest": text_digest, "tokens": tokens, "runtime": runtime}
    values = {"reading": reading, "perplexity": perplexity, "created_at": now()}
    insert_missing(session, Score, [key | values])
    session.execute(update(Score).filter_by(**key).values(values))


def add_verdict(
    session: Session, model_id: int, runtime: str, verdict: str, reason: str, report: str, strength: int = 0
) -> int:
    """Store a verdict on a model; `report` is JSON. Return its id."""
    row = Verdict(
        model_id=model_id,
        runtime=shown_text(runtime, 256),
        verdict=verdict,
        reason=shown_text(reason),
        report=report,
        strength=strength,
        created_at=now(),
    )
    session.add(row)
    session.flush()
    return row.id
