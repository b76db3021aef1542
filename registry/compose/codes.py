"""The warnings that a recipe can accept: each code, and what it says in a line."""

from __future__ import annotations

WARNINGS = {
    "unrelated-lineage": "the organs are no more alike than those of strangers",
    "lineage-unknown": "there is nothing by which the two could be compared",
    "likely-degraded": "by the prediction the result will not be usable",
    "adapter-base-differs": "the adapter says that it was made for another model",
    "other-scale": "a model of the same family and another size",
    "rope-base-differs": "the donor was trained with another base of positions",
    "rope-scaling-differs": "the donor was trained with positions scaled otherwise",
    "epsilon-differs": "the donor was trained with another epsilon of its norms",
    "context-differs": "the donor was trained for another context length",
    "activation-differs": "the donor's feed-forward was trained with another activation",
    "tokenizer-differs": "tokens are numbered otherwise",
    "parent-yanked": "a model that its publisher or an administrator has yanked",
    "non-finite-weights": "weights that are NaN or infinite, which spread to everything that the model computes",
    "licences-conflict": "licences that do not go together, or allow no derivatives",
}
