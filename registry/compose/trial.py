"""Blends and adapters tried on a few rows before anything is made: how much they change, and what rounding keeps.

A change that is much smaller than a step of the tensor type is lost when it is written: a fine-tune that moves weights
by 0.3% keeps 6% of its change in 4 bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from organs.registry.compose.ingredients import Rows, stored_plain, transformation_of
from organs.registry.compose.plan import PlannedComputation
from organs.registry.gguf.quants import ENCODED_TOGETHER, needs_importance
from organs.registry.gguf.types import DType
from organs.registry.store import BlobStore
from organs.registry.transform import Adapter, Computation, Plain, Whole
from organs.registry.transform.blend import Settings
from organs.registry.transform.compute import changed_values
from organs.registry.transform.reproducible import total
from organs.registry.transform.values import Window, encoded

RUNS, RUN_VALUES = 4, 1 << 14
"""Runs of consecutive rows of an organ that are tried, spread over it, and the values of each; a longer row is cut."""
VALUES, RANKED_VALUES = 5, 300
"""What is done in a microsecond: values of an operand that are read and blended or encoded, and values to which a
product of rank one is added."""
ANGLE_COST = 25
"""Compute the angle between two directions, in microseconds."""


@dataclass(slots=True)
class Trial:
    """The sums of trials. Energies are sums of squares."""

    before: float = 0.0
    """The energy of the organs."""
    change: float = 0.0
    """The energy of the change before rounding."""
    along: dict[str, float] = field(default_factory=dict)
    """By tensor type: the product of the change before and after rounding."""
    values: int = 0

    @property
    def moved(self) -> float:
        """The energy of the change over that of the organs."""
        return self.change / self.before if self.before else 0.0

    def kept(self, dtype: str) -> float:
        """Return the share of the change that is left in a tensor type: the slope of the change after on before."""
        return min(1.0, max(0.0, self.along[dtype] / self.change)) if self.change else 1.0

    def add(self, before: Window, after: Window, dtypes: Collection[DType]) -> None:
        """Add the values of an organ before and after a change that is written in each of `dtypes`. Raises BadOrgan."""
        change = after - before
        self.values += change.size
        self.before += total(before * before)
        self.change += total(change * change)
        for dtype in dtypes:
            weights = np.ones(ENCODED_TOGETHER, np.float32) if needs_importance(dtype) else None
            written = encoded(after, dtype, weights)[1] - before
            self.along[dtype.name] = self.along.get(dtype.name, 0.0) + total(written * change)


def tried(store: BlobStore, rows: Rows, computation: PlannedComputation, dtypes: Collection[DType]) -> Trial:
    """Try a computation, without its purification, in each of `dtypes`. Raises StoreError, BadOrgan."""
    trial = Trial()
    with ExitStack() as opened:
        plain = partial(stored_plain, store, rows=rows, opened=opened)
        transformation = transformation_of(replace(computation, method=None, importances=None), plain)
        width, step, starts = _runs(computation)
        for start in starts:
            run = _rows(transformation, start, step, width)
            before, after = run.source.windows(), changed_values(run)
            trial.add(np.concatenate(list(before)), np.concatenate(list(after)), dtypes)
    return trial


def summed(trials: Iterable[Trial]) -> Trial:
    """Return the trial of several organs together."""
    whole = Trial()
    for trial in trials:
        whole.before += trial.before
        whole.change += trial.change
        whole.values += trial.values
        for dtype, product in trial.along.items():
            whole.along[dtype] = whole.along.get(dtype, 0.0) + product
    return whole


def trial_cost(computation: PlannedComputation, dtypes: Collection[DType]) -> int:
    """Return the processor time of a trial in microseconds, without that of opening its organs."""
    width, step, starts = _runs(computation)
    runs, values, blend = len(starts), len(starts) * step * width, computation.blend
    ranks = sum(1 if addition.b is None else addition.b.shape[0] for addition in computation.added)
    donors = len(blend.parts) if blend else 0
    settings: Settings = blend.settings if blend else {}
    rounds, angles = settings.get("max_iter"), 0
    if isinstance(rounds, int):
        angles = rounds * donors
    elif settings.get("nuslerp_flatten") is False:
        angles = width if settings["nuslerp_row_wise"] else step
    read = values * (1 + donors + 2 * len(dtypes)) + ranks * runs * (width + step)
    return read // VALUES + ranks * values // RANKED_VALUES + runs * angles * ANGLE_COST


def _runs(computation: PlannedComputation) -> tuple[int, int, list[int]]:
    """Return how many values of how many rows a run has, and its first rows; of a stack, of its first matrix.

    The rows of a DoRA are whole, because it changes their lengths.
    """
    row, count = (*computation.source.shape, 1)[:2]
    step = min(count, max(1, RUN_VALUES // row))
    width = row if any(addition.magnitude for addition in computation.added) else min(row, RUN_VALUES)
    return width, step, sorted({round(part * (count - step) / (RUNS - 1)) for part in range(RUNS)})


def _rows(computation: Computation, start: int, count: int, width: int) -> Computation:
    """Return the computation of `count` rows of the first matrix from row `start`: of `width` values of one row."""
    row = computation.source.shape[0]

    def cut(plain: Plain) -> Plain:
        return plain.part(start * row, (width, count))

    def of_rows(adapter: Adapter | Whole) -> Adapter | Whole:
        if isinstance(adapter, Whole):
            return replace(adapter, plain=cut(adapter.plain))
        a, b = (factor.part(0, factor.shape[:2]) for factor in (adapter.a, adapter.b))
        if computation.is_token_embedding:
            a, b = a.part(start * a.shape[0], (a.shape[0], count)), b.part(0, (b.shape[0], width))
        else:
            a, b = _first_columns(a, width), b.part(start * b.shape[0], (b.shape[0], count))
        magnitude = adapter.magnitude and adapter.magnitude.part(start, (count,))
        return replace(adapter, a=a, b=b, magnitude=magnitude)

    blend = computation.blend
    if blend is not None:
        donors = tuple(
            replace(item, plain=cut(item.plain), adapter=item.adapter and of_rows(item.adapter))
            for item in blend.donors
        )
        blend = replace(blend, donors=donors)
    adapters = tuple(map(of_rows, computation.adapters))
    return replace(computation, source=cut(computation.source), adapters=adapters, blend=blend)


def _first_columns(plain: Plain, width: int) -> Plain:
    """Return the first `width` values of each row of a matrix. They must be read in whole rows."""
    row, rows = (*plain.shape, 1)[:2]
    row_bytes, size_bytes = plain.dtype.size_bytes(row), plain.dtype.size_bytes(width)

    def read(offset: int, size: int) -> bytes:
        numbers = range(offset // size_bytes, (offset + size) // size_bytes)
        return b"".join(bytes(plain.read(number * row_bytes, size_bytes)) for number in numbers)

    return plain if width == row else replace(plain, read=read, shape=(width, rows))
