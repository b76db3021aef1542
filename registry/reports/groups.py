"""Tables of tensors in groups: by type, by component and by depth; and the tensors with extreme θ. Pure.

The readings come from a catalog, or from files that are not registered: both give the same tables.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from organs.registry.anatomy import Component, OrganType, Place, component_of, type_name
from organs.registry.columns import CellKind
from organs.registry.entities.report import Cell, ReportColumn, ReportTable, table
from organs.registry.measures import THETA_LEGEND, GroupFigures, theta_caution
from organs.registry.reports.words import (
    BLOCKS,
    COMPONENT_WORDS,
    COMPONENTS,
    HIGHEST,
    LISTED,
    LISTS,
    SPECTRAL_OF_TYPES,
    SPREAD,
    TYPE_WORDS,
    TYPES_DIFFER,
    WELLS,
)

DEPTH_ROWS_MAX = 32
"""Rows of the table by depth. Neighbouring blocks of a deeper tower share a row."""
QUARTILES = (0.25, 0.5, 0.75)
G = TypeVar("G", bound=Hashable)
Quartiles = tuple[float | None, ...]
"""The quartiles of θ in degrees; None without a θ."""


@dataclass(frozen=True, slots=True)
class TensorReading:
    """A tensor at its place, with its measures."""

    name: str
    place: Place
    dtype: str
    shape: str
    elements: int
    size_bytes: int
    theta: float | None
    """Degrees."""
    spectral_signal: float | None

    @property
    def is_matrix(self) -> bool:
        """Whether it has a spectral reading: it has at least two rows and two columns, and a readable dtype."""
        return self.spectral_signal is not None

    @property
    def caution(self) -> str:
        """Why θ is uncertain; empty if it is not."""
        return theta_caution(self.theta, self.dtype, self.elements)

    @property
    def component(self) -> Component:
        """The part of a model that it belongs to."""
        return component_of(self.place.type, self.place.slot)


def figures_of(reading: TensorReading) -> GroupFigures:
    """Return the figures of a single tensor."""
    theta, spectral = reading.theta, reading.spectral_signal
    return GroupFigures(
        tensors=1,
        elements=reading.elements,
        size_bytes=reading.size_bytes,
        measured=int(theta is not None),
        theta_sum=theta or 0.0,
        theta_square_sum=(theta or 0.0) ** 2,
        theta_minimum=theta,
        theta_maximum=theta,
        uncertain=int(reading.caution != ""),
        spectral_count=int(spectral is not None),
        spectral_sum=spectral or 0.0,
    )


def grouped(items: Iterable[tuple[G, GroupFigures]]) -> dict[G, GroupFigures]:
    """Return the sums of the figures with equal keys."""
    groups: dict[G, GroupFigures] = {}
    for key, figures in items:
        groups.setdefault(key, GroupFigures()).add(figures)
    return groups


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution of a set of numbers; all values but the count are None if it is empty."""

    count: int
    mean: float | None = None
    deviation: float | None = None
    """The standard deviation of these numbers (divided by their count)."""
    minimum: float | None = None
    quartiles: Quartiles = (None,) * len(QUARTILES)
    maximum: float | None = None


