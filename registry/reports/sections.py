"""The sections of reports that read the catalog: types, ranking, scale law, relatives, wells, anomalies."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy.orm import Session

from organs.registry.amounts import count_text, plural_text
from organs.registry.anatomy import OrganType, Place, Tower, component_of
from organs.registry.catalog.queries.model_contents import TypeFigures, caution_of_types, type_figures
from organs.registry.catalog.queries.model_lists import composed_among, ranked_models
from organs.registry.catalog.queries.reports import (
    FacetFigures,
    MatrixFigures,
    facet_figures,
    lowest_matrices,
    mean_thetas_by_type,
    sized_models,
    tensor_rows,
    thetas_at_ranks,
    unusual_organs,
)
from organs.registry.catalog.tables import ModelRow
from organs.registry.catalog.vocabulary import CHIMERA
from organs.registry.entities.report import Cell, CellKind, ReportColumn, ReportTable, table
from organs.registry.gguf import dtype_by_name
from organs.registry.measures import THETA_LEGEND, theta_caution
from organs.registry.names import ModelName
from organs.registry.relatives.families import listed_families
from organs.registry.relatives.lineage import lineage_of
from organs.registry.reports.groups import (
    CAUTION_COLUMN,
    TENSOR_COLUMNS,
    GroupFigures,
    Quartiles,
    TensorReading,
    components_table,
    grouped,
    tensor_row,
    types_table,
)
from organs.registry.reports.statistics import (
    QUARTILES,
    Line,
    fit_line,
    mean_of,
    quantile,
    quantile_ranks,
)
from organs.registry.reports.words import (
    ALIKE,
    ANOMALIES,
    KINSHIP,
    LINE,
    LINE_OF_READINGS,
    LISTED,
    NO_ANOMALIES,
    NO_MERIT,
    RANKED_BY,
    RANKED_WITH,
    SHARED_WELLS,
    SIGNAL,
    TYPE_RANGES,
    WELLS,
)


def readings_of(session: Session, model_id: int) -> list[TensorReading]:
    """Return the tensors of a model with their measures, in order."""
    return [_reading(row) for row in tensor_rows(session, model_id)]


def _reading(row: Any) -> TensorReading:
    return TensorReading(
        name=row.name,
        place=Place(OrganType(row.type), Tower(row.tower), row.block, row.slot),
        dtype=row.dtype,
        shape=row.shape,
        elements=row.elements,
        size_bytes=row.size_bytes,
        theta=row.theta,
        spectral_signal=row.spectral_signal,
    )


def registry_tables(session: Session) -> tuple[ReportTable, ReportTable]:
    """Return θ and spectral signal by type, and by component, over all visible models without chimeras."""
    facets = [(row, _facet_sums(row)) for row in facet_figures(session)]
    types = grouped((OrganType(row.type), sums) for row, sums in facets)
    quartiles = {kind: _quartiles(session, kind, sums.measured) for kind, sums in types.items()}
    components = grouped((component_of(OrganType(row.type), row.slot), sums) for row, sums in facets)
    empty = "There are no tensors."
    return (
        types_table(types, quartiles, before=_EVERY_TENSOR, empty=empty),
        components_table(components, before=_EVERY_TENSOR, empty=empty),
    )


def _facet_sums(row: FacetFigures) -> GroupFigures:
    dtype = dtype_by_name(row.dtype)
    # Rows of tensors are whole blocks. Values of a type without a size are not counted.
    elements = row.size_bytes // dtype.block_bytes * dtype.block_elements if dtype.is_sized else 0
    # Tensors of one facet have similar sizes; the database would have to read each row to compare them.
    caution = theta_caution(row.theta_minimum, row.dtype, elements // row.tensors)
    return GroupFigures(
        tensors=row.tensors,
        elements=elements,
        size_bytes=row.size_bytes,
        measured=row.measured,
        theta_sum=row.theta_sum,
        theta_square_sum=row.theta_square_sum,
        theta_minimum=row.theta_minimum,
        theta_maximum=row.theta_maximum,
        uncertain=row.measured if caution else 0,
        spectral_count=row.spectral_count,
        spectral_sum=row.spectral_sum,
    )


def _quartiles(session: Session, kind: OrganType, measured: int) -> Quartiles:
    if not measured:
        return (None,) * len(QUARTILES)
    ranks = {rank for share in QUARTILES for rank in quantile_ranks(measured, share)}
    thetas = thetas_at_ranks(session, kind.value, ranks)
    return tuple(quantile(measured, share, thetas) for share in QUARTILES)


def wells_table(session: Session, limit: int) -> ReportTable:
    """Return the matrix with the lowest θ of each visible model, at most `limit`; without chimeras."""
    return table(
        title="Gravitational wells: matrices with the lowest θ",
        columns=(
            ReportColumn("model", "model", CellKind.NAME),
            *TENSOR_COLUMNS,
            ReportColumn("models_count", "models", CellKind.COUNT),
        ),
        rows=[
            (model.full_name, *tensor_row(_reading(row)), models)
            for model, row, models in lowest_matrices(session, limit)
        ],
        before=(f"{_OF_EACH}, the lowest first; at most {limit:,} models. {_NO_WELLS} {LISTED}",),
        after=(SHARED_WELLS, WELLS, THETA_LEGEND),
        empty="There is no matrix with a θ.",
    )


_OF_EACH = "The matrix with the lowest θ of each model"
_NO_WELLS = (
    "Norms and lists of numbers are left out, and so are chimeras, because their matrices come from these models."
)
_EVERY_TENSOR = (
    "All tensors of all models: a tensor that three models share counts three times. Chimeras are left out, because "
    "their tensors come from these models."
)


def ranking_tables(
    session: Session, matrices: Mapping[int, MatrixFigures], complete: int, limit: int
) -> tuple[ReportTable, ReportTable]:
    """Return at most `limit` of the `complete` models and chimeras, and θ by type in each of these models.

    `matrices` has the figures of the matrices by model id. Chimeras are marked, have no place of their own, and are not
    in the second table.
    """
    models = ranked_models(session, limit, chimeras=True)
    chimeras = composed_among(session, [model.id for model in models])
    originals = [model for model in models if model.id not in chimeras]
    ranks = {model.id: rank for rank, model in enumerate(originals, 1)}
    selection = f"The first {len(models)} of {complete} complete models" if len(models) < complete else _ALL
    marked = f" {_CHIMERAS_MARKED}" if chimeras else ""
    types: dict[int, list[TypeFigures]] = {}
    for row in type_figures(session, [model.id for model in models]):
        types.setdefault(row.model_id, []).append(row)
    ranking = table(
        title="Ranking of models",
        columns=_RANKING_COLUMNS,
        rows=tuple(
            (
                *_ranking_row(ranks.get(model.id), model, matrices.get(model.id)),
                caution_of_types(types.get(model.id, ())),
            )
            for model in models
        ),
        before=(f"{selection}, by falling mean θ; equal ones by age, the oldest first. {_LEFT_OUT}{marked}",),
        after=(
            *(RANKED_BY + _share(originals, matrices), *_orders(originals, matrices), RANKED_WITH, NO_MERIT),
            THETA_LEGEND,
        ),
        empty="There is no complete model to rank.",
    )
    return ranking, _model_types(originals, types, selection)


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
        columns=_MODEL_TYPE_COLUMNS,
        rows=rows,
        before=(f"{selection}, in the order of the ranking, without chimeras; a row for each type in each model.",),
        after=(SIGNAL, THETA_LEGEND),
        empty="There is no complete model.",
    )


def type_ranges(session: Session) -> ReportTable:
    """Return for each type of tensor the range over all visible models of the model's mean θ; without chimeras."""
    rows: list[tuple[Cell, ...]] = []
    for kind, of_kind in groupby(mean_thetas_by_type(session), key=lambda row: row[0]):
        means = [(theta, model_id) for _, model_id, theta in of_kind]
        ends = [(theta, session.get_one(ModelRow, model_id).full_name) for theta, model_id in (min(means), max(means))]
        (low, lowest), (high, highest) = ends
        rows.append((kind, len(means), mean_of(theta for theta, _ in means), low, lowest, high, highest, high - low))
    return table(
        title="The range of each type over the models",
        columns=_RANGE_COLUMNS,
        rows=rows,
        before=(f"The mean θ of the tensors of a type in each model, compared over all models. {_NO_CHIMERAS}",),
        after=(TYPE_RANGES,),
        empty="There are no tensors with a θ.",
    )


