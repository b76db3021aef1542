"""Queries for reports and dissections: sums and extremes that the database computes, and totals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, case, func, or_, select, true
from sqlalchemy.orm import Session, aliased

from organs.registry.anatomy import OrganType
from organs.registry.catalog.cache import cached
from organs.registry.catalog.queries.chimeras import is_composed
from organs.registry.catalog.queries.model_lists import count_models
from organs.registry.catalog.rows import count, first
from organs.registry.catalog.tables import (
    Blob,
    ChimeraRow,
    Facet,
    GainRow,
    Ingest,
    Lineage,
    MeasurementRow,
    ModelRow,
    OrganRow,
    Placement,
    Total,
    VerdictRow,
)
from organs.registry.catalog.vocabulary import CHIMERA, STACK_CODEC
from organs.registry.entities.server import Figures, RegistryTotals
from organs.registry.measures import GroupFigures


@dataclass(frozen=True, slots=True)
class FacetFigures:
    """The sums over the tensors of a facet. Their values and uncertain θ are not counted."""

    type: str
    slot: str
    dtype: str
    sums: GroupFigures


@dataclass(frozen=True, slots=True)
class TensorFigures:
    """The sums over the tensors of all visible models, by facet, by model and by type.

    The tensors of chimeras count only in `matrices`: they belong to other models, or were computed from theirs.
    """

    facets: Sequence[FacetFigures]
    matrices: Mapping[int, GroupFigures]
    """By model id, without models that have no matrices: only numbers of tensors, and sums of θ and spectral signal.

    A matrix is a tensor with a spectral reading: it has at least two rows and two columns, and a readable dtype.
    """
    means: Mapping[str, Sequence[tuple[float, int]]]
    """The mean θ in degrees of each type in each model, with the model id."""
    lowest: Mapping[int, float]
    """The lowest θ in degrees of the matrices of each model, without norms."""


def tensor_figures(session: Session) -> TensorFigures:
    """Return the sums over the tensors of all visible models, computed once for each state of the catalog."""
    return cached(session, "tensor figures", lambda: _tensor_figures(session))


def _tensor_figures(session: Session) -> TensorFigures:
    # All tensors are read twice, each time from one index: their sizes, and their measures.
    facet_columns = select(Facet.id, Facet.type, Facet.slot, Facet.dtype)
    sizes_by_facet = select(Placement.facet_id, func.sum(Placement.size_bytes)).where(*_original())
    sizes = dict(session.execute(sizes_by_facet.group_by(Placement.facet_id)).all())
    facets = {
        facet: FacetFigures(kind, slot, dtype, GroupFigures(size_bytes=int(sizes[facet])))
        for facet, kind, slot, dtype in session.execute(facet_columns.order_by(Facet.id))
        if facet in sizes
    }
    composed = set(session.scalars(select(ChimeraRow.model_id)))
    # The sums of each model are kept: their exact sum does not depend on their order, so equal models have equal means.
    matrices: defaultdict[int, list[tuple[int, int, float, float]]] = defaultdict(list)
    thetas: defaultdict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
    lowest: dict[int, float] = {}
    for model, facet, *figures in session.execute(_sums_by_model().execution_options(yield_per=ROWS_AT_ONCE)):
        tensors, measured, theta_sum, square_sum, low, high, spectra, spectral_sum, *of_matrices = figures
        matrix_measured, matrix_sum, matrix_low = of_matrices
        if spectra:
            matrices[model].append((spectra, matrix_measured, matrix_sum, spectral_sum))
        if model in composed:
            continue
        group = facets[facet]
        group.sums.add(
            GroupFigures(
                tensors=tensors,
                measured=measured,
                theta_sum=theta_sum,
                theta_square_sum=square_sum,
                theta_minimum=low,
                theta_maximum=high,
                spectral_count=spectra,
                spectral_sum=spectral_sum,
            )
        )
        if measured:
            thetas[group.type, model].append((measured, theta_sum))
        if matrix_measured and group.type != OrganType.NORM.value:
            lowest[model] = min(matrix_low, lowest.get(model, matrix_low))
    means: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    for (kind, model), parts in sorted(thetas.items()):
        counts, sums = zip(*parts, strict=True)
        means[kind].append((math.fsum(sums) / sum(counts), model))
    return TensorFigures(
        facets=list(facets.values()),
        matrices={model: _figures_of_matrices(parts) for model, parts in matrices.items()},
        means=dict(means),
        lowest=lowest,
    )


def _figures_of_matrices(parts: Sequence[tuple[int, int, float, float]]) -> GroupFigures:
    counts, measured, thetas, spectra = zip(*parts, strict=True)
    return GroupFigures(
        tensors=sum(counts),
        measured=sum(measured),
        theta_sum=math.fsum(thetas),
        spectral_count=sum(counts),
        spectral_sum=math.fsum(spectra),
    )


def _sums_by_model() -> Select[*tuple[Any, ...]]:
    """Return a SELECT of the sums over the tensors of each facet in each visible model; one index has all columns."""
    theta, spectral = Placement.theta, Placement.spectral_signal
    of_matrix = case((spectral.is_not(None), theta))
    theta_sum, square_sum, spectral_sum, matrix_sum = (
        func.coalesce(func.sum(values), 0.0) for values in (theta, theta * theta, spectral, of_matrix)
    )
    return (
        select(
            *(Placement.model_id, Placement.facet_id, func.count()),
            *(func.count(theta), theta_sum, square_sum, func.min(theta), func.max(theta)),
            *(func.count(spectral), spectral_sum, func.count(of_matrix), matrix_sum, func.min(of_matrix)),
        )
        .where(Placement.visible)
        .group_by(Placement.model_id, Placement.facet_id)
    )


def _original() -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that a Placement is visible and its model was not composed here."""
    return Placement.visible, Placement.model_id.not_in(select(ChimeraRow.model_id))  # type: ignore[return-value]


