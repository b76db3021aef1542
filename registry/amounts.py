"""Text forms of sizes, counts and measures, and the parser of sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal

from organs.registry.errors import BadInput

NO_VALUE = "–"
"""The text for an unknown number."""
NAMES_SHOWN = 3
"""The number of names or ranges in a sentence; the others are only counted."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*([kMGT]?)B?", re.ASCII | re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `2G` or `1.5 GB`; raises BadInput for other texts and for less than one."""
    match = _SIZE.fullmatch(text.strip())
    size_bytes = 0 if match is None else int(Decimal(match[1]) * _UNITS[match[2].lower()])
    if size_bytes == 0:
        raise BadInput(f"{text[:80]!r} is not a size: write for example 2G or 500M")
    return size_bytes


def size_text(size: float) -> str:
    """Return a size in bytes as text, in powers of ten: `4.9 MB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def count_text(count: float) -> str:
    """Return a count as text: `2.1 M`."""
    for unit in ("", " k", " M", " G"):
        if count < 1000:
            return f"{count:.0f}{unit}" if not unit else f"{count:.1f}{unit}"
        count /= 1000
    return f"{count:.1f} T"


UNCERTAIN = "≈"
"""The mark before a θ that says little about the weights: `registry.measures.theta_caution`."""


def theta_text(theta: float | None, caution: str = "") -> str:
    """Return θ in degrees as text, marked as uncertain with a `caution`; a dash if it was not measured."""
    return NO_VALUE if theta is None else f"{UNCERTAIN if caution else ''}{theta:.1f}°"


def share_text(value: float | None) -> str:
    """Return a number from 0 to 1 with three digits, or a dash if there is none."""
    return NO_VALUE if value is None else f"{value:.3f}"


def percent_text(share: float | None) -> str:
    """Return a share as text: `67%`, `8.6%`, `0.04%`; a dash if there is none."""
    if share is None:
        return NO_VALUE
    percent = 100.0 * share
    return f"{percent:.{0 if percent >= 10 else 1 if percent >= 1 else 2}f}%"


CHANGE_MIN = 1e-7
"""The smallest change of weights that is told apart from none."""
COARSE_CHANGE_MIN = 1e-3
"""The smallest one that follows from a likeness."""
CHANGE_LEGEND = "change: 0 for the same weights, 1e-5 for a light fine-tune, 2 for unrelated models"


def weight_change(change: float | None, likeness: float | None) -> float:
    """Return the change of weights; if it is unknown, the one that the likeness means for organs of the same energy.

    Organs without a likeness count as unrelated.
    """
    return 2.0 * min(max(0.0, 1.0 - (likeness or 0.0)), 2.0) if change is None else change


def weight_change_text(change: float | None, likeness: float | None = None) -> str:
    """Return a change of weights as text: `7.5e-6`, `0.016`, `<1e-7`; a dash if it is unknown.

    A `likeness` is used instead of an unknown change. It resolves less: `<0.001`.
    """
    if change is None and likeness is None:
        return NO_VALUE
    value, least = weight_change(change, likeness), COARSE_CHANGE_MIN if change is None else CHANGE_MIN
    if value < least and not (value == 0.0 and change is not None):
        return f"<{_small_text(least)}"
    return _small_text(value)


def _small_text(value: float) -> str:
    """Return a number with two digits: `7.5e-6`, `0.016`, `2`."""
    if value and value < COARSE_CHANGE_MIN:
        digits, exponent = f"{value:.1e}".split("e")
        return f"{digits.removesuffix('.0')}e{int(exponent)}"
    return f"{value:.2g}"


MULTIPLE_FROM = 10.0
"""From this ratio of perplexities on, texts have a multiple, below it a percentage."""


def perplexity_text(perplexity: float) -> str:
    """Return a perplexity, or a multiple of one, as text: `26.7`, `13,056`, `1.2e+30`."""
    if perplexity >= 1e9:
        return f"{perplexity:.1e}"
    return f"{perplexity:,.0f}" if perplexity >= 1000 else f"{perplexity:.1f}"


def change_text(ratio: float, margin: float | None = None) -> str:
    """Return a ratio of perplexities, with its margin if there is one, as text: `−5.9% ± 0.7%`, `513.6 times`."""
    if ratio >= MULTIPLE_FROM:
        return f"{perplexity_text(ratio)}{'' if margin is None else f' ± {perplexity_text(margin)}'} times"
    return _percent_text(100.0 * (ratio - 1.0), None if margin is None else 100.0 * margin)


def nats_text(nats: float, margin: float | None = None) -> str:
    """Return a divergence in nats as text, with its margin if there is one: `0.012`, `0.012 ± 0.001`."""
    if not margin or margin < 1e-6 * nats:  # all windows are alike
        return f"{nats:.2g}" if nats >= 1e-4 else _small_text(nats)
    digits = min(max(0, -math.floor(math.log10(margin))), 9)
    return f"{nats:.{digits}f} ± {margin:.{digits}f}"


def gain_text(percent: float, margin: float) -> str:
    """Return a gain in percent with its margin as text: `+5.9% ± 0.7%`, `−55% ± 11%`, `perplexity × 46`."""
    ratio = 1.0 - percent / 100.0
    if ratio >= MULTIPLE_FROM:
        return f"perplexity × {perplexity_text(ratio) if ratio >= 1000 else round(ratio)}"
    return _percent_text(percent, margin)


def _percent_text(percent: float, margin: float | None) -> str:
    digits = 1 if margin is None else 0 if margin >= 2.0 else 1 if margin >= 0.05 else 2
    value = round(percent, digits) + 0.0  # no negative zero
    known = "" if margin is None else f" ± {margin:.{digits}f}%"
    return f"{value:+.{digits}f}%{known}".replace("-", "−")


def duration_text(seconds: float) -> str:
    """Return a time as text, rounded down to one unit: `45 s`, `12 min`, `5 h`, `3 days`."""
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= (2 * length if unit == "days" else length):
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def plural_text(count: int, singular: str, plural: str) -> str:
    """Return the count with its noun: `1 place`, `12 places`."""
    return f"{count:,} {singular if count == 1 else plural}"


def names_text(names: Sequence[str]) -> str:
    """Return the first three of `names`, which must not be empty, and the number of others: `a, b, c and 2 more`."""
    more = [f"{len(names) - NAMES_SHOWN} more"] if len(names) > NAMES_SHOWN else []
    parts = [*names[:NAMES_SHOWN], *more]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def ranges_text(numbers: Sequence[int]) -> str:
    """Return sorted numbers as ranges, the first three of them: `0-3 and 7`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] + 1 == number:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return spans_text([(first, last) for first, last in ranges])


def spans_text(spans: Sequence[tuple[int, int]]) -> str:
    """Return spans of numbers, from the first to the last of each, as `ranges_text` does."""
    return names_text([str(first) if first == last else f"{first}-{last}" for first, last in spans])
