"""Queries for relatives: organs with fingerprints at equal places, edges of lineage, and names of models."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, Row, String, and_, cast, func, or_, select
from sqlalchemy.orm import Session

from organs.registry.catalog.engine import batches
from organs.registry.catalog.tables import Blob, Fingerprint, Lineage, Model, ModelMetadata, ModelWord, Organ, Placement
from organs.registry.catalog.vocabulary import REACHABLE_STATES

if TYPE_CHECKING:
    from organs.registry.anatomy import Slot
    from organs.registry.lineage import ComparableOrgan

_STREAM_ROWS = 1000


@dataclass(frozen=True, slots=True)
class ComparablePlacement:
    """An organ at its place, for the comparison of two models."""

    name: str
    slot: Slot
    organ: ComparableOrgan
    theta: float | None


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of lineage between two models, or from a model to a parent that is only named."""

    child_id: int
    parent_id: int | None
    parent_text: str | None
    relation: str
    evidence: str
    score: float | None


def comparable_organs(session: Session, model_id: int) -> list[ComparablePlacement]:
    """Return the organs of a model in order."""
    from organs.registry.lineage import ComparableOrgan  # imports numpy, which searches do not need

    statement = (
        select(
            *(Placement.name, Placement.tower, Placement.block, Placement.slot, Placement.type, Placement.theta),
            *(Organ.id, Organ.shape, Organ.dtype, Fingerprint.values),
        )
        .join(Organ, Organ.id == Placement.organ_id)
        .outerjoin(Fingerprint, Fingerprint.organ_id == Placement.organ_id)
        .where(Placement.model_id == model_id)
        .order_by(Placement.position)
    )
    return [
        ComparablePlacement(
            name,
            (tower, block, slot),
            ComparableOrgan(kind, _lengths(shape), dtype, fingerprint, organ_id),
            theta,
        )
        for name, tower, block, slot, kind, theta, organ_id, shape, dtype, fingerprint in session.execute(statement)
    ]


def organs_by_slot(session: Session, model_id: int) -> dict[Slot, ComparableOrgan]:
    """Return the organs of a model by their places."""
    return {placed.slot: placed.organ for placed in comparable_organs(session, model_id)}


def organs_at(session: Session, place: Slot) -> Sequence[Row[int, bytes | None]]:
    """Return the distinct organs of all models at `place`, of any shape, with their fingerprints.

    Reads only the index of places and the fingerprints, because it covers every model of an architecture.
    """
    statement = (
        select(Placement.organ_id, Fingerprint.values)
        .outerjoin(Fingerprint, Fingerprint.organ_id == Placement.organ_id)
        .where(*_is_at(place))
        .distinct()
    )
    return session.execute(statement).all()


def models_with(session: Session, place: Slot, organ_ids: Collection[int]) -> list[tuple[int, int]]:
    """Return pairs of a visible model and the organ of `organ_ids` that it has at `place`."""
    pairs: list[tuple[int, int]] = []
    for batch in batches(sorted(organ_ids)):
        statement = select(Placement.model_id, Placement.organ_id).where(
            *_is_at(place), Placement.organ_id.in_(batch), Placement.visible
        )
        pairs += [(model_id, organ_id) for model_id, organ_id in session.execute(statement)]
    return pairs


def edges_of(session: Session, model_id: int, limit: int) -> tuple[list[Lineage], int]:
    """Return edges between a model and public models or named parents, and the number of all these edges.

    At most `limit` edges of each kind are returned, because a model may have edges to ten thousand others: the oldest
    edges to parents, the oldest edges to children, and the edges to the most similar measured relatives.
    """
    to_parent, to_child = Lineage.child_model_id == model_id, Lineage.parent_model_id == model_id
    is_public = Model.state.in_(REACHABLE_STATES)
    parent_is_public = select(Model.id).where(Model.id == Lineage.parent_model_id, is_public).exists()
    child_is_public = select(Model.id).where(Model.id == Lineage.child_model_id, is_public).exists()
    parents = and_(to_parent, or_(Lineage.parent_model_id.is_(None), parent_is_public))
    children = and_(to_child, child_is_public)
    is_measured = Lineage.evidence == "measured"
    edges: list[Lineage] = []
    for ends, order in (
        (and_(parents, ~is_measured), Lineage.id),
        (and_(children, ~is_measured), Lineage.id),
        (and_(or_(parents, children), is_measured), Lineage.score.desc()),
    ):
        edges += session.scalars(select(Lineage).where(ends).order_by(order, Lineage.id).limit(limit))
    count = select(func.count()).select_from(Lineage)
    return edges, sum(session.scalar(count.where(ends)) or 0 for ends in (parents, children))


