"""What each reading means, for whoever meets it for the first time: one sentence, its ingredients, its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from organs.registry.measure.zmeasure import (
    COHERENCE_NOISE,
    COHERENCE_SIGNAL,
    ENTROPY_NOISE,
    ENTROPY_SIGNAL,
    KURTOSIS_NOISE,
    KURTOSIS_SIGNAL,
)
from organs.registry.present.text import share_text
from organs.registry.present.values import Values


@dataclass(frozen=True, slots=True)
class Meaning:
    """A reading in words."""

    label: str
    what: str
    """What it is, in a sentence."""
    limits: str
    """What it does not say."""


MEANINGS: Mapping[str, Meaning] = {
    "theta": Meaning(
        "θ",
        "The shape of the weights' distribution as an angle: 0° is even noise, about 34° a bell curve, 90° a few "
        "strong weights among many weak ones.",
        "It does not say whether the organ was trained, is useful, or fits with another: random weights have 34° too.",
    ),
    "magnitude": Meaning(
        "|Z|",
        "How many bits each doubling of the resolution adds: near 1 for weights that take any value, less where few "
        "values repeat.",
        "It says how finely the weights are graded, not what they do.",
    ),
    "signal": Meaning(
        "signal",
        "The sine of θ: the same reading on a scale from 0 to 1.",
        "It adds nothing to θ but the scale.",
    ),
    "spectral_signal": Meaning(
        "spectral signal",
        "The share of a matrix's variation that stands above what random numbers of its shape would show: 0 is chance.",
        "It does not say what the pattern is good for, nor that training made it.",
    ),
    "stable_rank": Meaning(
        "stable rank",
        "The whole energy of a matrix over that of its strongest direction: 1 when one direction is everything.",
        "A high rank is many directions of equal strength, which random numbers have too.",
    ),
    "size_bytes": Meaning(
        "size",
        "The bytes that the organ takes in a GGUF file.",
        "It depends on the format as much as on the shape.",
    ),
    "likeness": Meaning(
        "alike",
        "The correlation of the weights at the same places: 1 is the same weights, strangers have about 0.",
        "It says nothing about direction, and organs whose rows were reordered look like strangers.",
    ),
}


def theta_ingredients(reading: Values) -> list[Values]:
    """The three scores that θ is the mean of, from what its method read: name, value, score from 0 to 1 and bounds."""
    found = []
    for name, words, noise, signal in _SCORES:
        value = reading.get(name)
        if value is None:
            continue
        size = abs(value) if name == "kurtosis" else value
        score = min(max((size - noise) / (signal - noise), 0.0), 1.0)
        found.append({"name": name, "words": words, "value": value, "score": score, "noise": noise, "signal": signal})
    return found


def theta_sentence(reading: Values) -> str | None:
    """What this θ is made of, in one sentence."""
    parts = [
        f"{one['name']} {one['value']:.3f} (score {share_text(one['score'])})" for one in theta_ingredients(reading)
    ]
    if not parts or reading.get("theta") is None:
        return None
    return f"θ = 90° × the mean of three scores: {', '.join(parts)}."


_SCORES = (
    ("entropy", "how evenly the values fill their range", ENTROPY_NOISE, ENTROPY_SIGNAL),
    ("kurtosis", "how much sits in the tails, beyond a bell curve", KURTOSIS_NOISE, KURTOSIS_SIGNAL),
    ("coherence", "how unevenly the sorted values are spaced", COHERENCE_NOISE, COHERENCE_SIGNAL),
)
"""Name, words, and the values that count as noise and as signal: docs/numbers.md."""