_NO_CHIMERAS = "Chimeras are left out."
_MODEL_TYPE_COLUMNS = (
    ReportColumn("model", "model", CellKind.NAME),
    ReportColumn("type", "type", CellKind.TEXT),
    ReportColumn("tensors_count", "tensors", CellKind.COUNT),
    ReportColumn("measured_count", "with θ", CellKind.COUNT, data_only=True),
    ReportColumn("mean_theta_degrees", "mean θ", CellKind.DEGREES),
    ReportColumn("mean_signal", "signal", CellKind.SHARE),
    CAUTION_COLUMN,
)
_RANGE_COLUMNS = (
    ReportColumn("type", "type", CellKind.TEXT),
    ReportColumn("models_count", "models", CellKind.COUNT),
    ReportColumn("mean_theta_degrees", "mean θ", CellKind.DEGREES),
    ReportColumn("minimum_theta_degrees", "lowest", CellKind.DEGREES),
    ReportColumn("minimum_model", "lowest in", CellKind.NAME),
    ReportColumn("maximum_theta_degrees", "highest", CellKind.DEGREES),
    ReportColumn("maximum_model", "highest in", CellKind.NAME),
    ReportColumn("range_degrees", "range", CellKind.DEGREES),
)


def _ranking_row(rank: int | None, model: ModelRow, matrices: MatrixFigures | None) -> tuple[Cell, ...]:
    return (
        rank,
        model.full_name,
        CHIMERA if rank is None else model.kind,
        model.mean_theta,
        None if matrices is None else matrices.mean_theta,
        model.mean_signal,
        None if matrices is None else matrices.mean_spectral_signal,
        model.tensors,
        0 if matrices is None else matrices.matrices,
        model.parameters,
    )


