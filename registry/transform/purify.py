"""Purification: weak frequencies or details without a parent are removed; mean and standard deviation are restored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from organs.registry.errors import BadOrgan
from organs.registry.gguf.types import DType
from organs.registry.transform.values import (
    WINDOW_ELEMENTS,
    Window,
    encoded,
)

SUMMED_EXACTLY = 1024
"""So few values are left to `fsum`, which takes 60 ns for each of them."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and sum of squared deviations of some values; of none, all are 0."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """The sum of the squared deviations from the mean."""

    @property
    def standard_deviation(self) -> float:
        """That of these values themselves: squares over the count."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    def with_more(self, more: Moments) -> Moments:
        """The moments of both together.

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


def total(values: NDArray[np.float64]) -> float:
    """The sum of a flat array, to about one rounding of float64 for each of its halvings."""
    folded = values
    while folded.size > SUMMED_EXACTLY:
        half = folded.size // 2
        left_over = folded[2 * half :]
        folded = folded[:half] + folded[half : 2 * half]
        folded[: left_over.size] += left_over
    return math.fsum(folded.tolist())


def moments(values: NDArray[np.float64]) -> Moments:
    """The moments of a flat array of finite values within 2^±500."""
    if values.size == 0:
        return Moments()
    mean = total(values) / values.size
    deviations = values - mean
    deviations *= deviations
    return Moments(values.size, mean, total(deviations))


KEEP_DEFAULT = 0.9
SCALES_MAX = 8
"""Dyadic scales of detail. The coarser ones of a window of 2^20 would hold 0.4% of its coefficients."""
COHERENT = 0.5
"""The coherence from which a detail is kept whole. Among independent normal values a third lies below it."""
PURIFIED_MIN_VALUES = 64
"""A smaller organ has no spectrum to speak of (nor a θ) and stays as it is."""


class PurifyMethod(StrEnum):
    """How an organ is purified."""

    SPECTRAL = "spectral"
    FRACTAL = "fractal"


@dataclass(frozen=True, slots=True)
class Purification:
    """A method, and how much it keeps."""

    method: PurifyMethod
    keep: float = KEEP_DEFAULT
    """The share of the energy that `spectral` keeps, above 0 and up to 1; `fractal` decides by itself."""


def purified(values: ArrayLike, method: PurifyMethod | str, keep: float = KEEP_DEFAULT) -> NDArray[np.float64]:
    """An array purified, in the shape it has, with the mean and standard deviation that it had, to float64's rounding.

    It is taken flat, in windows of 2^20 values. An array of fewer than 64 values, or of one value only, is returned as
    it is. Raises BadOrgan for NaN, infinities, and an unknown method or a `keep` that is not above 0 and up to 1.
    """
    purification = Purification(_method(method), keep)
    array = np.asarray(values, np.float64)
    flat = array.ravel()
    if not np.isfinite(flat).all():
        raise BadOrgan("an organ with NaN or infinite values cannot be purified")
    before = after = Moments()
    windows = []
    for start in range(0, flat.size, WINDOW_ELEMENTS):
        window = flat[start : start + WINDOW_ELEMENTS]
        windows.append(cleaned(window, purification))
        before, after = before.with_more(moments(window)), after.with_more(moments(windows[-1]))
    if is_unchanged(before):
        return array.copy()
    return np.concatenate([restored(window, before, after) for window in windows]).reshape(array.shape)


def cleaned(window: Window, purification: Purification) -> Window:
    """A window purified, about its own mean. A window of one value only stays. Raises BadOrgan as `purified` does."""
    method = _method(purification.method)
    if not 0 < purification.keep <= 1:
        raise BadOrgan(f"a share of {purification.keep} of the energy cannot be kept; it is above 0 and up to 1")
    mean = total(window) / window.size
    centred = window - mean
    if not centred.any():
        return window.copy()
    if method is PurifyMethod.SPECTRAL:
        clean = _strongest(_mirrored(centred), purification.keep)
    else:
        clean = _coherent(_mirrored(centred))
    clean = clean[: window.size]
    clean += mean
    return clean


def is_unchanged(organ: Moments) -> bool:
    """Whether an organ with these moments is too small to be purified, or constant."""
    return organ.count < PURIFIED_MIN_VALUES or organ.standard_deviation == 0.0


def restored(window: Window, before: Moments, after: Moments) -> Window:
    """A purified window, moved and stretched so that the organ has the moments `before` instead of `after`."""
    if after.standard_deviation == 0.0:
        raise BadOrgan("purification would remove all of this organ")
    moved = window - after.mean
    moved *= before.standard_deviation / after.standard_deviation
    moved += before.mean
    return moved


def _method(name: str) -> PurifyMethod:
    try:
        return PurifyMethod(name)
    except ValueError:
        raise BadOrgan(f"{name[:80]!r} is not a method of purification: use spectral or fractal") from None


