"""A family of models as a tree and as a graph: arrows from parent to child, columns by generation."""

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
    """A model, or a parent that is named and not registered."""

    name: str
    generation: int
    is_here: bool
    theta: float | None = None
    kind: str = "model"
    is_yanked: bool = False


@dataclass(frozen=True, slots=True)
class Tie:
    """A line from parent to child, by their places among the members; a measured one has no direction."""

    first: int
    second: int
    relation: str
    evidence: str
    likeness: float | None
    in_tree: bool
    """Whether it joins two parts of the family that no tie before it joins."""

    @property
    def words(self) -> str:
        """The text beside its line."""
        likeness = "" if self.likeness is None else f"{self.likeness:.3f}"
        return likeness if self.evidence == MEASURED else f"{self.relation} {likeness}".strip()


@dataclass(frozen=True, slots=True)
class FamilyTree:
    """Members by generation, the ties that are drawn, and how many measured ones are not."""

    members: tuple[Member, ...]
    ties: tuple[Tie, ...]
    measured_undrawn: int


@dataclass(frozen=True, slots=True)
class Branch:
    """A member with its descendants. `tie` joins it to the member above; None for the first."""

    member: int
    tie: Tie | None
    branches: list[Branch] = field(default_factory=list)


def family_tree(family: Family) -> FamilyTree:
    """Return the members of `family`, missing parents among them, and the ties that are drawn between them."""
    members = [
        Member(model.name, model.generation, True, model.mean_theta, model.kind, model.state == "yanked")
        for model in family.models
    ]
    places = {member.name: place for place, member in enumerate(members)}
    groups = Groups()
    ties = _descent(family, places, groups)
    for parent in family.missing:
        children = [places[name] for name in parent.children]
        generation = max(0, min(members[child].generation for child in children) - 1)
        members.append(Member(parent.text, generation, False))
        place = len(members) - 1
        ties += [
            Tie(place, child, parent.relation, "declared", None, _joined(groups, place, child)) for child in children
        ]
    measured, undrawn = _measured(family, places, groups, {frozenset((tie.first, tie.second)) for tie in ties})
    return FamilyTree(tuple(members), (*ties, *measured), undrawn)


def _descent(family: Family, places: Mapping[str, int], groups: Groups) -> list[Tie]:
    """Return the declared and recorded ties, each with the likeness that was measured between the two."""
    likenesses = _likenesses(family.edges)
    ties = []
    for edge in family.edges:
        if edge.evidence != MEASURED and edge.child != edge.parent:
            first, second = places[edge.parent], places[edge.child]
            likeness = edge.likeness or likenesses.get(frozenset((edge.child, edge.parent)))
            ties.append(Tie(first, second, edge.relation, edge.evidence, likeness, _joined(groups, first, second)))
    return ties


def _measured(
    family: Family, places: Mapping[str, int], groups: Groups, directed: Collection[frozenset[int]]
) -> tuple[list[Tie], int]:
    """Return the strongest measured ties that hold the family together, and how many others there are."""
    ties, undrawn = [], 0
    measured = [edge for edge in family.edges if edge.evidence == MEASURED]
    for edge in sorted(measured, key=lambda edge: -(edge.likeness or 0.0)):
        first, second = sorted((places[edge.parent], places[edge.child]))
        if frozenset((first, second)) in directed:
            continue
        if _joined(groups, first, second):
            ties.append(Tie(first, second, edge.relation, MEASURED, edge.likeness, True))
        else:
            undrawn += 1
    return ties, undrawn


