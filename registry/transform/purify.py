"""Purification: removes weak frequencies, or details without a parent, and restores mean and standard deviation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from organs.registry.errors import BadOrgan
from organs.registry.gguf.types import DType
from organs.registry.transform.reproducible import total
from organs.registry.transform.values import (
    WINDOW_ELEMENTS,
    Window,
    encoded,
    written,
)


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and sum of squared deviations of values. Without values, all are 0."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """The sum of the squared deviations from the mean."""

    @property
    def standard_deviation(self) -> float:
        """The standard deviation of these values as a population: the variance is the squares divided by the count."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    def with_more(self, more: Moments) -> Moments:
        """Return the moments of the values of both.

        T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample
        variances" (1979).
        """
        count = self.count + more.count
        if count == 0:
            return self
        distance = more.mean - self.mean
        share = more.count / count
        return Moments(
            count, self.mean + distance * share, self.squares + more.squares + distance * distance * self.count * share
        )


def moments(values: NDArray[np.float64]) -> Moments:
    """Return the moments of a flat array of finite values within 2^±500."""
    if values.size == 0:
        return Moments()
    mean = total(values) / values.size
    deviations = values - mean
    deviations *= deviations
    return Moments(values.size, mean, total(deviations))


KEEP_DEFAULT = 0.9
SCALES_MAX = 8
"""Dyadic scales of detail. Coarser scales would hold only 0.4% of the coefficients of a window of 2^20."""
COHERENT = 0.5
"""A detail with at least this coherence is not attenuated. A third of independent normal values is below it."""
PURIFIED_MIN_VALUES = 64
"""A smaller organ is not changed: it has too few values for a spectrum (and for θ)."""


class PurifyMethod(StrEnum):
    """The method of purifying an organ."""

    SPECTRAL = "spectral"
    FRACTAL = "fractal"


@dataclass(frozen=True, slots=True)
class Purification:
    """A method and the share that it keeps."""

    method: PurifyMethod
    keep: float = KEEP_DEFAULT
    """The share of the energy that `spectral` keeps, above 0 and up to 1. `fractal` does not use it."""


def cleaned(window: Window, purification: Purification) -> Window:
    """Return a purified copy of a window; its mean is subtracted first and added again.

    If all values are equal, the copy is not changed.
    """
    mean = total(window) / window.size
    centred = window - mean
    if not centred.any():
        return window.copy()
    if purification.method is PurifyMethod.SPECTRAL:
        clean = _keep_strongest(_mirror(centred), purification.keep)
    else:
        clean = _attenuate_incoherent(_mirror(centred))
    clean = clean[: window.size]
    clean += mean
    return clean


def is_unchanged(organ: Moments) -> bool:
    """Whether an organ with these moments is too small to be purified, or constant."""
    return organ.count < PURIFIED_MIN_VALUES or organ.standard_deviation == 0.0


def restored(window: Window, before: Moments, after: Moments) -> Window:
    """Return a purified window, shifted and scaled so that the organ has the moments `before` instead of `after`.

    Raises BadOrgan if all purified values are equal, because the deviation cannot be restored then.
    """
    if after.standard_deviation == 0.0:
        raise BadOrgan("purification would make all values of this tensor equal")
    moved = window - after.mean
    moved *= before.standard_deviation / after.standard_deviation
    moved += before.mean
    return moved


def _mirror(values: Window) -> Window:
    """Return `values`, followed by their mirror image up to a power of two.

    Both methods need a power of two: the wavelets require it, and only for this size is numpy's Fourier transform equal
    to the last bit on processors with and without fused multiplication. Zeros instead would reduce the mean energy.
    """
    missing = (1 << (values.size - 1).bit_length()) - values.size
    return np.concatenate([values, values[::-1][:missing]])


def _keep_strongest(values: Window, keep: float) -> Window:
    """Return `values` with only the strongest Fourier components, which have the share `keep` of the energy.

    The number of components is the least possible; but components of equal energy are kept or removed together. By
    Parseval's theorem the energy is the sum of |X_k|² over all components, divided by their number. The number of
    `values` must be a power of two.
    """
    spectrum = np.fft.rfft(values)
    # Some processors fuse the multiplications of a complex product and others do not, so it is written out. Every
    # component but the first and the last counts twice: for its positive and its negative frequency.
    energy = spectrum.real * spectrum.real + spectrum.imag * spectrum.imag
    energy[1:-1] *= 2.0
    ascending = np.sort(energy)
    sums = np.cumsum(ascending[::-1])  # in the same order on every processor
    last_kept = min(int(np.searchsorted(sums, keep * sums[-1])), sums.size - 1)
    spectrum[energy < ascending[ascending.size - 1 - last_kept]] = 0.0
    clean: Window = np.fft.irfft(spectrum, values.size)
    return clean


