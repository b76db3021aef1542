"""Fit the prediction to measured grafts, and check it on families that it was not fitted to.

    python -m bench.prediction              the figures of docs/prediction.md, some seconds
    python -m bench.prediction --fit        the constants and errors for registry/compose/prediction.py
    python -m bench.prediction --table FILE other grafts than bench/grafts.json (`python -m bench.grafts`)

For each family, the constants and the percentiles of the errors are fitted to the grafts of the other families; then
they predict the grafts of this one. *Usable* means that the measured loss and the recovered share keep the limits of
verdicts. AUC is the probability that a usable graft has a higher score than an unusable one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from bench.grafts import KINDS, TABLE, MeasuredGraft, read_table
from bench.quality import auc, spearman
from organs.registry.compose.prediction import (
    LOSS_SCALE,
    LOSS_SHOWN_MAX,
    Constants,
    Errors,
    Relation,
    fitted_loss,
    interval_of,
    recovered_of,
    relation_of,
    score_of,
)

Values = NDArray[np.float64]


START = Constants(0.15, 1.5, 0.2, 0.1, 1.5, 2.5, 5.0, 1.0, 2.0, 0.1, 1.0, 1.4)
"""The constants from which a fit starts, and to which it returns where the grafts say nothing."""
ROUNDS = 12
STEP = 1e-3
RETURN = 0.02
"""The weight of the distance from START."""
ROBUST_FROM = 0.5
"""Errors larger than this count less than their squares."""
LOSS_MAX = 3.0
"""Larger losses are not distinguished."""
PERCENTILES = (10.0, 50.0, 90.0)
FEW = 5
"""With fewer usable or unusable grafts, an AUC is not printed."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A graft with its prediction by constants that were fitted to other families."""

    graft: MeasuredGraft
    low: float
    loss: float
    high: float
    recovered: float | None

    @property
    def score(self) -> float:
        return score_of(self.loss, self.recovered)

    @property
    def holds(self) -> bool:
        """Whether the measured loss is in the interval."""
        return self.low <= min(self.graft.loss, LOSS_SHOWN_MAX) <= self.high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="print constants that are fitted to all grafts")
    parser.add_argument("--table", type=Path, default=TABLE, help="measured grafts")
    options = parser.parse_args()
    grafts = read_table(options.table)
    if options.fit:
        constants = fitted(grafts)
        print(constants)
        for relation, errors in errors_of(grafts, constants).items():
            print(relation, tuple(round(error, 2) for error in errors))
        return
    print_figures(left_out(grafts))


def left_out(grafts: Sequence[MeasuredGraft]) -> list[Prediction]:
    """Return each graft with its prediction by constants and errors that were fitted to the other families."""
    predictions = []
    for family in sorted({graft.family for graft in grafts}):
        others = [graft for graft in grafts if graft.family != family]
        constants = fitted(others)
        errors = errors_of(others, constants)
        predictions += [predicted(graft, constants, errors) for graft in grafts if graft.family == family]
    return predictions


def predicted(graft: MeasuredGraft, constants: Constants, errors: Errors) -> Prediction:
    """Return the prediction for a graft by these constants and errors."""
    loss = fitted_loss(graft.groups, graft.base, constants)
    return Prediction(graft, *interval_of(loss, relation_of(graft.groups), errors), recovered_of(graft.groups))


def errors_of(grafts: Sequence[MeasuredGraft], constants: Constants) -> dict[Relation, tuple[float, float, float]]:
    """Return the percentiles of the errors by relation."""
    errors: dict[Relation, list[float]] = {relation: [] for relation in Relation}
    for graft in grafts:
        fitted_value = fitted_loss(graft.groups, graft.base, constants)
        error = _scaled(np.array(graft.loss)) - _scaled(np.array(fitted_value))
        errors[relation_of(graft.groups)].append(float(error))
    values = {relation: np.percentile(known, PERCENTILES) for relation, known in errors.items()}
    return {relation: (float(value[0]), float(value[1]), float(value[2])) for relation, value in values.items()}


