"""Queries for reports and dissections: sums and extremes that the database computes, and totals."""

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
    Expert,
    FilePart,
    Lineage,
    Measurement,
    Model,
    ModelFile,
    Organ,
    Placement,
    Total,
)
from organs.registry.catalog.vocabulary import STACK_CODEC
from organs.registry.entities.about import Figures, RegistryTotals


@dataclass(frozen=True, slots=True)
class TypeFigures:
    """The figures of one type: the number of all tensors, the number of those with a θ, and the means over these."""

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
    """The number of matrices of one model, and the means over them."""

    matrices: int
    mean_theta: float | None
    mean_spectral_signal: float


def type_figures(session: Session, model_id: int | None = None) -> list[TypeFigures]:
    """Return a row for each type, by name."""
    theta, spectral = Placement.theta, Placement.spectral_signal
    condition = _in_model(model_id)
    # Each measure has its own query, which reads only its own index.
    thetas = session.execute(
        select(Placement.type, func.count(), func.count(theta), func.avg(theta), func.avg(theta * theta))
        .where(condition)
        .group_by(Placement.type)
        .order_by(Placement.type)
    ).all()
    spectra = {
        kind: (count, mean)
        for kind, count, mean in session.execute(
            select(Placement.type, func.count(spectral), func.avg(spectral)).where(condition).group_by(Placement.type)
        )
    }
    sizes = {
        kind: int(size)
        for kind, size in session.execute(
            select(Placement.type, func.sum(Placement.size_bytes)).where(condition).group_by(Placement.type)
        )
    }
    return [
        TypeFigures(kind, tensors, sizes[kind], measured, mean, square, *spectra[kind])
        for kind, tensors, measured, mean, square in thetas
    ]


def thetas_at_ranks(session: Session, kind: str, ranks: Iterable[int], model_id: int | None = None) -> dict[int, float]:
    """Return the measured θ of type `kind` at each of `ranks`, which count from 0 in rising order."""
    statement = (
        select(Placement.theta)
        .where(_in_model(model_id), Placement.type == kind, Placement.theta.is_not(None))
        .order_by(Placement.theta)
        .limit(1)
    )
    thetas = {rank: session.scalars(statement.offset(rank)).one() for rank in sorted(set(ranks))}
    return {rank: theta for rank, theta in thetas.items() if theta is not None}


def kinds_of_models(session: Session) -> Sequence[Row[str, bool, int]]:
    """Return kind (`chimera` if composed in this registry), completeness and number of visible models."""
    kind = case((is_composed(), CHIMERA), else_=Model.kind).label("model_kind")
    statement = select(kind, Model.complete, func.count()).where(Model.state == "visible")
    return session.execute(statement.group_by(kind, Model.complete).order_by(kind, Model.complete)).all()


def matrix_figures(session: Session, model_id: int | None = None) -> dict[int, MatrixFigures]:
    """Return the figures of the matrices of each model, by model id; models without matrices are left out.

    A matrix is a tensor with a spectral reading: it has at least two rows and two columns, and a readable dtype.
    """
    spectral = Placement.spectral_signal
    statement = select(Placement.model_id, func.count(), func.avg(Placement.theta), func.avg(spectral))
    rows = session.execute(statement.where(_in_model(model_id), spectral.is_not(None)).group_by(Placement.model_id))
    return {model: MatrixFigures(*figures) for model, *figures in rows}


def sized_models(session: Session) -> Sequence[Row[int, str, str, int, str | None, int, float | None]]:
    """Return visible, complete models with θ, oldest first: id, namespace, name, version, title, parameters, θ."""
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
    """Return child and parent of every edge of lineage between two models, with any evidence."""
    statement = select(Lineage.child_model_id, Lineage.parent_model_id).where(
        Lineage.child_model_id.is_not(None), Lineage.parent_model_id.is_not(None)
    )
    rows = session.execute(statement.order_by(Lineage.id))
    return [(child, parent) for child, parent in rows if child is not None and parent is not None]


