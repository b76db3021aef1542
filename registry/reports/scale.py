"""The section on the scale law: whether θ goes with the number of parameters, and whether these models can tell."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sqlalchemy.orm import Session

from registry.catalog.queries.reports import declared_parents, model_edges, sized_models
from registry.present.text import count_text
from registry.reports.document import Cell, Column, Kind, Table
from registry.reports.families import Member, families_of
from registry.reports.line import Line, fit_line
from registry.reports.words import KINSHIP, LINE, LINE_OF_MODELS

FAMILIES_MIN = 10
"""With fewer independent points we state no law, whatever the line looks like. A convention, not a theorem."""
FACTOR_MIN = 10.0
"""The largest must have this many times the parameters of the smallest, or a slope per tenfold is a guess."""


@dataclass(frozen=True, slots=True)
class Point:
    """A model, or the mean of a family."""

    name: str
    models: int
    log_parameters: float
    """The base-10 logarithm of the number of parameters."""
    mean_theta: float

    @property
    def parameters(self) -> float:
        """For a family, the geometric mean."""
        return float(10.0**self.log_parameters)


def scale_tables(session: Session, limit: int) -> tuple[Table, Table]:
    """The fitted lines, and the families that they were fitted to, largest first and at most `limit` of them."""
    rows = sized_models(session)
    models = {
        row.id: Point(f"{row.namespace}/{row.name}@{row.version}", 1, math.log10(row.parameters), row.mean_theta)
        for row in rows
    }
    declared = declared_parents(session)
    members = [Member(row.id, row.title, tuple(declared.get(row.id, ()))) for row in rows]
    grouped = families_of(members, model_edges(session))
    families = [_family([models[member] for member in family]) for family in grouped]
    verdict = scale_verdict(families, len(models))
    return _scale(families, list(models.values()), verdict), _families(families, limit)


def scale_verdict(families: list[Point], models: int) -> str:
    """What the line through `families` may be taken for, in a sentence or two."""
    line = _line(families)
    if line is None:
        if len(families) < 2:
            return "There are not two unrelated complete models to compare, so nothing can be said about size."
        return f"All {len(families)} families have the same number of parameters, so nothing can be said about size."
    low, high = (bound(point.log_parameters for point in families) for bound in (min, max))
    span = f"{count_text(10**low)} and {count_text(10**high)} parameters"
    about = f"{models} models of {len(families)} families, between {span},"
    if len(families) < FAMILIES_MIN or 10 ** (high - low) < FACTOR_MIN:
        return (
            f"{about} cannot show a law. We would want at least {FAMILIES_MIN} unrelated families and a largest model "
            f"with {FACTOR_MIN:.0f} times the parameters of the smallest. The line below describes these files only."
        )
    margin = line.slope_margin
    assert margin is not None
    if abs(line.slope) <= margin:
        return f"{about} show no trend that could be told from chance: {line.slope:+.1f}° ± {margin:.1f}° per tenfold."
    way = "rises" if line.slope > 0 else "falls"
    return (
        f"In {about} mean θ {way} by {abs(line.slope):.1f}° (± {margin:.1f}°) for ten times the parameters. That holds "
        "for these models. It does not say that size is the reason: larger models also differ in age, data and format."
    )


def _scale(families: list[Point], models: list[Point], verdict: str) -> Table:
    rows = [_line_row("each family once", families), _line_row("each model by itself", models)]
    return Table(
        key="scale",
        title="Scale law: does θ go with size?",
        columns=_SCALE_COLUMNS,
        rows=tuple(row for row in rows if row is not None),
        before=(verdict,),
        after=(LINE, LINE_OF_MODELS),
        empty=verdict,
    )


def _families(families: list[Point], limit: int) -> Table:
    ordered = sorted(families, key=lambda point: (-point.log_parameters, point.name))
    shown = ordered[:limit]
    return Table(
        key="families",
        title="The families behind the line",
        columns=_FAMILY_COLUMNS,
        rows=tuple((one.name, one.models, one.parameters, one.mean_theta) for one in shown),
        before=(
            "A family is a model with its fine-tunes, checkpoints and other file formats, named after the one that was "
            "registered first. They share weights, so they count as one observation."
            + (f" The {len(shown)} largest of {len(families)} are listed." if len(shown) < len(families) else ""),
        ),
        after=(KINSHIP,),
        empty="There is no complete model with a θ.",
    )


def _family(points: list[Point]) -> Point:
    count = len(points)
    log_mean = math.fsum(point.log_parameters for point in points) / count
    return Point(points[0].name, count, log_mean, math.fsum(point.mean_theta for point in points) / count)


def _line(points: list[Point]) -> Line | None:
    return fit_line([point.log_parameters for point in points], [point.mean_theta for point in points])


def _line_row(basis: str, points: list[Point]) -> tuple[Cell, ...] | None:
    line = _line(points)
    if line is None:
        return None
    sizes = [point.parameters for point in points]
    figures = (line.slope, line.slope_error, line.slope_margin, line.intercept, line.r_squared)
    return (basis, line.count, min(sizes), max(sizes), *figures)


_SCALE_COLUMNS = (
    Column("basis", "points", Kind.TEXT),
    Column("points_count", "how many", Kind.COUNT),
    Column("parameters_minimum_count", "smallest", Kind.LARGE),
    Column("parameters_maximum_count", "largest", Kind.LARGE),
    Column("slope_degrees_per_decade", "slope", Kind.DEGREES),
    Column("slope_standard_error_degrees_per_decade", "standard error", Kind.DEGREES),
    Column("slope_margin_degrees_per_decade", "95% margin", Kind.DEGREES),
    Column("intercept_degrees", "intercept", Kind.DEGREES),
    Column("r_squared", "R²", Kind.SHARE),
)
_FAMILY_COLUMNS = (
    Column("family", "family", Kind.NAME),
    Column("models_count", "models", Kind.COUNT),
    Column("mean_parameters_count", "parameters", Kind.LARGE),
    Column("mean_theta_degrees", "mean θ", Kind.DEGREES),
)
