"""The verdict on a chimera, from the scores of the same windows by the chimera, its base and its control. Pure.

With p the chimera's perplexity, p0 the base's and pz the control's, three means are estimated for each text, each from
one difference for each window, in nats for each token:

    change      ln p - ln p0
    weight      ln pz - ln p0: what the zeroed organs are worth
    shortfall   ln p - 0.2 ln p0 - 0.8 ln pz, above 0 if less than 0.2 of that is restored

A rule holds only if the whole interval lies beyond its limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from organs.registry.amounts import change_text, perplexity_text
from organs.registry.entities.plan import QUANTISED
from organs.registry.validation.intervals import LOOK_MIN, MeanInterval, interval_of
from organs.registry.validation.runtime import Window, perplexity_of

BROKEN_FROM = 3.0
WEAK_BELOW = 1.05
INERT_BELOW = 0.2
DEGRADED_FROM = 1.25
GAINS_BELOW = 0.98
SAME_WITHIN = 0.02
"""A change whose whole interval lies within so much of the base's perplexity needs no further windows."""
EARLY_MIN = LOOK_MIN - 1
"""The fewest windows of which a first interval is shown: two windows that happen to agree would pass for certain."""
TIME_OVER = "The time was over before it was settled"
"""How the reason of a verdict begins if more time could settle it."""
KNOWN_BITS = 3.5
"""A base knows a kind of text if it needs at most so many bits for each byte. Guessing English letters by pairs of
letters needs about 3.4."""


class VerdictKind(StrEnum):
    """The kinds of verdicts, on one text and on all."""

    BROKEN = "broken"
    UNDECIDED = "undecided"
    INERT = "inert"
    DEGRADED = "degraded"
    GAINS = "gains"
    COHERENT = "coherent"
    WRITES = "writes"
    """It writes text in a runtime that scores none. Only on all texts."""


