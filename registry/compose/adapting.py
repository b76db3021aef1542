"""Adapters to additions: which low-rank products are added to which tensors."""

from __future__ import annotations

from registry.anatomy import TOKEN_EMBEDDING, adapted_tensor, place_of
from registry.compose.adaptation import alpha_of
from registry.compose.computation import Addition, Ingredient
from registry.compose.parent import Parent, Part


def additions_of(adapter: Parent, scale: float) -> dict[str, Addition]:
    """The additions of `adapter`, `scale` times, by the name of the tensor that each is added to.

    What is incomplete is left out: compatibility has refused it.
    """
    halves: dict[str, dict[str, Part]] = {}
    for part in adapter.parts:
        name = adapted_tensor(part.name)
        if name is not None:
            halves.setdefault(name, {})[part.name.removeprefix(f"{name}.")] = part
    alpha = alpha_of(adapter)
    return {
        name: Addition(_ingredient(pair["lora_a"]), _ingredient(pair["lora_b"]), alpha, scale)
        for name, pair in halves.items()
        if len(pair) == 2
    }


def is_token_embedding(name: str) -> bool:
    """Whether the tensor `name` turns tokens into vectors: its adapters are stored the other way round."""
    return place_of(name) == TOKEN_EMBEDDING


def _ingredient(part: Part) -> Ingredient:
    return Ingredient(part.digest, part.dtype, part.shape, part.name)