def _share(models: Sequence[ModelRow], matrices: Mapping[int, MatrixFigures]) -> str:
    tensors = sum(model.tensors for model in models)
    others = tensors - sum(matrices[model.id].matrices for model in models if model.id in matrices)
    return f" In this list {others:,} of {tensors:,} tensors are not matrices."


def _orders(models: Sequence[ModelRow], matrices: Mapping[int, MatrixFigures]) -> tuple[str, ...]:
    """Return sentences that compare the order by mean θ with the order by matrix θ."""
    by_matrices = sorted(models, key=lambda model: -_matrix_theta(model, matrices))
    moved = sum(model is not other for model, other in zip(models, by_matrices, strict=True))
    thetas = [model.mean_theta for model in models if model.mean_theta is not None]
    if len(thetas) < 2:
        return ()
    apart = f"The first and the last in this list differ by {thetas[0] - thetas[-1]:.1f}° in mean θ."
    if not moved:
        return (f"{apart} Matrix θ gives the same order.",)
    count = "all" if moved == len(models) else f"{moved:,}"
    first, last = by_matrices[0], by_matrices[-1]
    return (
        (
            f"{apart} The two means give different orders: {count} of these {len(models)} models have another place "
            f"by matrix θ. {first.full_name}, number {models.index(first) + 1} here, would be first, and "
            f"{last.full_name}, number {models.index(last) + 1}, last. If models differ by a few tenths of a degree, "
            "their order means nothing."
        ),
    )


def _matrix_theta(model: ModelRow, matrices: Mapping[int, MatrixFigures]) -> float:
    theta = matrices[model.id].mean_theta if model.id in matrices else None
    return -1.0 if theta is None else theta


_ALL = "All complete models"
_LEFT_OUT = "Adapters, vocabularies and partial models are left out."
_CHIMERAS_MARKED = (
    "Chimeras, which were composed here from other models, are marked and have no place. The sentences below do not "
    "count them, because their tensors come from these models."
)
_RANKING_COLUMNS = (
    ReportColumn("rank", "place", CellKind.COUNT),
    ReportColumn("model", "model", CellKind.NAME),
    ReportColumn("kind", "kind", CellKind.TEXT),
    ReportColumn("mean_theta_degrees", "mean θ", CellKind.DEGREES),
    ReportColumn("matrix_mean_theta_degrees", "matrix θ", CellKind.DEGREES),
    ReportColumn("mean_signal", "signal", CellKind.SHARE),
    ReportColumn("mean_spectral_signal", "spectral", CellKind.SHARE),
    ReportColumn("tensors_count", "tensors", CellKind.COUNT),
    ReportColumn("matrices_count", "matrices", CellKind.COUNT, data_only=True),
    ReportColumn("parameters_count", "parameters", CellKind.LARGE),
    CAUTION_COLUMN,
)


