"""A family of models as a tree and as a graph. Arrows point from parent to child; a column is a generation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from organs.registry.entities.lineage import Family, FamilyEdge
from organs.registry.lineage import Groups
from organs.web.render import theta_class

MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Member:
    """A model, or a declared parent that is not registered."""

    name: str
    generation: int
    is_here: bool
    theta: float | None = None
    kind: str = "model"
    is_yanked: bool = False


@dataclass(frozen=True, slots=True)
class Tie:
    """A line from parent to child, by their indexes in the members. A measured tie has no direction."""

    first: int
    second: int
    relation: str
    evidence: str
    likeness: float | None
    in_tree: bool
    """Whether it joins two parts of the family that earlier ties do not join."""

    @property
    def words(self) -> str:
        """The text beside the line."""
        likeness = "" if self.likeness is None else f"{self.likeness:.3f}"
        return likeness if self.evidence == MEASURED else f"{self.relation} {likeness}".strip()


@dataclass(frozen=True, slots=True)
class FamilyTree:
    """Members, the ties that are drawn, and the number of measured ties that are not drawn."""

    members: tuple[Member, ...]
    ties: tuple[Tie, ...]
    measured_undrawn: int


@dataclass(frozen=True, slots=True)
class Branch:
    """A member with its descendants. `tie` joins it to the member above; None for a root."""

    member: int
    tie: Tie | None
    branches: list[Branch] = field(default_factory=list)


def family_tree(family: Family) -> FamilyTree:
    """Return the members of `family`, including parents that are not registered, and the ties to draw."""
    members = [
        Member(model.name, model.generation, True, model.mean_theta, model.kind, model.state == "yanked")
        for model in family.models
    ]
    places = {member.name: place for place, member in enumerate(members)}
    groups = Groups()
    ties = _descent_ties(family, places, groups)
    for parent in family.missing:
        children = [places[name] for name in parent.children]
        generation = max(0, min(members[child].generation for child in children) - 1)
        members.append(Member(parent.text, generation, False))
        place = len(members) - 1
        ties += [
            Tie(place, child, parent.relation, "declared", None, _join_groups(groups, place, child))
            for child in children
        ]
    measured, undrawn = _measured_ties(family, places, groups, {frozenset((tie.first, tie.second)) for tie in ties})
    return FamilyTree(tuple(members), (*ties, *measured), undrawn)


def _descent_ties(family: Family, places: Mapping[str, int], groups: Groups) -> list[Tie]:
    """Return the declared and recorded ties, each with the measured likeness of its two models."""
    likenesses = _likenesses(family.edges)
    ties = []
    for edge in family.edges:
        if edge.evidence != MEASURED and edge.child != edge.parent:
            first, second = places[edge.parent], places[edge.child]
            likeness = edge.likeness or likenesses.get(frozenset((edge.child, edge.parent)))
            ties.append(Tie(first, second, edge.relation, edge.evidence, likeness, _join_groups(groups, first, second)))
    return ties


def _measured_ties(
    family: Family, places: Mapping[str, int], groups: Groups, directed: Collection[frozenset[int]]
) -> tuple[list[Tie], int]:
    """Return the measured ties that join parts of the family, strongest first, and the number of the others."""
    ties, undrawn = [], 0
    measured = [edge for edge in family.edges if edge.evidence == MEASURED]
    for edge in sorted(measured, key=lambda edge: -(edge.likeness or 0.0)):
        first, second = sorted((places[edge.parent], places[edge.child]))
        if frozenset((first, second)) in directed:
            continue
        if _join_groups(groups, first, second):
            ties.append(Tie(first, second, edge.relation, MEASURED, edge.likeness, True))
        else:
            undrawn += 1
    return ties, undrawn


def branches(family: FamilyTree) -> list[Branch]:
    """Return the members as trees, oldest generation first. A member without ties is a tree of its own.

    A child is below its first parent. A member without parents is below the most similar member.
    """
    neighbours: dict[int, list[tuple[int, Tie]]] = {place: [] for place in range(len(family.members))}
    children: set[int] = set()
    for tie in family.ties:
        if tie.in_tree and tie.evidence != MEASURED and tie.second not in children:
            neighbours[tie.first].append((tie.second, tie))
            children.add(tie.second)
    for tie in family.ties:
        if tie.evidence == MEASURED:
            ends = ((tie.first, tie.second), (tie.second, tie.first))
            for place, other in ends:
                if other not in children:
                    neighbours[place].append((other, tie))
    order = sorted(neighbours.keys() - children, key=lambda place: (family.members[place].generation, place))
    seen: set[int] = set()
    return [_branch(place, None, neighbours, seen) for place in order if place not in seen]


def walk(trees: Sequence[Branch], depth: int = 0) -> Iterator[tuple[Branch, int]]:
    """Yield each branch with its depth, a parent before its children."""
    for branch in trees:
        yield branch, depth
        yield from walk(branch.branches, depth + 1)


def _likenesses(edges: Sequence[FamilyEdge]) -> dict[frozenset[str], float]:
    """Return the measured likeness of each pair of models."""
    return {
        frozenset((edge.child, edge.parent)): edge.likeness
        for edge in edges
        if edge.evidence == MEASURED and edge.likeness is not None
    }


def _join_groups(groups: Groups, first: int, second: int) -> bool:
    """Join the groups of the two members, and return whether they were separate."""
    if groups.leader(first) == groups.leader(second):
        return False
    groups.join(first, second)
    return True


def _branch(place: int, tie: Tie | None, neighbours: dict[int, list[tuple[int, Tie]]], seen: set[int]) -> Branch:
    seen.add(place)
    branch = Branch(place, tie)
    for other, between in sorted(neighbours[place], key=lambda pair: (pair[1].evidence == MEASURED, pair[0])):
        if other not in seen:
            branch.branches.append(_branch(other, between, neighbours, seen))
    return branch


BOX_WIDTH, BOX_HEIGHT = 244, 42
COLUMN_GAP, ROW_GAP = 152, 16
TRUNK, TRUNK_STEP, TRUNKS = 14, 6, 5
"""Pixels from a box to the bend of its lines, the shift between neighbours in a column, and the number of shifts."""
MARGIN = 8
LINE_CHARACTERS = 30
"""Characters that fit into a box at 12 pixels a line. The width of a monospace letter is 0.6 of its height."""
BULGE_MAX = 60
BREAKS = ("/- ", "_.")
"""Characters after which a name is broken. Those of the first text are preferred."""


@dataclass(frozen=True, slots=True)
class Box:
    """A member: its upper left corner, and its name in one or two lines."""

    x: int
    y: int
    member: Member
    lines: tuple[str, ...]
    tone: str

    @property
    def middle(self) -> int:
        return self.y + BOX_HEIGHT // 2

    @property
    def right(self) -> int:
        return self.x + BOX_WIDTH


@dataclass(frozen=True, slots=True)
class Stroke:
    """A line between two boxes, with its words. `point` is the path of its arrowhead, or empty."""

    path: str
    point: str
    look: str
    words: str
    x: int
    y: int
    anchor: str
    """The part of the words that is at x: `end` or `middle`."""


@dataclass(frozen=True, slots=True)
class KinGraph:
    """The drawing of a family, in pixels."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    strokes: tuple[Stroke, ...]


