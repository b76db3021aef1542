"""The section that ranks models by mean θ, and says what the order hangs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.models import ranked_models
from organs.registry.catalog.queries.reports import MatrixFigures
from organs.registry.catalog.tables import Model
from organs.registry.reports.document import Cell, Column, Kind, Table
from organs.registry.reports.words import NO_MERIT, RANKED_BY, RANKED_WITH


def ranking_table(session: Session, matrices: Mapping[int, MatrixFigures], complete: int, limit: int) -> Table:
    """At most `limit` of the `complete` models there are, with the figures of their `matrices` by id."""
    models = ranked_models(session, limit)
    shown = f"The first {len(models)} of {complete} complete models" if len(models) < complete else _ALL
    return Table(
        key="ranking",
        title="Ranking of models",
        columns=_COLUMNS,
        rows=tuple(_row(rank, model, matrices.get(model.id)) for rank, model in enumerate(models, 1)),
        before=(f"{shown}, by falling mean θ; of equal ones the older first. {_LEFT_OUT}",),
        after=(RANKED_BY + _share(models, matrices), *_orders(models, matrices), RANKED_WITH, NO_MERIT),
        empty="There is no complete model to rank.",
    )


def _row(rank: int, model: Model, matrices: MatrixFigures | None) -> tuple[Cell, ...]:
    return (
        rank,
        model.full_name,
        model.mean_theta,
        None if matrices is None else matrices.mean_theta,
        model.mean_signal,
        None if matrices is None else matrices.mean_spectral_signal,
        model.tensors,
        0 if matrices is None else matrices.matrices,
        model.parameters,
    )


def _share(models: Sequence[Model], matrices: Mapping[int, MatrixFigures]) -> str:
    tensors = sum(model.tensors for model in models)
    others = tensors - sum(matrices[model.id].matrices for model in models if model.id in matrices)
    return f" In this list {others:,} of {tensors:,} tensors are no matrices."


def _orders(models: Sequence[Model], matrices: Mapping[int, MatrixFigures]) -> tuple[str, ...]:
    """Whether the mean over matrices would put the models into the same order."""
    by_matrices = sorted(models, key=lambda model: -_matrix_theta(model, matrices))
    moved = sum(one is not other for one, other in zip(models, by_matrices, strict=True))
    thetas = [model.mean_theta for model in models if model.mean_theta is not None]
    if len(thetas) < 2:
        return ()
    apart = f"The first and the last in this list are {thetas[0] - thetas[-1]:.1f}° apart by mean θ."
    if not moved:
        return (f"{apart} Matrix θ puts these models into the same order.",)
    count = "each" if moved == len(models) else f"{moved:,}"
    first, last = by_matrices[0], by_matrices[-1]
    said = (
        f"{apart} The two means give two orders: of these {len(models)} models {count} would stand at another place "
        f"by matrix θ. {first.full_name}, number {models.index(first) + 1} here, would be the first, and "
        f"{last.full_name}, number {models.index(last) + 1}, the last. Where models are a few tenths of a degree "
        "apart, their order says nothing."
    )
    return (said,)


def _matrix_theta(model: Model, matrices: Mapping[int, MatrixFigures]) -> float:
    theta = matrices[model.id].mean_theta if model.id in matrices else None
    return -1.0 if theta is None else theta


_ALL = "All complete models"
_LEFT_OUT = "Adapters, vocabularies and models of which only a part is here are left out."
_COLUMNS = (
    Column("rank", "place", Kind.COUNT),
    Column("model", "model", Kind.NAME),
    Column("mean_theta_degrees", "mean θ", Kind.DEGREES),
    Column("matrix_mean_theta_degrees", "matrix θ", Kind.DEGREES),
    Column("mean_signal", "signal", Kind.SHARE),
    Column("mean_spectral_signal", "spectral", Kind.SHARE),
    Column("tensors_count", "tensors", Kind.COUNT),
    Column("matrices_count", "matrices", Kind.COUNT),
    Column("parameters_count", "parameters", Kind.LARGE),
)
