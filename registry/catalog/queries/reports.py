"""What reports and dissections are made of: sums and extremes that the database computes, and totals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Row, and_, case, func, or_, select
from sqlalchemy.orm import Session, aliased

from organs.registry.anatomy import OrganType
from organs.registry.catalog.queries.models import count_models, is_composed
from organs.registry.catalog.search import CHIMERA
from organs.registry.catalog.tables import (
    Blob,
    FilePart,
    Lineage,
    Measurement,
    Model,
    ModelFile,
    Organ,
    Placement,
    Total,
)
from organs.registry.entities.about import Figures, RegistryTotals


@dataclass(frozen=True, slots=True)
class TypeFigures:
    """One type of organ: how many there are, how many of them have a θ, and what that comes to."""

    type: str
    tensors: int
    size_bytes: int
    measured: int
    mean_theta: float | None
    mean_square_theta: float | None
    spectral_count: int
    mean_spectral_signal: float | None


@dataclass(frozen=True, slots=True)
class MatrixFigures:
    """The matrices of one model: how many there are, and the means over them."""

    matrices: int
    mean_theta: float | None
    mean_spectral_signal: float


def type_figures(session: Session, model_id: int | None = None) -> list[TypeFigures]:
    """A row a type, in the order of their names."""
    theta, spectral = Placement.theta, Placement.spectral_signal
    mine = _of(model_id)
    # One question a measure, so that each is answered by its own index without a look at the rows.
    thetas = session.execute(
        select(Placement.type, func.count(), func.count(theta), func.avg(theta), func.avg(theta * theta))
        .where(mine)
        .group_by(Placement.type)
        .order_by(Placement.type)
    ).all()
    spectra = {
        kind: (count, mean)
        for kind, count, mean in session.execute(
            select(Placement.type, func.count(spectral), func.avg(spectral)).where(mine).group_by(Placement.type)
        )
    }
    sizes = {
        kind: int(size)
        for kind, size in session.execute(
            select(Placement.type, func.sum(Placement.size_bytes)).where(mine).group_by(Placement.type)
        )
    }
    return [
        TypeFigures(kind, tensors, sizes[kind], measured, mean, square, *spectra[kind])
        for kind, tensors, measured, mean, square in thetas
    ]


def thetas_at_ranks(session: Session, kind: str, ranks: Iterable[int], model_id: int | None = None) -> dict[int, float]:
    """The measured θ of type `kind` at each of `ranks`, counted from 0 in rising order."""
    statement = (
        select(Placement.theta)
        .where(_of(model_id), Placement.type == kind, Placement.theta.is_not(None))
        .order_by(Placement.theta)
        .limit(1)
    )
    found = {rank: session.scalars(statement.offset(rank)).one() for rank in sorted(set(ranks))}
    return {rank: theta for rank, theta in found.items() if theta is not None}


def kinds_of_models(session: Session) -> Sequence[Row[str, bool, int]]:
    """Kind (`chimera` of what was composed here), whether complete, and how many visible models are so."""
    kind = case((is_composed(), CHIMERA), else_=Model.kind).label("shown_kind")
    statement = select(kind, Model.complete, func.count()).where(Model.state == "visible")
    return session.execute(statement.group_by(kind, Model.complete).order_by(kind, Model.complete)).all()


def matrix_figures(session: Session, model_id: int | None = None) -> dict[int, MatrixFigures]:
    """Model id to the figures of its matrices; models without one are left out.

    A matrix is a tensor that has a spectral reading: it has two rows and two columns or more, and a format that can be
    read. Norms, biases and other lists of numbers are none.
    """
    spectral = Placement.spectral_signal
    statement = select(Placement.model_id, func.count(), func.avg(Placement.theta), func.avg(spectral))
    rows = session.execute(statement.where(_of(model_id), spectral.is_not(None)).group_by(Placement.model_id))
    return {model: MatrixFigures(*figures) for model, *figures in rows}


def sized_models(session: Session) -> Sequence[Row[int, str, str, int, str | None, int, float | None]]:
    """Visible, complete models with a mean θ, oldest first: id, namespace, name, version, title, parameters, θ."""
    columns = (Model.id, Model.namespace, Model.name, Model.version, Model.title, Model.parameters, Model.mean_theta)
    statement = select(*columns).where(
        Model.state == "visible",
        Model.complete,
        Model.kind == "model",
        ~is_composed(),
        Model.mean_theta.is_not(None),
        Model.parameters > 0,
    )
    return session.execute(statement.order_by(Model.id)).all()


def model_edges(session: Session) -> list[tuple[int, int]]:
    """Child and parent of every edge of lineage between two models, whatever its evidence."""
    statement = select(Lineage.child_model_id, Lineage.parent_model_id).where(
        Lineage.child_model_id.is_not(None), Lineage.parent_model_id.is_not(None)
    )
    rows = session.execute(statement.order_by(Lineage.id))
    return [(child, parent) for child, parent in rows if child is not None and parent is not None]


def declared_parents(session: Session) -> dict[int, list[str]]:
    """Model id to the names of the parents that its metadata declares."""
    statement = select(Lineage.child_model_id, Lineage.parent_text).where(
        Lineage.child_model_id.is_not(None), Lineage.parent_text.is_not(None)
    )
    found: dict[int, list[str]] = {}
    for child, text in session.execute(statement.order_by(Lineage.id)):
        if child is not None and text is not None:
            found.setdefault(child, []).append(text)
    return found


def lowest_thetas_of_models(session: Session, limit: int) -> list[tuple[int, float]]:
    """Visible models with the lowest θ of any of their organs: id and θ, by rising θ, then by id."""
    lowest = func.min(Placement.theta)
    statement = (
        select(Placement.model_id, lowest)
        .where(Placement.visible, Placement.theta.is_not(None))
        .group_by(Placement.model_id)
        .order_by(lowest, Placement.model_id)
        .limit(limit)
    )
    return [(model_id, theta) for model_id, theta in session.execute(statement) if theta is not None]


def extreme_organs(
    session: Session, model_id: int, limit: int, *, lowest: bool
) -> Sequence[Row[Placement, str, int, Model]]:
    """The measured organs of a model by rising (or falling) θ, then by place, with shape, elements and the model."""
    order = Placement.theta.asc() if lowest else Placement.theta.desc()
    statement = (
        select(Placement, Organ.shape, Organ.elements, Model)
        .join(Organ, Organ.id == Placement.organ_id)
        .join(Model, Model.id == Placement.model_id)
        .where(Placement.model_id == model_id, Placement.theta.is_not(None))
        .order_by(order, Placement.position)
    )
    return session.execute(statement.limit(limit)).all()


def _of(model_id: int | None) -> ColumnElement[bool]:
    return Placement.visible if model_id is None else Placement.model_id == model_id  # type: ignore[return-value]


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


def running_totals(session: Session) -> RegistryTotals:
    """The numbers as the writers keep them: a handful of rows."""
    kept = dict(session.execute(select(Total.name, Total.value)).all())
    return RegistryTotals(**{name: kept.get(name, 0) for name in RegistryTotals.__struct_fields__})


def visible_bytes(session: Session) -> int:
    """Return the size of the files of all visible models together."""
    return int(session.scalar(select(func.sum(Model.size_bytes)).where(Model.state == "visible")) or 0)


def public_figures(session: Session) -> Figures:
    """Return the registry in numbers that everybody may know."""
    totals = running_totals(session)
    return Figures(
        models=totals.models,
        placements=totals.placements,
        organs=totals.organs,
        size_bytes=visible_bytes(session),
    )


def counted_totals(session: Session) -> RegistryTotals:
    """The same by looking at everything: seconds in a large catalog."""
    placements = select(func.count()).select_from(Placement).where(Placement.visible)
    plain, stored = (func.coalesce(func.sum(column), 0) for column in (Blob.size_bytes, Blob.stored_bytes))
    sums = session.execute(select(func.count(), plain, stored).where(Blob.state != "doomed")).one()
    return RegistryTotals(
        models=count_models(session),
        placements=session.scalar(placements) or 0,
        organs=_count_organs(session),
        blobs=sums[0],
        size_bytes=int(sums[1]),
        stored_bytes=int(sums[2]),
    )


def _count_organs(session: Session) -> int:
    # All that are placed, read off one index, less the few that have hidden places only: a third of the time that it
    # takes to look for a visible place of each.
    placed = session.scalar(select(func.count()).select_from(select(Placement.organ_id).distinct().subquery())) or 0
    visible = aliased(Placement)
    shown = select(visible.id).where(visible.organ_id == Placement.organ_id, visible.visible).exists()
    hidden = select(Placement.organ_id).where(~Placement.visible, ~shown).distinct()
    return placed - (session.scalar(select(func.count()).select_from(hidden.subquery())) or 0)