def kin_graph(family: FamilyTree, trees: Sequence[Branch]) -> KinGraph:
    """Return the graph: a column for each generation, members in the order of the trees."""
    generations = sorted({member.generation for member in family.members})
    columns = {generation: column for column, generation in enumerate(generations)}
    free = dict.fromkeys(range(len(generations)), MARGIN)
    boxes: dict[int, Box] = {}
    above: list[int] = []
    for branch, depth in walk(trees):
        member = family.members[branch.member]
        column = columns[member.generation]
        del above[depth:]
        beside = [boxes[above[-1]].y] if above and family.members[above[-1]].generation != member.generation else []
        below = max(free.values()) if depth == 0 else free[column]
        y = max(below, *beside, MARGIN)
        free[column] = y + BOX_HEIGHT + ROW_GAP
        x = MARGIN + column * (BOX_WIDTH + COLUMN_GAP)
        boxes[branch.member] = Box(x, y, member, two_lines(member.name), theta_class(member.theta))
        above.append(branch.member)
    line_counts: Counter[int] = Counter()
    strokes = []
    for tie in family.ties:
        end = max((tie.first, tie.second), key=lambda place: boxes[place].x)
        strokes.append(_stroke(tie, boxes[tie.first], boxes[tie.second], line_counts[end]))
        line_counts[end] += 1
    width = 2 * MARGIN + len(generations) * BOX_WIDTH + (len(generations) - 1) * COLUMN_GAP
    bulges = any(tie_box.x == boxes[tie.second].x for tie in family.ties if (tie_box := boxes[tie.first]))
    return KinGraph(
        width + (BULGE_MAX + 36 if bulges else 0),
        max(free.values(), default=0) - ROW_GAP + MARGIN,
        tuple(boxes[place] for place in sorted(boxes)),
        tuple(strokes),
    )


