"""What purification takes out of an organ: weak frequencies (spectral), or details without a parent (fractal).

Both work on one window at a time, about the window's own mean; `registry.transform.restore` then gives the whole organ
its mean and standard deviation back. What these methods do to a model is measured in `docs/design/purification.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from organs.registry.errors import BadOrgan
from organs.registry.transform.plain import WINDOW_ELEMENTS, Window
from organs.registry.transform.sums import Moments, moments, total

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
    given = np.asarray(values, np.float64)
    flat = given.ravel()
    if not np.isfinite(flat).all():
        raise BadOrgan("an organ with NaN or infinite values cannot be purified")
    before = after = Moments()
    windows = []
    for start in range(0, flat.size, WINDOW_ELEMENTS):
        window = flat[start : start + WINDOW_ELEMENTS]
        windows.append(cleaned(window, purification))
        before, after = before.with_more(moments(window)), after.with_more(moments(windows[-1]))
    if stays_as_it_is(before):
        return given.copy()
    return np.concatenate([restored(window, before, after) for window in windows]).reshape(given.shape)


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


def stays_as_it_is(organ: Moments) -> bool:
    """Whether an organ with these moments is too small to be purified, or constant."""
    return organ.count < PURIFIED_MIN_VALUES or organ.standard_deviation == 0.0


def restored(window: Window, before: Moments, after: Moments) -> Window:
    """A purified window, moved and stretched so that the organ has the moments `before` instead of `after`."""
    if after.standard_deviation == 0.0:
        raise BadOrgan("nothing of this organ is left when it is purified")
    moved = window - after.mean
    moved *= before.standard_deviation / after.standard_deviation
    moved += before.mean
    return moved


def _method(name: str) -> PurifyMethod:
    try:
        return PurifyMethod(name)
    except ValueError:
        raise BadOrgan(f"{name[:80]!r} is no method of purification; there are spectral and fractal") from None


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
