"""From perplexities to a verdict on a chimera. Pure.

With p the chimera's perplexity, p0 its base's, pz the control's (the chimera with the grafted feed-forward organs
zeroed), and r = (ln pz − ln p) / (ln pz − ln p0) the share recovered, per text; the first rule that holds on any text
decides, so each is asked of the text that is worst for it:

    broken      it does not load, or p is not finite, or p > 3 p0
    undecided   pz < 1.05 p0: the grafted blocks are too weak to tell
    inert       r < 0.2: the graft carries nothing
    degraded    p > 1.25 p0
    gains       p < 0.98 p0 on some text
    coherent    none of these

Edges:
- A text on which base or chimera have no perplexity, or the base none that is finite and above 0, cannot be compared:
  `undecided`, unless another text says `broken`.
- Without a control (no feed-forward organ was grafted, or the control did not run) weak and inert grafts cannot be told
  from good ones: the verdict is made of the other rules, and its reason says so. Where nothing was grafted at all
  there is nothing to tell.
- The rules ask for the perplexities alone. How sure the difference of p and p0 is stands beside them, and where the
  text that decides is within two standard errors of no difference, the reason says that it may be chance.
- r is None where pz ≤ p0: there is nothing to recover. An infinite pz is the limit: r is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from organs.registry.validation.figures import change_text, figure

BROKEN_FROM = 3.0
WEAK_BELOW = 1.05
INERT_BELOW = 0.2
DEGRADED_FROM = 1.25
GAINS_BELOW = 0.98
CHANCE_WITHIN = 2.0
"""Standard errors."""


class VerdictKind(StrEnum):
    """What a chimera turned out to be."""

    BROKEN = "broken"
    UNDECIDED = "undecided"
    INERT = "inert"
    DEGRADED = "degraded"
    GAINS = "gains"
    COHERENT = "coherent"


@dataclass(frozen=True, slots=True)
class TextScores:
    """The perplexities on one text; None where there is none. Those of the donors are only shown."""

    text: str
    base: float | None
    chimera: float | None
    control: float | None = None
    donors: tuple[float | None, ...] = ()
    difference_error: float | None = None
    """Standard error of ln p - ln p0, token by token; None where it is not known."""

    @property
    def difference(self) -> float | None:
        """ln p - ln p0 in nats, or None where they cannot be compared."""
        p0, p = _usable(self.base), _usable(self.chimera)
        return None if p0 is None or p is None else math.log(p) - math.log(p0)

    @property
    def ratio_error(self) -> float | None:
        """The standard error of the ratio, by the delta method, or None where it is not known."""
        if self.ratio is None or self.difference_error is None:
            return None
        error = self.ratio * self.difference_error
        return error if math.isfinite(error) else None

    @property
    def may_be_chance(self) -> bool:
        """Whether p and p0 are known to be no further apart than chance may put them."""
        if self.difference is None or self.difference_error is None:
            return False
        return abs(self.difference) <= CHANCE_WITHIN * self.difference_error

    @property
    def ratio(self) -> float | None:
        """p / p0, or None where they cannot be compared."""
        p0, p = _usable(self.base), _usable(self.chimera)
        return None if p0 is None or p is None else p / p0

    @property
    def control_ratio(self) -> float | None:
        """pz / p0, infinite where pz is; None where they cannot be compared."""
        p0, pz = _usable(self.base), _usable(self.control, infinite=True)
        return None if p0 is None or pz is None else pz / p0

    @property
    def recovered(self) -> float | None:
        """r, or None where there is nothing to recover or nothing to compare with."""
        p0, p, pz = _usable(self.base), _usable(self.chimera), _usable(self.control, infinite=True)
        if p0 is None or p is None or pz is None or pz <= p0:
            return None
        if math.isinf(pz):
            return 1.0
        # Logarithms of two neighbouring floats may be the same.
        whole = math.log(pz) - math.log(p0)
        return (math.log(pz) - math.log(p)) / whole if whole > 0 else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict, why in one or two sentences with figures, and the numbers behind it, text by text."""

    kind: VerdictKind
    reason: str
    texts: tuple[TextScores, ...]


def judge(
    texts: Sequence[TextScores], failure: str | None = None, remark: str | None = None, act: str = "grafted"
) -> Verdict:
    """The verdict on a chimera; exactly one.

    `failure` says why it did not load or run, as the end of a sentence; `remark` is a sentence that is put behind the
    reason, such as why there is no control. `act` is what was done to the organs that the control has zeroed:
    "grafted", or "changed" where nothing is known but that they are not the base's.
    """
    scores = tuple(texts)
    kind, reason = (
        _broken(scores, failure) or _incomparable(scores) or _against_control(scores, act) or _against_base(scores, act)
    )
    sentences = [reason, remark or _without_control(scores, kind, act)]
    return Verdict(kind, " ".join(sentence for sentence in sentences if sentence), scores)


_Finding = tuple[VerdictKind, str]


def _broken(scores: tuple[TextScores, ...], failure: str | None) -> _Finding | None:
    if failure is not None:
        return VerdictKind.BROKEN, f"The chimera does not run: {failure.rstrip('.')}."
    for score in scores:
        if score.chimera is not None and _usable(score.chimera) is None:
            return VerdictKind.BROKEN, f"The chimera has no finite perplexity on {score.text}."
    worst = _worst(_above(scores, BROKEN_FROM), lambda score: score.ratio, largest=True)
    if worst is not None:
        return VerdictKind.BROKEN, f"{_compared(worst)}, more than {BROKEN_FROM:g} times as much.{_chance(worst)}"
    return None


