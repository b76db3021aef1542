"""What can be chosen while a chimera is composed: its cells, and the candidates and adapters for them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from organs.registry.anatomy import OrganType
from organs.registry.catalog.queries.composing import CellOrgan as CellOrganRow
from organs.registry.catalog.queries.composing import cell_organs
from organs.registry.catalog.queries.fitting import likenesses
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.catalog.queries.relatives import models_by_id
from organs.registry.catalog.queries.search import search_models, search_organs
from organs.registry.catalog.search import MODELS, parse_query
from organs.registry.compose.compatibility import check_adapter
from organs.registry.compose.models import (
    Library,
    Parent,
    Part,
)
from organs.registry.compose.plan import PlannedPart, mean_of
from organs.registry.digest import Digest
from organs.registry.entities.finding import Severity, in_order
from organs.registry.entities.plan import AdapterChoice, Candidate, Candidates, CellOrgan, CellTotals, TypeTotals
from organs.registry.errors import TooCostly
from organs.registry.lineage import Organ, Similarity, Slot, similarity
from organs.registry.names import parse_model_name

CANDIDATES_MAX = 12
"""Models that are shown for one cell."""
THETA = "-theta"
LOOKED_AT_MAX = 600
"""Organs that are looked at to find them, the best first; all that they bring are as many at most."""
ADAPTERS_EXAMINED_MAX = 12
ALIKE = "-alike"
"""The order of candidates by likeness; the others are those of a search for organs."""
COMPARED_MAX = 48
"""Models whose likeness is looked at for one cell: relatives of the base, then those that a search finds first."""
NEWEST_ADAPTERS = 50
"""Adapters of any architecture among which those are looked for."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The organs of one type in one block of a tower; `block` is None outside the blocks."""

    type: str
    block: int | None
    tower: str = "text"

    @classmethod
    def of(cls, part: Part) -> Cell:
        """The cell in which `part` is."""
        return cls(part.place.type.value, part.place.block, part.place.tower.value)

    def __str__(self) -> str:
        block = "none" if self.block is None else str(self.block)
        return f"{self.type}:{block}" + (f":{self.tower}" if self.tower != "text" else "")


def cells_of(parts: Iterable[PlannedPart]) -> tuple[CellTotals, ...]:
    """Return the organs of a plan by cell."""
    cells: dict[Cell, list[PlannedPart]] = {}
    for part in parts:
        cells.setdefault(Cell.of(part.before), []).append(part)
    return tuple(_cell(cell, own) for cell, own in cells.items())


def types_of(parts: Iterable[PlannedPart]) -> tuple[TypeTotals, ...]:
    """Return the organs of a plan by type, over all blocks."""
    types: dict[str, list[PlannedPart]] = {}
    for part in parts:
        types.setdefault(part.before.place.type.value, []).append(part)
    order = [kind.value for kind in OrganType]
    return tuple(TypeTotals(type=kind, **_totals(types[kind])) for kind in sorted(types, key=order.index))


def candidates_for(session: Session, base: Parent, cell: Cell, order: str) -> Candidates:
    """Return the models with organs for the cell of `base`, best first by `order` (ALIKE, `-theta`).

    Raises BadQuery for an order that is not known.
    """
    own = {part.place.slot: part for part in base.parts if Cell.of(part) == cell}
    block = "none" if cell.block is None else cell.block
    query = f"fits:{base.label} type:{cell.type} block:{block} tower:{cell.tower}"
    names, more = _givers(session, base, query, order)
    looked_at = names[: COMPARED_MAX if order == ALIKE else CANDIDATES_MAX]
    ids = [model_by_name(session, parse_model_name(name)).id for name in looked_at]
    brought: dict[str, list[CellOrganRow]] = {name: [] for name in looked_at}
    for organ in cell_organs(session, ids, cell.type, cell.tower, cell.block) if ids else ():
        brought[organ.model].append(organ)
    if order == ALIKE:
        looked_at.sort(key=lambda name: -(_likeness(own, brought[name]).mean or 0.0))
    shown = looked_at[:CANDIDATES_MAX]
    fitting: set[tuple[str, str]] = set()
    if shown:
        fits = search_organs(session, parse_query(f"{query} model:{','.join(shown)}"), LOOKED_AT_MAX)
        fitting = {(organ.model, organ.slot) for organ in fits.items}
    return Candidates(
        cell=str(cell),
        type=cell.type,
        block=cell.block,
        tower=cell.tower,
        slots=tuple(own),
        query=query,
        items=tuple(_candidate(own, name, brought[name], fitting) for name in shown),
        more=more or len(names) > len(shown),
    )


