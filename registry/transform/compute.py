"""Computation of an organ as bytes in order: it is blended, adapters (LoRA) are added, it is purified, and encoded."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from organs.registry.errors import BadOrgan
from organs.registry.gguf.quants import FLOAT32_MAX, Floats, decode
from organs.registry.gguf.types import DType, dtype_by_name
from organs.registry.transform.blend import Settings, blended
from organs.registry.transform.purify import Purification, purified_and_encoded
from organs.registry.transform.reproducible import row_totals
from organs.registry.transform.values import (
    WINDOW_ELEMENTS,
    Plain,
    Readable,
    Stream,
    Window,
    encoded,
    in_windows,
    written,
)

RANK_MAX = 4096
ROW_MAX_ELEMENTS = 1 << 22
FACTOR_MAX_ELEMENTS = 1 << 26
"""The limit for the factor that is read completely (of a stack, one matrix): 256 MiB in float32."""

TILE_ELEMENTS = 1 << 15
"""All ranks are added to so many values before the next values: sum and product stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """Two factors of one tensor, with the alpha of the adapter and the scale that the user chose."""

    a: Plain
    b: Plain
    alpha: float
    scale: float = 1.0
    magnitude: Plain | None = None
    """Of a DoRA: the length that each row of the sum gets."""

    @property
    def rank(self) -> int:
        """The number of rank-one products that the adapter adds."""
        return self.b.shape[0]

    @property
    def factor(self) -> float:
        """The factor of B·A. Raises BadOrgan if it is not finite."""
        factor = self.scale * (self.alpha / self.rank if self.alpha else 1.0)
        if not math.isfinite(factor):
            raise BadOrgan(f"an adapter of alpha {self.alpha} at the scale {self.scale} has no finite factor")
        return factor


@dataclass(frozen=True, slots=True)
class Whole:
    """A tensor that takes the place of another one of its shape, or with another scale than 1, is blended with it."""

    plain: Plain
    scale: float = 1.0
    """How far the result is on the way from the other tensor to this one."""

    def moved(self, values: Window, start: int) -> Window:
        """Return the result for `values` of the other tensor, from number `start`."""
        whole = self.plain.values(start, values.size)
        return whole if self.scale == 1.0 else values + self.scale * (whole - values)


def misfit(base: Sequence[int], a: Sequence[int], b: Sequence[int], is_token_embedding: bool = False) -> str | None:
    """Return why the factors `a` and `b` do not fit a tensor of shape `base`, in a few words; None if they fit.

    For a base of [n_in, n_out], a is [n_in, r] and b is [r, n_out]. For the token embedding, [n_embd, n_vocab], a is
    [r, n_vocab] and b is [r, n_embd]. A stack of experts has a third dimension, which is the same in all three.
    Trailing dimensions of 1 are ignored: a vector is a matrix of one row.
    """
    if max(len(base), len(a), len(b)) > 3:
        return "only a matrix or a stack of matrices takes an adapter"
    (row, rows, stack), full_a, full_b = (_in_three_dimensions(shape) for shape in (base, a, b))
    rank = full_b[0]
    inner = (rank, rows, stack) if is_token_embedding else (row, rank, stack)
    outer = (rank, row, stack) if is_token_embedding else (rank, rows, stack)
    if is_token_embedding and stack != 1:
        return "a token embedding is one matrix"
    if full_a != inner or full_b != outer:
        return f"factors of {_shape(a)} and {_shape(b)} do not multiply to {_shape(base)}"
    if not 1 <= rank <= RANK_MAX:
        return f"its rank is {rank:,}; 1 to {RANK_MAX:,} is merged here"
    if row > ROW_MAX_ELEMENTS or rank * row > FACTOR_MAX_ELEMENTS:
        return f"its rank of {rank:,} over rows of {row:,} is more than is merged here"
    return None


def magnitude_misfit(base: Sequence[int], magnitude: Sequence[int], is_token_embedding: bool = False) -> str | None:
    """Return why magnitudes do not fit a tensor of shape `base`, [n_in, n_out]; None if they do: they are [n_out]."""
    _, rows, stack = _in_three_dimensions(base)
    if is_token_embedding or stack != 1:
        return "magnitudes (DoRA) are only for one matrix, not for embeddings and stacks"
    if _in_three_dimensions(magnitude) != (rows, 1, 1):
        return f"magnitudes of {_shape(magnitude)} do not fit the {rows:,} rows of {_shape(base)}"
    return None