def thetas_at_ranks(session: Session, kind: str, ranks: Iterable[int]) -> dict[int, float]:
    """Return the measured θ of type `kind` at each of `ranks`, which count from 0 in rising order.

    The tensors are those of `TensorFigures.facets`.
    """
    statement = (
        select(Placement.theta)
        .where(*_original(), Placement.type == kind, Placement.theta.is_not(None))
        .order_by(Placement.theta)
        .limit(1)
    )
    thetas = {rank: session.scalars(statement.offset(rank)).one() for rank in sorted(set(ranks))}
    return {rank: theta for rank, theta in thetas.items() if theta is not None}


def tensor_rows(session: Session, model_id: int) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return the tensors of a model in order, with the columns of `_tensors`."""
    return session.execute(_tensors(Placement.model_id == model_id).order_by(Placement.position)).all()


def _tensors(*conditions: Any) -> Select[*tuple[Any, ...]]:
    """Return a SELECT of the tensors that meet the conditions, with the measures that reports use."""
    place = (Placement.name, Placement.type, Placement.tower, Placement.block, Placement.slot, Placement.dtype)
    measures = (OrganRow.shape, OrganRow.elements, Placement.size_bytes, Placement.theta, Placement.spectral_signal)
    return select(*place, *measures).join(OrganRow, OrganRow.id == Placement.organ_id).where(*conditions)


def kinds_of_models(session: Session) -> Sequence[Row[str, bool, int]]:
    """Return kind (`chimera` if composed in this registry), completeness and number of visible models."""
    kind = case((is_composed(), CHIMERA), else_=ModelRow.kind).label("model_kind")
    statement = select(kind, ModelRow.complete, func.count()).where(ModelRow.state == "visible")
    return session.execute(statement.group_by(kind, ModelRow.complete).order_by(kind, ModelRow.complete)).all()


def sized_models(session: Session) -> Sequence[Row[int, str, str, int, str | None, int, float | None]]:
    """Return visible, complete models with θ, oldest first: id, namespace, name, version, title, parameters, θ."""
    columns = (
        ModelRow.id,
        ModelRow.namespace,
        ModelRow.name,
        ModelRow.version,
        ModelRow.title,
        ModelRow.parameters,
        ModelRow.mean_theta,
    )
    statement = select(*columns).where(
        ModelRow.state == "visible",
        ModelRow.complete,
        ModelRow.kind == "model",
        ~is_composed(),
        ModelRow.mean_theta.is_not(None),
        ModelRow.parameters > 0,
    )
    return session.execute(statement.order_by(ModelRow.id)).all()


@dataclass(frozen=True, slots=True)
class CountedModels:
    """The number of models with a property, and the full name of the oldest of them; empty if there are none."""

    count: int
    first: str


def unlicensed_models(session: Session) -> CountedModels:
    """Return the visible models that state no license, without vocabularies."""
    return _counted(session, ModelRow.state == "visible", ModelRow.license.is_(None), ModelRow.kind != "vocabulary")


def nonfinite_models(session: Session) -> CountedModels:
    """Return the visible models with weights that are NaN or infinite."""
    return _counted(session, ModelRow.state == "visible", ModelRow.nonfinite_tensors > 0)


def models_in_state(session: Session, state: str) -> CountedModels:
    """Return the models in a state, such as yanked, quarantined or incomplete."""
    return _counted(session, ModelRow.state == state)


def unrun_chimeras(session: Session) -> CountedModels:
    """Return the visible chimeras without a verdict."""
    has_verdict = select(VerdictRow.id).where(VerdictRow.model_id == ModelRow.id).exists()
    return _counted(session, ModelRow.state == "visible", is_composed(), ~has_verdict)


def _counted(session: Session, *conditions: ColumnElement[bool]) -> CountedModels:
    oldest = first(session, select(ModelRow).where(*conditions).order_by(ModelRow.id))
    return CountedModels(count(session, ModelRow, *conditions), "" if oldest is None else oldest.full_name)


def equal_models(session: Session, limit: int) -> list[tuple[str, ...]]:
    """Return the names of visible models with the same file, for each of at most `limit` such files."""
    visible = ModelRow.state == "visible"
    digests = select(ModelRow.digest).where(visible).group_by(ModelRow.digest).having(func.count() > 1)
    shared = session.scalars(digests.order_by(func.min(ModelRow.id)).limit(limit)).all()
    names: dict[str, list[str]] = {digest: [] for digest in shared}
    for model in session.scalars(select(ModelRow).where(visible, ModelRow.digest.in_(shared)).order_by(ModelRow.id)):
        names[model.digest].append(model.full_name)
    return [tuple(group) for group in names.values()]


def combined_models(session: Session, model_ids: Collection[int]) -> frozenset[frozenset[int]]:
    """Return the pairs among the models `model_ids` that are both parents of a visible chimera, by their ids."""
    own, other = aliased(Lineage), aliased(Lineage)
    statement = (
        select(own.parent_model_id, other.parent_model_id)
        .join(other, other.child_model_id == own.child_model_id)
        .join(ModelRow, ModelRow.id == own.child_model_id)
        .where(
            ModelRow.state == "visible",
            own.parent_model_id.in_(model_ids),
            other.parent_model_id.in_(model_ids),
            own.evidence == "recorded",
            other.evidence == "recorded",
            own.parent_model_id < other.parent_model_id,
        )
        .distinct()
    )
    return frozenset(frozenset({one or 0, another or 0}) for one, another in session.execute(statement))


def largest_gain(session: Session) -> tuple[str, float, str] | None:
    """Return the visible chimera with the largest settled gain, the gain in percent, and the text; None without one."""
    statement = (
        select(ModelRow, GainRow.percent, GainRow.text)
        .join(GainRow, GainRow.model_id == ModelRow.id)
        .where(ModelRow.state == "visible", GainRow.settled.is_(true()), GainRow.percent > 0)
    )
    row = session.execute(statement.order_by(GainRow.percent.desc(), GainRow.id).limit(1)).one_or_none()
    return None if row is None else (row[0].full_name, row[1], row[2])


def lowest_matrix(session: Session, model_id: int) -> tuple[ModelRow, Row[*tuple[Any, ...]]]:
    """Return a model and its matrix with the lowest θ, the first of equal ones. Norms are left out."""
    is_well = (
        Placement.theta.is_not(None),
        Placement.spectral_signal.is_not(None),
        Placement.type != OrganType.NORM.value,
    )
    own = _tensors(Placement.model_id == model_id, *is_well).order_by(Placement.theta, Placement.position)
    return session.get_one(ModelRow, model_id), session.execute(own.limit(1)).one()


def dtypes_of(session: Session, model_id: int) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return a row for each dtype of a model, by falling bytes, then by name.

    Each has dtype, number of tensors, bytes, mean θ, and mean θ of the tensors with a spectral reading.
    """
    size, theta = func.sum(Placement.size_bytes), Placement.theta
    matrix_theta = func.avg(case((Placement.spectral_signal.is_not(None), theta)))
    statement: Any = select(Placement.dtype, func.count(), size, func.avg(theta), matrix_theta)
    ordered = statement.where(Placement.model_id == model_id).group_by(Placement.dtype)
    return session.execute(ordered.order_by(size.desc(), Placement.dtype)).all()