def parents_of(session: Session, model_ids: Collection[int], evidence: Sequence[str]) -> list[Lineage]:
    """Return the edges of models to their parents with one of the kinds of `evidence`, by model and row id."""
    edges: list[Lineage] = []
    for batch in batches(sorted(model_ids)):
        statement = select(Lineage).where(Lineage.child_model_id.in_(batch), Lineage.evidence.in_(evidence))
        edges += session.scalars(statement.order_by(Lineage.child_model_id, Lineage.id))
    return edges


def measured_relation(session: Session, first_id: int, second_id: int) -> str | None:
    """Return the measured relation of two models, in any order; None if they are not similar."""
    ends = (Lineage.child_model_id == max(first_id, second_id), Lineage.parent_model_id == min(first_id, second_id))
    return session.scalar(select(Lineage.relation).where(*ends, Lineage.evidence == "measured").limit(1))


def declared_texts_to(session: Session, model_ids: Collection[int]) -> Iterator[str]:
    """Yield the texts of declared edges without a registered parent, then those of edges to one of `model_ids`.

    They are streamed, because a large catalog has many edges without a registered parent.
    """
    for has_parent in _parent_conditions(model_ids):
        statement = select(Lineage.parent_text).where(has_parent, *_IS_DECLARED).distinct()
        for text in session.scalars(statement.execution_options(yield_per=_STREAM_ROWS)):
            yield text or ""


def declared_edges_with(
    session: Session, texts: Collection[str], model_ids: Collection[int], but: int, limit: int
) -> list[Lineage]:
    """Return up to `limit` edges with one of `texts`, in the order of `declared_texts_to`, oldest first.

    Edges of the model `but` are left out. `texts` are at most a few hundred.
    """
    edges: list[Lineage] = []
    for has_parent in _parent_conditions(model_ids):
        if texts and len(edges) < limit:
            statement = select(Lineage).where(has_parent, *_IS_DECLARED, Lineage.parent_text.in_(sorted(texts)))
            statement = statement.where(Lineage.child_model_id != but).order_by(Lineage.id)
            edges += session.scalars(statement.limit(limit - len(edges)))
    return edges


def models_by_id(session: Session, model_ids: Collection[int]) -> dict[int, Model]:
    """Return the public models among `model_ids`, by id."""
    models: dict[int, Model] = {}
    for batch in batches(sorted(model_ids)):
        rows = session.scalars(select(Model).where(Model.id.in_(batch), Model.state.in_(REACHABLE_STATES)))
        models |= {model.id: model for model in rows}
    return models


def visible_models_with_words(session: Session, words: Collection[str], limit: int) -> Sequence[Model]:
    """Return visible models that have all of `words` in name, title, tags and description, oldest first."""
    model_ids = (
        select(ModelWord.model_id)
        .where(ModelWord.word.in_(sorted(set(words))))
        .group_by(ModelWord.model_id)
        .having(func.count() == len(set(words)))
    )
    statement = select(Model).where(Model.id.in_(model_ids), Model.state == "visible", Model.kind == "model")
    return session.scalars(statement.order_by(Model.id).limit(limit)).all()


