"""A family of models as a tree: a node for each model with its quantisations, and thin edges from donors.

The library bigtree places the nodes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass

from organs.registry.amounts import weight_change_text
from organs.registry.catalog.vocabulary import CHIMERA
from organs.registry.entities.lineage import QUANTIZED, RECORDED, Family, FamilyEdge, FamilyMember
from organs.registry.names import split_quantisation
from organs.registry.similarity import Groups
from organs.web.render import change_tone, donor_class

MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Variant:
    """A quantisation or a version of a model: its label, and its full name."""

    label: str
    name: str
    is_yanked: bool


@dataclass(frozen=True, slots=True)
class Node:
    """A model with its quantisations, or a parent that is named but not registered, which has no variants."""

    title: str
    namespace: str
    kind: str
    variants: tuple[Variant, ...]

    @property
    def name(self) -> str:
        """The full name of the first variant, or the text that names an unregistered parent."""
        return self.variants[0].name if self.variants else self.title

    @property
    def is_here(self) -> bool:
        """Whether it is registered."""
        return bool(self.variants)

    @property
    def is_yanked(self) -> bool:
        """Whether all variants were yanked."""
        return self.is_here and all(variant.is_yanked for variant in self.variants)


@dataclass(frozen=True, slots=True)
class FamilyLink:
    """An edge between two nodes, by their places. A measured edge has no direction."""

    parent: int
    child: int
    relation: str
    evidence: str
    measured: FamilyEdge | None
    """The nearest measured edge between variants of the two."""

    @property
    def change(self) -> str:
        """The change of the weights as text; empty if it was not measured."""
        return "" if self.measured is None else weight_change_text(self.measured.change, self.measured.likeness)

    @property
    def tone(self) -> str:
        """The CSS class of the change."""
        return "tn" if self.measured is None else change_tone(self.measured.change, self.measured.likeness)

    @property
    def words(self) -> str:
        """Words for a list: what relation, how it is known, and the change of the weights."""
        change = f"change {self.change}" if self.change else ""
        is_similar = self.evidence == MEASURED and self.relation == "relative"
        descent = "similar weights" if is_similar else f"{self.relation}, {self.evidence}"
        return ", ".join(filter(None, (descent, change)))


@dataclass(frozen=True, slots=True)
class Tree:
    """The nodes of a family, the link of each node to the node above, and the other links."""

    nodes: tuple[Node, ...]
    above: Mapping[int, FamilyLink]
    others: tuple[FamilyLink, ...]
    """Links from donors and other parents, and measured links between members of different trees."""
    undrawn: int
    """Measured edges that are not drawn."""

    def below(self, place: int) -> list[int]:
        """Return the children of a node: models first, then chimeras."""
        children = [child for child, link in self.above.items() if link.parent == place]
        return sorted(children, key=lambda child: (self.nodes[child].kind == CHIMERA, child))

    @property
    def title(self) -> str:
        """The name of the node with the most nodes below it."""
        counts = Counter(link.parent for link in self.above.values())
        place = max(range(len(self.nodes)), key=lambda node: (counts[node], -node))
        return self.nodes[place].title if self.nodes[place].is_here else self.nodes[0].title

    @property
    def roots(self) -> list[int]:
        """The nodes without a link to a node above."""
        return [place for place in range(len(self.nodes)) if place not in self.above]


def family_tree(family: Family) -> Tree:
    """Return the tree of a family. Each node is below its first parent, or below the most similar node."""
    nodes, places = _folded(family)
    nearest: dict[frozenset[int], FamilyEdge] = {}  # measured edge between the variants of each pair of nodes
    for edge in family.edges:
        if edge.distance is not None:
            pair = frozenset((places[edge.child], places[edge.parent]))
            if pair not in nearest or edge.distance < (nearest[pair].distance or 0.0):
                nearest[pair] = edge
    # Stated links, then measured ones. The first of a chimera is that of its base.
    directed: list[FamilyLink] = []
    for edge in sorted(family.edges, key=lambda edge: edge.evidence == MEASURED):
        if edge.directed:
            parent, child = places[edge.parent], places[edge.child]
            measured = nearest.get(frozenset((parent, child)))
            directed.append(FamilyLink(parent, child, edge.relation, edge.evidence, measured))
    for missing in family.missing:
        above_them = places[_missing_key(missing.text)]
        directed += [
            FamilyLink(above_them, places[name], missing.relation, "declared", None) for name in missing.children
        ]
    above: dict[int, FamilyLink] = {}
    others: list[FamilyLink] = []
    drawn: set[frozenset[int]] = set()
    for link in directed:
        pair = frozenset((link.parent, link.child))
        if len(pair) == 1 or pair in drawn:
            continue
        drawn.add(pair)
        ancestor = link.parent
        while ancestor != link.child and ancestor in above:
            ancestor = above[ancestor].parent
        if link.child in above or ancestor == link.child:
            others.append(link)
        else:
            above[link.child] = link
    others += _joining(nearest, above, drawn)
    shown = {frozenset((link.parent, link.child)) for link in (*above.values(), *others)}
    pairs = [frozenset((places[edge.child], places[edge.parent])) for edge in family.edges if edge.evidence == MEASURED]
    return Tree(tuple(nodes), above, tuple(others), sum(len(pair) > 1 and pair not in shown for pair in pairs))


def _folded(family: Family) -> tuple[list[Node], dict[str, int]]:
    """Return the nodes, and the place of the node of each model and of each unregistered parent by its name."""
    groups = Groups()
    for member in family.models:
        groups.join(_stem(member.name), member.name)
    for edge in family.edges:
        if edge.relation == QUANTIZED and edge.evidence != MEASURED:
            groups.join(edge.parent, edge.child)
    members: defaultdict[object, list[FamilyMember]] = defaultdict(list)
    for member in family.models:
        members[groups.leader(member.name)].append(member)
    nodes: list[Node] = []
    places: dict[str, int] = {}
    composed = {edge.child for edge in family.edges if edge.evidence == RECORDED and edge.relation != QUANTIZED}
    for group in members.values():
        places |= dict.fromkeys((member.name for member in group), len(nodes))
        namespace, stem = _stem(group[0].name)
        variants = []
        for member in group:
            name, _, version = member.name.partition("/")[2].partition("@")
            own_stem, quantisation = split_quantisation(name)
            label = quantisation or "full" if own_stem == stem else name
            label = label if version == "1" else f"{label} @{version}"
            variants.append(Variant(label, member.name, member.state == "yanked"))
        title = group[0].name.partition("/")[2].partition("@")[0] if len(group) == 1 else stem
        is_chimera = any(member.name in composed for member in group)
        nodes.append(Node(title, namespace, CHIMERA if is_chimera else group[0].kind, tuple(variants)))
    for parent in family.missing:
        places[_missing_key(parent.text)] = len(nodes)
        nodes.append(Node(" ".join(parent.text.split()), "", "", ()))
    return nodes, places


def _stem(name: str) -> tuple[str, str]:
    namespace, _, rest = name.partition("/")
    return namespace, split_quantisation(rest.partition("@")[0])[0]


def _missing_key(text: str) -> str:
    return f"\0{text}"


def _joining(
    measured: Mapping[frozenset[int], FamilyEdge], above: dict[int, FamilyLink], drawn: Collection[frozenset[int]]
) -> list[FamilyLink]:
    """Join trees by measured links, the strongest first, the smaller tree below the larger.

    Return the links between two nodes that both have a node above.
    """
    groups, sizes, others = Groups(), Counter[Hashable](), []
    for place in {place for pair in measured for place in pair}:
        sizes[place] = 1

    def join(first: int, second: int) -> bool:
        leaders = groups.leader(first), groups.leader(second)
        if leaders[0] == leaders[1]:
            return False
        groups.join(first, second)
        sizes[groups.leader(first)] = sum(sizes[leader] or 1 for leader in leaders)
        return True

    for child, link in above.items():
        join(link.parent, child)
    for pair, edge in sorted(measured.items(), key=lambda item: (item[1].distance, sorted(item[0]))):
        if len(pair) < 2 or pair in drawn:
            continue
        large, small = sorted(pair, key=lambda place: (-sizes[groups.leader(place)], place))
        if not join(large, small):
            continue
        parent, child = (large, small) if small not in above else (small, large)
        link = FamilyLink(parent, child, "relative", MEASURED, edge)
        if child in above:
            others.append(link)
        else:
            above[child] = link
    return others


BOX_WIDTH, BOX_HEIGHT = 244, 58
COLUMN_GAP, ROW_GAP = 86, 18
MARGIN = 10
TITLE_WIDTH = BOX_WIDTH - 20
"""Pixels that a title may take."""
VARIANTS_SHOWN = 4
VARIANT_CHARACTERS = 24
CHIP_WIDTH = 54


@dataclass(frozen=True, slots=True)
class Box:
    """A node in the drawing: its upper left corner, its title, and the links to its variants."""

    x: int
    y: int
    node: Node
    title: str
    chips: tuple[tuple[Variant, int, int], ...]
    """The variants with x and width of their links."""
    left_out: int

    @property
    def middle(self) -> int:
        """The y of the middle."""
        return self.y + BOX_HEIGHT // 2

    @property
    def right(self) -> int:
        """The x of the right side."""
        return self.x + BOX_WIDTH


@dataclass(frozen=True, slots=True)
class Stroke:
    """A line between two boxes. `chip` is the change of the weights, at x and y; `word` the relation."""

    path: str
    look: str
    x: int
    y: int
    word: str
    chip: str
    tone: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """The drawing of a tree, in pixels."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    strokes: tuple[Stroke, ...]
    donor_strokes: tuple[Stroke, ...]


