"""The lineage of a model as plain values: what is declared, recorded and measured, up and down, and what disagrees."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.composing import chimera_of
from organs.registry.catalog.queries.models import withdrawn_models
from organs.registry.catalog.queries.relatives import edges_of, models_by_id, organs_by_slot, parents_of
from organs.registry.catalog.tables import Lineage, Model
from organs.registry.lineage import CLOSE, is_another_encoding, similarity
from organs.registry.present.values import Values
from organs.registry.relatives.findings import Declared, DeclaredEdge, findings, unexplained, withdrawn

EDGES_SHOWN = 200
EDGES_READ_MAX = 1000
"""Edges to parents, to children and to relatives, of each as many, by which declared and measured are compared."""
PARENTS_COMPARED = 8
"""Declared parents that are compared on every reading; nobody names more but to waste our time."""
TENSORS_COMPARED = 16_384
"""Tensors of a model and its declared parents together that are compared on every reading. Larger models are compared
once, when they are published."""


def lineage_values(session: Session, model: Model) -> Values:
    """`lineage`, a list of edges, parents first, then children, then measured relatives, the most alike first.

    `lineage_left_out` counts the edges beyond the first 200, and `findings` says where declared and measured disagree.
    """
    shown, count = edges_of(session, model.id, EDGES_READ_MAX)
    ends = {end for edge in shown for end in (edge.child_model_id, edge.parent_model_id) if end is not None}
    others = models_by_id(session, ends - {model.id})
    declared = _declared(session, model, shown, others)
    ordered = sorted(shown, key=lambda edge: _rank(edge, model))
    values = [_edge_values(edge, model, others, declared) for edge in ordered]
    measured = {_other(edge, model) or 0: edge for edge in shown if edge.evidence == "measured"}
    undeclared = _undeclared(session, model, measured, others)
    return {
        "lineage": values[:EDGES_SHOWN],
        "lineage_left_out": max(0, count - EDGES_SHOWN),
        "findings": [
            *withdrawn_findings(session, parent_names(session, model, shown, others)),
            *findings(model.kind, list(declared.values()), undeclared, len(measured)),
        ],
    }


def parent_names(
    session: Session, model: Model, edges: Sequence[Lineage], others: Mapping[int, Model]
) -> dict[str, None]:
    """Return the full names of the registered parents: those that are declared or recorded, and those of a chimera,
    which stay known when a parent is removed."""
    chimera = chimera_of(session, model.id)
    composed = [] if chimera is None else json.loads(chimera.origins)["parents"]
    parents = [edge.parent_model_id or 0 for edge in edges if _direction(edge, model) == "parent"]
    return dict.fromkeys([*composed, *(others[one].full_name for one in parents if one in others)])


def withdrawn_findings(session: Session, names: Collection[str]) -> list[Values]:
    """Return a finding for each of the models `names` that was yanked or removed."""
    found = withdrawn_models(session, names)
    gone = [(name, found[name]) for name in names if name in found]
    return [withdrawn(name, model.state, _day(model.changed_at), model.state_reason) for name, model in gone]


def _day(moment: datetime | None) -> str | None:
    return None if moment is None else moment.date().isoformat()


def _other(edge: Lineage, model: Model) -> int | None:
    """The model at the other end; None for a parent that is known by its name only."""
    return edge.parent_model_id if edge.child_model_id == model.id else edge.child_model_id


def _direction(edge: Lineage, model: Model) -> str:
    if edge.evidence == "measured":
        return "relative"
    return "parent" if edge.child_model_id == model.id else "child"


def _rank(edge: Lineage, model: Model) -> tuple[int, float, int]:
    return ("parent", "child", "relative").index(_direction(edge, model)), -(edge.score or 0.0), edge.id


def _edge_values(edge: Lineage, model: Model, others: Mapping[int, Model], declared: Mapping[int, Declared]) -> Values:
    other = others.get(_other(edge, model) or 0)
    compared = declared.get(edge.id)
    return {
        "direction": _direction(edge, model),
        "model": None if other is None else other.full_name,
        "text": edge.parent_text,
        "relation": edge.relation,
        "evidence": edge.evidence,
        "score": edge.score if compared is None else compared.score,
        "compared": edge.compared if compared is None else compared.organ_count,
    }


def _declared(
    session: Session, model: Model, edges: Sequence[Lineage], others: Mapping[int, Model]
) -> dict[int, Declared]:
    """The parents that `model` declares, by edge, each compared with it."""
    found: dict[int, Declared] = {}
    declared = [edge for edge in edges if edge.evidence == "declared" and edge.child_model_id == model.id]
    left = TENSORS_COMPARED - model.tensors
    has_parent = any(edge.parent_model_id in others for edge in declared)
    own = organs_by_slot(session, model.id) if model.kind == "model" and has_parent and left > 0 else {}
    for edge in declared:
        parent = others.get(edge.parent_model_id or 0)
        text = edge.parent_text or ""
        if parent is None or not own or len(found) >= PARENTS_COMPARED or parent.tensors > left:
            found[edge.id] = Declared(text, edge.relation, None if parent is None else parent.full_name)
            continue
        left -= parent.tensors
        organs = organs_by_slot(session, parent.id)
        alike = similarity(own, organs)
        found[edge.id] = Declared(
            text,
            edge.relation,
            parent.full_name,
            alike.kinship,
            alike.mean,
            alike.organ_count,
            alike.first_count,
            is_another_encoding(own, organs, alike),
        )
    return found


def _undeclared(
    session: Session, model: Model, measured: Mapping[int, Lineage], others: Mapping[int, Model]
) -> dict[str, float]:
    """The close relatives that no declaration explains, by name."""
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