def metadata_texts(session: Session, model_ids: Collection[int], keys: Collection[str]) -> dict[int, dict[str, str]]:
    """Return the strings of `keys` in the metadata of each model; other types are left out."""
    texts: dict[int, dict[str, str]] = {model_id: {} for model_id in model_ids}
    for batch in batches(sorted(model_ids)):
        statement = select(ModelMetadata.model_id, ModelMetadata.key, ModelMetadata.value).where(
            ModelMetadata.model_id.in_(batch), ModelMetadata.key.in_(sorted(keys)), ModelMetadata.type == "string"
        )
        for model_id, key, value in session.execute(statement):
            texts[model_id][key] = value
    return texts


def public_model_ids(session: Session) -> set[int]:
    """Return the ids of all public models."""
    return set(session.scalars(select(Model.id).where(Model.state.in_(REACHABLE_STATES))))


def connected_models(session: Session) -> list[tuple[int, list[int]]]:
    """Return each child in edges with the ids of the parents, including hidden models and repetitions.

    The database returns one row for each child, because there may be a hundred thousand edges.
    """
    parents = func.aggregate_strings(cast(Lineage.parent_model_id, String), ",")
    statement = select(Lineage.child_model_id, parents).where(
        Lineage.child_model_id.is_not(None), Lineage.parent_model_id.is_not(None)
    )
    rows = session.execute(statement.group_by(Lineage.child_model_id))
    return [(child or 0, list(map(int, listed.split(",")))) for child, listed in rows]


def unregistered_parents(session: Session, length: int) -> Sequence[Row[int, str]]:
    """Return child and parent name, cut at `length` characters, of every edge without a registered parent."""
    statement = select(Lineage.child_model_id, func.substr(Lineage.parent_text, 1, length)).where(
        Lineage.child_model_id.is_not(None), Lineage.parent_model_id.is_(None), Lineage.parent_text.is_not(None)
    )
    return session.execute(statement).all()


def edges_from(session: Session, model_ids: Collection[int]) -> list[Edge]:
    """Return all edges from these models to their parents and measured relatives, in the order of their rows."""
    columns = (Lineage.id, Lineage.child_model_id, Lineage.parent_model_id, Lineage.parent_text)
    edges: dict[int, Edge] = {}
    for batch in batches(sorted(model_ids)):
        statement = select(*columns, Lineage.relation, Lineage.evidence, Lineage.score)
        rows = session.execute(statement.where(Lineage.child_model_id.in_(batch)))
        for row_id, child, parent, text, relation, evidence, score in rows:
            edges[row_id] = Edge(child or 0, parent, text, relation, evidence, score)
    return [edges[row_id] for row_id in sorted(edges)]


def organ_digests(session: Session, model_id: int) -> dict[int, str]:
    """Return the digests of the organs of a model by organ id."""
    statement = select(Organ.id, Blob.digest).join(Blob, Blob.id == Organ.blob_id)
    placed = statement.join(Placement, Placement.organ_id == Organ.id).where(Placement.model_id == model_id)
    return dict(session.execute(placed.distinct()).all())


_IS_DECLARED = (Lineage.child_model_id.is_not(None), Lineage.evidence == "declared")


def _parent_conditions(model_ids: Collection[int]) -> Iterator[ColumnElement[bool]]:
    """Yield the condition of edges without a registered parent, then those of edges to one of `model_ids`."""
    yield Lineage.parent_model_id.is_(None)
    for batch in batches(sorted(model_ids)):
        yield Lineage.parent_model_id.in_(batch)


def _is_at(place: Slot) -> tuple[ColumnElement[bool], ...]:
    tower, block, slot = place
    return Placement.slot == slot, Placement.block == block, Placement.tower == tower


@lru_cache(maxsize=1024)
def _lengths(shape: str) -> tuple[int, ...]:
    return tuple(map(int, shape.split("x")))


def likenesses(session: Session, model_id: int) -> dict[int, float]:
    """Return the likeness of a model to each of its measured relatives, by their ids."""
    ends = (Lineage.child_model_id, Lineage.parent_model_id)
    statement = select(*ends, Lineage.score).where(
        Lineage.evidence == "measured", Lineage.score.is_not(None), or_(*(end == model_id for end in ends))
    )
    pairs = ((parent if child == model_id else child, score) for child, parent, score in session.execute(statement))
    return {other: score for other, score in pairs if other is not None and score is not None}