def two_lines(name: str) -> tuple[str, ...]:
    """Return `name` in at most two lines of 30 characters, broken after a separator if possible.

    If the second line is too long, its start is cut.
    """
    name = " ".join(name.split())
    if len(name) <= LINE_CHARACTERS:
        return (name,)
    ends = range(LINE_CHARACTERS // 2, LINE_CHARACTERS)
    breaks = [[place for place in ends if name[place] in marks] for marks in BREAKS]
    cut = next((places[-1] + 1 for places in breaks if places), LINE_CHARACTERS)
    rest = name[cut:]
    return name[:cut], rest if len(rest) <= LINE_CHARACTERS else f"…{rest[1 - LINE_CHARACTERS :]}"


def _stroke(tie: Tie, first: Box, second: Box, beside: int) -> Stroke:
    """Return a line with two bends between the boxes, with its text above the last segment.

    `beside` is the number of earlier lines to the same box. Their texts come first; this text goes below them.
    """
    look = "like" if tie.evidence == MEASURED else "descent"
    if first.x == second.x:
        return _bulge(tie, first, second, look)
    left, right = (first, second) if first.x < second.x else (second, first)
    trunk = left.right + TRUNK + TRUNK_STEP * (left.y // (BOX_HEIGHT + ROW_GAP) % TRUNKS)
    path = f"M{left.right} {left.middle}H{trunk}V{right.middle}H{right.x}"
    point = ""
    if look == "descent":
        point = _arrowhead(right.x, right.middle, -8) if second is right else _arrowhead(left.right, left.middle, 8)
    y = right.middle - 6 if beside == 0 else right.middle + 1 + 13 * beside
    return Stroke(path, point, look, tie.words, right.x - 12, y, "end")


def _bulge(tie: Tie, first: Box, second: Box, look: str) -> Stroke:
    """Return a curve on the right of two boxes in one column."""
    depth = min(BULGE_MAX, 24 + abs(first.y - second.y) // 8)
    x, top, bottom = first.right, first.middle, second.middle
    path = f"M{x} {top}C{x + depth} {top} {x + depth} {bottom} {x} {bottom}"
    point = _arrowhead(x, bottom, 8) if look == "descent" else ""
    return Stroke(path, point, look, tie.words, x + 3 * depth // 4, (top + bottom) // 2 + 4, "middle")


def _arrowhead(x: int, y: int, back: int) -> str:
    return f"M{x + back} {y - 4}L{x} {y}L{x + back} {y + 4}Z"
