"""Measures of organs: functions without side effects that read bytes and return numbers.

The number of reads is bounded; only `nonfinite` reads all bytes.

    measurement  the measures of one organ: the entry point and the record
    sample       the choice of the values of a tensor that are measured
    zmeasure     the Z-measure, method "z1"
    spectral     the spectral reading, method "mp1"
    nonfinite    the number of NaN and infinite values of a tensor

A *sample* is the set of values that represent an organ. A *run* is a consecutive part of a sample. A *patch* is the
submatrix of the spectral reading. *Signal* without another word before it is sin θ.
"""

from organs.registry.measure.measurement import (
    MEASURED_TOGETHER,
    Measurable,
    Measurement,
    measure,
    measure_together,
    read_fingerprint,
    required_reads,
)
from organs.registry.measure.nonfinite import count_nonfinite, count_nonfinite_in
from organs.registry.measure.sample import Read

__all__ = [
    "MEASURED_TOGETHER",
    "Measurable",
    "Measurement",
    "Read",
    "count_nonfinite",
    "count_nonfinite_in",
    "measure",
    "measure_together",
    "read_fingerprint",
    "required_reads",
]
