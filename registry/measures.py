"""The table of measures: what each is called, what it means, and where it is searched, sorted and shown.

Columns of the catalog, fields of the query language, members of entities with their bounds, headings, help texts and
columns of CSV files follow from this table. To add a measure: add an entry here, compute it (`registry.measure`), add
the column (tables and a migration) and the member (`registry.entities.organ.Measures`). A test compares them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from organs.registry.amounts import NO_VALUE, theta_text


@dataclass(frozen=True, slots=True)
class Measure:
    """A number that is measured of every organ."""

    name: str
    """Of the column, and of the member in entities, JSON and CSV."""
    field: str
    """The word in queries: `theta>=40`, `sort:-theta`."""
    label: str
    """The heading of a column."""
    summary: str
    """For the help of queries: what it is, and its range."""
    meaning: str
    """What it is, in a sentence."""
    limits: str
    """What it does not say."""
    example: str
    """In a query."""
    method: str
    """The method that gives it: a row of `measurements` has the numbers of one method."""
    low: float
    high: float | None = None
    """None where it has no highest value."""
    decimals: int = 3
    ranked_as: str | None = None
    """The measure whose order it has, so that it needs no index of its own."""
    aliases: tuple[str, ...] = ()
    """Other words that a query may use; the name is always one."""
    shown: bool = True
    """Whether lists always have a column for it; the others have one when they are sorted by it."""

    def text(self, value: float | None) -> str:
        """Return `value` for people."""
        if value is None:
            return NO_VALUE
        return theta_text(value) if self.name == "theta" else f"{value:.{self.decimals}f}"

    def text_of(self, organ: object) -> str:
        """Return the measure of `organ`, which has a member for it, for people."""
        return self.text(getattr(organ, self.name))


THETA_METHOD, SPECTRAL_METHOD = "z1", "mp1"
"""`registry.measure.zmeasure` and `registry.measure.spectral`."""

MEASURES: Mapping[str, Measure] = {
    one.name: one
    for one in (
        Measure(
            name="theta",
            field="theta",
            label="θ",
            summary="θ in degrees: 0 uniform, about 34 Gaussian, 90 heavy tails",
            meaning="The shape of the weights' distribution as an angle: 0° is a uniform distribution, "
            "about 34° a Gaussian, 90° heavy tails: a few large weights among many small ones.",
            limits="It does not say whether the organ was trained, is useful, or fits another model: random weights "
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
RANKED_MEASURES = tuple(one.name for one in MEASURES.values() if one.ranked_as is None)
"""Those with an index of their own."""
BY_FIELD: Mapping[str, Measure] = {one.field: one for one in MEASURES.values()}
