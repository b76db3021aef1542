"""What the report on one model is made of, beside what `reports` has: what it shares, its blocks, what is odd in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Row, and_, case, func, or_, select
from sqlalchemy.orm import Session

from organs.registry.anatomy import OrganType
from organs.registry.catalog.tables import Blob, FilePart, Measurement, ModelFile, Organ, Placement


@dataclass(frozen=True, slots=True)
class Stored:
    """The different blobs that a model is made of, header and vocabulary included."""

    blobs: int
    size_bytes: int
    stored_bytes: int


def stored_of(session: Session, model_id: int) -> Stored:
    """What a model takes in the store, each blob counted once."""
    organs = select(Organ.blob_id).join(Placement, Placement.organ_id == Organ.id).where(Placement.model_id == model_id)
    parts = select(FilePart.blob_id).join(ModelFile, ModelFile.id == FilePart.file_id)
    wanted = organs.union(parts.where(ModelFile.model_id == model_id)).subquery()
    sums = (func.count(), func.coalesce(func.sum(Blob.size_bytes), 0), func.coalesce(func.sum(Blob.stored_bytes), 0))
    count, size, stored = session.execute(select(*sums).where(Blob.id.in_(select(wanted)))).one()
    return Stored(count, int(size), int(stored))


@dataclass(frozen=True, slots=True)
class DtypeFigures:
    """The tensors of a model in one dtype; the second mean is over those that have a spectral reading."""

    dtype: str
    tensors: int
    size_bytes: int
    mean_theta: float | None
    matrix_mean_theta: float | None


def dtypes_of(session: Session, model_id: int) -> list[DtypeFigures]:
    """The dtypes of a model by falling bytes, then by name."""
    size, theta = func.sum(Placement.size_bytes), Placement.theta
    of_matrices = func.avg(case((Placement.spectral_signal.is_not(None), theta)))
    statement = select(Placement.dtype, func.count(), size, func.avg(theta), of_matrices)
    ordered = statement.where(Placement.model_id == model_id).group_by(Placement.dtype)
    rows = session.execute(ordered.order_by(size.desc(), Placement.dtype))
    return [DtypeFigures(dtype, count, int(size_bytes), *means) for dtype, count, size_bytes, *means in rows]


def count_blocks(session: Session, model_id: int) -> int:
    """How many blocks a model has, over all of its towers."""
    blocks = select(Placement.tower, Placement.block).where(
        Placement.model_id == model_id, Placement.block.is_not(None)
    )
    return session.scalar(select(func.count()).select_from(blocks.distinct().subquery())) or 0


@dataclass(frozen=True, slots=True)
class BlockMeans:
    """One block: how many tensors it has, and the means over those of the two large types."""

    tower: str
    block: int
    tensors: int
    skeleton_theta: float | None
    organ_theta: float | None
    skeleton_spectral_signal: float | None
    organ_spectral_signal: float | None


def blocks_of(session: Session, model_id: int, limit: int) -> list[BlockMeans]:
    """The blocks of a model by tower and number."""
    skeleton, organ = (Placement.type == kind.value for kind in (OrganType.SKELETON, OrganType.ORGAN))
    theta, spectral = Placement.theta, Placement.spectral_signal
    measures = ((skeleton, theta), (organ, theta), (skeleton, spectral), (organ, spectral))
    statement = (
        select(Placement.tower, Placement.block, func.count(), *(func.avg(case(measure)) for measure in measures))
        .where(Placement.model_id == model_id, Placement.block.is_not(None))
        .group_by(Placement.tower, Placement.block)
        .order_by(Placement.tower, Placement.block)
    )
    return [BlockMeans(*row) for row in session.execute(statement.limit(limit))]


def odd_organs(session: Session, model_id: int, limit: int) -> Sequence[Row[str, str, int, int, int, bool, str | None]]:
    """Organs with NaN or infinities in their sample, constant ones, and those without a θ, in order.

    Name, dtype, sample size, NaN, infinities, whether constant, and why nothing was measured.
    """
    columns = (Placement.name, Placement.dtype, Measurement.sample_size, Measurement.nan_count)
    more = (Measurement.infinite_count, Measurement.constant, Measurement.reason)
    statement = (
        select(*columns, *more)
        .join(Measurement, Measurement.organ_id == Placement.organ_id)
        .where(_odd(model_id))
        .order_by(Placement.position, Measurement.method)
    )
    return session.execute(statement.limit(limit)).all()


def count_odd_organs(session: Session, model_id: int) -> int:
    """How many rows `odd_organs` has without a limit."""
    statement = select(func.count()).select_from(Placement)
    joined = statement.join(Measurement, Measurement.organ_id == Placement.organ_id)
    return session.scalar(joined.where(_odd(model_id))) or 0


def methods_of(session: Session, model_id: int) -> Sequence[Row[str, int, int, int, int, int]]:
    """Method; tensors that it was used on; least, most and all values that it looked at; all values of the tensors."""
    sample = Measurement.sample_size
    statement = (
        select(
            Measurement.method,
            func.count(),
            func.min(sample),
            func.max(sample),
            func.sum(sample),
            func.sum(Organ.elements),
        )
        .join(Placement, Placement.organ_id == Measurement.organ_id)
        .join(Organ, Organ.id == Measurement.organ_id)
        .where(Placement.model_id == model_id)
        .group_by(Measurement.method)
        .order_by(Measurement.method.desc())
    )
    return session.execute(statement).all()


def _odd(model_id: int) -> ColumnElement[bool]:
    # The spectral reading has no θ of its own: what it could not read is said by the Z-measure of the same organ.
    nothing = and_(Measurement.theta.is_(None), Measurement.spectral_signal.is_(None))
    odd = or_(Measurement.nan_count > 0, Measurement.infinite_count > 0, Measurement.constant, nothing)
    return and_(Placement.model_id == model_id, odd)
