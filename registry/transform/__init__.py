"""Computed organs, pure: bytes of organs in, bytes of a new organ out, in order and in bounded memory.

    compute  compute an organ as bytes in order: adapters (LoRA) added, then purified, then encoded
    purify   purification: weak frequencies or details without a parent are removed; mean and deviation stay
    values   the values of an organ, window by window, and writing computed values as a tensor type

A *window* is up to 2^20 consecutive values of an organ, the unit of all work here. Every result is equal to the last
byte on every x86 processor with one numpy; see `docs/design/purification.md`.
"""

from organs.registry.transform.compute import (
    Adapter,
    Computation,
    computed,
    misfit,
)
from organs.registry.transform.purify import Purification, PurifyMethod, purified
from organs.registry.transform.values import Plain, encoded_dtype

METHOD = "t1"
"""The name of the computations of this package. A change that gives other bytes is a new method."""

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
