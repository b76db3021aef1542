"""The lineage of a model: what is declared, recorded and measured, and where these disagree."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.composing import chimera_of
from organs.registry.catalog.queries.models import withdrawn_models
from organs.registry.catalog.queries.relatives import edges_of, models_by_id, organs_by_slot, parents_of
from organs.registry.catalog.tables import Lineage, Model
from organs.registry.entities.finding import Finding
from organs.registry.entities.lineage import LineageEdge, ModelLineage
from organs.registry.lineage import CLOSE, is_another_encoding, similarity
from organs.registry.relatives.findings import Declared, DeclaredEdge, findings, unexplained, withdrawn

EDGES_SHOWN = 200
EDGES_READ_MAX = 1000
"""Edges to parents, to children and to relatives (each up to this many) by which declared and measured are compared."""
PARENTS_COMPARED = 8
"""Declared parents that are compared on every reading. A hostile file may name any number."""
TENSORS_COMPARED = 16_384
"""Tensors of a model and its declared parents together that are compared on every reading. Larger models are compared
once, when they are published."""


def lineage_of(session: Session, model: Model) -> ModelLineage:
    """Return the first 200 edges of `model`: parents, then children, then measured relatives, most alike first.

    Beside them, the findings: where declared and measured disagree, and parents that were yanked or removed.
    """
    rows, count = edges_of(session, model.id, EDGES_READ_MAX)
    ends = {end for edge in rows for end in (edge.child_model_id, edge.parent_model_id) if end is not None}
    others = models_by_id(session, ends - {model.id})
    declared = _declared(session, model, rows, others)
    ordered = sorted(rows, key=lambda edge: _rank(edge, model))
    measured = {_other(edge, model) or 0: edge for edge in rows if edge.evidence == "measured"}
    undeclared = _undeclared(session, model, measured, others)
    return ModelLineage(
        model=model.full_name,
        edges=tuple(_edge(edge, model, others, declared) for edge in ordered[:EDGES_SHOWN]),
        left_out=max(0, count - EDGES_SHOWN),
        findings=(
            *withdrawn_findings(session, _parent_names(session, model, rows, others)),
            *findings(model.kind, list(declared.values()), undeclared, len(measured)),
        ),
    )


def withdrawn_findings(session: Session, names: Collection[str]) -> list[Finding]:
    """Return a finding for each of the models `names` that was yanked or removed."""
    rows = withdrawn_models(session, names)
    return [
        withdrawn(
            name, row.state, None if row.changed_at is None else row.changed_at.date().isoformat(), row.state_reason
        )
        for name in names
        if (row := rows.get(name)) is not None
    ]


def _parent_names(
    session: Session, model: Model, edges: Sequence[Lineage], others: Mapping[int, Model]
) -> dict[str, None]:
    """Return the full names of the registered parents, and all parents of a chimera.

    A chimera's record still names a parent that was removed.
    """
    chimera = chimera_of(session, model.id)
    composed = [] if chimera is None else json.loads(chimera.origins)["parents"]
    parents = [edge.parent_model_id or 0 for edge in edges if _direction(edge, model) == "parent"]
    return dict.fromkeys([*composed, *(others[one].full_name for one in parents if one in others)])


def _other(edge: Lineage, model: Model) -> int | None:
    """Return the model at the other end; None for a parent that is known only by its name."""
    return edge.parent_model_id if edge.child_model_id == model.id else edge.child_model_id


def _direction(edge: Lineage, model: Model) -> str:
    if edge.evidence == "measured":
        return "relative"
    return "parent" if edge.child_model_id == model.id else "child"


def _rank(edge: Lineage, model: Model) -> tuple[int, float, int]:
    return ("parent", "child", "relative").index(_direction(edge, model)), -(edge.score or 0.0), edge.id


def _edge(edge: Lineage, model: Model, others: Mapping[int, Model], declared: Mapping[int, Declared]) -> LineageEdge:
    other = others.get(_other(edge, model) or 0)
    compared = declared.get(edge.id)
    return LineageEdge(
        direction=_direction(edge, model),
        model=None if other is None else other.full_name,
        text=edge.parent_text,
        relation=edge.relation,
        evidence=edge.evidence,
        likeness=edge.score if compared is None else compared.likeness,
        compared=edge.compared if compared is None else compared.organ_count,
    )


def _declared(
    session: Session, model: Model, edges: Sequence[Lineage], others: Mapping[int, Model]
) -> dict[int, Declared]:
    """Return the parents that `model` declares, by edge, each compared with it."""
    result: dict[int, Declared] = {}
    declared = [edge for edge in edges if edge.evidence == "declared" and edge.child_model_id == model.id]
    left = TENSORS_COMPARED - model.tensors
    has_parent = any(edge.parent_model_id in others for edge in declared)
    own = organs_by_slot(session, model.id) if model.kind == "model" and has_parent and left > 0 else {}
    for edge in declared:
        parent = others.get(edge.parent_model_id or 0)
        text = edge.parent_text or ""
        if parent is None or not own or len(result) >= PARENTS_COMPARED or parent.tensors > left:
            result[edge.id] = Declared(text, edge.relation, None if parent is None else parent.full_name)
            continue
        left -= parent.tensors
        organs = organs_by_slot(session, parent.id)
        alike = similarity(own, organs)
        result[edge.id] = Declared(
            text,
            edge.relation,
            parent.full_name,
            alike.kinship,
            alike.mean,
            alike.organ_count,
            alike.first_count,
            is_another_encoding(own, organs, alike),
        )
    return result


def _undeclared(
    session: Session, model: Model, measured: Mapping[int, Lineage], others: Mapping[int, Model]
) -> dict[str, float]:
    """Return the close relatives that no declaration explains, by name with their likeness."""
    close = {
        other: edge.score or 0.0
        for other, edge in measured.items()
        if (edge.score or 0.0) >= CLOSE or edge.relation == "quantized"
    }
    known = {model.id, *others}
    declared = [
        DeclaredEdge(edge.child_model_id, edge.parent_text or "", edge.parent_model_id)
        for edge in parents_of(session, known, ("declared", "recorded"))
        if edge.child_model_id is not None
    ]
    titles = {one.id: one.title for one in (model, *others.values())}
    return {others[other].full_name: close[other] for other in unexplained(model.id, close, declared, titles)}
