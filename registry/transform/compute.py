"""A computed organ, as bytes in order: adapters added, then purified, then encoded. The one entry of this package."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from organs.registry.gguf.types import DType
from organs.registry.transform.adapters import Adapter, merged_rows
from organs.registry.transform.purify import Purification, purified_and_encoded
from organs.registry.transform.values import (
    Plain,
    Window,
    encoded,
    in_windows,
)


@dataclass(frozen=True, slots=True)
class Computation:
    """What is to be done to one organ."""

    source: Plain
    dtype: DType
    """What the result is written as: `encoded_dtype` of the source's."""
    adapters: tuple[Adapter, ...] = ()
    """Added in this order, all in float64 before one encoding."""
    is_token_embedding: bool = False
    """Whether the source is the token embedding, to which adapters are laid the other way round."""
    purification: Purification | None = None

    @property
    def size_bytes(self) -> int:
        """Of the result."""
        return self.dtype.size_bytes(self.source.elements)


def computed(computation: Computation) -> Iterator[bytes]:
    """The bytes of the computed organ, in order and in whole blocks, up to 2^20 values at once.

    Calling it again gives the same bytes, on every x86 processor. The source is read once, in order, and twice to be
    purified; the peak is some 100 MiB, and for adapters the larger of `a` and `b` in float32 beside it (of a stack, one
    matrix of it). Raises BadOrgan for values that are not finite, adapters that do not fit, and results that the
    dtype cannot hold, and UnsupportedDType: both at any time until the last byte, so keep nothing before it has come.
    """
    if computation.purification is None:
        for window in _windows(computation):
            yield encoded(window, computation.dtype)[0]
        return
    yield from purified_and_encoded(
        lambda: _windows(computation), computation.source.elements, computation.purification, computation.dtype
    )


def _windows(computation: Computation) -> Iterator[Window]:
    """The values of the source with its adapters added."""
    if not computation.adapters:
        return computation.source.windows()
    return in_windows(merged_rows(computation.source, computation.adapters, computation.is_token_embedding))
