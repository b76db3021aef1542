"""Declared edges, led to the registered models that are meant; again whenever a model of such a name comes in.

What a declared edge leads to depends on what is registered, not on the order in which it came.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy.orm import Session

from registry.catalog.queries.relatives import (
    declared_edges_to,
    declared_parents_of,
    metadata_texts,
    models_by_id,
    organs_by_slot,
    visible_models_with_words,
)
from registry.catalog.register.relatives import lead_declared_edge
from registry.catalog.tables import Lineage, Model
from registry.catalog.vocabulary import shown_text
from registry.catalog.words import folded_words
from registry.lineage import similarity
from registry.relatives.declared import (
    IDENTITY_KEYS,
    PARENT_KEYS,
    DeclaredParent,
    Identity,
    Match,
    match,
    numbered_parents,
)

NAMESAKES_MAX = 200
"""Registered models of one name that are looked at."""
TIES_MAX = 8
"""Equally good candidates of which the most alike is looked for."""
FLOAT_MIN_BITS = 15.0
"""Bits a value from which on a file holds the weights unquantised."""
NAMES_KEPT = 16
"""Names whose bearers are kept while edges are led: thousands of edges may mean the same few."""


def resolve_declared(session: Session, newcomer: Model) -> None:
    """Lead the edges that `newcomer` declares, and those of others that may mean it, to the best registered model."""
    edges = declared_parents_of(session, [newcomer.id])
    if newcomer.kind == "model":
        edges += _edges_that_may_mean(session, newcomer)
    described = _described(session, {edge.child_model_id for edge in edges if edge.child_model_id is not None})
    bearers: dict[str, dict[int, _Described]] = {}
    for edge in edges:
        child = described.get(edge.child_model_id or 0)
        declared = None if child is None else child.declared(edge)
        if child is None or declared is None:
            continue
        parent = _best(session, child, declared, bearers)
        if parent != edge.parent_model_id:
            lead_declared_edge(session, edge, parent)


@dataclass(frozen=True, slots=True)
class _Described:
    """A model with what its header says of itself and of its parents."""

    model: Model
    identity: Identity
    parents: tuple[DeclaredParent, ...]

    def declared(self, edge: Lineage) -> DeclaredParent | None:
        """The parent that an edge of this model was made from."""
        return next((parent for parent in self.parents if shown_text(parent.text) == edge.parent_text), None)

    def is_copy(self) -> bool:
        """Whether it names itself as its parent, as quantisations do."""
        return any(match(parent, self.identity) is not None for parent in self.parents)


def _edges_that_may_mean(session: Session, newcomer: Model) -> list[Lineage]:
    """Declared edges of others, open or led to a namesake, in whose text the name of `newcomer` can stand."""
    names = [set(folded_words(name)) for name in (newcomer.name, newcomer.title or "")]
    names = [words for words in names if words]
    found = (visible_models_with_words(session, words, NAMESAKES_MAX) for words in names)
    namesakes = {model.id for models in found for model in models} - {newcomer.id}
    edges = declared_edges_to(session, namesakes)
    texts = {edge.parent_text or "" for edge in edges if edge.child_model_id != newcomer.id}
    fitting = {text for text in texts if any(words <= set(folded_words(text)) for words in names)}
    return [edge for edge in edges if edge.child_model_id != newcomer.id and edge.parent_text in fitting]


def _best(
    session: Session, child: _Described, declared: DeclaredParent, bearers: dict[str, dict[int, _Described]]
) -> int | None:
    """The registered model that is meant, or None. `bearers` are those of names that were looked up before.

    It is of the child's architecture and not the child; a child that names itself does not descend from another such
    copy. The best match wins, then complete models, then unquantised ones, then the most alike; at last the digest.
    """
    name = declared.name or " ".join(declared.repo_url.rstrip("/").split("/")[-2:])
    if name not in bearers:
        if len(bearers) >= NAMES_KEPT:
            bearers.clear()
        models = visible_models_with_words(session, folded_words(name), NAMESAKES_MAX)
        bearers[name] = _described(session, {model.id for model in models})
    others = bearers[name]
    copies = match(declared, child.identity) is not None
    ranked: dict[int, tuple[Match, bool, bool]] = {}
    for candidate in others.values():
        found = None if candidate.model.id == child.model.id else match(declared, candidate.identity)
        if found is None or _foreign(child, candidate) or (copies and candidate.is_copy()):
            continue
        ranked[candidate.model.id] = (found, candidate.model.complete, _bits_a_value(candidate.model) >= FLOAT_MIN_BITS)
    if not ranked:
        return None
    best = max(ranked.values())
    ties = [others[model_id].model for model_id, rank in ranked.items() if rank == best]
    return _most_alike(session, child.model, ties).id


def _foreign(child: _Described, candidate: _Described) -> bool:
    first, second = child.identity.architecture, candidate.identity.architecture
    return bool(first and second and first != second)


def _bits_a_value(model: Model) -> float:
    return 8 * model.size_bytes / max(model.parameters, 1)


def _most_alike(session: Session, child: Model, ties: list[Model]) -> Model:
    """Of equally good candidates the one whose weights are most like the child's, then the finest, then by digest."""
    ties = sorted(ties, key=lambda model: (-_bits_a_value(model), model.digest, model.id))[:TIES_MAX]
    if len(ties) == 1:
        return ties[0]
    own = organs_by_slot(session, child.id)
    alike = {model.id: similarity(own, organs_by_slot(session, model.id)).mean or 0.0 for model in ties}
    return max(ties, key=lambda model: alike[model.id])


def _described(session: Session, model_ids: Collection[int]) -> dict[int, _Described]:
    """Models with what their headers say of themselves and of their parents."""
    models = models_by_id(session, model_ids)
    texts = metadata_texts(session, models, (*IDENTITY_KEYS, *PARENT_KEYS))
    return {model.id: _described_by(model, texts[model.id]) for model in models.values()}


def _described_by(model: Model, texts: dict[str, str]) -> _Described:
    own = (texts.get(key, "") for key in IDENTITY_KEYS)
    identity = Identity(model.namespace, model.name, model.title or "", model.architecture or "", *own)
    return _Described(model, identity, tuple(parent for _, parent in numbered_parents(texts)))