LINE_FAMILIES_MIN = 3
"""Families for which a line is fitted: two points always lie on a line."""
FAMILIES_MIN = 10
"""Independent points for which a law is stated. A convention, not a theorem."""
FACTOR_MIN = 10.0
"""How many times the parameters of the smallest model the largest must have for a law."""


@dataclass(frozen=True, slots=True)
class Point:
    """A model, or the means of a family."""

    name: str
    members: tuple[str, ...]
    """The names of its other models, oldest first."""
    log_parameters: float
    """The base-10 logarithm of the number of parameters."""
    mean_theta: float
    """The mean over all tensors."""
    matrix_theta: float | None
    """The mean over the matrices; None if none could be measured."""

    @property
    def models(self) -> int:
        """The number of models."""
        return 1 + len(self.members)

    @property
    def parameters(self) -> int:
        """The number of parameters; for a family, the geometric mean."""
        return round(math.pow(10.0, self.log_parameters))


def scale_tables(
    session: Session, matrices: Mapping[int, MatrixFigures], limit: int
) -> tuple[ReportTable, ReportTable]:
    """Return the fitted lines, and the families behind them, largest first and at most `limit`.

    `matrices` has the figures of the matrices by model id.
    """
    rows = sized_models(session)
    models = {
        row.id: Point(
            str(ModelName(row.namespace, row.name, row.version)),
            (),
            math.log10(row.parameters),
            row.mean_theta,
            matrices[row.id].mean_theta if row.id in matrices else None,
        )
        for row in rows
    }
    related = listed_families(session)
    first = {model_id: family[0] for family in related for model_id in family}
    by_family: defaultdict[int, list[Point]] = defaultdict(list)
    for model_id, point in models.items():
        by_family[first.get(model_id, model_id)].append(point)
    families = [_family(points) for points in by_family.values()]
    verdict = scale_verdict(families, len(models))
    return _scale(families, list(models.values()), verdict), _families(families, len(related), limit)


def scale_verdict(families: Sequence[Point], models: int) -> str:
    """Return a few sentences on the meaning of the line through the matrix θ of `families`."""
    line = _line(families, _of_matrices)
    count = sum(point.matrix_theta is not None for point in families)
    if count < 2:
        return "There are no two unrelated complete models, so this report cannot say anything about size."
    if count < LINE_FAMILIES_MIN:
        return f"There are only {count} families, too few for a line, so this report cannot say anything about size."
    if line is None:
        return (
            f"All {count} families have the same number of parameters, so this report cannot say anything about size."
        )
    low, high = (bound(point.log_parameters for point in families) for bound in (min, max))
    span = f"{count_text(10**low)} and {count_text(10**high)} parameters"
    about = f"{models} models of {count} families, between {span},"
    if count < FAMILIES_MIN or 10 ** (high - low) < FACTOR_MIN:
        return (
            f"{about} cannot show a law. This needs at least {FAMILIES_MIN} unrelated families, and a largest model "
            f"with {FACTOR_MIN:.0f} times the parameters of the smallest. The lines below only describe these files."
            + _disagreement(line, _line(families, _of_all))
        )
    margin = line.slope_margin
    assert margin is not None
    if abs(line.slope) <= margin:
        return f"{about} show no trend beyond chance: {line.slope:+.1f}° ± {margin:.1f}° per tenfold."
    trend = "rises" if line.slope > 0 else "falls"
    return (
        f"In {about} the θ of matrices {trend} by {abs(line.slope):.1f}° (± {margin:.1f}°) for ten times the "
        "parameters. That holds for these models. It does not say that size is the reason: larger models also differ "
        "in age, data and tensor type." + _disagreement(line, _line(families, _of_all))
    )


def _disagreement(of_matrices: Line, of_all: Line | None) -> str:
    if of_all is None or of_matrices.slope * of_all.slope >= 0:
        return ""
    return (
        f" Even the direction is uncertain: {of_matrices.slope:+.1f}° per tenfold by matrices, {of_all.slope:+.1f}° by "
        "all tensors."
    )