@dataclass(frozen=True, slots=True)
class TextScores:
    """The scores of the same windows of one text."""

    text: str
    base: tuple[Window, ...]
    chimera: tuple[Window, ...]
    control: tuple[Window, ...] | None = None
    look_count: int = 1
    """How often the scores are examined while windows are added."""
    bits: float | None = None
    """Bits that the base needs for each byte of the text; None if unknown."""
    window_limit: int | None = None
    """The most windows that can be scored: all of the text, or as many as were allowed; None if unknown."""
    change: MeanInterval | None = field(init=False)
    """Of ln p - ln p0; None if it is not finite or there are too few windows."""
    weight: MeanInterval | None = field(init=False)
    """Of ln pz - ln p0; None without a control, and if it is not finite."""
    shortfall: MeanInterval | None = field(init=False)
    """Of ln p - 0.2 ln p0 - 0.8 ln pz; None like `weight`."""

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        base, chimera, control = (
            [window.nats / window.tokens for window in windows]
            for windows in (self.base, self.chimera, self.control or ())
        )
        pairs, triples = list(zip(chimera, base, strict=False)), list(zip(chimera, base, control, strict=False))
        share = INERT_BELOW
        set_field(self, "change", self._interval(p - p0 for p, p0 in pairs))
        set_field(self, "weight", self._interval(pz - p0 for _, p0, pz in triples))
        set_field(self, "shortfall", self._interval(p - share * p0 - (1.0 - share) * pz for p, p0, pz in triples))

    def _interval(self, differences: Iterable[float]) -> MeanInterval | None:
        return interval_of(list(differences), self.look_count)

    @property
    def early_change(self) -> MeanInterval | None:
        """Of ln p - ln p0, from too few windows for a verdict, only to be shown; None with others, and with two."""
        pairs = list(zip(self.chimera, self.base, strict=False))
        if len(pairs) >= LOOK_MIN:
            return None
        return interval_of(
            [ours.nats / ours.tokens - base.nats / base.tokens for ours, base in pairs], 1, least=EARLY_MIN
        )

    @property
    def tokens(self) -> int:
        """The number of tokens of the chimera's windows."""
        return sum(window.tokens for window in self.chimera)

    @property
    def is_known(self) -> bool:
        """Whether the base knows this kind of text; only then does it count for the verdict on all texts."""
        return self.bits is None or self.bits <= KNOWN_BITS

    @property
    def ratio(self) -> float | None:
        """p / p0; None if it is unknown or not finite."""
        try:
            return None if self.change is None else math.exp(self.change.mean)
        except OverflowError:
            return None

    @property
    def ratio_error(self) -> float | None:
        """The standard error of the ratio, by the delta method; None if unknown."""
        return None if self.change is None or self.ratio is None else self.ratio * self.change.error

    @property
    def ratio_margin(self) -> float | None:
        """The margin of the ratio, by the delta method; None if unknown."""
        return None if self.change is None or self.ratio is None else self.ratio * self.change.margin

    @property
    def change_text(self) -> str | None:
        """The ratio with its margin, for people; None if unknown."""
        ratio, margin = self.ratio, self.ratio_margin
        return None if ratio is None or margin is None else change_text(ratio, margin)

    @property
    def has_endless_control(self) -> bool:
        """Whether the perplexity of the control is infinite, so that any finite one is a complete recovery."""
        return self.control is not None and perplexity_of(self.control) == math.inf

    @property
    def recovered(self) -> float | None:
        """r = (ln pz - ln p) / (ln pz - ln p0), the recovered share of the loss; None without a loss."""
        if self.has_endless_control and self.change is not None:
            return 1.0
        if self.change is None or self.weight is None or self.weight.mean <= 0.0:
            return None
        return (self.weight.mean - self.change.mean) / self.weight.mean

    @property
    def is_weak(self) -> bool:
        """Whether zeroing the organs costs too little to decide anything."""
        return self.weight is not None and self.weight.high < math.log(WEAK_BELOW)

    @property
    def is_harmless(self) -> bool:
        """Whether the perplexity is certainly not degraded."""
        return self.change is not None and self.change.high < math.log(DEGRADED_FROM)

    @property
    def is_open(self) -> bool:
        """Whether it leaves the verdict on all texts undecided. Organs that are harmless, and too weak, do not."""
        return self.kind is VerdictKind.UNDECIDED and not (self.is_weak and self.is_harmless)

    @property
    def works(self) -> bool:
        """Whether the organs are known to restore more than INERT_BELOW of what the model loses without them."""
        if self.weight is None or self.shortfall is None:
            return self.has_endless_control
        return self.weight.low > math.log(WEAK_BELOW) and self.shortfall.high < 0.0

    @property
    def kind(self) -> VerdictKind:
        """The verdict on this text."""
        if perplexity_of(self.chimera) == math.inf:
            return VerdictKind.BROKEN
        change, weight, shortfall = self.change, self.weight, self.shortfall
        if change is None:
            return VerdictKind.UNDECIDED
        if change.low > math.log(BROKEN_FROM):
            return VerdictKind.BROKEN
        if weight is not None and shortfall is not None and weight.low > math.log(WEAK_BELOW) and shortfall.low > 0.0:
            return VerdictKind.INERT
        if change.low > math.log(DEGRADED_FROM):
            return VerdictKind.DEGRADED
        if change.high < 0.0 and change.mean < math.log(GAINS_BELOW):
            return VerdictKind.GAINS
        return (
            VerdictKind.COHERENT if self.is_harmless and (self.control is None or self.works) else VerdictKind.UNDECIDED
        )

    @property
    def windows_needed(self) -> int | None:
        """The number of windows that would settle everything, if means and deviations stay: 0 if all is settled.

        None if no number would, or if it is unknown. Settled are the sign of the change, or that it is small; and
        the verdict on this text, or that the organs are too weak for one.
        """
        change = self.change
        if perplexity_of(self.chimera) == math.inf or self.kind in (VerdictKind.BROKEN, VerdictKind.INERT):
            return 0
        if change is None:
            return None
        needed = [_needed_for_sign(change)]
        if self.kind is VerdictKind.UNDECIDED and not change.excludes(math.log(DEGRADED_FROM)):
            needed.append(change.count_to_exclude(math.log(DEGRADED_FROM)))
        elif self.kind is VerdictKind.UNDECIDED and not self.is_weak and self.weight and self.shortfall:
            is_heavy = self.weight.excludes(math.log(WEAK_BELOW))
            way = (self.shortfall, 0.0) if is_heavy else (self.weight, math.log(WEAK_BELOW))
            needed.append(way[0].count_to_exclude(way[1]))
        return None if None in needed else max(number for number in needed if number is not None)

    @property
    def is_settled(self) -> bool:
        """Whether the verdict on this text and the sign of the change are settled."""
        return self.windows_needed == 0

    @property
    def tokens_needed(self) -> int | None:
        """About the number of tokens that would settle everything; None if it is settled or unknown."""
        windows = self.windows_needed
        return windows * self.tokens // len(self.chimera) if windows and self.chimera else None


