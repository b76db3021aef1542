"""Perplexities, what one is against another, and how much was scored, for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence

TIMES_FROM = 10.0
"""One perplexity against another from here on is told as a multiple, below as a percentage."""
FINE_BELOW = 0.01
"""A percentage whose standard error is less than this is told with a decimal."""


def figure(perplexity: float) -> str:
    """A perplexity for people: `26.7`, `13,056`, `1.2e+30`."""
    if perplexity >= 1e9:
        return f"{perplexity:.1e}"
    return f"{perplexity:,.0f}" if perplexity >= 1000 else f"{perplexity:.1f}"


def change_text(ratio: float, ratio_error: float) -> str:
    """One perplexity over another, and the standard error of that, for people: `−6% ± 3%`, `513.6 ± 60.1 times`."""
    if ratio >= TIMES_FROM:
        return f"{figure(ratio)} ± {figure(ratio_error)} times"
    digits = 1 if ratio_error < FINE_BELOW else 0
    change = round(100.0 * (ratio - 1.0), digits) + 0.0  # no negative zero
    return f"{change:+.{digits}f}% ± {100.0 * ratio_error:.{digits}f}%".replace("-", "−")


def lengths_text(lengths: Sequence[tuple[str, int | None]], most: int) -> str:
    """How many tokens were scored of each text, by its name; `most` is told where a runtime does not say.

    `128 tokens of code, 97 tokens of prose`.
    """
    return ", ".join(
        f"{tokens} tokens of {name}" if tokens is not None else f"{most} tokens of {name} at most"
        for name, tokens in lengths
    )