def _scale(families: Sequence[Point], models: Sequence[Point], verdict: str) -> ReportTable:
    has_enough = sum(point.matrix_theta is not None for point in families) >= LINE_FAMILIES_MIN
    rows = [
        _line_row(basis, points, reading, theta)
        for basis, points in (("each family once", families), ("each model by itself", models))
        for reading, theta in (("matrices", _of_matrices), ("all tensors", _of_all))
        if has_enough
    ]
    return table(
        title="Scale law: does θ depend on size?",
        columns=_SCALE_COLUMNS,
        rows=tuple(row for row in rows if row is not None),
        before=(verdict,),
        after=(LINE, LINE_OF_READINGS),
        empty=verdict,
    )


def _families(families: Sequence[Point], count: int, limit: int) -> ReportTable:
    """Return the table of `families`, at most `limit`; `count` is the number of families of two models or more."""
    ordered = sorted(families, key=lambda point: (-point.log_parameters, point.name))
    listed = ordered[:limit]
    return table(
        title="Families of models",
        columns=_FAMILY_COLUMNS,
        rows=tuple(
            (
                *(family.name, family.models, family.parameters, family.mean_theta, family.matrix_theta),
                _members(family),
            )
            for family in listed
        ),
        before=(
            f"This registry has {plural_text(count, 'family', 'families')} of two models or more: models that share "
            "weights, or that name each other or the same model as base. Chimeras, adapters and partial models count "
            "too. This table has the complete models of each family, and models without relatives. A family counts as "
            "one observation of the scale law."
            + (f" The {len(listed)} largest of {len(families)} are listed." if len(listed) < len(families) else ""),
        ),
        after=(KINSHIP,),
        empty="There is no complete model with a θ.",
    )


MEMBERS_LISTED = 20


def _members(family: Point) -> str:
    """Return the names of the other models of a family, the first of them; empty if there is none."""
    more = [f"and {len(family.members) - MEMBERS_LISTED} more"] if len(family.members) > MEMBERS_LISTED else []
    return ", ".join([*family.members[:MEMBERS_LISTED], *more])


def _family(points: Sequence[Point]) -> Point:
    count = len(points)
    log_mean = math.fsum(point.log_parameters for point in points) / count
    of_all = math.fsum(point.mean_theta for point in points) / count
    members = tuple(point.name for point in points[1:])
    return Point(points[0].name, members, log_mean, of_all, mean_of(point.matrix_theta for point in points))


def _of_matrices(point: Point) -> float | None:
    return point.matrix_theta


def _of_all(point: Point) -> float | None:
    return point.mean_theta


def _line(points: Sequence[Point], theta: Callable[[Point], float | None]) -> Line | None:
    measured = [(point.log_parameters, y) for point in points if (y := theta(point)) is not None]
    return fit_line([x for x, _ in measured], [y for _, y in measured])


def _line_row(
    basis: str, points: Sequence[Point], reading: str, theta: Callable[[Point], float | None]
) -> tuple[Cell, ...] | None:
    line = _line(points, theta)
    if line is None:
        return None
    sizes = [point.parameters for point in points if theta(point) is not None]
    figures = (line.slope, line.slope_error, line.slope_margin, line.intercept, line.r_squared)
    return (basis, reading, line.count, min(sizes), max(sizes), *figures)


_SCALE_COLUMNS = (
    ReportColumn("basis", "points", CellKind.TEXT),
    ReportColumn("reading", "θ of", CellKind.TEXT),
    ReportColumn("points_count", "how many", CellKind.COUNT),
    ReportColumn("parameters_minimum_count", "smallest", CellKind.LARGE, data_only=True),
    ReportColumn("parameters_maximum_count", "largest", CellKind.LARGE, data_only=True),
    ReportColumn("slope_degrees_per_decade", "slope", CellKind.DEGREES),
    ReportColumn("slope_standard_error_degrees_per_decade", "standard error", CellKind.DEGREES, data_only=True),
    ReportColumn("slope_margin_degrees_per_decade", "margin", CellKind.DEGREES),
    ReportColumn("intercept_degrees", "intercept", CellKind.DEGREES),
    ReportColumn("r_squared", "R²", CellKind.SHARE),
)
_FAMILY_COLUMNS = (
    ReportColumn("family", "first model", CellKind.NAME),
    ReportColumn("models_count", "models", CellKind.COUNT),
    ReportColumn("mean_parameters_count", "parameters", CellKind.LARGE),
    ReportColumn("mean_theta_degrees", "mean θ", CellKind.DEGREES),
    ReportColumn("matrix_mean_theta_degrees", "matrix θ", CellKind.DEGREES),
    ReportColumn("members", "other members", CellKind.TEXT),
)


