"""Fingerprints: 256 values of an organ in 536 bytes, from which the likeness and the change of two organs are computed.

A fingerprint has the mean, the step and the standard deviation of the values (three float64, little-endian), then the
values as 16-bit steps from the mean. The largest offset has 32,767 steps: rounding has about 1e-9 of the energy of the
values. The number -32,768 stands for NaN and infinite values.

Earlier versions stored 256 signed bytes: the *coarse* form. It has 32 steps per standard deviation, without mean and
scale. It follows from the present form, so old and new fingerprints can be compared; their change is not known.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

VALUES = 256
COARSE_BYTES = VALUES
FINGERPRINT_BYTES = 24 + 2 * VALUES
FINGERPRINT_PATTERN = f"^([0-9a-f]{{{2 * FINGERPRINT_BYTES}}}|[0-9a-f]{{{2 * COARSE_BYTES}}})$"
"""Fingerprints of both forms as hexadecimal text."""

COARSE_STEPS = 32
"""Steps per standard deviation of the coarse form."""
COARSE_LIMIT = 127
"""Steps at which the coarse form clips values: 4 standard deviations."""

_HEAD = struct.Struct("<3d")
_FINE = np.dtype([("mean", "<f8"), ("step", "<f8"), ("deviation", "<f8"), ("steps", "<i2", (VALUES,))])
_STEPS_MAX = 32_767
_UNKNOWN = -32_768
_BATCH = 1024
"""Fingerprints that are converted at once, so few that they stay in the cache."""


def fingerprint_of(values: NDArray[np.float64]) -> bytes:
    """Return the fingerprint of exactly 256 values.

    NaN and infinities have no number. If all finite values are equal, all steps are 0. Sums are exact (`fsum`), so the
    bytes are equal on every machine.
    """
    assert values.shape == (VALUES,)
    finite = np.isfinite(values)
    known = np.where(finite, values, 0.0)
    exponent = int(np.frexp(np.abs(known).max())[1])  # sums of very large or very small values need a common exponent
    known = np.ldexp(known, -exponent)
    count = max(int(finite.sum()), 1)
    mean = math.fsum(known.tolist()) / count
    offsets = np.where(finite, known - mean, 0.0)
    deviation = math.sqrt(math.fsum(np.square(offsets).tolist()) / count)
    step = float(np.abs(offsets).max()) / _STEPS_MAX
    if deviation == 0.0 or known[finite].min() == known[finite].max():
        mean, step, deviation = (float(known[finite][0]) if finite.any() else 0.0), 0.0, 0.0
    steps = np.rint(offsets / step) if step else np.zeros(VALUES)
    head = (float(np.ldexp(number, exponent)) for number in (mean, step, deviation))
    return _HEAD.pack(*head) + np.where(finite, steps, _UNKNOWN).astype("<i2").tobytes()


def is_fine(fingerprint: bytes) -> bool:
    """Return whether a fingerprint has the present form, from which a change can be computed."""
    return len(fingerprint) == FINGERPRINT_BYTES


def is_constant(fingerprint: bytes) -> bool:
    """Return whether all values of a fingerprint are equal."""
    values = np.frombuffer(fingerprint, "<i2", offset=_HEAD.size) if is_fine(fingerprint) else None
    if values is None:
        return len(set(fingerprint)) == 1
    return not values[values != _UNKNOWN].any()


def coarse_rows(fingerprints: Sequence[bytes]) -> NDArray[np.int8]:
    """Return the coarse form of each fingerprint, a row each. Values without a number are 0, the mean."""
    rows = np.empty((len(fingerprints), VALUES), np.int8)
    for begin in range(0, len(fingerprints), _BATCH):
        part = fingerprints[begin : begin + _BATCH]
        fine = [number for number, data in enumerate(part) if is_fine(data)]
        if len(fine) < len(part):
            coarse = [number for number, data in enumerate(part) if not is_fine(data)]
            joined = b"".join(part[number] for number in coarse)
            rows[begin + np.array(coarse)] = np.frombuffer(joined, np.int8).reshape(-1, VALUES)
        if fine:
            records = _records(part if len(fine) == len(part) else [part[number] for number in fine])
            rows[begin + np.array(fine)] = _coarse(records)
    return rows


def step_rows(fingerprints: Sequence[bytes]) -> NDArray[np.int16]:
    """Return the steps of fingerprints of the present form, a row each. Values without a number are 0, the mean."""
    steps: NDArray[np.int16] = _records(fingerprints)["steps"]
    return np.where(steps == _UNKNOWN, np.int16(0), steps)


def value_rows(fingerprints: Sequence[bytes]) -> NDArray[np.float64]:
    """Return the 256 values of each fingerprint; NaN where they are not known, also in the coarse form."""
    rows = np.full((len(fingerprints), VALUES), np.nan)
    fine = [number for number, data in enumerate(fingerprints) if is_fine(data)]
    if fine:
        records = _records([fingerprints[number] for number in fine])
        steps = records["steps"]
        with np.errstate(all="ignore"):  # a hostile head
            values = records["mean"][:, np.newaxis] + records["step"][:, np.newaxis] * steps
        rows[fine] = np.where(steps == _UNKNOWN, np.nan, values)
    return rows


def rounding_steps(fingerprints: Sequence[bytes]) -> NDArray[np.float64]:
    """Return the step to which the values of each fingerprint are rounded; NaN if it is not known."""
    steps = np.full(len(fingerprints), np.nan)
    fine = [number for number, data in enumerate(fingerprints) if is_fine(data)]
    if fine:
        steps[fine] = _records([fingerprints[number] for number in fine])["step"]
    return steps


def _records(fingerprints: Sequence[bytes]) -> NDArray[np.void]:
    return np.frombuffer(b"".join(fingerprints), _FINE)


def _coarse(records: NDArray[np.void]) -> NDArray[np.int8]:
    with np.errstate(all="ignore"):  # a hostile head
        factors = np.nan_to_num(COARSE_STEPS * records["step"] / records["deviation"]).astype(np.float32)
        scaled = records["steps"].astype(np.float32)
        scaled[scaled == _UNKNOWN] = 0
        scaled *= factors[:, np.newaxis]
        np.rint(scaled, out=scaled)
        np.clip(scaled, -COARSE_LIMIT, COARSE_LIMIT, out=scaled)
        return np.nan_to_num(scaled, copy=False).astype(np.int8)