def draw(tree: Tree) -> Drawing:
    """Return the drawing: a column for each generation, every parent in the middle of its children."""
    spots = _spots(tree)
    top = min(row for _, row in spots.values())
    boxes = {}
    for place, (column, row) in spots.items():
        x, y = MARGIN + column * (BOX_WIDTH + COLUMN_GAP), MARGIN + round((row - top) * (BOX_HEIGHT + ROW_GAP))
        boxes[place] = _box(tree.nodes[place], x, y)
    strokes = [_branch(link, boxes) for _, link in sorted(tree.above.items())]
    counts: Counter[int] = Counter()
    colours = {place: number for number, place in enumerate(dict.fromkeys(link.parent for link in tree.others))}
    donors = []
    for link in tree.others:
        counts[link.child] += 1
        donors.append(_donor(link, boxes, counts[link.child], colours[link.parent]))
    bulge = BULGE_MAX if any(boxes[link.parent].x >= boxes[link.child].x for link in tree.others) else 0
    return Drawing(
        width=max(box.right for box in boxes.values()) + MARGIN + bulge,
        height=max(box.y for box in boxes.values()) + BOX_HEIGHT + MARGIN,
        boxes=tuple(boxes[place] for place in sorted(boxes)),
        strokes=tuple(strokes),
        donor_strokes=tuple(donors),
    )


