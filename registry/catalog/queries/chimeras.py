"""Chimeras: in pages, by lock, and by use; scores of files, and verdicts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Row, and_, func, select
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.cursor import (
    Cursor,
    check_limit,
    cursor_text,
    parse_cursor,
)
from organs.registry.catalog.engine import batches
from organs.registry.catalog.tables import (
    Blob,
    Chimera,
    Computation,
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
from organs.registry.entities.base import Entity, Shape, Text
from organs.registry.entities.organ import AddedAdapter, DerivedOrgan, MadeOrgan, OrganSource
from organs.registry.errors import Ambiguous, NotFound
from organs.registry.measures import THETA_METHOD

if TYPE_CHECKING:
    from organs.registry.catalog.records import OrganKey  # records needs NumPy, which searches do without

MADE_OF_MAX = 100
"""Organs that were computed from one which are listed."""
_LIST = "chimeras"
"""What places in the list are bound to."""
_SAME_LOCKS_MAX = 100
_StoredOrgan = tuple[DigestText, Text, Shape]


@dataclass(frozen=True, slots=True)
class ChimeraPage:
    """One page of chimeras, each with its model."""

    items: tuple[Row[Model, Chimera], ...]
    next: str | None


def newest_chimeras(session: Session, limit: int, after: str | None = None) -> ChimeraPage:
    """The next `limit` visible chimeras behind `after`, newest first. Raises BadQuery."""
    check_limit(limit)
    statement = select(Model, Chimera).join(Chimera, Chimera.model_id == Model.id).where(Model.state == "visible")
    if after is not None:
        statement = statement.where(Model.id < parse_cursor(_LIST, after).id)
    rows = session.execute(statement.order_by(Model.id.desc()).limit(limit + 1)).all()
    shown = tuple(rows[:limit])
    return ChimeraPage(shown, cursor_text(_LIST, Cursor(None, shown[-1][0].id)) if len(rows) > limit else None)


def chimeras_by_lock(session: Session, prefix: str) -> Sequence[Model]:
    """The models whose lock has a digest that begins with `prefix`: one lock, the oldest visible model first.

    Raises BadDigest, NotFound, Ambiguous where several locks begin so.
    """
    bare = parse_prefix(prefix)
    statement = (
        select(Model, Chimera.lock_id)
        .join(Chimera, Chimera.model_id == Model.id)
        .where(Chimera.lock_id.startswith(bare), Model.state.in_(REACHABLE_STATES))
        .order_by(Model.state != "visible", Model.id)
    )
    found = session.execute(statement.limit(_SAME_LOCKS_MAX)).all()
    if not found:
        raise NotFound(f"no chimera has a lock whose digest begins with {bare}")
    if len({lock for _, lock in found}) > 1:
        raise Ambiguous(f"{bare} begins the digests of several locks: type more of it")
    return [model for model, _ in found]


def organs_made_of(session: Session, digest: str, limit: int = MADE_OF_MAX) -> tuple[DerivedOrgan, ...]:
    """The organs that were computed from the bytes `digest`, each at its oldest place that may be shown."""
    parent, child = aliased(Organ), aliased(Organ)
    source, made = aliased(Blob), aliased(Blob)
    statement = (
        select(child.id, made.digest, Lineage.relation)
        .join(child, child.id == Lineage.child_organ_id)
        .join(made, made.id == child.blob_id)
        .join(parent, parent.id == Lineage.parent_organ_id)
        .join(source, source.id == parent.blob_id)
        .where(source.digest == digest, Lineage.evidence == "recorded")
        .order_by(Lineage.id)
        .limit(limit)
    )
    rows = session.execute(statement).all()
    places = _places(session, {organ_id for organ_id, _, _ in rows})
    return tuple(
        DerivedOrgan(digest=Digest(made_digest), name=places[organ_id][0], model=places[organ_id][1], act=act)
        for organ_id, made_digest, act in rows
        if organ_id in places
    )


class StoredComputation(Entity, frozen=True, kw_only=True):
    """How an organ was computed, as it is stored (`registry.compose.plan.Computation.made`)."""

    source: _StoredOrgan
    dtype: Text
    add: tuple[tuple[_StoredOrgan, _StoredOrgan, float, float], ...] = ()
    purify: Text | None = None
    keep: float | None = None
    """A share."""

    @property
    def key(self) -> OrganKey:
        """The organ from which it was computed."""
        digest, dtype, shape = self.source
        return digest, dtype, "x".join(map(str, shape))

    def made(self, thetas: Mapping[OrganKey, float | None]) -> MadeOrgan:
        """Return how the organ was computed; `thetas` has θ of the organs that it may come from."""
        digest, dtype, shape = self.source
        return MadeOrgan(
            acts=(*(("adapter",) if self.add else ()), *(("purified",) if self.purify else ())),
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
    stored = [_stored_computation(text) for text in session.scalars(statement)]
    thetas = thetas_of(session, {one.key for one in stored})
    return tuple(one.made(thetas) for one in stored)


def _stored_computation(text: str) -> StoredComputation:
    return msgspec.json.decode(text, type=StoredComputation)


def _places(session: Session, organ_ids: Collection[int]) -> dict[int, tuple[str, str]]:
    """The tensor's name and the model's, of the oldest place of each organ."""
    oldest = (
        select(func.min(Placement.id))
        .join(Model, Model.id == Placement.model_id)
        .where(Placement.organ_id.in_(organ_ids), Model.state.in_(REACHABLE_STATES))
        .group_by(Placement.organ_id)
    )
    rows = select(Placement, Model).join(Model, Model.id == Placement.model_id).where(Placement.id.in_(oldest))
    return {one.organ_id: (one.name, model.full_name) for one, model in session.execute(rows)}


VERDICTS_SHOWN = 20


def kept_score(session: Session, file_digest: str, text_digest: str, tokens: int, runtime: str) -> str | None:
    """The reading that is kept under these, as JSON."""
    statement = select(Score.reading).where(
        Score.file_digest == file_digest,
        Score.text_digest == text_digest,
        Score.tokens == tokens,
        Score.runtime == runtime,
    )
    return session.scalar(statement)


def verdicts_of(session: Session, model_id: int, limit: int = VERDICTS_SHOWN) -> Sequence[Verdict]:
    """The verdicts on a model, newest first."""
    statement = select(Verdict).where(Verdict.model_id == model_id).order_by(Verdict.id.desc())
    return session.scalars(statement.limit(limit)).all()


def newest_verdicts(session: Session, model_ids: Collection[int]) -> dict[int, Verdict]:
    """The newest verdict on each of `model_ids` that has any."""
    newest = select(func.max(Verdict.id)).where(Verdict.model_id.in_(model_ids)).group_by(Verdict.model_id)
    found = session.scalars(select(Verdict).where(Verdict.id.in_(newest)))
    return {verdict.model_id: verdict for verdict in found}


def computations_in(session: Session, model_id: int) -> dict[str, StoredComputation]:
    """Return how the organs of a model were computed, by the names of their tensors.

    Of two computations that gave one organ it is the one with the smaller key.
    """
    statement = (
        select(Placement.name, Computation.made)
        .join(Computation, Computation.organ_id == Placement.organ_id)
        .where(Placement.model_id == model_id)
        .order_by(Placement.position, Computation.key.desc())
    )
    return {name: _stored_computation(text) for name, text in session.execute(statement)}


def thetas_of(session: Session, keys: Collection[OrganKey]) -> dict[OrganKey, float | None]:
    """θ in degrees of the organs `keys`; those that no model has which may be shown are left out."""
    found: dict[OrganKey, float | None] = {}
    placed = select(Placement.id).join(Model, Model.id == Placement.model_id)
    shown = placed.where(Placement.organ_id == Organ.id, Model.state.in_(REACHABLE_STATES)).exists()
    for batch in batches(sorted({digest for digest, _, _ in keys})):
        statement = (
            select(Blob.digest, Organ.dtype, Organ.shape, Measurement.theta)
            .select_from(Organ)
            .join(Blob, Blob.id == Organ.blob_id)
            .outerjoin(Measurement, and_(Measurement.organ_id == Organ.id, Measurement.method == THETA_METHOD))
        )
        for digest, dtype, shape, theta in session.execute(statement.where(Blob.digest.in_(batch), shown)):
            if (digest, dtype, shape) in keys:
                found[digest, dtype, shape] = theta
    return found
