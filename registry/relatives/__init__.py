"""Relations between models: declared parents, resolved to registered models, and similarity of weights.

declared    find the models that headers declare as parents
measured    find the relatives of a model by its weights
sources     from which model a quantisation was made
descent     which model was made from which
comparison  compare two models by type, by block and by organ
families    families of models: descent and similarity
holdings    what a registry holds: families with their models and quantisations
lineage     the lineage of a model
"""

from organs.registry.relatives.declared import relinking_children, resolve_declared
from organs.registry.relatives.measured import Relative, find_relatives, measure_edges_again, record_relatives
from organs.registry.relatives.sources import settle_sources

__all__ = [
    "Relative",
    "find_relatives",
    "measure_edges_again",
    "record_relatives",
    "relinking_children",
    "resolve_declared",
    "settle_sources",
]
