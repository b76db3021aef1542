"""How much rounding to a tensor type moves the weights of an organ, tried on some of its rows."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack

import numpy as np

from organs.registry.compose.ingredients import Rows, stored_plain
from organs.registry.compose.parents import Part
from organs.registry.gguf.types import DType
from organs.registry.store import BlobStore
from organs.registry.transform.values import encoded

RUNS, RUN_VALUES = 8, 1 << 13
"""Runs of consecutive rows that are tried, spread over an organ, and about how many values each has."""


def rounding_errors(
    store: BlobStore, rows: Rows, part: Part, dtypes: Collection[DType], importances: np.ndarray | None = None
) -> dict[str, float]:
    """Return the sum of the squared changes of the weights of an organ by the name of the type.

    It is that of some rows times their share.
    """
    row = part.shape[0]
    count = part.spec.elements // row
    step = min(count, max(1, RUN_VALUES // row))
    starts = sorted({round(number * (count - step) / (RUNS - 1)) for number in range(RUNS)})
    totals = dict.fromkeys((dtype.name for dtype in dtypes), 0.0)
    tried = 0
    with ExitStack() as opened:
        plain = stored_plain(store, part, rows, opened)
        for start in starts:
            values = plain.values(start * row, step * row)
            tried += values.size
            for dtype in dtypes:
                if dtype != part.dtype:
                    change = (encoded(values, dtype)[1] - values).reshape(-1, row)
                    energy = change * change
                    totals[dtype.name] += float((energy if importances is None else energy * importances).sum())
    return {name: total * part.spec.elements / tried for name, total in totals.items()}
