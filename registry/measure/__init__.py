"""Measuring, pure: an organ's bytes in, numbers out, by a bounded number of reads; only `nonfinite` reads all of them.

    measurement     `measure`, the entry point, and the record `Measurement` that it gives; which bytes it reads
    sample          which values are looked at
    summary         the sample in order, with its moments
    zmeasure        θ, |Z| and their indicators: how the values are distributed (method "z1")
    spectral        how a matrix's energy stands against chance (method "mp1")
    fingerprint     256 bytes by which relatives are found
    nonfinite       how many of all values are NaN or infinite

A *sample* is the values that stand for an organ; a *run* is some consecutive ones; a *patch* is the submatrix that the
spectral reading looks at. *Signal* without a word before it is sin θ.
"""

from organs.registry.measure.fingerprint import FINGERPRINT_BYTES, fingerprint
from organs.registry.measure.measurement import Measurement, measure, required_reads
from organs.registry.measure.nonfinite import count_nonfinite, count_nonfinite_in
from organs.registry.measure.sample import Read
from organs.registry.measure.spectral import SpectralReading, spectral_reading
from organs.registry.measure.summary import Summary, summarise
from organs.registry.measure.zmeasure import ZReading, zmeasure

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
