"""Results of running chimeras: verdicts, compared with base, donors and control; and quick looks of some seconds."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Annotated

from msgspec import Meta

from organs.registry.amounts import NO_VALUE, change_text, nats_text, perplexity_text
from organs.registry.entities.base import Count, Entity, Items, RequestBody, Share, Text, Texts, Time, Word

MeanDivergence = Annotated[
    float,
    Meta(
        description="Mean Kullback-Leibler divergence of the distribution of the next token from the base's, in nats: "
        "how different, not how good."
    ),
]
DivergenceMargin = Annotated[
    float, Meta(description="The divergence plus and minus this is its interval of 90%, over the windows.")
]
HighDivergence = Annotated[float, Meta(description="99% of the tokens have at most this divergence.")]
SameTop = Annotated[Share, Meta(description="The share of tokens at which both expect the same token most.")]
DivergenceTokens = Annotated[Count, Meta(description="The tokens on which divergence was measured.")]

CHANGE = "change of perplexity"
"""The heading of the measured changes."""
TYPICAL = "llama.cpp's files of SmolLM2-135M have 0.006 nats in Q8_0, 0.014 in Q6_K, 0.06 in Q5_K_M and 0.09 in Q4_K_M."
"""What was measured of typical files: docs/quantize.md."""
DIVERGENCE_NOTES = (
    "The divergence (Kullback-Leibler, in nats) is that of the distribution of the next token from the source's: 0 for "
    f"the same distribution. {TYPICAL} The change is that of the perplexity: lower is better. ± is the interval of 90%."
)


def divergence_cells(text: TextLook | TextVerdict) -> dict[str, str]:
    """Return the divergence on a text as texts, by the headings of a table; dashes if it was not measured."""
    mean, high, same = text.divergence, text.divergence_99, text.same_top
    return {
        "divergence": NO_VALUE if mean is None else nats_text(mean, text.divergence_margin),
        "99% of tokens below": NO_VALUE if high is None else nats_text(high),
        "same top token": NO_VALUE if same is None else f"{same:.1%}",
    }


class SourceDivergence(Entity):
    """How far a quantisation is from its source, over all texts that were scored."""

    source: Annotated[Text, Meta(description="The model from which it was quantised.")]
    divergence: MeanDivergence
    divergence_margin: DivergenceMargin | None
    divergence_99: HighDivergence | None
    same_top: SameTop
    divergence_tokens: DivergenceTokens
    ratio: (
        Annotated[float, Meta(description="Its perplexity divided by that of the source, over all texts together.")]
        | None
    )
    ratio_margin: Annotated[float, Meta(description="The ratio plus and minus this is its interval of 90%.")] | None

    @property
    def amount(self) -> str:
        """The divergence with its margin, as text."""
        return nats_text(self.divergence, self.divergence_margin)

    @property
    def change(self) -> str:
        """The change of the perplexity with its margin, as text; a dash if it is unknown."""
        if self.ratio is None or self.ratio_margin is None:
            return NO_VALUE
        return change_text(self.ratio, self.ratio_margin)

    @property
    def figures(self) -> dict[str, str]:
        """The numbers as texts, by their names."""
        return {
            "divergence": f"{self.amount} nats",
            "99% of tokens below": NO_VALUE if self.divergence_99 is None else f"{nats_text(self.divergence_99)} nats",
            "same top token": f"{self.same_top:.1%}",
            CHANGE: self.change,
        }

    @property
    def sentence(self) -> str:
        """The numbers in a sentence."""
        high = "" if self.divergence_99 is None else f" (99% of tokens below {nats_text(self.divergence_99)})"
        change = "" if self.ratio is None else f"; perplexity {self.change}"
        return (
            f"Divergence from {self.source}: {self.amount} nats{high}, the same top token {self.same_top:.1%}{change}."
        )


class RunFailure(Entity):
    """Why a model could not be run."""

    kind: Word
    reason: Text


class TextScore(Entity):
    """The perplexity of a model on one text. It is null if it is infinite or not a number."""

    text: Text
    perplexity: float | None
    standard_error: float | None
    tokens: Count | None = None


class RunReport(Entity):
    """The run of one model: its scores and the text that it generated, or why it failed."""

    name: Text
    failure: RunFailure | None
    scores: Items[TextScore]
    written: Text | None
    log: Annotated[Text, Meta(description="The end of the runtime's log.")] = ""


class TextVerdict(Entity):
    """The chimera compared with its base on one text."""

    name: Text
    digest: Text = ""
    verdict: Annotated[Word, Meta(description="The verdict on this text; empty in older reports.")] = ""
    settled: Annotated[bool, Meta(description="Whether the verdict and the sign of the change are settled.")] = False
    counts: Annotated[
        bool, Meta(description="False if the base cannot predict this text well, so that it does not count.")
    ] = True
    ratio: Annotated[float, Meta(description="Its perplexity divided by that of the base.")] | None
    ratio_error: Annotated[float, Meta(description="Standard error of the ratio, paired by window.")] | None = None
    ratio_margin: Annotated[float, Meta(description="The ratio plus and minus this is its interval of 95%.")] | None = (
        None
    )
    recovered: Annotated[float, Meta(description="The recovered share of the loss from zeroed grafts.")] | None = None
    early_ratio: (
        Annotated[float, Meta(description="The ratio from three windows, which are too few for a verdict.")] | None
    ) = None
    early_margin: Annotated[float, Meta(description="Its interval of 95%, as that of the ratio.")] | None = None
    windows: Annotated[Count, Meta(description="The number of scored windows.")] | None = None
    window_count: Annotated[Count, Meta(description="The number of windows that could be scored.")] | None = None
    tokens: Annotated[Count, Meta(description="The number of scored tokens.")] | None = None
    tokens_needed: (
        Annotated[Count, Meta(description="About the number of tokens that would settle it; null if it is settled.")]
        | None
    ) = None
    bits: Annotated[float, Meta(description="Bits that the base needs for each byte of the text.")] | None = None
    divergence: MeanDivergence | None = None
    divergence_margin: DivergenceMargin | None = None
    divergence_99: HighDivergence | None = None
    same_top: SameTop | None = None
    divergence_tokens: DivergenceTokens = 0

    @property
    def change(self) -> str:
        """The change of the perplexity with its margin, as text; a dash if one of them is unknown.

        Of too few windows the early one. Reports of earlier versions have only a standard error.
        """
        if self.ratio is None and self.early_ratio is not None:
            return change_text(self.early_ratio, self.early_margin)
        margin = self.ratio_error if self.ratio_margin is None else self.ratio_margin
        return NO_VALUE if self.ratio is None or margin is None else change_text(self.ratio, margin)


class VerdictReport(Entity):
    """A verdict with everything that it is based on. Members with a default are missing in older reports."""

    model: Text
    verdict: Word
    reason: Text
    runtime: Text
    tokens: Annotated[Count, Meta(description="The largest number of scored tokens of a text.")]
    tokens_remark: Annotated[Text, Meta(description="Only in older reports.")] | None = None
    window_tokens: Annotated[Count, Meta(description="Tokens of a window; null in older reports.")] | None = None
    seconds: Annotated[float, Meta(description="The time that it took.")] | None = None
    tokens_per_second: (
        Annotated[float, Meta(description="How fast tokens were evaluated, of all models together.")] | None
    ) = None
    base: RunReport
    chimera: RunReport
    control: Annotated[RunReport, Meta(description="The chimera with its grafted tensors zeroed.")] | None
    control_remark: Text | None = None
    donors: Items[RunReport]
    left_out: Annotated[
        Texts, Meta(description="Donors that were not run: they cannot run, or there are too many.")
    ] = ()
    zeroed: Annotated[Texts, Meta(description="The tensors that are zeroed in the control.")] = ()
    zeroed_because: Text = ""
    from_source: Annotated[SourceDivergence, Meta(description="Only of a quantisation of the base.")] | None = None
    texts: Items[TextVerdict]

    @property
    def scored_texts(self) -> tuple[TextVerdict, ...]:
        """The texts; none if the runtime only wrote a text and scored nothing."""
        return self.texts if any(text.tokens != 0 for text in self.texts) else ()  # None in older reports


class Verdict(Entity):
    """A stored verdict with its reason and its report."""

    verdict: Word
    reason: Text
    runtime: Text
    report: Annotated[VerdictReport, Meta(description="Null for a stored report that cannot be read.")] | None
    created_at: Time


class QuickLookRequest(RequestBody):
    """A chimera to look at."""

    chimera: Annotated[Text, Meta(description="Its name, or `sha256:` and the digest of its lock.")]
    seconds: Annotated[float, Meta(ge=1.0, le=3600.0, description="The time for it; by default 30.")] | None = None


class TextLook(Entity):
    """What was measured on one text. A number is null if it is infinite, or if too little was scored."""

    name: Text
    digest: Text
    base_perplexity: float | None
    perplexity: float | None
    ratio: Annotated[float, Meta(description="Its perplexity divided by that of the base.")] | None
    ratio_margin: (
        Annotated[
            float,
            Meta(
                description="The ratio plus and minus this is its interval of 90%. It is symmetric in the logarithm: "
                "the upper part is given, the lower one is smaller."
            ),
        ]
        | None
    )
    windows: Annotated[Count, Meta(description="The windows that base and chimera have both scored.")]
    window_count: Annotated[Count, Meta(description="The windows of the whole text.")]
    tokens: Annotated[Count, Meta(description="The tokens of the windows that were scored.")]
    divergence: MeanDivergence | None = None
    divergence_margin: DivergenceMargin | None = None
    divergence_99: HighDivergence | None = None
    divergence_tokens: DivergenceTokens = 0
    same_top: SameTop | None = None

    @property
    def low(self) -> float | None:
        """The lower end of the interval of the ratio."""
        return None if self.ratio is None or self.ratio_margin is None else self.ratio - self.ratio_margin

    @property
    def high(self) -> float | None:
        """The upper end of the interval of the ratio."""
        return None if self.ratio is None or self.ratio_margin is None else self.ratio + self.ratio_margin

    @property
    def amount(self) -> str:
        """The change of the perplexity with its margin, as text; a dash if too little was scored."""
        if self.ratio is None or self.ratio_margin is None:
            return NO_VALUE
        return change_text(self.ratio, self.ratio_margin)

    @property
    def cells(self) -> dict[str, str]:
        """The numbers as texts, by the headings of a table."""
        return {
            "text": self.name,
            "base": NO_VALUE if self.base_perplexity is None else perplexity_text(self.base_perplexity),
            "chimera": NO_VALUE if self.perplexity is None else perplexity_text(self.perplexity),
            CHANGE: self.amount,
            "divergence": NO_VALUE if self.divergence is None else f"{self.divergence:.2g}",
            "same top token": NO_VALUE if self.same_top is None else f"{self.same_top:.0%}",
            "tokens": f"{self.tokens:,}",
        }

    @property
    def divergence_cells(self) -> dict[str, str]:
        """The numbers of a quantisation, by the headings of a table."""
        cells = self.cells
        return {"text": self.name, **divergence_cells(self), CHANGE: self.amount, "tokens": cells["tokens"]}


class QuickLook(Entity):
    """A quick look at a chimera. Without texts, nothing was measured; the sentence says why."""

    model: Text = ""
    base: Text = ""
    sentence: Annotated[Text, Meta(description="The result in one or two sentences.")]
    usable: (
        Annotated[
            bool,
            Meta(
                description="Whether no text has a perplexity of more than +25%; null if the measurement is too short."
            ),
        ]
        | None
    )
    runtime: Text
    window_tokens: Annotated[Count, Meta(description="Tokens of a window.")]
    seconds: Annotated[float, Meta(description="The time that it took, with loading.")]
    seconds_allowed: Annotated[float, Meta(description="The time that the windows were allowed to take.")] = 0.0
    seconds_needed: (
        Annotated[
            float, Meta(description="About the time that all texts need; null unless the time was too short for them.")
        ]
        | None
    ) = None
    tokens_per_second: Annotated[float, Meta(description="How fast tokens were evaluated, of both models.")] | None
    texts: Items[TextLook] = ()
    failure: RunFailure | None = None
    from_source: Annotated[SourceDivergence, Meta(description="Only of a quantisation of the base.")] | None = None

    @property
    def rows(self) -> list[dict[str, str]]:
        """The numbers of each text as texts, by the headings of a table; of a quantisation, its divergence first."""
        return [text.cells if self.from_source is None else text.divergence_cells for text in self.texts]

    @property
    def notes(self) -> str:
        """How it was measured, and what the numbers say."""
        rate = "" if self.tokens_per_second is None else f" at {self.tokens_per_second:,.0f} tokens a second"
        measured = f"Measured in {self.seconds:.0f} s{rate}, in {self.runtime}."
        if self.from_source is not None:
            return f"{measured} {DIVERGENCE_NOTES}"
        return (
            f"{measured} Perplexity: lower is better; −5% is a gain "
            "of 5%, and ± is the interval of 90%. Divergence (Kullback-Leibler, in nats) and the share of equal top "
            "tokens say how different the chimera is from its base, not how good."
        )

    @property
    def worst(self) -> TextLook | None:
        """The text with the largest change; None if no change is known."""
        known = [text for text in self.texts if text.ratio is not None]
        return max(known, key=lambda text: text.ratio or 0.0, default=None)

    @property
    def is_started(self) -> bool:
        """Whether a model was run."""
        return bool(self.texts) or self.failure is not None

    @property
    def word(self) -> str:
        """The result in a word or two."""
        if not self.is_started:
            return "not started"
        return {True: "usable", False: "not usable", None: "not clear"}[self.usable]

    @property
    def minutes_needed(self) -> int | None:
        """The full minutes that all texts need; None unless the time was too short for them."""
        return None if self.seconds_needed is None else math.ceil(self.seconds_needed / 60.0)

    def covers(self, digests: Collection[str], windows: int, seconds: float) -> bool:
        """Return whether texts with these digests were scored: all with so many windows, or some for so long."""
        scored = {text.digest for text in self.texts}
        enough = all(text.windows >= min(windows, text.window_count) for text in self.texts)
        is_long = bool(scored) and self.seconds_allowed >= seconds
        return scored <= set(digests) and (is_long or (enough and scored == set(digests)))
