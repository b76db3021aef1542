"""Families of models: descent, similarity, and parents that are not registered."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from organs.registry.catalog.cache import cached
from organs.registry.catalog.queries.relatives import (
    Edge,
    connected_models,
    edges_from,
    models_by_id,
    public_model_ids,
    unregistered_parents,
)
from organs.registry.catalog.rows import entity_of
from organs.registry.catalog.tables import ModelRow
from organs.registry.entities.lineage import Family, FamilyEdge, FamilyMember, FamilyPage, MissingParent
from organs.registry.relatives.lineage import descents_among
from organs.registry.similarity import Groups

FAMILY_MIN = 2
"""Members of the smallest family in lists."""
MEMBERS_MAX = 60
"""Members in the description of a family; the others are counted."""
MISSING_MAX = 20
"""Unregistered parents in the description of a family."""
TEXT_MAX_LENGTH = 200
"""Characters of the name of an unregistered parent. Names with an equal beginning of this length count as one."""


@dataclass(frozen=True, slots=True)
class Kin:
    """All families of public models, largest first, then by their oldest model; ids are in rising order.

    `edges` counts the edges of each model.
    """

    families: Sequence[tuple[int, ...]]
    edges: Mapping[int, int]


def families(session: Session, first: int, count: int) -> FamilyPage:
    """Return `count` families of two models or more, from place `first` on. `next` is the place of the next one."""
    kin, listed = model_families(session), listed_families(session)
    following = first + count
    return FamilyPage(
        items=tuple(_family(session, family, kin) for family in listed[first:following]),
        next=str(following) if following < len(listed) else None,
        count=len(listed),
    )


def listed_families(session: Session) -> list[tuple[int, ...]]:
    """Return the families that lists and counts have: those of two public models or more, as ids."""
    return [family for family in model_families(session).families if len(family) >= FAMILY_MIN]


def family_of(session: Session, model: ModelRow) -> Family:
    """Return the family of `model`, which may be a family of one."""
    kin = model_families(session)
    family = next((family for family in kin.families if model.id in family), (model.id,))
    return _family(session, family, kin, keep=model.id)


def model_families(session: Session) -> Kin:
    """Return all families of public models, as ids."""
    return cached(session, "kin", lambda: _grouped(session))


def _grouped(session: Session) -> Kin:
    """Group models by all edges, and by unregistered parents that two models name in the same words."""
    public, groups, edges = public_model_ids(session), Groups(), Counter[int]()
    for child, parents in connected_models(session):
        ends = [parent for parent in parents if parent in public] if child in public else []
        edges[child] += len(ends)
        edges.update(ends)
        for parent in set(ends):
            groups.join(child, parent)
    for child, text in unregistered_parents(session, TEXT_MAX_LENGTH):
        if child in public:
            groups.join(child, text)
            edges[child] += 1
    members: defaultdict[Hashable, list[int]] = defaultdict(list)
    for model_id in sorted(model_id for model_id, count in edges.items() if count):
        members[groups.leader(model_id)].append(model_id)
    ordered = sorted(map(tuple, members.values()), key=lambda family: (-len(family), family[0]))
    return Kin(ordered, edges)


def _family(session: Session, family: Sequence[int], kin: Kin, keep: int = 0) -> Family:
    """Return a family with the members that have the most edges, the model `keep` among them."""
    central = sorted(family, key=lambda model_id: (model_id != keep, -kin.edges.get(model_id, 0), model_id))
    models = models_by_id(session, central[:MEMBERS_MAX])
    edges = edges_from(session, models)
    between = _with_descents(session, [edge for edge in edges if edge.parent_id in models], models)
    missing = _missing([edge for edge in edges if not edge.parent_id and edge.parent_text is not None], models)
    generations = _generations(models, between, {name for parent in missing for name in parent.children})
    return Family(
        name=models[min(models)].full_name if models else "",
        count=len(family),
        left_out=len(family) - len(models),
        models=tuple(
            entity_of(FamilyMember, model, generation=generations[model.id])
            for model in sorted(models.values(), key=lambda model: (generations[model.id], model.id))
        ),
        edges=tuple(
            FamilyEdge(
                child=models[edge.child_id].full_name,
                parent=models[edge.parent_id].full_name,
                relation=edge.relation,
                evidence=edge.evidence,
                likeness=edge.score,
                change=edge.change,
                directed=edge.directed,
            )
            for edge in between
        ),
        missing=missing,
    )


def _with_descents(session: Session, edges: Sequence[Edge], models: Collection[int]) -> list[Edge]:
    """Return the edges with measured ones from child to parent, if it is settled which model is the parent."""
    found = descents_among(session, edges, models)
    described = []
    for edge in edges:
        child, parent = edge.child_id, edge.parent_id
        descent = found.get((child, parent)) if edge.evidence == "measured" else None
        if descent is not None:
            if descent.parent == child:
                child, parent = parent, child
            is_directed = descent.parent is not None
            edge = replace(edge, child_id=child, parent_id=parent, relation=descent.relation, directed=is_directed)
        described.append(edge)
    return described


def _missing(rows: Iterable[Edge], models: Mapping[int, ModelRow]) -> tuple[MissingParent, ...]:
    """Return parents that are named and not registered, those with the most children first."""
    children: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        text = (row.parent_text or "")[:TEXT_MAX_LENGTH]
        children[text][models[row.child_id].full_name] = row.relation
    ordered = sorted(children.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return tuple(
        MissingParent(text=text, children=tuple(named), relation=next(iter(named.values())))
        for text, named in ordered[:MISSING_MAX]
    )


def _generations(
    models: Mapping[int, ModelRow], edges: Sequence[Edge], with_missing: Collection[str]
) -> dict[int, int]:
    """Return how far each model is from a first ancestor, by the longest way; an unregistered ancestor counts.

    A model with measured edges only gets the generation of its most similar relative. Declarations may run in a
    circle: its oldest model then counts as the first ancestor.
    """
    parents: dict[int, set[int]] = {model_id: set() for model_id in models}
    for edge in edges:
        if edge.directed and edge.child_id != edge.parent_id:
            parents[edge.child_id].add(edge.parent_id)
    generations: dict[int, int] = {}
    waiting = sorted(models)
    while waiting:
        ready = [child for child in waiting if parents[child] <= generations.keys()] or waiting[:1]
        for child in ready:
            above = [generations[parent] for parent in parents[child] if parent in generations]
            generations[child] = max(above, default=0 if models[child].full_name in with_missing else -1) + 1
        waiting = [child for child in waiting if child not in generations]
    placed = {child for child in models if parents[child] or any(child in others for others in parents.values())}
    placed |= {child for child in models if models[child].full_name in with_missing}
    _place_by_nearest(generations, placed, edges)
    return generations


def _place_by_nearest(generations: dict[int, int], placed: set[int], edges: Sequence[Edge]) -> None:
    """Give each model with measured edges only the generation of its most similar relative that has one."""
    measured = sorted((edge for edge in edges if edge.evidence == "measured"), key=lambda edge: edge.distance)
    pairs = [(edge.child_id, edge.parent_id) for edge in measured]
    while True:
        pair = next((pair for pair in pairs if (pair[0] in placed) != (pair[1] in placed)), None)
        if pair is None:
            return
        known, new = pair if pair[0] in placed else (pair[1], pair[0])
        generations[new] = generations[known]
        placed.add(new)