def _mirrored(values: Window) -> Window:
    """`values`, followed by their mirror image up to a power of two.

    A power of two for both methods: the wavelets ask for it, and only there is numpy's Fourier transform equal to the
    last bit on processors with and without fused multiplication. Not zeros, which would thin out the energy.
    """
    missing = (1 << (values.size - 1).bit_length()) - values.size
    return np.concatenate([values, values[::-1][:missing]])


def _strongest(values: Window, keep: float) -> Window:
    """The fewest Fourier components that carry the share `keep` of the energy of `values` (a power of two of them).

    By Parseval's theorem the energy is the sum of |X_k|² over all components, over their number. Components of equal
    energy stay or go together.
    """
    spectrum = np.fft.rfft(values)
    # The product of complex numbers is fused on some processors and not on others, so it is spelt out. All but the
    # first and the last component stand for two, one of negative frequency.
    energy = spectrum.real * spectrum.real + spectrum.imag * spectrum.imag
    energy[1:-1] *= 2.0
    ascending = np.sort(energy)
    carried = np.cumsum(ascending[::-1])  # one after the other, on every processor
    enough = min(int(np.searchsorted(carried, keep * carried[-1])), carried.size - 1)
    spectrum[energy < ascending[ascending.size - 1 - enough]] = 0.0
    clean: Window = np.fft.irfft(spectrum, values.size)
    return clean


def _coherent(values: Window) -> Window:
    """`values` (a power of two of them) with those Haar details attenuated that differ from their parents in energy."""
    wavelets = _wavelets()
    scales = min(SCALES_MAX, values.size.bit_length() - 1)
    coarse, *details = wavelets.wavedec(values, "haar", mode="periodization", level=scales)
    kept = [details[0], *(detail * _gain(detail, parent) for parent, detail in pairwise(details))]
    clean: Window = wavelets.waverec([coarse, *kept], "haar", mode="periodization")
    return clean


def _gain(detail: Window, parent: Window) -> Window:
    """What each detail is multiplied with: 1 from a coherence of `COHERENT` on, falling to 0 with the coherence.

    The coherence of a detail and its parent, which spans it at the next coarser scale, is the geometric over the
    arithmetic mean of their energies, each measured against the mean energy of its scale: 1 where both stand out (or
    lie low) alike, 0 where one stands alone. That energy persists across scales where there is structure is what
    J. M. Shapiro's zerotrees rest on ("Embedded image coding using zerotrees of wavelet coefficients", 1993).
    """
    own, coarser = _relative(detail), np.repeat(_relative(parent), 2)
    arithmetic = own * own + coarser * coarser
    doubled = 2.0 * own * coarser
    coherence = np.divide(doubled, arithmetic, out=np.ones_like(own), where=arithmetic > 0.0)
    return np.minimum(coherence / COHERENT, 1.0)


def _relative(details: Window) -> Window:
    """The amplitudes of one scale over the root of their mean energy."""
    energy = total(details * details) / details.size
    return np.abs(details) / np.sqrt(energy) if energy > 0.0 else np.zeros_like(details)


def _wavelets() -> Any:
    """PyWavelets, which takes 80 ms to import and is rarely needed."""
    import pywt

    return pywt


TOLERANCE = 1e-3
"""How far mean and standard deviation may move, as a share of the latter."""
WINDOW_TOLERANCE = TOLERANCE / 4
"""What a window may add to it. Variances add up from squares, so the whole may miss by twice as much."""
CORRECTIONS_MAX = 8
"""Encodings of a window, each corrected by what the one before missed. Large windows need one or two."""
STRETCHES = (0.5, 2.0)
"""How far a correction may go. Where all values round to one level, it would go on for ever."""
SMALL_ELEMENTS, SCATTERED_MAX = 1 << 13, 100
"""In a window of so few values a correction moves the mean by leaps, so more are tried, ever further from the best."""
STEPS = (0.7548776662466927, 0.5698402909980532)
"""The fractions of their multiples fill a square evenly: the first powers of the inverse of the plastic number."""
HELD = frozenset({"F32", "F16", "BF16", "Q8_0"})


def purified_and_encoded(
    windows: Callable[[], Iterator[Window]], elements: int, purification: Purification, dtype: DType
) -> Iterator[bytes]:
    """The bytes of the purified organ in `dtype`, window by window; `windows()` gives its values, all over again.

    F32, F16, BF16 and Q8_0: mean and standard deviation of what a reader will see are within 1e-3 of the standard
    deviation of what they were, or BadOrgan is raised, with the last window at the latest (seen where few values lie
    on few levels of the type, such as gains of 1.00 ± 0.01 in BF16). Q4_0 to Q5_1: as near as the trials come, and
    nothing is raised. An organ of fewer than 64 values, or of one value only, is encoded as it is. Raises BadOrgan
    also for what cannot be computed with or written.
    """
    before, after = _both_moments(windows(), purification)
    assert before.count == elements
    seen = Moments()
    leave = is_unchanged(before)
    for window in windows():
        if leave:
            yield encoded(window, dtype)[0]
            continue
        meant = restored(cleaned(window, purification), before, after)
        # A last window that is short may miss by more: it weighs less.
        weight = min(elements, WINDOW_ELEMENTS) / window.size
        chosen = _tuned(meant, dtype, WINDOW_TOLERANCE * weight * before.standard_deviation)
        seen = seen.with_more(chosen.found)
        yield chosen.data
    if not leave and dtype.name in HELD and _miss(seen, before) > TOLERANCE * before.standard_deviation:
        raise BadOrgan(f"{dtype.name} is too coarse to hold this organ's mean and standard deviation")


