"""Who is related to whom: what models declare, resolved to registered models, and what their weights show.

declared    the parents that a header names, and whether a registered model is meant; pure
resolve     declared edges, led to registered models
measured    the relatives of a model, by the fingerprints of organs at equal places
findings    where what is declared and what is measured disagree; pure
groups      what belongs together, pair by pair; pure
"""

from organs.registry.relatives.measured import Relative, find_relatives, record_relatives
from organs.registry.relatives.resolve import resolve_declared

__all__ = [
    "Relative",
    "find_relatives",
    "record_relatives",
    "resolve_declared",
]