def adapters_for(session: Session, base: Parent, library: Library) -> tuple[AdapterChoice, ...]:
    """Return the newest adapters that can be merged into `base`, each with its findings.

    Only adapters that state the base's architecture are looked at, as many as the budget of `library` allows. Raises
    StoreError.
    """
    newest = search_models(session, parse_query("kind:adapter", MODELS), NEWEST_ADAPTERS).items
    same = [model.name for model in newest if model.architecture == base.header.architecture]
    found = []
    for name in same[:ADAPTERS_EXAMINED_MAX]:
        try:
            adapter = library.parent(name)
        except TooCostly:
            break
        findings = check_adapter(base, adapter)
        if not any(one.severity is Severity.REFUSE for one in findings):
            found.append(AdapterChoice(model=name, findings=in_order(findings)))
    return tuple(found)


def _cell(cell: Cell, parts: Sequence[PlannedPart]) -> CellTotals:
    donors = [part.donor.label for part in parts if part.donor is not None]
    adapters = [adapter.label for part in parts for adapter in part.adapters]
    return CellTotals(
        cell=str(cell),
        type=cell.type,
        block=cell.block,
        tower=cell.tower,
        slots=tuple(part.before.place.slot for part in parts),
        models=tuple(dict.fromkeys([*donors, *adapters])),
        purified=sum(part.computation is not None and part.computation.method is not None for part in parts),
        **_totals(parts),
    )


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


def _givers(session: Session, base: Parent, query: str, order: str) -> tuple[list[str], bool]:
    """The models that the query finds organs of, in that order, and whether there are more."""
    by = THETA if order == ALIKE else order
    page = search_organs(session, parse_query(f"{query} sort:{by}"), LOOKED_AT_MAX)
    names = [organ.model for organ in page.items]
    if order == ALIKE:
        names = [*_relatives(session, base, query), *names]
    return list(dict.fromkeys(names)), page.next is not None


def _relatives(session: Session, base: Parent, query: str) -> list[str]:
    """Those of them that are known to be like the base, the nearest first."""
    alike = likenesses(session, base.model_id or 0)
    models = models_by_id(session, heapq.nlargest(COMPARED_MAX, alike, key=lambda one: alike[one]))
    if not models:
        return []
    names = {model.full_name: alike[model_id] for model_id, model in models.items()}
    page = search_organs(session, parse_query(f"{query} model:{','.join(names)}"), LOOKED_AT_MAX)
    return sorted({organ.model for organ in page.items}, key=lambda name: (-names[name], name))


def _candidate(
    own: dict[str, Part], model: str, organs: Sequence[CellOrganRow], fitting: set[tuple[str, str]]
) -> Candidate:
    """Return what one model has for the places `own` of the base, by slot."""
    placed = {organ.slot: organ for organ in organs if organ.slot in own}
    equal = {slot for slot, organ in placed.items() if _is_equal(own[slot], organ)}
    fits = {slot for slot in placed if (model, slot) in fitting}
    found = _likeness(own, organs)
    return Candidate(
        model=model,
        license=next((organ.license for organ in organs), None),
        fitting=len(fits),
        equal=len(equal),
        total=len(own),
        whole=fits | equal == own.keys(),
        theta=mean_of([organ.theta for organ in placed.values()]),
        spectral_signal=mean_of([organ.spectral_signal for organ in placed.values()]),
        likeness=found.mean,
        kinship=found.kinship.value,
        size_bytes=sum(organ.size_bytes for organ in placed.values()),
        organs=tuple(
            CellOrgan(name=one.name, slot=one.slot, digest=Digest(one.digest), dtype=one.dtype, theta=one.theta)
            for one in placed.values()
        ),
    )


def _likeness(own: dict[str, Part], organs: Sequence[CellOrganRow]) -> Similarity:
    """How alike what a model has for the places `own` is to what stands there."""
    slots = {organ.slot: organ for organ in organs if organ.slot in own}
    places: dict[str, Slot] = {slot: ("text", None, slot) for slot in slots}
    return similarity(
        {place: own[slot].organ for slot, place in places.items()},
        {place: _compared(slots[slot]) for slot, place in places.items()},
    )


def _is_equal(part: Part, organ: CellOrganRow) -> bool:
    return (part.digest, part.dtype.name, part.shape) == (organ.digest, organ.dtype, organ.shape)


def _compared(organ: CellOrganRow) -> Organ:
    return Organ("", organ.shape, organ.dtype, organ.fingerprint, organ.digest)
