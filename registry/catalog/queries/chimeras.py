"""Chimeras by page, by lock and by source; computations, scores and verdicts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import ColumnElement, Select, and_, case, func, or_, select, true, tuple_
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.cursor import check_limit, next_cursor, parse_cursor
from organs.registry.catalog.queries.model_contents import has_public_place
from organs.registry.catalog.queries.model_names import is_withdrawn
from organs.registry.catalog.rows import count, page_of_rows, rows_among, scalars_among
from organs.registry.catalog.tables import (
    Blob,
    ChimeraRow,
    ComputationRow,
    GainRow,
    Lineage,
    MeasurementRow,
    ModelRow,
    OrganRow,
    Placement,
    ScoreRow,
    VerdictRow,
)
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.digest import Digest, parse_prefix
from organs.registry.entities.base import Digest as DigestText
from organs.registry.entities.base import Entity, Shape, Text, prepared
from organs.registry.entities.chimera import GAINED, Origins
from organs.registry.entities.lineage import QUANTIZED, RECORDED
from organs.registry.entities.organ import AddedAdapter, DerivedOrgan, MadeOrgan, OrganSource
from organs.registry.entities.plan import ADAPTER
from organs.registry.entities.validation import QuickLook
from organs.registry.errors import Ambiguous, NotFound
from organs.registry.measures import THETA_METHOD

if TYPE_CHECKING:
    from organs.registry.catalog.records import OrganKey  # records needs NumPy, which searches do not load

GENERATIONS_MAX = 8
"""Generations of parents in which yanked and removed models are searched. A generation takes a statement."""
ANCESTORS_MAX = 5000
"""The most ancestors whose own parents are read."""
DERIVED_MAX = 100
"""The most organs that were computed from one organ in a list."""
CHILDREN_MAX = 1000
"""The most edges from one model to chimeras that were made from it."""

_SAME_LOCKS_MAX = 100
_StoredOrgan = tuple[DigestText, Text, Shape]


def is_composed() -> ColumnElement[bool]:
    """Return the condition that a ModelRow was composed in this registry.

    Rankings leave these models out, because they rank the models that the organs come from.
    """
    return select(ChimeraRow.model_id).where(ChimeraRow.model_id == ModelRow.id).correlate(ModelRow).exists()


def is_mixed() -> ColumnElement[bool]:
    """Return the condition that a ModelRow was composed in this registry, and not only quantised from another model."""
    is_recorded = (Lineage.child_model_id == ModelRow.id, Lineage.evidence == RECORDED, Lineage.relation != QUANTIZED)
    has_another = select(Lineage.id).where(*is_recorded, Lineage.parent_model_id.is_not(None)).correlate(ModelRow)
    return and_(is_composed(), has_another.exists())


def mixed_among(session: Session, model_ids: Collection[int]) -> frozenset[int]:
    """Return those of `model_ids` that were composed in this registry, and not only quantised from another model."""
    return frozenset(scalars_among(session, select(ModelRow.id).where(is_mixed()), ModelRow.id, model_ids))


def chimeras_in_order(
    session: Session, order: str, limit: int, after: str | None, *, mixed: bool = False
) -> tuple[list[tuple[ModelRow, ChimeraRow]], str | None]:
    """Return the next `limit` visible chimeras after the cursor `after`, with their models, and the next cursor.

    With `mixed`, those that are only quantisations are left out. Those without a gain come last, newest first. Raises
    BadQuery.
    """
    query = f"chimeras {order}"
    visible = (
        select(ModelRow, ChimeraRow)
        .join(ChimeraRow, ChimeraRow.model_id == ModelRow.id)
        .where(ModelRow.state == "visible", *([is_mixed()] if mixed else []))
    )
    if order != GAINED:
        rows, following = page_of_rows(session, visible, query, limit, after)
        return [(model, chimera) for model, chimera in rows], following
    check_limit(limit)
    best = select(GainRow.model_id, func.max(GainRow.percent).label("percent")).where(GainRow.settled.is_(true()))
    gains = best.group_by(GainRow.model_id).subquery()
    percent: Any = gains.c.percent
    statement = visible.outerjoin(gains, gains.c.model_id == ModelRow.id).add_columns(percent)
    if after is not None:
        cursor = parse_cursor(query, after)
        behind = and_(percent.is_(None), ModelRow.id < cursor.id)
        if cursor.value is not None:
            behind = or_(tuple_(percent, ModelRow.id) < tuple_(cursor.value, cursor.id), percent.is_(None))
        statement = statement.where(behind)
    ordered = statement.order_by(percent.is_(None), percent.desc(), ModelRow.id.desc())
    found = session.execute(ordered.limit(limit + 1)).all()
    following = next_cursor(query, [(gain, model.id) for model, _, gain in found], limit)
    return [(model, chimera) for model, chimera, _ in found[:limit]], following


def gains_of_chimeras(session: Session, model_ids: Collection[int]) -> dict[int, list[GainRow]]:
    """Return the gains of each of `model_ids` on all texts, the largest first."""
    gains: dict[int, list[GainRow]] = {}
    statement = select(GainRow).where(GainRow.model_id.in_(model_ids)).order_by(GainRow.percent.desc(), GainRow.id)
    for gain in session.scalars(statement):
        gains.setdefault(gain.model_id, []).append(gain)
    return gains


def blocks_of_models(session: Session, model_ids: Collection[int]) -> dict[int, int]:
    """Return the number of blocks of each of `model_ids`, by the highest block of an organ."""
    highest = select(Placement.model_id, func.max(Placement.block)).where(Placement.model_id.in_(model_ids))
    rows = session.execute(highest.group_by(Placement.model_id))
    return {model_id: 0 if block is None else block + 1 for model_id, block in rows}


def chimeras_by_lock(session: Session, prefix: str) -> Sequence[ModelRow]:
    """Return the models of the lock whose digest begins with `prefix`, the oldest visible model first.

    Raises BadDigest; NotFound; Ambiguous if several locks have this prefix.
    """
    bare = parse_prefix(prefix)
    statement = _models_of_lock(ChimeraRow.lock_id.startswith(bare)).add_columns(ChimeraRow.lock_id)
    rows = session.execute(statement).all()
    if not rows:
        raise NotFound(f"no chimera has a lock whose digest begins with {bare}")
    if len({lock for _, lock in rows}) > 1:
        raise Ambiguous(f"several locks have a digest that begins with {bare}: use more characters")
    return [model for model, _ in rows]


def names_of_lock(session: Session, lock_id: str) -> list[str]:
    """Return the full names of the reachable models with this lock, the oldest visible model first."""
    return [model.full_name for model in session.scalars(_models_of_lock(ChimeraRow.lock_id == lock_id))]


def _models_of_lock(is_lock: ColumnElement[bool]) -> Select[ModelRow]:
    statement = select(ModelRow).join(ChimeraRow, ChimeraRow.model_id == ModelRow.id)
    statement = statement.where(is_lock, ModelRow.state.in_(REACHABLE_STATES))
    return statement.order_by(ModelRow.state != "visible", ModelRow.id).limit(_SAME_LOCKS_MAX)


@dataclass(frozen=True, slots=True)
class WithdrawnAncestor:
    """A model that was yanked or removed, and from which a chimera was made."""

    model: ModelRow
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
    models = {row.id: row for row in scalars_among(session, select(ModelRow).where(is_withdrawn()), ModelRow.id, ids)}
    ancestors: dict[int, tuple[WithdrawnAncestor, ...]] = {}
    for model_id in model_ids if models else ():
        nearest: dict[int, WithdrawnAncestor] = {}
        for child, parent in _walk(edges, model_id):
            if parent in models:
                nearest.setdefault(parent, WithdrawnAncestor(models[parent], child, names[child]))
        if nearest:
            ancestors[model_id] = tuple(nearest.values())
    return ancestors


def _generations(session: Session, model_ids: Collection[int]) -> tuple[dict[int, list[int]], dict[int, str]]:
    """Return the parents of each chimera among `model_ids` and their ancestors, and the names of these chimeras.

    A hidden chimera has none.
    """
    edges: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    children = sorted(set(model_ids))
    seen = set(children)
    limit = len(seen) + ANCESTORS_MAX
    of_parents = select(ModelRow, Lineage.parent_model_id).join(Lineage, Lineage.child_model_id == ModelRow.id)
    of_parents = of_parents.where(Lineage.evidence == "recorded", ModelRow.state.in_(REACHABLE_STATES))
    for _ in range(GENERATIONS_MAX):
        parents: set[int] = set()
        for child, parent in rows_among(session, of_parents.order_by(Lineage.id), Lineage.child_model_id, children):
            names[child.id] = child.full_name
            if parent is not None:
                edges.setdefault(child.id, []).append(parent)
                parents.add(parent)
        children = sorted(parents - seen)[: limit - len(seen)]
        seen.update(children)
        if not children:
            break
    return edges, names


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


def derived_organs(session: Session, digest: str) -> tuple[DerivedOrgan, ...]:
    """Return the organs that were computed from the bytes `digest`, each at its oldest public place."""
    parent, child = aliased(OrganRow), aliased(OrganRow)
    source, result = aliased(Blob), aliased(Blob)
    statement = (
        select(child.id, result.digest, Lineage.relation)
        .join(child, child.id == Lineage.child_organ_id)
        .join(result, result.id == child.blob_id)
        .join(parent, parent.id == Lineage.parent_organ_id)
        .join(source, source.id == parent.blob_id)
        .where(source.digest == digest, Lineage.evidence == "recorded")
        .order_by(Lineage.id)
        .limit(DERIVED_MAX)
    )
    rows = session.execute(statement).all()
    oldest = (
        select(func.min(Placement.id))
        .join(ModelRow, ModelRow.id == Placement.model_id)
        .where(Placement.organ_id.in_({organ_id for organ_id, _, _ in rows}), ModelRow.state.in_(REACHABLE_STATES))
        .group_by(Placement.organ_id)
    )
    placed = (
        select(Placement, ModelRow).join(ModelRow, ModelRow.id == Placement.model_id).where(Placement.id.in_(oldest))
    )
    places = {place.organ_id: (place.name, model.full_name) for place, model in session.execute(placed)}
    return tuple(
        DerivedOrgan(digest=Digest(result_digest), name=places[organ_id][0], model=places[organ_id][1], act=act)
        for organ_id, result_digest, act in rows
        if organ_id in places
    )


class StoredComputation(Entity):
    """The stored form of a computation of an organ (`registry.compose.plan.Computation.made`)."""

    source: _StoredOrgan
    dtype: Text
    add: tuple[tuple[Any, ...], ...] = ()
    """Each: the factors a and b, alpha, scale, and the magnitudes of a DoRA. Without b, a is a whole tensor."""
    purify: Text | None = None
    keep: float | None = None
    """The share of the energy that was kept, 0 to 1."""
    experts: tuple[tuple[_StoredOrgan, tuple[int, ...]], ...] = ()
    """The stacks that gave single experts, with the numbers of these."""
    purify_experts: tuple[int, ...] = ()
    kept_experts: tuple[int, ...] = ()
    blend: tuple[Any, ...] = ()
    """The method, the other tensors, the parameters, and the seed and the tensor of random masks."""
    importances: tuple[_StoredOrgan, ...] = ()
    """The sums and the counts of the importance matrix."""

    @classmethod
    def read(cls, text: str) -> StoredComputation:
        """Return the computation in `text`, JSON that this program wrote."""
        return msgspec.json.decode(text, type=prepared(cls))

    @property
    def key(self) -> OrganKey:
        """The source organ."""
        digest, dtype, shape = self.source
        return digest, dtype, "x".join(map(str, shape))

    def made_organ(self, thetas: Mapping[OrganKey, float | None]) -> MadeOrgan:
        """Return the computation as an entity; `thetas` has the θ of source organs."""
        digest, dtype, shape = self.source
        acts = (
            *(("grafted",) if self.experts else ()),
            *(("merged",) if self.blend else ()),
            *(("adapter",) if self.add else ()),
            *(("purified",) if self.purify else ()),
            *(("pruned",) if self.kept_experts else ()),
        )
        return MadeOrgan(
            acts=acts if acts and not self.importances else (*acts, "quantised"),
            experts=tuple(sorted({number for _, numbers in self.experts for number in numbers})),
            purified_experts=self.purify_experts,
            kept_experts=self.kept_experts,
            blend=str(self.blend[0]) if self.blend else None,
            blended=tuple(Digest(part[0][0]) for part in self.blend[1]) if self.blend else (),
            method=self.purify,
            keep=self.keep,
            adapters=tuple(
                AddedAdapter(a=a[0], b=b and b[0], alpha=alpha, scale=scale, magnitude=more[0][0] if more else None)
                for a, b, alpha, scale, *more in self.add
            ),
            dtype=self.dtype,
            source=OrganSource(digest=digest, dtype=dtype, shape=shape),
            theta_before=thetas.get(self.key),
        )


def made_organs(session: Session, digest: str) -> tuple[MadeOrgan, ...]:
    """Return how the organs with the bytes `digest` were computed, each with θ of its source."""
    statement = (
        select(ComputationRow.made)
        .join(OrganRow, OrganRow.id == ComputationRow.organ_id)
        .join(Blob, Blob.id == OrganRow.blob_id)
        .where(Blob.digest == digest)
        .order_by(ComputationRow.key)
    )
    computations = [StoredComputation.read(text) for text in session.scalars(statement)]
    thetas = thetas_of(session, {computation.key for computation in computations})
    return tuple(computation.made_organ(thetas) for computation in computations)


VERDICTS_MAX = 20


def stored_quick_look(session: Session, model_id: int) -> QuickLook | None:
    """Return the quick look at a chimera; None before the first."""
    return parsed_quick_look(session.scalar(select(ChimeraRow.quick_look).where(ChimeraRow.model_id == model_id)))


def parsed_quick_look(stored: str | None) -> QuickLook | None:
    """Return a stored quick look; None for none, and for one that another version wrote and that cannot be read."""
    try:
        return None if stored is None else msgspec.json.decode(stored, type=prepared(QuickLook))
    except msgspec.DecodeError:
        return None


def stored_score(session: Session, file_digest: str, text_digest: str, tokens: int, runtime: str) -> str | None:
    """Return the stored reading of a file on a text, as JSON, or None."""
    same_text = (ScoreRow.text_digest == text_digest, ScoreRow.tokens == tokens, ScoreRow.runtime == runtime)
    return session.scalar(select(ScoreRow.reading).where(ScoreRow.file_digest == file_digest, *same_text))


_DECIDED_FIRST = case((VerdictRow.verdict == "writes", 2), (VerdictRow.verdict == "undecided", 1), else_=0)
_STRONGEST = (_DECIDED_FIRST, VerdictRow.strength.desc(), VerdictRow.id.desc())
"""The order of the verdicts on a model: the strongest first, so that a weaker one never replaces a stronger one."""


def verdicts_of(session: Session, model_id: int) -> Sequence[VerdictRow]:
    """Return the verdicts on a model, the strongest first."""
    statement = select(VerdictRow).where(VerdictRow.model_id == model_id).order_by(*_STRONGEST)
    return session.scalars(statement.limit(VERDICTS_MAX)).all()


def strongest_verdicts(session: Session, model_ids: Collection[int]) -> dict[int, VerdictRow]:
    """Return the strongest verdict on each of `model_ids` that has one: the decided one with the most scored tokens."""
    place = func.row_number().over(partition_by=VerdictRow.model_id, order_by=_STRONGEST).label("place")
    ranked = select(VerdictRow.id, place).where(VerdictRow.model_id.in_(model_ids)).subquery()
    first = select(ranked.c.id).where(ranked.c.place == 1)
    verdicts = session.scalars(select(VerdictRow).where(VerdictRow.id.in_(first)))
    return {verdict.model_id: verdict for verdict in verdicts}


def computations_in(session: Session, model_id: int) -> dict[str, StoredComputation]:
    """Return how the organs of a model were computed, by the names of their tensors.

    If two computations have the same organ as their result, the computation with the smaller key is returned.
    """
    statement = (
        select(Placement.name, ComputationRow.made)
        .join(ComputationRow, ComputationRow.organ_id == Placement.organ_id)
        .where(Placement.model_id == model_id)
        .order_by(Placement.position, ComputationRow.key.desc())
    )
    return {name: StoredComputation.read(text) for name, text in session.execute(statement)}


def thetas_of(session: Session, keys: Collection[OrganKey]) -> dict[OrganKey, float | None]:
    """Return θ in degrees of the organs `keys`; organs without a public model are left out."""
    statement = (
        select(Blob.digest, OrganRow.dtype, OrganRow.shape, MeasurementRow.theta)
        .select_from(OrganRow)
        .join(Blob, Blob.id == OrganRow.blob_id)
        .outerjoin(MeasurementRow, and_(MeasurementRow.organ_id == OrganRow.id, MeasurementRow.method == THETA_METHOD))
        .where(has_public_place())
    )
    rows = rows_among(session, statement, Blob.digest, (digest for digest, _, _ in keys))
    thetas = {(digest, dtype, shape): theta for digest, dtype, shape, theta in rows}
    return {key: thetas[key] for key in keys if key in thetas}


def computed_organs(session: Session, keys: Collection[str]) -> dict[str, Digest]:
    """Return the digests of the stored results of computations, by key; `keys` without a stored result are left out."""
    statement = select(ComputationRow.key, Blob.digest).join(OrganRow, OrganRow.id == ComputationRow.organ_id)
    statement = statement.join(Blob, Blob.id == OrganRow.blob_id)
    rows = session.execute(statement.where(ComputationRow.key.in_(keys), Blob.state == "present"))
    return {key: Digest(digest) for key, digest in rows}


def chimera_of(session: Session, model_id: int) -> ChimeraRow | None:
    """Return the chimera row of a model that was composed in this registry; None for any other model."""
    return session.get(ChimeraRow, model_id)


def stored_origins(chimera: ChimeraRow) -> Origins:
    """Return the stored origins.

    Chimeras of earlier versions of this program do not record which adapters were merged into a tensor. For them it is
    all parents that gave no organs.
    """
    origins = msgspec.json.decode(chimera.origins, type=prepared(Origins))
    merged = () if origins.adapters else [name for name, part in origins.parts.items() if ADAPTER in part]
    if not merged:
        return origins
    gave = {0, *(number for number, _ in origins.by_tensor().values())}
    gave.update(number for grafts in origins.experts.values() for number, _ in grafts)
    adapters = tuple(number for number in range(len(origins.parents)) if number not in gave)
    return msgspec.structs.replace(origins, adapters=dict.fromkeys(merged, adapters))


def count_chimeras(session: Session) -> int:
    """Return the number of visible models that were composed in this registry."""
    return count(session, ChimeraRow, ChimeraRow.model_id == ModelRow.id, ModelRow.state == "visible")


def recorded_parents(session: Session, model_id: int) -> list[tuple[ModelRow, str]]:
    """Return the registered parents of a chimera, each with its act, in the order of their records."""
    return _recorded(session, Lineage.parent_model_id, Lineage.child_model_id == model_id, None)


def recorded_children(session: Session, model_id: int) -> list[tuple[ModelRow, str]]:
    """Return the chimeras that were made from a model, each with its act, in the order of their records."""
    return _recorded(session, Lineage.child_model_id, Lineage.parent_model_id == model_id, CHILDREN_MAX)


def _recorded(
    session: Session, end: ColumnElement[int | None] | Any, is_other_end: ColumnElement[bool], limit: int | None
) -> list[tuple[ModelRow, str]]:
    statement = select(ModelRow, Lineage.relation).join(Lineage, ModelRow.id == end)
    recorded = statement.where(is_other_end, Lineage.evidence == "recorded", ModelRow.state.in_(REACHABLE_STATES))
    rows = session.execute(recorded.order_by(Lineage.id).limit(limit))
    return [(model, relation) for model, relation in rows]


def names_of_chimeras(session: Session) -> frozenset[str]:
    """Return the full names of all models that were composed in this registry."""
    models = session.scalars(select(ModelRow).join(ChimeraRow, ChimeraRow.model_id == ModelRow.id))
    return frozenset(model.full_name for model in models)
