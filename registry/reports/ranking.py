"""Tables over all visible models: their ranking by θ, and θ by type, by component, over the models, and the wells."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import nsmallest
from itertools import groupby

from sqlalchemy.orm import Session

from organs.registry.anatomy import OrganType, component_of
from organs.registry.catalog.queries.model_contents import TypeFigures, caution_of_types, type_figures
from organs.registry.catalog.queries.model_lists import composed_among, ranked_models
from organs.registry.catalog.queries.reports import FacetFigures, TensorFigures, lowest_matrix, thetas_at_ranks
from organs.registry.catalog.tables import ModelRow
from organs.registry.catalog.vocabulary import CHIMERA
from organs.registry.columns import CellKind
from organs.registry.entities.report import Cell, ReportColumn, ReportTable, table
from organs.registry.gguf import dtype_by_name
from organs.registry.measures import THETA_LEGEND, GroupFigures, theta_caution
from organs.registry.reports.dissection import reading_of
from organs.registry.reports.groups import (
    CAUTION,
    MATRIX_THETA,
    MEAN_SIGNAL,
    MEAN_SPECTRAL,
    MEAN_THETA,
    MEASURED,
    MODEL,
    MODELS,
    PARAMETERS,
    QUARTILES,
    TENSOR_COLUMNS,
    TENSORS,
    TYPE,
    Quartiles,
    components_table,
    grouped,
    mean_of,
    quantile,
    quantile_ranks,
    tensor_row,
    types_table,
)
from organs.registry.reports.words import (
    LISTED,
    NO_MERIT,
    RANKED_BY,
    RANKED_WITH,
    SHARED_WELLS,
    SIGNAL,
    TYPE_RANGES,
    WELLS,
)


def registry_tables(session: Session, tensors: TensorFigures) -> tuple[ReportTable, ReportTable]:
    """Return θ and spectral signal by type, and by component, over all visible models without chimeras."""
    facets = [(row, _facet_sums(row)) for row in tensors.facets]
    types = grouped((OrganType(row.type), sums) for row, sums in facets)
    components = grouped((component_of(OrganType(row.type), row.slot), sums) for row, sums in facets)
    quartiles: dict[OrganType, Quartiles] = {}
    for kind, sums in types.items():
        ranks = {rank for share in QUARTILES for rank in quantile_ranks(sums.measured, share) if sums.measured}
        thetas = thetas_at_ranks(session, kind.value, ranks)
        quartiles[kind] = tuple(quantile(sums.measured, share, thetas) if thetas else None for share in QUARTILES)
    empty = "There are no tensors."
    before = (
        "All tensors of all models: a tensor that three models share counts three times. Chimeras are left out, "
        "because their tensors come from these models."
    )
    return (
        types_table(types, quartiles, before=before, empty=empty),
        components_table(components, before=before, empty=empty),
    )


def _facet_sums(row: FacetFigures) -> GroupFigures:
    dtype, sums = dtype_by_name(row.dtype), row.sums
    # Rows of tensors are whole blocks. Values of a type without a size are not counted.
    elements = sums.size_bytes // dtype.block_bytes * dtype.block_elements if dtype.is_sized else 0
    # Tensors of one facet have similar sizes; the database would have to read each row to compare them.
    caution = theta_caution(sums.theta_minimum, row.dtype, elements // sums.tensors)
    return replace(sums, elements=elements, uncertain=sums.measured if caution else 0)


def wells_table(session: Session, lowest: Mapping[int, float], limit: int) -> ReportTable:
    """Return the matrix with the lowest θ of each model, at most `limit`, by rising θ, then by the age of the model.

    `lowest` has this θ in degrees by model id. The column of models counts those with exactly the same lowest θ.
    """
    models = Counter(lowest.values())
    rows: list[tuple[Cell, ...]] = []
    for theta, model_id in nsmallest(limit, ((theta, model_id) for model_id, theta in lowest.items())):
        model, row = lowest_matrix(session, model_id)
        rows.append((model.full_name, *tensor_row(reading_of(row)), models[theta]))
    return table(
        title="Gravitational wells: matrices with the lowest θ",
        columns=(MODEL, *TENSOR_COLUMNS, MODELS),
        rows=rows,
        before=(
            (
                f"The matrix with the lowest θ of each model, the lowest first; at most {limit:,} models. Norms and "
                "lists of numbers are left out, and so are chimeras, because their matrices come from these models. "
                f"{LISTED}"
            ),
        ),
        after=(SHARED_WELLS, WELLS, THETA_LEGEND),
        empty="There is no matrix with a θ.",
    )


def ranking_tables(
    session: Session, matrices: Mapping[int, GroupFigures], complete: int, limit: int
) -> tuple[ReportTable, ReportTable]:
    """Return at most `limit` of the `complete` models and chimeras, and θ by type in each of these models.

    `matrices` has the figures of the matrices by model id. Chimeras are marked, have no place of their own, and are not
    in the second table.
    """
    models = ranked_models(session, limit, chimeras=True)
    chimeras = composed_among(session, [model.id for model in models])
    originals = [model for model in models if model.id not in chimeras]
    ranks = {model.id: rank for rank, model in enumerate(originals, 1)}
    types: dict[int, list[TypeFigures]] = {}
    for figures in type_figures(session, [model.id for model in models]):
        types.setdefault(figures.model_id, []).append(figures)
    rows: list[tuple[Cell, ...]] = []
    for model in models:
        rank, of_matrices = ranks.get(model.id), matrices.get(model.id)
        row = (
            rank,
            model.full_name,
            CHIMERA if rank is None else model.kind,
            model.mean_theta,
            None if of_matrices is None else of_matrices.mean_theta,
            model.mean_signal,
            None if of_matrices is None else of_matrices.mean_spectral_signal,
            model.tensors,
            0 if of_matrices is None else of_matrices.tensors,
            model.parameters,
            caution_of_types(types.get(model.id, ())),
        )
        rows.append(row)
    selection = f"The first {len(models)} of {complete}" if len(models) < complete else "All"
    selection += " complete models"
    marked = (
        " Chimeras, which were composed here from other models, are marked and have no place. The sentences below do "
        "not count them, because their tensors come from these models."
    )
    tensors = sum(model.tensors for model in originals)
    others = tensors - sum(matrices[model.id].tensors for model in originals if model.id in matrices)
    ranking = table(
        title="Ranking of models",
        columns=(
            ReportColumn("rank", "place", CellKind.COUNT),
            MODEL,
            ReportColumn("kind", "kind", CellKind.TEXT),
            *(MEAN_THETA, MATRIX_THETA, MEAN_SIGNAL, MEAN_SPECTRAL, TENSORS),
            ReportColumn("matrices_count", "matrices", CellKind.COUNT, data_only=True),
            *(PARAMETERS, CAUTION),
        ),
        rows=rows,
        before=(
            (
                f"{selection}, by falling mean θ; equal ones by age, the oldest first. Adapters, vocabularies and "
                f"partial models are left out.{marked if chimeras else ''}"
            ),
        ),
        after=(
            f"{RANKED_BY} In this list {others:,} of {tensors:,} tensors are not matrices.",
            *_orders(originals, matrices),
            *(RANKED_WITH, NO_MERIT, THETA_LEGEND),
        ),
        empty="There is no complete model to rank.",
    )
    return ranking, _model_types(originals, types, selection)


def _orders(models: Sequence[ModelRow], matrices: Mapping[int, GroupFigures]) -> list[str]:
    """Return sentences that compare the order by mean θ with the order by matrix θ."""

    def falling_matrix_theta(model: ModelRow) -> float:
        theta = matrices[model.id].mean_theta if model.id in matrices else None
        return 1.0 if theta is None else -theta

    thetas = [model.mean_theta for model in models if model.mean_theta is not None]
    if len(thetas) < 2:
        return []
    apart = f"The first and the last in this list differ by {thetas[0] - thetas[-1]:.1f}° in mean θ."
    by_matrices = sorted(models, key=falling_matrix_theta)
    moved = sum(model is not other for model, other in zip(models, by_matrices, strict=True))
    if not moved:
        return [f"{apart} Matrix θ gives the same order."]
    count = "all" if moved == len(models) else f"{moved:,}"
    first, last = by_matrices[0], by_matrices[-1]
    return [
        (
            f"{apart} The two means give different orders: {count} of these {len(models)} models have another place by "
            f"matrix θ. {first.full_name}, number {models.index(first) + 1} here, would be first, and "
            f"{last.full_name}, number {models.index(last) + 1}, last. If models differ by a few tenths of a degree, "
            "their order means nothing."
        )
    ]


def _model_types(models: Sequence[ModelRow], types: Mapping[int, Sequence[TypeFigures]], selection: str) -> ReportTable:
    """Return a row for each type of tensor in each of `models`, in the order of the ranking."""
    rows: list[tuple[Cell, ...]] = []
    for model in models:
        for kind, of_kind in groupby(types.get(model.id, ()), key=lambda row: row.type):
            parts = list(of_kind)
            tensors, measured = (sum(getattr(part, name) for part in parts) for name in ("tensors", "measured"))
            means = [
                math.fsum(getattr(part, name) for part in parts) / measured if measured else None
                for name in ("theta_sum", "signal_sum")
            ]
            rows.append((model.full_name, kind, tensors, measured, *means, caution_of_types(parts)))
    return table(
        title="Models by type of tensor",
        columns=(MODEL, TYPE, TENSORS, MEASURED, MEAN_THETA, MEAN_SIGNAL, CAUTION),
        rows=rows,
        before=(f"{selection}, in the order of the ranking, without chimeras; a row for each type in each model.",),
        after=(SIGNAL, THETA_LEGEND),
        empty="There is no complete model.",
    )


def type_ranges(session: Session, means_by_type: Mapping[str, Sequence[tuple[float, int]]]) -> ReportTable:
    """Return for each type of tensor the range over all visible models of the model's mean θ; without chimeras."""
    rows: list[tuple[Cell, ...]] = []
    for kind, means in means_by_type.items():
        ends = [(theta, session.get_one(ModelRow, model_id).full_name) for theta, model_id in (min(means), max(means))]
        (low, lowest), (high, highest) = ends
        rows.append((kind, len(means), mean_of(theta for theta, _ in means), low, lowest, high, highest, high - low))
    return table(
        title="The range of each type over the models",
        columns=(
            *(TYPE, MODELS, MEAN_THETA),
            ReportColumn("minimum_theta_degrees", "lowest", CellKind.DEGREES),
            ReportColumn("minimum_model", "lowest in", CellKind.NAME),
            ReportColumn("maximum_theta_degrees", "highest", CellKind.DEGREES),
            ReportColumn("maximum_model", "highest in", CellKind.NAME),
            ReportColumn("range_degrees", "range", CellKind.DEGREES),
        ),
        rows=rows,
        before=("The mean θ of the tensors of a type in each model, compared over all models. Chimeras are left out.",),
        after=(TYPE_RANGES,),
        empty="There are no tensors with a θ.",
    )
