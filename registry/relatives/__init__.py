"""Who is related to whom: what models declare, resolved to registered models, and what their weights show.

declared    the parents that a header names, and whether a registered model is meant
resolve     find the relatives of a model: by its weights, and by the parents that headers declare
findings    findings where what a model declares and what its weights show disagree
comparison  compare two models: how alike they are by type, by block and by organ
families    families of models: who descends from whom, who is alike
lineage     the lineage of a model
"""

from organs.registry.relatives.resolve import (
    Relative,
    find_relatives,
    record_relatives,
    resolve_declared,
)

__all__ = [
    "Relative",
    "find_relatives",
    "record_relatives",
    "resolve_declared",
]
