"""Chimeras by page, by lock and by source; computations, scores and verdicts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Select, and_, case, func, literal, or_, select, true, tuple_
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.cursor import PageEnd, check_limit, cursor_text, parse_cursor
from organs.registry.catalog.engine import batches
from organs.registry.catalog.queries.models import has_public_place, is_withdrawn
from organs.registry.catalog.tables import (
    Blob,
    Chimera,
    Computation,
    Gain,
    Lineage,
    Measurement,
    Model,
    Organ,
    Placement,
    Score,
    Verdict,
)
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.digest import Digest, parse_prefix
from organs.registry.entities.base import Digest as DigestText
from organs.registry.entities.base import Entity, Shape, Text, prepared
from organs.registry.entities.organ import AddedAdapter, DerivedOrgan, MadeOrgan, OrganSource
from organs.registry.entities.quick_look import QuickLook
from organs.registry.errors import Ambiguous, NotFound
from organs.registry.measures import THETA_METHOD

if TYPE_CHECKING:
    from organs.registry.catalog.records import OrganKey  # records needs NumPy, which searches do not load

GENERATIONS_MAX = 8
"""Generations of parents in which yanked and removed models are searched. A generation takes a statement."""
ANCESTORS_MAX = 5000
"""The most ancestors whose own parents are read."""
CHILDREN_MAX = 1000
"""The most edges from one model to chimeras that were made from it."""

DERIVED_MAX = 100
"""The most entries in the list of organs that were computed from one organ."""
_LIST = "chimeras"
"""The query that cursors of the list belong to."""
_SAME_LOCKS_MAX = 100
_StoredOrgan = tuple[DigestText, Text, Shape]


@dataclass(frozen=True, slots=True)
class ChimeraPage:
    """One page of chimeras, each with its model."""

    items: tuple[tuple[Model, Chimera], ...]
    next: str | None


NEWEST, GAINED = "new", "gain"
ORDERS = (NEWEST, GAINED)
"""The orders of a list of chimeras: newest first, or the largest settled gain first."""


def chimeras_in_order(session: Session, order: str, limit: int, after: str | None = None) -> ChimeraPage:
    """Return the next `limit` visible chimeras after the cursor `after`. Those without a gain come last, newest first.

    Raises BadQuery.
    """
    check_limit(limit)
    query = f"{_LIST} {order}"
    best = select(Gain.model_id, func.max(Gain.percent).label("percent")).where(Gain.settled.is_(true()))
    gains = best.group_by(Gain.model_id).subquery()
    statement: Any = select(Model, Chimera).join(Chimera, Chimera.model_id == Model.id).where(Model.state == "visible")
    percent: Any = literal(None)
    if order == GAINED:
        percent = gains.c.percent
        statement = statement.outerjoin(gains, gains.c.model_id == Model.id)
    if after is not None:
        cursor = parse_cursor(query, after)
        missing = and_(percent.is_(None), Model.id < cursor.id) if order == GAINED else Model.id < cursor.id
        behind = or_(tuple_(percent, Model.id) < tuple_(cursor.value, cursor.id), percent.is_(None))
        statement = statement.where(missing if cursor.value is None else behind)
    ordered = (percent.is_(None), percent.desc(), Model.id.desc()) if order == GAINED else (Model.id.desc(),)
    rows = session.execute(statement.add_columns(percent).order_by(*ordered).limit(limit + 1)).all()
    page = rows[:limit]
    last = PageEnd(page[-1][2], page[-1][0].id) if len(rows) > limit else None
    items = tuple((model, chimera) for model, chimera, _ in page)
    return ChimeraPage(items, cursor_text(query, last) if last else None)


def gains_of_chimeras(session: Session, model_ids: Collection[int]) -> dict[int, list[Gain]]:
    """Return the gains of each of `model_ids` on all texts, the largest first."""
    gains: dict[int, list[Gain]] = {}
    statement = select(Gain).where(Gain.model_id.in_(model_ids)).order_by(Gain.percent.desc(), Gain.id)
    for gain in session.scalars(statement):
        gains.setdefault(gain.model_id, []).append(gain)
    return gains


def blocks_of_models(session: Session, model_ids: Collection[int]) -> dict[int, int]:
    """Return the number of blocks of each of `model_ids`, by the highest block of an organ."""
    highest = select(Placement.model_id, func.max(Placement.block)).where(Placement.model_id.in_(model_ids))
    rows = session.execute(highest.group_by(Placement.model_id))
    return {model_id: 0 if block is None else block + 1 for model_id, block in rows}


def chimeras_by_lock(session: Session, prefix: str) -> Sequence[Model]:
    """Return the models of the lock whose digest begins with `prefix`, the oldest visible model first.

    Raises BadDigest; NotFound; Ambiguous if several locks have this prefix.
    """
    bare = parse_prefix(prefix)
    statement = (
        select(Model, Chimera.lock_id)
        .join(Chimera, Chimera.model_id == Model.id)
        .where(Chimera.lock_id.startswith(bare), Model.state.in_(REACHABLE_STATES))
        .order_by(Model.state != "visible", Model.id)
    )
    rows = session.execute(statement.limit(_SAME_LOCKS_MAX)).all()
    if not rows:
        raise NotFound(f"no chimera has a lock whose digest begins with {bare}")
    if len({lock for _, lock in rows}) > 1:
        raise Ambiguous(f"several locks have a digest that begins with {bare}: use more characters")
    return [model for model, _ in rows]


def names_of_lock(session: Session, lock_id: str) -> list[str]:
    """Return the full names of the reachable models with this lock, the oldest visible model first."""
    statement = (
        select(Model)
        .join(Chimera, Chimera.model_id == Model.id)
        .where(Chimera.lock_id == lock_id, Model.state.in_(REACHABLE_STATES))
        .order_by(Model.state != "visible", Model.id)
    )
    return [model.full_name for model in session.scalars(statement.limit(_SAME_LOCKS_MAX))]


@dataclass(frozen=True, slots=True)
class WithdrawnAncestor:
    """A model that was yanked or removed, and from which a chimera was made."""

    model: Model
    child_id: int
    """The id of the chimera that was made from it directly."""
    child: str
    """The full name of this chimera."""


def withdrawn_ancestors(session: Session, model_ids: Collection[int]) -> dict[int, tuple[WithdrawnAncestor, ...]]:
    """Return for each of `model_ids` the yanked and removed models that it was made from, the nearest first.

    These are its parents, the parents of parents that are chimeras, and so on, within the limits above. Models without
    withdrawn ancestors are left out.
    """
    edges, names = _generations(session, model_ids)
    ids = {parent for parents in edges.values() for parent in parents}
    models: dict[int, Model] = {}
    for batch in batches(sorted(ids)):
        models |= {row.id: row for row in session.scalars(select(Model).where(Model.id.in_(batch), is_withdrawn()))}
    if not models:
        return {}
    ancestors: dict[int, tuple[WithdrawnAncestor, ...]] = {}
    for model_id in model_ids:
        nearest: dict[int, WithdrawnAncestor] = {}
        for child, parent in _walk(edges, model_id):
            if parent in models:
                nearest.setdefault(parent, WithdrawnAncestor(models[parent], child, names[child]))
        if nearest:
            ancestors[model_id] = tuple(nearest.values())
    return ancestors


def _generations(session: Session, model_ids: Collection[int]) -> tuple[dict[int, list[int]], dict[int, str]]:
    """Return the parents of each chimera among `model_ids` and their ancestors, and the names of these chimeras."""
    edges: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    children = sorted(set(model_ids))
    seen = set(children)
    limit = len(seen) + ANCESTORS_MAX
    for _ in range(GENERATIONS_MAX):
        parents: set[int] = set()
        for batch in batches(children):
            for child, parent in session.execute(_edges_to_parents(batch)):
                names[child.id] = child.full_name
                if parent is not None:
                    edges.setdefault(child.id, []).append(parent)
                    parents.add(parent)
        children = sorted(parents - seen)[: limit - len(seen)]
        seen.update(children)
        if not children:
            break
    return edges, names


def _edges_to_parents(children: Sequence[int]) -> Select[Model, int | None]:
    """Return the statement for the parents of the chimeras `children`; a hidden chimera has none."""
    return (
        select(Model, Lineage.parent_model_id)
        .join(Lineage, Lineage.child_model_id == Model.id)
        .where(
            Lineage.child_model_id.in_(children),
            Lineage.evidence == "recorded",
            Model.state.in_(REACHABLE_STATES),
        )
        .order_by(Lineage.id)
    )


def _walk(edges: Mapping[int, Sequence[int]], model_id: int) -> Iterator[tuple[int, int]]:
    """Yield child and parent for all ancestors of a model, the nearest generation first."""
    generation, seen = [model_id], {model_id}
    while generation:
        following: list[int] = []
        for child in generation:
            for parent in edges.get(child, ()):
                yield child, parent
                if parent not in seen:
                    seen.add(parent)
                    following.append(parent)
        generation = following


def derived_organs(session: Session, digest: str, limit: int = DERIVED_MAX) -> tuple[DerivedOrgan, ...]:
    """Return the organs that were computed from the bytes `digest`, each at its oldest public place."""
    parent, child = aliased(Organ), aliased(Organ)
    source, result = aliased(Blob), aliased(Blob)
    statement = (
        select(child.id, result.digest, Lineage.relation)
        .join(child, child.id == Lineage.child_organ_id)
        .join(result, result.id == child.blob_id)
        .join(parent, parent.id == Lineage.parent_organ_id)
        .join(source, source.id == parent.blob_id)
        .where(source.digest == digest, Lineage.evidence == "recorded")
        .order_by(Lineage.id)
        .limit(limit)
    )
    rows = session.execute(statement).all()
    places = _places(session, {organ_id for organ_id, _, _ in rows})
    return tuple(
        DerivedOrgan(digest=Digest(result_digest), name=places[organ_id][0], model=places[organ_id][1], act=act)
        for organ_id, result_digest, act in rows
        if organ_id in places
    )


class StoredComputation(Entity, frozen=True, kw_only=True):
    """The stored form of a computation of an organ (`registry.compose.plan.Computation.made`)."""

    source: _StoredOrgan
    dtype: Text
    add: tuple[tuple[_StoredOrgan, _StoredOrgan, float, float], ...] = ()
    purify: Text | None = None
    keep: float | None = None
    """The share of the energy that was kept, 0 to 1."""
    experts: tuple[tuple[_StoredOrgan, tuple[int, ...]], ...] = ()
    """The stacks that gave single experts, with the numbers of these."""
    purify_experts: tuple[int, ...] = ()

    @property
    def key(self) -> OrganKey:
        """The source organ."""
        digest, dtype, shape = self.source
        return digest, dtype, "x".join(map(str, shape))

    def made_organ(self, thetas: Mapping[OrganKey, float | None]) -> MadeOrgan:
        """Return the computation as an entity; `thetas` has the θ of source organs."""
        digest, dtype, shape = self.source
        return MadeOrgan(
            acts=(
                *(("grafted",) if self.experts else ()),
                *(("adapter",) if self.add else ()),
                *(("purified",) if self.purify else ()),
            ),
            experts=tuple(sorted({number for _, numbers in self.experts for number in numbers})),
            purified_experts=self.purify_experts,
            method=self.purify,
            keep=self.keep,
            adapters=tuple(AddedAdapter(a=a[0], b=b[0], alpha=alpha, scale=scale) for a, b, alpha, scale in self.add),
            dtype=self.dtype,
            source=OrganSource(digest=digest, dtype=dtype, shape=shape),
            theta_before=thetas.get(self.key),
        )


def made_organs(session: Session, digest: str) -> tuple[MadeOrgan, ...]:
    """Return how the organs with the bytes `digest` were computed, each with θ of its source."""
    statement = (
        select(Computation.made)
        .join(Organ, Organ.id == Computation.organ_id)
        .join(Blob, Blob.id == Organ.blob_id)
        .where(Blob.digest == digest)
        .order_by(Computation.key)
    )
    computations = [_stored_computation(text) for text in session.scalars(statement)]
    thetas = thetas_of(session, {computation.key for computation in computations})
    return tuple(computation.made_organ(thetas) for computation in computations)


def _stored_computation(text: str) -> StoredComputation:
    return msgspec.json.decode(text, type=prepared(StoredComputation))


def _places(session: Session, organ_ids: Collection[int]) -> dict[int, tuple[str, str]]:
    """Return the names of tensor and model of the oldest public place of each organ."""
    oldest = (
        select(func.min(Placement.id))
        .join(Model, Model.id == Placement.model_id)
        .where(Placement.organ_id.in_(organ_ids), Model.state.in_(REACHABLE_STATES))
        .group_by(Placement.organ_id)
    )
    rows = select(Placement, Model).join(Model, Model.id == Placement.model_id).where(Placement.id.in_(oldest))
    return {placement.organ_id: (placement.name, model.full_name) for placement, model in session.execute(rows)}


VERDICTS_MAX = 20


def stored_quick_look(session: Session, model_id: int) -> QuickLook | None:
    """Return the quick look at a chimera; None before the first."""
    return parsed_quick_look(session.scalar(select(Chimera.quick_look).where(Chimera.model_id == model_id)))


def parsed_quick_look(stored: str | None) -> QuickLook | None:
    """Return a stored quick look; None for none, and for one that another version wrote and that cannot be read."""
    try:
        return None if stored is None else msgspec.json.decode(stored, type=prepared(QuickLook))
    except msgspec.DecodeError:
        return None


def stored_score(session: Session, file_digest: str, text_digest: str, tokens: int, runtime: str) -> str | None:
    """Return the stored reading of a file on a text, as JSON, or None."""
    statement = select(Score.reading).where(
        Score.file_digest == file_digest,
        Score.text_digest == text_digest,
        Score.tokens == tokens,
        Score.runtime == runtime,
    )
    return session.scalar(statement)


_DECIDED_FIRST = case((Verdict.verdict == "writes", 2), (Verdict.verdict == "undecided", 1), else_=0)
_STRONGEST = (_DECIDED_FIRST, Verdict.strength.desc(), Verdict.id.desc())
"""The order of the verdicts on a model: the strongest first, so that a weaker one never replaces a stronger one."""


def verdicts_of(session: Session, model_id: int, limit: int = VERDICTS_MAX) -> Sequence[Verdict]:
    """Return the verdicts on a model, the strongest first."""
    statement = select(Verdict).where(Verdict.model_id == model_id).order_by(*_STRONGEST)
    return session.scalars(statement.limit(limit)).all()


def strongest_verdicts(session: Session, model_ids: Collection[int]) -> dict[int, Verdict]:
    """Return the strongest verdict on each of `model_ids` that has one: the decided one with the most scored tokens."""
    place = func.row_number().over(partition_by=Verdict.model_id, order_by=_STRONGEST).label("place")
    ranked = select(Verdict.id, place).where(Verdict.model_id.in_(model_ids)).subquery()
    first = select(ranked.c.id).where(ranked.c.place == 1)
    verdicts = session.scalars(select(Verdict).where(Verdict.id.in_(first)))
    return {verdict.model_id: verdict for verdict in verdicts}


def computations_in(session: Session, model_id: int) -> dict[str, StoredComputation]:
    """Return how the organs of a model were computed, by the names of their tensors.

    If two computations have the same organ as their result, the computation with the smaller key is returned.
    """
    statement = (
        select(Placement.name, Computation.made)
        .join(Computation, Computation.organ_id == Placement.organ_id)
        .where(Placement.model_id == model_id)
        .order_by(Placement.position, Computation.key.desc())
    )
    return {name: _stored_computation(text) for name, text in session.execute(statement)}


def thetas_of(session: Session, keys: Collection[OrganKey]) -> dict[OrganKey, float | None]:
    """Return θ in degrees of the organs `keys`; organs without a public model are left out."""
    thetas: dict[OrganKey, float | None] = {}
    for batch in batches(sorted({digest for digest, _, _ in keys})):
        statement = (
            select(Blob.digest, Organ.dtype, Organ.shape, Measurement.theta)
            .select_from(Organ)
            .join(Blob, Blob.id == Organ.blob_id)
            .outerjoin(Measurement, and_(Measurement.organ_id == Organ.id, Measurement.method == THETA_METHOD))
        )
        for digest, dtype, shape, theta in session.execute(statement.where(Blob.digest.in_(batch), has_public_place())):
            if (digest, dtype, shape) in keys:
                thetas[digest, dtype, shape] = theta
    return thetas


def computed_organs(session: Session, keys: Collection[str]) -> dict[str, Digest]:
    """Return the digests of the stored results of computations, by key; `keys` without a stored result are left out."""
    statement = (
        select(Computation.key, Blob.digest)
        .join(Organ, Organ.id == Computation.organ_id)
        .join(Blob, Blob.id == Organ.blob_id)
        .where(Computation.key.in_(keys), Blob.state == "present")
    )
    return {key: Digest(digest) for key, digest in session.execute(statement)}


def chimera_of(session: Session, model_id: int) -> Chimera | None:
    """Return the chimera row of a model that was composed in this registry; None for any other model."""
    return session.get(Chimera, model_id)


def count_chimeras(session: Session) -> int:
    """Return the number of visible models that were composed in this registry."""
    statement = select(func.count()).select_from(Chimera).join(Model, Model.id == Chimera.model_id)
    return session.scalar(statement.where(Model.state == "visible")) or 0


def recorded_parents(session: Session, model_id: int) -> list[tuple[Model, str]]:
    """Return the registered parents of a chimera, each with its act, in the order of their records."""
    statement = (
        select(Model, Lineage.relation)
        .join(Lineage, Lineage.parent_model_id == Model.id)
        .where(Lineage.child_model_id == model_id, Lineage.evidence == "recorded", Model.state.in_(REACHABLE_STATES))
        .order_by(Lineage.id)
    )
    return [(model, relation) for model, relation in session.execute(statement)]


def recorded_children(session: Session, model_id: int) -> list[tuple[Model, str]]:
    """Return the chimeras that were made from a model, each with its act, in the order of their records."""
    statement = (
        select(Model, Lineage.relation)
        .join(Lineage, Lineage.child_model_id == Model.id)
        .where(Lineage.parent_model_id == model_id, Lineage.evidence == "recorded", Model.state.in_(REACHABLE_STATES))
        .order_by(Lineage.id)
        .limit(CHILDREN_MAX)
    )
    return [(model, relation) for model, relation in session.execute(statement)]


def names_of_chimeras(session: Session) -> frozenset[str]:
    """Return the full names of all models that were composed in this registry."""
    statement = select(Model.namespace, Model.name, Model.version).join(Chimera, Chimera.model_id == Model.id)
    return frozenset(f"{namespace}/{name}@{version}" for namespace, name, version in session.execute(statement))
