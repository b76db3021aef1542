"""Chimeras as plain values: lines of a list, one by the digest of its lock, and what a model's page says of it."""

from __future__ import annotations

import json
from collections.abc import Iterable

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.chimeras import ChimeraPage, chimeras_by_lock, newest_verdicts
from organs.registry.catalog.queries.composing import chimera_of
from organs.registry.catalog.queries.models import model_by_name, withdrawn_models
from organs.registry.catalog.tables import Chimera, Model, Verdict
from organs.registry.entities.lineage import LineageEdge
from organs.registry.errors import BadName, NotFound
from organs.registry.names import parse_model_name
from organs.registry.present.chimera import chimera_values
from organs.registry.present.models import placements_values
from organs.registry.present.values import Values
from organs.registry.relatives.lineage import lineage_of


def chimeras_values(session: Session, page: ChimeraPage) -> Values:
    """A page of chimeras, each with its newest verdict."""
    verdicts = newest_verdicts(session, [model.id for model, _ in page.items])
    parents = {model.id: json.loads(chimera.origins)["parents"] for model, chimera in page.items}
    gone = withdrawn_models(session, {name for names in parents.values() for name in names})
    items = [_summary(model, chimera, verdicts.get(model.id)) for model, chimera in page.items]
    for item, names in zip(items, parents.values(), strict=True):
        item["withdrawn_parents"] = [name for name in names if name in gone]
    return {"items": items, "next": page.next}


def chimera_page(session: Session, prefix: str) -> Values:
    """The chimera whose lock has a digest that begins with `prefix`; raises BadDigest, NotFound, Ambiguous.

    One lock may stand under several names, as the same bytes: the oldest is shown, `also` has the others.
    """
    model, *others = chimeras_by_lock(session, prefix)
    values = chimera_values(session, model)
    assert values is not None
    edges = lineage_of(session, model).edges
    return values | {
        "also": [other.full_name for other in others],
        "title": model.title,
        "architecture": model.architecture,
        "tensors": model.tensors,
        "size_bytes": model.size_bytes,
        "mean_theta": model.mean_theta,
        "created_at": model.created_at.isoformat(),
        "made_into": made_into(edges),
    }


def chimera_organs(session: Session, prefix: str) -> list[Values]:
    """The organs of that chimera at their places, in order."""
    return placements_values(session, chimeras_by_lock(session, prefix)[0].id)


def chimera_brief(session: Session, model: Model) -> Values | None:
    """What a model's page says of it first, if it was composed here: its lock, prediction and newest verdict."""
    chimera = chimera_of(session, model.id)
    if chimera is None:
        return None
    verdict = newest_verdicts(session, [model.id]).get(model.id)
    return {
        "lock_id": chimera.lock_id,
        "prediction": json.loads(chimera.prediction),
        "verdict": None if verdict is None else {"verdict": verdict.verdict, "reason": verdict.reason},
    }


def lock_of_name(session: Session, name: object) -> str | None:
    """The digest of the lock of the chimera of that name; None where no chimera has it."""
    if not isinstance(name, str):
        return None
    try:
        chimera = chimera_of(session, model_by_name(session, parse_model_name(name)).id)
    except (BadName, NotFound):
        return None
    return None if chimera is None else chimera.lock_id


def made_into(edges: Iterable[LineageEdge]) -> list[Values]:
    """The models that were composed of one, out of the edges of its lineage, each with the acts."""
    found: dict[str, list[str]] = {}
    for edge in edges:
        if edge.direction == "child" and edge.evidence == "recorded" and edge.model is not None:
            found.setdefault(edge.model, []).append(edge.relation)
    return [{"model": name, "acts": acts} for name, acts in found.items()]


def _summary(model: Model, chimera: Chimera, verdict: Verdict | None) -> Values:
    prediction = json.loads(chimera.prediction)
    return {
        "name": model.full_name,
        "title": model.title,
        "lock_id": chimera.lock_id,
        "parents": json.loads(chimera.origins)["parents"],
        "usable": prediction["usable"],
        "score": prediction["score"],
        "verdict": None if verdict is None else verdict.verdict,
        "size_bytes": model.size_bytes,
        "mean_theta": model.mean_theta,
        "created_at": model.created_at.isoformat(),
    }
