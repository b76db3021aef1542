"""Adapters to additions: which low-rank products are added to which tensors."""

from __future__ import annotations

from organs.registry.anatomy import TOKEN_EMBEDDING, place_of
from organs.registry.compose.adaptation import alpha_of, factor_pairs
from organs.registry.compose.computation import Addition, Ingredient
from organs.registry.compose.parent import Parent, Part


def additions_of(adapter: Parent, scale: float) -> dict[str, Addition]:
    """The additions of `adapter`, `scale` times, by the name of the tensor that each is added to.

    What is incomplete is left out: compatibility has refused it.
    """
    alpha = alpha_of(adapter)
    return {
        pair.target: Addition(_ingredient(pair.a), _ingredient(pair.b), alpha, scale)
        for pair in factor_pairs(adapter)
        if pair.a is not None and pair.b is not None
    }


def is_token_embedding(name: str) -> bool:
    """Whether the tensor `name` turns tokens into vectors: its adapters are stored the other way round."""
    return place_of(name) == TOKEN_EMBEDDING


def _ingredient(part: Part) -> Ingredient:
    return Ingredient(part.digest, part.dtype, part.shape, part.name)
