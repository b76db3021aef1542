"""The scale law: whether θ depends on the size of models. A line is fitted through families, or through models."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from sqlalchemy.orm import Session

from organs.registry.amounts import count_text, plural_text
from organs.registry.catalog.queries.reports import sized_models
from organs.registry.columns import CellKind
from organs.registry.entities.report import Cell, ReportColumn, ReportTable, table
from organs.registry.measures import GroupFigures
from organs.registry.names import ModelName
from organs.registry.relatives.families import listed_families
from organs.registry.reports.groups import MATRIX_THETA, MEAN_THETA, MODELS, mean_of
from organs.registry.reports.words import KINSHIP, LINE, LINE_OF_READINGS

LINE_FAMILIES_MIN = 3
"""Families for which a line is fitted: two points always lie on a line."""
FAMILIES_MIN = 10
"""Independent points for which a law is stated. A convention, not a theorem."""
FACTOR_MIN = 10.0
"""How many times the parameters of the smallest model the largest must have for a law."""
MEMBERS_LISTED = 20


@dataclass(frozen=True, slots=True)
class ScaleLine:
    """y = intercept + slope · x, fitted to `count` points."""

    count: int
    slope: float
    intercept: float
    r_squared: float | None
    """The share of the variance of y that the line explains; None if y does not vary."""
    slope_error: float | None
    """The standard error of the slope; None for fewer than three points."""

    @property
    def slope_margin(self) -> float | None:
        """Half the width of the 95% interval of the slope, for independent points with normal errors.

        Above 30 degrees of freedom, Student's t for 30 is used, which is at most 4% too wide.
        """
        return None if self.slope_error is None else _STUDENT[min(self.count - 2, len(_STUDENT)) - 1] * self.slope_error


_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t at 97.5% for 1 to 30 degrees of freedom, from printed tables."""


def fit_line(points: Sequence[tuple[float, float]]) -> ScaleLine | None:
    """Return the least-squares line through `points`, x and y; None if all have the same x."""
    count = len(points)
    xs = [x for x, _ in points]
    if count < 2 or min(xs) == max(xs):
        return None
    mean_x, mean_y = math.fsum(xs) / count, math.fsum(y for _, y in points) / count
    square_x = math.fsum((x - mean_x) ** 2 for x in xs)
    square_y = math.fsum((y - mean_y) ** 2 for _, y in points)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / square_x
    intercept = mean_y - slope * mean_x
    residual = math.fsum((y - intercept - slope * x) ** 2 for x, y in points)
    error = math.sqrt(residual / (count - 2) / square_x) if count > 2 else None
    return ScaleLine(count, slope, intercept, 1 - residual / square_y if square_y else None, error)


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
    def parameters(self) -> int:
        """The number of parameters; for a family, the geometric mean."""
        return round(math.pow(10.0, self.log_parameters))


Theta = Callable[[Point], float | None]
OF_MATRICES: Theta = attrgetter("matrix_theta")
OF_ALL: Theta = attrgetter("mean_theta")


def line_of(points: Sequence[Point], theta: Theta) -> ScaleLine | None:
    """Return the line through the θ of the points that have one."""
    return fit_line([(point.log_parameters, y) for point in points if (y := theta(point)) is not None])


def scale_tables(session: Session, matrices: Mapping[int, GroupFigures], limit: int) -> tuple[ReportTable, ReportTable]:
    """Return the fitted lines, and the families behind them, largest first and at most `limit`.

    `matrices` has the figures of the matrices by model id.
    """
    related = listed_families(session)
    oldest = {model_id: family[0] for family in related for model_id in family}
    models: list[Point] = []
    by_family: defaultdict[int, list[Point]] = defaultdict(list)
    for row in sized_models(session):
        name = str(ModelName(row.namespace, row.name, row.version))
        of_matrices = matrices[row.id].mean_theta if row.id in matrices else None
        point = Point(name, (), math.log10(row.parameters), row.mean_theta, of_matrices)
        models.append(point)
        by_family[oldest.get(row.id, row.id)].append(point)
    families = [
        Point(
            points[0].name,
            tuple(point.name for point in points[1:]),
            math.fsum(point.log_parameters for point in points) / len(points),
            math.fsum(point.mean_theta for point in points) / len(points),
            mean_of(point.matrix_theta for point in points),
        )
        for points in by_family.values()
    ]
    return _lines_table(families, models), _families_table(families, len(related), limit)


