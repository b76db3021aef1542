"""The relatives of a model among all visible ones, whatever its header says.

The organs that any model has at a few probed places are compared with ours; models with enough hits are then compared
in full. So the search reads a fingerprint an organ and probe, and what is compared in full is bounded. Probes do not
look at shapes, which would cost another look-up a row: fingerprints of other shapes agree by chance only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.fitting import likenesses
from organs.registry.catalog.queries.relatives import models_by_id, models_with, organs_at, organs_by_slot
from organs.registry.catalog.register.relatives import MeasuredEdge, record_measured
from organs.registry.catalog.tables import Model
from organs.registry.lineage import (
    Kinship,
    Organ,
    Similarity,
    Slot,
    correlations,
    is_another_encoding,
    probes,
    similarity,
)

PROBES_MAX = 8
HIT_MIN = 0.15
"""Two deviations of the noise (0.07) of one organ: one stranger's organ in sixty is a hit."""
PROBE_MIN = 0.1
"""Half of what is called related. Seven strangers' hits of eight make so much, or one organ that is the same."""
COMPARED_MAX = 32
"""Candidates that are compared in full, the best by their probes; so it also bounds the edges of a newcomer."""
COMPARED_TENSORS_MAX = 262_144
"""Tensors of all candidates together that are compared in full. Writers wait meanwhile; it takes some seconds."""


@dataclass(frozen=True, slots=True)
class Relative:
    """A model that is measurably alike."""

    model_id: int
    relation: str
    """`quantized` for one set of weights in two encodings, else `relative`. Neither has a direction."""
    similarity: Similarity


def find_relatives(session: Session, model: Model) -> list[Relative]:
    """The visible models that are related to `model`, most alike first; of equals the older. Adapters have none."""
    if model.kind != "model":
        return []
    own = organs_by_slot(session, model.id)
    scores = _probe_scores(session, model, own)
    order = sorted(scores, key=lambda candidate: (-scores[candidate], candidate))
    found = []
    for candidate in _within_limit(session, order[:COMPARED_MAX]):
        other = organs_by_slot(session, candidate)
        compared = similarity(own, other)
        if compared.kinship in (Kinship.CLOSE, Kinship.KIN):
            relation = "quantized" if is_another_encoding(own, other, compared) else "relative"
            found.append(Relative(candidate, relation, compared))
    return sorted(found, key=lambda relative: (-(relative.similarity.mean or 0.0), relative.model_id))


def record_relatives(session: Session, model: Model) -> list[Relative]:
    """Find the relatives of a model that became visible just now, and write an edge to each that it has none to."""
    found = find_relatives(session, model)
    known = likenesses(session, model.id)
    record_measured(session, (_edge(model, one) for one in found if one.model_id not in known))
    return found


def _within_limit(session: Session, candidates: Sequence[int]) -> list[int]:
    """Those of the candidates, the first before the others, that have COMPARED_TENSORS_MAX tensors together at most."""
    models = models_by_id(session, candidates)
    kept, left = [], COMPARED_TENSORS_MAX
    for candidate in candidates:
        if candidate in models and models[candidate].tensors <= left:
            left -= models[candidate].tensors
            kept.append(candidate)
    return kept


def _edge(model: Model, relative: Relative) -> MeasuredEdge:
    alike = relative.similarity
    older, younger = sorted((model.id, relative.model_id))
    return MeasuredEdge(younger, older, relative.relation, alike.mean or 0.0, alike.organ_count)


def _probe_scores(session: Session, model: Model, own: Mapping[Slot, Organ]) -> dict[int, float]:
    """The mean correlation over the probes, of the models in which it is enough; what is no hit counts as nothing."""
    places = probes(own, PROBES_MAX)
    sums: defaultdict[int, float] = defaultdict(float)
    for place in places:
        hits = _hits(session, place, own[place])
        for candidate, organ_id in models_with(session, place, hits):
            sums[candidate] += hits[organ_id]
    sums.pop(model.id, None)
    return {candidate: total / len(places) for candidate, total in sums.items() if total / len(places) >= PROBE_MIN}


def _hits(session: Session, place: Slot, own: Organ) -> dict[int, float]:
    """The organs at `place` that are like ours, and their correlation with it."""
    rows = organs_at(session, place)
    others = [(organ_id, values) for organ_id, values in rows if values is not None and own.fingerprint is not None]
    found = correlations(own.fingerprint or b"", [values for _, values in others])
    alike = {one: value for (one, _), value in zip(others, found, strict=True) if value is not None}
    same = {organ_id: 1.0 for organ_id, _ in rows if organ_id == own.identity}
    return {organ_id: value for organ_id, value in (alike | same).items() if value >= HIT_MIN}