def _incomparable(scores: tuple[TextScores, ...]) -> _Finding | None:
    if not scores:
        return VerdictKind.UNDECIDED, "Nothing was scored."
    for score in scores:
        for whose, value in (("base", score.base), ("chimera", score.chimera)):
            if _usable(value) is None:
                return VerdictKind.UNDECIDED, f"The {whose} has no perplexity on {score.text} to compare."
    return None


def _against_control(scores: tuple[TextScores, ...], act: str) -> _Finding | None:
    controlled = tuple(score for score in scores if score.control_ratio is not None)
    weak = tuple(score for score in controlled if _pz(score) < WEAK_BELOW * _p0(score))
    weakest = _worst(weak, lambda score: score.control_ratio, largest=False)
    if weakest is not None:
        reason = (
            f"The {act} blocks are too weak to tell: without them the perplexity on {weakest.text} is "
            f"{figure(_pz(weakest))}, the base's is {figure(_p0(weakest))}."
        )
        return VerdictKind.UNDECIDED, reason
    least = _worst(scores, lambda score: score.recovered, largest=False)
    if least is not None and least.recovered is not None and least.recovered < INERT_BELOW:
        reason = (
            f"What was {act} carries nothing. {_compared(least)}; with it zeroed it is {figure(_pz(least))}, and "
            f"{least.recovered:.2f} of the difference is recovered."
        )
        return VerdictKind.INERT, reason
    return None


def _against_base(scores: tuple[TextScores, ...], act: str) -> _Finding:
    recovered = _recovered_text(scores, act)
    degraded = _worst(_above(scores, DEGRADED_FROM), lambda score: score.ratio, largest=True)
    if degraded is not None:
        told = f"{_compared(degraded)}, more than {DEGRADED_FROM:g} times as much{recovered}."
        return VerdictKind.DEGRADED, told + _chance(degraded)
    worst = _worst(scores, lambda score: score.ratio, largest=True)
    assert worst is not None
    better = tuple(score for score in scores if _p(score) < GAINS_BELOW * _p0(score))
    best = _worst(better, lambda score: score.ratio, largest=False)
    if best is not None:
        there = f"{figure(_p(worst))} to {figure(_p0(worst))}{_change(worst)}"
        elsewhere = "" if worst is best else f", and on {worst.text} {there}"
        return VerdictKind.GAINS, f"{_compared(best)}{elsewhere}{recovered}.{_chance(best)}"
    return VerdictKind.COHERENT, f"{_compared(worst)}{recovered}."


def _without_control(scores: tuple[TextScores, ...], kind: VerdictKind, act: str) -> str:
    """What is not known where a verdict that asks for a control had none on some text."""
    asks = kind in {VerdictKind.DEGRADED, VerdictKind.GAINS, VerdictKind.COHERENT}
    if not asks or all(score.control_ratio is not None for score in scores):
        return ""
    return f"There is no control, so it is not known whether what was {act} carries anything."


def _above(scores: tuple[TextScores, ...], times: float) -> tuple[TextScores, ...]:
    """The texts on which p > `times` p0."""
    return tuple(score for score in scores if score.ratio is not None and _p(score) > times * _p0(score))


def _worst(
    scores: tuple[TextScores, ...], number: Callable[[TextScores], float | None], *, largest: bool
) -> TextScores | None:
    """The text with the largest or the smallest `number`, the first of equals, or None where none has one."""
    ranked = [(value, score) for score in scores if (value := number(score)) is not None]
    if not ranked:
        return None
    return (max if largest else min)(ranked, key=lambda pair: pair[0])[1]


def _usable(value: float | None, *, infinite: bool = False) -> float | None:
    """`value` if it is a perplexity that can be compared: above 0, and finite unless `infinite`."""
    if value is None or math.isnan(value) or value <= 0 or (math.isinf(value) and not infinite):
        return None
    return value


def _compared(score: TextScores) -> str:
    told = f"The chimera's perplexity on {score.text} is {figure(_p(score))}, its base's {figure(_p0(score))}"
    return told + _change(score)


def _change(score: TextScores) -> str:
    """The change and how sure it is, in brackets; nothing where that is not known."""
    if score.ratio is None or score.ratio_error is None:
        return ""
    return f" ({change_text(score.ratio, score.ratio_error)})"


def _chance(score: TextScores) -> str:
    """What is to be said behind a verdict that `score` decides."""
    if not score.may_be_chance:
        return ""
    return f" This may be chance: the difference on {score.text} is within two standard errors."


def _recovered_text(scores: tuple[TextScores, ...], act: str) -> str:
    least = _worst(scores, lambda score: score.recovered, largest=False)
    if least is None or least.recovered is None:
        return ""
    return f"; {least.recovered:.2f} of what zeroing the {act} organs costs is recovered"


def _p(score: TextScores) -> float:
    assert score.chimera is not None
    return score.chimera


def _p0(score: TextScores) -> float:
    assert score.base is not None
    return score.base


def _pz(score: TextScores) -> float:
    assert score.control is not None
    return score.control
