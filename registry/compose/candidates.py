"""The organs of a plan by cell, and the models and adapters from which a person can choose for a cell."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy.orm import Session

from organs.registry.anatomy import OrganType, Slot
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.queries.organs import cell_organs
from organs.registry.catalog.queries.relatives import likenesses, models_by_id
from organs.registry.compose.adapters import check_adapter
from organs.registry.compose.assignment import Cell
from organs.registry.compose.parents import Library, Parent, Part
from organs.registry.compose.plan import Plan, PlannedPart, mean_of
from organs.registry.entities.finding import Severity, in_order
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.entities.plan import ALIKE, AdapterChoice, Candidate, Candidates, CellOrgan, CellTotals, TypeTotals
from organs.registry.errors import TooCostly
from organs.registry.names import parse_model_name
from organs.registry.search.language import MODELS, parse_query
from organs.registry.search.models import search_models
from organs.registry.search.rows import search_organs
from organs.registry.similarity import ComparableOrgan, Similarity, similarity

CANDIDATES_MAX = 12
"""Models in the list of one cell."""
THETA = "-theta"
EXAMINED_MAX = 600
"""Organs that a search for candidates examines, the best first. It is also the limit of organs that fit."""
ADAPTERS_EXAMINED_MAX = 12
COMPARED_MAX = 48
"""Models that are compared for one cell: relatives of the base, then the first models of a search."""
NEWEST_ADAPTERS = 50
"""The newest adapters of all architectures, among which those of the base's architecture are searched."""


def cells_of(parts: Iterable[PlannedPart]) -> tuple[CellTotals, ...]:
    """Return the organs of a plan by cell."""
    cells: dict[Cell, list[PlannedPart]] = {}
    for part in parts:
        cells.setdefault(Cell.of(part.before), []).append(part)
    return tuple(
        CellTotals(
            cell=str(cell),
            type=cell.type,
            block=cell.block,
            tower=cell.tower,
            slots=tuple(part.before.place.slot for part in own),
            models=tuple(
                dict.fromkeys(
                    [
                        *(part.donor.label for part in own if part.donor is not None),
                        *(model.label for part in own for model in (*part.merged, *part.adapters)),
                    ]
                )
            ),
            purified=sum(part.computation is not None and part.computation.method is not None for part in own),
            **_totals(own),
        )
        for cell, own in cells.items()
    )


def types_of(parts: Iterable[PlannedPart]) -> tuple[TypeTotals, ...]:
    """Return the organs of a plan by type, over all blocks."""
    types: dict[str, list[PlannedPart]] = {}
    for part in parts:
        types.setdefault(part.before.place.type.value, []).append(part)
    order = [kind.value for kind in OrganType]
    return tuple(TypeTotals(type=kind, **_totals(types[kind])) for kind in sorted(types, key=order.index))


def candidates_for(session: Session, plan: Plan, cell: Cell, order: str) -> Candidates:
    """Return the models with organs for a cell of the result of `plan`, the best first by `order` (ALIKE, `-theta`).

    For a block that was placed there, they are those for the block in its own model. Raises BadQuery for an unknown
    order.
    """
    own = {part.before.place.slot: part.before for part in plan.parts if Cell.of(part.before) == cell}
    base, block = plan.base, cell.block
    if plan.layers is not None and own and (origin := plan.layers.origin(next(iter(own.values())))) is not None:
        base, block = origin[0] or base, origin[1]
    query = f"fits:{base.label} type:{cell.type} block:{'none' if block is None else block} tower:{cell.tower}"
    page = search_organs(session, parse_query(f"{query} sort:{THETA if order == ALIKE else order}"), EXAMINED_MAX)
    alike = _relatives(session, base, query) if order == ALIKE else []
    names = list(dict.fromkeys([*alike, *(organ.model for organ in page.items)]))
    examined = names[: COMPARED_MAX if order == ALIKE else CANDIDATES_MAX]
    ids = [model_by_name(session, parse_model_name(name)).id for name in examined]
    offered: dict[str, list[tuple[PlacedOrgan, bytes | None]]] = {name: [] for name in examined}
    for organ, fingerprint in cell_organs(session, ids, cell.type, cell.tower, block) if ids else ():
        offered[organ.model].append((organ, fingerprint))
    if order == ALIKE:
        examined.sort(key=lambda name: _likeness(own, offered[name]).distance)
    selected = examined[:CANDIDATES_MAX]
    fitting: set[tuple[str, str]] = set()
    if selected:
        fits = search_organs(session, parse_query(f"{query} model:{','.join(selected)}"), EXAMINED_MAX)
        fitting = {(organ.model, organ.slot) for organ in fits.items}
    return Candidates(
        cell=str(cell),
        type=cell.type,
        block=cell.block,
        tower=cell.tower,
        slots=tuple(own),
        query=query,
        items=tuple(_candidate(own, name, offered[name], fitting) for name in selected),
        more=page.next is not None or len(names) > len(selected),
    )


