"""Organs by digest, one or many, with measurements and places; and a model's organs in pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.blobs import BlobRow
from organs.registry.catalog.search.cursor import Cursor, check_limit, cursor_text, parse_cursor
from organs.registry.catalog.tables import Blob, Measurement, Model, Organ, Placement
from organs.registry.catalog.upsert import batches
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.digest import Digest, parse_prefix
from organs.registry.errors import Ambiguous, NotFound


def measured_organs(session: Session, blobs: Iterable[BlobRow]) -> set[tuple[str, str, str]]:
    """Digest, dtype and shape of the organs of `blobs` that have been measured."""
    digests = {blob.id: blob.digest for blob in blobs}
    found: set[tuple[str, str, str]] = set()
    for batch in batches(sorted(digests)):
        statement = (
            select(Organ.blob_id, Organ.dtype, Organ.shape)
            .join(Measurement, Measurement.organ_id == Organ.id)
            .where(Organ.blob_id.in_(batch))
        )
        found.update((digests[blob_id], dtype, shape) for blob_id, dtype, shape in session.execute(statement))
    return found


def organs_by_prefix(session: Session, text: str, *, visible: bool = False) -> Sequence[Row[Organ, Blob]]:
    """The organs whose digest begins with `text`, in the order of their ids: one blob, one row a dtype and shape.

    With `visible`, only organs of models that are visible or yanked: the others count as absent. Raises BadDigest,
    NotFound, and Ambiguous when several digests begin so.
    """
    prefix = parse_prefix(text)
    # A range instead of LIKE: it uses the index on every database, and means the same on all.
    statement = (
        select(Organ, Blob)
        .join(Blob, Blob.id == Organ.blob_id)
        .where(Blob.digest >= prefix, Blob.digest < prefix[:-1] + chr(ord(prefix[-1]) + 1))
        .order_by(Organ.id)
        .limit(100)
    )
    if visible:
        placed = select(Placement.id).join(Model, Model.id == Placement.model_id)
        placed = placed.where(Placement.organ_id == Organ.id, Model.state.in_(REACHABLE_STATES))
        statement = statement.where(placed.exists())
    rows = session.execute(statement).all()
    digests = sorted({blob.digest for _, blob in rows})
    if not digests:
        raise NotFound(f"no organ's digest begins with {prefix}")
    if len(digests) > 1:
        raise Ambiguous(f"{len(digests)} digests begin with {prefix}: {digests[0][:16]}…, {digests[1][:16]}…")
    return rows


def uncounted_organs(session: Session, after_id: int, limit: int = 200) -> Sequence[Organ]:
    """The next organs behind `after_id` of which it is unknown how many values are NaN or infinite."""
    statement = select(Organ).where(Organ.nonfinite.is_(None), Organ.id > after_id).order_by(Organ.id).limit(limit)
    return session.scalars(statement).all()


def measurements_of(session: Session, organ_id: int) -> Sequence[Measurement]:
    """What each method read from the organ."""
    statement = select(Measurement).where(Measurement.organ_id == organ_id).order_by(Measurement.method)
    return session.scalars(statement).all()


def places_of_organ(session: Session, organ_id: int, limit: int = 100) -> Sequence[Row[Placement, Model]]:
    """Where the organ sits in visible models, oldest first; in yanked ones if no visible model has it."""
    statement = select(Placement, Model).join(Model, Model.id == Placement.model_id)
    statement = statement.where(Placement.organ_id == organ_id).order_by(Placement.id).limit(limit)
    visible = session.execute(statement.where(Placement.visible)).all()
    return visible or session.execute(statement.where(Model.state == "yanked")).all()


@dataclass(frozen=True, slots=True)
class KnownOrgan:
    """An organ in short."""

    digest: Digest
    dtype: str
    shape: str
    elements: int
    size_bytes: int
    theta: float | None
    """Degrees, 0 noise to 90 signal."""
    spectral_signal: float | None


def reachable_organs(session: Session, digests: Iterable[Digest], limit: int) -> list[KnownOrgan]:
    """The organs of visible and yanked models among `digests`, by digest and then the oldest first; at most `limit`.

    Everything else counts as absent, so that nobody learns what is kept for others. Several organs of one digest differ
    by dtype or shape.
    """
    found: list[KnownOrgan] = []
    placed = select(Placement.id).join(Model, Model.id == Placement.model_id)
    for batch in batches(sorted(set(digests))):
        statement = (
            select(
                *(Blob.digest, Organ.dtype, Organ.shape, Organ.elements, Blob.size_bytes),
                func.max(Measurement.theta),  # one method gives it, so it stands in one row of an organ's
                func.max(Measurement.spectral_signal),
            )
            .join(Organ, Organ.blob_id == Blob.id)
            .outerjoin(Measurement, Measurement.organ_id == Organ.id)
            .where(
                Blob.digest.in_(batch),
                placed.where(Placement.organ_id == Organ.id, Model.state.in_(REACHABLE_STATES)).exists(),
            )
            .group_by(Blob.digest, Organ.id, Organ.dtype, Organ.shape, Organ.elements, Blob.size_bytes)
            .order_by(Blob.digest, Organ.id)
            .limit(limit - len(found))
        )
        found += [
            KnownOrgan(Digest(digest), dtype, shape, elements, size, theta, spectral)
            for digest, dtype, shape, elements, size, theta, spectral in session.execute(statement)
        ]
        if len(found) >= limit:
            break
    return found


def placements_page(
    session: Session, model: Model, limit: int, after: str | None = None
) -> tuple[Sequence[Row[Placement, str, str, int | None]], str | None]:
    """The next `limit` placements of `model` in the order of its files, each as `placements_of` has it.

    `after` is the second of what the page before gave, None on the last page. Raises BadQuery for any other text.
    """
    check_limit(limit)
    listed = f"organs of {model.full_name}"
    statement = (
        select(Placement, Organ.shape, Blob.digest, Organ.nonfinite)
        .join(Organ, Organ.id == Placement.organ_id)
        .join(Blob, Blob.id == Organ.blob_id)
        .where(Placement.model_id == model.id)
        .order_by(Placement.position)
        .limit(limit + 1)
    )
    if after is not None:
        statement = statement.where(Placement.position > parse_cursor(listed, after).id)
    rows = session.execute(statement).all()
    shown = rows[:limit]
    place = Cursor(None, shown[-1][0].position) if len(rows) > limit else None
    return shown, cursor_text(listed, place) if place else None