def fitted(grafts: Sequence[MeasuredGraft]) -> Constants:
    """Return the constants that fit the losses of `grafts`: robust least squares of the errors, by Gauss-Newton."""
    measured = _scaled(np.array([graft.loss for graft in grafts]))
    start = np.log(list(asdict(START).values()))

    def errors(logarithms: Values) -> Values:
        constants = _constants(logarithms)
        losses = np.array([fitted_loss(graft.groups, graft.base, constants) for graft in grafts])
        return np.concatenate([_scaled(losses) - measured, RETURN * (logarithms - start)])

    place = start
    for _ in range(ROUNDS):
        residuals = errors(place)
        weights = 1.0 / np.sqrt(np.sqrt(1.0 + (residuals / ROBUST_FROM) ** 2))
        slopes = np.stack([_slope(errors, place, index, residuals) for index in range(len(place))], axis=1)
        step = np.linalg.lstsq(slopes * weights[:, None], -residuals * weights, rcond=None)[0]
        place = place + np.clip(step, -0.7, 0.7)
    return _constants(place)


def _slope(errors: Callable[[Values], Values], place: Values, index: int, residuals: Values) -> Values:
    moved = place.copy()
    moved[index] += STEP
    slope: Values = (errors(moved) - residuals) / STEP
    return slope


def _constants(logarithms: Values) -> Constants:
    return Constants(**dict(zip((field.name for field in fields(Constants)), np.exp(logarithms).tolist(), strict=True)))


def _scaled(losses: Values) -> Values:
    scaled: Values = np.arcsinh(np.minimum(losses, LOSS_MAX) / LOSS_SCALE)
    return scaled


def print_figures(predictions: Sequence[Prediction]) -> None:
    """Print the tables of docs/prediction.md."""
    decided = [item for item in predictions if item.graft.is_usable is not None]
    print(f"{len(predictions)} grafts; for {len(decided)} it is decided whether they are usable\n")
    print("| grafts | number | usable | AUC | right | Spearman | in the interval |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    _print_row("all", predictions)
    for family in sorted({item.graft.family for item in predictions}):
        _print_row(f"family {family}", [item for item in predictions if item.graft.family == family])
    for kind in KINDS:
        _print_row(kind, [item for item in predictions if item.graft.kind == kind])
    for has_output, name in ((False, "embeddings, tied"), (True, "embeddings, not tied")):
        chosen = [item for item in predictions if item.graft.kind == "embeddings"]
        _print_row(name, [item for item in chosen if item.graft.base.has_output is has_output])
    for relation in Relation:
        _print_row(relation.value, [item for item in predictions if relation_of(item.graft.groups) is relation])
    print("\nother numbers:")
    for name, number in NUMBERS.items():
        known = [(value, item.graft) for item in decided if (value := number(item.graft)) is not None]
        values = auc([v for v, graft in known if graft.is_usable], [v for v, graft in known if not graft.is_usable])
        print(f"| {name} | {len(known)} | {values:.3f} |")
    print("\nwrong:")
    for item in decided:
        if (item.score >= 1.0) != item.graft.is_usable:
            figures = f"{item.graft.loss:+.3f} | {item.low:.3f} to {item.high:.3f}, {item.loss:.3f}"
            print(f"| {item.graft.family} {item.graft.name} | {item.graft.kind} | {figures} |")


def _print_row(name: str, predictions: Sequence[Prediction]) -> None:
    decided = [(item.score, bool(item.graft.is_usable)) for item in predictions if item.graft.is_usable is not None]
    usable = [score for score, is_usable in decided if is_usable]
    others = [score for score, is_usable in decided if not is_usable]
    area = f"{auc(usable, others):.3f}" if min(len(usable), len(others)) >= FEW else "–"
    right = sum((score >= 1.0) == is_usable for score, is_usable in decided)
    rank = spearman([item.loss for item in predictions], [min(LOSS_MAX, item.graft.loss) for item in predictions])
    held = fmean(item.holds for item in predictions)
    figures = f"{area} | {right} of {len(decided)} | {rank:.3f} | {held:.0%}"
    print(f"| {name} | {len(predictions)} | {len(usable)} | {figures} |")


def _similarities(graft: MeasuredGraft) -> list[float]:
    return [group.grafted_similarity for group in graft.groups if group.grafted_similarity is not None]


NUMBERS: dict[str, Callable[[MeasuredGraft], float | None]] = {
    "mean likeness": lambda graft: fmean(_similarities(graft)) if _similarities(graft) else None,
    "lowest likeness": lambda graft: min(_similarities(graft), default=None),
    "θ of the grafted organs": lambda graft: graft.theta,
    "increase of θ": lambda graft: (
        None if graft.theta is None or graft.theta_replaced is None else graft.theta - graft.theta_replaced
    ),
    "spectral signal of the grafted organs": lambda graft: graft.spectral_signal,
}
"""Numbers that could predict whether a graft is usable; a higher value should be better."""


if __name__ == "__main__":
    main()
