"""Queries for relatives: organs with fingerprints at equal places, edges of lineage, and names of models."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, Integer, Row, String, and_, case, cast, func, literal, null, or_, select
from sqlalchemy.orm import Session, aliased

from organs.registry.amounts import weight_change
from organs.registry.catalog.cache import cached
from organs.registry.catalog.rows import among, batches, count, first, rows_among, scalars_among
from organs.registry.catalog.tables import (
    Blob,
    CardImageRow,
    Derivation,
    Expert,
    FilePart,
    Fingerprint,
    Lineage,
    ModelRow,
    ModelWord,
    OrganRow,
    Placement,
)
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.kinds import WEIGHT_KINDS

if TYPE_CHECKING:
    from organs.registry.anatomy import Slot
    from organs.registry.similarity import ComparableOrgan

_STREAM_ROWS = 1000


@dataclass(frozen=True, slots=True)
class ComparablePlacement:
    """An organ at its place, for the comparison of two models."""

    name: str
    slot: Slot
    organ: ComparableOrgan
    theta: float | None


@dataclass(frozen=True, slots=True)
class RelatedOrgan:
    """An organ with a fingerprint, and whether a visible model has it."""

    blob_id: int
    dtype: str
    shape: tuple[int, ...]
    fingerprint: bytes
    is_public: bool = True


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of lineage between two models, or from a model to a parent that is only named.

    The parent of a measured edge is the model that was registered first, which is not necessarily the ancestor.
    """

    child_id: int
    parent_id: int
    """0 for a parent that is only named."""
    relation: str
    change: float | None = None
    """The mean change of a measured edge; None if it is not known."""
    matched: float | None = None
    """Of a measured edge of a quantisation that was encoded again: the share of equal blocks."""
    score: float | None = None
    """The mean correlation of a measured edge, -1 to 1."""
    compared: int | None = None
    """The number of matrices in the mean."""
    evidence: str = "measured"
    parent_text: str | None = None
    directed: bool = False
    """Whether it is known which of the two is the parent."""

    @property
    def distance(self) -> float:
        """The change, from the likeness if it is not known exactly."""
        return weight_change(self.change, self.score)


class StatedEdge(NamedTuple):
    """An edge that a file declares or the registry recorded, with the name of the parent as it is declared."""

    child_id: int
    parent_id: int | None
    text: str


def stated_edges(session: Session) -> Iterator[StatedEdge]:
    """Yield the edges of all models that are not measured."""
    statement = select(Lineage.child_model_id, Lineage.parent_model_id, Lineage.parent_text).where(
        Lineage.child_model_id.is_not(None), Lineage.evidence != "measured"
    )
    for child, parent, text in session.execute(statement):
        yield StatedEdge(child or 0, parent, text or "")


