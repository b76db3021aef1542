"""Transforming, pure: organs' bytes in, a new organ's bytes out, in order and in bounded memory.

    compute     `computed`, the entry point: adapters added, purified, encoded
    plain       an organ as it comes in, and its values by the window
    adapters    low-rank adapters: whether they fit, and their sum
    purify      what is taken out of a window of values: spectral and fractal
    restore     mean and standard deviation as they were, after encoding too
    encode      which tensor type a computed organ is written as, and writing it
    sums        sums and moments that are equal on every processor

A *window* is up to 2^20 consecutive values of an organ, the unit of all work here. Every result is equal to the last
byte on every x86 processor with one numpy; `docs/design/purification.md` tells how.
"""

from organs.registry.transform.adapters import Adapter, misfit
from organs.registry.transform.compute import Computation, computed
from organs.registry.transform.encode import encoded_dtype
from organs.registry.transform.plain import Plain
from organs.registry.transform.purify import Purification, PurifyMethod, purified

METHOD = "t1"
"""The name of all that is computed here. A change that gives other bytes is a new method."""

__all__ = [
    "METHOD",
    "Adapter",
    "Computation",
    "Plain",
    "Purification",
    "PurifyMethod",
    "computed",
    "encoded_dtype",
    "misfit",
    "purified",
]