def branches(family: FamilyTree) -> list[Branch]:
    """Return the members as trees, each from its first generation on; a member without ties is a tree of one.

    A child stands below its first parent; a member without parents below the most similar one.
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
    """Yield every branch with its depth, each before those below it."""
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


def _joined(groups: Groups, first: int, second: int) -> bool:
    """Join the groups of the two, and return whether they were apart."""
    if groups.leader(first) == groups.leader(second):
        return False
    groups.join(first, second)
    return True


def _branch(place: int, tie: Tie | None, around: dict[int, list[tuple[int, Tie]]], seen: set[int]) -> Branch:
    seen.add(place)
    branch = Branch(place, tie)
    for other, between in sorted(around[place], key=lambda pair: (pair[1].evidence == MEASURED, pair[0])):
        if other not in seen:
            branch.branches.append(_branch(other, between, around, seen))
    return branch


BOX_WIDTH, BOX_HEIGHT = 244, 42
COLUMN_GAP, ROW_GAP = 152, 16
TRUNK, TRUNK_STEP, TRUNKS = 14, 6, 5
"""Where the elbows of a box bend: neighbours in a column not at the same place."""
MARGIN = 8
LINE_CHARACTERS = 30
"""That fit into a box at 12 pixels a line; a monospace letter is six tenths as wide as high."""
BULGE_MAX = 60
BREAKS = ("/- ", "_.")
"""Marks behind which a name is broken; the first kind is better."""


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
    """A line between two boxes, with the point of its arrow if it has one, and its words."""

    path: str
    point: str
    look: str
    words: str
    x: int
    y: int
    anchor: str
    """Which end of the words stands at x: end, middle."""


@dataclass(frozen=True, slots=True)
class KinGraph:
    """All that is drawn of a family, in pixels."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    strokes: tuple[Stroke, ...]


def kin_graph(family: FamilyTree, trees: Sequence[Branch]) -> KinGraph:
    """Place members in columns by generation, below each other in the order of the trees."""
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
    arrived: Counter[int] = Counter()
    strokes = []
    for tie in family.ties:
        end = max((tie.first, tie.second), key=lambda place: boxes[place].x)
        strokes.append(_stroke(tie, boxes[tie.first], boxes[tie.second], arrived[end]))
        arrived[end] += 1
    width = 2 * MARGIN + len(generations) * BOX_WIDTH + (len(generations) - 1) * COLUMN_GAP
    bulges = any(tie_box.x == boxes[tie.second].x for tie in family.ties if (tie_box := boxes[tie.first]))
    return KinGraph(
        width + (BULGE_MAX + 36 if bulges else 0),
        max(free.values(), default=0) - ROW_GAP + MARGIN,
        tuple(boxes[place] for place in sorted(boxes)),
        tuple(strokes),
    )


def two_lines(name: str) -> tuple[str, ...]:
    """Return `name` in at most two lines of 30 characters, broken after a separator if possible, else cut."""
    name = " ".join(name.split())
    if len(name) <= LINE_CHARACTERS:
        return (name,)
    ends = range(LINE_CHARACTERS // 2, LINE_CHARACTERS)
    breaks = [[place for place in ends if name[place] in marks] for marks in BREAKS]
    cut = next((places[-1] + 1 for places in breaks if places), LINE_CHARACTERS)
    rest = name[cut:]
    return name[:cut], rest if len(rest) <= LINE_CHARACTERS else f"…{rest[1 - LINE_CHARACTERS :]}"


def _stroke(tie: Tie, first: Box, second: Box, beside: int) -> Stroke:
    """Return an elbow line between boxes, with its text above the last segment; further lines to the same box go
    below.
    """
    look = "like" if tie.evidence == MEASURED else "descent"
    if first.x == second.x:
        return _bulge(tie, first, second, look)
    left, right = (first, second) if first.x < second.x else (second, first)
    trunk = left.right + TRUNK + TRUNK_STEP * (left.y // (BOX_HEIGHT + ROW_GAP) % TRUNKS)
    path = f"M{left.right} {left.middle}H{trunk}V{right.middle}H{right.x}"
    point = ""
    if look == "descent":
        point = _point(right.x, right.middle, -8) if second is right else _point(left.right, left.middle, 8)
    y = right.middle - 6 if beside == 0 else right.middle + 1 + 13 * beside
    return Stroke(path, point, look, tie.words, right.x - 12, y, "end")


def _bulge(tie: Tie, first: Box, second: Box, look: str) -> Stroke:
    """Return a curve on the right of two boxes in one column."""
    depth = min(BULGE_MAX, 24 + abs(first.y - second.y) // 8)
    x, top, bottom = first.right, first.middle, second.middle
    path = f"M{x} {top}C{x + depth} {top} {x + depth} {bottom} {x} {bottom}"
    point = _point(x, bottom, 8) if look == "descent" else ""
    return Stroke(path, point, look, tie.words, x + 3 * depth // 4, (top + bottom) // 2 + 4, "middle")


def _point(x: int, y: int, back: int) -> str:
    return f"M{x + back} {y - 4}L{x} {y}L{x + back} {y + 4}Z"
