"""Fingerprints: 256 of an organ's sampled values in 256 bytes, by which relatives find each other.

Positions depend on the element count alone, so two organs of one shape are compared value by value:
`registry.lineage.correlation` of their fingerprints estimates the correlation of the organs.
"""

from __future__ import annotations

import math

import numpy as np

from organs.registry.gguf.quants import Floats
from organs.registry.measure.sample import spread
from organs.registry.measure.summary import scaled

FINGERPRINT_BYTES = 256
STEPS_PER_DEVIATION = 32
LIMIT = 127


def fingerprint(sample: Floats) -> bytes | None:
    """256 signed bytes: values spread evenly through the sample, standardised, 32 steps a deviation, within ±127.

    `sample` is flat, in the tensor's order, NaN and infinities included: they stand at 0, the mean. The fingerprint of
    equal values is all zero. None under 256 values. Sums are exact (`fsum`), so the bytes are equal on every machine.
    """
    if sample.size < FINGERPRINT_BYTES:
        return None
    with np.errstate(invalid="ignore"):  # signalling NaNs
        chosen = sample[list(spread(sample.size, FINGERPRINT_BYTES))].astype(np.float64)
    finite = np.isfinite(chosen)
    known = np.where(finite, chosen, 0.0)
    known, _ = scaled(known, float(np.abs(known).max()))
    count = max(int(finite.sum()), 1)
    offsets = np.where(finite, known - math.fsum(known.tolist()) / count, 0.0)
    variance = math.fsum(np.square(offsets).tolist()) / count
    if variance == 0.0 or known[finite].min() == known[finite].max():
        return bytes(FINGERPRINT_BYTES)
    steps = np.rint(offsets * (STEPS_PER_DEVIATION / math.sqrt(variance)))
    return np.clip(steps, -LIMIT, LIMIT).astype(np.int8).tobytes()
