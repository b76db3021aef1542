"""Chimeras: in pages, by lock, and by use; scores of files, and verdicts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.search.cursor import Cursor, check_limit, cursor_text, parse_cursor
from organs.registry.catalog.tables import Blob, Chimera, Lineage, Model, Organ, Placement, Score, Verdict
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.digest import parse_prefix
from organs.registry.errors import Ambiguous, NotFound

MADE_OF_MAX = 100
"""Organs that were computed from one which are listed."""
_LIST = "chimeras"
"""What places in the list are bound to."""
_SAME_LOCKS_MAX = 100


@dataclass(frozen=True, slots=True)
class ChimeraPage:
    """One page of chimeras, each with its model."""

    items: tuple[Row[Model, Chimera], ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class MadeOrgan:
    """An organ that was computed from another, at one of its places."""

    digest: str
    name: str
    model: str
    act: str


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


def organs_made_of(session: Session, digest: str, limit: int = MADE_OF_MAX) -> list[MadeOrgan]:
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
    return [MadeOrgan(made_digest, *places[organ_id], act) for organ_id, made_digest, act in rows if organ_id in places]


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
