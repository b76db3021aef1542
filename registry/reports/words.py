"""What the numbers of a report mean, in words for somebody who has never heard of them. Said once, here."""

from __future__ import annotations

from registry.anatomy import OrganType

WHAT_IT_IS = (
    "A language model is a file of numbers, its weights. They stand in some dozens to thousands of tables, called "
    "tensors. The registry keeps every tensor as a part of its own and reads two things off its numbers."
)
THETA = (
    "θ (theta) tells how the numbers of one tensor are spread, as an angle from 0° to 90°. 0°: every value in their "
    "range is equally common. About 34°: a bell curve, the hump that many small accidents add up to; a tensor that "
    "was filled with such random numbers and never trained has it too. Near 90°: nearly all numbers are small and a "
    "few are very large."
)
NOT_A_MARK = (
    "θ is not a mark. It does not say whether a model is good, whether a tensor was trained, or whether two tensors "
    "fit together. A higher θ is a different shape, not a better one."
)
SPECTRAL = (
    "The spectral signal is a second reading, independent of θ, of tensors with rows and columns: the share of their "
    "variation, from 0 to 1, that stands above what random numbers would show. Random numbers give 0.000. A higher "
    "share means more of a pattern across rows and columns; it does not say what the pattern is good for."
)
DASHES = 'A dash means: not measured. The page "What the numbers mean" in the documentation has the formulas.'

OPENING = (WHAT_IT_IS, THETA, NOT_A_MARK, SPECTRAL, DASHES)

SAMPLED = (
    "θ is read from at most 98,304 numbers of a tensor, always at the same places. In a trial with 200 tensors nine "
    "of ten readings were within 0.6° of that of the whole tensor, and the worst was 10° off."
)
NO_CONCLUSION = (
    "What nobody can conclude from this report: that a model is good or bad, safe or unsafe, well or badly trained, "
    "or better than another. Those questions need the model to be run and tested. Nothing here has run it."
)
CLOSING = (SAMPLED, NO_CONCLUSION)

SPREAD = (
    '"With θ" is how many could be measured. The deviation is how far a tensor typically is from the mean (the '
    "standard deviation). Half of a type's tensors have a θ below the median; a quarter below the column 25%, a "
    "quarter above 75%."
)
TYPES_DIFFER = (
    "Types do different work, so it is no surprise that they differ; it does not make one type healthier than "
    'another. "Spectral" is the mean spectral signal. Plain lists of numbers, such as norms, have no rows and '
    "columns, so none."
)
RANKING = (
    "Mean θ is the plain average over a model's tensors: a tensor of a hundred numbers counts as much as one of a "
    "million. The signal is the sine of θ, the same reading on a scale from 0 to 1. Parameters are all of a model's "
    "numbers, counted. A place further up means that more of the tensors have few strong numbers among many weak "
    "ones. It does not mean that the model is better. The file format moves it too: one model read 4° higher in a "
    "coarse format (Q2_K) than in a fine one (Q8_0), with the same weights behind both."
)
LINE = (
    "The line is the one that misses the points least: θ = intercept + slope × log10(parameters). The slope is how "
    "many degrees θ changes when a model has ten times the parameters. The standard error is how uncertain the slope "
    "is: if the points are independent, the true slope of such models should lie within the 95% margin of it. R² is "
    "the share of the differences in θ that the line accounts for, from 0 to 1; with few points it is high by itself. "
    "The intercept is θ at a single parameter, far outside anything real: it only fixes the line."
)
LINE_OF_MODELS = (
    "The second line counts every model by itself. Relatives share weights, so its standard error is too small."
)
KINSHIP = (
    "Parameters and θ are means over the family (of the parameters, the geometric mean). Kinship is read from "
    "recorded lineage, equal titles and the parents that a model names in its file; what none of them shows is not "
    "seen."
)
LISTED = (
    "The format is how the numbers are written down; the shape is the length of a row, then the number of rows; "
    "numbers is how many there are in all."
)
WELLS = (
    "A gravitational well is our name for the place with the lowest θ: where the numbers of a tensor fill their range "
    "most evenly. Some reasons are plain: a tensor of a few hundred numbers gives a rough reading; one that holds a "
    "single value has 0° by definition; and numbers that were drawn evenly from a range, as some programs do before "
    "training begins, have 0° too. A well does not mean that the tensor is idle, damaged or badly trained."
)
HIGHEST = (
    "Few strong numbers among many weak ones. That is a shape; it does not say that these tensors matter most. A "
    "tensor of a few hundred numbers gives a rough reading, and so is easily found at either end."
)
FORMATS = (
    "F32, F16 and BF16 write every number by itself. Names with Q are quantised: rounded in groups to save space. "
    "Rounding can move θ, so compare models in the same format where you can."
)
BLOCKS = (
    "A tower is a stack of blocks; most models have one, for text. A block that stands out differs from its "
    "neighbours in the shape of its numbers. That does not say that it does more or less of the work."
)
ANOMALIES = (
    "NaN (what a computer writes when a calculation has no result) and infinite values are counted among the numbers "
    "looked at, and left out of every reading. Where a fault put them there, the model computes nonsense. A tensor of "
    "one value may be meant so: it can be what training began with. Where nothing was measured, that says something "
    "about the reading and nothing about the tensor."
)
NO_ANOMALIES = (
    "None: among the numbers looked at all are numbers, no tensor holds a single value throughout, and every tensor "
    "has a θ."
)
METHODS = (
    "The share is of all the numbers of the tensors that the method was used on. Numbers are stored with the name of "
    "the method that read them, so that a better formula will be told apart from this one."
)

TYPE_WORDS = {
    OrganType.SKELETON: "attention, which lets the words of a text act on each other",
    OrganType.ORGAN: "the feed-forward part, which works on each word by itself",
    OrganType.EMBED: "what turns words into numbers and back",
    OrganType.NORM: "what keeps the numbers in range between two steps",
    OrganType.ADAPTER: "a small change to another model's tensor",
    OrganType.OTHER: "what fits nowhere else",
}
"""What each type of organ is, for people."""
