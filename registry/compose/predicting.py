"""Planned parts to a prediction: what changes at which place, and what computing will move before it has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from organs.registry.compose.computation import Addition
from organs.registry.compose.finding import Finding, Severity
from organs.registry.compose.parent import Parent, Part
from organs.registry.compose.plan import PlannedPart
from organs.registry.compose.prediction import Prediction, predict
from organs.registry.compose.recipe import PurifyMethod
from organs.registry.compose.survival import Change
from organs.registry.transform.purify import KEEP_DEFAULT

FRACTAL_ENERGY = 0.105
"""Energy that fractal purification moves in a matrix: 0.096 to 0.132 over those of two models, whatever they hold."""
TRIED = "Of 83 grafts between small models it was right for 78."
"""By `python -m bench.prediction`, which docs/prediction.md tells more of."""


def predicted(parts: Iterable[PlannedPart], computed: Mapping[str, Part] | None = None) -> Prediction:
    """The prediction for a plan's `parts`; `computed` has what was measured of computed organs, by their names."""
    all_parts = list(parts)
    return predict(changes_of(all_parts, computed), sum(part.before.spec.elements for part in all_parts))


def changes_of(parts: Iterable[PlannedPart], computed: Mapping[str, Part] | None = None) -> list[Change]:
    """What changes: every part whose source is not the base's own to the last byte, or that is computed."""
    made = computed or {}
    changes = (_change(part, made.get(part.before.name)) for part in parts)
    return [change for change in changes if change.is_grafted or change.is_computed]


def likely_degraded(base: Parent, prediction: Prediction, findings: Iterable[Finding]) -> Iterator[Finding]:
    """`likely-degraded` (warn) where the prediction says so; nothing where strangers are warned of among `findings`."""
    if prediction.is_usable is not False or any(one.code == "unrelated-lineage" for one in findings):
        return
    yield Finding(Severity.WARN, "likely-degraded", f"{prediction.sentence()} {TRIED}", base=base.label)


def _change(part: PlannedPart, computed: Part | None) -> Change:
    if part.computation is None:
        return Change(part.before, part.source, part.source)
    return Change(part.before, part.source, computed, _estimated(part))


def _estimated(part: PlannedPart) -> float | None:
    """Energy that computing will move, over the source's, from moments alone; None where those are not known."""
    made, source = part.computation, part.source
    size, spread = _size(source), source.standard_deviation
    if made is None or not size or spread is None:
        return None
    energy = 0.0
    for addition, adapter in zip(made.additions, part.adapters, strict=True):
        product = _product_size(addition, adapter)
        if product is None:
            return None
        energy += (product / size) * (product / size)
    if made.method is not None:
        energy += _purified_energy(made.method, made.keep) * (spread / size) * (spread / size)
    return energy


def _product_size(addition: Addition, adapter: Parent) -> float | None:
    """Root of the mean square of what an adapter adds, were its two factors independent of each other.

    Every value of B·A is a sum of rank products. Of the zoo's adapter this gives 0.86 to 1.00 of the energy.
    """
    halves = (adapter.by_name.get(addition.a.name), adapter.by_name.get(addition.b.name))
    sizes = [_size(half) for half in halves if half is not None]
    rank = addition.b.shape[0]
    if len(sizes) < 2 or sizes[0] is None or sizes[1] is None or rank < 1:
        return None
    factor = addition.scale * (addition.alpha / rank if addition.alpha else 1.0)
    return abs(factor) * math.sqrt(rank) * sizes[0] * sizes[1]


def _purified_energy(method: str, keep: float | None) -> float:
    """Energy moved about the mean, where the standard deviation is restored.

    What spectral purification leaves correlates by the root of the share that is kept, and is stretched to the length
    that the organ had: 2 - 2 r.
    """
    if method == PurifyMethod.FRACTAL:
        return FRACTAL_ENERGY
    return 2.0 - 2.0 * math.sqrt(KEEP_DEFAULT if keep is None else min(1.0, max(0.0, keep)))


def _size(part: Part) -> float | None:
    """Root of the mean square of an organ's values; None where it is not known."""
    if part.mean is None or part.standard_deviation is None:
        return None
    size = math.hypot(part.mean, part.standard_deviation)
    return size if math.isfinite(size) else None
