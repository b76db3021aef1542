"""The known numbers of a graft before it is run, each with a sign so that higher should be better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean

from organs.registry.compose.prediction import (
    Change,
    Constants,
    Group,
    Prediction,
    group_loss,
    groups_of,
    moved_energy,
    part_correlation,
    predict,
    recovered_of,
    score_of,
)

SCORE = "score"
GRID = [
    Constants(unit, first, embedding, distortion, power)
    for unit, first, embedding, distortion, power in product(
        (0.1, 0.15, 0.2, 0.25), (1.0, 3.0, 10.0, 20.0), (1.0, 5.0, 20.0, 40.0), (0.25, 0.5, 1.0), (1.0, 1.5, 2.0)
    )
]
"""Constants that are tried when the score is fitted without a donor."""

_VARIANTS: dict[str, tuple[Constants, bool]] = {
    "score without the scale": (Constants(), False),
    "score without the weight of the first block": (Constants(first=1.0), True),
    "score without either weight": (Constants(first=1.0, embedding=1.0), True),
    "score without distortion": (Constants(distortion=0.0), True),
}
"""The score without a part: constants, and whether standard deviations count."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A changed matrix."""

    elements: int
    r: float
    theta_difference: float
    spectral_difference: float
    scale: float


def numbers_of(changes: Sequence[Change], elements: int, planned: Prediction) -> dict[str, float]:
    """Return all numbers of a graft; `planned` is its prediction before the computation."""
    prediction = predict(changes, elements)
    groups = groups_of(changes)
    assert prediction.loss is not None
    assert planned.score is not None
    scores = {SCORE: score_of(prediction.loss, prediction.recovered), "score before computing": planned.score}
    scores |= {"- predicted loss": -prediction.loss, "predicted share recovered": _or(prediction.recovered, 1.0)}
    for name, (constants, with_scale) in _VARIANTS.items():
        kept = groups if with_scale else [replace(group, scale=1.0, grafted_scale=1.0) for group in groups]
        scores[name] = scored(kept, constants)
    return scores | _plain(prediction, changes, elements)


def scored(groups: Sequence[Group], constants: Constants) -> float:
    """Return the score of `groups` with other constants."""
    return score_of(math.fsum(group_loss(group, constants) for group in groups), recovered_of(groups))


def _plain(found: Prediction, changes: Sequence[Change], elements: int) -> dict[str, float]:
    """Return the numbers without constants."""
    matrices = [matrix for change in changes if (matrix := _matrix(change)) is not None]
    energy = math.fsum(_energy(change) * change.before.spec.elements for change in changes)
    weighed = math.fsum((1.0 - matrix.r) * matrix.elements for matrix in matrices)
    scales = [abs(math.log(matrix.scale)) for matrix in matrices if matrix.scale > 0]
    return {
        "mean correlation": _or(found.similarity, 1.0),
        "lowest correlation": min((matrix.r for matrix in matrices), default=1.0),
        "- change, the sum over blocks of 1 - correlation": -_or(found.change, 0.0),
        "- 1 - correlation by parameters, of the model": -weighed / elements,
        "- energy of the difference by parameters, of the model": -energy / elements,
        "- share of parameters that change": -_or(found.share, 0.0),
        "- |ln of the scale|, largest": -max(scales, default=0.0),
        "θ of the organs that come": _or(found.theta_after, 0.0),
        "θ gained": _or(found.theta_after, 0.0) - _or(found.theta_before, 0.0),
        "- |θ difference| of a matrix, mean": -_mean(abs(matrix.theta_difference) for matrix in matrices),
        "spectral signal of the organs that come": _or(found.spectral_after, 0.0),
        "spectral signal gained": _or(found.spectral_after, 0.0) - _or(found.spectral_before, 0.0),
        "- |spectral difference| of a matrix, mean": -_mean(abs(matrix.spectral_difference) for matrix in matrices),
    }


def _matrix(change: Change) -> Matrix | None:
    before, after = change.before, change.after
    assert after is not None
    r = part_correlation(before, after)
    if not change.is_matrix or r is None:
        return None
    return Matrix(
        before.spec.elements,
        r,
        _or(after.theta, 0.0) - _or(before.theta, 0.0),
        _or(after.spectral_signal, 0.0) - _or(before.spectral_signal, 0.0),
        _or(after.standard_deviation, 0.0) / _or(before.standard_deviation, 1.0),
    )


def _energy(change: Change) -> float:
    assert change.after is not None
    return _or(moved_energy(change.before, change.after, part_correlation(change.before, change.after)), 0.0)


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return fmean(known) if known else 0.0


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