def _needed_for_sign(change: MeanInterval) -> int | None:
    """Return the number of windows that settles the sign of a change, or that it is small; 0 if it is settled."""
    small = math.log1p(SAME_WITHIN)
    if change.excludes(0.0) or abs(change.mean) + change.margin < small:
        return 0
    spare = small - abs(change.mean)
    ways = [change.count_to_exclude(0.0), math.ceil(change.count * (change.margin / spare) ** 2) if spare > 0 else None]
    return min((way for way in ways if way is not None), default=None)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict, and its reason in a few sentences with figures."""

    kind: VerdictKind
    reason: str


def judge(
    texts: Sequence[TextScores], failure: str | None = None, remark: str | None = None, act: str = "grafted"
) -> Judgement:
    """Return the verdict on a chimera.

    Texts that the base does not know count only if it knows none of them. `failure` is the reason why the chimera did
    not load or run, as the end of a sentence; `remark` is a sentence after the reason, such as why there is no control.
    `act` describes the organs that are zeroed in the control: "grafted", or "changed" if it is only known that they
    differ from the base's; `QUANTISED` that the model is a quantisation of the base.
    """
    if failure is not None:
        return Judgement(
            VerdictKind.BROKEN, _joined(f"The {_subject(act)} does not run: {failure.rstrip('.')}.", remark)
        )
    if not any(score.chimera for score in texts):
        return Judgement(VerdictKind.UNDECIDED, _joined("Nothing was scored.", remark))
    counting = [score for score in texts if score.is_known] or texts
    kind = _overall(counting)
    return Judgement(kind, _joined(_headline(kind, counting, act), _beside_headline(kind, texts, counting), remark))


def judge_writing(written: str, base: str | None) -> Judgement:
    """Return the verdict on a chimera in a runtime that only writes text: `written`, and that of its base, if any."""
    same = "the same as" if written == base else "not the same as"
    compared = "" if base is None else f"; it is {same} the text of the base"
    reason = (
        f"The chimera loads and writes text that can be read{compared}. This runtime measures no perplexity, "
        "so nothing says how good the chimera is."
    )
    return Judgement(VerdictKind.WRITES, reason)


def _overall(scores: Sequence[TextScores]) -> VerdictKind:
    """Return the verdict on all texts: the first of the worst ones that holds on any text."""
    kinds = {score.kind for score in scores}
    works = any(score.works for score in scores)
    if VerdictKind.BROKEN in kinds:
        return VerdictKind.BROKEN
    if VerdictKind.INERT in kinds and not works:
        return VerdictKind.INERT
    if VerdictKind.DEGRADED in kinds:
        return VerdictKind.DEGRADED
    if VerdictKind.GAINS in kinds and all(score.is_harmless for score in scores):
        return VerdictKind.GAINS
    is_undecided = any(score.is_open for score in scores) or VerdictKind.COHERENT not in kinds
    return VerdictKind.UNDECIDED if is_undecided else VerdictKind.COHERENT


def _headline(kind: VerdictKind, scores: Sequence[TextScores], act: str) -> str:
    """Return the reason of the verdict, with the figures of the text that decides it."""
    decisive = [score for score in scores if score.kind is kind]
    if kind is VerdictKind.UNDECIDED:
        return _undecided(scores, act)
    first = _extreme(decisive, lambda score: score.ratio, largest=kind is not VerdictKind.GAINS) or decisive[0]
    if perplexity_of(first.chimera) == math.inf:
        return f"The {_subject(act)} has no finite perplexity on {first.text}."
    p, p0 = _shown(perplexity_of(first.chimera)), _shown(perplexity_of(first.base))
    change = f" ({first.change_text})" if first.change_text else ""
    sentence = f"On {first.text}, the {_subject(act)}'s perplexity is {p} and the base's is {p0}{change}"
    if kind is VerdictKind.BROKEN:
        return f"{sentence}: more than {BROKEN_FROM:g} times as much."
    if kind is VerdictKind.INERT:
        pz = perplexity_of(first.control or ())
        return (
            f"The {act} tensors do not work. {sentence}. With these tensors zeroed it is {_shown(pz)}: they restore "
            f"only {_percent(first.recovered)} of the difference."
        )
    if kind is VerdictKind.DEGRADED:
        return f"{sentence}: more than {DEGRADED_FROM:g} times as much.{_working(scores, act)}"
    return f"{sentence}.{_working(scores, act)}"


def _subject(act: str) -> str:
    """Return what the model is called whose organs were changed by an act."""
    return "quantisation" if act == QUANTISED else "chimera"


def _undecided(scores: Sequence[TextScores], act: str) -> str:
    if all(score.is_weak for score in scores):
        weakest = scores[0]
        return (
            f"The {act} blocks matter too little to decide: without them, the perplexity on {weakest.text} is "
            f"{_shown(perplexity_of(weakest.control or ()))}; the base's is {_shown(perplexity_of(weakest.base))}."
        )
    reasons: dict[str, list[str]] = {}
    for score in (score for score in scores if score.is_open):
        count, limit = len(score.chimera), score.window_limit
        why = TIME_OVER
        if limit is not None and count >= limit:
            why = "Smaller than the error, although all allowed windows were scored"
            if count < LOOK_MIN:
                why = f"Texts with fewer than {LOOK_MIN} windows cannot be settled; use longer ones"
        windows = f"({count} of {limit} windows)" if limit else "(few windows)"
        reasons.setdefault(why, []).append(_joined(score.text, score.change_text, windows))
    return " ".join(f"{why}: {', '.join(texts)}." for why, texts in reasons.items())


def _beside_headline(kind: VerdictKind, scores: Sequence[TextScores], counting: Sequence[TextScores]) -> str:
    """Return the largest change beside a gain, the texts that do not count, and what would settle the verdict."""
    sentences = []
    worst = _extreme(counting, lambda score: score.ratio, largest=True)
    if kind is VerdictKind.GAINS and len(counting) > 1 and worst is not None and worst.change_text:
        sentences.append(f"At worst, perplexity {worst.change_text} on {worst.text}.")
    unknown = [score.text for score in scores if not score.is_known]
    if unknown and len(counting) == len(scores):
        sentences.append("The base predicts none of these texts well, so all count.")
    elif unknown:
        effect = "this result does" if len(unknown) == 1 else "these results do"
        sentences.append(f"The base cannot predict {', '.join(unknown)} well, so {effect} not count.")
    needs = []
    for score in counting if kind is VerdictKind.UNDECIDED else ():
        needed = score.tokens_needed
        if score.kind is VerdictKind.UNDECIDED and needed is not None:
            about = round(needed, -max(0, len(str(needed)) - 2))  # two digits
            needs.append(f"about {about:,} tokens of {score.text} (scored: {score.tokens:,})")
    sentences += [f"What it would take: {', '.join(needs)}."] if needs else []
    return " ".join(sentences)


def _working(scores: Sequence[TextScores], act: str) -> str:
    least = _extreme([score for score in scores if score.works], lambda score: score.recovered, largest=False)
    if least is None or least.recovered is None:
        return ""
    share = _percent(least.recovered)
    return f" The {act} tensors work: they restore {share} of what the model loses without them."


def _extreme(
    scores: Iterable[TextScores], number: Callable[[TextScores], float | None], *, largest: bool
) -> TextScores | None:
    """Return the text with the largest or smallest `number`, the first of equals; None if no text has one."""
    ranked = [(value, score) for score in scores if (value := number(score)) is not None]
    return (max if largest else min)(ranked, key=lambda pair: pair[0])[1] if ranked else None


def _shown(perplexity: float | None) -> str:
    return "unknown" if perplexity is None else perplexity_text(perplexity) if math.isfinite(perplexity) else "infinite"


def _percent(share: float | None) -> str:
    return "an unknown part" if share is None else f"{share:.0%}"


def _joined(*sentences: str | None) -> str:
    return " ".join(sentence for sentence in sentences if sentence)
