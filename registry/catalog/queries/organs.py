"""Organs by digest, one or many, with measurements and places; and a model's organs in pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Row, and_, func, or_, select
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.blobs import BlobRow, reachable_digests
from organs.registry.catalog.queries.chimeras import made_organs, organs_made_of
from organs.registry.catalog.queries.models import placements_of
from organs.registry.catalog.search.cursor import Cursor, check_limit, cursor_text, parse_cursor
from organs.registry.catalog.tables import Blob, Measurement, Model, Organ, Placement
from organs.registry.catalog.upsert import batches
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.digest import Digest, parse_prefix
from organs.registry.entities.organ import KnownOrgan, KnownOrgans, OrganPage, OtherForm, PlacedOrgan
from organs.registry.entities.organ import Measurement as MeasurementEntity
from organs.registry.entities.organ import Organ as OrganDetail
from organs.registry.errors import Ambiguous, NotFound
from organs.registry.measures import MEASURE_NAMES, MEASURES

KNOWN_MAX = 4000
"""Organs that are listed: bytes such as zeros can have very many shapes."""


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


def partly_measured_organs(session: Session, after_id: int, limit: int = 200) -> Sequence[Organ]:
    """Return the next organs behind `after_id` of which a method has given some of its measures, but not all.

    They were measured by a version of this program that did not know the others.
    """
    lacking = []
    for method in {one.method for one in MEASURES.values()}:
        first, *others = (getattr(Measurement, one.name) for one in MEASURES.values() if one.method == method)
        lacking += [and_(Measurement.method == method, first.is_not(None), other.is_(None)) for other in others]
    incomplete = select(Measurement.organ_id).where(or_(*lacking), Measurement.organ_id == Organ.id)
    statement = select(Organ).where(Organ.id > after_id, incomplete.exists()).order_by(Organ.id).limit(limit)
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
            KnownOrgan(
                digest=Digest(digest),
                dtype=dtype,
                shape=shape_of(shape),
                elements=elements,
                size_bytes=size,
                theta=theta,
                spectral_signal=spectral,
            )
            for digest, dtype, shape, elements, size, theta, spectral in session.execute(statement)
        ]
        if len(found) >= limit:
            break
    return found


def known_organs(session: Session, digests: Sequence[Digest]) -> KnownOrgans:
    """Return which of `digests` are organs of visible or yanked models, in short, and which are not."""
    organs = reachable_organs(session, digests, KNOWN_MAX)
    known = {organ.digest for organ in organs}
    notes: tuple[str, ...] = ()
    if len(organs) >= KNOWN_MAX:
        known |= reachable_digests(session, digests)
        notes = (f"Only {KNOWN_MAX:,} organs are listed: some of these bytes have many dtypes and shapes.",)
    absent = tuple(digest for digest in dict.fromkeys(digests) if digest not in known)
    return KnownOrgans(items=tuple(organs), notes=notes, absent=absent)


def organ_detail(session: Session, prefix: str, *, visible: bool = False) -> OrganDetail:
    """Return the organ whose digest begins with `prefix`; raises NotFound, Ambiguous, BadDigest.

    Bytes that have several dtypes or shapes are several organs: the first is described, the others are in `also`.
    With `visible`, only organs of visible or yanked models count.
    """
    rows = organs_by_prefix(session, prefix, visible=visible)
    organ, blob = rows[0]
    return OrganDetail(
        digest=Digest(blob.digest),
        dtype=organ.dtype,
        shape=shape_of(organ.shape),
        elements=organ.elements,
        nonfinite=organ.nonfinite,
        size_bytes=blob.size_bytes,
        stored_bytes=blob.stored_bytes,
        codec=f"{blob.codec}/{blob.codec_version}",
        state=blob.state,
        measurements=_measurements(session, organ),
        also=tuple(
            OtherForm(dtype=other.dtype, shape=shape_of(other.shape), measurements=_measurements(session, other))
            for other, _ in rows[1:]
        ),
        places=tuple(
            placed_organ(placement, model, one.shape, blob.digest, one.nonfinite)
            for one, _ in rows
            for placement, model in places_of_organ(session, one.id)
        ),
        made=made_organs(session, blob.digest),
        made_into=organs_made_of(session, blob.digest),
    )


def _measurements(session: Session, organ: Organ) -> tuple[MeasurementEntity, ...]:
    return tuple(
        MeasurementEntity(**{name: getattr(row, name) for name in MeasurementEntity.__struct_fields__})
        for row in measurements_of(session, organ.id)
    )


def placed_organ(placement: Placement, model: Model, shape: str, digest: str, nonfinite: int | None) -> PlacedOrgan:
    """Return an organ at its place in `model`."""
    return PlacedOrgan(
        digest=Digest(digest),
        model=model.full_name,
        name=placement.name,
        type=placement.type,
        tower=placement.tower,
        block=placement.block,
        slot=placement.slot,
        dtype=placement.dtype,
        shape=shape_of(shape),
        size_bytes=placement.size_bytes,
        architecture=model.architecture,
        license=model.license,
        nonfinite=nonfinite,
        model_state=model.state,
        **{name: getattr(placement, name) for name in MEASURE_NAMES},
    )


def organs_of_model(session: Session, model: Model, limit: int | None = None) -> tuple[PlacedOrgan, ...]:
    """Return the organs of `model` at their places, in the order of its files; the first `limit`, or all."""
    return tuple(
        placed_organ(placement, model, shape, digest, nonfinite)
        for placement, shape, digest, nonfinite in placements_of(session, model.id, limit)
    )


def shape_of(text: str) -> tuple[int, ...]:
    """Return the shape in a column, such as `192x512`."""
    return tuple(map(int, text.split("x")))


def organ_page_of_model(session: Session, model: Model, limit: int, after: str | None = None) -> OrganPage:
    """Return the next `limit` organs of `model` in the order of its files, behind `after`; raises BadQuery."""
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
    items = tuple(
        placed_organ(placement, model, shape, digest, nonfinite) for placement, shape, digest, nonfinite in shown
    )
    return OrganPage(items=items, next=cursor_text(listed, place) if place else None)
