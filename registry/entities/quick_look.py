"""Quick looks: a chimera measured for some seconds, on a few windows of a few texts, beside its base."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from msgspec import Meta

from organs.registry.amounts import NO_VALUE, change_text, perplexity_text
from organs.registry.entities.base import ITEMS_MAX, Count, Entity, RequestBody, Share, Text
from organs.registry.entities.verdict import RunFailure


class QuickLookRequest(RequestBody, frozen=True, kw_only=True):
    """A chimera to look at."""

    chimera: Annotated[Text, Meta(description="Its name, or `sha256:` and the digest of its lock.")]
    seconds: Annotated[float, Meta(ge=1.0, le=3600.0, description="The time for it; by default 30.")] | None = None


class TextLook(Entity, frozen=True, kw_only=True):
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
    divergence: (
        Annotated[
            float,
            Meta(
                description="Mean Kullback-Leibler divergence of the distribution of the next token from the base's, "
                "in nats: how different, not how good."
            ),
        ]
        | None
    ) = None
    divergence_tokens: Annotated[Count, Meta(description="The tokens on which divergence was measured.")] = 0
    same_top: (
        Annotated[Share, Meta(description="The share of tokens at which both expect the same token most.")] | None
    ) = None

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
            "change of perplexity": self.amount,
            "divergence": NO_VALUE if self.divergence is None else f"{self.divergence:.2g}",
            "same top token": NO_VALUE if self.same_top is None else f"{self.same_top:.0%}",
            "tokens": f"{self.tokens:,}",
        }


class QuickLook(Entity, frozen=True, kw_only=True):
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
    tokens_per_second: Annotated[float, Meta(description="How fast tokens were evaluated, of both models.")] | None
    texts: Annotated[tuple[TextLook, ...], Meta(max_length=ITEMS_MAX)] = ()
    failure: RunFailure | None = None

    @property
    def notes(self) -> str:
        """How it was measured, and what the numbers say."""
        rate = "" if self.tokens_per_second is None else f" at {self.tokens_per_second:,.0f} tokens a second"
        return (
            f"Measured in {self.seconds:.0f} s{rate}, in {self.runtime}. Perplexity: lower is better; −5% is a gain "
            "of 5%, and ± is the interval of 90%. Divergence (Kullback-Leibler, in nats) and the share of equal top "
            "tokens say how different the chimera is from its base, not how good."
        )

    @property
    def worst(self) -> TextLook | None:
        """The text with the largest change; None if no change is known."""
        known = [text for text in self.texts if text.ratio is not None]
        return max(known, key=lambda text: text.ratio or 0.0, default=None)

    @property
    def word(self) -> str:
        """The result in a word or two."""
        return {True: "usable", False: "not usable", None: "not clear"}[self.usable]

    def covers(self, digests: Collection[str], windows: int, seconds: float) -> bool:
        """Return whether texts with these digests were scored: all with so many windows, or some for so long."""
        scored = {text.digest for text in self.texts}
        enough = all(text.windows >= min(windows, text.window_count) for text in self.texts)
        is_long = bool(scored) and self.seconds_allowed >= seconds
        return scored <= set(digests) and (is_long or (enough and scored == set(digests)))
