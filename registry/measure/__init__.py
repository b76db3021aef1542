"""Measuring, pure: an organ's bytes in, numbers out, by a bounded number of reads; only `nonfinite` reads all of them.

    measurement  one organ, measured: the entry point, the record
    sample       which values of a tensor are looked at
    zmeasure     the Z-measure, method "z1"
    spectral     the spectral reading, method "mp1"
    nonfinite    how many values of a tensor are NaN or infinite

A *sample* is the values that stand for an organ; a *run* is some consecutive ones; a *patch* is the submatrix that the
spectral reading looks at. *Signal* without a word before it is sin θ.
"""

from organs.registry.measure.measurement import (
    FINGERPRINT_BYTES,
    Measurement,
    fingerprint,
    measure,
    required_reads,
)
from organs.registry.measure.nonfinite import count_nonfinite, count_nonfinite_in
from organs.registry.measure.sample import Read
from organs.registry.measure.spectral import SpectralReading, spectral_reading
from organs.registry.measure.zmeasure import (
    Summary,
    ZReading,
    summarise,
    zmeasure,
)

__all__ = [
    "FINGERPRINT_BYTES",
    "Measurement",
    "Read",
    "SpectralReading",
    "Summary",
    "ZReading",
    "count_nonfinite",
    "count_nonfinite_in",
    "fingerprint",
    "measure",
    "required_reads",
    "spectral_reading",
    "summarise",
    "zmeasure",
]