def declared_parents(session: Session) -> dict[int, list[str]]:
    """Return the names of the parents that the metadata of models declare, by model id."""
    statement = select(Lineage.child_model_id, Lineage.parent_text).where(
        Lineage.child_model_id.is_not(None), Lineage.parent_text.is_not(None)
    )
    parents: dict[int, list[str]] = {}
    for child, text in session.execute(statement.order_by(Lineage.id)):
        if child is not None and text is not None:
            parents.setdefault(child, []).append(text)
    return parents


def lowest_thetas_of_models(session: Session, limit: int) -> list[tuple[int, float]]:
    """Return the visible models with the lowest θ of an organ: id and θ, by rising θ, then by id."""
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
    """Return the measured organs of a model by rising or falling θ, then by place, with shape, elements and model."""
    order = Placement.theta.asc() if lowest else Placement.theta.desc()
    statement = (
        select(Placement, Organ.shape, Organ.elements, Model)
        .join(Organ, Organ.id == Placement.organ_id)
        .join(Model, Model.id == Placement.model_id)
        .where(Placement.model_id == model_id, Placement.theta.is_not(None))
        .order_by(order, Placement.position)
    )
    return session.execute(statement.limit(limit)).all()


def _in_model(model_id: int | None) -> ColumnElement[bool]:
    return Placement.visible if model_id is None else Placement.model_id == model_id  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class StoredSize:
    """The distinct blobs of a model, including header and vocabulary."""

    blobs: int
    size_bytes: int
    stored_bytes: int


def stored_of(session: Session, model_id: int) -> StoredSize:
    """Return the size of a model in the store, with each blob counted once."""
    organs = select(Organ.blob_id).join(Placement, Placement.organ_id == Organ.id).where(Placement.model_id == model_id)
    experts = select(Organ.blob_id).join(Expert, Expert.organ_id == Organ.id).where(Expert.model_id == model_id)
    parts = select(FilePart.blob_id).join(ModelFile, ModelFile.id == FilePart.file_id)
    blob_ids = organs.union(experts, parts.where(ModelFile.model_id == model_id)).subquery()
    sums = (func.count(), func.coalesce(func.sum(Blob.size_bytes), 0), func.coalesce(func.sum(Blob.stored_bytes), 0))
    # The plain bytes of a stack are those of its parts.
    stored = select(*sums).where(Blob.id.in_(select(blob_ids)), Blob.codec != STACK_CODEC)
    count, size, stored_bytes = session.execute(stored).one()
    return StoredSize(count, int(size), int(stored_bytes))


@dataclass(frozen=True, slots=True)
class DtypeFigures:
    """The tensors of a model with one dtype; the second mean is over those with a spectral reading."""

    dtype: str
    tensors: int
    size_bytes: int
    mean_theta: float | None
    matrix_mean_theta: float | None


def dtypes_of(session: Session, model_id: int) -> list[DtypeFigures]:
    """Return the dtypes of a model by falling bytes, then by name."""
    size, theta = func.sum(Placement.size_bytes), Placement.theta
    matrix_theta = func.avg(case((Placement.spectral_signal.is_not(None), theta)))
    statement = select(Placement.dtype, func.count(), size, func.avg(theta), matrix_theta)
    ordered = statement.where(Placement.model_id == model_id).group_by(Placement.dtype)
    rows = session.execute(ordered.order_by(size.desc(), Placement.dtype))
    return [DtypeFigures(dtype, count, int(size_bytes), *means) for dtype, count, size_bytes, *means in rows]


def count_blocks(session: Session, model_id: int) -> int:
    """Return the number of blocks in all towers of a model."""
    blocks = select(Placement.tower, Placement.block).where(
        Placement.model_id == model_id, Placement.block.is_not(None)
    )
    return session.scalar(select(func.count()).select_from(blocks.distinct().subquery())) or 0


@dataclass(frozen=True, slots=True)
class BlockMeans:
    """The number of tensors in one block, and the means over attention (skeleton) and feed-forward (organ)."""

    tower: str
    block: int
    tensors: int
    skeleton_theta: float | None
    organ_theta: float | None
    skeleton_spectral_signal: float | None
    organ_spectral_signal: float | None


