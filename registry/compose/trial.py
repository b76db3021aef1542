"""Blends and adapters tried on a few rows before anything is made: how much they change, and what rounding keeps.

A change that is much smaller than a step of the tensor type is lost when it is written: a fine-tune that moves weights
by 0.3% keeps 6% of its change in 4 bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np

from organs.registry.compose.ingredients import Rows, transformation_of
from organs.registry.compose.plan import PlannedComputation
from organs.registry.gguf.types import DType
from organs.registry.store import BlobStore
from organs.registry.transform import Adapter, Computation, Plain
from organs.registry.transform.compute import changed_values
from organs.registry.transform.reproducible import total
from organs.registry.transform.values import Window, encoded

RUNS, RUN_VALUES = 4, 1 << 14
"""Runs of consecutive rows of an organ that are tried, spread over it, and the values of each."""


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
            written = encoded(after, dtype)[1] - before
            self.along[dtype.name] = self.along.get(dtype.name, 0.0) + total(written * change)


def tried(store: BlobStore, rows: Rows, computations: Iterable[PlannedComputation], dtypes: Collection[DType]) -> Trial:
    """Try computations, without their purification, in each of `dtypes`. Raises StoreError, BadOrgan."""
    trial = Trial()
    for computation in computations:
        with ExitStack() as opened:
            for run in _runs(transformation_of(store, replace(computation, method=None), rows, opened)):
                before, after = run.source.windows(), changed_values(run)
                trial.add(np.concatenate(list(before)), np.concatenate(list(after)), dtypes)
    return trial


def _runs(computation: Computation) -> list[Computation]:
    """Return the computation of some runs of rows; of a stack, of its first matrix."""
    row, count = (*computation.source.shape, 1)[:2]
    step = min(count, max(1, RUN_VALUES // row))
    starts = sorted({round(part * (count - step) / (RUNS - 1)) for part in range(RUNS)})
    return [_rows(computation, start, step) for start in starts]


def _rows(computation: Computation, start: int, count: int) -> Computation:
    """Return the computation of `count` rows of the first matrix from row `start`."""
    row = computation.source.shape[0]

    def cut(plain: Plain) -> Plain:
        return plain.part(start * row, (row, count))

    def of_rows(adapter: Adapter) -> Adapter:
        a, b = (factor.part(0, factor.shape[:2]) for factor in (adapter.a, adapter.b))
        if computation.is_token_embedding:
            return replace(adapter, a=a.part(start * a.shape[0], (a.shape[0], count)), b=b)
        return replace(adapter, a=a, b=b.part(start * b.shape[0], (b.shape[0], count)))

    blend = computation.blend
    if blend is not None:
        donors = tuple(
            replace(item, plain=cut(item.plain), adapter=item.adapter and of_rows(item.adapter))
            for item in blend.donors
        )
        blend = replace(blend, donors=donors)
    adapters = tuple(map(of_rows, computation.adapters))
    return replace(computation, source=cut(computation.source), adapters=adapters, blend=blend)
