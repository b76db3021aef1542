"""The explanations in reports, for readers who do not know θ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from organs.registry.anatomy import Component, OrganType
from organs.registry.similarity import CLOSE, RELATED

WHAT_IT_IS = (
    "A language model is a file of numbers, its weights. They are arranged in some dozens to thousands of tables, "
    "called tensors. The registry stores every tensor as a separate part, and measures two properties of its numbers."
)
THETA = (
    "θ (theta) describes how the numbers of one tensor are distributed, as an angle from 0° to 90°. 0°: every value in "
    "the range is equally common. About 34°: a bell curve, the sum of many small random effects; a tensor that was "
    "filled with such random numbers and never trained also has it. Near 90°: nearly all numbers are small and a few "
    "are very large."
)
NOT_A_MARK = (
    "θ is not a grade. It does not say whether a model is good, whether a tensor was trained, or whether two tensors "
    "fit together. A higher θ is a different shape, not a better one."
)
SPECTRAL = (
    "The spectral signal is a second measure, independent of θ, of tensors with rows and columns: the share of their "
    "variation, from 0 to 1, above the level of random numbers. Random numbers give 0.000. A higher share means more "
    "pattern across rows and columns; it does not say what the pattern is good for."
)
DASHES = (
    "A dash means that there is no number: it was not measured, or it cannot be computed from the data here. The page "
    '"What the numbers mean" in the documentation has the formulas.'
)

NO_TENSORS = (
    "A language model is a file of numbers, its weights, in tables called tensors. This file has no tensors, so there "
    "is nothing to measure."
)

OPENING = (WHAT_IT_IS, THETA, NOT_A_MARK, SPECTRAL, DASHES)

SAMPLED = (
    "θ is computed from at most 98,304 numbers of a tensor, always at the same places. In a test with 200 tensors, "
    "nine of ten values were within 0.6° of the value for the complete tensor; the largest error was 10°."
)
NO_CONCLUSION = (
    "This report does not show that a model is good or bad, safe or unsafe, well or badly trained, or better than "
    "another model. To answer such questions, run and test the model. All measures here are "
    "computed from the weights, without a run. Only a measured gain comes from a run."
)
CLOSING = (SAMPLED, NO_CONCLUSION)

_DEVIATION = "The deviation is the typical distance of a tensor from the mean (the standard deviation)."
_MEDIAN = "Half of the tensors of a type have a θ below the median."
_QUARTERS = "A quarter of the tensors have a θ below the column 25%, and a quarter above the column 75%."
SPREAD = f"{_DEVIATION} {_MEDIAN} {_QUARTERS}"
SPECTRAL_OF_TYPES = '"Spectral" is the mean spectral signal: pattern beyond chance, which is not necessarily useful.'
LISTS = "Plain lists of numbers, such as norms, have no rows and columns, and so no spectral signal."
TYPES_DIFFER = (
    "Types do different work, so differences between them are normal; they do not make one type better than another."
)
_MATRIX_THETA = (
    "Matrix θ is the average over the matrices only, the tensors with rows and columns, which have nearly all numbers "
    "of a model."
)
RANKED_BY = (
    "Mean θ is the average over the tensors of a model: a tensor of a hundred numbers counts as much as a tensor of a "
    "million. Short lists of numbers, such as norms, change it most: their θ is rough and can have any value. "
    + _MATRIX_THETA
)
SIGNAL = (
    "Signal is the sine of θ, averaged over all tensors: the same measure on a scale from 0 to 1. A higher value does "
    "not mean more useful content."
)
_SPECTRAL = (
    "Spectral is the mean spectral signal of the matrices: their share of pattern beyond chance. It does not say that "
    "a model has learned more, or anything useful."
)
_PARAMETERS = "Parameters is the count of numbers in the weights."
RANKED_WITH = f"{SIGNAL} {_SPECTRAL} {_PARAMETERS}"
NO_MERIT = (
    "A higher place does not mean that a model is better; a higher mean θ does not even mean that its matrices have a "
    "higher θ. Some tensor types change both means: Q4_0 raised the θ of the same matrices by about 6°, Q3_K by "
    "13°."
)
LINE = (
    "The line has the least squared distance from the points: θ = intercept + slope × log10(parameters). The slope is "
    "the change of θ in degrees when a model has ten times the parameters. The margin is the uncertainty of the slope: "
    "if the points were independent and scattered around a true line like a bell curve, then in 95 of 100 such "
    "collections the true slope would be within the margin of the slope that was found. R² is the share of the "
    "differences in θ that the line explains, from 0 to 1; with few points it is always high. The intercept is θ at a "
    "single parameter, far outside of any real model: it only fixes the line."
)
LINE_OF_READINGS = (
    "For this question the matrices are more reliable: norms, which have few numbers each, change the mean over all "
    "tensors most. The lines that count each model separately are only a warning: related models share weights, so "
    "their margin is too small."
)
KINSHIP = (
    "Parameters and θ are means over the family (for the parameters, the geometric mean). Models belong to one family "
    f"by three signs: a measured likeness of the weights (a mean correlation of at least {RELATED}), parents that a "
    "model declares in its file, and records of this registry. Other relations are not visible here."
)
_SHAPE = "The shape is the length of a row, then the number of rows."
LISTED = f"The tensor type is how the numbers are stored. {_SHAPE}"
ALIKE = (
    "Change is the energy of the difference of the weights at the same places, as a share of their energy, over "
    "that many matrices: 0 means the same weights, 1e-5 a light fine-tune, 2 unrelated models. Alike is the mean "
    "correlation: 1 means the same weights, unrelated models have about 0, and quantisations to at least 4 bits and "
    f"light fine-tunes have at least {CLOSE}. Neither says which of two models is better. A model with reordered "
    "parts looks unrelated. A dash: it was not measured, because one is not in this registry or is an adapter, or "
    "because they have no matrices of equal shape at the same place."
)
SHARED_WELLS = "Models is how many models have exactly this lowest θ, for example because they share the tensor."
TYPE_RANGES = (
    "A wide range says that models differ in the shape of these weights, or in their tensor types. The range grows "
    "with the number of models."
)
WELLS = (
    "A gravitational well is our name for a matrix with the lowest θ: where the numbers of a tensor fill their range "
    "most evenly. There are simple reasons: a tensor of a few hundred numbers has a rough θ; a tensor with a single "
    "value has 0° by definition; and numbers that were drawn evenly from a range, as some programs do before training, "
    "also have 0°. A well does not mean that the tensor is unused, damaged or badly trained."
)
HIGHEST = "Few large numbers among many small ones. This is a shape; it does not say that these tensors matter most."
FORMATS = (
    "F32, F16 and BF16 store every number separately. Other tensor types round numbers in groups to save space; bits "
    "is the space of one number. Matrix θ is the mean over the tensors with rows and columns. Some types change "
    "θ: the reason is the rounding, not the model. In two real models, Q5_0 and IQ4_XS raised the θ of a matrix by "
    "about 2°, Q4_0 by 6° and Q3_K by 13°; Q4_1, Q4_K, Q5_1, Q5_K, Q6_K and Q8_0 changed nearly all matrices by less "
    "than 1°. Therefore do not compare models across these groups. The rows of this table have different tensors, "
    "which is another reason for differences."
)
_COUNT = "Parameters is the count of numbers."
_SHARE = "Share is the part of all numbers in this table."
_MEAN_SPECTRAL = "Spectral is the mean spectral signal of the matrices."
COMPONENTS = (
    f"{_COUNT} {_SHARE} {_DEVIATION} {_MEAN_SPECTRAL} A stack of experts is one tensor here. The components come from "
    "the names of the tensors."
)
BLOCKS = (
    "A tower is a stack of blocks; most models have one, for text. The numbers of a block with an unusual value have "
    "another shape than those of its neighbours. That does not say that it does more or less of the work."
)
ANOMALIES = (
    "NaN (the result of an undefined calculation) and infinite values are counted in the sample, and left out of all "
    "measures. If they come from a fault, the model computes nonsense. A tensor with a single value may be intended: "
    "it can be the state before training. A tensor that could not be measured is not necessarily faulty."
)
NO_ANOMALIES = (
    "None: no sample has NaN or infinite values, no tensor has only a single value, and every tensor has a θ."
)
METHODS = (
    "The share is that of all numbers of the tensors with this method. Measures are stored with the name of their "
    "method, so a better formula later will be distinct from this one."
)

OF_COLUMNS = {
    "deviation": (_DEVIATION,),
    "median": (_MEDIAN,),
    "25%": (_QUARTERS,),
    "75%": (_QUARTERS,),
    "matrix θ": (_MATRIX_THETA,),
    "signal": (SIGNAL,),
    "spectral": (SPECTRAL_OF_TYPES, LISTS, _SPECTRAL, _MEAN_SPECTRAL),
    "parameters": (_PARAMETERS, _COUNT),
    "share": (_SHARE,),
    "shape": (_SHAPE,),
}
"""The sentences that explain a column only, by its heading: a reader without the column does not need them."""


def explanations(texts: Iterable[str], left_out: Iterable[str]) -> Iterator[str]:
    """Yield the paragraphs `texts` without the sentences that explain only columns in `left_out`."""
    absent = set(left_out)
    shown = {sentence for heading in OF_COLUMNS.keys() - absent for sentence in OF_COLUMNS[heading]}
    sentences = [sentence for heading in absent for sentence in OF_COLUMNS.get(heading, ()) if sentence not in shown]
    for text in texts:
        kept = text
        for sentence in sentences:
            kept = kept.replace(sentence, "")
        if kept.strip():
            yield " ".join(kept.split()) if kept != text else text


TYPE_WORDS = {
    OrganType.SKELETON: "what connects the words of a text",
    OrganType.ORGAN: "what processes each word separately",
    OrganType.EMBED: "the tables that turn words into numbers and back",
    OrganType.NORM: "the scales that keep numbers in range between two steps",
    OrganType.ADAPTER: "a small change of a tensor of another model",
    OrganType.OTHER: "all tensors of no other type",
}
"""The meaning of each type, for people."""

COMPONENT_WORDS = {
    Component.LATENT_ATTENTION: "the projections of attention that goes through a compressed form (MLA); their output "
    "matrix has the name of all attention, and counts there",
    Component.INDEXER: "a small attention that chooses the tokens for the large one",
    Component.DENSE: "feed-forward tensors that process every word",
    Component.ROUTED_EXPERTS: "feed-forward tensors of which the router chooses a few for each word",
    Component.SHARED_EXPERTS: "feed-forward tensors beside the routed experts that process every word",
    Component.ROUTER: "the tensors that choose the experts",
}
"""The meaning of the components that are not types, for people."""
