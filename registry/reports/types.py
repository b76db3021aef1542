"""The section on the types of organs, of a registry or of one model."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from organs.registry.anatomy import OrganType
from organs.registry.catalog.queries.reports import TypeFigures, thetas_at_ranks, type_figures
from organs.registry.reports.document import Cell, Column, Kind, Table
from organs.registry.reports.spread import QUARTILES, deviation_of_means, quantile, quantile_ranks
from organs.registry.reports.words import LISTS, SPECTRAL_OF_TYPES, SPREAD, TYPE_WORDS, TYPES_DIFFER

_COLUMNS = (
    Column("type", "type", Kind.TEXT),
    Column("tensors_count", "tensors", Kind.COUNT),
    Column("size_bytes", "size", Kind.SIZE),
    Column("measured_count", "with θ", Kind.COUNT, data_only=True),
    Column("mean_theta_degrees", "mean θ", Kind.DEGREES),
    Column("theta_standard_deviation_degrees", "deviation", Kind.DEGREES),
    Column("theta_lower_quartile_degrees", "25%", Kind.DEGREES),
    Column("theta_median_degrees", "median", Kind.DEGREES),
    Column("theta_upper_quartile_degrees", "75%", Kind.DEGREES),
    Column("mean_spectral_signal", "spectral", Kind.SHARE),
)


def types_table(session: Session, model_id: int | None, *, before: str, empty: str) -> Table:
    """θ and spectral signal by type, of a model or, without one, of all visible models."""
    found = type_figures(session, model_id)
    roles = "; ".join(f"{figures.type} is {TYPE_WORDS[OrganType(figures.type)]}" for figures in found)
    return Table(
        key="types",
        title="By type of tensor",
        columns=_COLUMNS,
        rows=tuple(_row(session, figures, model_id) for figures in found),
        before=(f"{before} {roles[:1].upper()}{roles[1:]}.",),
        after=_after(found),
        empty=empty,
    )


def _after(found: Sequence[TypeFigures]) -> tuple[str, ...]:
    words = [SPREAD, SPECTRAL_OF_TYPES]
    if any(not figures.spectral_count for figures in found):
        words.append(LISTS)
    if left_out := sum(figures.tensors - figures.measured for figures in found):
        words.append(f"Tensors without a θ, which are left out of these figures: {left_out:,}.")
    return " ".join(words), *((TYPES_DIFFER,) if len(found) > 1 else ())


def _row(session: Session, figures: TypeFigures, model_id: int | None) -> tuple[Cell, ...]:
    quartiles: tuple[float | None, ...] = (None, None, None)
    deviation = None
    if figures.mean_theta is not None and figures.mean_square_theta is not None:
        deviation = deviation_of_means(figures.mean_theta, figures.mean_square_theta)
        ranks = {rank for share in QUARTILES for rank in quantile_ranks(figures.measured, share)}
        thetas = thetas_at_ranks(session, figures.type, ranks, model_id)
        quartiles = tuple(quantile(figures.measured, share, thetas) for share in QUARTILES)
    return (
        figures.type,
        figures.tensors,
        figures.size_bytes,
        figures.measured,
        figures.mean_theta,
        deviation,
        *quartiles,
        figures.mean_spectral_signal,
    )
