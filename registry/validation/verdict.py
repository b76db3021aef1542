"""Compute perplexities from the log-probabilities of tokens, and a verdict from perplexities. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

STORED_DIGITS = 4
"""Decimals of a stored surprise: 0.0001 nats are a hundredth of a percent of a perplexity."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A perplexity, its standard error (None if unknown), and the number of scored tokens."""

    perplexity: float
    standard_error: float | None
    tokens: int


def estimate(surprises: Sequence[float]) -> Estimate:
    """Return the perplexity of `surprises`: exp of the mean of the negative natural logarithms of probabilities.

    The standard error is that of the mean surprise (with n − 1), converted by the delta method: the derivative of
    exp at the mean is the perplexity itself. A surprise that is not finite makes the perplexity infinite, and so does
    one that is too large for a float; neither has a standard error.
    """
    assert surprises
    count = len(surprises)
    if not all(map(math.isfinite, surprises)):
        return Estimate(math.inf, None, count)
    try:
        mean = math.fsum(surprises) / count
        perplexity = math.exp(mean)
    except OverflowError:
        return Estimate(math.inf, None, count)
    if count == 1:
        return Estimate(perplexity, None, count)
    variance = sum((surprise - mean) * (surprise - mean) for surprise in surprises) / (count - 1)
    error = perplexity * math.sqrt(variance / count)
    return Estimate(perplexity, error if math.isfinite(error) else None, count)


def rounded_surprises(surprises: Sequence[float]) -> tuple[float, ...] | None:
    """Return `surprises`, rounded for storage; None if any of them is not finite."""
    if not all(map(math.isfinite, surprises)):
        return None
    return tuple(round(surprise, STORED_DIGITS) for surprise in surprises)


def paired_error(first: Sequence[float] | None, second: Sequence[float] | None) -> float | None:
    """Return the standard error of ln p - ln p', the difference of two mean surprises of the same tokens, in nats.

    It is s / sqrt(n), with s the standard deviation of the differences by token (with n - 1). The difficulty of a token
    for both models cancels, so it is much smaller than the errors of the two perplexities suggest. None if either is
    unknown, if the numbers of tokens differ, and for less than two tokens.
    """
    if first is None or second is None or len(first) != len(second) or len(first) < 2:
        return None
    count = len(first)
    differences = [left - right for left, right in zip(first, second, strict=True)]
    mean = sum(differences) / count
    variance = sum((difference - mean) * (difference - mean) for difference in differences) / (count - 1)
    error = math.sqrt(variance / count)
    return error if math.isfinite(error) else None


TIMES_FROM = 10.0
"""From this ratio of perplexities on, texts state a multiple, below it a percentage."""
FINE_BELOW = 0.01
"""A percentage with a smaller standard error has a decimal."""


def figure(perplexity: float) -> str:
    """Return a perplexity for people: `26.7`, `13,056`, `1.2e+30`."""
    if perplexity >= 1e9:
        return f"{perplexity:.1e}"
    return f"{perplexity:,.0f}" if perplexity >= 1000 else f"{perplexity:.1f}"


def change_text(ratio: float, ratio_error: float) -> str:
    """Return a ratio of perplexities with its standard error for people: `−6% ± 3%`, `513.6 ± 60.1 times`."""
    if ratio >= TIMES_FROM:
        return f"{figure(ratio)} ± {figure(ratio_error)} times"
    digits = 1 if ratio_error < FINE_BELOW else 0
    change = round(100.0 * (ratio - 1.0), digits) + 0.0  # no negative zero
    return f"{change:+.{digits}f}% ± {100.0 * ratio_error:.{digits}f}%".replace("-", "−")


def lengths_text(lengths: Sequence[tuple[str, int | None]], most: int) -> str:
    """Return the number of scored tokens of each text; at most `most` if a runtime does not state it.

    `128 tokens of code, 97 tokens of prose`.
    """
    return ", ".join(
        f"{tokens} tokens of {name}" if tokens is not None else f"{most} tokens of {name} at most"
        for name, tokens in lengths
    )


BROKEN_FROM = 3.0
WEAK_BELOW = 1.05
INERT_BELOW = 0.2
DEGRADED_FROM = 1.25
GAINS_BELOW = 0.98
CHANCE_WITHIN = 2.0
"""Standard errors within which a difference may be chance."""


class VerdictKind(StrEnum):
    """The kinds of verdicts."""

    BROKEN = "broken"
    UNDECIDED = "undecided"
    INERT = "inert"
    DEGRADED = "degraded"
    GAINS = "gains"
    COHERENT = "coherent"


