"""Lineage: the edges between a model and others, and families of models."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry.entities.base import Count, Entity, Likeness, ModelText, Page, Text, Theta, Word
from organs.registry.entities.finding import Finding

EDGES_MAX = 10_000
"""Edges that an answer may have: of a model, or of the models of a family."""
MODELS_MAX = 1000
"""Models of a family that an answer may have."""

Direction = Annotated[Word, Meta(description="`parent`, `child`, or `relative`: measured edges have no direction.")]
Relation = Annotated[Word, Meta(description="By which act: `finetune`, `quantized`, `grafted`, `relative` ...")]
Evidence = Annotated[
    Word, Meta(description="`declared` by a file, `recorded` when it was made here, or `measured` by the weights.")
]


class LineageEdge(Entity, frozen=True, kw_only=True):
    """A line of descent or likeness between a model and another."""

    direction: Direction
    model: Annotated[ModelText | None, Meta(description="The other model; null for a parent that is not registered.")]
    text: Annotated[Text | None, Meta(description="The name of the parent as the model declares it.")]
    relation: Relation
    evidence: Evidence
    likeness: Annotated[Likeness | None, Meta(description="The mean over the matrices at equal places.")]
    compared: Annotated[Count | None, Meta(description="How many organs the likeness is over.")]


class ModelLineage(Entity, frozen=True, kw_only=True):
    """What a model declares, what was recorded and what was measured; and where these disagree."""

    model: ModelText
    edges: Annotated[
        tuple[LineageEdge, ...],
        Meta(max_length=EDGES_MAX, description="Parents, then children, then relatives, the most alike first."),
    ]
    left_out: Annotated[Count, Meta(description="Edges beyond the first 200.")]
    findings: Annotated[tuple[Finding, ...], Meta(max_length=EDGES_MAX)]


class FamilyMember(Entity, frozen=True, kw_only=True):
    """A model of a family."""

    name: ModelText
    title: Text | None
    kind: Word
    state: Word
    mean_theta: Annotated[Theta | None, Meta(description="Mean θ over its tensors, in degrees.")]
    generation: Annotated[Count, Meta(description="Steps from a first ancestor; one that is not registered counts.")]


class FamilyEdge(Entity, frozen=True, kw_only=True):
    """A line between two models of a family. The two of a measured edge stand in no order."""

    child: ModelText
    parent: ModelText
    relation: Relation
    evidence: Evidence
    likeness: Likeness | None


class MissingParent(Entity, frozen=True, kw_only=True):
    """A parent that models of a family name, and that is not registered."""

    text: Annotated[Text, Meta(description="Its name as they declare it, cut to 200 characters.")]
    children: Annotated[tuple[ModelText, ...], Meta(max_length=MODELS_MAX)]
    relation: Relation


class Family(Entity, frozen=True, kw_only=True):
    """Models that descend from each other or are alike, with those that name one parent."""

    name: Annotated[ModelText, Meta(description="The member that was registered first.")]
    count: Annotated[Count, Meta(description="How many members it has.")]
    left_out: Annotated[Count, Meta(description="Members that are not in `models`: those with the fewest edges.")]
    models: Annotated[
        tuple[FamilyMember, ...], Meta(max_length=MODELS_MAX, description="By generation, then the oldest first.")
    ]
    edges: Annotated[tuple[FamilyEdge, ...], Meta(max_length=EDGES_MAX)]
    missing: Annotated[
        tuple[MissingParent, ...], Meta(max_length=MODELS_MAX, description="Those with the most children first.")
    ]


class FamilyPage(Page[Family], frozen=True, kw_only=True):
    """One page of families, the largest first."""

    count: Annotated[Count, Meta(description="How many families there are.")]