def scale_verdict(families: Sequence[Point], models: int) -> str:
    """Return a few sentences on the meaning of the line through the matrix θ of `families`."""
    line = line_of(families, OF_MATRICES)
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
    of_all, disagreement = line_of(families, OF_ALL), ""
    if of_all is not None and line.slope * of_all.slope < 0:
        disagreement = (
            f" Even the direction is uncertain: {line.slope:+.1f}° per tenfold by matrices, {of_all.slope:+.1f}° by "
            "all tensors."
        )
    if count < FAMILIES_MIN or 10 ** (high - low) < FACTOR_MIN:
        return (
            f"{about} cannot show a law. This needs at least {FAMILIES_MIN} unrelated families, and a largest model "
            f"with {FACTOR_MIN:.0f} times the parameters of the smallest. The lines below only describe these files."
            f"{disagreement}"
        )
    margin = line.slope_margin
    assert margin is not None
    if abs(line.slope) <= margin:
        return f"{about} show no trend beyond chance: {line.slope:+.1f}° ± {margin:.1f}° per tenfold."
    trend = "rises" if line.slope > 0 else "falls"
    return (
        f"In {about} the θ of matrices {trend} by {abs(line.slope):.1f}° (± {margin:.1f}°) for ten times the "
        "parameters. That holds for these models. It does not say that size is the reason: larger models also differ "
        f"in age, data and tensor type.{disagreement}"
    )


def _lines_table(families: Sequence[Point], models: Sequence[Point]) -> ReportTable:
    verdict = scale_verdict(families, len(models))
    rows: list[tuple[Cell, ...]] = []
    if sum(point.matrix_theta is not None for point in families) >= LINE_FAMILIES_MIN:
        for basis, points in (("each family once", families), ("each model by itself", models)):
            for reading, theta in (("matrices", OF_MATRICES), ("all tensors", OF_ALL)):
                line = line_of(points, theta)
                if line is not None:
                    sizes = [point.parameters for point in points if theta(point) is not None]
                    figures = (line.slope, line.slope_error, line.slope_margin, line.intercept, line.r_squared)
                    rows.append((basis, reading, line.count, min(sizes), max(sizes), *figures))
    return table(
        title="Scale law: does θ depend on size?",
        columns=(
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
        ),
        rows=rows,
        before=(verdict,),
        after=(LINE, LINE_OF_READINGS),
        empty=verdict,
    )


def _families_table(families: Sequence[Point], count: int, limit: int) -> ReportTable:
    """Return the table of `families`, at most `limit`; `count` is the number of families of two models or more."""
    listed = sorted(families, key=lambda point: (-point.log_parameters, point.name))[:limit]
    rows: list[tuple[Cell, ...]] = []
    for family in listed:
        members = list(family.members[:MEMBERS_LISTED])
        if len(family.members) > MEMBERS_LISTED:
            members.append(f"and {len(family.members) - MEMBERS_LISTED} more")
        models = 1 + len(family.members)
        means = (family.parameters, family.mean_theta, family.matrix_theta)
        rows.append((family.name, models, *means, ", ".join(members)))
    return table(
        title="Families of models",
        columns=(
            ReportColumn("family", "first model", CellKind.NAME),
            MODELS,
            ReportColumn("mean_parameters_count", "parameters", CellKind.LARGE),
            *(MEAN_THETA, MATRIX_THETA),
            ReportColumn("members", "other members", CellKind.TEXT),
        ),
        rows=rows,
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
