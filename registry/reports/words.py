"""What the numbers of a report mean, in words for a first reader, and when to be careful with θ."""

from __future__ import annotations

from organs.registry.anatomy import OrganType
from organs.registry.gguf import dtype_by_name
from organs.registry.lineage import CLOSE, RELATED

COARSE_BITS_MAX = 5.5
"""Formats of so many bits a number or fewer count as coarse. Q5_0 (5.5 bits) raised the mean θ of matrices by 2° in a
trial, Q4_0 (4.5) by 7° and Q3_K (3.4) by 14°; of those above (Q5_1, Q6_K, Q8_0) none did by more than 0.5°."""
FEW_NUMBERS = 1000
"""Tensors of fewer numbers give a rough reading."""

COARSE, FEW = "coarse", "few"


def bits_of(dtype: str) -> float:
    """Bits that one number takes in `dtype`, with its share of what its block has in common."""
    kind = dtype_by_name(dtype)
    return 8 * kind.block_bytes / kind.block_elements


def caution(dtype: str, elements: int) -> str:
    """`few`, `coarse`, or nothing; where both hold, `few`."""
    if elements < FEW_NUMBERS:
        return FEW
    return COARSE if bits_of(dtype) <= COARSE_BITS_MAX else ""


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
DASHES = (
    "A dash means that there is no number: it was not measured, or it cannot be worked out from what is here. The page "
    '"What the numbers mean" in the documentation has the formulas.'
)

NO_TENSORS = (
    "A language model is a file of numbers, its weights, which stand in tables called tensors. This file has no "
    "tensors, so there is nothing to measure in it."
)

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
    "The deviation is how far a tensor typically is from the mean (the standard deviation). Half of a type's tensors "
    "have a θ below the median; a quarter below the column 25%, a quarter above 75%."
)
SPECTRAL_OF_TYPES = '"Spectral" is the mean spectral signal: more pattern than chance gives, which need not be of use.'
LISTS = "Plain lists of numbers, such as norms, have no rows and columns, so no spectral signal."
TYPES_DIFFER = (
    "Types do different work, so it is no surprise that they differ; it does not make one type healthier than another."
)
RANKED_BY = (
    "Mean θ is the plain average over a model's tensors: a tensor of a hundred numbers counts as much as one of a "
    "million. What moves it most are short lists of numbers, such as norms: they are read roughly, and their θ may be "
    "anything. Matrix θ is the average over the matrices alone, the tensors with rows and columns, which hold nearly "
    "all of a model's numbers."
)
RANKED_WITH = (
    "Signal is the sine of θ, averaged over all tensors: the same reading on a scale from 0 to 1. A higher value is "
    "not more useful content. Spectral is the mean spectral signal of the matrices: how much of them is pattern that "
    "chance would not give. It does not say that a model has learned more, or anything of use. Parameters: how many "
    "numbers its weights are."
)
NO_MERIT = (
    "A place further up does not mean that a model is better; by mean θ it need not even mean that its matrices read "
    "higher. The file format moves both means: one model read 4° higher in a coarse format (Q2_K) than in a fine one "
    "(Q8_0), with the same weights behind both."
)
LINE = (
    "The line is the one that misses the points least: θ = intercept + slope × log10(parameters). The slope is how "
    "many degrees θ changes when a model has ten times the parameters. The margin says how uncertain it is: if the "
    "points were independent and lay about a true line as a bell curve does, then in 95 of 100 such collections the "
    "true slope would be no further from the slope found than the margin found with it. R² is the share of the "
    "differences in θ that the line accounts for, from 0 to 1; with few points it is high by itself. The intercept is "
    "θ at a single parameter, far outside anything real: it only fixes the line."
)
LINE_OF_READINGS = (
    "For this question the matrices are the better judge: the mean over all tensors is moved most by norms, which are "
    "few numbers each. Counting each model by itself is shown as a warning: relatives share weights, so that margin is "
    "too small."
)
KINSHIP = (
    "Parameters and θ are means over the family (of the parameters, the geometric mean). Kinship is read from four "
    f"things: a likeness of the weights that was measured (a mean correlation of {RELATED} and more), the parents that "
    "a model declares in its file, what this registry itself did, and equal titles. What none of them shows is not "
    "seen."
)
LISTED = "The format is how the numbers are written down; the shape is the length of a row, then the number of rows."
CAUTION = (
    f'Caution: "{FEW}" is a tensor of fewer than {FEW_NUMBERS:,} numbers, which gives a rough reading. "{COARSE}" is a '
    f"tensor in a format of {COARSE_BITS_MAX} bits a number or fewer, whose rounding alone may have moved θ, mostly up."
)
ALIKE = (
    "Alike is the mean correlation of the weights at the same places, over that many matrices: 1 is the same weights, "
    f"strangers have about 0; quantisations to 4 bits or more and light fine-tunes have {CLOSE} and more. It does not "
    "say which of two models was first, or which is better, and a model whose parts were reordered looks like a "
    "stranger. A dash: the two were not compared, because one is not here or is an adapter, or they have no matrix of "
    "one shape at one place."
)
WELLS = (
    "A gravitational well is our name for the place with the lowest θ: where the numbers of a tensor fill their range "
    "most evenly. Some reasons are plain: a tensor of a few hundred numbers gives a rough reading; one that holds a "
    "single value has 0° by definition; and numbers that were drawn evenly from a range, as some programs do before "
    "training begins, have 0° too. A well does not mean that the tensor is idle, damaged or badly trained."
)
HIGHEST = "Few strong numbers among many weak ones. That is a shape; it does not say that these tensors matter most."
FORMATS = (
    "F32, F16 and BF16 write every number by itself. Other formats round numbers in groups to save space; bits is what "
    "one number takes. Matrix θ is the mean over the tensors with rows and columns. Many coarse formats raise θ: that "
    "is rounding, not the model. The same matrices of one model read 36.0° in Q8_0, 38.5° in IQ4_NL and 50.2° in Q3_K; "
    "those of another 35.2° in F16, 37.8° in Q5_0, 42.2° in Q4_0 and 60.0° in MXFP4. Others do not: Q2_K and Q4_K "
    "changed little. So compare models in the same format; the rows of this table hold different tensors, and differ "
    "for that reason too."
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
    OrganType.ORGAN: "the feed-forward part, which works on each word by itself (a type by that name; elsewhere the "
    "registry calls every tensor an organ)",
    OrganType.EMBED: "what turns words into numbers and back",
    OrganType.NORM: "what keeps the numbers in range between two steps",
    OrganType.ADAPTER: "a small change to another model's tensor",
    OrganType.OTHER: "what fits nowhere else",
}
"""What each type of organ is, for people."""
