"""How much rounding to a tensor type moves the weights of an organ, tried on some of its rows."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from organs.registry.compose.ingredients import Rows, stored_plain
from organs.registry.compose.parents import Part
from organs.registry.compose.quantisation import UNWEIGHED
from organs.registry.gguf.types import DType
from organs.registry.store import BlobStore
from organs.registry.transform.values import encoded

RUNS, RUN_VALUES = 8, 1 << 13
"""Runs of consecutive rows that are tried, spread over an organ, and about how many values each has."""

Weights = NDArray[np.float32]
"""The importances of the columns of an organ; of a stack, those of each matrix in turn."""


def rounding_errors(
    store: BlobStore, rows: Rows, part: Part, dtypes: Collection[DType], weights: Weights | None = None
) -> dict[str, float]:
    """Return the sum of the squared changes of the weights of an organ, by the name of the type.

    It is that of some rows, times how many more the organ has. With `weights`, these weigh the squares, and rounding is
    done by them. Raises StoreError, BadOrgan.
    """
    row, height = (*part.shape, 1)[:2]
    count = part.spec.elements // row
    step = min(height, max(1, RUN_VALUES // row))
    starts = {round(number * (count - step) / (RUNS - 1)) for number in range(RUNS)}
    # A run is in one matrix of a stack.
    starts = {min(start, start // height * height + height - step) for start in starts}
    totals, tried = dict.fromkeys((dtype.name for dtype in dtypes), 0.0), 0
    with ExitStack() as opened:
        plain = stored_plain(store, part, rows, opened)
        for start in sorted(starts):
            values = plain.values(start * row, step * row)
            matrix = start // height
            own = None if weights is None else weights[matrix * row : (matrix + 1) * row]
            tried += values.size
            for dtype in dtypes:
                written = encoded(values, dtype, None if dtype.name in UNWEIGHED else own)[1]
                squares = ((written - values) ** 2).reshape(-1, row)
                totals[dtype.name] += float((squares if own is None else squares * own).sum())
    return {name: total * part.spec.elements / tried for name, total in totals.items()}