def _both_moments(windows: Iterator[Window], purification: Purification) -> tuple[Moments, Moments]:
    before = after = Moments()
    for window in windows:
        before = before.with_more(moments(window))
        after = after.with_more(moments(cleaned(window, purification)))
    return before, after


@dataclass(frozen=True, slots=True)
class _Trial:
    """An encoded window, and the values that a reader gets."""

    data: bytes
    back: Window
    found: Moments
    miss: float
    shift: float = 0.0
    stretch: float = 1.0


@dataclass(frozen=True, slots=True)
class _Aim:
    """A window as it is meant to be read: deviations from its mean, and moments."""

    centred: Window
    moments: Moments
    dtype: DType

    def trial(self, shift: float, stretch: float) -> _Trial:
        """The window moved, stretched and encoded."""
        data, back = encoded(self.centred * stretch + (self.moments.mean + shift), self.dtype)
        found = moments(back)
        return _Trial(data, back, found, _miss(found, self.moments), shift, stretch)

    def spliced(self, front: _Trial, rest: _Trial) -> _Trial:
        """The front of one trial and the rest of another, cut after the block where that comes nearest.

        Where one reads too high and the other too low, some cut between them is right to a single block's change. All
        sums here are running ones, which every processor takes in the same order.
        """
        step, count = self.dtype.block_elements, self.centred.size
        first, second = front.back - self.moments.mean, rest.back - self.moments.mean
        change = np.cumsum(first - second)[step - 1 :: step]
        widening = np.cumsum(first * first - second * second)[step - 1 :: step]
        means = (np.cumsum(second)[-1] + change) / count
        variances = (np.cumsum(second * second)[-1] + widening) / count - means * means
        deviations = np.sqrt(np.maximum(variances, 0.0))
        misses = np.maximum(np.abs(means), np.abs(deviations - self.moments.standard_deviation))
        cut = (int(misses.argmin()) + 1) * step
        cut_bytes = self.dtype.size_bytes(cut)
        back = np.concatenate([front.back[:cut], rest.back[cut:]])
        found = moments(back)
        return _Trial(front.data[:cut_bytes] + rest.data[cut_bytes:], back, found, _miss(found, self.moments))


def _tuned(meant: Window, dtype: DType, allowed: float) -> _Trial:
    """`meant` in `dtype`, so that a reader's mean and standard deviation are `meant`'s to `allowed`.

    The best of all trials and splices of two in a row, if none is as good as that.
    """
    found = moments(meant)
    aim = _Aim(meant - found.mean, found, dtype)
    trials = _trials(aim)
    best = last = next(trials)
    while best.miss > allowed:
        trial = next(trials, None)
        if trial is None:
            break
        candidates = (best, trial, aim.spliced(last, trial), aim.spliced(trial, last))
        best, last = min(candidates, key=lambda candidate: candidate.miss), trial
    return best


def _trials(aim: _Aim) -> Iterator[_Trial]:
    """Yield a trial without correction, then corrected ones, then, for few values, some scattered around the best."""
    best = last = aim.trial(0.0, 1.0)
    yield last
    if aim.moments.squares == 0.0:
        return
    for _ in range(CORRECTIONS_MAX):
        deviation = last.found.standard_deviation
        ratio = aim.moments.standard_deviation / deviation if deviation > 0.0 else 1.0
        stretch = min(max(last.stretch * ratio, STRETCHES[0]), STRETCHES[1])
        last = aim.trial(last.shift + aim.moments.mean - last.found.mean, stretch)
        best = min(best, last, key=lambda trial: trial.miss)
        yield last
    if aim.centred.size > SMALL_ELEMENTS:
        return
    coarseness = np.abs(best.back - aim.centred - aim.moments.mean).max()
    for index in range(SCATTERED_MAX):
        reach = coarseness * index / SCATTERED_MAX
        across, along = (index * step % 1.0 - 0.5 for step in STEPS)
        stretch = best.stretch * (1 + along * reach / aim.moments.standard_deviation)
        yield aim.trial(best.shift + across * reach, stretch)


def _miss(found: Moments, aim: Moments) -> float:
    return max(abs(found.mean - aim.mean), abs(found.standard_deviation - aim.standard_deviation))