@dataclass(frozen=True, slots=True)
class TextScores:
    """The perplexities on one text; None if unknown. Those of the donors do not affect the verdict."""

    text: str
    base: float | None
    chimera: float | None
    control: float | None = None
    donors: tuple[float | None, ...] = ()
    difference_error: float | None = None
    """Standard error of ln p - ln p0, by tokens; None if unknown."""

    @property
    def difference(self) -> float | None:
        """ln p - ln p0 in nats; None if they cannot be compared."""
        p0, p = _usable(self.base), _usable(self.chimera)
        return None if p0 is None or p is None else math.log(p) - math.log(p0)

    @property
    def ratio_error(self) -> float | None:
        """The standard error of the ratio, by the delta method; None if unknown."""
        if self.ratio is None or self.difference_error is None:
            return None
        error = self.ratio * self.difference_error
        return error if math.isfinite(error) else None

    @property
    def may_be_chance(self) -> bool:
        """Whether the difference of p and p0 is small enough to be chance."""
        if self.difference is None or self.difference_error is None:
            return False
        return abs(self.difference) <= CHANCE_WITHIN * self.difference_error

    @property
    def ratio(self) -> float | None:
        """p / p0; None if they cannot be compared."""
        p0, p = _usable(self.base), _usable(self.chimera)
        return None if p0 is None or p is None else p / p0

    @property
    def control_ratio(self) -> float | None:
        """pz / p0, infinite if pz is; None if they cannot be compared."""
        p0, pz = _usable(self.base), _usable(self.control, infinite=True)
        return None if p0 is None or pz is None else pz / p0

    @property
    def recovered(self) -> float | None:
        """r, the recovered share of the loss; None without a loss and if it cannot be compared."""
        p0, p, pz = _usable(self.base), _usable(self.chimera), _usable(self.control, infinite=True)
        if p0 is None or p is None or pz is None or pz <= p0:
            return None
        if math.isinf(pz):
            return 1.0
        # Two adjacent floats can have the same logarithm.
        whole = math.log(pz) - math.log(p0)
        return (math.log(pz) - math.log(p)) / whole if whole > 0 else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict, its reason in one or two sentences with figures, and the numbers by text."""

    kind: VerdictKind
    reason: str
    texts: tuple[TextScores, ...]


def judge(
    texts: Sequence[TextScores], failure: str | None = None, remark: str | None = None, act: str = "grafted"
) -> Verdict:
    """Return the verdict on a chimera.

    `failure` is the reason why it did not load or run, as the end of a sentence; `remark` is a sentence after the
    reason, such as why there is no control. `act` describes the organs that are zeroed in the control: "grafted", or
    "changed" if it is only known that they differ from the base's.
    """
    scores = tuple(texts)
    kind, reason = (
        _broken(scores, failure) or _incomparable(scores) or _against_control(scores, act) or _against_base(scores, act)
    )
    sentences = [reason, remark or _without_control(scores, kind, act)]
    return Verdict(kind, " ".join(sentence for sentence in sentences if sentence), scores)


_Decision = tuple[VerdictKind, str]


def _broken(scores: tuple[TextScores, ...], failure: str | None) -> _Decision | None:
    if failure is not None:
        return VerdictKind.BROKEN, f"The chimera does not run: {failure.rstrip('.')}."
    for score in scores:
        if score.chimera is not None and _usable(score.chimera) is None:
            return VerdictKind.BROKEN, f"The chimera has no finite perplexity on {score.text}."
    worst = _worst(_above(scores, BROKEN_FROM), lambda score: score.ratio, largest=True)
    if worst is not None:
        return VerdictKind.BROKEN, f"{_compared(worst)}, more than {BROKEN_FROM:g} times as much.{_chance(worst)}"
    return None


def _incomparable(scores: tuple[TextScores, ...]) -> _Decision | None:
    if not scores:
        return VerdictKind.UNDECIDED, "Nothing was scored."
    for score in scores:
        for role, value in (("base", score.base), ("chimera", score.chimera)):
            if _usable(value) is None:
                return VerdictKind.UNDECIDED, f"The {role} has no perplexity on {score.text}."
    return None


def _against_control(scores: tuple[TextScores, ...], act: str) -> _Decision | None:
    controlled = tuple(score for score in scores if score.control_ratio is not None)
    weak = tuple(score for score in controlled if _pz(score) < WEAK_BELOW * _p0(score))
    weakest = _worst(weak, lambda score: score.control_ratio, largest=False)
    if weakest is not None:
        reason = (
            f"The {act} blocks matter too little to decide: without them, the perplexity on {weakest.text} is "
            f"{figure(_pz(weakest))}; the base's is {figure(_p0(weakest))}."
        )
        return VerdictKind.UNDECIDED, reason
    least = _worst(scores, lambda score: score.recovered, largest=False)
    if least is not None and least.recovered is not None and least.recovered < INERT_BELOW:
        reason = (
            f"The {act} organs do not work. {_compared(least)}. With these organs zeroed it is {figure(_pz(least))}: "
            f"they recover only {least.recovered:.0%} of the difference."
        )
        return VerdictKind.INERT, reason
    return None


def _against_base(scores: tuple[TextScores, ...], act: str) -> _Decision:
    recovered = _recovered_text(scores, act)
    degraded = _worst(_above(scores, DEGRADED_FROM), lambda score: score.ratio, largest=True)
    if degraded is not None:
        sentence = f"{_compared(degraded)}, more than {DEGRADED_FROM:g} times as much{recovered}."
        return VerdictKind.DEGRADED, sentence + _chance(degraded)
    worst = _worst(scores, lambda score: score.ratio, largest=True)
    assert worst is not None
    better = tuple(score for score in scores if _p(score) < GAINS_BELOW * _p0(score))
    best = _worst(better, lambda score: score.ratio, largest=False)
    if best is not None:
        change = f"{figure(_p(worst))} and {figure(_p0(worst))}{_change(worst)}"
        others = "" if worst is best else f"; on {worst.text}, {change}"
        return VerdictKind.GAINS, f"{_compared(best)}{others}{recovered}.{_chance(best)}"
    return VerdictKind.COHERENT, f"{_compared(worst)}{recovered}."


def _without_control(scores: tuple[TextScores, ...], kind: VerdictKind, act: str) -> str:
    """Return a remark if a verdict that needs a control had none on some text."""
    needs_control = kind in {VerdictKind.DEGRADED, VerdictKind.GAINS, VerdictKind.COHERENT}
    if not needs_control or all(score.control_ratio is not None for score in scores):
        return ""
    return f"There is no control, so it is unknown whether the {act} organs work."


def _above(scores: tuple[TextScores, ...], times: float) -> tuple[TextScores, ...]:
    """Return the texts on which p > `times` p0."""
    return tuple(score for score in scores if score.ratio is not None and _p(score) > times * _p0(score))


def _worst(
    scores: tuple[TextScores, ...], number: Callable[[TextScores], float | None], *, largest: bool
) -> TextScores | None:
    """Return the text with the largest or smallest `number`, the first of equals; None if no text has one."""
    ranked = [(value, score) for score in scores if (value := number(score)) is not None]
    if not ranked:
        return None
    return (max if largest else min)(ranked, key=lambda pair: pair[0])[1]


def _usable(value: float | None, *, infinite: bool = False) -> float | None:
    """Return `value` if it can be compared: above 0, and finite unless `infinite`; else None."""
    if value is None or math.isnan(value) or value <= 0 or (math.isinf(value) and not infinite):
        return None
    return value


def _compared(score: TextScores) -> str:
    comparison = (
        f"On {score.text}, the chimera's perplexity is {figure(_p(score))} and the base's is {figure(_p0(score))}"
    )
    return comparison + _change(score)


def _change(score: TextScores) -> str:
    """Return the change with its standard error in brackets; empty if unknown."""
    if score.ratio is None or score.ratio_error is None:
        return ""
    return f" ({change_text(score.ratio, score.ratio_error)})"


def _chance(score: TextScores) -> str:
    """Return a remark if the difference that decides the verdict may be chance."""
    if not score.may_be_chance:
        return ""
    return f" This may be chance: the difference on {score.text} is within two standard errors."


def _recovered_text(scores: tuple[TextScores, ...], act: str) -> str:
    least = _worst(scores, lambda score: score.recovered, largest=False)
    if least is None or least.recovered is None:
        return ""
    return f". The {act} organs work: they restore {least.recovered:.0%} of what the model loses without them"


def _p(score: TextScores) -> float:
    assert score.chimera is not None
    return score.chimera


def _p0(score: TextScores) -> float:
    assert score.base is not None
    return score.base


def _pz(score: TextScores) -> float:
    assert score.control is not None
    return score.control