def adapters_for(session: Session, base: Parent, library: Library) -> tuple[AdapterChoice, ...]:
    """Return the newest adapters that can be merged into `base`, each with its findings.

    Only adapters of the base's architecture are examined, as many as the budget of `library` allows. Raises StoreError.
    """
    newest = search_models(session, parse_query("kind:adapter", MODELS), NEWEST_ADAPTERS).items
    same = [model.name for model in newest if model.architecture == base.header.architecture]
    choices = []
    for name in same[:ADAPTERS_EXAMINED_MAX]:
        try:
            adapter = library.parent(name)
        except TooCostly:
            break
        findings = check_adapter(base, adapter)
        if not any(finding.severity is Severity.REFUSE for finding in findings):
            choices.append(AdapterChoice(model=name, findings=in_order(findings)))
    return tuple(choices)


def _totals(parts: Sequence[PlannedPart]) -> dict[str, Any]:
    """Return the members of Totals."""
    to_compute = sum(part.computation is not None for part in parts)
    taken = mean_of([part.source.theta for part in parts])
    return {
        "organs": len(parts),
        "changed": sum(bool(part.acts) for part in parts),
        "to_compute": to_compute,
        "theta_before": mean_of([part.before.theta for part in parts]),
        "theta": None if to_compute else taken,
        "theta_taken": taken,
        "size_bytes_before": sum(part.before.size_bytes for part in parts),
        "size_bytes": sum(part.spec.size_bytes for part in parts),
    }


def _relatives(session: Session, base: Parent, query: str) -> list[str]:
    """Return the known relatives of the base whose organs the query finds, the most similar first."""
    alike = likenesses(session, base.model_id or 0)
    models = models_by_id(session, heapq.nlargest(COMPARED_MAX, alike, key=lambda item: alike[item]))
    if not models:
        return []
    names = {model.full_name: alike[model_id] for model_id, model in models.items()}
    page = search_organs(session, parse_query(f"{query} model:{','.join(names)}"), EXAMINED_MAX)
    return sorted({organ.model for organ in page.items}, key=lambda name: (-names[name], name))


def _candidate(
    own: dict[str, Part], model: str, organs: Sequence[tuple[PlacedOrgan, bytes | None]], fitting: set[tuple[str, str]]
) -> Candidate:
    """Return the organs of one model for the places `own` of the base, by slot."""
    placed = {organ.slot: organ for organ, _ in organs if organ.slot in own}
    equal = {
        slot
        for slot, organ in placed.items()
        if (own[slot].digest, own[slot].dtype.name, own[slot].shape) == (organ.digest, organ.dtype, organ.shape)
    }
    fits = {slot for slot in placed if (model, slot) in fitting}
    likeness = _likeness(own, organs)
    return Candidate(
        model=model,
        license=next((organ.license for organ, _ in organs), None),
        fitting=len(fits),
        equal=len(equal),
        total=len(own),
        whole=fits | equal == own.keys(),
        theta=mean_of([organ.theta for organ in placed.values()]),
        spectral_signal=mean_of([organ.spectral_signal for organ in placed.values()]),
        likeness=likeness.mean,
        change=likeness.change.mean,
        size_bytes=sum(organ.size_bytes for organ in placed.values()),
        organs=tuple(
            CellOrgan(name=item.name, slot=item.slot, digest=item.digest, dtype=item.dtype, theta=item.theta)
            for item in placed.values()
        ),
    )


def _likeness(own: dict[str, Part], organs: Sequence[tuple[PlacedOrgan, bytes | None]]) -> Similarity:
    """Return the similarity of the organs of a model to the base's `own` organs at the same places."""
    theirs: dict[Slot, ComparableOrgan] = {
        ("text", None, organ.slot): ComparableOrgan("", organ.shape, organ.dtype, fingerprint, organ.digest)
        for organ, fingerprint in organs
        if organ.slot in own
    }
    return similarity({slot: own[slot[2]].organ for slot in theirs}, theirs)
