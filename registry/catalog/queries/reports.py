"""What reports are made of: sums and extremes that the database works out, never a row a placement.

Where a function takes a `model_id`, None stands for all visible models. What is asked of all of them is answered from
the indexes by type and measure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Row, case, func, select
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.models import is_composed
from organs.registry.catalog.search.fields import CHIMERA
from organs.registry.catalog.tables import Lineage, Model, Organ, Placement


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
