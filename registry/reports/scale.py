"""The section on the scale law: whether θ goes with the number of parameters, and whether these models can tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.reports import MatrixFigures, declared_parents, model_edges, sized_models
from organs.registry.names import ModelName
from organs.registry.present.text import count_text
from organs.registry.reports.document import Cell, Column, Kind, Table
from organs.registry.reports.families import Member, families_of
from organs.registry.reports.line import Line, fit_line
from organs.registry.reports.spread import mean_of
from organs.registry.reports.words import KINSHIP, LINE, LINE_OF_READINGS

LINE_FAMILIES_MIN = 3
"""Two points always lie on a line, so with fewer families than these we draw none."""
FAMILIES_MIN = 10
"""With fewer independent points we state no law, whatever the line looks like. A convention, not a theorem."""
FACTOR_MIN = 10.0
"""The largest must have this many times the parameters of the smallest, or a slope per tenfold is a guess."""


@dataclass(frozen=True, slots=True)
class Point:
    """A model, or the means of a family."""

    name: str
    models: int
    log_parameters: float
    """The base-10 logarithm of the number of parameters."""
    mean_theta: float
    """Over all tensors."""
    matrix_theta: float | None
    """The mean over the matrices; None when it has none that could be read."""

    @property
    def parameters(self) -> int:
        """For a family, the geometric mean."""
        return round(math.pow(10.0, self.log_parameters))


def scale_tables(session: Session, matrices: Mapping[int, MatrixFigures], limit: int) -> tuple[Table, Table]:
    """The fitted lines, and the families that they were fitted to, largest first and at most `limit` of them.

    `matrices` has the figures of the models' matrices by id.
    """
    rows = sized_models(session)
    models = {
        row.id: Point(
            str(ModelName(row.namespace, row.name, row.version)),
            1,
            math.log10(row.parameters),
            row.mean_theta,
            matrices[row.id].mean_theta if row.id in matrices else None,
        )
        for row in rows
    }
    declared = declared_parents(session)
    members = [Member(row.id, row.title, tuple(declared.get(row.id, ()))) for row in rows]
    grouped = families_of(members, model_edges(session))
    families = [_family([models[member] for member in family]) for family in grouped]
    verdict = scale_verdict(families, len(models))
    return _scale(families, list(models.values()), verdict), _families(families, limit)


def scale_verdict(families: Sequence[Point], models: int) -> str:
    """What the line through the matrices' θ of `families` may be taken for, in a few sentences."""
    line = _line(families, _of_matrices)
    count = sum(point.matrix_theta is not None for point in families)
    if count < 2:
        return "There are not two unrelated complete models to compare, so nothing can be said about size."
    if count < LINE_FAMILIES_MIN:
        return f"There are {count} families only. Two points always lie on a line, so nothing can be said about size."
    if line is None:
        return f"All {count} families have the same number of parameters, so nothing can be said about size."
    low, high = (bound(point.log_parameters for point in families) for bound in (min, max))
    span = f"{count_text(10**low)} and {count_text(10**high)} parameters"
    about = f"{models} models of {count} families, between {span},"
    if count < FAMILIES_MIN or 10 ** (high - low) < FACTOR_MIN:
        return (
            f"{about} cannot show a law. We would want at least {FAMILIES_MIN} unrelated families and a largest model "
            f"with {FACTOR_MIN:.0f} times the parameters of the smallest. The lines below describe these files only."
            + _disagreement(line, _line(families, _of_all))
        )
    margin = line.slope_margin
    assert margin is not None
    if abs(line.slope) <= margin:
        return f"{about} show no trend that could be told from chance: {line.slope:+.1f}° ± {margin:.1f}° per tenfold."
    way = "rises" if line.slope > 0 else "falls"
    return (
        f"In {about} the θ of matrices {way} by {abs(line.slope):.1f}° (± {margin:.1f}°) for ten times the parameters. "
        "That holds for these models. It does not say that size is the reason: larger models also differ in age, data "
        "and format." + _disagreement(line, _line(families, _of_all))
    )


def _disagreement(of_matrices: Line, of_all: Line | None) -> str:
    if of_all is None or of_matrices.slope * of_all.slope >= 0:
        return ""
    return (
        f" Not even the direction is sure: {of_matrices.slope:+.1f}° per tenfold by matrices, {of_all.slope:+.1f}° by "
        "all tensors."
    )


def _scale(families: Sequence[Point], models: Sequence[Point], verdict: str) -> Table:
    enough = sum(point.matrix_theta is not None for point in families) >= LINE_FAMILIES_MIN
    rows = [
        _line_row(basis, points, reading, theta)
        for basis, points in (("each family once", families), ("each model by itself", models))
        for reading, theta in (("matrices", _of_matrices), ("all tensors", _of_all))
        if enough
    ]
    return Table(
        key="scale",
        title="Scale law: does θ go with size?",
        columns=_SCALE_COLUMNS,
        rows=tuple(row for row in rows if row is not None),
        before=(verdict,),
        after=(LINE, LINE_OF_READINGS),
        empty=verdict,
    )


def _families(families: Sequence[Point], limit: int) -> Table:
    ordered = sorted(families, key=lambda point: (-point.log_parameters, point.name))
    shown = ordered[:limit]
    return Table(
        key="families",
        title="Families of models",
        columns=_FAMILY_COLUMNS,
        rows=tuple((one.name, one.models, one.parameters, one.mean_theta, one.matrix_theta) for one in shown),
        before=(
            "A family is a model with its fine-tunes, checkpoints and other file formats, named after the one that was "
            "registered first. They share weights, so they count as one observation of the scale law."
            + (f" The {len(shown)} largest of {len(families)} are listed." if len(shown) < len(families) else ""),
        ),
        after=(KINSHIP,),
        empty="There is no complete model with a θ.",
    )


def _family(points: Sequence[Point]) -> Point:
    count = len(points)
    log_mean = math.fsum(point.log_parameters for point in points) / count
    of_all = math.fsum(point.mean_theta for point in points) / count
    return Point(points[0].name, count, log_mean, of_all, mean_of(point.matrix_theta for point in points))


def _of_matrices(point: Point) -> float | None:
    return point.matrix_theta


def _of_all(point: Point) -> float | None:
    return point.mean_theta


def _line(points: Sequence[Point], theta: Callable[[Point], float | None]) -> Line | None:
    known = [(point.log_parameters, y) for point in points if (y := theta(point)) is not None]
    return fit_line([x for x, _ in known], [y for _, y in known])


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
    Column("basis", "points", Kind.TEXT),
    Column("reading", "θ of", Kind.TEXT),
    Column("points_count", "how many", Kind.COUNT),
    Column("parameters_minimum_count", "smallest", Kind.LARGE, data_only=True),
    Column("parameters_maximum_count", "largest", Kind.LARGE, data_only=True),
    Column("slope_degrees_per_decade", "slope", Kind.DEGREES),
    Column("slope_standard_error_degrees_per_decade", "standard error", Kind.DEGREES, data_only=True),
    Column("slope_margin_degrees_per_decade", "margin", Kind.DEGREES),
    Column("intercept_degrees", "intercept", Kind.DEGREES),
    Column("r_squared", "R²", Kind.SHARE),
)
_FAMILY_COLUMNS = (
    Column("family", "family", Kind.NAME),
    Column("models_count", "models", Kind.COUNT),
    Column("mean_parameters_count", "parameters", Kind.LARGE),
    Column("mean_theta_degrees", "mean θ", Kind.DEGREES),
    Column("matrix_mean_theta_degrees", "matrix θ", Kind.DEGREES),
)