def whole_misfit(base: Sequence[int], whole: Sequence[int]) -> str | None:
    """Return why a tensor of shape `whole` cannot take the place of one of shape `base`; None if it can."""
    if max(len(base), len(whole)) > 3 or _in_three_dimensions(base) != _in_three_dimensions(whole):
        return f"a whole tensor of {_shape(whole)} cannot take the place of {_shape(base)}"
    return f"rows of {base[0]:,} values are more than is merged here" if base[0] > ROW_MAX_ELEMENTS else None


class Adapted:
    """A tensor with adapters added, in order.

    Everything is summed in float64, adapter after adapter and rank after rank. Matrix products are not used, because
    they differ between processors. A DoRA then gives each row of the sum its magnitude m as the length, as PEFT merges
    it: m · (W + s·B·A) / ‖W + s·B·A‖ (Liu and others, "DoRA: weight-decomposed low-rank adaptation", 2024, equation 5).
    Raises BadOrgan if an adapter does not fit or is not finite, and for a row of zeros, which has no direction.
    """

    def __init__(self, base: Readable, adapters: Sequence[Adapter | Whole], is_token_embedding: bool = False) -> None:
        for adapter in adapters:
            reason = _misfit_of(base.shape, adapter, is_token_embedding)
            if reason is not None:
                raise BadOrgan(f"the adapter does not fit: {reason}")
        self.base, self.adapters, self.is_token_embedding = base, adapters, is_token_embedding
        self.shape = base.shape
        self._matrix, self._steps = -1, list[_FactorPair | Whole]()

    def values(self, start: int, count: int) -> Window:
        """Return whole rows of one matrix."""
        row, rows, _ = _in_three_dimensions(self.shape)
        matrix, first = divmod(start // row, rows)
        if matrix != self._matrix:
            self._steps = [
                step if isinstance(step, Whole) else _FactorPair.of(step, matrix, self.is_token_embedding)
                for step in self.adapters
            ]
            self._matrix = matrix
        band = self.base.values(start, count)
        pairs: list[tuple[_FactorPair, NDArray[np.float64]]] = []
        for step in self._steps:
            if isinstance(step, Whole):
                _add(band.reshape(-1, row), pairs)
                pairs, band = [], step.moved(band, start)
                continue
            pairs.append((step, step.left(first, count // row)))
            if step.magnitude is not None:
                _add(band.reshape(-1, row), pairs)
                pairs = []
                _set_lengths(band.reshape(-1, row), step.magnitude.values(first, count // row))
        _add(band.reshape(-1, row), pairs)
        if not (band.max() <= FLOAT32_MAX and band.min() >= -FLOAT32_MAX):
            raise BadOrgan("a value with an adapter added is not a number that F32 can store")
        return band

    def bands(self) -> Iterator[Window]:
        """Yield all values, in bands of whole rows."""
        row, rows, stack = _in_three_dimensions(self.shape)
        step = max(1, WINDOW_ELEMENTS // row)
        for matrix in range(stack):
            for first in range(0, rows, step):
                count = min(step, rows - first)
                yield self.values((matrix * rows + first) * row, count * row)


@dataclass(frozen=True, slots=True)
class _FactorPair:
    """An adapter's factors of one matrix.

    `right` is completely in memory (rank × row length); `left` reads the other factor for some rows.
    """

    right: Floats
    rows: Plain
    start: int
    """The offset of this matrix in `rows`, in values."""
    rank: int
    factor: float
    magnitude: Plain | None

    @classmethod
    def of(cls, adapter: Adapter, expert: int, is_token_embedding: bool) -> _FactorPair:
        rank = adapter.rank
        right_factor, rows = (adapter.b, adapter.a) if is_token_embedding else (adapter.a, adapter.b)
        size = right_factor.shape[0] * right_factor.shape[1]
        values = _read_narrow(right_factor, expert * size, size)
        right: Floats = values.reshape(-1, rank).T.copy() if is_token_embedding else values.reshape(rank, -1)
        start = expert * rows.shape[0] * rows.shape[1]
        return cls(right, rows, start, rank, adapter.factor, adapter.magnitude)

    def left(self, first: int, count: int) -> NDArray[np.float64]:
        """Return `count` rows of the other factor, multiplied by the factor of the adapter."""
        values = self.rows.values(self.start + first * self.rank, count * self.rank).reshape(count, self.rank)
        return values * self.factor


def _read_narrow(factor: Plain, start: int, count: int) -> Floats:
    """Return values of a factor, as float32 if that is exact: it needs half of the memory."""
    parts = [
        factor.values(start + begin, min(WINDOW_ELEMENTS, count - begin)) for begin in range(0, count, WINDOW_ELEMENTS)
    ]
    dtype = np.float64 if factor.dtype.name in ("F64", "I32", "I64") else np.float32
    values: Floats = np.concatenate([part.astype(dtype) for part in parts])
    return values


def _add(band: NDArray[np.float64], pairs: Sequence[tuple[_FactorPair, NDArray[np.float64]]]) -> None:
    """Add all pairs to `band` (rows × row length) in place. The pairs are summed first, then the sum is added."""
    if not pairs:
        return
    tile_rows = max(1, TILE_ELEMENTS // band.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite are refused when they are encoded
        for first in range(0, band.shape[0], tile_rows):
            tile = band[first : first + tile_rows]
            change, product = np.zeros_like(tile), np.empty_like(tile)
            for pair, left in pairs:
                for rank in range(pair.rank):
                    column = left[first : first + tile_rows, rank, np.newaxis]
                    np.multiply(column, pair.right[rank].astype(np.float64, copy=False), out=product)
                    change += product
            tile += change


def _set_lengths(rows: NDArray[np.float64], lengths: NDArray[np.float64]) -> None:
    """Multiply each row of a matrix so that its Euclidean norm is the absolute value of its length."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(row_totals(rows * rows))
        if not norms.all():
            raise BadOrgan(
                "a row with an adapter added is zero: it has no direction to which a magnitude belongs (DoRA)"
            )
        rows *= lengths.reshape(-1, 1) / norms


def _misfit_of(base: Sequence[int], adapter: Adapter | Whole, is_token_embedding: bool) -> str | None:
    if isinstance(adapter, Whole):
        return whole_misfit(base, adapter.plain.shape)
    reason = misfit(base, adapter.a.shape, adapter.b.shape, is_token_embedding)
    if reason is None and adapter.magnitude is not None:
        reason = magnitude_misfit(base, adapter.magnitude.shape, is_token_embedding)
    return reason


def _in_three_dimensions(shape: Sequence[int]) -> tuple[int, int, int]:
    first, second, third = (*shape, 1, 1, 1)[:3]
    return first, second, third


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that is blended with another one."""

    plain: Plain
    adapter: Adapter | Whole | None = None
    """It is added first."""


@dataclass(frozen=True, slots=True)
class Blending:
    """The blend of the source of a computation with `donors`."""

    method: str
    donors: tuple[Operand, ...]
    settings: Settings
    key: str = ""
    """Of random masks."""


@dataclass(frozen=True, slots=True)
class Computation:
    """The computation of one organ."""

    source: Plain
    dtype: DType
    """The dtype of the result: `encoded_dtype` of the source's dtype."""
    adapters: tuple[Adapter | Whole, ...] = ()
    """They are added in this order, all in float64, before the result is encoded."""
    is_token_embedding: bool = False
    """Whether the source is the token embedding, for which the shapes of adapters differ: see `misfit`."""
    purification: Purification | None = None
    blend: Blending | None = None
    """It is computed first, from the source."""
    kept_experts: tuple[int, ...] = ()
    """The items of the last dimension that the result has, in rising order; empty for all."""
    importances: NDArray[np.float32] | None = None
    """How much the errors of rounding count, by column, of a stack for each matrix in turn; None for all the same."""

    @property
    def size_bytes(self) -> int:
        """The size of the result."""
        whole = self.dtype.size_bytes(self.source.elements)
        return whole // self.source.shape[-1] * len(self.kept_experts) if self.kept_experts else whole


def computed(computation: Computation) -> Iterator[bytes]:
    """Yield the bytes of the computed organ in order, in pieces of whole blocks and up to 2^20 values.

    A second call yields the same bytes, on every x86 processor. The source is read once, in order; for purification
    twice. The peak of memory is about 100 MiB; adapters need the larger of `a` and `b` in float32 in addition (of a
    stack, one matrix). Raises BadOrgan for values that are not finite, adapters that do not fit, and results that the
    dtype cannot hold; raises UnsupportedDType. Both can happen until the last byte: use no byte before all are read.
    """
    pieces: Iterator[bytes]
    if computation.importances is not None:
        pieces = _weighed(computation, computation.importances)
    elif computation.purification is None:
        pieces = (written(window, computation.dtype) for window in changed_values(computation))
    else:
        elements, purification = computation.source.elements, computation.purification
        pieces = purified_and_encoded(lambda: changed_values(computation), elements, purification, computation.dtype)
    if computation.kept_experts:
        size_bytes = computation.dtype.size_bytes(computation.source.elements) // computation.source.shape[-1]
        pieces = _cut(pieces, size_bytes, computation.kept_experts)
    yield from pieces


def _weighed(computation: Computation, importances: NDArray[np.float32]) -> Iterator[bytes]:
    """Yield the bytes of the result, band by band of whole rows of one matrix. What is purified passes through F32."""
    source, dtype = computation.source, computation.dtype
    row, rows, stack = _in_three_dimensions(source.shape)
    windows = changed_values(computation)
    if computation.purification is not None:
        plain = dtype_by_name("F32")
        pieces = computed(replace(computation, dtype=plain, importances=None, kept_experts=()))
        windows = (decode(piece, plain).astype(np.float64) for piece in pieces)
    values, step = Stream(source.shape, windows), max(1, WINDOW_ELEMENTS // row)
    for matrix in range(stack):
        weights = importances[matrix * row : (matrix + 1) * row]
        for first in range(0, rows, step):
            count = min(step, rows - first) * row
            yield encoded(values.values((matrix * rows + first) * row, count), dtype, weights)[0]


COPIED_BYTES = 4 * 1024 * 1024
"""Bytes of one read of what is copied."""


def experts_copied(computation: Computation, purified: Collection[int] = ()) -> Iterator[bytes]:
    """Yield the kept experts of the source in order: those of `purified` purified, the bytes of the others as they are.

    An expert is an item of the last dimension: of a stack a matrix, of a router a row, of a bias a value. Nothing is
    decoded but the experts of `purified`, which only a stack has; dropped experts are not read. Raises as `computed`.
    """
    source = computation.source
    count, shape = source.shape[-1], source.shape[:-1]
    size_bytes = source.size_bytes // count
    for number in computation.kept_experts or range(count):
        begin = number * size_bytes
        if number in purified:
            expert = source.part(number * math.prod(shape), shape)
            yield from computed(replace(computation, source=expert, kept_experts=()))
        else:
            for offset in range(begin, begin + size_bytes, COPIED_BYTES):
                yield bytes(source.read(offset, min(COPIED_BYTES, begin + size_bytes - offset)))


def _cut(pieces: Iterator[bytes], size_bytes: int, kept: Sequence[int]) -> Iterator[bytes]:
    """Yield the bytes of the items `kept`, in rising order, of items of `size_bytes` that `pieces` have one by one.

    All of `pieces` is read, because a refusal can come with the last one.
    """
    items, begin = set(kept), 0
    for piece in pieces:
        position, end = begin, begin + len(piece)
        while position < end:
            number = position // size_bytes
            upto = min(end, (number + 1) * size_bytes)
            if number in items:
                yield piece[position - begin : upto - begin]
            position = upto
        begin = end


def changed_values(computation: Computation) -> Iterator[Window]:
    """Yield the values of the source, blended, with its adapters added: before they are purified and encoded."""
    source: Readable = computation.source
    if computation.blend is not None:
        source = Stream(source.shape, _blended(computation))
    if computation.adapters:
        return in_windows(Adapted(source, computation.adapters, computation.is_token_embedding).bands())
    return computation.source.windows() if computation.blend is None else in_windows(_blended(computation))


def _blended(computation: Computation) -> Iterator[Window]:
    blend = computation.blend
    assert blend is not None
    donors = [
        operand.plain
        if operand.adapter is None
        else Adapted(operand.plain, [operand.adapter], computation.is_token_embedding)
        for operand in blend.donors
    ]
    return blended(blend.method, computation.source, donors, blend.settings, blend.key)
