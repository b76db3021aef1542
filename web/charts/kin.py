"""A family of models as a tree: every member once, below who it descends from or is most like. Pure.

Of the measured likenesses those are kept that hold the family together, the strongest first: a maximum spanning tree
around what is declared and recorded. All declared and recorded edges are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from organs.registry.present.values import Values
from organs.registry.relatives.groups import Groups

MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Member:
    """A model, or a parent that is named and not here."""

    name: str
    generation: int
    is_here: bool
    theta: float | None = None
    kind: str = "model"
    is_yanked: bool = False


@dataclass(frozen=True, slots=True)
class Tie:
    """From parent to child by place among the members; a measured one has no direction."""

    first: int
    second: int
    relation: str
    evidence: str
    score: float | None
    in_tree: bool

    @property
    def words(self) -> str:
        """What stands beside its line."""
        score = "" if self.score is None else f"{self.score:.3f}"
        return score if self.evidence == MEASURED else f"{self.relation} {score}".strip()


@dataclass(frozen=True, slots=True)
class Family:
    """Members by generation, the ties that are drawn, and how many measured ones are not."""

    members: tuple[Member, ...]
    ties: tuple[Tie, ...]
    measured_undrawn: int


@dataclass(frozen=True, slots=True)
class Branch:
    """A member with those below it. `tie` is what it hangs on; None for the first."""

    member: int
    tie: Tie | None
    branches: list[Branch] = field(default_factory=list)


def family_tree(family: Values) -> Family:
    """`family` as `registry.present.kinship` gives it."""
    members = [
        Member(one["name"], one["generation"], True, one["mean_theta"], one["kind"], one["state"] == "yanked")
        for one in family["models"]
    ]
    places = {member.name: place for place, member in enumerate(members)}
    ties, groups, scores = [], Groups(), _scores(family["edges"])
    for edge in family["edges"]:
        if edge["evidence"] != MEASURED and edge["child"] != edge["parent"]:
            first, second = places[edge["parent"]], places[edge["child"]]
            score = edge["score"] or scores.get(frozenset((edge["child"], edge["parent"])))
            ties.append(Tie(first, second, edge["relation"], edge["evidence"], score, _joined(groups, first, second)))
    for one in family["missing"]:
        children = [places[name] for name in one["children"]]
        generation = max(0, min(members[child].generation for child in children) - 1)
        members.append(Member(one["text"], generation, False))
        for child in children:
            place = len(members) - 1
            ties.append(Tie(place, child, one["relation"], "declared", None, _joined(groups, place, child)))
    directed = {frozenset((tie.first, tie.second)) for tie in ties}
    measured = [edge for edge in family["edges"] if edge["evidence"] == MEASURED]
    undrawn = 0
    for edge in sorted(measured, key=lambda edge: -(edge["score"] or 0.0)):
        first, second = sorted((places[edge["parent"]], places[edge["child"]]))
        if frozenset((first, second)) in directed:
            continue
        if _joined(groups, first, second):
            ties.append(Tie(first, second, edge["relation"], MEASURED, edge["score"], True))
        else:
            undrawn += 1
    return Family(tuple(members), tuple(ties), undrawn)


def branches(family: Family) -> list[Branch]:
    """The members as trees, each from its first generation on; who hangs on nothing is a tree of one.

    A child hangs on its first parent, who has none on whom it is most like.
    """
    around: dict[int, list[tuple[int, Tie]]] = {place: [] for place in range(len(family.members))}
    children: set[int] = set()
    for tie in family.ties:
        if tie.in_tree and tie.evidence != MEASURED and tie.second not in children:
            around[tie.first].append((tie.second, tie))
            children.add(tie.second)
    for tie in family.ties:
        if tie.evidence == MEASURED:
            ends = ((tie.first, tie.second), (tie.second, tie.first))
            for one, other in ends:
                if other not in children:
                    around[one].append((other, tie))
    order = sorted(around.keys() - children, key=lambda place: (family.members[place].generation, place))
    seen: set[int] = set()
    return [_branch(place, None, around, seen) for place in order if place not in seen]


def walk(trees: Sequence[Branch], depth: int = 0) -> Iterator[tuple[Branch, int]]:
    """Every branch with its depth, each before those below it."""
    for branch in trees:
        yield branch, depth
        yield from walk(branch.branches, depth + 1)


def _scores(edges: Sequence[Values]) -> dict[frozenset[str], float]:
    """How alike pairs were measured to be."""
    return {
        frozenset((edge["child"], edge["parent"])): edge["score"]
        for edge in edges
        if edge["evidence"] == MEASURED and edge["score"] is not None
    }


def _joined(groups: Groups, first: int, second: int) -> bool:
    """Whether the two were apart until now; they are together from here on."""
    if groups.leader(first) == groups.leader(second):
        return False
    groups.join(first, second)
    return True


def _branch(place: int, tie: Tie | None, around: dict[int, list[tuple[int, Tie]]], seen: set[int]) -> Branch:
    seen.add(place)
    made = Branch(place, tie)
    for other, between in sorted(around[place], key=lambda pair: (pair[1].evidence == MEASURED, pair[0])):
        if other not in seen:
            made.branches.append(_branch(other, between, around, seen))
    return made
