"""Who is related to whom: what models declare, resolved to registered models, and what their weights show.

resolve     find the relatives of a model
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
