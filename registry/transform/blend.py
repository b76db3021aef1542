"""Blends: one tensor from the same tensor of several models, by the methods and with the parameters of mergekit.

A method is a function of `Operands` and of its parameters; it reads them as often as it must and returns the function
that computes a band. `METHODS` has them all: a new one is a function and a line there. Every matrix of a stack is
blended by itself. Everything is computed in float64, in bands of whole rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations
from operator import add
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from organs.registry.errors import BadOrgan
from organs.registry.transform.reproducible import (
    EVERYTHING,
    Values,
    angle_of,
    cosine,
    cuts,
    exponential,
    logarithm,
    random_words,
    row_totals,
    sine,
    total,
)
from organs.registry.transform.values import Readable, Window

BAND_ELEMENTS = 1 << 18
"""Values of each operand in a band, or one row. A change of it changes random masks and the last bits of sums."""
TINY = 1e-8
"""A divisor below it is 1, as in mergekit."""
SAME_ANGLE = 1e-6
"""Directions with a smaller angle are the same; with this angle less than π, they are opposite."""


@dataclass(frozen=True, slots=True)
class Band:
    """Whole rows of a matrix: of the base, and of each donor."""

    start: int
    """The number of the first value in the matrix."""
    base: Values
    """Empty if the method has no base."""
    donors: tuple[Values, ...]


Number: TypeAlias = float | bool
Settings: TypeAlias = Mapping[str, Number | Sequence[float]]
"""All parameters of a method; those that each donor has are sequences."""
Blend: TypeAlias = Callable[[Band], Values]
Mask: TypeAlias = Callable[[int, Values], NDArray[np.bool_]]
"""Which values of a change a donor keeps; called with the start of the band and the change."""


@dataclass(frozen=True, slots=True)
class Operands:
    """A matrix of the base and of each donor, all of one shape."""

    base: Readable | None
    donors: tuple[Readable, ...]
    matrix: int = 0
    """The number of the matrix in a stack."""
    key: str = ""
    """The seed of the random masks of this tensor, with its name."""

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows, and their length."""
        row, rows = (*self.donors[0].shape, 1)[:2]
        return rows, row

    @property
    def size(self) -> int:
        rows, row = self.shape
        return rows * row

    def bands(self, numbers: Sequence[int] | None = None) -> Iterator[Band]:
        """Yield the matrix from the first row to the last, with the donors of these `numbers`, or with all."""
        rows, row = self.shape
        donors = self.donors if numbers is None else [self.donors[number] for number in numbers]
        step = max(1, BAND_ELEMENTS // row)
        for first in range(0, rows, step):
            count, start = min(step, rows - first), self.matrix * self.size + first * row
            base, *others = (
                np.empty((0, 0)) if plain is None else plain.values(start, count * row).reshape(count, row)
                for plain in (self.base, *donors)
            )
            yield Band(first * row, base, tuple(others))

    def changes(self, number: int) -> Iterator[Values]:
        """Yield the differences of a donor from the base, band by band."""
        for band in self.bands([number]):
            yield band.donors[0] - band.base

    def sizes(self, number: int) -> Iterator[Values]:
        """Yield the absolute differences of a donor from the base."""
        for change in self.changes(number):
            yield np.abs(change)

    def vectors(self, band: Band, is_of_changes: bool) -> tuple[Values, ...]:
        """Return the donors' values in `band`, or their differences from the base."""
        return tuple(donor - band.base for donor in band.donors) if is_of_changes else band.donors

    def gram(self, vectors: Callable[[Band], Sequence[Values]]) -> list[list[float]]:
        """Return the inner products of the matrices that `vectors` returns band by band."""
        sums: dict[tuple[int, int], float] = {}
        count = 0
        for band in self.bands():
            parts = vectors(band)
            count = len(parts)
            for first in range(count):
                for second in range(first, count):
                    product = total((parts[first] * parts[second]).reshape(-1))
                    sums[first, second] = sums.get((first, second), 0.0) + product
        return [[sums[min(i, j), max(i, j)] for j in range(count)] for i in range(count)]


def _added(arrays: Iterable[Values]) -> Values:
    """Return the sum of arrays of one shape, added in their order."""
    return reduce(add, arrays)


def _linear(operands: Operands, *, weight: Sequence[float], normalize: bool) -> Blend:
    """The weighted mean, or without `normalize` the weighted sum.

    M. Wortsman and others, "Model soups" (2022).
    """
    divisor = math.fsum(weight) if normalize else 1.0
    if abs(divisor) < TINY:
        raise BadOrgan("the weights of a linear blend have the sum 0: use normalize: false")
    return lambda band: _added(donor * item for donor, item in zip(band.donors, weight, strict=True)) / divisor


SLERP_LINEAR = 0.9995
"""From this cosine on, slerp is a straight line."""


def _slerp(operands: Operands, *, t: float) -> Blend:
    """The point at `t` of the arc from the base to the donor. K. Shoemake, "Animating rotation" (1985)."""
    products = operands.gram(lambda band: (band.base, *band.donors))
    first, second = _arc(products, t, SLERP_LINEAR)
    return lambda band: band.base * first + band.donors[0] * second


def _arc(products: Sequence[Sequence[float]], t: float, linear: float = 2.0) -> tuple[float, float]:
    """Return the factors of two vectors, of which the inner products are given, at `t` of the arc between them."""
    norms = math.sqrt(products[0][0]), math.sqrt(products[1][1])
    angle = angle_of(*norms, products[0][1])
    if not all(norms) or abs(products[0][1]) > linear * norms[0] * norms[1] or abs(sine(angle)) < TINY:
        return 1.0 - t, t
    return sine((1.0 - t) * angle) / sine(angle), sine(t * angle) / sine(angle)


def _nuslerp(operands: Operands, *, weight: Sequence[float], nuslerp_flatten: bool, nuslerp_row_wise: bool) -> Blend:
    """Slerp of two donors, of their changes if there is a base: of the whole matrix, of its rows, or of its columns.

    The names of the parameters are mergekit's: without `nuslerp_flatten`, `nuslerp_row_wise` means columns.
    """
    divisor = math.fsum(weight)
    t = weight[1] / divisor if abs(divisor) >= TINY else 0.5
    of_changes = operands.base is not None

    def arcs(first: Values, second: Values, both: Values) -> tuple[Values, Values]:
        factors = [
            _arc([[one, product], [product, other]], t)
            for one, other, product in zip(*(part.reshape(-1).tolist() for part in (first, second, both)), strict=True)
        ]
        return tuple(np.array(part).reshape(first.shape) for part in zip(*factors, strict=True))  # type: ignore[return-value]

    def products(band: Band) -> tuple[Values, ...]:
        one, other = operands.vectors(band, of_changes)
        return one * one, other * other, one * other

    factors: tuple[Values, Values] | tuple[float, float] | None = None
    if nuslerp_flatten or operands.shape[0] == 1:
        factors = _arc(operands.gram(lambda band: operands.vectors(band, of_changes)), t)
    elif nuslerp_row_wise:
        sums = [np.zeros((1, operands.shape[1])) for _ in range(3)]
        for band in operands.bands():
            for column_sum, product in zip(sums, products(band), strict=True):
                for row in product:
                    column_sum += row
        factors = arcs(*sums)

    def blend(band: Band) -> Values:
        one, other = operands.vectors(band, of_changes)
        first, second = factors or arcs(*(row_totals(product) for product in products(band)))
        mixed = one * first + other * second
        return band.base + mixed if of_changes else mixed

    return blend


def _karcher(operands: Operands, *, max_iter: int, tol: float) -> Blend:
    """The mean of the donors' directions on the sphere, times the mean of their norms.

    H. Karcher, "Riemannian center of mass" (1977). All steps are in the span of the donors, so their inner products
    are enough.
    """
    count = len(operands.donors)
    products = operands.gram(lambda band: band.donors)
    norms = [math.sqrt(products[number][number]) for number in range(count)]
    if not all(norms):
        return _linear(operands, weight=[1.0] * count, normalize=True)
    cosines = [[products[i][j] / norms[i] / norms[j] for j in range(count)] for i in range(count)]

    def inner(first: Sequence[float], second: Sequence[float]) -> float:
        return math.fsum(a * b * cosines[i][j] for i, a in enumerate(first) for j, b in enumerate(second))

    def unit(point: Sequence[float]) -> list[float]:
        length = math.sqrt(max(0.0, inner(point, point)))
        if length < TINY:
            raise BadOrgan("the donors have no mean direction: they cancel each other")
        return [item / length for item in point]

    corners = [[float(i == j) for j in range(count)] for i in range(count)]
    mean = unit([1.0] * count)
    for _ in range(max_iter):
        step = [0.0] * count
        for number, corner in enumerate(corners):
            along = math.fsum(item * row[number] for item, row in zip(mean, cosines, strict=True))
            angle = angle_of(1.0, 1.0, along)
            if math.pi - angle < SAME_ANGLE:
                raise BadOrgan("the donors have no mean direction: one is opposite to the mean of all")
            if angle > SAME_ANGLE:
                stretch = angle / sine(angle) / count
                step = [item + stretch * (own - along * at) for item, own, at in zip(step, corner, mean, strict=True)]
        length = math.sqrt(max(0.0, inner(step, step)))
        if length < tol or not length:
            break
        forward, aside = cosine(length), sine(length)
        mean = unit([at * forward + item * aside / length for at, item in zip(mean, step, strict=True)])
    size = math.fsum(norms) / count
    weights = [item * size / norm for item, norm in zip(mean, norms, strict=True)]
    return _linear(operands, weight=weights, normalize=False)


def _model_stock(operands: Operands, *, filter_wise: bool) -> Blend:
    """The mean of the donors, moved to the base the more, the less their changes agree; for each row if `filter_wise`.

    D.-H. Jang and others, "Model Stock" (2024): t = k·cos θ / (1 + (k − 1)·cos θ) for the mean cosine of k changes.
    """
    count = len(operands.donors)

    def share(products: Sequence[Sequence[Any]]) -> Any:
        cosines = [
            products[i][j] / np.sqrt(np.maximum(products[i][i] * products[j][j], 1e-300))
            for i, j in combinations(range(count), 2)
        ]
        mean = sum(cosines) / len(cosines)
        return count * mean / (1.0 + (count - 1) * mean)

    whole = None if filter_wise else share(operands.gram(lambda band: operands.vectors(band, True)))

    def blend(band: Band) -> Values:
        changes = operands.vectors(band, True)
        t = whole
        if t is None:
            t = share([[row_totals(first * second) for second in changes] for first in changes])
        moved: Values = _added(changes) * (t / count)
        return band.base + moved

    return blend


Keep: TypeAlias = Callable[[Operands, int, Mapping[str, float]], Mask | None]
"""Chooses the values of a donor's change that stay; None for all."""


def _largest(operands: Operands, number: int, options: Mapping[str, float]) -> Mask | None:
    """The largest changes: P. Yadav and others, "TIES-Merging" (2023)."""
    if options["density"] >= 1.0:
        return None
    count = max(1, int(options["density"] * operands.size))
    (cut,) = cuts(lambda: operands.sizes(number), operands.size, [count])
    return lambda start, change: cut.holds(start, np.abs(change))


def _without_outliers(operands: Operands, number: int, options: Mapping[str, float]) -> Mask | None:
    """Neither the largest changes nor the smallest: M. Davari and E. Belilovsky, "Model Breadcrumbs" (2023)."""
    size = operands.size
    kept, above = int(options["density"] * size), int(options["gamma"] * size)
    above = max(0, min(above, size - kept))
    upper, lower = cuts(lambda: operands.sizes(number), size, [above, above + kept])

    def mask(start: int, change: Values) -> NDArray[np.bool_]:
        sizes = np.abs(change)
        return lower.holds(start, sizes) & ~upper.holds(start, sizes)

    return mask


def _at_random(operands: Operands, number: int, options: Mapping[str, float]) -> Mask | None:
    """Each change with the probability `density`: L. Yu and others, "Language models are super Mario" (2023)."""
    if options["density"] >= 1.0:
        return None
    return lambda start, change: drawn(operands, number, start, np.full(change.shape, options["density"]))


def _at_random_by_rank(operands: Operands, number: int, options: Mapping[str, float]) -> Mask | None:
    """As `_at_random`, with a probability that rises with the rank in the row: P. Deep and others, "DELLA" (2024)."""
    density, epsilon = options["density"], options["epsilon"]
    if density >= 1.0:
        return None
    if not 0.0 < density - epsilon <= density + epsilon < 1.0:
        raise BadOrgan(f"the density {density:g} ± the epsilon {epsilon:g} must be between 0 and 1")

    def mask(start: int, change: Values) -> NDArray[np.bool_]:
        order = np.argsort(np.abs(change), axis=1, kind="stable")
        ranks = np.empty(change.shape)
        np.put_along_axis(ranks, order, np.broadcast_to(np.arange(float(change.shape[1])), change.shape), axis=1)
        chances = density - epsilon + 2.0 * epsilon * ranks / max(1, change.shape[1] - 1)
        return drawn(operands, number, start, chances)

    return mask


def drawn(operands: Operands, number: int, start: int, chances: Values) -> NDArray[np.bool_]:
    """Return a random choice with these `chances`; it depends on the key of the operands and on the place alone."""
    words = random_words(f"{operands.key}/{operands.matrix}/{number}/{start}", chances.size)
    return words.reshape(chances.shape) < chances * float(1 << 53)


def _of_changes(keep: Keep | None, *, elect: bool) -> Callable[..., Blend]:
    """Return a method that adds the donors' changes to the base: G. Ilharco and others, "Editing models" (2022).

    `keep` chooses what stays of each change. With `elect`, only changes with the sign of the weighted sum are added
    (TIES).
    """

    def method(
        operands: Operands,
        *,
        weight: Sequence[float],
        normalize: bool,
        rescale: bool,
        scale: float,
        **options: Sequence[float],
    ) -> Blend:
        masks = [
            keep(operands, number, {name: values[number] for name, values in options.items()}) if keep else None
            for number in range(len(weight))
        ]
        factors = [
            item * (_restoring(operands, number, mask) if rescale and mask else 1.0)
            for number, (item, mask) in enumerate(zip(weight, masks, strict=True))
        ]
        everything = math.fsum(weight)

        def blend(band: Band) -> Values:
            changes = []
            for donor, factor, mask in zip(band.donors, factors, masks, strict=True):
                change = donor - band.base
                if mask is not None:
                    change = np.where(mask(band.start, change), change, 0.0)
                change *= factor
                changes.append(change)
            mixed = _added(changes)
            divisor: Any = everything
            if elect:
                sign = np.where(mixed >= 0.0, 1.0, -1.0)
                agreeing = [np.sign(change) == sign for change in changes]
                mixed = _added(np.where(agrees, change, 0.0) for agrees, change in zip(agreeing, changes, strict=True))
                divisor = _added(agrees * item for agrees, item in zip(agreeing, weight, strict=True))
            if normalize:
                mixed = mixed / np.where(np.abs(divisor) < TINY, 1.0, divisor)
            mixed *= scale
            mixed += band.base
            return mixed

        return blend

    return method


def _restoring(operands: Operands, number: int, mask: Mask) -> float:
    """Return the factor that gives what is kept of a change the sum of absolute values of the whole change."""
    whole = kept = 0.0
    for band in operands.bands([number]):
        change = band.donors[0] - band.base
        sizes = np.abs(change)
        whole += total(sizes.reshape(-1))
        kept += total(np.where(mask(band.start, change), sizes, 0.0).reshape(-1))
    return whole / kept if kept else 1.0


def _sce(operands: Operands, *, select_topk: float) -> Blend:
    """Where the donors differ most: their changes, weighted by their energy, without those of the minority's sign.

    F. Wan and others, "FuseChat" (2024): select, calculate, erase.
    """
    count = len(operands.donors)

    def variance(changes: Sequence[Values]) -> Values:
        mean = _added(changes) / count
        return _added((change - mean) * (change - mean) for change in changes) / count

    def variances() -> Iterator[Values]:
        for band in operands.bands():
            yield variance(operands.vectors(band, True))

    cut = EVERYTHING
    if select_topk < 1.0:
        (cut,) = cuts(variances, operands.size, [int(select_topk * operands.size)])

    def kept(band: Band) -> list[Values]:
        changes = operands.vectors(band, True)
        if cut == EVERYTHING:
            return list(changes)
        held = cut.holds(band.start, variance(changes))
        return [np.where(held, change, 0.0) for change in changes]

    energies = [0.0] * count
    for band in operands.bands():
        for number, change in enumerate(kept(band)):
            energies[number] += total((change * change).reshape(-1))
    whole = math.fsum(energies)
    weights = [energy / whole if whole else 1.0 / count for energy in energies]

    def blend(band: Band) -> Values:
        changes = kept(band)
        sign = np.where(_added(changes) >= 0.0, 1.0, -1.0)
        agreeing = [np.sign(change) == sign for change in changes]
        triples = list(zip(agreeing, changes, weights, strict=True))
        divisor = _added(agrees * weight for agrees, _, weight in triples)
        mixed = _added(np.where(agrees, change * weight, 0.0) for agrees, change, weight in triples)
        return band.base + mixed / np.where(divisor < TINY, 1.0, divisor)

    return blend


FUSED_FROM = 1.5
"""Changes are taken from the median importance and this many interquartile ranges on."""


def _arcee_fusion(operands: Operands) -> Blend:
    """The changes that matter most: their size times the divergence of the row, as a distribution, from the base's."""

    def importance(band: Band) -> Values:
        return np.abs(band.donors[0] - band.base) * _divergences(band.donors[0], band.base)

    def all_of_it() -> Iterator[Values]:
        for band in operands.bands():
            yield importance(band)

    size = operands.size
    ranks = [size - int(share * (size - 1)) for share in (0.25, 0.5, 0.75)]
    low, median, high = (cut.value for cut in cuts(all_of_it, size, ranks))
    least = median + FUSED_FROM * (high - low)
    return lambda band: np.where(importance(band) >= least, band.donors[0], band.base)


def _divergences(first: Values, second: Values) -> Values:
    """Return the Kullback-Leibler divergence of the softmax of each row of `first` from that of `second`."""
    logs = []
    for rows in (first, second):
        shifted = rows - rows.max(axis=1, keepdims=True)
        logs.append(shifted - logarithm(row_totals(exponential(shifted))))
    return row_totals(exponential(np.minimum(logs[0], 0.0)) * (logs[0] - logs[1]))


@dataclass(frozen=True, slots=True)
class BlendParameter:
    """A parameter of blends, with its limits."""

    low: float
    high: float
    is_each: bool = False
    """Whether each donor has a value of its own."""
    kind: type = float


PARAMETERS: Mapping[str, BlendParameter] = {
    "weight": BlendParameter(-100.0, 100.0, is_each=True),
    "density": BlendParameter(0.0, 1.0, is_each=True),
    "gamma": BlendParameter(0.0, 1.0, is_each=True),
    "epsilon": BlendParameter(0.0, 0.5, is_each=True),
    "t": BlendParameter(0.0, 1.0),
    "lambda": BlendParameter(-100.0, 100.0),
    "normalize": BlendParameter(0, 1, kind=bool),
    "rescale": BlendParameter(0, 1, kind=bool),
    "select_topk": BlendParameter(0.0, 1.0),
    "filter_wise": BlendParameter(0, 1, kind=bool),
    "nuslerp_flatten": BlendParameter(0, 1, kind=bool),
    "nuslerp_row_wise": BlendParameter(0, 1, kind=bool),
    "max_iter": BlendParameter(1, 1000, kind=int),
    "tol": BlendParameter(0.0, 1.0),
}


@dataclass(frozen=True, slots=True)
class Method:
    """A method of blending."""

    function: Callable[..., Blend]
    needs_base: bool | None
    """None: it is used if there is one."""
    donors: tuple[int, int | None]
    """The least and the largest number of donors, without the base."""
    defaults: Mapping[str, float | None] = field(default_factory=dict)
    """The parameters, and their default values; None for one that must be given."""
    is_random: bool = False


def _changes(
    keep: Keep | None, *, elect: bool = False, normalize: bool = False, rescale: bool = False, **own: float
) -> Method:
    defaults = {"weight": None, "normalize": normalize, "rescale": rescale, "lambda": 1.0, **own}
    is_random = keep in (_at_random, _at_random_by_rank)
    return Method(_of_changes(keep, elect=elect), True, (1, None), defaults, is_random)


METHODS: Mapping[str, Method] = {
    "linear": Method(_linear, False, (1, None), {"weight": None, "normalize": True}),
    "slerp": Method(_slerp, True, (1, 1), {"t": None}),
    "nuslerp": Method(_nuslerp, None, (2, 2), {"weight": None, "nuslerp_flatten": True, "nuslerp_row_wise": False}),
    "task_arithmetic": _changes(None),
    "ties": _changes(_largest, elect=True, normalize=True, density=1.0),
    "dare_linear": _changes(_at_random, rescale=True, density=1.0),
    "dare_ties": _changes(_at_random, elect=True, rescale=True, density=1.0),
    "della": _changes(_at_random_by_rank, elect=True, normalize=True, rescale=True, density=1.0, epsilon=0.15),
    "della_linear": _changes(_at_random_by_rank, rescale=True, density=1.0, epsilon=0.15),
    "breadcrumbs": _changes(_without_outliers, density=1.0, gamma=0.01),
    "breadcrumbs_ties": _changes(_without_outliers, elect=True, density=1.0, gamma=0.01),
    "model_stock": Method(_model_stock, True, (2, None), {"filter_wise": False}),
    "sce": Method(_sce, True, (1, None), {"select_topk": 1.0}),
    "karcher": Method(_karcher, False, (1, None), {"max_iter": 10, "tol": 1e-5}),
    "arcee_fusion": Method(_arcee_fusion, True, (1, 1)),
}


def blended(
    method: str, base: Readable, donors: Sequence[Readable], settings: Settings, key: str = ""
) -> Iterator[Window]:
    """Yield the values of a blend in order, in bands of whole rows.

    `settings` has all parameters of the method; those that each donor has are sequences. `key` is that of random masks.
    Raises BadOrgan for parameters that give no blend.
    """
    one = METHODS[method]
    arguments = {"scale" if name == "lambda" else name: value for name, value in settings.items()}
    try:
        for matrix in range(math.prod(donors[0].shape[2:])):
            operands = Operands(None if one.needs_base is False else base, tuple(donors), matrix, key)
            blend = one.function(operands, **arguments)
            for band in operands.bands():
                yield blend(band).reshape(-1)
    except ArithmeticError as error:
        raise BadOrgan(f"{method} has no result for these tensors and parameters ({error})") from error
