"""Lineage: the edges between a model and others, and families of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, structs

from organs.registry.amounts import weight_change
from organs.registry.columns import CellKind, Column, data_only
from organs.registry.entities.base import Change, Count, Entity, Likeness, ModelText, Page, Share, Text, Theta, Word
from organs.registry.entities.finding import Finding

EDGES_MAX = 10_000
"""The most edges in an answer: of a model, or of the models of a family."""
MODELS_MAX = 1000
"""The most models of a family in an answer."""
FAMILIES_DEFAULT, FAMILIES_MAX = 6, 50
"""Families on a page."""

RELATIVE = "relative"
"""The direction of a measured edge if it is not known which of the two models was made from the other."""
RECORDED = "recorded"
QUANTIZED = "quantized"
"""The evidence of an edge that the registry wrote when it made the model."""
PROVED = "proved"
"""The evidence of a measured edge to a quantisation whose blocks are all those that encoding its source gives."""

Direction = Annotated[
    Word,
    Meta(
        description="What the other model is: `parent`, `child`, or `relative` if the weights do not show which of the "
        "two was made from the other."
    ),
]
Relation = Annotated[Word, Meta(description="The kind of relation: `finetune`, `quantized`, `grafted`, `relative` ...")]
Evidence = Annotated[
    Word,
    Meta(
        description="`declared` by a file, `recorded` when it was made here, `measured` from the weights, "
        "or `proved` by encoding the source of a quantisation again."
    ),
]


class LineageEdge(Entity):
    """An edge of descent or likeness between a model and another model."""

    direction: Direction
    model: Annotated[ModelText | None, Meta(description="The other model; null for a parent that is not registered.")]
    text: Annotated[Text | None, Meta(description="The name of the parent as the model declares it.")]
    relation: Relation
    evidence: Evidence
    likeness: Annotated[Likeness | None, Meta(description="The mean over the matrices at equal places.")]
    change: Change | None = None
    compared: Annotated[Count | None, Meta(description="The number of matrices that the likeness is computed from.")]
    matched: Annotated[
        Share | None,
        Meta(
            description="Of a quantisation and a possible source: the share of the sampled blocks that are the same "
            "when the source is encoded again. Null if that was not tried."
        ),
    ] = None


EDGE_COLUMNS = (
    Column("direction", "role"),
    Column("model", kind=CellKind.NAME, shown=lambda edge: edge.model or edge.text),
    Column("relation"),
    Column("evidence", rank=1),
    Column("change", kind=CellKind.CHANGE),
    Column("likeness", kind=CellKind.SHARE, rank=2),
    Column("compared", "matrices", CellKind.COUNT, 3),
)


def merged_edges(edges: Sequence[LineageEdge]) -> list[LineageEdge]:
    """Return `edges` with each registered parent and child once, with the likeness of any edge to that model.

    A recorded edge replaces a declared one at its place. Edges to models that are not registered stay as they are.
    """
    stated = {edge.model for edge in edges if edge.direction != RELATIVE}
    alike = {edge.model: edge for edge in edges if edge.likeness is not None}
    merged: dict[tuple[str, str] | int, LineageEdge] = {}
    for number, edge in enumerate(edges):
        key = number if edge.model is None else (edge.direction, edge.model)
        if edge.direction == RELATIVE and edge.model in stated:
            continue
        if key not in merged or (edge.evidence == RECORDED != merged[key].evidence):
            merged[key] = edge
    for key, edge in merged.items():
        measured = alike.get(edge.model)
        if edge.model is not None and edge.likeness is None and measured is not None:
            names = ("likeness", "change", "compared", "matched")
            merged[key] = structs.replace(edge, **{name: getattr(measured, name) for name in names})
    return list(merged.values())


class ModelLineage(Entity):
    """The declared, recorded and measured edges of a model, with findings where they disagree."""

    model: ModelText
    edges: Annotated[
        tuple[LineageEdge, ...],
        Meta(max_length=EDGES_MAX, description="Parents, then children, then relatives, the most similar first."),
    ]
    left_out: Annotated[Count, Meta(description="Edges beyond the first 200.")]
    findings: Annotated[tuple[Finding, ...], Meta(max_length=EDGES_MAX)]


class FamilyMember(Entity):
    """A model of a family."""

    name: ModelText
    title: Text | None
    kind: Word
    state: Word
    mean_theta: Annotated[Theta | None, Meta(description="Mean θ over its tensors, in degrees.")]
    generation: Annotated[Count, Meta(description="Steps from a first ancestor, including unregistered models.")]


class FamilyEdge(Entity):
    """An edge between two models of a family."""

    child: ModelText
    parent: ModelText
    relation: Relation
    evidence: Evidence
    likeness: Likeness | None
    change: Change | None = None
    directed: Annotated[bool, Meta(description="Whether it is known which of the two is the parent.")] = True

    @property
    def distance(self) -> float | None:
        """The change, from the likeness if it is not known exactly."""
        return None if self.change is None and self.likeness is None else weight_change(self.change, self.likeness)


FAMILY_EDGE_COLUMNS = data_only("child", "parent", "relation", "evidence", "likeness", "change")


class MissingParent(Entity):
    """An unregistered parent that models of a family declare."""

    text: Annotated[Text, Meta(description="Its declared name, cut to 200 characters.")]
    children: Annotated[tuple[ModelText, ...], Meta(max_length=MODELS_MAX)]
    relation: Relation


class Family(Entity):
    """Models that descend from each other, are similar, or declare the same parent."""

    name: Annotated[ModelText, Meta(description="The member that was registered first.")]
    count: Annotated[Count, Meta(description="The number of members.")]
    left_out: Annotated[Count, Meta(description="Members that are not in `models`: those with the fewest edges.")]
    models: Annotated[
        tuple[FamilyMember, ...], Meta(max_length=MODELS_MAX, description="By generation, then the oldest first.")
    ]
    edges: Annotated[tuple[FamilyEdge, ...], Meta(max_length=EDGES_MAX)]
    missing: Annotated[
        tuple[MissingParent, ...], Meta(max_length=MODELS_MAX, description="Those with the most children first.")
    ]


class FamilyPage(Page[Family]):
    """One page of families, the largest first."""

    count: Annotated[Count, Meta(description="The number of families.")]