RELATIVES_MAX = 50
"""Relatives in the table; the most similar come first."""


def relatives_tables(session: Session, model: ModelRow) -> tuple[ReportTable, ReportTable]:
    """Return the relatives of `model`, and the findings about them."""
    lineage = lineage_of(session, model)
    total = len(lineage.edges) + lineage.left_out
    rows = tuple(
        (
            *(edge.direction, edge.model or edge.text, edge.relation, edge.evidence),
            *(edge.change, edge.likeness, edge.compared or None),
        )
        for edge in lineage.edges[:RELATIVES_MAX]
    )
    cut = f" The first {len(rows)} of {total} are listed." if len(rows) < total else ""
    relatives = table(
        "Relatives",
        _RELATIVE_COLUMNS,
        rows,
        before=(_SOURCES + cut,),
        after=(ALIKE,),
        empty="No relatives are known.",
    )
    findings = tuple((finding.severity.value, finding.code, finding.sentence) for finding in lineage.findings)
    return relatives, table(
        title="Findings about its relatives",
        columns=_FINDING_COLUMNS,
        rows=findings,
        before=("Places where its file and its weights disagree, or cannot be compared.",),
        after=("They are computed for every report, from the models that are registered at that time.",),
        empty=_OF_ADAPTERS if model.kind == "adapter" else _NO_FINDING,
    )


_SOURCES = (
    "Parents that its file declares (declared), actions of this registry (recorded), and models with similar weights "
    "at the same places (measured)."
)
_OF_ADAPTERS = "None. The weights of an adapter are not compared with those of its base."
_NO_FINDING = "None: its declarations agree with its weights."
_RELATIVE_COLUMNS = (
    ReportColumn("direction", "direction", CellKind.TEXT),
    ReportColumn("model", "model", CellKind.NAME),
    ReportColumn("relation", "relation", CellKind.TEXT),
    ReportColumn("evidence", "evidence", CellKind.TEXT),
    ReportColumn("change", "change", CellKind.NUMBER),
    ReportColumn("mean_correlation", "alike", CellKind.SHARE),
    ReportColumn("compared_count", "matrices", CellKind.COUNT),
)
_FINDING_COLUMNS = (
    ReportColumn("severity", "kind", CellKind.TEXT),
    ReportColumn("code", "code", CellKind.TEXT, data_only=True),
    ReportColumn("sentence", "finding", CellKind.TEXT),
)


def anomalies_table(session: Session, model: ModelRow, limit: int) -> ReportTable:
    """Return the tensors with NaN or infinite values, with one value only, or without a θ."""
    unusual, total = unusual_organs(session, model.id, limit)
    rows = (
        (name, dtype, sample_size, nan, infinite, "yes" if constant else "no", reason)
        for name, dtype, sample_size, nan, infinite, constant, reason in unusual
    )
    return table(
        title="Anomalies",
        columns=_ANOMALY_COLUMNS,
        rows=rows,
        before=(f"{total:,} of {model.tensors:,} tensors; at most {limit} are listed. {_WHICH}",),
        after=(ANOMALIES,),
        empty=NO_ANOMALIES,
    )


_WHICH = "They have NaN or infinite values, have only a single value, or could not be measured."
_ANOMALY_COLUMNS = (
    ReportColumn("tensor", "tensor", CellKind.NAME),
    ReportColumn("dtype", "tensor type", CellKind.TEXT),
    ReportColumn("sample_count", "sampled", CellKind.LARGE),
    ReportColumn("nan_count", "NaN", CellKind.COUNT),
    ReportColumn("infinite_count", "infinite", CellKind.COUNT),
    ReportColumn("constant", "single value", CellKind.TEXT),
    ReportColumn("reason", "why not measured", CellKind.TEXT),
)
