"""What relatives are found by: organs with their fingerprints at equal places, edges, and names that models go by."""

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

_FETCHED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class ComparablePlacement:
    """An organ at its place, as two models are compared by it."""

    name: str
    slot: Slot
    organ: ComparableOrgan
    theta: float | None


@dataclass(frozen=True, slots=True)
class Edge:
    """A line of lineage between models, or to a parent that is only named."""

    child_id: int
    parent_id: int | None
    parent_text: str | None
    relation: str
    evidence: str
    score: float | None


def placed_organs(session: Session, model_id: int) -> list[ComparablePlacement]:
    """Return the organs of a model in order."""
    from organs.registry.lineage import ComparableOrgan  # with numpy, which searches do not need

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
    """The organs of a model by their places."""
    return {placed.slot: placed.organ for placed in placed_organs(session, model_id)}


def organs_at(session: Session, place: Slot) -> Sequence[Row[int, bytes | None]]:
    """The different organs that any models have at `place`, of any shape, with their fingerprints.

    Answered by the index of places and the fingerprints alone: it runs over every model of an architecture.
    """
    statement = (
        select(Placement.organ_id, Fingerprint.values)
        .outerjoin(Fingerprint, Fingerprint.organ_id == Placement.organ_id)
        .where(*_is_at(place))
        .distinct()
    )
    return session.execute(statement).all()


def models_with(session: Session, place: Slot, organ_ids: Collection[int]) -> list[tuple[int, int]]:
    """Model and organ, where a visible model has one of `organ_ids` at `place`."""
    found: list[tuple[int, int]] = []
    for batch in batches(sorted(organ_ids)):
        statement = select(Placement.model_id, Placement.organ_id).where(
            *_is_at(place), Placement.organ_id.in_(batch), Placement.visible
        )
        found += [(model_id, organ_id) for model_id, organ_id in session.execute(statement)]
    return found


def edges_of(session: Session, model_id: int, limit: int) -> tuple[list[Lineage], int]:
    """Return edges between a model and others that may be shown, or are only named, and how many there are.

    Of its parents and of its children those are returned that were recorded first, of its measured relatives the most
    alike, at most `limit` of each. A model may have edges to ten thousand others.
    """
    to_parent, to_child = Lineage.child_model_id == model_id, Lineage.parent_model_id == model_id
    shown = Model.state.in_(REACHABLE_STATES)
    parent_shown = select(Model.id).where(Model.id == Lineage.parent_model_id, shown).exists()
    child_shown = select(Model.id).where(Model.id == Lineage.child_model_id, shown).exists()
    parents = and_(to_parent, or_(Lineage.parent_model_id.is_(None), parent_shown))
    children = and_(to_child, child_shown)
    is_measured = Lineage.evidence == "measured"
    found: list[Lineage] = []
    for ends, order in (
        (and_(parents, ~is_measured), Lineage.id),
        (and_(children, ~is_measured), Lineage.id),
        (and_(or_(parents, children), is_measured), Lineage.score.desc()),
    ):
        found += session.scalars(select(Lineage).where(ends).order_by(order, Lineage.id).limit(limit))
    count = select(func.count()).select_from(Lineage)
    return found, sum(session.scalar(count.where(ends)) or 0 for ends in (parents, children))


def parents_of(session: Session, model_ids: Collection[int], evidence: Sequence[str]) -> list[Lineage]:
    """The edges from the models to their parents on any of the `evidence`, by model and in the order of their rows."""
    found: list[Lineage] = []
    for batch in batches(sorted(model_ids)):
        statement = select(Lineage).where(Lineage.child_model_id.in_(batch), Lineage.evidence.in_(evidence))
        found += session.scalars(statement.order_by(Lineage.child_model_id, Lineage.id))
    return found


def measured_relation(session: Session, first_id: int, second_id: int) -> str | None:
    """Return the relation that was measured between two models, whichever came first; None if they are not alike."""
    ends = (Lineage.child_model_id == max(first_id, second_id), Lineage.parent_model_id == min(first_id, second_id))
    return session.scalar(select(Lineage.relation).where(*ends, Lineage.evidence == "measured").limit(1))


def declared_texts_to(session: Session, model_ids: Collection[int]) -> Iterator[str]:
    """The texts of the declared edges that lead to no registered model, then those that lead to one of `model_ids`.

    They are streamed: in a large catalog many edges lead nowhere.
    """
    for leads_there in _leading_to(model_ids):
        statement = select(Lineage.parent_text).where(leads_there, *_IS_DECLARED).distinct()
        for text in session.scalars(statement.execution_options(yield_per=_FETCHED_AT_ONCE)):
            yield text or ""


def declared_edges_with(
    session: Session, texts: Collection[str], model_ids: Collection[int], but: int, limit: int
) -> list[Lineage]:
    """Up to `limit` edges of one of `texts` as `declared_texts_to` takes them, the oldest of either first.

    Those that the model `but` declares are left out. `texts` are at most a few hundred.
    """
    found: list[Lineage] = []
    for leads_there in _leading_to(model_ids):
        if texts and len(found) < limit:
            statement = select(Lineage).where(leads_there, *_IS_DECLARED, Lineage.parent_text.in_(sorted(texts)))
            statement = statement.where(Lineage.child_model_id != but).order_by(Lineage.id)
            found += session.scalars(statement.limit(limit - len(found)))
    return found