def distribution_of(values: Iterable[float]) -> Distribution:
    """Return the distribution of `values`, in any order. Quartiles are interpolated between neighbours."""
    ordered = sorted(values)
    count = len(ordered)
    if not count:
        return Distribution(0)
    mean = math.fsum(ordered) / count
    variance = math.fsum((value - mean) ** 2 for value in ordered) / count
    quartiles = tuple(quantile(count, share, ordered) for share in QUARTILES)
    return Distribution(count, mean, math.sqrt(variance), ordered[0], quartiles, ordered[-1])


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if there are none."""
    numbers = [value for value in values if value is not None]
    return math.fsum(numbers) / len(numbers) if numbers else None


def quantile_ranks(count: int, share: float) -> tuple[int, int]:
    """Return the ranks, counted from 0, of the two numbers around the quantile."""
    below = int((count - 1) * share)
    return below, min(below + 1, count - 1)


def quantile(count: int, share: float, at_rank: Sequence[float] | Mapping[int, float]) -> float:
    """Return the quantile from the numbers at `quantile_ranks`, by linear interpolation."""
    below, above = quantile_ranks(count, share)
    low, high = at_rank[below], at_rank[above]
    return low + (high - low) * ((count - 1) * share - below)


CAUTION = ReportColumn("caution", "caution", CellKind.TEXT, data_only=True)
"""Why the θ of a row is uncertain."""
MODEL = ReportColumn("model", "model", CellKind.NAME)
MODELS = ReportColumn("models_count", "models", CellKind.COUNT)
TYPE = ReportColumn("type", "type", CellKind.TEXT)
DTYPE = ReportColumn("dtype", "tensor type", CellKind.TEXT)
TENSORS = ReportColumn("tensors_count", "tensors", CellKind.COUNT)
MEASURED = ReportColumn("measured_count", "with θ", CellKind.COUNT, data_only=True)
PARAMETERS = ReportColumn("parameters_count", "parameters", CellKind.LARGE)
SIZE = ReportColumn("size_bytes", "size", CellKind.SIZE)
MEAN_THETA = ReportColumn("mean_theta_degrees", "mean θ", CellKind.DEGREES)
MATRIX_THETA = ReportColumn("matrix_mean_theta_degrees", "matrix θ", CellKind.DEGREES)
MEAN_SIGNAL = ReportColumn("mean_signal", "signal", CellKind.SHARE)
MEAN_SPECTRAL = ReportColumn("mean_spectral_signal", "spectral", CellKind.SHARE)
_DEVIATION = ReportColumn("theta_standard_deviation_degrees", "deviation", CellKind.DEGREES)
_LOWEST = ReportColumn("minimum_theta_degrees", "lowest", CellKind.DEGREES, data_only=True)
_HIGHEST = ReportColumn("maximum_theta_degrees", "highest", CellKind.DEGREES, data_only=True)
TENSOR_COLUMNS = (
    ReportColumn("tensor", "tensor", CellKind.NAME),
    TYPE,
    DTYPE,
    ReportColumn("shape", "shape", CellKind.TEXT),
    ReportColumn("elements_count", "numbers", CellKind.LARGE, data_only=True),
    ReportColumn("theta_degrees", "θ", CellKind.DEGREES),
    ReportColumn("spectral_signal", "spectral", CellKind.SHARE),
    CAUTION,
)


def types_of(readings: Sequence[TensorReading], *, before: str, empty: str) -> ReportTable:
    """Return the table of `types_table` for `readings`."""
    groups = grouped((reading.place.type, figures_of(reading)) for reading in readings)
    thetas: dict[OrganType, list[float]] = {kind: [] for kind in groups}
    for reading in readings:
        if reading.theta is not None:
            thetas[reading.place.type].append(reading.theta)
    quartiles = {kind: distribution_of(values).quartiles for kind, values in thetas.items()}
    return types_table(groups, quartiles, before=before, empty=empty)


def types_table(
    groups: Mapping[OrganType, GroupFigures], quartiles: Mapping[OrganType, Quartiles], *, before: str, empty: str
) -> ReportTable:
    """Return θ and spectral signal by type; `quartiles` are those of θ."""
    types = sorted(groups)
    roles = "; ".join(f"{type_name(kind)} is {TYPE_WORDS[kind]}" for kind in types)
    notes = [SPREAD, SPECTRAL_OF_TYPES]
    if any(not figures.spectral_count for figures in groups.values()):
        notes.append(LISTS)
    notes += _left_out(groups.values())
    return table(
        title="By type of tensor",
        columns=(
            *(TYPE, TENSORS, SIZE, MEASURED, MEAN_THETA, _DEVIATION, _LOWEST),
            ReportColumn("theta_lower_quartile_degrees", "25%", CellKind.DEGREES),
            ReportColumn("theta_median_degrees", "median", CellKind.DEGREES),
            ReportColumn("theta_upper_quartile_degrees", "75%", CellKind.DEGREES),
            *(_HIGHEST, MEAN_SPECTRAL, CAUTION),
        ),
        rows=[
            (
                kind.value,
                figures.tensors,
                figures.size_bytes,
                figures.measured,
                figures.mean_theta,
                figures.theta_deviation,
                figures.theta_minimum,
                *quartiles[kind],
                figures.theta_maximum,
                figures.mean_spectral_signal,
                figures.caution,
            )
            for kind in types
            for figures in [groups[kind]]
        ],
        before=(f"{before} {roles[:1].upper()}{roles[1:]}.",),
        after=(" ".join(notes), *((TYPES_DIFFER,) if len(groups) > 1 else ())),
        empty=empty,
    )


def _left_out(groups: Iterable[GroupFigures]) -> list[str]:
    left_out = sum(figures.tensors - figures.measured for figures in groups)
    return [f"{left_out:,} tensors without a θ are left out of these figures."] if left_out else []


def components_of(readings: Iterable[TensorReading], *, before: str, empty: str) -> ReportTable:
    """Return the table of `components_table` for `readings`."""
    groups = grouped((reading.component, figures_of(reading)) for reading in readings)
    return components_table(groups, before=before, empty=empty)


def components_table(groups: Mapping[Component, GroupFigures], *, before: str, empty: str) -> ReportTable:
    """Return the figures of each component, in the order of `Component`."""
    components = [component for component in Component if component in groups]
    total = sum(figures.elements for figures in groups.values())
    roles = "; ".join(
        f"{component.value}: {COMPONENT_WORDS[component]}" for component in components if component in COMPONENT_WORDS
    )
    return table(
        title="By component",
        columns=(
            ReportColumn("component", "component", CellKind.TEXT),
            *(TENSORS, PARAMETERS),
            ReportColumn("parameters_share", "share", CellKind.PERCENT),
            *(SIZE, MEASURED, MEAN_THETA, _DEVIATION, _LOWEST, _HIGHEST),
            ReportColumn("matrices_count", "matrices", CellKind.COUNT, data_only=True),
            *(MEAN_SPECTRAL, CAUTION),
        ),
        rows=[
            (
                component.value,
                figures.tensors,
                figures.elements,
                figures.elements / total if total else None,
                figures.size_bytes,
                figures.measured,
                figures.mean_theta,
                figures.theta_deviation,
                figures.theta_minimum,
                figures.theta_maximum,
                figures.spectral_count,
                figures.mean_spectral_signal,
                figures.caution,
            )
            for component in components
            for figures in [groups[component]]
        ],
        before=(f"{before} {roles[:1].upper()}{roles[1:]}." if roles else before,),
        after=(" ".join([COMPONENTS, *_left_out(groups.values())]),),
        empty=empty,
    )


def blocks_of(readings: Iterable[TensorReading], *, empty: str) -> ReportTable:
    """Return θ and spectral signal by type and depth, from the first block of each tower to the last.

    A row is a block, or several neighbours if a tower has more than DEPTH_ROWS_MAX blocks.
    """
    towers: dict[str, dict[int, list[TensorReading]]] = {}
    for reading in readings:
        if reading.place.block is not None:
            towers.setdefault(reading.place.tower.value, {}).setdefault(reading.place.block, []).append(reading)
    kinds = (OrganType.SKELETON, OrganType.ORGAN, OrganType.NORM)
    rows: list[tuple[Cell, ...]] = []
    shared, has_values = 1, False
    for tower, blocks in sorted(towers.items()):
        width = -(-len(blocks) // DEPTH_ROWS_MAX)
        shared = max(shared, width)
        numbers = sorted(blocks)
        for begin in range(0, len(numbers), width):
            part = numbers[begin : begin + width]
            first, last = part[0], part[-1]
            groups = grouped((one.place.type, figures_of(one)) for number in part for one in blocks[number])
            attention, feed_forward, norm = (groups.get(kind, GroupFigures()) for kind in kinds)
            means = (
                *(figures.mean_theta for figures in (attention, feed_forward, norm)),
                *(figures.mean_spectral_signal for figures in (attention, feed_forward)),
                *(figures.caution for figures in (attention, feed_forward, norm)),
            )
            has_values = has_values or any(means)
            tensors = sum(figures.tensors for figures in groups.values())
            rows.append((tower, str(first) if first == last else f"{first}-{last}", first, last, tensors, *means))
    neighbours = f" Up to {shared} neighbouring blocks share a row." if shared > 1 else ""
    return table(
        title="By depth",
        columns=(
            ReportColumn("tower", "tower", CellKind.TEXT),
            ReportColumn("blocks", "blocks", CellKind.TEXT),
            ReportColumn("first_block", "first block", CellKind.COUNT, data_only=True),
            ReportColumn("last_block", "last block", CellKind.COUNT, data_only=True),
            TENSORS,
            ReportColumn("skeleton_mean_theta_degrees", "att. θ", CellKind.DEGREES),
            ReportColumn("organ_mean_theta_degrees", "ff. θ", CellKind.DEGREES),
            ReportColumn("norm_mean_theta_degrees", "norm θ", CellKind.DEGREES),
            ReportColumn("skeleton_mean_spectral_signal", "att. spectral", CellKind.SHARE),
            ReportColumn("organ_mean_spectral_signal", "ff. spectral", CellKind.SHARE),
            *(ReportColumn(f"{kind}_caution", "caution", CellKind.TEXT, data_only=True) for kind in kinds),
        ),
        rows=rows if has_values else (),
        before=(
            (
                "Means over the attention tensors (att., the type skeleton), the feed-forward tensors (ff., the type "
                f"organ) and the norms of each block, from the first block to the last.{neighbours}"
            ),
        ),
        after=(BLOCKS,),
        empty=empty,
    )


def wells_of(readings: Iterable[TensorReading], limit: int) -> ReportTable:
    """Return at most `limit` matrices with the lowest θ. Norms and lists of numbers are not wells."""
    matrices = [reading for reading in readings if reading.is_matrix and reading.place.type is not OrganType.NORM]
    rows = _extreme(matrices, limit, sign=1)
    return table(
        title="Gravitational wells: matrices with the lowest θ",
        columns=TENSOR_COLUMNS,
        rows=rows,
        before=(
            (
                f"The lowest first, {len(rows):,} of {len(matrices):,} matrices. Norms and lists of numbers are "
                f"left out. {LISTED}"
            ),
        ),
        after=(WELLS, THETA_LEGEND),
        empty="There is no matrix with a θ.",
    )


def highest_of(readings: Sequence[TensorReading], limit: int) -> ReportTable:
    """Return at most `limit` tensors with the highest θ."""
    rows = _extreme(readings, limit, sign=-1)
    return table(
        title="Highest θ",
        columns=TENSOR_COLUMNS,
        rows=rows,
        before=(f"The highest first, {len(rows):,} of {len(readings):,} tensors. {LISTED}",),
        after=(HIGHEST, THETA_LEGEND),
        empty="No tensor of this model has a θ.",
    )


def _extreme(readings: Iterable[TensorReading], limit: int, *, sign: int) -> list[tuple[Cell, ...]]:
    """Return the rows of the readings with a θ, by rising `sign` times θ; equal ones in their order."""
    measured = [(sign * reading.theta, reading) for reading in readings if reading.theta is not None]
    return [tensor_row(reading) for _, reading in sorted(measured, key=lambda pair: pair[0])[:limit]]


def tensor_row(reading: TensorReading) -> tuple[Cell, ...]:
    """Return the row of a tensor, for TENSOR_COLUMNS."""
    return (
        reading.name,
        reading.place.type.value,
        reading.dtype,
        reading.shape,
        reading.elements,
        reading.theta,
        reading.spectral_signal,
        reading.caution,
    )


def matrix_theta(readings: Iterable[TensorReading]) -> float | None:
    """Return the mean θ of the matrices, in degrees."""
    return mean_of(reading.theta for reading in readings if reading.is_matrix)