def blocks_of(session: Session, model_id: int, limit: int) -> list[BlockMeans]:
    """Return the blocks of a model by tower and number."""
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


def unusual_organs(
    session: Session, model_id: int, limit: int
) -> Sequence[Row[str, str, int, int, int, bool, str | None]]:
    """Return organs with NaN or infinite values in the sample, constant organs, and organs without θ, in order.

    Each row has name, dtype, sample size, NaN, infinities, whether it is constant, and why nothing was measured.
    """
    sample = (Measurement.sample_size, Measurement.nan_count, Measurement.infinite_count)
    statement = (
        select(Placement.name, Placement.dtype, *sample, Measurement.constant, Measurement.reason)
        .join(Measurement, Measurement.organ_id == Placement.organ_id)
        .where(_is_unusual(model_id))
        .order_by(Placement.position, Measurement.method)
    )
    return session.execute(statement.limit(limit)).all()


def count_unusual_organs(session: Session, model_id: int) -> int:
    """Return the number of rows of `unusual_organs` without a limit."""
    statement = select(func.count()).select_from(Placement)
    joined = statement.join(Measurement, Measurement.organ_id == Placement.organ_id)
    return session.scalar(joined.where(_is_unusual(model_id))) or 0


def methods_of(session: Session, model_id: int) -> Sequence[Row[str, int, int, int, int, int]]:
    """Return a row for each method: its tensors; the least, largest and total sample; all values of the tensors."""
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


def _is_unusual(model_id: int) -> ColumnElement[bool]:
    # The row of the spectral reading has no θ. The row of the Z-measure reports values that cannot be read.
    is_empty = and_(Measurement.theta.is_(None), Measurement.spectral_signal.is_(None))
    unusual = or_(Measurement.nan_count > 0, Measurement.infinite_count > 0, Measurement.constant, is_empty)
    return and_(Placement.model_id == model_id, unusual)


def running_totals(session: Session) -> RegistryTotals:
    """Return the totals that the writers maintain, from a few rows."""
    stored = dict(session.execute(select(Total.name, Total.value)).all())
    return RegistryTotals(**{name: stored.get(name, 0) for name in RegistryTotals.__struct_fields__})


def visible_bytes(session: Session) -> int:
    """Return the total size of the files of all visible models."""
    return int(session.scalar(select(func.sum(Model.size_bytes)).where(Model.state == "visible")) or 0)


def public_figures(session: Session) -> Figures:
    """Return the public numbers of the registry."""
    totals = running_totals(session)
    return Figures(
        models=totals.models,
        placements=totals.placements,
        organs=totals.organs,
        size_bytes=visible_bytes(session),
    )


def counted_totals(session: Session) -> RegistryTotals:
    """Return the totals by counting all rows, which takes seconds in a large catalog."""
    placements = select(func.count()).select_from(Placement).where(Placement.visible)
    plain, stored = (func.coalesce(func.sum(column), 0) for column in (Blob.size_bytes, Blob.stored_bytes))
    counted = select(func.count(), plain, stored).where(Blob.state != "doomed", Blob.codec != STACK_CODEC)
    sums = session.execute(counted).one()
    return RegistryTotals(
        models=count_models(session),
        placements=session.scalar(placements) or 0,
        organs=_count_organs(session),
        blobs=sums[0],
        size_bytes=int(sums[1]),
        stored_bytes=int(sums[2]),
    )


def _count_organs(session: Session) -> int:
    # Counts all organs with a place, from one index, and subtracts the few with hidden places only. A search for a
    # visible place of each organ takes three times as long.
    placed = session.scalar(select(func.count()).select_from(select(Placement.organ_id).distinct().subquery())) or 0
    visible = aliased(Placement)
    is_visible = select(visible.id).where(visible.organ_id == Placement.organ_id, visible.visible).exists()
    hidden = select(Placement.organ_id).where(~Placement.visible, ~is_visible).distinct()
    return placed - (session.scalar(select(func.count()).select_from(hidden.subquery())) or 0)
