"""Find the relatives of a model by its weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

from sqlalchemy.orm import Session

from organs.registry.anatomy import Slot
from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.relatives import (
    Edge,
    edges_without_change,
    likenesses,
    models_by_id,
    models_with,
    organs_at,
    organs_by_slot,
)
from organs.registry.catalog.register.lineage import record_measured, replace_measured
from organs.registry.catalog.tables import ModelRow
from organs.registry.kinds import WEIGHT_KINDS
from organs.registry.similarity import (
    ComparableOrgan,
    Kinship,
    Similarity,
    correlations,
    is_another_encoding,
    probes,
    similarity,
)

PROBES_MAX = 8
HIT_MIN = 0.15
"""Two standard deviations of the noise (0.07) of one organ: one unrelated organ in sixty is a hit."""
PROBE_MIN = 0.1
"""Half of the limit for related models. Seven chance hits of eight probes reach it, or one identical organ."""
COMPARED_MAX = 32
"""Candidates that are compared fully, the best by their probes; also the limit of edges of a new model."""
EDGES_PAGE = 100
"""Edges that are measured again in one transaction."""
COMPARED_TENSORS_MAX = 262_144
"""Tensors of all candidates together that are compared fully. It takes some seconds, and other writers wait."""


@dataclass(frozen=True, slots=True)
class Relative:
    """A model with measurably similar weights."""

    model_id: int
    relation: str
    """`quantized` for one set of weights in two encodings, else `relative`. Neither has a direction."""
    similarity: Similarity


def find_relatives(session: Session, model: ModelRow) -> list[Relative]:
    """Return the visible models related to `model`, the most similar first, then the oldest. Adapters have none."""
    if model.kind not in WEIGHT_KINDS:
        return []
    own = organs_by_slot(session, model.id)
    scores = probe_scores(session, own)
    scores.pop(model.id, None)
    order = sorted(scores, key=lambda candidate: (-scores[candidate], candidate))
    relatives = []
    models, left = models_by_id(session, order[:COMPARED_MAX]), COMPARED_TENSORS_MAX
    for candidate in order[:COMPARED_MAX]:
        if candidate not in models or models[candidate].tensors > left:
            continue
        left -= models[candidate].tensors
        relative = _relative(candidate, own, organs_by_slot(session, candidate))
        if relative.similarity.kinship in (Kinship.CLOSE, Kinship.KIN):
            relatives.append(relative)
    return sorted(relatives, key=lambda relative: (relative.similarity.distance, relative.model_id))


def record_relatives(session: Session, model: ModelRow) -> list[Relative]:
    """Find the relatives of a model that has just become visible, and write the missing edges to them."""
    relatives = find_relatives(session, model)
    linked = likenesses(session, model.id)
    record_measured(session, (_edge(model.id, relative) for relative in relatives if relative.model_id not in linked))
    return relatives


def measure_edges_again(catalog: Catalog) -> int:
    """Compute the change of measured edges that an older version wrote; return their number.

    Both models must have been measured again.
    """
    measured, after = 0, 0
    while True:
        found: dict[int, Edge] = {}
        with catalog.reading() as session:
            edges = edges_without_change(session, after, EDGES_PAGE)
            if not edges:
                return measured
            organs = lru_cache(maxsize=8)(partial(organs_by_slot, session))
            for edge in edges:
                child, parent = edge.child_model_id or 0, edge.parent_model_id or 0
                relative = _relative(parent, organs(child), organs(parent))
                if relative.similarity.change.mean is not None:
                    found[edge.id] = _edge(child, relative)
            after = edges[-1].id
        with catalog.writing() as session:
            replace_measured(session, found)
        measured += len(found)


def _relative(model_id: int, own: Mapping[Slot, ComparableOrgan], other: Mapping[Slot, ComparableOrgan]) -> Relative:
    """Return the model `model_id`, with the organs `other`, as a relative of a model with the organs `own`."""
    compared = similarity(own, other)
    return Relative(model_id, "quantized" if is_another_encoding(own, other, compared) else "relative", compared)


def _edge(model_id: int, relative: Relative) -> Edge:
    similar = relative.similarity
    older, younger = sorted((model_id, relative.model_id))
    mean, compared = similar.mean or 0.0, similar.organ_count
    return Edge(younger, older, relative.relation, similar.change.mean, score=mean, compared=compared)


def probe_scores(session: Session, own: Mapping[Slot, ComparableOrgan]) -> dict[int, float]:
    """Return the visible models with a mean correlation of at least PROBE_MIN; a probe that is no hit counts as 0."""
    places = probes(own, PROBES_MAX)
    sums: defaultdict[int, float] = defaultdict(float)
    for place in places:
        hits = _hits(session, place, own[place])
        for candidate, organ_id in models_with(session, place, hits):
            sums[candidate] += hits[organ_id]
    return {candidate: total / len(places) for candidate, total in sums.items() if total / len(places) >= PROBE_MIN}


def _hits(session: Session, place: Slot, own: ComparableOrgan) -> dict[int, float]:
    """Return the organs at `place` that are similar to `own`, with their correlation."""
    rows = organs_at(session, place)
    others = [(organ_id, values) for organ_id, values in rows if values is not None and own.fingerprint is not None]
    values_of = correlations(own.fingerprint or b"", [values for _, values in others])
    similar = {organ_id: value for (organ_id, _), value in zip(others, values_of, strict=True) if value is not None}
    same = {organ_id: 1.0 for organ_id, _ in rows if organ_id == own.identity}
    return {organ_id: value for organ_id, value in (similar | same).items() if value >= HIT_MIN}