def unusual_organs(
    session: Session, model_id: int, limit: int
) -> tuple[Sequence[Row[str, str, int, int, int, bool, str | None]], int]:
    """Return organs with NaN or infinite values in the sample, constant organs, and organs without θ, in order.

    Each row has name, dtype, sample size, NaN, infinities, whether it is constant, and why nothing was measured. The
    number counts all of them, also beyond `limit`.
    """
    # The row of the spectral reading has no θ. The row of the Z-measure reports values that cannot be read.
    is_empty = and_(MeasurementRow.theta.is_(None), MeasurementRow.spectral_signal.is_(None))
    unusual = or_(MeasurementRow.nan_count > 0, MeasurementRow.infinite_count > 0, MeasurementRow.constant, is_empty)
    sample = (MeasurementRow.sample_size, MeasurementRow.nan_count, MeasurementRow.infinite_count)
    statement = (
        select(Placement.name, Placement.dtype, *sample, MeasurementRow.constant, MeasurementRow.reason)
        .join(MeasurementRow, MeasurementRow.organ_id == Placement.organ_id)
        .where(Placement.model_id == model_id, unusual)
    )
    ordered = statement.order_by(Placement.position, MeasurementRow.method).limit(limit)
    return session.execute(ordered).all(), count(session, statement.subquery())


