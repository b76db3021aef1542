"""Which of several related models was made from which, as far as their weights show it.

Training moves two fine-tunes of one base in directions that are nearly orthogonal. So the change between the two is the
sum of their changes from the base, and the base is the model from which the changes are smallest. A quantisation's
source is the model whose blocks, encoded again, are those of the quantisation.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean
from typing import TypeAlias

from organs.registry.amounts import CHANGE_MIN
from organs.registry.catalog.queries.relatives import Edge
from organs.registry.similarity import FLOAT_ROUNDING, Groups

FLOATS = FLOAT_ROUNDING.keys()
"""The tensor types of weights that were not quantised."""
MATCHED_MIN = 0.9
"""A model is the source of a quantisation if at least this share of the blocks is the same. Tried: 1.00 for the true
source, at most 0.22 for its base, 0.15 for a sibling, 0.014 for any model if an importance matrix was used."""
LIKELY_MIN = 0.5
"""With so many equal blocks, a quantisation may come from the same weights in a finer type: F32 instead of F16 has 0.57
in Q8_0. But a very light fine-tune has as many, so nothing is settled."""
FAR_QUANTISED = 0.3
"""A model with a larger change is not the source of a quantisation: rounding to 2 bits has 0.07."""
FAR = 0.1
"""Models with a larger change are not placed in a tree: another training lies between them."""
BLEND_COSINE = -0.8
"""A model between two others, seen from which they lie in opposite directions, is a blend of them, not their base."""
SIBLING_COSINE = -0.2
"""Two fine-tunes on similar texts move in similar directions: one may be nearer to the other than to their base. Then,
seen from it, the other lies away from the base, and the base is taken as the parent of both."""


Changes: TypeAlias = "Mapping[frozenset[Hashable], float]"


@dataclass(frozen=True, slots=True)
class Descent:
    """What a measured edge says: its relation, and which of the two models is the parent, if that is settled."""

    relation: str
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Records:
    """What is known of models without their weights: the registry made them, or their source is proved."""

    parents: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """The parents of each model whose parents are known."""
    mixed: frozenset[int] = frozenset()
    """Those of them that have other weights than each of their parents: chimeras, but no quantisations."""

    def parent_of(self, child: int, parent: int) -> int | None:
        """Return which of the two is the parent if the weights say that it is `parent`; None if that cannot be.

        A chimera that was made after a model was registered is not its parent.
        """
        if parent in self.parents.get(child, ()):
            return parent
        if child in self.parents.get(parent, ()):
            return child
        return None if child in self.parents or (parent in self.mixed and parent > child) else parent


def descents(
    edges: Collection[Edge], dtypes: Mapping[int, str], records: Records | None = None
) -> dict[tuple[int, int], Descent]:
    """Return what each of `edges` says, by its two models, from all edges between them.

    `dtypes` has the tensor type of most weights of each model. What `records` know is never contradicted, and chimeras
    that were made here change nothing between other models.
    """
    records = records or Records()
    is_float = {model: dtype in FLOATS for model, dtype in dtypes.items()}
    parents, bases = _parents(
        [
            edge
            for edge in edges
            if all(is_float.get(end) and end not in records.mixed for end in (edge.child_id, edge.parent_id))
        ]
    )
    for edge in edges:
        if _is_dequantised(edge, dtypes):  # it may be the base of others, but it was not trained
            parents.pop(_floating(edge, is_float), None)
            bases.pop(_floating(edge, is_float), None)
    nearest = _nearest_sources(edges, is_float)
    found: dict[tuple[int, int], Descent] = {}
    for edge in edges:
        first, second = edge.child_id, edge.parent_id
        if is_float.get(first) != is_float.get(second):
            floating = _floating(edge, is_float)
            quantised = first + second - floating
            is_source = (edge.matched or 0.0) >= MATCHED_MIN
            if _is_dequantised(edge, dtypes):
                found[first, second] = Descent("dequantized", quantised)
            elif nearest[quantised] != floating or (edge.matched is not None and edge.matched < LIKELY_MIN):
                found[first, second] = Descent("relative")
            else:
                found[first, second] = Descent("quantized", floating) if is_source else Descent(edge.relation)
        elif edge.relation == "relative" and parents.get(first) == second:
            found[first, second] = Descent("finetune", second)
        elif edge.relation == "relative" and parents.get(second) == first:
            found[first, second] = Descent("finetune", first)
        elif edge.relation == "relative" and first in bases and bases[first] == bases.get(second):
            found[first, second] = Descent("sibling")
        else:
            found[first, second] = Descent(edge.relation)
        settled = found[first, second].parent
        known = None if settled is None else records.parent_of(first + second - settled, settled)
        if known != settled:
            found[first, second] = Descent(edge.relation, known)
        if found[first, second] == Descent("relative") and _have_one_parent(first, second, parents, records):
            found[first, second] = Descent("sibling")
    return found


def _have_one_parent(first: int, second: int, parents: Mapping[int, int], records: Records) -> bool:
    """Return whether a parent of the one is also one of the other, if that of one of them at least is recorded."""
    if records.mixed.isdisjoint((first, second)):
        return False
    above = [records.parents.get(model, {parents.get(model, 0)} - {0}) for model in (first, second)]
    return not above[0].isdisjoint(above[1])


def _floating(edge: Edge, is_float: Mapping[int, bool]) -> int:
    return edge.child_id if is_float.get(edge.child_id) else edge.parent_id


def _is_dequantised(edge: Edge, dtypes: Mapping[int, str]) -> bool:
    """Return whether one of the two models is quantised, and the other one has its values, rounded to its type."""
    floats = [dtype for dtype in (dtypes.get(edge.child_id, ""), dtypes.get(edge.parent_id, "")) if dtype in FLOATS]
    return len(floats) == 1 and is_decoded(edge.change, floats[0])


def is_decoded(change: float | None, dtype: str) -> bool:
    """Return whether a model in floats has the values of a quantisation: `change` is that of rounding to `dtype`."""
    return change is not None and change < FLOAT_ROUNDING[dtype] + CHANGE_MIN


def _nearest_sources(edges: Iterable[Edge], is_float: Mapping[int, bool]) -> dict[int, int]:
    """Return the likely source of each quantisation: the one with most equal blocks, then with the smallest change."""
    sources: dict[int, list[tuple[float, float, int]]] = {}
    for edge in edges:
        if is_float.get(edge.child_id) != is_float.get(edge.parent_id):
            floating = _floating(edge, is_float)
            quantised = edge.child_id + edge.parent_id - floating
            change = math.inf if edge.change is None else edge.change
            sources.setdefault(quantised, []).append((-(edge.matched or 0.0), change, floating))
    return {quantised: min(found)[2] for quantised, found in sources.items()}


def _parents(edges: Collection[Edge]) -> tuple[dict[int, int], dict[int, Hashable]]:
    """Return the parents among models that are not quantised, and by a common name those that have the same parent.

    The edges with the smallest changes that join all models form a tree. Its root is the model with the most
    neighbours: the base of these. A model that is a blend of its neighbours is left out. The same weights in several
    tensor types are one model; the parent is the variant with the smallest change.
    """
    same = Groups()
    for edge in edges:
        if edge.relation == "quantized":
            same.join(edge.child_id, edge.parent_id)
    known = [(edge.change, edge.child_id, edge.parent_id) for edge in edges if edge.change is not None]
    changes: dict[frozenset[Hashable], float] = {}
    for change, first, second in sorted(known):
        pair = frozenset((same.leader(first), same.leader(second)))
        if change <= FAR and len(pair) > 1:
            changes.setdefault(pair, max(change, CHANGE_MIN))
    members = {model for pair in changes for model in pair}
    tree = _tree(members, changes)
    while blends := {model for model, near in tree.items() if _is_blend(model, near, changes)}:
        members -= blends
        tree = _tree(members, changes)
    above = _rooted(tree, changes)
    parents: dict[int, int] = {}
    for _, first, second in sorted(known, reverse=True):
        if above.get(same.leader(first)) == same.leader(second):
            parents[first] = second
        elif above.get(same.leader(second)) == same.leader(first):
            parents[second] = first
    models = {model for edge in edges for model in (edge.child_id, edge.parent_id)}
    return parents, {model: above[same.leader(model)] for model in models if same.leader(model) in above}


def _tree(members: Collection[Hashable], changes: Changes) -> dict[Hashable, set[Hashable]]:
    """Return the neighbours of each member in the tree of the smallest changes."""
    joined = Groups()
    tree: dict[Hashable, set[Hashable]] = {model: set() for model in members}
    for pair in sorted(changes, key=lambda pair: changes[pair]):
        first, second = pair
        if first in tree and second in tree and joined.leader(first) != joined.leader(second):
            joined.join(first, second)
            tree[first].add(second)
            tree[second].add(first)
    return tree


def _is_blend(model: Hashable, near: Collection[Hashable], changes: Changes) -> bool:
    """Return whether two neighbours of a model lie in opposite directions, seen from the model."""
    for first, second in combinations(near, 2):
        between = changes.get(frozenset((first, second)))
        own, other = (changes[frozenset((model, end))] for end in (first, second))
        if between is not None and _cosine(own, other, between) < BLEND_COSINE:
            return True
    return False


def _cosine(own: float, other: float, between: float) -> float:
    """Return the cosine of the angle between two changes from one model, from the change between their ends."""
    return (own + other - between) / (2.0 * math.sqrt(own * other))


def _rooted(tree: Mapping[Hashable, Collection[Hashable]], changes: Changes) -> dict[Hashable, Hashable]:
    """Return the parent of each model but the roots; nothing about trees of two models, which have no direction."""
    parents: dict[Hashable, Hashable] = {}
    left = dict.fromkeys(tree)
    while left:
        group = [next(iter(left))]
        for model in group:
            group += [end for end in tree[model] if end not in group]
        left = {model: None for model in left if model not in group}
        if len(group) < 3:
            continue
        means = {one: fmean(changes[frozenset((one, end))] for end in tree[one]) for one in group}
        root = min(group, key=lambda model: (-len(tree[model]), means[model]))
        waiting = [root]
        for model in waiting:
            below = [end for end in tree[model] if end not in waiting]
            parents.update((child, _first_ancestor(child, model, parents, changes)) for child in below)
            waiting += below
    return parents


def _first_ancestor(
    child: Hashable, nearest: Hashable, parents: Mapping[Hashable, Hashable], changes: Changes
) -> Hashable:
    """Return the parent of `child`: its `nearest` relative, or the parent of this if the two may be siblings."""
    parent = nearest
    while parent in parents:
        above = parents[parent]
        around = (changes.get(frozenset(pair)) for pair in ((parent, above), (parent, child), (above, child)))
        to_above, to_child, between = (math.nan if change is None else change for change in around)
        if not _cosine(to_above, to_child, between) < SIBLING_COSINE:
            break
        parent = above
    return parent
