"""Verdicts: the result of a run of a chimera, compared with its base, its donors and its control."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry.entities.base import ITEMS_MAX, Count, Entity, Text, Texts, Time, Word


class RunFailure(Entity, frozen=True, kw_only=True):
    """Why a model could not be run."""

    kind: Word
    reason: Text


class TextScore(Entity, frozen=True, kw_only=True):
    """The perplexity of a model on one text. It is null if it is infinite or not a number."""

    text: Text
    perplexity: float | None
    standard_error: float | None
    tokens: Count | None = None


class RunReport(Entity, frozen=True, kw_only=True):
    """The run of one model: its scores and the text that it generated, or why it failed."""

    name: Text
    failure: RunFailure | None
    scores: Annotated[tuple[TextScore, ...], Meta(max_length=ITEMS_MAX)]
    written: Text | None
    log: Annotated[Text, Meta(description="The end of the runtime's log.")] = ""


class TextVerdict(Entity, frozen=True, kw_only=True):
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
    windows: Annotated[Count, Meta(description="The number of scored windows.")] | None = None
    tokens: Annotated[Count, Meta(description="The number of scored tokens.")] | None = None
    tokens_needed: (
        Annotated[Count, Meta(description="About the number of tokens that would settle it; null if it is settled.")]
        | None
    ) = None
    bits: Annotated[float, Meta(description="Bits that the base needs for each byte of the text.")] | None = None


class VerdictReport(Entity, frozen=True, kw_only=True):
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
    control: Annotated[RunReport, Meta(description="The chimera with its grafted organs zeroed.")] | None
    control_remark: Text | None = None
    donors: Annotated[tuple[RunReport, ...], Meta(max_length=ITEMS_MAX)]
    left_out: Annotated[
        Texts, Meta(description="Donors that were not run: they cannot run, or there are too many.")
    ] = ()
    zeroed: Annotated[Texts, Meta(description="The tensors that are zeroed in the control.")] = ()
    zeroed_because: Text = ""
    texts: Annotated[tuple[TextVerdict, ...], Meta(max_length=ITEMS_MAX)]

    @property
    def scored_texts(self) -> tuple[TextVerdict, ...]:
        """The texts; none if the runtime only wrote a text and scored nothing."""
        return self.texts if any(text.tokens != 0 for text in self.texts) else ()  # None in older reports


class Verdict(Entity, frozen=True, kw_only=True):
    """A stored verdict with its reason and its report."""

    verdict: Word
    reason: Text
    runtime: Text
    report: Annotated[VerdictReport, Meta(description="Null for a stored report that cannot be read.")] | None
    created_at: Time