def _attenuate_incoherent(values: Window) -> Window:
    """Return `values` with the Haar details attenuated whose energy differs much from the energy of their parent.

    The number of `values` must be a power of two.
    """
    import pywt as wavelets  # on first use: it takes 80 ms and is rarely needed

    scales = min(SCALES_MAX, values.size.bit_length() - 1)
    coarse, *details = wavelets.wavedec(values, "haar", mode="periodization", level=scales)
    attenuated = [details[0], *(detail * _gain(detail, parent) for parent, detail in pairwise(details))]
    clean: Window = wavelets.waverec([coarse, *attenuated], "haar", mode="periodization")
    return clean


def _gain(detail: Window, parent: Window) -> Window:
    """Return the factor of each detail: 1 for a coherence of `COHERENT` or more, below it proportional to coherence.

    The parent of a detail covers the same values at the next coarser scale. The energy of each is divided by the mean
    energy of its scale. Their coherence is the geometric mean of the two energies divided by the arithmetic mean: 1 if
    both are equal, 0 if one of them is 0. Where values have structure, energy persists across scales; J. M. Shapiro's
    zerotrees use this too ("Embedded image coding using zerotrees of wavelet coefficients", 1993).
    """
    own, coarser = _relative(detail), np.repeat(_relative(parent), 2)
    arithmetic = own * own + coarser * coarser
    doubled = 2.0 * own * coarser
    coherence = np.divide(doubled, arithmetic, out=np.ones_like(own), where=arithmetic > 0.0)
    return np.minimum(coherence / COHERENT, 1.0)


def _relative(details: Window) -> Window:
    """Return the amplitudes of one scale divided by the root of their mean energy."""
    energy = total(details * details) / details.size
    return np.abs(details) / np.sqrt(energy) if energy > 0.0 else np.zeros_like(details)


TOLERANCE = 1e-3
"""The allowed change of mean and standard deviation, as a share of the standard deviation."""
WINDOW_TOLERANCE = TOLERANCE / 4
"""The same for one window. Variances are sums of squares, so the error of the organ may be twice as large."""
CORRECTIONS_MAX = 8
"""Encodings of a window, each corrected by the error of the previous one. Large windows need one or two."""
STRETCHES = (0.5, 2.0)
"""The limits of a correction. If all values round to one level, it would grow without end."""
SMALL_ELEMENTS, SCATTERED_MAX = 1 << 13, 100
"""In a window of at most SMALL_ELEMENTS values, corrections change the mean in large steps.

So up to SCATTERED_MAX more trials are made there, at growing distance from the best correction.
"""
STEPS = (0.7548776662466927, 0.5698402909980532)
"""The first two powers of the inverse of the plastic number: fractions of their multiples fill a square evenly."""
HELD = frozenset({"F32", "F16", "BF16", "Q8_0"})
"""Tensor types for which TOLERANCE is guaranteed."""


def purified_and_encoded(
    windows: Callable[[], Iterator[Window]], elements: int, purification: Purification, dtype: DType
) -> Iterator[bytes]:
    """Yield the bytes of the purified organ in `dtype`, window by window.

    Each call of `windows` must yield all values of the organ. In F32, F16, BF16 and Q8_0, the decoded result has the
    mean and standard deviation of the organ to 1e-3 of the standard deviation; otherwise BadOrgan is raised, at the
    latest after the last window. This happens if few values are on few levels of the type, for example gains of
    1.00 ± 0.01 in BF16. In Q4_0 to Q5_1 the best trial is used, without an error. An organ of fewer than 64 values, or
    of equal values, is only encoded. Also raises BadOrgan for values that are not finite or that `dtype` cannot hold.
    """
    before = after = Moments()
    for window in windows():
        before = before.with_more(moments(window))
        after = after.with_more(moments(cleaned(window, purification)))
    assert before.count == elements
    encoded_moments = Moments()
    unchanged = is_unchanged(before)
    for window in windows():
        if unchanged:
            yield written(window, dtype)
            continue
        wanted = restored(cleaned(window, purification), before, after)
        # A short last window has a larger tolerance, because it has less weight.
        weight = min(elements, WINDOW_ELEMENTS) / window.size
        trial = _best_trial(wanted, dtype, WINDOW_TOLERANCE * weight * before.standard_deviation)
        encoded_moments = encoded_moments.with_more(trial.moments)
        yield trial.data
    if not unchanged and dtype.name in HELD and _error(encoded_moments, before) > TOLERANCE * before.standard_deviation:
        raise BadOrgan(f"{dtype.name} is too coarse to hold this tensor's mean and standard deviation")


