"""Relations between models: declared parents, resolved to registered models, and similarity of weights.

resolve     find the relatives of a model
comparison  compare two models by type, by block and by organ
families    families of models: descent and similarity
holdings    what a registry holds: families with their models and quantisations
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