def comparable_organs(session: Session, model_id: int) -> list[ComparablePlacement]:
    """Return the organs of a model in order."""
    from organs.registry.similarity import ComparableOrgan  # imports numpy, which searches do not need

    statement = (
        select(
            *(Placement.name, Placement.tower, Placement.block, Placement.slot, Placement.type, Placement.theta),
            *(OrganRow.id, OrganRow.shape, OrganRow.dtype, Fingerprint.values),
        )
        .join(OrganRow, OrganRow.id == Placement.organ_id)
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
    statement = select(Placement.model_id, Placement.organ_id).where(*_is_at(place), Placement.visible)
    rows = rows_among(session, statement, Placement.organ_id, organ_ids)
    return [(model_id, organ_id) for model_id, organ_id in rows]


ExpertPlace: TypeAlias = "tuple[Slot, int | None]"
"""The place of a tensor, and the number of the expert in its stack."""


def organs_of_models(session: Session, model_ids: Sequence[int]) -> Iterator[tuple[ExpertPlace, RelatedOrgan]]:
    """Yield the organs with fingerprints of each model in turn, and those of its experts, with their places."""
    for model_id in model_ids:
        for table in (Placement, Expert):
            statement = (
                _select_places(table)
                .add_columns(*_RELATED)
                .join(OrganRow, OrganRow.id == table.organ_id)
                .join(Fingerprint, Fingerprint.organ_id == OrganRow.id)
                .where(table.model_id == model_id)
            )
            for tower, block, slot, number, blob_id, dtype, shape, values in session.execute(statement):
                yield ((tower, block, slot), number), RelatedOrgan(blob_id, dtype, _lengths(shape), values)


def _select_places(table: type[Placement | Expert]) -> Any:
    """Return a SELECT of the places of organs: tower, block, slot and number of the expert."""
    expert = Expert.expert if table is Expert else cast(null(), Integer)
    return select(table.tower, table.block, table.slot, expert)


def blob_ids_of_models(session: Session, model_ids: Collection[int]) -> set[int]:
    """Return the blobs of the organs of these models, and of their experts."""
    blob_ids: set[int] = set()
    for table in (Placement, Expert):
        statement = select(OrganRow.blob_id).join(table, table.organ_id == OrganRow.id).distinct()
        blob_ids.update(scalars_among(session, statement, table.model_id, model_ids))
    return blob_ids


def blobs_in_models(session: Session, blob_ids: Collection[int]) -> set[int]:
    """Return those of the blobs that are organs of models, other parts of their files, or images of their cards."""
    columns: tuple[Any, ...] = (OrganRow.blob_id, FilePart.blob_id, CardImageRow.blob_id)
    used = (scalars_among(session, select(column).distinct(), column, blob_ids) for column in columns)
    return set(chain.from_iterable(used))


def models_with_blobs(session: Session, blob_ids: Collection[int]) -> set[int]:
    """Return the models that have one of the blobs as an organ or as an expert."""
    found: set[int] = set()
    for table in (Placement, Expert):
        statement = select(table.model_id).join(OrganRow, OrganRow.id == table.organ_id).distinct()
        found.update(scalars_among(session, statement, OrganRow.blob_id, blob_ids))
    return found


def first_dependants(session: Session, blob_ids: Collection[int]) -> set[int]:
    """Return the oldest model that needs each of these blobs, or of their parents, that no model has."""
    above: set[int | None] = set(blob_ids)
    own, parent = aliased(Blob), aliased(Blob)
    parents = select(own.depends_on, parent.depends_on).join(parent, parent.id == own.depends_on).distinct()
    above.update(*rows_among(session, parents, own.id, blob_ids))
    blobs = {blob_id for blob_id in above if blob_id is not None}
    unused = blobs - blobs_in_models(session, blobs)
    models: set[int] = set()
    for parent_id, model_id, joined in _dependants():
        oldest = joined.with_only_columns(func.min(model_id)).group_by(parent_id)
        models.update(scalars_among(session, oldest, parent_id, unused))
    return models


def dependants_of(session: Session, blob_ids: Collection[int], but: int, limit: int) -> tuple[set[int], list[int]]:
    """Return those of the blobs that organs of models other than `but` depend on, and up to `limit` of these models."""
    needed: set[int] = set()
    models: set[int] = set()
    for batch in batches(sorted(blob_ids)):
        for parent_id, model_id, joined in _dependants():
            others = joined.where(parent_id.in_(batch), model_id != but)
            needed.update(session.scalars(others.with_only_columns(parent_id).distinct()))
            if len(models) < limit:
                models.update(session.scalars(others.with_only_columns(model_id).distinct().limit(limit)))
    return needed, sorted(models)[:limit]


def _dependants() -> Iterator[tuple[Any, Any, Any]]:
    """Yield the columns of a blob and of a model that needs it for organs, with the SELECT that joins them.

    Organs depend on a blob directly, or through one other blob.
    """
    for table in (Placement, Expert):
        child, below = aliased(Blob), aliased(Blob)
        placed = select(table.model_id).join(OrganRow, OrganRow.id == table.organ_id)
        yield child.depends_on, table.model_id, placed.join(child, child.id == OrganRow.blob_id)
        indirect = placed.join(below, below.id == OrganRow.blob_id).join(child, child.id == below.depends_on)
        yield child.depends_on, table.model_id, indirect


def models_to_repack(session: Session, limit: int | None = None, *, everything: bool = False) -> Sequence[int]:
    """Return the models whose organs no repack has examined, or all models, the oldest first."""
    statement = select(ModelRow.id).where(ModelRow.state != "removed").order_by(ModelRow.id).limit(limit)
    return session.scalars(statement if everything else statement.where(ModelRow.repacked_at.is_(None))).all()


def places_of(session: Session, model_ids: Collection[int]) -> list[ExpertPlace]:
    """Return the places of the models, and those of their experts."""
    places: dict[ExpertPlace, None] = {}
    for table in (Placement, Expert):
        rows = rows_among(session, _select_places(table).distinct(), table.model_id, model_ids)
        places.update((((tower, block, slot), number), None) for tower, block, slot, number in rows)
    return list(places)


def related_organs_at(
    session: Session, place: ExpertPlace, model_ids: Collection[int] | None = None
) -> list[RelatedOrgan]:
    """Return the distinct organs with fingerprints at `place`, by blob: of the models `model_ids`, or of all models."""
    (tower, block, slot), number = place
    table = Placement if number is None else Expert
    statement = (
        select(*_RELATED, func.max(case((table.visible, 1), else_=0)))
        .select_from(table)
        .join(OrganRow, OrganRow.id == table.organ_id)
        .join(Fingerprint, Fingerprint.organ_id == OrganRow.id)
        .where(table.slot == slot, table.block == block, table.tower == tower)
        .group_by(*_RELATED)
        .order_by(OrganRow.blob_id)
    )
    if number is not None:
        statement = statement.where(Expert.expert == number)
    if model_ids is not None:
        statement = statement.where(among(table.model_id, model_ids))
        if number is None:
            statement = statement.with_hint(Placement, "INDEXED BY ix_placements_place", "sqlite")
    return [
        RelatedOrgan(blob_id, dtype, _lengths(shape), values, is_public > 0)
        for blob_id, dtype, shape, values, is_public in session.execute(statement)
    ]


_RELATED = (OrganRow.blob_id, OrganRow.dtype, OrganRow.shape, Fingerprint.values)


def edges_of(session: Session, model_id: int, limit: int) -> tuple[list[Lineage], int]:
    """Return edges between a model and public models or named parents, and the number of all these edges.

    At most `limit` edges of each kind are returned, because a model may have edges to ten thousand others: the oldest
    edges to parents, the oldest edges to children, and the edges to the nearest measured relatives.
    """
    is_public = ModelRow.state.in_(REACHABLE_STATES)
    parent_is_public = select(ModelRow.id).where(ModelRow.id == Lineage.parent_model_id, is_public).exists()
    child_is_public = select(ModelRow.id).where(ModelRow.id == Lineage.child_model_id, is_public).exists()
    has_parent = or_(Lineage.parent_model_id.is_(None), parent_is_public)
    parents = and_(Lineage.child_model_id == model_id, has_parent)
    children = and_(Lineage.parent_model_id == model_id, child_is_public)
    is_measured = Lineage.evidence == "measured"
    edges: list[Lineage] = []
    for ends, order in (
        (and_(parents, ~is_measured), Lineage.id),
        (and_(children, ~is_measured), Lineage.id),
        (and_(or_(parents, children), is_measured), func.coalesce(Lineage.change, 2.0 * (1.0 - Lineage.score))),
    ):
        edges += session.scalars(select(Lineage).where(ends).order_by(order, Lineage.id).limit(limit))
    return edges, count(session, Lineage, parents) + count(session, Lineage, children)


def parents_of(session: Session, model_ids: Collection[int], evidence: Sequence[str]) -> list[Lineage]:
    """Return the edges of models to their parents with one of the kinds of `evidence`, by model and row id."""
    statement = select(Lineage).where(Lineage.evidence.in_(evidence)).order_by(Lineage.child_model_id, Lineage.id)
    return list(scalars_among(session, statement, Lineage.child_model_id, model_ids))


def measured_edge(session: Session, first_id: int, second_id: int) -> Lineage | None:
    """Return the measured edge between two models, in any order; None if they are not similar."""
    ends = (Lineage.child_model_id == max(first_id, second_id), Lineage.parent_model_id == min(first_id, second_id))
    return first(session, select(Lineage).where(*ends, Lineage.evidence == "measured"))


def measured_edges(session: Session, model_id: int) -> Sequence[Lineage]:
    """Return the measured edges of a model to public models, in the order of their rows."""
    ends = or_(Lineage.child_model_id == model_id, Lineage.parent_model_id == model_id)
    public = select(ModelRow.id).where(ModelRow.state.in_(REACHABLE_STATES))
    statement = select(Lineage).where(ends, Lineage.evidence == "measured", Lineage.child_model_id.in_(public))
    return session.scalars(statement.where(Lineage.parent_model_id.in_(public)).order_by(Lineage.id)).all()


def blobs_of_organs(session: Session, organ_ids: Collection[int]) -> dict[int, int]:
    """Return the blob of each organ."""
    rows = rows_among(session, select(OrganRow.id, OrganRow.blob_id), OrganRow.id, organ_ids)
    return {organ_id: blob_id for organ_id, blob_id in rows}  # noqa: C416  # rows are not plain tuples


def derivations(session: Session, organ_ids: Collection[int]) -> dict[tuple[int, int], Derivation]:
    """Return what is proved of these organs, by the organ and its source."""
    rows = scalars_among(session, select(Derivation), Derivation.organ_id, organ_ids)
    return {(row.organ_id, row.source_id): row for row in rows}


class ProvedPlace(NamedTuple):
    """An organ of a quantisation, and the organ at the same place of the model from which it was made."""

    name: str
    """The tensor in the source."""
    slot: Slot
    row: Derivation


def proved_models(session: Session, model_id: int, *, is_source: bool = False) -> dict[int, int]:
    """Return the visible models from which organs of a model were made, or with `is_source` those made from its organs.

    Beside each is the number of organs of which all blocks are equal, at the same places; the models with most of them
    come first, of equal ones the oldest.
    """
    own, other = aliased(Placement), aliased(Placement)
    number = func.count()
    statement = (
        _at_same_places(select(other.model_id, number), own, other, is_source=is_source)
        .where(own.model_id == model_id, other.model_id != model_id, other.visible)
        .where(Derivation.equal_blocks == Derivation.blocks)
        .group_by(other.model_id)
        .order_by(number.desc(), other.model_id)
    )
    return {other_id: found for other_id, found in session.execute(statement)}  # noqa: C416  # rows are not plain tuples


def proved_places(session: Session, model_id: int, source_id: int) -> list[ProvedPlace]:
    """Return what is proved of the organs of a model and of those at the same places of another one."""
    own, other = aliased(Placement), aliased(Placement)
    statement = _at_same_places(select(other.name, own.tower, own.block, own.slot, Derivation), own, other)
    statement = statement.where(own.model_id == model_id, other.model_id == source_id).order_by(own.position)
    return [
        ProvedPlace(name, (tower, block, slot), row) for name, tower, block, slot, row in session.execute(statement)
    ]


def _at_same_places(statement: Any, own: Any, other: Any, *, is_source: bool = False) -> Any:
    """Return a statement joined with derivations, and with the placements of both organs at the same place."""
    mine, theirs = Derivation.organ_id, Derivation.source_id
    if is_source:
        mine, theirs = theirs, mine
    same = and_(other.slot == own.slot, other.tower == own.tower, other.block.is_not_distinct_from(own.block))
    joined = statement.select_from(Derivation).join(own, own.organ_id == mine)
    return joined.join(other, and_(other.organ_id == theirs, same))


def organ_identities(session: Session, organ_ids: Collection[int]) -> dict[int, tuple[str, str, str]]:
    """Return digest, dtype and shape of each organ: SQLite uses ids of removed organs again."""
    statement = select(OrganRow.id, Blob.digest, OrganRow.dtype, OrganRow.shape)
    rows = rows_among(session, statement.join(Blob, Blob.id == OrganRow.blob_id), OrganRow.id, organ_ids)
    return {organ_id: (digest, dtype, shape) for organ_id, digest, dtype, shape in rows}


def edges_without_change(session: Session, after_id: int, limit: int) -> Sequence[Lineage]:
    """Return the next measured edges after the row `after_id` whose change is not known."""
    statement = select(Lineage).where(Lineage.evidence == "measured", Lineage.change.is_(None), Lineage.id > after_id)
    return session.scalars(statement.order_by(Lineage.id).limit(limit)).all()


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


def declared_edges_to(session: Session, model_id: int, limit: int) -> list[Lineage]:
    """Return up to `limit` declared edges to a parent, oldest first."""
    statement = select(Lineage).where(Lineage.parent_model_id == model_id, *_IS_DECLARED).order_by(Lineage.id)
    return list(session.scalars(statement.limit(limit)))


def models_by_id(session: Session, model_ids: Collection[int]) -> dict[int, ModelRow]:
    """Return the public models among `model_ids`, by id."""
    public = select(ModelRow).where(ModelRow.state.in_(REACHABLE_STATES))
    return {model.id: model for model in scalars_among(session, public, ModelRow.id, model_ids)}


def visible_models_with_words(session: Session, words: Collection[str], limit: int) -> Sequence[ModelRow]:
    """Return visible models that have all of `words` in name, title, tags and description, oldest first."""
    model_ids = (
        select(ModelWord.model_id)
        .where(ModelWord.word.in_(sorted(set(words))))
        .group_by(ModelWord.model_id)
        .having(func.count() == len(set(words)))
    )
    statement = select(ModelRow).where(
        ModelRow.id.in_(model_ids), ModelRow.state == "visible", ModelRow.kind.in_(WEIGHT_KINDS)
    )
    return session.scalars(statement.order_by(ModelRow.id).limit(limit)).all()


def public_model_ids(session: Session) -> set[int]:
    """Return the ids of all public models."""
    return set(session.scalars(select(ModelRow.id).where(ModelRow.state.in_(REACHABLE_STATES))))


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
    columns = (Lineage.id, Lineage.child_model_id, Lineage.parent_model_id, Lineage.relation, Lineage.evidence)
    numbers = (Lineage.change, Lineage.matched, Lineage.score, Lineage.compared, Lineage.parent_text)
    statement: Any = select(*columns, *numbers)
    edges: dict[int, Edge] = {}
    for row in rows_among(session, statement, Lineage.child_model_id, model_ids):
        row_id, child, parent, relation, evidence, change, matched, score, compared, text = row
        is_directed = evidence != "measured"
        edges[row_id] = Edge(
            child or 0, parent or 0, relation, change, matched, score, compared, evidence, text, is_directed
        )
    return [edges[row_id] for row_id in sorted(edges)]


def main_dtypes(session: Session, model_ids: Collection[int]) -> dict[int, str]:
    """Return the tensor type of most weights of each model."""
    statement = select(Placement.model_id, OrganRow.dtype, func.sum(OrganRow.elements))
    grouped = statement.join(OrganRow, OrganRow.id == Placement.organ_id).group_by(Placement.model_id, OrganRow.dtype)
    most: dict[int, tuple[int, str]] = {}
    for model_id, dtype, elements in rows_among(session, grouped, Placement.model_id, model_ids):
        most[model_id] = max(most.get(model_id, (0, "")), (int(elements), dtype))
    return {model_id: dtype for model_id, (_, dtype) in most.items()}


class RelatedPair(NamedTuple):
    """Two models that were measured to be related, the older one first, and their measured edge."""

    first: ModelRow
    second: ModelRow
    relation: str
    likeness: float | None
    change: float | None


def related_pairs(session: Session, limit: int, least: float | None = None) -> list[RelatedPair]:
    """Return pairs of visible models that were measured to be related.

    The newest pairs come first; with `least`, the least likeness, the most similar ones.
    """
    first, second = aliased(ModelRow), aliased(ModelRow)
    statement = (
        select(first, second, Lineage.relation, Lineage.score, Lineage.change)
        .join(first, first.id == Lineage.parent_model_id)
        .join(second, second.id == Lineage.child_model_id)
        .where(Lineage.evidence == "measured", first.state == "visible", second.state == "visible")
    )
    if least is None:
        statement = statement.order_by(Lineage.id.desc())
    else:
        statement = statement.where(Lineage.score >= least).order_by(Lineage.score.desc(), Lineage.id)
    return [RelatedPair(*row) for row in session.execute(statement.limit(limit))]


def organ_digests(session: Session, model_id: int) -> dict[int, str]:
    """Return the digests of the organs of a model by organ id."""
    statement = select(OrganRow.id, Blob.digest).join(Blob, Blob.id == OrganRow.blob_id)
    placed = statement.join(Placement, Placement.organ_id == OrganRow.id).where(Placement.model_id == model_id)
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
    return _measured(session, model_id, Lineage.score)


def changes_from(session: Session, model_id: int) -> dict[int, float]:
    """Return the change between a model and each of its measured relatives, where it is known, by their ids."""
    return _measured(session, model_id, Lineage.change)


def _measured(session: Session, model_id: int, column: Any) -> dict[int, float]:
    ends = (Lineage.child_model_id, Lineage.parent_model_id)
    statement = select(*ends, column).where(
        Lineage.evidence == "measured", column.is_not(None), or_(*(end == model_id for end in ends))
    )
    pairs = ((parent if child == model_id else child, value) for child, parent, value in session.execute(statement))
    return {other: value for other, value in pairs if other is not None}


def other_end(edge: Lineage, model_id: int) -> int:
    """Return the model at the other end of an edge; 0 for a parent that is known only by its name."""
    return (edge.parent_model_id if edge.child_model_id == model_id else edge.child_model_id) or 0


KIN_MIN = 0.5
"""Models of at least this likeness to a model are its kin, whatever lineage they declare."""
KIN_MAX = 10_000
"""The most kin of a model that are found by lineage, the nearest first."""


def kin_of(session: Session, model_id: int) -> Mapping[int, float | None]:
    """Return the kin of a model with their likeness to it, None if it was not measured; the model itself has 1.

    Kin are the models of likeness `KIN_MIN` and more, the ancestors by declared or recorded lineage, and the
    descendants of all of these ancestors and of the model itself. Only public models are followed.
    """

    def read() -> dict[int, float | None]:
        measured = likenesses(session, model_id)
        # From a descendant, its other parents are not followed: a chimera does not make its two parents kin.
        ancestors = _reachable(session, {model_id}, Lineage.child_model_id, Lineage.parent_model_id)
        family = _reachable(session, ancestors, Lineage.parent_model_id, Lineage.child_model_id)
        alike = {other for other, likeness in measured.items() if likeness >= KIN_MIN}
        return {other: measured.get(other) for other in alike | family} | {model_id: 1.0}

    return cached(session, ("kin of", model_id), read)


def _reachable(session: Session, starts: Iterable[int], source: Any, target: Any) -> set[int]:
    """Return `starts` and the public models that edges of lineage lead to, from `source` to `target`."""
    reached = set(starts)
    is_edge = (Lineage.evidence.in_(("declared", "recorded")), ModelRow.state.in_(REACHABLE_STATES))
    statement = select(target).join(ModelRow, ModelRow.id == target).where(*is_edge).distinct().limit(KIN_MAX)
    frontier = sorted(reached)
    while frontier and len(reached) < KIN_MAX:
        following = set(scalars_among(session, statement, source, frontier))
        frontier = sorted(following - reached)[: KIN_MAX - len(reached)]
        reached.update(frontier)
    return reached


def likeness_to(base_id: int) -> ColumnElement[float | None]:
    """Return the measured likeness of each ModelRow to the model `base_id` in SQL; NULL if not measured."""
    # The younger of two models is the child of their measured edge.
    ends = (
        Lineage.child_model_id == case((ModelRow.id > base_id, ModelRow.id), else_=base_id),
        Lineage.parent_model_id == case((ModelRow.id > base_id, literal(base_id)), else_=ModelRow.id),
    )
    score = select(func.max(Lineage.score)).where(*ends, Lineage.evidence == "measured").correlate(ModelRow)
    return case((ModelRow.id == base_id, 1.0), else_=score.scalar_subquery())
