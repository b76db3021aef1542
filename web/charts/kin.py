"""A family of models as a tree and as a graph: arrows from parent to child, columns by generation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from organs.registry.lineage import Groups
from organs.registry.present.values import Values
from organs.web.render import theta_class

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


def kin_graph(family: Family, trees: Sequence[Branch]) -> KinGraph:
    """Columns by generation; in each the order of the trees, one tree below the other, nobody above who it hangs on."""
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
    """`name` in at most two lines of 30 characters, broken behind a mark if there is one; what is over is left out."""
    name = " ".join(name.split())
    if len(name) <= LINE_CHARACTERS:
        return (name,)
    ends = range(LINE_CHARACTERS // 2, LINE_CHARACTERS)
    breaks = [[place for place in ends if name[place] in marks] for marks in BREAKS]
    cut = next((places[-1] + 1 for places in breaks if places), LINE_CHARACTERS)
    rest = name[cut:]
    return name[:cut], rest if len(rest) <= LINE_CHARACTERS else f"…{rest[1 - LINE_CHARACTERS :]}"


def _stroke(tie: Tie, first: Box, second: Box, beside: int) -> Stroke:
    """An elbow from box to box, its words above the last stretch; further ones to the same box are written below."""
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
    """Two boxes of one column: a bow on their right."""
    depth = min(BULGE_MAX, 24 + abs(first.y - second.y) // 8)
    x, top, bottom = first.right, first.middle, second.middle
    path = f"M{x} {top}C{x + depth} {top} {x + depth} {bottom} {x} {bottom}"
    point = _point(x, bottom, 8) if look == "descent" else ""
    return Stroke(path, point, look, tie.words, x + 3 * depth // 4, (top + bottom) // 2 + 4, "middle")


def _point(x: int, y: int, back: int) -> str:
    return f"M{x + back} {y - 4}L{x} {y}L{x + back} {y + 4}Z"