def models_by_id(session: Session, model_ids: Collection[int]) -> dict[int, Model]:
    """The models of `model_ids` that may be shown."""
    found: dict[int, Model] = {}
    for batch in batches(sorted(model_ids)):
        rows = session.scalars(select(Model).where(Model.id.in_(batch), Model.state.in_(REACHABLE_STATES)))
        found |= {model.id: model for model in rows}
    return found


def visible_models_with_words(session: Session, words: Collection[str], limit: int) -> Sequence[Model]:
    """Visible models with tensors whose name, title, tags and description have all of `words`, oldest first."""
    having = (
        select(ModelWord.model_id)
        .where(ModelWord.word.in_(sorted(set(words))))
        .group_by(ModelWord.model_id)
        .having(func.count() == len(set(words)))
    )
    statement = select(Model).where(Model.id.in_(having), Model.state == "visible", Model.kind == "model")
    return session.scalars(statement.order_by(Model.id).limit(limit)).all()


def metadata_texts(session: Session, model_ids: Collection[int], keys: Collection[str]) -> dict[int, dict[str, str]]:
    """The strings under `keys` in the metadata of each model; other types are left out."""
    found: dict[int, dict[str, str]] = {model_id: {} for model_id in model_ids}
    for batch in batches(sorted(model_ids)):
        statement = select(ModelMetadata.model_id, ModelMetadata.key, ModelMetadata.value).where(
            ModelMetadata.model_id.in_(batch), ModelMetadata.key.in_(sorted(keys)), ModelMetadata.type == "string"
        )
        for model_id, key, value in session.execute(statement):
            found[model_id][key] = value
    return found


def shown_model_ids(session: Session) -> set[int]:
    """The ids of all models that may be shown."""
    return set(session.scalars(select(Model.id).where(Model.state.in_(REACHABLE_STATES))))


def joined_models(session: Session) -> list[tuple[int, list[int]]]:
    """Every model with edges to other models, and these, hidden ones among them, each as often as there are edges.

    One row a model: there may be a hundred thousand edges.
    """
    parents = func.aggregate_strings(cast(Lineage.parent_model_id, String), ",")
    statement = select(Lineage.child_model_id, parents).where(
        Lineage.child_model_id.is_not(None), Lineage.parent_model_id.is_not(None)
    )
    rows = session.execute(statement.group_by(Lineage.child_model_id))
    return [(child or 0, list(map(int, listed.split(",")))) for child, listed in rows]


def unregistered_parents(session: Session, length: int) -> Sequence[Row[int, str]]:
    """Child, and the first `length` characters of the name of its parent, of every edge that leads to no model."""
    statement = select(Lineage.child_model_id, func.substr(Lineage.parent_text, 1, length)).where(
        Lineage.child_model_id.is_not(None), Lineage.parent_model_id.is_(None), Lineage.parent_text.is_not(None)
    )
    return session.execute(statement).all()


def edges_from(session: Session, model_ids: Collection[int]) -> list[Edge]:
    """All edges from these models to their parents and measured relatives, in the order of their rows."""
    columns = (Lineage.id, Lineage.child_model_id, Lineage.parent_model_id, Lineage.parent_text)
    found: dict[int, Edge] = {}
    for batch in batches(sorted(model_ids)):
        statement = select(*columns, Lineage.relation, Lineage.evidence, Lineage.score)
        rows = session.execute(statement.where(Lineage.child_model_id.in_(batch)))
        for row_id, child, parent, text, relation, evidence, score in rows:
            found[row_id] = Edge(child or 0, parent, text, relation, evidence, score)
    return [found[row_id] for row_id in sorted(found)]


def organ_digests(session: Session, model_id: int) -> dict[int, str]:
    """The digests of a model's organs by the ids of these."""
    statement = select(Organ.id, Blob.digest).join(Blob, Blob.id == Organ.blob_id)
    placed = statement.join(Placement, Placement.organ_id == Organ.id).where(Placement.model_id == model_id)
    return dict(session.execute(placed.distinct()).all())


_IS_DECLARED = (Lineage.child_model_id.is_not(None), Lineage.evidence == "declared")


def _leading_to(model_ids: Collection[int]) -> Iterator[ColumnElement[bool]]:
    """Conditions of edges: that they lead to no model, then that they lead to one of `model_ids`."""
    yield Lineage.parent_model_id.is_(None)
    for batch in batches(sorted(model_ids)):
        yield Lineage.parent_model_id.in_(batch)


def _is_at(place: Slot) -> tuple[ColumnElement[bool], ...]:
    tower, block, slot = place
    return Placement.slot == slot, Placement.block == block, Placement.tower == tower


@lru_cache(maxsize=1024)
def _lengths(shape: str) -> tuple[int, ...]:
    return tuple(map(int, shape.split("x")))
