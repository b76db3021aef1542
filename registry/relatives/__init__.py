"""Who is related to whom: what models declare, resolved to registered models, and what their weights show.

declared  the parents that a header names, and whether a registered model is meant
resolve   find the relatives of a model: by its weights, and by the parents that headers declare
findings  where what a model declares and what its weights show disagree
comparison  two models side by side
families  families of models: who descends from whom, who is alike
lineage   the lineage of a model: declared, recorded and measured edges, with their findings
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
