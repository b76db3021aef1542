"""Computed organs: functions that read the bytes of organs and yield the bytes of a new organ.

They have no side effects, yield the bytes in order, and need bounded memory.

    compute       an organ as bytes in order: it is blended, adapters (LoRA) are added, it is purified and encoded,
                  and only some experts are kept
    blend         one tensor from the same tensor of several models, by the methods of mergekit
    lowrank       the product of two thin factors nearest to the difference of two matrices
    purify        purification: removes weak frequencies, or details without a parent; keeps mean and deviation
    values        reads the values of an organ window by window, and encodes computed values as a tensor type
    reproducible  sums, ranks and functions with the same results on every x86 processor

A *window* is up to 2^20 consecutive values of an organ; all work is done window by window. With the same version of
numpy, all bytes of a result are equal on every x86 processor, except those of `lowrank`; see
`docs/design/purification.md`.
"""

from organs.registry.transform.compute import (
    Adapter,
    Blending,
    Computation,
    Operand,
    Whole,
    computed,
    experts_copied,
    magnitude_misfit,
    misfit,
    whole_misfit,
)
from organs.registry.transform.purify import Purification, PurifyMethod
from organs.registry.transform.values import Plain, encoded_dtype

METHOD = "t1"
"""The name of the computations of this package. A change that changes result bytes needs a new name."""

__all__ = [
    "METHOD",
    "Adapter",
    "Blending",
    "Computation",
    "Operand",
    "Plain",
    "Purification",
    "PurifyMethod",
    "Whole",
    "computed",
    "encoded_dtype",
    "experts_copied",
    "magnitude_misfit",
    "misfit",
    "whole_misfit",
]