def methods_of(session: Session, model_id: int) -> Sequence[Row[str, int, int, int, int, int]]:
    """Return a row for each method: its tensors; the least, largest and total sample; all values of the tensors."""
    sample = MeasurementRow.sample_size
    statement = (
        select(
            MeasurementRow.method,
            func.count(),
            func.min(sample),
            func.max(sample),
            func.sum(sample),
            func.sum(OrganRow.elements),
        )
        .join(Placement, Placement.organ_id == MeasurementRow.organ_id)
        .join(OrganRow, OrganRow.id == MeasurementRow.organ_id)
        .where(Placement.model_id == model_id)
        .group_by(MeasurementRow.method)
        .order_by(MeasurementRow.method.desc())
    )
    return session.execute(statement).all()


def newest_ingests(session: Session, limit: int) -> Sequence[Row[Ingest, ModelRow | None]]:
    """Return the newest ingests of any state with their models, the newest first."""
    statement = select(Ingest, ModelRow).outerjoin(ModelRow, ModelRow.id == Ingest.model_id)
    return session.execute(statement.order_by(Ingest.id.desc()).limit(limit)).all()


def first_ingests(session: Session, limit: int) -> Sequence[Row[Ingest, ModelRow]]:
    """Return the first finished ingest of each visible model, the newest first; without composed models."""
    earliest = select(func.min(Ingest.id)).where(Ingest.state == "finished").group_by(Ingest.model_id)
    statement = select(Ingest, ModelRow).join(ModelRow, ModelRow.id == Ingest.model_id)
    visible = statement.where(Ingest.id.in_(earliest), ModelRow.state == "visible", ~is_composed())
    return session.execute(visible.order_by(Ingest.id.desc()).limit(limit)).all()


def all_ingest_reports(session: Session) -> Iterator[tuple[str, str | None]]:
    """Yield the state and the JSON report of every ingest, and of every composition."""
    statement = select(Ingest.state, Ingest.report).execution_options(yield_per=ROWS_AT_ONCE)
    for row in session.execute(statement):
        yield row.state, row.report


ROWS_AT_ONCE = 1000
"""Rows of a long result that are in memory at the same time."""


def running_totals(session: Session) -> RegistryTotals:
    """Return the totals that the writers maintain, from a few rows."""
    stored = dict(session.execute(select(Total.name, Total.value)).all())
    return RegistryTotals(**{name: stored.get(name, 0) for name in RegistryTotals.__struct_fields__})


def visible_bytes(session: Session, *, chimeras: bool = True) -> int:
    """Return the total size of the files of all visible models, with or without those that were composed here."""
    statement = select(func.sum(ModelRow.size_bytes)).where(ModelRow.state == "visible")
    return int(session.scalar(statement if chimeras else statement.where(~is_composed())) or 0)


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
    plain, stored = (func.coalesce(func.sum(column), 0) for column in (Blob.size_bytes, Blob.stored_bytes))
    counted = select(func.count(), plain, stored).where(Blob.state != "doomed", Blob.codec != STACK_CODEC)
    blobs, size_bytes, stored_bytes = session.execute(counted).one()
    # Counts all organs with a place, from one index, and subtracts the few with hidden places only. A search for a
    # visible place of each organ takes three times as long.
    visible = aliased(Placement)
    is_visible = select(visible.id).where(visible.organ_id == Placement.organ_id, visible.visible).exists()
    hidden = select(Placement.organ_id).where(~Placement.visible, ~is_visible).distinct()
    placed = select(Placement.organ_id).distinct()
    return RegistryTotals(
        models=count_models(session),
        placements=count(session, Placement, Placement.visible),
        organs=count(session, placed.subquery()) - count(session, hidden.subquery()),
        blobs=blobs,
        size_bytes=int(size_bytes),
        stored_bytes=int(stored_bytes),
    )