def _spots(tree: Tree) -> dict[int, tuple[int, float]]:
    """Return the column and the row of each node, by the algorithm of Reingold and Tilford."""
    from bigtree import Node as Placed  # only this page needs the library, which takes 0.1 s to import
    from bigtree import preorder_iter, reingold_tilford

    def placed(place: int) -> Placed:
        return Placed(str(place), children=[placed(child) for child in tree.below(place)])

    root = Placed("family", children=[placed(place) for place in tree.roots])
    reingold_tilford(root, sibling_separation=1.0, subtree_separation=1.0, level_separation=1.0)
    return {
        int(node.name): (node.depth - 2, float(node.get_attr("x"))) for node in preorder_iter(root) if node.depth > 1
    }


def _box(node: Node, x: int, y: int) -> Box:
    chips, left = [], x + 10
    shown = node.variants if len(node.variants) > 1 else ()
    for variant in shown[:VARIANTS_SHOWN]:
        width = 8 + 7 * min(len(variant.label), VARIANT_CHARACTERS)
        if left + width > x + BOX_WIDTH - 30:
            break
        chips.append((variant, left, width))
        left += width + 5
    return Box(x, y, node, shortened(node.title), tuple(chips), len(shown) - len(chips))


def shortened(title: str) -> str:
    """Return `title` if it fits into a box, otherwise its beginning and its end with an ellipsis between them."""
    if title_width(title) <= TITLE_WIDTH:
        return title
    end = 1
    while title_width(f"{title[:end]}…{title[-end - 1 :]}") <= TITLE_WIDTH:
        end += 1
    return f"{title[:end]}…{title[-end:]}"


def title_width(title: str) -> float:
    """Return at least the pixels that `title` takes in the usual serif fonts at 15 pixels, from its letters."""
    return sum(map(_letter_width, title))


def _letter_width(letter: str) -> float:
    if not letter.isascii():
        return 15
    if letter in "MWmw@%":
        return 14.5
    return 11.5 if letter.isupper() else 9 if letter.isalnum() else 6


def _branch(link: FamilyLink, boxes: Mapping[int, Box]) -> Stroke:
    """Return the line from a parent to its child, with the change at the end of the child."""
    parent, child = boxes[link.parent], boxes[link.child]
    path = f"M{parent.right} {parent.middle}"
    if parent.middle != child.middle:
        bend, turn = parent.right + 18, 6 if child.middle > parent.middle else -6
        path += f"H{bend - 6}Q{bend} {parent.middle} {bend} {parent.middle + turn}"
        path += f"V{child.middle - turn}Q{bend} {child.middle} {bend + 6} {child.middle}"
    path += f"H{child.x}"
    look = "like" if link.evidence == MEASURED else "descent"
    word = "" if link.relation == "relative" else link.relation
    return Stroke(path, look, child.x, child.middle, word, link.change, link.tone)


BULGE_MAX = 64


def _donor(link: FamilyLink, boxes: Mapping[int, Box], number: int, colour: int) -> Stroke:
    """Return the thin line from a donor, or from another parent, to a child. `number` counts those of the child."""
    donor, child = boxes[link.parent], boxes[link.child]
    offset = 10 * ((number + 1) // 2) * (1 if number % 2 else -1)
    end = child.middle + max(-BOX_HEIGHT // 2 + 6, min(BOX_HEIGHT // 2 - 6, offset))
    start = donor.right
    if start < child.x:
        x, half = child.x, (child.x - start) // 2
        first, second = start + half, x - half
    else:
        x = child.right
        first = second = max(start, x) + min(BULGE_MAX, 24 + abs(donor.middle - end) // 5)
    path = f"M{start} {donor.middle}C{first} {donor.middle} {second} {end} {x} {end}"
    look = "like" if link.evidence == MEASURED else f"donor {donor_class(colour)}"
    return Stroke(path, look, x, end, "", "", "")