@dataclass(frozen=True, slots=True)
class _EncodedWindow:
    """An encoded window, its decoded values and their moments."""

    data: bytes
    decoded: Window
    moments: Moments
    error: float
    shift: float = 0.0
    stretch: float = 1.0


@dataclass(frozen=True, slots=True)
class _Target:
    """The window that decoding should give: deviations from its mean, and its moments."""

    centred: Window
    moments: Moments
    dtype: DType

    def trial(self, shift: float, stretch: float) -> _EncodedWindow:
        """Return the window shifted, stretched and encoded."""
        data, decoded = encoded(self.centred * stretch + (self.moments.mean + shift), self.dtype)
        trial_moments = moments(decoded)
        return _EncodedWindow(data, decoded, trial_moments, _error(trial_moments, self.moments), shift, stretch)

    def spliced(self, front: _EncodedWindow, rest: _EncodedWindow) -> _EncodedWindow:
        """Return the front of one trial and the rest of another, joined after the block with the least error.

        If one trial is too high and the other too low, the error at the best block is at most the change of one block.
        All sums are cumulative sums, which every processor adds in the same order.
        """
        step, count = self.dtype.block_elements, self.centred.size
        first, second = front.decoded - self.moments.mean, rest.decoded - self.moments.mean
        change = np.cumsum(first - second)[step - 1 :: step]
        square_change = np.cumsum(first * first - second * second)[step - 1 :: step]
        means = (np.cumsum(second)[-1] + change) / count
        variances = (np.cumsum(second * second)[-1] + square_change) / count - means * means
        deviations = np.sqrt(np.maximum(variances, 0.0))
        errors = np.maximum(np.abs(means), np.abs(deviations - self.moments.standard_deviation))
        cut = (int(errors.argmin()) + 1) * step
        cut_bytes = self.dtype.size_bytes(cut)
        decoded = np.concatenate([front.decoded[:cut], rest.decoded[cut:]])
        trial_moments = moments(decoded)
        error = _error(trial_moments, self.moments)
        return _EncodedWindow(front.data[:cut_bytes] + rest.data[cut_bytes:], decoded, trial_moments, error)


def _best_trial(wanted: Window, dtype: DType, tolerance: float) -> _EncodedWindow:
    """Return `wanted` in `dtype`, with a mean and standard deviation within `tolerance` after decoding.

    If this is not possible, return the best of all trials and of all splices of two consecutive trials.
    """
    wanted_moments = moments(wanted)
    target = _Target(wanted - wanted_moments.mean, wanted_moments, dtype)
    trials = _trials(target)
    best = last = next(trials)
    while best.error > tolerance:
        trial = next(trials, None)
        if trial is None:
            break
        candidates = (best, trial, target.spliced(last, trial), target.spliced(trial, last))
        best, last = min(candidates, key=lambda candidate: candidate.error), trial
    return best


def _trials(target: _Target) -> Iterator[_EncodedWindow]:
    """Yield a trial without correction, then corrected trials, then for small windows trials around the best one."""
    best = last = target.trial(0.0, 1.0)
    yield last
    if target.moments.squares == 0.0:
        return
    for _ in range(CORRECTIONS_MAX):
        deviation = last.moments.standard_deviation
        ratio = target.moments.standard_deviation / deviation if deviation > 0.0 else 1.0
        stretch = min(max(last.stretch * ratio, STRETCHES[0]), STRETCHES[1])
        last = target.trial(last.shift + target.moments.mean - last.moments.mean, stretch)
        best = min(best, last, key=lambda trial: trial.error)
        yield last
    if target.centred.size > SMALL_ELEMENTS:
        return
    coarseness = np.abs(best.decoded - target.centred - target.moments.mean).max()
    for index in range(SCATTERED_MAX):
        reach = coarseness * index / SCATTERED_MAX
        shift_share, stretch_share = (index * step % 1.0 - 0.5 for step in STEPS)
        stretch = best.stretch * (1 + stretch_share * reach / target.moments.standard_deviation)
        yield target.trial(best.shift + shift_share * reach, stretch)


def _error(actual: Moments, target: Moments) -> float:
    return max(abs(actual.mean - target.mean), abs(actual.standard_deviation - target.standard_deviation))
