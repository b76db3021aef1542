"""The table of measures: names, meaning, and how each measure is searched, sorted and displayed.

Columns of the catalog, fields of the query language, members of entities with their bounds, headings, help texts and
columns of CSV files are derived from this table. To add a measure: add an entry here, compute it (`registry.measure`),
add the column (tables and a migration) and the member (`registry.entities.organ.Measures`). A test compares all of them
with this table. `GroupFigures` adds the measures of many tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from organs.registry.amounts import NO_VALUE, UNCERTAIN, theta_text


@dataclass(frozen=True, slots=True)
class Measure:
    """A number that is measured for every organ."""

    name: str
    """The name of the column, and of the member in entities, JSON and CSV."""
    field: str
    """The word in queries: `theta>=40`, `sort:-theta`."""
    label: str
    """The heading of a column."""
    summary: str
    """The meaning and the range in a few words, for the help on queries."""
    meaning: str
    """The meaning, in one sentence."""
    limits: str
    """What the measure does not show, in one sentence."""
    example: str
    """An example of a query."""
    method: str
    """The method that computes the measure: a row of `measurements` has the numbers of one method."""
    low: float
    high: float | None = None
    """The highest value; None if there is no limit."""
    decimals: int = 3
    ranked_as: str | None = None
    """Another measure with the same order, whose index is used; None for a measure with an index of its own."""
    aliases: tuple[str, ...] = ()
    """Other words that a query may use, besides `name` and `field`."""
    shown: bool = True
    """Whether lists always have a column for the measure; if False, only lists that are sorted by it."""

    def text(self, value: float | None) -> str:
        """Return `value` as text for people."""
        if value is None:
            return NO_VALUE
        return theta_text(value) if self.name == "theta" else f"{value:.{self.decimals}f}"

    def text_of(self, organ: object) -> str:
        """Return the value of `organ` as text for people; `organ` must have a member with the name of the measure."""
        return self.text(getattr(organ, self.name))


THETA_METHOD, SPECTRAL_METHOD = "z1", "mp1"
"""`registry.measure.zmeasure` and `registry.measure.spectral`."""

MEASURES: Mapping[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure(
            name="theta",
            field="theta",
            label="θ",
            summary="θ in degrees: 0 uniform, about 34 Gaussian, 90 heavy tails",
            meaning="The shape of the weights' distribution as an angle: 0° is a uniform distribution, "
            "about 34° a Gaussian, 90° heavy tails: a few large weights among many small ones.",
            limits="It does not say whether the tensor was trained, is useful, or fits another model: random weights "
            "have 34° too.",
            example="theta>=45 or theta:35-60",
            method=THETA_METHOD,
            low=0,
            high=90,
            aliases=("θ",),
        ),
        Measure(
            name="signal",
            field="signal",
            label="signal",
            summary="sin θ, 0 to 1",
            meaning="The sine of θ: the same measure on a scale from 0 to 1.",
            limits="It has no more information than θ.",
            example="signal>=0.6 or signal:0.5-0.7",
            method=THETA_METHOD,
            low=0,
            high=1,
            ranked_as="theta",
            shown=False,
        ),
        Measure(
            name="magnitude",
            field="z",
            label="|Z|",
            summary="|Z|: bits that each doubling of the resolution adds",
            meaning="How many bits each doubling of the resolution adds: near 1 for continuous weights, lower "
            "if a few values repeat often.",
            limits="It shows how many different values the weights have, not what they do.",
            example="z>=0.9 or z:0.9-1",
            method=THETA_METHOD,
            low=0,
        ),
        Measure(
            name="spectral_signal",
            field="spectral",
            label="spectral",
            summary="spectral signal, 0 (chance) to 1",
            meaning="The share of a matrix's energy above the level of random numbers of the same shape: 0 is chance.",
            limits="It does not say what the pattern does, or whether training made it.",
            example="spectral>=0.3 or spectral:0.2-0.5",
            method=SPECTRAL_METHOD,
            low=0,
            high=1,
        ),
        Measure(
            name="stable_rank",
            field="rank",
            label="stable rank",
            summary="stable rank, from 1",
            meaning="The total energy of a matrix divided by the energy of its strongest direction: 1 if one direction "
            "has all the energy.",
            limits="A high rank means many directions of similar strength; random numbers have them too.",
            example="rank>=10 or rank:5-20",
            method=SPECTRAL_METHOD,
            low=0,
            decimals=1,
        ),
        Measure(
            name="effective_rank",
            field="erank",
            label="effective rank",
            summary="effective rank, from 1",
            meaning="How many directions a matrix uses, each counted by its share: 1 if one direction has all the "
            "energy, the smaller side of the matrix if all are equal.",
            limits="Random numbers use nearly all directions; a low rank shows structure, but not that it is useful. "
            "Of a large matrix, only the sample is used.",
            example="erank<=100 or erank:20-60",
            method=SPECTRAL_METHOD,
            low=0,
            decimals=1,
            shown=False,
        ),
    )
}
MEASURE_NAMES = tuple(MEASURES)
RANKED_MEASURES = tuple(measure.name for measure in MEASURES.values() if measure.ranked_as is None)
"""The measures with an index of their own."""
BY_FIELD: Mapping[str, Measure] = {measure.field: measure for measure in MEASURES.values()}


@dataclass(frozen=True, slots=True)
class ThetaScore:
    """A statistic of the distribution of the weights, on a scale from 0 (random noise) to 1 (signal)."""

    name: str
    """The member of readings."""
    meaning: str
    noise: float
    """The value with the score 0."""
    signal: float
    """The value with the score 1."""
    is_signed: bool = False
    """Whether the statistic can be negative. The sign does not count."""

    def of(self, value: float) -> float:
        """Return the score of `value`, linear between noise and signal."""
        size = abs(value) if self.is_signed else value
        return min(max((size - self.noise) / (self.signal - self.noise), 0.0), 1.0)

    @property
    def explained(self) -> str:
        """The meaning, with the values that random noise has."""
        if self.is_signed:
            return f"{self.meaning}; from -{self.noise} to {self.noise} for random noise"
        return f"{self.meaning}; {self.noise} or {'more' if self.noise > self.signal else 'less'} for random noise"


ENTROPY = ThetaScore("entropy", "how evenly the values fill their range", noise=0.95, signal=0.7)
KURTOSIS = ThetaScore(
    "kurtosis", "how heavy the tails are, compared with a Gaussian", noise=1.2, signal=3.0, is_signed=True
)
COHERENCE = ThetaScore("coherence", "how unevenly the sorted values are spaced", noise=0.5, signal=1.0)
THETA_SCORES = (ENTROPY, KURTOSIS, COHERENCE)
"""θ is 90° times the mean of these scores."""

FEW_NUMBERS = 1000
"""Tensors of fewer numbers have a rough θ."""
ROUNDING_MAX_DEGREES = 2.0
"""θ is uncertain in tensor types that change it by more than this."""
ROUNDING_DEGREES: Mapping[str, float] = {
    **dict.fromkeys(("F64", "F32", "F16", "BF16"), 0.0),
    "Q8_0": 0.05,
    "Q5_1": 0.10,
    "Q4_1": 0.17,
    "Q5_K": 0.31,
    "Q6_K": 0.57,
    "Q4_K": 0.66,
    "IQ4_NL": 2.59,
    "IQ4_XS": 2.61,
    "Q5_0": 2.83,
    "IQ3_S": 3.55,
    "IQ3_XXS": 3.80,
    "Q2_K": 5.90,
    "IQ2_S": 7.24,
    "Q4_0": 7.58,
    "IQ2_XS": 7.60,
    "IQ2_XXS": 9.33,
    "IQ1_M": 12.09,
    "Q3_K": 14.78,
    "IQ1_S": 18.48,
    "MXFP4": 24.69,
    "TQ1_0": 54.69,
    "TQ2_0": 54.69,
}
"""By tensor type, the change of θ by rounding, in degrees: 95% of 44 matrices of two real models changed less
(`python -m bench.sampling --rounding`)."""

FEW, COARSE, UNTESTED, MOST = "few", "coarse", "untested", "most"
CAUTIONS: Mapping[str, str] = {
    FEW: f"it has fewer than {FEW_NUMBERS:,} values",
    COARSE: f"the rounding of its tensor type changes θ by more than {ROUNDING_MAX_DEGREES:g}°",
    UNTESTED: "how much the rounding of its tensor type changes θ was not measured",
    MOST: "it is a mean, and most of its tensors have an uncertain θ",
}
"""Why a θ is uncertain."""
THETA_LEGEND = (
    f"{UNCERTAIN} marks an uncertain θ: of a tensor with fewer than {FEW_NUMBERS:,} values; of a tensor type whose "
    f"rounding changes θ by more than {ROUNDING_MAX_DEGREES:g}°, or was not tested; or a mean of mostly such tensors."
)


def caution_of_mean(uncertain: int, measured: int) -> str:
    """Return MOST if most of the `measured` tensors of a mean θ have an uncertain θ; otherwise an empty text."""
    return MOST if 2 * uncertain > measured else ""


def theta_caution(theta: float | None, dtype: str, elements: int) -> str:
    """Return a key in CAUTIONS if `theta` of a tensor of this type and size is uncertain; otherwise an empty text."""
    if theta is None:
        return ""
    if elements < FEW_NUMBERS:
        return FEW
    change = ROUNDING_DEGREES.get(dtype)
    return UNTESTED if change is None else COARSE if change > ROUNDING_MAX_DEGREES else ""


@dataclass(slots=True)
class GroupFigures:
    """The figures of a group of tensors, as sums that can be added."""

    tensors: int = 0
    elements: int = 0
    size_bytes: int = 0
    measured: int = 0
    """Tensors with a θ, whose sum and extremes are in degrees."""
    theta_sum: float = 0.0
    theta_square_sum: float = 0.0
    theta_minimum: float | None = None
    theta_maximum: float | None = None
    uncertain: int = 0
    """Tensors with an uncertain θ."""
    spectral_count: int = 0
    """Tensors with a spectral reading."""
    spectral_sum: float = 0.0

    @property
    def mean_theta(self) -> float | None:
        """The mean θ in degrees."""
        return self.theta_sum / self.measured if self.measured else None

    @property
    def theta_deviation(self) -> float | None:
        """The standard deviation of θ in degrees (divided by the count); 0 if rounding makes it imaginary."""
        mean = self.mean_theta
        if mean is None:
            return None
        return math.sqrt(max(self.theta_square_sum / self.measured - mean * mean, 0.0))

    @property
    def caution(self) -> str:
        """Why the mean θ is uncertain; empty if it is not."""
        return caution_of_mean(self.uncertain, self.measured)

    @property
    def mean_spectral_signal(self) -> float | None:
        """The mean spectral signal of the matrices."""
        return self.spectral_sum / self.spectral_count if self.spectral_count else None

    def add(self, other: GroupFigures) -> None:
        """Add the figures of another group."""
        self.tensors += other.tensors
        self.elements += other.elements
        self.size_bytes += other.size_bytes
        self.measured += other.measured
        self.theta_sum += other.theta_sum
        self.theta_square_sum += other.theta_square_sum
        self.theta_minimum = _bound(min, self.theta_minimum, other.theta_minimum)
        self.theta_maximum = _bound(max, self.theta_maximum, other.theta_maximum)
        self.uncertain += other.uncertain
        self.spectral_count += other.spectral_count
        self.spectral_sum += other.spectral_sum


def _bound(choose: Callable[..., float], *values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None
