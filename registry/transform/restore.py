"""An organ purified and encoded, with the mean and the standard deviation that it had.

Two passes. The first measures the organ before and after purification, which gives the one stretch and shift for all
windows. The second purifies again and encodes; rounding moves both figures (Q4_0 widens by some 0.2%), so each window
is encoded until what a reader will see has the moments that were meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from organs.registry.errors import BadOrgan
from organs.registry.gguf.types import DType
from organs.registry.transform.encode import encoded
from organs.registry.transform.plain import WINDOW_ELEMENTS, Window
from organs.registry.transform.purify import Purification, cleaned, restored, stays_as_it_is
from organs.registry.transform.sums import Moments, moments

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
    leave = stays_as_it_is(before)
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
    """A window encoded, and what a reader finds."""

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
        best, last = min(candidates, key=lambda one: one.miss), trial
    return best


def _trials(aim: _Aim) -> Iterator[_Trial]:
    """As it is; then corrected, again and again; then, for few values, scattered about the best of these."""
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
